"""P1, P2: shared images and the fused head change what a step costs, not what it computes.

Pure parts are tested as functions; log-probs and gradients through verl's own training worker in a fresh process
(``python tests/fork/test_shared_images.py MODEL_DIR`` prints what it measured as JSON).
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

os.environ.setdefault("VERL_PLATFORM", "cpu")

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from verl_hyocr import groups, pixels
from verl_hyocr.adapt.fused_head import answer_positions, chunked_log_probs, token_log_probs
from verl_hyocr.adapt.shared_images import OncePerPrompt, spread_features, tokens_per_image

ROOT = Path(__file__).resolve().parents[2]
AFFINE = pixels.Affine(1 / 255, (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711), 256)


# ---------------------------------------------------------------------------------------------------------- pixels


def test_every_byte_survives_in_every_channel():
    stored = torch.arange(256, dtype=torch.uint8).repeat(3).unsqueeze(0)
    values = AFFINE.restore(stored)
    assert values.dtype == torch.float32 and torch.equal(pixels.compact(values, AFFINE), stored)


@pytest.mark.parametrize("size", [(90, 60), (333, 201)])
def test_a_processor_s_output_is_stored_as_bytes_and_restored_bit_by_bit(tiny_model, size):
    from PIL import Image
    from verl.utils import hf_processor

    processor = hf_processor(str(tiny_model)).image_processor
    noise = np.random.default_rng(0).integers(0, 256, (*size, 3), dtype=np.uint8)
    values = processor(images=[Image.fromarray(noise)], return_tensors="pt")["pixel_values"]
    ref = pixels.PixelRef("1:a/1", pixels.Affine.of(processor))
    stored = pixels.compact(values, ref.affine)
    assert stored.dtype == torch.uint8 and torch.equal(ref.values(stored), values)


@pytest.mark.parametrize(
    "values",
    [torch.randn(2, 768), torch.zeros(2, 768, dtype=torch.bfloat16), torch.zeros(2, 700)],
    ids=["no bytes", "other type", "other shape"],
)
def test_values_that_would_not_survive_stay_as_they_are(values):
    assert pixels.compact(values, AFFINE) is values and pixels.compact(values, None) is values
    assert pixels.PixelRef("1:a", None).values(values.float()).dtype == torch.float32


def test_references_survive_the_queue_s_serialisation():
    from transfer_queue.utils.serial_utils import MsgpackDecoder, MsgpackEncoder

    for ref in (pixels.PixelRef("3:u/1", AFFINE), pixels.PixelRef("3:u/2", None)):
        sent = {"multi_modal_inputs": [{pixels.KEY: ref.packed()}, {}]}
        received = MsgpackDecoder().decode(MsgpackEncoder().encode(sent))
        assert pixels.refs_in(received["multi_modal_inputs"]) == [ref, None]


def test_a_worker_fetches_once_and_lets_earlier_steps_go():
    asked = []

    def fetch(keys):
        asked.append(list(keys))
        return [torch.full((1, 1), len(key)) for key in keys]

    store = pixels.PixelStore(fetch)
    assert [int(value) for value in store.get(["1:a", "1:bb", "1:a"])] == [3, 4, 3]
    store.get(["1:bb"])
    store.get(["2:a"])
    store.get(["1:bb"])
    assert asked == [["1:a", "1:bb"], ["2:a"], ["1:bb"]]


# ---------------------------------------------------------------------------------------------------------- groups

lengths = st.lists(st.integers(1, 50), min_size=1, max_size=30)


@settings(max_examples=60)
@given(lengths, st.integers(50, 120), st.integers(0, 5))
def test_runs_cover_everything_in_order_and_fit(items, capacity, more):
    bins = min(groups.count_bins(items, capacity) + more, len(items))
    runs = groups.split_evenly(items, bins, capacity)
    assert len(runs) == bins and all(len(run) for run in runs)
    assert [index for run in runs for index in run] == list(range(len(items)))
    assert all(sum(items[index] for index in run) <= capacity for run in runs)


def test_runs_are_even():
    assert groups.split_evenly([5] * 8, 2, 100) == [range(0, 4), range(4, 8)]
    with pytest.raises(ValueError, match="2 samples cannot fill 3"):
        groups.split_evenly([1, 1], 3, 10)
    with pytest.raises(ValueError, match="do not fit"):
        groups.split_evenly([6, 6], 1, 10)
    with pytest.raises(ValueError, match="longer than the budget"):
        groups.count_bins([11], 10)


@settings(max_examples=60)
@given(st.integers(1, 4), st.integers(1, 6), st.integers(1, 5), st.randoms(use_true_random=False))
def test_ranks_get_as_many_samples_and_whole_groups_when_they_fit(ranks, per_rank, size, random):
    names = [group for group in range(ranks * per_rank) for _ in range(size)]
    tokens = [random.randint(1, 40) for _ in names]
    shares = groups.spread_over_ranks(tokens, names, ranks)
    assert sorted(index for share in shares for index in share) == list(range(len(names)))
    assert {len(share) for share in shares} == {per_rank * size}
    assert sum(len({names[index] for index in share}) for share in shares) == ranks * per_rank, "no group is split"


def test_groups_of_unequal_size_are_split_where_they_must_be():
    shares = groups.spread_over_ranks([1] * 8, ["a"] * 5 + ["b"] * 3, 2)
    assert sorted(map(sorted, shares)) in ([[0, 1, 2, 3], [4, 5, 6, 7]], [[0, 5, 6, 7], [1, 2, 3, 4]])
    with pytest.raises(ValueError, match="cannot be shared out equally"):
        groups.spread_over_ranks([1, 1, 1], "aab", 2)


# ------------------------------------------------------------------------------------------------------------ head


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_chunks_give_what_the_whole_gives(temperature):
    torch.manual_seed(0)
    head = torch.nn.Linear(8, 50, bias=False)
    hidden, labels = torch.randn(11, 8, requires_grad=True), torch.randint(50, (11,))
    whole = token_log_probs(head, hidden, labels, temperature)
    parts = chunked_log_probs(head, hidden, labels, temperature, chunk=4)
    wanted = torch.distributions.Categorical(logits=head(hidden) / temperature)
    for one in (whole, parts):
        assert torch.allclose(one[0], wanted.log_prob(labels), atol=1e-6)
        assert torch.allclose(one[1], wanted.entropy(), atol=1e-5)
    weights = torch.linspace(-1, 1, 11)
    grads = [
        torch.autograd.grad(((lp + 0.3 * entropy) * weights).sum(), [hidden, head.weight], retain_graph=True)
        for lp, entropy in (whole, parts)
    ]
    for left, right in zip(*grads, strict=True):
        assert torch.allclose(left, right, atol=1e-6)


def test_a_hook_on_the_head_acts_in_both_passes():
    head = torch.nn.Linear(4, 6, bias=False)
    head.register_forward_hook(lambda module, inputs, logits: logits.index_fill(-1, torch.tensor([2]), -1e9))
    hidden = torch.randn(5, 4, requires_grad=True)
    log_probs, _ = chunked_log_probs(head, hidden, torch.full((5,), 1), chunk=2)
    log_probs.sum().backward()
    assert float(head.weight.grad[2].abs().max()) == 0.0 and float(head.weight.grad[1].abs().max()) > 0


def test_answer_positions_predict_the_answers():
    found = answer_positions(torch.tensor([3, 2]), torch.tensor([2, 1]), 10)
    assert found.tolist() == [[False, False, True, True, False, False, True, False, False, False]]


# ---------------------------------------------------------------------------------------------------------- images


def test_features_are_copied_to_their_places():
    grid = torch.tensor([[1, 4, 6], [1, 2, 2]])
    counts = tokens_per_image(grid, 2)
    assert counts == [2 * 4 + 2, 1 * 2 + 2]
    features = torch.arange(14.0).unsqueeze(1).requires_grad_()
    spread = spread_features(features, counts, [1, 0, 1])
    assert spread.flatten().tolist() == [*range(10, 14), *range(10), *range(10, 14)]
    spread.sum().backward()
    assert features.grad.flatten().tolist() == [1.0] * 10 + [2.0] * 4


def test_sessions_of_a_prompt_share_one_computation():
    async def main():
        once, calls = OncePerPrompt(size=2), []

        async def compute():
            calls.append(len(calls))
            await asyncio.sleep(0)
            if len(calls) == 2:
                raise OSError("unreadable")
            return calls[-1]

        assert await asyncio.gather(*(once.get("a", None, compute) for _ in range(5))) == [0] * 5
        results = await asyncio.gather(*(once.get("b", None, compute) for _ in range(3)), return_exceptions=True)
        assert [type(result) for result in results] == [OSError] * 3, "all who waited hear of it"
        assert await once.get("b", None, compute) == 2, "a failure is not kept"
        await once.get("c", None, compute)
        assert await once.get("a", None, compute) == 4, "the oldest went"

    asyncio.run(main())


# --------------------------------------------------------------------------------- through verl's training worker


def grouped_rows(model_dir: Path) -> list[dict]:
    """Two groups of three answers (a page; two images), their members apart, and the rows of the packing tests."""
    from test_packing import sample_rows

    base = sample_rows(model_dir)
    two_images, page = base[0], base[3]
    random = np.random.default_rng(1)

    def answer(row: dict, length: int) -> dict:
        ids = torch.cat([row["prompts"], torch.from_numpy(random.integers(10, 100, length))])
        steps = torch.arange(length) + row["position_ids"][:, len(row["prompts"]) - 1 :][:, :1] + 1
        places = torch.cat([row["position_ids"][:, : len(row["prompts"])], steps], dim=1)
        mask = torch.ones(length, dtype=torch.int64)
        return row | {
            "responses": ids[len(row["prompts"]) :],
            "input_ids": ids,
            "position_ids": places,
            "response_mask": mask,
            "loss_mask": mask,
        }

    groups_of = [[answer(row, length) for length in (4, 9, 6)] for row in (two_images, page)]
    return [row for pair in zip(*groups_of, strict=True) for row in pair] + base[1:]


def with_keys(rows: list[dict], affine) -> list[dict]:
    """The rows as P1 stores them: a reference per distinct image set; the values in this process's store."""
    held, found = {}, []
    for row in rows:
        inputs = dict(row["multi_modal_inputs"])
        values = inputs.pop("pixel_values", None)
        if values is not None:
            known = next((key for key, one in held.items() if torch.equal(one, values)), None)
            key = known or pixels.key_of(1, f"{len(held)}")
            held[key] = values
            inputs[pixels.KEY] = pixels.PixelRef(key, affine).packed()
        found.append(row | {"multi_modal_inputs": inputs})
    stored = {key: pixels.compact(values, affine) for key, values in held.items()}
    assert {value.dtype for value in stored.values()} == {torch.uint8}
    pixels.STORE = pixels.PixelStore(lambda keys: [stored[key] for key in keys])
    return found


def measure(model_dir: Path) -> dict:
    import test_packing as harness
    from verl.utils import hf_processor
    from verl.utils import tensordict_utils as tu
    from verl.workers.utils.padding import no_padding_2_padding

    worker, rows = harness.training_worker(model_dir), grouped_rows(model_dir)
    keyed = with_keys(rows, pixels.Affine.of(hf_processor(str(model_dir)).image_processor))
    answers = torch.cat(
        [
            (torch.arange(len(row["input_ids"])) >= len(row["prompts"]) - 1)
            & (torch.arange(len(row["input_ids"])) < len(row["input_ids"]) - 1)
            for row in rows
        ]
    )
    patches = []
    tower = worker.engine.module.model.vision_tower
    tower.register_forward_hook(lambda module, args, kwargs, out: patches.append(len(args[0])), with_kwargs=True)

    def run(rows, fused, budget=4096, packed=True):
        data = harness.batch(rows, packed, budget)
        tu.assign_non_tensor(data, use_fused_kernels=fused)
        output = worker.infer_batch(data)
        return torch.stack([output[name].values()[answers] for name in ("log_probs", "entropy")])

    def loss(model_output, data, dp_group=None):
        """Every answer token weighs differently, whatever the order of the samples."""
        log_probs = no_padding_2_padding(model_output["log_probs"], data)
        tokens = torch.nested.to_padded_tensor(data["responses"], -1)
        weights = (0.5 + tokens % 7 / 7) * (tokens >= 0)
        return -(log_probs * weights).sum() / len(answers), {}

    def grads(rows, fused, budget=4096):
        data = harness.batch(rows, True, budget)
        tu.assign_non_tensor(data, use_fused_kernels=fused)
        with worker.engine.train_mode():
            worker.engine.optimizer_zero_grad()
            worker.engine.forward_backward_batch(data, loss)
            return {
                name: getattr(one.grad, "full_tensor", lambda grad=one.grad: grad)().clone()
                for name, one in worker.engine.module.named_parameters()
                if one.grad is not None
            }

    def encoded(action):
        patches.clear()
        action()
        return list(patches)

    compare = lambda left, right: float((left - right).abs().max())
    plain = run(rows, fused=False)
    found = {"log_prob": float(plain[0].mean())}
    cases = {
        "shared images": lambda: run(keyed, fused=False),
        "shared images, several micro-batches": lambda: run(keyed, fused=False, budget=200),
        "shared images, one by one": lambda: run(keyed, fused=False, budget=0),
        "shared images, padded": lambda: run(keyed, fused=False, packed=False),
        "fused head": lambda: run(rows, fused=True),
        "fused head, padded": lambda: run(rows, fused=True, packed=False),
        "both": lambda: run(keyed, fused=True),
        "both, several micro-batches": lambda: run(keyed, fused=True, budget=200),
    }
    found["differences"] = {name: compare(case(), plain) for name, case in cases.items()}
    reference = grads(rows, fused=False)
    found["gradients"] = {
        "shared images": harness.worst(grads(keyed, fused=False), reference),
        "fused head": harness.worst(grads(rows, fused=True), reference),
        "both": harness.worst(grads(keyed, fused=True), reference),
        "both, several micro-batches": harness.worst(grads(keyed, fused=True, budget=200), reference),
    }
    found["patches"] = {
        "plain": encoded(lambda: run(rows, fused=False)),
        "shared": encoded(lambda: run(keyed, fused=False)),
        "in several micro-batches": encoded(lambda: run(keyed, fused=False, budget=200)),
    }
    from verl_hyocr.adapt.flops import image_patches

    found["counted"] = [sum(image_patches([row["multi_modal_inputs"] for row in some])) for some in (rows, keyed)]
    return found


@pytest.fixture(scope="module")
def measured(tiny_model) -> dict:
    env = {**os.environ, "VERL_PLATFORM": "cpu", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, __file__, str(tiny_model)]
    result = subprocess.run(command, env=env, capture_output=True, text=True, timeout=600)
    assert result.returncode == 0, result.stderr[-4000:]
    return json.loads(result.stdout.strip().splitlines()[-1])


def test_log_probs_and_entropies_equal_the_plain_path(measured):
    assert -20 < measured["log_prob"] < -5
    assert measured["differences"] and {k: v for k, v in measured["differences"].items() if v > 1e-5} == {}


def test_gradients_equal_those_of_the_plain_path(measured):
    assert measured["gradients"] and {k: v for k, v in measured["gradients"].items() if v > 1e-5} == {}


def test_distinct_images_are_encoded_once(measured):
    plain, shared = measured["patches"]["plain"], measured["patches"]["shared"]
    assert len(plain) == len(shared) == 1
    # 16-pixel patches of (90, 60), (40, 100), (64, 64) and (64, 96) after rounding; two of them in groups of three.
    assert sum(shared) < 0.5 * sum(plain)
    apart = measured["patches"]["in several micro-batches"]
    assert len(apart) > 2 and sum(apart) < 0.7 * sum(plain), "groups stay together"
    assert measured["counted"][1] == sum(shared) and measured["counted"][0] == sum(plain)


if __name__ == "__main__":
    import verl  # noqa: F401 - runs the plugin first, as in a worker

    print(json.dumps(measure(Path(sys.argv[1]))))
