"""C1: a row of several samples gives every sample what it gets alone.

Boundaries and attention are tested as functions; log-probs and gradients through verl's own training worker in a fresh process
(``python tests/fork/test_packing.py MODEL_DIR`` prints what it measured as JSON), with the step and without it.
The last tests need a GPU, torch and wrapt, not verl: ``PYTHONPATH=verl python -m pytest tests/fork/test_packing.py -k cuda``.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path

os.environ.setdefault("VERL_PLATFORM", "cpu")

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from verl_hyocr.adapt import packing
from verl_hyocr.adapt.packing import Segments, attend, packed_segments

ROOT = Path(__file__).resolve().parents[2]


# ------------------------------------------------------------------------------------------------------ boundaries


def positions(lengths: list[int], axes: int = 4) -> torch.Tensor:
    """(axes, 1, T): the text axis counts within each sample, the others hold what images put there."""
    text = torch.cat([torch.arange(length) for length in lengths])
    return torch.stack([text, *(torch.zeros_like(text) for _ in range(axes - 1))]).unsqueeze(1)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(1, 9), min_size=2, max_size=6))
def test_boundaries_are_where_the_text_axis_restarts(lengths):
    found = packed_segments(positions(lengths))
    assert found.lengths == tuple(lengths) and found.longest == max(lengths)
    assert found.offsets.tolist() == [sum(lengths[:index]) for index in range(len(lengths) + 1)]
    assert found.offsets.dtype == torch.int32
    assert packed_segments(positions(lengths)[0]).lengths == tuple(lengths), "positions of one axis, (1, T)"


@pytest.mark.parametrize(
    "position_ids",
    [None, positions([7]), positions([7]) + 5, positions([3, 4]).expand(4, 2, 7), torch.arange(7)],
    ids=["none", "one sample", "one sample, later positions", "two rows", "one axis"],
)
def test_other_inputs_are_left_alone(position_ids):
    assert packed_segments(position_ids) is None


# ------------------------------------------------------------------------------------------------------- attention


def masked_attention(query, key, value, segments: Segments, scaling: float, is_causal: bool) -> torch.Tensor:
    """The same attention written with a mask over the whole row."""
    owner = torch.repeat_interleave(torch.arange(len(segments.lengths)), torch.tensor(segments.lengths))
    mask = (owner[:, None] == owner[None]).to(query.device)
    if is_causal:
        mask = mask.tril()
    groups = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    scores = (query @ key.transpose(2, 3) * scaling).masked_fill(~mask, float("-inf"))
    return (scores.softmax(-1) @ value).transpose(1, 2)


def random_qkv(lengths, heads, kv_heads, width, dtype=torch.float32, device="cpu"):
    generator = torch.Generator().manual_seed(sum(lengths))
    make = lambda count: torch.randn(1, count, sum(lengths), width, generator=generator).to(device, dtype)
    return [make(count).requires_grad_() for count in (heads, kv_heads, kv_heads)]


def attention_errors(lengths, heads, kv_heads, width, is_causal, dtype, device) -> list[float]:
    """Relative errors of output and gradients against the masked form in fp32."""
    segments = Segments.of(list(lengths), device)
    inputs = random_qkv(lengths, heads, kv_heads, width, dtype, device)
    exact = [tensor.detach().float().requires_grad_() for tensor in inputs]
    out = attend(*inputs, segments, scaling=width**-0.5, is_causal=is_causal)
    assert out.shape == (1, sum(lengths), heads, width) and out.dtype == dtype
    wanted = masked_attention(*exact, segments, width**-0.5, is_causal)
    weights = torch.linspace(-1, 1, out.numel(), device=device).reshape(out.shape)
    (out.float() * weights).sum().backward()
    (wanted * weights).sum().backward()
    pairs = [(out.detach(), wanted.detach()), *((mine.grad, one.grad) for mine, one in zip(inputs, exact, strict=True))]
    return [float((mine.float() - other).norm() / other.norm()) for mine, other in pairs]


@pytest.mark.parametrize("is_causal", [True, False])
@pytest.mark.parametrize(("lengths", "heads", "kv_heads"), [((5, 1, 9), 4, 2), ((6, 6), 2, 2)])
def test_attention_within_segments_equals_the_masked_form(lengths, heads, kv_heads, is_causal):
    assert max(attention_errors(lengths, heads, kv_heads, 8, is_causal, torch.float32, "cpu")) < 1e-5


@pytest.mark.parametrize(
    ("name", "supported"),
    [("sdpa", True), ("flash_attention_2", True), ("eager", False), ("flex_attention", False), (None, False)],
)
def test_supported_attention_implementations(name, supported):
    assert packing.supports(name) is supported


# --------------------------------------------------------------------------------- through verl's training worker


def training_worker(model_dir: Path, rank: int = 0, world: int = 1, port: int | None = None):
    """verl's worker and FSDP2 engine as an actor gets them, on gloo ranks, fp32, with gradient checkpointing."""
    import socket

    from verl.utils.config import omega_conf_to_dataclass
    from verl.workers.engine_workers import TrainingWorker, TrainingWorkerConfig
    from verl_hyocr.dry_run import compose

    actor = "actor_rollout_ref.actor"
    config = compose(
        [
            "algorithm.adv_estimator=grpo",
            f"actor_rollout_ref.model.path={model_dir}",
            "actor_rollout_ref.model.use_remove_padding=False",
            "actor_rollout_ref.model.enable_gradient_checkpointing=True",
            "actor_rollout_ref.rollout.name=vllm",
            "data.train_batch_size=8",
            f"trainer.n_gpus_per_node={world}",
            "trainer.device=cpu",
            f"{actor}.strategy=fsdp2",
            f"{actor}.use_dynamic_bsz=True",
            f"{actor}.ppo_mini_batch_size=8",
            f"{actor}.use_torch_compile=False",
            f"{actor}.fsdp_config.use_torch_compile=False",
            f"{actor}.fsdp_config.model_dtype=fp32",
            f"+{actor}.fsdp_config.mixed_precision.param_dtype=fp32",
        ]
    )
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = port or probe.getsockname()[1]
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), LOCAL_RANK=str(rank))
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(world))
    settings = omega_conf_to_dataclass(config.actor_rollout_ref.actor)
    worker = TrainingWorker(
        TrainingWorkerConfig(
            model_type="language_model",
            model_config=omega_conf_to_dataclass(config.actor_rollout_ref.model),
            engine_config=settings.engine,
            optimizer_config=settings.optim,
            checkpoint_config=settings.checkpoint,
        )
    )
    worker.reset()
    return worker


def sample_rows(model_dir: Path) -> list[dict]:
    """Two images, none, one, an equally long pair, and the row that verl pads batches with."""
    import numpy as np
    from PIL import Image
    from verl.experimental.agent_loop.agent_loop import AgentLoopWorker
    from verl.trainer.ppo.padding_utils import construct_minimal_padding_template
    from verl.utils import hf_processor

    holder = type("Worker", (), {"processor": hf_processor(str(model_dir))})()
    processor, random = holder.processor, np.random.default_rng(0)
    rows = []
    for sizes, answer in [(((90, 60), (40, 100)), 7), ((), 3), (((64, 64),), 12), (((64, 96),), 5), (((64, 96),), 5)]:
        images = [Image.fromarray(random.integers(0, 255, (*size[::-1], 3), dtype=np.uint8)) for size in sizes]
        content = [{"type": "image", "image": image} for image in images] + [{"type": "text", "text": "Read this."}]
        text = processor.apply_chat_template(
            [{"role": "user", "content": content}], add_generation_prompt=True, tokenize=False
        )
        inputs = dict(processor(text=[text], images=images or None, return_tensors="pt"))
        prompt = inputs.pop("input_ids")
        ids = torch.cat([prompt[0], torch.from_numpy(random.integers(10, 100, answer))])
        inputs.pop("attention_mask")
        place = AgentLoopWorker._compute_position_ids
        position_ids = place(holder, ids[None], torch.ones_like(ids)[None], inputs, {})[0]
        assert "mm_token_type_ids" not in inputs, "verl takes it out of what the model gets"
        rows.append(
            {
                "prompts": prompt[0],
                "responses": ids[prompt.shape[1] :],
                "input_ids": ids,
                "position_ids": position_ids,
                "response_mask": torch.ones(answer, dtype=torch.int64),
                "loss_mask": torch.ones(answer, dtype=torch.int64),
                "multi_modal_inputs": inputs,
            }
        )
    padding, _ = construct_minimal_padding_template(rows[0], {}, 120001)
    return [*rows, {name: padding[name] for name in rows[0]}]


def batch(rows: list[dict], packed: bool, budget: int = 4096):
    """The worker's data; ``budget`` is the tokens of a micro-batch, 0 puts every sample into its own."""
    from tensordict import NonTensorData
    from verl.utils import tensordict_utils as tu
    from verl.utils.tensordict_utils import list_of_dict_to_tensordict

    data = list_of_dict_to_tensordict([dict(row) for row in rows])
    tu.assign_non_tensor(
        data,
        use_remove_padding=packed,
        use_dynamic_bsz=budget > 0,
        max_token_len_per_gpu=budget,
        micro_batch_size_per_gpu=1,
        calculate_entropy=True,
        compute_loss=False,
        temperature=0.9,
        global_batch_size=len(rows),
        global_token_num=NonTensorData([len(row["input_ids"]) for row in rows]),
    )
    return data


def log_probs(worker, rows: list[dict], packed: bool, budget: int = 4096) -> torch.Tensor:
    """Log-probs and entropies of all tokens but each sample's last (its successor is another sample's): (2, tokens)."""
    output = worker.infer_batch(batch(rows, packed, budget))
    keep = torch.cat([torch.arange(len(row["input_ids"])) < len(row["input_ids"]) - 1 for row in rows])
    return torch.stack([output[name].values()[keep] for name in ("log_probs", "entropy")])


def gradients(worker, rows: list[dict], packed: bool) -> dict[str, torch.Tensor]:
    """Gradients of a loss in which every answer token weighs differently."""

    def loss(model_output, data, dp_group=None):
        values = model_output["log_probs"].values()
        mask = torch.cat([torch.arange(len(row["input_ids"])) >= len(row["prompts"]) - 1 for row in rows])
        weights = torch.linspace(0.5, 1.5, len(values)) * mask
        return -(values * weights).sum() / mask.sum(), {}

    with worker.engine.train_mode():
        worker.engine.optimizer_zero_grad()
        worker.engine.forward_backward_batch(batch(rows, packed), loss)
        return {
            name: getattr(one.grad, "full_tensor", lambda grad=one.grad: grad)().clone()
            for name, one in worker.engine.module.named_parameters()
            if one.grad is not None
        }


def worst(left: dict, right: dict) -> float:
    """Largest difference of one parameter's gradient relative to its own norm."""
    assert left.keys() == right.keys() and len(left) > 50
    floor = 1e-6 * max(float(one.norm()) for one in right.values())
    return max(float((left[name] - right[name]).norm() / right[name].norm().clamp(min=floor)) for name in left)


@contextlib.contextmanager
def attention_of(worker, name: str):
    """The loaded model under another attention implementation."""
    model = worker.engine.module.model
    configs = [model.language_model.config, model.vision_tower.config]
    before = [config._attn_implementation for config in configs]
    for config in configs:
        config._attn_implementation = name
    try:
        yield
    finally:
        for config, old in zip(configs, before, strict=True):
            config._attn_implementation = old


def measure(model_dir: Path) -> dict:
    """Everything that the tests below ask, from one worker."""
    worker, rows = training_worker(model_dir), sample_rows(model_dir)
    compare = lambda left, right: float((left - right).abs().max())
    padded = log_probs(worker, rows, packed=False)
    found = {
        "lengths": [len(row["input_ids"]) for row in rows],
        "log_prob": float(padded[0].mean()),
        "unpacked in other micro-batches": compare(log_probs(worker, rows, packed=False, budget=200), padded),
        "packed": compare(log_probs(worker, rows, packed=True), padded),
        "packed in several micro-batches": compare(log_probs(worker, rows, packed=True, budget=200), padded),
        "packed one by one": compare(log_probs(worker, rows, packed=True, budget=0), padded),
    }
    reference = gradients(worker, rows, packed=False)
    found["gradients"] = worst(gradients(worker, rows, packed=True), reference)
    from verl_hyocr import registry

    return found if registry.is_disabled("C1") else found | measure_details(worker, rows, padded)


def measure_details(worker, rows, padded) -> dict:
    import transformers.models.hunyuan_vl.modeling_hunyuan_vl as modeling
    from verl_hyocr.adapt import dummy_vision

    compare = lambda left, right: float((left - right).abs().max())
    found = {}
    worker.engine.pad_to_length, worker.engine.pad_to_length_bucket = True, 256
    found["packed with a padded tail"] = compare(log_probs(worker, rows, packed=True), padded)
    worker.engine.pad_to_length = False

    text = [row for row in rows if not row["multi_modal_inputs"]]
    alone = log_probs(worker, text, packed=False)
    needs, dummy_vision._needs_dummy = dummy_vision._needs_dummy, lambda: True
    found["text only with a blank image"] = compare(log_probs(worker, text, packed=True), alone)
    tower = [grad for name, grad in gradients(worker, text, packed=True).items() if "vision_tower" in name]
    found["blank image's gradients"] = [len(tower), max(float(grad.abs().max()) for grad in tower)]
    dummy_vision._needs_dummy = needs

    calls, original = [], packing.attend
    packing.attend = lambda *args, **kwargs: calls.append(kwargs["is_causal"]) or original(*args, **kwargs)
    log_probs(worker, rows, packed=True)
    packing.attend = original
    found["attention calls"] = {"text": calls.count(True), "vision": calls.count(False)}
    found["layers"] = {
        "text": worker.engine.module.config.text_config.num_hidden_layers,
        "vision": worker.engine.module.config.vision_config.num_hidden_layers,
    }

    def flash(module, query, key, value, attention_mask=None, dropout=0.0, scaling=None, is_causal=None, **kwargs):
        """What flash-attention's variable-length function does with transformers' keywords."""
        edges, longest = kwargs["cu_seq_lens_q"], kwargs["max_length_q"]
        assert edges is kwargs["cu_seq_lens_k"] and attention_mask is None and edges.dtype == torch.int32
        segments = Segments.of(edges.diff().tolist(), query.device)
        assert int(longest) == segments.longest and int(edges[-1]) == query.shape[2]
        causal = module.is_causal if is_causal is None else is_causal
        return attend(query, key, value, segments, scaling=scaling, is_causal=causal), None

    modeling.ALL_ATTENTION_FUNCTIONS["flash_attention_2"] = flash
    with attention_of(worker, "flash_attention_2"):
        found["keywords of flash attention"] = compare(log_probs(worker, rows, packed=True), padded)
    with attention_of(worker, "eager"):
        found["eager, unpacked"] = compare(log_probs(worker, rows, packed=False), padded)
        try:
            log_probs(worker, rows, packed=True)
        except packing.PackingError as error:
            found["eager, packed"] = str(error)
    return found


def run_measurement(model: Path, disable: str = "") -> dict:
    env = {
        **os.environ,
        "VERL_PLATFORM": "cpu",
        "HYOCR_DISABLE": disable,
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    env["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, [env.get("PYTHONPATH")])])
    result = subprocess.run(
        [sys.executable, __file__, str(model)], env=env, capture_output=True, text=True, timeout=600
    )
    assert result.returncode == 0, result.stderr[-4000:]
    return json.loads(result.stdout.strip().splitlines()[-1])


@pytest.fixture(scope="module")
def measured(tiny_model) -> dict:
    return run_measurement(tiny_model)


def test_the_batch_is_mixed(measured):
    lengths = measured["lengths"]
    assert len(lengths) == 6 and lengths[3] == lengths[4] and lengths[-1] == 128 and len(set(lengths)) == 5
    assert -20 < measured["log_prob"] < -5


@pytest.mark.parametrize(
    "case",
    [
        "packed",
        "packed in several micro-batches",
        "packed one by one",
        "packed with a padded tail",
        "text only with a blank image",
        "keywords of flash attention",
    ],
)
def test_log_probs_and_entropies_equal_those_of_the_padded_path(measured, case):
    assert measured[case] < 1e-5
    assert measured["unpacked in other micro-batches"] < 1e-5, "the padded path's own noise"


def test_gradients_equal_those_of_the_padded_path(measured):
    assert measured["gradients"] < 1e-5


def test_blank_image_reaches_the_tower_with_zero_gradients(measured):
    count, largest = measured["blank image's gradients"]
    assert count > 20 and largest == 0.0


def test_one_attention_call_a_layer(measured):
    assert measured["attention calls"] == measured["layers"]


def test_attention_that_would_mix_samples_is_refused_by_name(measured):
    assert "attn_implementation=eager" in measured["eager, packed"] and "sdpa" in measured["eager, packed"]
    assert measured["eager, unpacked"] < 1e-5


def test_without_the_step_samples_see_each_other(tiny_model):
    without = run_measurement(tiny_model, disable="C1")
    assert without["unpacked in other micro-batches"] < 1e-5 and without["packed one by one"] < 1e-5
    assert without["packed"] > 1e-3 and without["gradients"] > 1e-3


# ------------------------------------------------------------------------------------------------------------- GPU

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@needs_cuda
@pytest.mark.parametrize("is_causal", [True, False])
@pytest.mark.parametrize(("heads", "kv_heads", "width"), [(16, 8, 128), (16, 16, 72)], ids=["text", "vision"])
def test_cuda_kernel_equals_the_masked_form(heads, kv_heads, width, is_causal, monkeypatch):
    case = ((700, 1, 333, 128), heads, kv_heads, width, is_causal, torch.bfloat16, "cuda")
    kernel = attention_errors(*case)
    monkeypatch.setattr(packing, "_varlen_kernel_runs", lambda *_: False)
    loop = attention_errors(*case)
    assert max(kernel) < 0.01 and all(mine < 1.5 * other + 1e-4 for mine, other in zip(kernel, loop, strict=True))


@needs_cuda
def test_cuda_kernel_is_chosen_for_half_precision_only():
    make = lambda dtype: torch.zeros(1, 2, 8, 64, dtype=dtype, device="cuda")
    assert packing._varlen_kernel_runs(make(torch.bfloat16), 0.0)
    assert not packing._varlen_kernel_runs(make(torch.float32), 0.0)
    assert not packing._varlen_kernel_runs(make(torch.bfloat16), 0.1)


@needs_cuda
def test_cuda_kernel_follows_autocast():
    query, key, value = random_qkv((40, 24), 4, 2, 64, device="cuda")
    segments = Segments.of([40, 24], "cuda")
    with torch.autocast("cuda", torch.bfloat16):
        out = attend(query, key, value.bfloat16(), segments, scaling=0.125, is_causal=True)
    wanted = masked_attention(query, key, value, segments, 0.125, True)
    assert out.dtype == torch.bfloat16 and float((out.float() - wanted).norm() / wanted.norm()) < 0.01


if __name__ == "__main__":
    import verl  # noqa: F401 - runs the plugin first, as in a worker

    print(json.dumps(measure(Path(sys.argv[1]))))
