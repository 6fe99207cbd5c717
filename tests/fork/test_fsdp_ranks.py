"""Two FSDP ranks through verl's training worker: one reads the checkpoint (B4), both run equally many micro-batches (C2).

``python tests/fork/test_fsdp_ranks.py RANK PORT MODEL_DIR`` is one rank; it prints what it measured as JSON.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

os.environ.setdefault("VERL_PLATFORM", "cpu")

import pytest

sys.path.insert(0, str(Path(__file__).parent))
ROOT = Path(__file__).resolve().parents[2]
BUDGET = 140


# ------------------------------------------------------------------------------------------------------- one rank


def shorter(row: dict, by: int) -> dict:
    """``row`` without the last ``by`` tokens of its answer."""
    cut = {name: row[name][:-by] for name in ("responses", "input_ids", "response_mask", "loss_mask")}
    return row | cut | {"position_ids": row["position_ids"][:, :-by]}


def rows_of(rank: int, model_dir: Path) -> list[dict]:
    """Rank 0: rows with images and one long row without. Rank 1: as many rows, short and without images."""
    from test_packing import sample_rows

    two_images, text, one_image, pair, _, padding = sample_rows(model_dir)
    return [two_images, one_image, pair, padding] if rank == 0 else [text, shorter(text, 1), text, shorter(text, 2)]


def measure(rank: int, port: int, model_dir: Path) -> dict:
    import torch
    import verl.workers.engine.fsdp.transformer_impl as implementation
    from test_packing import batch, gradients, log_probs, training_worker

    worker = training_worker(model_dir, rank, 2, port)
    module, rows = worker.engine.module, rows_of(rank, model_dir)
    found: dict = {"tokens": sum(len(row["input_ids"]) for row in rows)}

    # B4
    state = {name: tensor.full_tensor() for name, tensor in module.state_dict().items()}
    found["weights"] = {name: [float(t.double().sum()), float(t.double().abs().max())] for name, t in state.items()}
    found["buffers"] = {name: float(buffer.double().sum()) for name, buffer in module.named_buffers()}
    found["tied"] = module.lm_head.weight is module.model.language_model.embed_tokens.weight
    os.environ["HYOCR_DISABLE"] = "B4"
    try:
        worker.engine._build_module()
        found["build without B4"] = "read"
    except OSError as error:
        found["build without B4"] = str(error)
    os.environ["HYOCR_DISABLE"] = ""

    # C2
    counts, original = [], implementation.prepare_micro_batches

    def counted(*args, **kwargs):
        parts, indices = original(*args, **kwargs)
        counts.append(len(parts))
        return parts, indices

    implementation.prepare_micro_batches = counted
    for packed in (False, True):
        whole = log_probs(worker, rows, packed=packed)
        split = log_probs(worker, rows, packed=packed, budget=BUDGET)
        found[f"split, packed={packed}"] = float((whole - split).abs().max())
    grads = gradients(worker, rows, packed=True)
    found["gradient"] = float(sum(one.double().norm() ** 2 for one in grads.values()) ** 0.5)
    found["counts"] = counts
    data = batch(rows, True, BUDGET)
    group = worker.engine.get_data_parallel_group()
    found["without agreement"] = len(original(data=data, dp_group=group, same_micro_num_in_dp=False)[0])
    torch.distributed.barrier()
    return found


# ----------------------------------------------------------------------------------------------------------- tests


@pytest.fixture(scope="module")
def ranks(tiny_model, tmp_path_factory) -> list[dict]:
    """What both ranks measured; rank 1's model folder has no weights in it."""
    bare = tmp_path_factory.mktemp("bare") / "model"
    shutil.copytree(tiny_model, bare, ignore=shutil.ignore_patterns("*.safetensors", "*.bin"))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "GLOO_SOCKET_IFNAME": "lo", "HYOCR_DISABLE": ""}
    logs = [tmp_path_factory.mktemp("log") / name for name in ("rank0", "rank1")]
    running = []
    for rank, (folder, log) in enumerate(zip((tiny_model, bare), logs, strict=True)):
        with open(log, "w") as file:
            command = [sys.executable, __file__, str(rank), str(port), str(folder)]
            running.append(subprocess.Popen(command, env=env, stdout=file, stderr=subprocess.STDOUT, cwd=ROOT))
    try:
        codes = [process.wait(timeout=600) for process in running]
    finally:
        for process in running:
            process.kill()
    texts = [log.read_text(errors="replace") for log in logs]
    assert codes == [0, 0], texts[0][-3000:] + texts[1][-3000:]
    return [json.loads(next(line for line in text.splitlines() if line.startswith('{"tokens"'))) for text in texts]


def test_one_rank_reads_and_the_other_has_the_same_weights(ranks, tiny_model):
    from safetensors.torch import load_file

    assert ranks[0]["weights"] == ranks[1]["weights"] and ranks[0]["buffers"] == ranks[1]["buffers"]
    on_disk = sorted(round(float(t.double().sum()), 6) for t in load_file(tiny_model / "model.safetensors").values())
    held = sorted(round(total, 6) for name, (total, _) in ranks[1]["weights"].items() if name != "lm_head.weight")
    assert held == on_disk
    assert ranks[0]["tied"] and ranks[1]["tied"]


def test_a_model_that_read_nothing_sends_the_released_names(tiny_model):
    """Also after FSDP2 gave it another class, by which transformers does not find its mapping."""
    from transformers import AutoModelForImageTextToText
    from transformers.core_model_loading import revert_weight_conversion
    from verl_hyocr.one_reader import empty_weights

    read = AutoModelForImageTextToText.from_pretrained(tiny_model)
    with empty_weights(AutoModelForImageTextToText):
        empty = AutoModelForImageTextToText.from_pretrained(
            "/nowhere", config=read.config, torch_dtype="float32", trust_remote_code=False
        )
    released = set(revert_weight_conversion(read, read.state_dict()))
    empty.__class__ = type("FSDP" + type(empty).__name__, (type(empty),), {})
    assert set(revert_weight_conversion(empty, empty.state_dict())) == released
    assert any(name.startswith("vit.") for name in released)


def test_without_b4_the_other_rank_reads_too(ranks):
    assert ranks[0]["build without B4"] == "read"
    assert "model.safetensors" in ranks[1]["build without B4"]


def test_ranks_with_unequal_loads_run_equally_many_micro_batches(ranks):
    assert ranks[0]["tokens"] > 2 * ranks[1]["tokens"]
    assert ranks[0]["counts"] == ranks[1]["counts"]
    assert max(ranks[0]["counts"]) > 1, "the budget splits the heavy rank"


def test_without_the_agreement_counts_would_differ(ranks):
    assert ranks[0]["without agreement"] > ranks[1]["without agreement"]


def test_log_probs_do_not_depend_on_the_split(ranks):
    for found in ranks:
        for packed in (False, True):
            assert found[f"split, packed={packed}"] < 1e-5
    assert ranks[0]["gradient"] > 0 and ranks[0]["gradient"] == pytest.approx(ranks[1]["gradient"], rel=1e-6)


if __name__ == "__main__":
    print(json.dumps(measure(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))), flush=True)
    os._exit(0)
