"""Every rank layout merges to the bytes of training's export; the result generates the same in transformers and vLLM."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("ranks, hsdp", [(1, False), (4, False), (4, True)])
def test_layouts(run_copy, write_checkpoints, merge, ranks, hsdp):
    root, exports = run_copy(ranks, hsdp)
    code, out, errors = merge(STEPS="2", CKPT_ROOT=str(root))
    assert code == 0, out + errors
    written = root / "global_step_2/actor/huggingface/model.safetensors"
    assert written.read_bytes() == (exports / "global_step_2/actor/huggingface/model.safetensors").read_bytes()
    two_ranks = write_checkpoints(2) / "global_step_2/actor/huggingface/model.safetensors"
    assert written.read_bytes() == two_ranks.read_bytes()


TRANSFORMERS = """
import json, sys, torch
from transformers import AutoModelForImageTextToText, AutoTokenizer
folder = sys.argv[1]
tokenizer = AutoTokenizer.from_pretrained(folder)
model = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32)
chat = [{"role": "user", "content": "read 0 1 1"}]
ids = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt", return_dict=True)
out = model.generate(**ids, max_new_tokens=12, do_sample=False, eos_token_id=-1)
print("TOKENS", json.dumps([ids["input_ids"][0].tolist(), out[0, ids["input_ids"].shape[1]:].tolist()]))
"""
VLLM = """
import json, sys
from vllm import LLM, SamplingParams
if __name__ == "__main__":
    engine = LLM(sys.argv[1], dtype="float32", max_model_len=256, enforce_eager=True, max_num_seqs=1)
    prompt = {"prompt_token_ids": json.loads(sys.argv[2])}
    out = engine.generate([prompt], SamplingParams(temperature=0, max_tokens=12, ignore_eos=True))
    print("TOKENS", json.dumps(list(out[0].outputs[0].token_ids)))
"""


def tokens(*command: str):
    environment = {**os.environ, "VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    done = subprocess.run([sys.executable, *command], env=environment, capture_output=True, text=True, timeout=600)
    line = next((line for line in done.stdout.splitlines() if line.startswith("TOKENS ")), None)
    assert done.returncode == 0 and line, done.stderr[-4000:]
    return json.loads(line.removeprefix("TOKENS "))


def test_merged_model_generates_the_same_in_transformers_and_vllm(run_copy, merge, tmp_path):
    root, _ = run_copy(2)
    assert merge(STEPS="2", CKPT_ROOT=str(root), TARGET_DIR_MODE="new", TARGET_ROOT=str(tmp_path / "hf"))[0] == 0
    folder = str(tmp_path / "hf/global_step_2")
    prompt, expected = tokens("-c", TRANSFORMERS, folder)
    script = tmp_path / "vllm_greedy.py"
    script.write_text(VLLM)
    assert len(expected) == 12
    assert tokens(str(script), folder, json.dumps(prompt)) == expected
