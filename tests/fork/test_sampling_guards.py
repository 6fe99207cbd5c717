"""B6: barred tokens never appear in an answer, and the log-probs of rollout and actor are those of the same policy.

``python tests/fork/test_sampling_guards.py MODEL_DIR`` runs verl's actor and vLLM in one process, on weights that force vision
control tokens, and prints what it saw as JSON.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("VERL_PLATFORM", "cpu")

import pytest
import torch
from verl_hyocr import sampling_guards
from verl_hyocr.sampling_guards import GuardError, LogitBias, control_token_ids, resolve

sys.path.insert(0, str(Path(__file__).parent))
ROOT = Path(__file__).resolve().parents[2]
SIX = [120118, 120119, 120120, 120121, 120122, 120123]
RELEASED = {
    "image_start_token_id": 120118,
    "image_end_token_id": 120119,
    "image_token_id": 120120,
    "image_newline_token_id": 120121,
    "video_start_id": 120122,
    "video_end_id": 120123,
}


# -------------------------------------------------------------------------------------------------------- settings


class Words:
    """A tokenizer of one token a letter group: "ab" is one token, anything else one a character."""

    def encode(self, text, add_special_tokens):
        assert not add_special_tokens
        return {"ab": [7], " ab": [8], "x": [1], " x": [2, 1]}.get(text, [ord(one) for one in text])


def test_the_six_tokens_of_the_released_config(tiny_model):
    assert control_token_ids(json.loads((tiny_model / "config.json").read_text())) == SIX == control_token_ids(RELEASED)


def test_the_guard_is_on_by_default_and_can_be_switched_off():
    guards = resolve({}, RELEASED, None)
    assert (guards.bias.token_ids, guards.bias.value, guards.sequences) == (SIX, -1e9, [])
    off = resolve({"add_vision_logit_bias": False}, {}, None)
    assert off.bias is None and off.sequences == []


def test_bad_words_of_one_token_join_the_bias_and_longer_ones_go_to_the_engine():
    guards = resolve({"add_vision_logit_bias": False, "bad_words": ["ab", "x", "long"]}, {}, Words)
    assert guards.bias.token_ids == [1, 7, 8], "vLLM also bars the form after a blank when that is one token"
    assert guards.sequences == ["long"]


@pytest.mark.parametrize(
    ("custom", "config", "text"),
    [
        ({"vision_logit_bias_value": -5}, RELEASED, "no bar"),
        ({"vision_logit_bias_value": float("nan")}, RELEASED, "no bar"),
        ({"vision_logit_bias_value": "low"}, RELEASED, "must be a number"),
        ({"add_vision_logit_bias": "yes"}, RELEASED, "True or False"),
        ({"bad_words": "word"}, RELEASED, "list of strings"),
        ({"bad_words": [" "]}, RELEASED, "not blank"),
        ({}, {"image_token_id": 1}, "image_start_token_id"),
    ],
)
def test_settings_that_cannot_be_used_are_refused_with_the_reason(custom, config, text):
    with pytest.raises(GuardError, match=text):
        resolve(custom, config, Words)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_barred_tokens_have_probability_zero_and_entropy_and_gradients_are_finite(dtype):
    head = torch.nn.Linear(4, 10, bias=False, dtype=dtype)
    hidden = torch.randn(3, 4, dtype=dtype, requires_grad=True)
    plain = head(hidden)
    LogitBias([2, 5], -1e9).install(head, known_tokens=8)
    logits = head(hidden)
    probabilities = logits.float().softmax(-1)
    assert probabilities[:, [2, 5, 8, 9]].eq(0).all()
    kept = [0, 1, 3, 4, 6, 7]
    assert torch.allclose(probabilities[:, kept], plain[:, kept].float().softmax(-1), atol=1e-6)
    entropy = -(probabilities * logits.float().log_softmax(-1)).sum(-1)
    assert entropy.isfinite().all()
    (logits.float().logsumexp(-1) - logits[:, 0].float()).sum().backward()
    assert hidden.grad.isfinite().all() and head.weight.grad[[2, 5, 8, 9]].eq(0).all()
    assert head.weight.grad[kept].abs().sum() > 0


def test_the_agent_loop_passes_words_to_training_and_validation_requests():
    from verl.experimental.agent_loop.single_turn_agent_loop import SingleTurnAgentLoop
    from verl_hyocr.agent_loop import HyocrAgentLoop

    seen = []

    class Loop(HyocrAgentLoop):
        def __init__(self):
            self.rollout_config = type("Rollout", (), {"custom": {sampling_guards.SEQUENCES: ["two tokens"]}})()

    async def run(self, sampling_params, **kwargs):
        seen.append((sampling_params, kwargs))

    before, SingleTurnAgentLoop.run = SingleTurnAgentLoop.run, run
    try:
        asyncio.run(Loop().run({"temperature": 0.0}, raw_prompt=[]))
    finally:
        SingleTurnAgentLoop.run = before
    assert seen == [({"temperature": 0.0, "bad_words": ["two tokens"]}, {"raw_prompt": []})]


def test_upstream_builds_the_agent_loop_from_our_file():
    from hydra.utils import get_class
    from omegaconf import OmegaConf

    (entry,) = OmegaConf.load(sampling_guards.AGENT_LOOPS)
    assert entry.name == sampling_guards.AGENT_LOOP and get_class(entry._target_).__name__ == "HyocrAgentLoop"


# ----------------------------------------------------------------------------------------------- the fresh process


def forcing_model(model_dir: Path) -> Path:
    """The model with rows of the (tied) output layer that give nearly all probability to vision control tokens."""
    from safetensors.torch import load_file, save_file

    folder = Path(tempfile.mkdtemp()) / "forcing"
    shutil.copytree(model_dir, folder)
    weights = load_file(folder / "model.safetensors")
    rows = weights["model.embed_tokens.weight"]
    for token, (place, size) in {120119: (0, 99), 120121: (0, -99), 120122: (1, 99), 120123: (1, -99)}.items():
        rows[token] = 0
        rows[token, place] = size
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def measure(model_dir: Path) -> dict:
    import numpy as np
    import verl  # noqa: F401 - its plugins adapt this process
    from checks import processor_inputs, sample_image
    from test_packing import batch, training_worker
    from tiny_engine import start_engine
    from verl.experimental.agent_loop.agent_loop import AgentLoopWorker
    from verl.utils import hf_processor
    from verl.workers.rollout.vllm_rollout import vllm_async_server as server

    folder = forcing_model(model_dir)
    bias = resolve({}, json.loads((folder / "config.json").read_text()), None).bias
    os.environ[sampling_guards.ENV] = bias.dumps()
    worker = training_worker(folder)
    processor = hf_processor(str(folder))
    holder = type("Worker", (), {"processor": processor})()
    images = [sample_image()]
    prompts = [dict(processor_inputs(processor, pictures)) for pictures in (images, [])]

    llm = start_engine(folder)
    from vllm import SamplingParams

    requests = []
    for inputs, pictures in zip(prompts, (images, []), strict=True):
        ids = server.qwen2_5_vl_dedup_image_tokens(inputs["input_ids"][0].tolist(), processor)
        requests.append({"prompt_token_ids": ids, "multi_modal_data": {"image": pictures} if pictures else {}})

    def answers(temperature: float, **more) -> list:
        params = SamplingParams(
            temperature=temperature, n=8 if temperature else 1, max_tokens=12, logprobs=0, seed=5, **more
        )
        found = []
        for number, output in enumerate(llm.generate(requests, params, use_tqdm=False)):
            for one in output.outputs:
                ids = list(one.token_ids)
                found.append((number, ids, [step[t].logprob for step, t in zip(one.logprobs, ids, strict=True)]))
        return found

    def barred(found) -> int:
        return sum(token in SIX for _, ids, _ in found for token in ids)

    def start_like_the_server():
        kwargs = {"vocab_size": len(processor.tokenizer), "banned_token_ids": [120120]}
        llm.collective_rpc("monkey_patch_model", kwargs=kwargs)

    os.environ[sampling_guards.ENV] = ""
    start_like_the_server()
    result = {"barred without the guard": barred(answers(1.0)), "greedy without the guard": barred(answers(0.0))}
    os.environ[sampling_guards.ENV] = bias.dumps()
    start_like_the_server()
    sampled, greedy = answers(0.9), answers(0.0)
    result |= {
        "barred": barred(sampled),
        "greedy barred": barred(greedy),
        "tokens": sum(len(ids) for _, ids, _ in sampled),
    }

    rows = []
    for number, ids, _ in sampled:
        inputs = {k: v for k, v in prompts[number].items() if k not in ("input_ids", "attention_mask")}
        prompt, answer = prompts[number]["input_ids"][0], torch.tensor(ids)
        whole = torch.cat([prompt, answer])
        positions = AgentLoopWorker._compute_position_ids(
            holder, whole[None], torch.ones_like(whole)[None], inputs, {}
        )[0]
        ones = torch.ones(len(ids), dtype=torch.int64)
        row = {"prompts": prompt, "responses": answer, "input_ids": whole, "position_ids": positions}
        rows.append(row | {"response_mask": ones, "loss_mask": ones, "multi_modal_inputs": inputs})

    def actor() -> tuple[np.ndarray, np.ndarray]:
        """Log-probs and entropies of the answers' tokens, all answers after another."""
        output = worker.infer_batch(batch(rows, packed=True))
        keep = []
        for row in rows:
            places = torch.arange(len(row["input_ids"]))
            keep.append((places >= len(row["prompts"]) - 1) & (places < len(row["input_ids"]) - 1))
        return tuple(output[name].values()[torch.cat(keep)].numpy() for name in ("log_probs", "entropy"))

    rollout = np.concatenate([values for *_, values in sampled])
    log_probs, entropy = actor()
    result["gap"] = float(np.abs(log_probs - rollout).max())
    result["log_ppl_abs_diff"] = float(abs(log_probs.mean() - rollout.mean()))
    result["entropy"] = [float(entropy.min()), float(entropy.max())]
    worker.engine.module.lm_head._forward_hooks.clear()
    result["log_ppl_abs_diff over the whole vocabulary"] = float(abs(actor()[0].mean() - rollout.mean()))

    word = None
    for number, ids, _ in greedy:
        for pair in itertools.pairwise(ids):
            text = processor.tokenizer.decode(pair)
            if text == text.lstrip() and processor.tokenizer.encode(text, add_special_tokens=False) == list(pair):
                word, asked, tokens = text, number, list(pair)
    result["sequence found"] = word is not None
    if word is not None:
        found = next(ids for number, ids, _ in answers(0.0, bad_words=[word]) if number == asked)
        result["sequence in the answer"] = tokens in [list(pair) for pair in itertools.pairwise(found)]
    return result


@pytest.fixture(scope="module")
def measured(tiny_model):
    env = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "HYOCR_DISABLE": ""}
    result = subprocess.run(
        [sys.executable, __file__, str(tiny_model)], env=env, capture_output=True, text=True, timeout=600, cwd=ROOT
    )
    assert result.returncode == 0, result.stderr[-4000:] + result.stdout[-1000:]
    return json.loads(result.stdout.splitlines()[-1])


def test_the_weights_do_force_vision_tokens(measured):
    assert measured["barred without the guard"] > 100 and measured["greedy without the guard"] > 10


def test_they_never_appear_with_the_guard_sampled_or_greedy(measured):
    assert measured["tokens"] > 100 and measured["barred"] == 0 and measured["greedy barred"] == 0


def test_rollout_log_probs_are_the_actors(measured):
    assert measured["log_ppl_abs_diff"] < 1e-5 and measured["gap"] < 1e-4
    assert 0 < measured["entropy"][0] <= measured["entropy"][1] < 12


def test_an_actor_over_the_whole_vocabulary_would_not_agree(measured):
    assert measured["log_ppl_abs_diff over the whole vocabulary"] > 1


def test_a_bad_word_of_several_tokens_is_not_finished(measured):
    assert measured["sequence found"] and measured["sequence in the answer"] is False


if __name__ == "__main__":
    print(json.dumps(measure(Path(sys.argv[1]))), flush=True)
    os._exit(0)
