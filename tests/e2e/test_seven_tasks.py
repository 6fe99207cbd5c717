"""All seven tasks train in one run, with a real judge server that dies after the first step."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

JUDGE = Path(__file__).resolve().parent.parent / "judge" / "fault_server.py"
TABLE = "| item | count |\n|---|---|\n| 01 | 10 |\n| 11 | 0 |"
LAYOUT = json.dumps([{"layout_type": "paragraph", "bbox": "(40,60),(700,60),(700,300),(40,300)", "text": "0101"}])
REFERENCES = {
    "Parsing": "0101 1100",
    "Spotting": "0101 1100(41,62),(640,235)",
    "Layout": LAYOUT,
    "IE": {"code": "0101"},
    "chart_deplot": TABLE,
    "Translation": "zero one zero one",
    "VQA": "0101",
}


def write_raw(folder: Path) -> Path:
    """Two records of every task, each with a page of its own."""
    from utils.demo.make_data import render

    records = []
    for index in range(2 * len(REFERENCES)):
        task = list(REFERENCES)[index % len(REFERENCES)]
        image, _ = render([f"{index:04b} {index * 7 % 16:04b}"], 96, 64)
        path = folder / f"{index}.png"
        image.save(path)
        record = {
            "image": str(path),
            "question": f"Task {task}, answer {index}.",
            "ref_answer": REFERENCES[task],
            "task_type": task,
        }
        if task == "Translation":
            record |= {"source_lang_text": "0101", "target_lang": "English"}
        records.append(record)
    raw = folder / "raw.jsonl"
    raw.write_text("".join(json.dumps(record) + "\n" for record in records))
    return raw


def kill_after_first_step(metrics: Path, server: subprocess.Popen, stop: threading.Event) -> None:
    while not stop.wait(0.5):
        if metrics.exists() and "training/global_step" in metrics.read_text(errors="replace"):
            server.kill()
            return


@pytest.fixture(scope="module")
def run_dir(launch, kit_root, tiny_model, tmp_path_factory):
    work = tmp_path_factory.mktemp("seven")
    data = work / "data"
    data.mkdir()
    subprocess.run(
        [
            *(sys.executable, str(kit_root / "data/prepare_data.py"), "--inputs", str(write_raw(data))),
            *("--output_train", str(data / "all.parquet"), "--output_val", str(data / "none.parquet")),
            *("--val_ratio", "0.3"),
        ],
        check=True,
    )
    server = subprocess.Popen([sys.executable, str(JUDGE)], stdout=subprocess.PIPE, text=True)
    address = json.loads(server.stdout.readline())["address"]
    routes = work / "routes.json"
    routes.write_text(json.dumps({"judge": [address]}))
    stop = threading.Event()
    metrics = work / "out/demo/seven/metrics.jsonl"
    watcher = threading.Thread(target=kill_after_first_step, args=(metrics, server, stop))
    watcher.start()
    try:
        result = launch(
            work,
            MODEL_PATH=str(tiny_model),
            TRAIN_FILES=f"{data / 'all.parquet'},{data / 'none.parquet'}",
            VAL_FILES=f"{data / 'all.parquet'},{data / 'none.parquet'}",
            OUTPUT_DIR=str(work / "out"),
            PROJECT_NAME="demo",
            EXPERIMENT_NAME="seven",
            START_RAY="1",
            NGPUS_PER_NODE="1",
            TRAIN_BATCH_SIZE="7",
            PPO_MINI_BATCH_SIZE="7",
            ROLLOUT_N="4",
            MAX_PROMPT_LENGTH="160",
            MAX_RESPONSE_LENGTH="16",
            MAX_MODEL_LEN="256",
            MAX_TOKENS_PER_GPU="2048",
            LOGPROB_MAX_TOKENS_PER_GPU="2048",
            MAX_NUM_SEQS="16",
            AGENT_WORKERS="1",
            REWARD_WORKERS="1",
            DATALOADER_WORKERS="0",
            WEIGHT_BUCKET_MB="128",
            PARAM_OFFLOAD="False",
            OPTIMIZER_OFFLOAD="False",
            TOTAL_STEPS="3",
            SAVE_FREQ="-1",
            TEST_FREQ="-1",
            RM_SYSTEM_JUDGE_MODEL_NAME="judge",
            JUDGE_ROUTES_FILE=str(routes),
            JUDGE_DEADLINE_S="5",
            JUDGE_MAX_FAILURE_RATE="1",
        )
    finally:
        stop.set()
        watcher.join()
        server.kill()
    assert result.returncode == 0, result.stdout[-6000:]
    return metrics.parent


def test_every_task_is_scored_while_the_judge_lives(run_dir):
    first = json.loads((run_dir / "metrics.jsonl").read_text().splitlines()[0])["data"]
    for task in REFERENCES:
        assert first[f"val-aux/{task}/valid/mean@1"] == 1.0, task


def test_run_outlives_its_judge(run_dir, steps_of):
    steps = steps_of(run_dir)
    assert list(steps) == [1, 2, 3]
    assert steps[1]["hyocr/dropped/total"] == 0 and steps[1]["hyocr/judge/failure_rate"] == 0
    last = steps[3]
    dropped = {
        name: value
        for name, value in last.items()
        if name.startswith("hyocr/dropped/") and name.endswith("/judge_unavailable")
    }
    assert dropped and set(dropped) <= {
        "hyocr/dropped/VQA/judge_unavailable",
        "hyocr/dropped/Translation/judge_unavailable",
    }
    assert last["critic/score/min"] >= 0, "no -1 is trained on"
