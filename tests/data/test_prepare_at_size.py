"""A generated set of all tasks with planted defects: what is found, what input order changes, what a kill leaves.

`benchmarks/bench_data.py` does the same with 200,000 lines.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from pathlib import Path

import psutil
import pyarrow.parquet as pq
import pytest

from benchmarks.bench_data import DEFECTS, TASKS, generate, main, read_findings
from data import prepare_data

ROOT = Path(__file__).resolve().parents[2]
ROWS = 2100


@pytest.fixture(scope="module")
def generated(tmp_path_factory):
    """Inputs and the truth about their defects; 40 images for 2,100 rows."""
    folder = tmp_path_factory.mktemp("generated")
    files, planted = generate(folder, ROWS, share=0.04, images=40, seed=3)
    return folder, files, planted


def arguments(inputs, folder, workers, *extra):
    files = ["--inputs", *map(str, inputs), "--output_train", str(folder / "t.parquet")]
    files += ["--output_val", str(folder / "v.parquet"), "--val_ratio", "0.1", "--on-error", "skip", "--quiet"]
    return [*files, "--workers", str(workers), *extra]


@pytest.fixture(scope="module")
def prepared(generated, tmp_path_factory):
    folder = tmp_path_factory.mktemp("prepared")
    assert prepare_data.main(arguments(generated[1], folder, 1)) == 0
    return folder


def rows(folder, split):
    return pq.read_table(folder / f"{split}.parquet").to_pylist()


def test_every_planted_defect_is_found_on_its_line_and_none_is_invented(generated, prepared):
    _, _, planted = generated
    found = [(f["file"], f["line"], f["kind"]) for f in read_findings(prepared / "t.parquet.rejects.jsonl")]
    assert len({p.kind for p in planted}) == len(DEFECTS) >= 25
    assert sorted(found) == sorted((p.file, p.line, p.kind) for p in planted)


def test_every_good_line_becomes_a_row(generated, prepared):
    train, val = rows(prepared, "t"), rows(prepared, "v")
    assert len(train) + len(val) == ROWS - len(generated[2])
    for split, table in (("train", train), ("val", val)):
        assert [row["extra_info"]["index"] for row in table] == list(range(len(table)))
        assert {row["extra_info"]["split"] for row in table} == {split}
    assert len({row["extra_info"]["id"] for row in train + val}) == len(train) + len(val)


def test_no_image_is_in_both_splits_and_every_task_is_in_both(prepared):
    images = {split: {path for row in rows(prepared, split) for path in row["images"]} for split in "tv"}
    assert not images["t"] & images["v"]
    for split in "tv":
        assert {row["extra_info"]["task_type"] for row in rows(prepared, split)} == set(TASKS)


def test_the_share_of_validation_rows_is_near_the_ratio_for_each_task(prepared):
    """Groups of about 50 rows over 7 tasks move in one piece, so the share can only be near."""
    counts = {split: Counter(row["extra_info"]["task_type"] for row in rows(prepared, split)) for split in "tv"}
    for task in TASKS:
        assert 0.05 < counts["v"][task] / (counts["t"][task] + counts["v"][task]) < 0.15


@pytest.mark.parametrize("workers", [2, 4])
def test_worker_count_and_input_order_do_not_show(generated, prepared, tmp_path, workers):
    source, files, _ = generated
    lines = files[0].read_bytes().splitlines()
    random.Random(workers).shuffle(lines)
    shuffled = source / f"shuffled{workers}.jsonl"
    shuffled.write_bytes(b"\n".join(lines))
    inputs = [files[2], shuffled, files[1]]
    assert prepare_data.main(arguments(inputs, tmp_path, workers)) == 0
    for name in ("t.parquet", "v.parquet"):
        assert (tmp_path / name).read_bytes() == (prepared / name).read_bytes()


def test_another_seed_gives_another_split(generated, prepared, tmp_path):
    assert prepare_data.main(arguments(generated[1], tmp_path, 1, "--seed", "5")) == 0
    ids = {folder: {row["extra_info"]["id"] for row in rows(folder, "v")} for folder in (prepared, tmp_path)}
    assert ids[prepared] != ids[tmp_path]
    everything = [sorted(r["extra_info"]["id"] for s in "tv" for r in rows(f, s)) for f in (prepared, tmp_path)]
    assert everything[0] == everything[1]


@pytest.mark.parametrize("kills", [4, pytest.param(20, marks=pytest.mark.slow)])
def test_a_killed_run_leaves_complete_files_or_none(generated, tmp_path, kills):
    """Kills at random moments of a run whose length is measured first; the workers die with it."""
    command = [sys.executable, str(ROOT / "data/prepare_data.py"), *arguments(generated[1][:1], tmp_path, 2)]
    command += ["--no-check-references"]
    started = time.monotonic()
    subprocess.run(command, check=True, timeout=300)
    seconds = time.monotonic() - started
    expected = {name: (tmp_path / name).read_bytes() for name in ("t.parquet", "v.parquet")}
    moments, left = random.Random(1), defaultdict(int)
    for _ in range(kills):
        process = subprocess.Popen(command)
        try:
            process.wait(moments.uniform(0.3, 1.1) * seconds)
        except subprocess.TimeoutExpired:
            workers = psutil.Process(process.pid).children(recursive=True)
            process.send_signal(signal.SIGKILL)
            process.wait()
            _, alive = psutil.wait_procs(workers, timeout=20)
            assert not alive
        for name, content in expected.items():
            path = tmp_path / name
            left[path.exists()] += 1
            assert not path.exists() or path.read_bytes() == content
            path.unlink(missing_ok=True)
    assert left[False], "no kill came before the end"
    subprocess.run(command, check=True, timeout=300)
    assert not list(tmp_path.glob(".*")), "temporary files of killed runs are gone"


def test_a_kill_between_the_two_renames_never_pairs_an_old_train_file_with_a_new_val_file(
    generated, tmp_path, monkeypatch
):
    assert prepare_data.main(arguments(generated[1][:1], tmp_path, 1)) == 0
    real, moved = os.replace, []

    def replace(source, target):
        if target.endswith("t.parquet"):
            moved.append(sorted(path.name for path in tmp_path.glob("[tv].parquet")))
        real(source, target)

    monkeypatch.setattr(os, "replace", replace)
    assert prepare_data.main(arguments(generated[1][:1], tmp_path, 1, "--seed", "9")) == 0
    assert moved == [["v.parquet"]]


@pytest.mark.slow
def test_two_hundred_thousand_lines(tmp_path):
    assert main(["--keep", str(tmp_path)]) == 0


def test_the_report_counts_what_the_files_hold(generated, prepared):
    report = json.loads((prepared / "t.parquet.report.json").read_text())
    assert report["written"] and report["failure"] == ""
    assert report["lines"] == ROWS
    assert report["rows"] == {"train": len(rows(prepared, "t")), "val": len(rows(prepared, "v"))}
    assert report["rejected"] == dict(sorted(Counter(p.kind for p in generated[2]).items()))
    tasks = report["stats"]["tasks"]
    assert set(tasks) == set(TASKS)
    assert sum(task["rows_train"] for task in tasks.values()) == report["rows"]["train"]


def test_training_loads_the_rows_of_every_task(prepared, processor):
    from omegaconf import OmegaConf
    from verl.utils.dataset.rl_dataset import collate_fn
    from verl_hyocr.dataset import HyocrDataset, images_of

    config = OmegaConf.create({"max_prompt_length": 2000, "filter_overlong_prompts_workers": 1})
    dataset = HyocrDataset([str(prepared / "v.parquet")], processor.tokenizer, config, processor)
    assert len(dataset) == len(rows(prepared, "v"))
    batch = collate_fn([dataset[number] for number in range(len(dataset))])
    assert {info["task_type"] for info in batch["extra_info"]} == set(TASKS)
    for messages, info in zip(batch["raw_prompt"][:20], batch["extra_info"][:20]):
        text = processor.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        assert len(images_of(messages)) == len(info["img_path"])
        assert processor(text=[text], images=images_of(messages))["image_grid_thw"].shape == (len(info["img_path"]), 3)
