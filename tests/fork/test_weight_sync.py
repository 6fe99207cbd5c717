"""B4, B5: the rollout engine starts without weight files, gets every weight from the actor, and what goes wrong is named.

``python tests/fork/test_weight_sync.py MODEL_DIR`` runs vLLM and verl's sender in one process and prints what it saw as JSON.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("VERL_PLATFORM", "cpu")

import pytest

sys.path.insert(0, str(Path(__file__).parent))
ROOT = Path(__file__).resolve().parents[2]
DROPPED = "model.layers.0.mlp.up_proj.weight"
CHANGED = "model.layers.1.self_attn.k_proj.weight"


# ----------------------------------------------------------------------------------------------- the fresh process


def prompts(processor, images):
    """The processor's tensors, and the request that verl makes of them for vLLM."""
    from checks import processor_inputs
    from verl.workers.rollout.vllm_rollout import vllm_async_server as server

    inputs = processor_inputs(processor, images)
    ids = server.qwen2_5_vl_dedup_image_tokens(inputs["input_ids"][0].tolist(), processor)
    return inputs, {"prompt_token_ids": ids, "multi_modal_data": {"image": images}}


def actor_log_probs(model, inputs, answer: list[int]) -> list[float]:
    import torch

    prompt = inputs["input_ids"]
    ids = torch.cat([prompt, torch.tensor([answer])], dim=1)
    kinds = inputs["mm_token_type_ids"]
    kinds = torch.cat([kinds, torch.zeros(1, len(answer), dtype=kinds.dtype)], dim=1)
    extra = {"mm_token_type_ids": kinds} | {k: inputs[k] for k in ("pixel_values", "image_grid_thw") if k in inputs}
    with torch.no_grad():
        logits = model(input_ids=ids, attention_mask=torch.ones_like(ids), **extra).logits.float()
    logits = logits[0, prompt.shape[1] - 1 : -1]
    chosen = logits.gather(-1, torch.tensor(answer)[:, None])[:, 0]
    return (chosen - logits.logsumexp(-1)).tolist()


@contextlib.contextmanager
def warnings_of(name: str):
    """Messages logged while open."""
    lines, handler = [], logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())
    logging.getLogger(name).addHandler(handler)
    try:
        yield lines
    finally:
        logging.getLogger(name).removeHandler(handler)


@contextlib.contextmanager
def replaced(owner, name, value):
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield before
    finally:
        setattr(owner, name, before)


def measure(model_dir: Path) -> dict:
    import torch
    import verl  # noqa: F401 - its plugins adapt this process
    from checks import load_model, sample_image
    from tiny_engine import released_weights, send, sender, start_engine
    from verl.utils import hf_processor

    model, processor = load_model(model_dir), hf_processor(str(model_dir))
    inputs, request = prompts(processor, [sample_image()])
    weights = released_weights(model)

    folder = Path(tempfile.mkdtemp()) / "no_weights"
    shutil.copytree(model_dir, folder, ignore=shutil.ignore_patterns("*.safetensors", "*.bin"))
    llm = start_engine(folder, load_format="dummy")
    import vllm.model_executor.model_loader.utils as loading
    from verl.workers.rollout.vllm_rollout.bucketed_weight_transfer import BucketedWeightReceiver
    from vllm import SamplingParams

    engine = llm.llm_engine.model_executor.driver_worker.worker.model_runner.model
    fused = "language_model.model.layers.0.mlp.gate_up_proj.weight"
    parameter = dict(engine.named_parameters())[fused]

    def answer():
        output = llm.generate([request], SamplingParams(temperature=0.0, max_tokens=12, logprobs=0), use_tqdm=False)[0]
        ids = list(output.outputs[0].token_ids)
        theirs = [step[token].logprob for step, token in zip(output.outputs[0].logprobs, ids, strict=True)]
        ours = actor_log_probs(model, inputs, ids)
        return max(abs(left - right) for left, right in zip(ours, theirs, strict=True))

    found: dict = {"gap before the first sync": answer()}
    os.environ["WEIGHT_SYNC_SAMPLE"] = "1000"

    def run(entries, adapter=None, strict=False) -> dict:
        """One sync, by default the first of its sender and therefore checked."""
        os.environ["WEIGHT_SYNC_STRICT"] = str(int(strict))
        error = None
        with warnings_of("verl_hyocr") as lines:
            try:
                send(adapter or sender(llm), entries)
            except Exception as caught:
                error = f"{type(caught).__name__}: {caught}"
        report = llm.collective_rpc("weight_sync_report")[0]
        return {
            "warnings": lines,
            "error": error,
            "tensors": report and report["tensors"],
            "sampled": report and report["sampled"],
        }

    first = sender(llm)
    found["clean"] = run(weights.items(), first)
    found["gap after the first sync"] = answer()
    found["engine holds its own copy"] = parameter.data_ptr() not in {one.data_ptr() for one in weights.values()}
    found["second"] = run(weights.items(), first)
    os.environ["WEIGHT_SYNC_CHECK_EVERY"] = "2"
    found["third of every 2"] = run(weights.items(), first)
    os.environ["WEIGHT_SYNC_CHECK_EVERY"] = "-1"
    found["never"] = run(weights.items())
    os.environ["WEIGHT_SYNC_CHECK_EVERY"] = "0"
    found["small buckets"] = run(weights.items(), sender(llm, bucket_mb=31))

    before = parameter.data.clone()
    less = [(name, tensor) for name, tensor in weights.items() if name != DROPPED]
    found["dropped"] = run(less)
    found["dropped keeps the old values"] = torch.equal(before, parameter.data)
    found["dropped, strict"] = run(less, strict=True)

    renamed = [(name.replace(DROPPED, "model.layers.0.mlp.lift.weight"), tensor) for name, tensor in weights.items()]
    found["renamed"] = run(renamed)
    found["renamed, unchecked"] = run(renamed, first)
    found["ignored"] = run([*weights.items(), ("model.layers.0.self_attn.rotary_emb.inv_freq", torch.ones(16))])

    def receive(self, on_bucket_received):
        def corrupted(bucket, is_last):
            on_bucket_received([(n, t + 1e-3 if n == CHANGED else t) for n, t in bucket if n != DROPPED], is_last)

        return upstream(self, corrupted)

    with replaced(BucketedWeightReceiver, "receive_weights", receive) as upstream:
        found["corrupted on the way"] = run(weights.items())

    def process(target, *args, **kwargs):
        theirs(target, *args, **kwargs)
        name = "language_model.model.layers.1.self_attn.qkv_proj.weight"
        rows = weights[CHANGED].shape[0]
        dict(target.named_parameters())[name].data[-2 * rows : -rows] *= 1.5

    with replaced(loading, "process_weights_after_loading", process) as theirs:
        found["changed in the engine"] = run(weights.items())
    found["clean again"] = run(weights.items())
    found["gap at the end"] = answer()
    return found


# ----------------------------------------------------------------------------------------------------------- tests


@pytest.fixture(scope="module")
def measured(tiny_model):
    env = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    result = subprocess.run(
        [sys.executable, __file__, str(tiny_model)], env=env, capture_output=True, text=True, timeout=600, cwd=ROOT
    )
    assert result.returncode == 0, result.stderr[-4000:] + result.stdout[-1000:]
    return json.loads(result.stdout.splitlines()[-1])


def test_an_engine_without_weight_files_answers_like_the_actor_after_the_first_sync(measured):
    assert measured["gap before the first sync"] > 0.1, "dummy weights are not the actor's"
    assert measured["gap after the first sync"] < 1e-5
    assert measured["gap at the end"] < 1e-5


def test_a_clean_sync_is_checked_whole_and_says_nothing(measured):
    clean = measured["clean"]
    assert clean["warnings"] == [] and clean["error"] is None
    assert clean["tensors"] == clean["sampled"] + 1 > 50, "all but the tied output layer are compared in the engine"
    assert measured["small buckets"] == measured["clean again"] == clean


def test_only_the_first_sync_is_checked_unless_asked(measured):
    assert measured["second"]["tensors"] is None and measured["never"]["tensors"] is None
    assert measured["third of every 2"] == measured["clean"]


def test_a_dropped_tensor_is_named_although_its_neighbour_fills_the_fused_weight(measured):
    (line,) = measured["dropped"]["warnings"]
    assert "language_model.model.layers.0.mlp.gate_up_proj.weight (50% of it)" in line and "did not write" in line
    assert measured["dropped"]["error"] is None
    assert measured["dropped keeps the old values"]


def test_strict_ends_the_run_with_the_names(measured):
    error = measured["dropped, strict"]["error"]
    assert error.startswith("WeightSyncError") and "gate_up_proj" in error and "replica 0 rank 0" in error


def test_a_renamed_tensor_ends_the_run_with_its_name_and_nobody_waits(measured):
    for case in ("renamed", "renamed, unchecked"):
        assert "model.layers.0.mlp.lift.weight" in measured[case]["error"], measured[case]
        assert "refused" in measured[case]["error"]
    assert "gate_up_proj.weight (50% of it)" in measured["renamed"]["error"]


def test_an_ignored_tensor_is_named(measured):
    (line,) = measured["ignored"]["warnings"]
    assert "not consumed" in line and "rotary_emb.inv_freq" in line


def test_a_tensor_that_changes_or_vanishes_on_the_way_is_named(measured):
    text = "\n".join(measured["corrupted on the way"]["warnings"])
    assert f"changed on the way from the actor: {CHANGED} " in text
    assert f"never received: {DROPPED} " in text


def test_a_weight_that_changes_inside_the_engine_is_named(measured):
    (line,) = measured["changed in the engine"]["warnings"]
    assert "other values than received" in line and "model.layers.1.self_attn.k_proj.weight (by up to" in line


if __name__ == "__main__":
    print(json.dumps(measure(Path(sys.argv[1]))), flush=True)
    os._exit(0)
