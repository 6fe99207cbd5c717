"""The Hy3 recipe on the CPU: the launcher's algorithm settings, FSDP2 instead of Megatron, a tiny random Hy3, vLLM.

One run serves all tests: three steps, one checkpoint.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(2400)]

SETTINGS = {
    "BACKEND": "fsdp2",
    "VERL_PLATFORM": "cpu",
    "NNODES": "1",
    "NGPUS_PER_NODE": "1",
    "ROLLOUT_TP": "1",
    "TRAIN_BATCH_SIZE": "4",
    "PPO_MINI_BATCH_SIZE": "4",
    "ROLLOUT_N": "8",
    "MAX_PROMPT_LENGTH": "64",
    "MAX_RESPONSE_LENGTH": "24",
    "OVERLONG_BUFFER_LEN": "16",
    "ACTOR_MAX_TOKENS_PER_GPU": "1024",
    "LOGPROB_MAX_TOKENS_PER_GPU": "1024",
    "PARAM_OFFLOAD": "False",
    "OPTIMIZER_OFFLOAD": "False",
    "ACTOR_LR": "1e-4",
    "TOTAL_STEPS": "3",
    "SAVE_FREQ": "3",
    "TEST_FREQ": "3",
    "VAL_BEFORE_TRAIN": "False",
    "MAX_NUM_SEQS": "16",
    "AGENT_WORKERS": "1",
    "REWARD_WORKERS": "1",
    "DATALOADER_WORKERS": "0",
    "WEIGHT_BUCKET_MB": "64",
    "PROJECT_NAME": "hy3",
    "EXPERIMENT_NAME": "cpu",
}
"""Sizes for two CPU cores; every algorithm setting but the learning rate is the launcher's default."""


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


@pytest.fixture(scope="module")
def work(kit_root, tiny_hy3, script, tmp_path_factory) -> Path:
    """A finished run; returns its working folder."""
    folder = tmp_path_factory.mktemp("hy3_run")
    rows = script("hy3_rows")
    questions = [
        {
            "data_source": "math_dapo",
            "prompt": [{"role": "user", "content": f"What is {number}+1?"}],
            "ability": "math",
            "reward_model": {"style": "rule", "ground_truth": str(number + 1)},
            "extra_info": {"split": "train", "index": number},
        }
        for number in range(16)
    ]
    for name in ("DAPO-Math-17k/dapo-math-17k", "AIME-2024/aime-2024"):
        rows.write_parquet(folder / f"{name}.parquet", questions if "DAPO" in name else questions[:4])

    keep = {name: os.environ[name] for name in ("HOME", "VIRTUAL_ENV", "TMPDIR") if name in os.environ}
    port = free_port()
    environment = {
        **keep,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHON": sys.executable,
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "NODE_IP": "127.0.0.1",
        "RAY_PORT": str(port),
        "RAY_RUN_DIR": f"/tmp/hyocr-hy3-{os.getpid()}",
        "RAY_LOGICAL_GPUS": "1",
        "RAY_NUM_CPUS": "12",
        "RAY_ADDRESS": f"127.0.0.1:{port}",
        "DATA_DIR": str(folder),
        "MODEL_PATH": str(tiny_hy3),
        "OUTPUT_DIR": str(folder / "runs"),
        **SETTINGS,
    }

    def shell(*command: str) -> int:
        with open(folder / "log", "ab") as log:
            return subprocess.run(
                command, env=environment, cwd=kit_root, stdout=log, stderr=subprocess.STDOUT, timeout=1800
            ).returncode

    try:
        assert shell("bash", "utils/ray/start_ray.sh", "local") == 0, (folder / "log").read_text()[-3000:]
        code = shell("bash", "verl/examples/grpo_trainer/run_hy_v3_megatron.sh")
        assert code == 0, (folder / "log").read_text(errors="replace")[-6000:]
    finally:
        shell("bash", "utils/ray/stop_ray.sh", "--port", str(port))
    return folder


@pytest.fixture(scope="module")
def run_dir(work) -> Path:
    return work / "runs/hy3/cpu"


@pytest.fixture(scope="module")
def steps(run_dir) -> dict[int, dict]:
    records = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    return {record["step"]: record["data"] for record in records if "training/global_step" in record["data"]}


@pytest.fixture(scope="module")
def weights(tiny_hy3, run_dir):
    """Weights before and after, by released name."""
    from safetensors.torch import load_file

    def load(folder: Path) -> dict:
        return {name: value for file in sorted(folder.glob("*.safetensors")) for name, value in load_file(file).items()}

    return load(tiny_hy3), load(run_dir / "ckpt/global_step_3/actor/huggingface")


def test_actor_and_rollout_agree(steps):
    assert list(steps) == [1, 2, 3]
    for metrics in steps.values():
        assert metrics["training/rollout_probs_diff_mean"] < 1e-4
        assert metrics["rollout_corr/log_ppl_abs_diff"] < 1e-4


def test_it_trains_on_varying_rewards(steps):
    assert all(metrics["actor/grad_norm"] > 0 for metrics in steps.values())
    assert any(metrics["critic/score/max"] > metrics["critic/score/min"] for metrics in steps.values())


def test_the_overlong_penalty_is_in_the_rewards(steps):
    """A wrong answer scores -1; one of full length -2. The random model is never right."""
    lowest = min(metrics["critic/score/min"] for metrics in steps.values())
    assert -2.0 <= lowest < -1.0


def test_the_routing_bias_is_bit_equal(weights):
    import torch

    before, after = weights
    biases = [name for name in before if name.endswith("mlp.expert_bias")]
    assert len(biases) == 3
    for name in biases:
        assert after[name].dtype == before[name].dtype and torch.equal(after[name], before[name]), name


def test_everything_else_moved(weights):
    import torch

    before, after = weights
    assert set(before) == set(after), "the export has the released names"
    parts = {"experts": ".mlp.experts.", "router": ".router.gate.", "shared": ".shared_mlp.", "attention": ".q_proj."}
    for part, pattern in parts.items():
        names = [name for name in before if pattern in name]
        assert names and any(not torch.equal(before[name], after[name]) for name in names), part


def test_the_export_loads_and_routes_alike(run_dir, weights):
    import torch
    from transformers.models.hy_v3 import HYV3ForCausalLM

    folder = run_dir / "ckpt/global_step_3/actor/huggingface"
    model = HYV3ForCausalLM.from_pretrained(folder, dtype="float32")
    assert torch.equal(model.model.layers[1].mlp.e_score_correction_bias, weights[0]["model.layers.1.mlp.expert_bias"])
    with torch.no_grad():
        assert torch.isfinite(model(torch.arange(16)[None]).logits).all()


def test_the_export_serves_in_vllm(run_dir):
    """In a fresh process: vLLM's log-probs of its own greedy answer equal those of transformers."""
    code = """
import sys, torch, verl
from vllm import LLM, SamplingParams
prompt = [256, 259, *b"What is 3+1?", 260]
llm = LLM(sys.argv[1], dtype="float32", enforce_eager=True, max_model_len=128, max_num_seqs=2)
answer = llm.generate({"prompt_token_ids": prompt}, SamplingParams(temperature=0, max_tokens=8, logprobs=0, ignore_eos=True))
found = [step[token].logprob for step, token in zip(answer[0].outputs[0].logprobs, answer[0].outputs[0].token_ids)]
from transformers.models.hy_v3 import HYV3ForCausalLM
model = HYV3ForCausalLM.from_pretrained(sys.argv[1], dtype="float32")
tokens = torch.tensor([prompt + list(answer[0].outputs[0].token_ids)])
with torch.no_grad():
    wanted = model(tokens).logits[0, len(prompt) - 1 : -1].log_softmax(-1).gather(1, tokens[0, len(prompt) :, None])[:, 0]
print("GAP", max(abs(a - b) for a, b in zip(found, wanted.tolist())))
"""
    result = subprocess.run(
        [sys.executable, "-c", code, str(run_dir / "ckpt/global_step_3/actor/huggingface")],
        env={
            **os.environ,
            "VERL_PLATFORM": "cpu",
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "OMP_NUM_THREADS": "1",
            "HF_HUB_OFFLINE": "1",
        },
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert result.returncode == 0, result.stderr[-4000:]
    gap = float(next(line for line in result.stdout.splitlines() if line.startswith("GAP ")).split()[1])
    assert gap < 1e-4
