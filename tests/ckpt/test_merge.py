"""merge_fsdp_ckpt_to_hf.sh on real two-rank checkpoints: what it writes, skips, repairs and refuses."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from utils.ckpt import hf_folder, shards
from utils.ckpt import merge as tool


def folder(root: Path, step: int) -> Path:
    return root / f"global_step_{step}/actor/huggingface"


def statuses(out: str) -> dict[int, tuple[str, str]]:
    return {row["step"]: (row["status"], row["detail"]) for row in json.loads(out)}


def test_merge_equals_training_export_byte_by_byte_and_is_not_repeated(run_copy, merge_script, merge, model):
    root, exports = run_copy(2)
    done = merge_script("--json", STEPS="all", CKPT_ROOT=str(root), MODEL_PATH=str(model))
    assert done.returncode == 0, done.stderr
    assert statuses(done.stdout) == {1: ("merged", ""), 2: ("merged", "")}
    for step in (1, 2):
        written, exported = folder(root, step), folder(exports, step)
        assert {p.name for p in written.iterdir()} == {p.name for p in exported.iterdir()}
        for path in exported.iterdir():
            assert (written / path.name).read_bytes() == path.read_bytes(), path.name
        assert hf_folder.tensor_infos(written).keys() == hf_folder.tensor_infos(model).keys()
        assert json.loads((written / "config.json").read_text()) == json.loads((model / "config.json").read_text())
    assert not list(root.rglob(".*merging"))
    first, second = (load_file(folder(root, step) / "model.safetensors") for step in (1, 2))
    assert not any(torch.equal(first[name], second[name]) for name in first if first[name].any())

    before = folder(root, 1).joinpath("model.safetensors").stat().st_mtime_ns
    code, out, _ = merge(STEPS="1, 2", CKPT_ROOT=str(root), MODEL_PATH=str(model))
    assert code == 0 and out.count("complete") == 2
    assert folder(root, 1).joinpath("model.safetensors").stat().st_mtime_ns == before


def test_bad_steps_do_not_stop_the_others(run_copy, merge):
    root, _ = run_copy(2)
    (root / "global_step_1/actor/model_world_size_2_rank_1.pt").unlink()
    # Half merged: cut short, as after a full disk.
    (folder(root, 2) / "model.safetensors").write_bytes(b"\x08\0\0\0\0\0\0\0{}")
    (root / "global_step_3/actor/huggingface").mkdir(parents=True)
    shutil.copy(folder(root, 2) / "config.json", folder(root, 3))
    code, out, _ = merge("--json", STEPS="1 2 3 7", CKPT_ROOT=str(root))
    assert code == 1
    rows = statuses(out)
    assert rows[1] == (
        "failed",
        "model_world_size_2_rank_1.pt is missing: interrupted save, or the file stayed on another node",
    )
    assert rows[2] == ("merged", "")
    assert rows[3][0] == "failed" and "fsdp_config.json is missing" in rows[3][1]
    assert rows[7][0] == "failed" and "global_step_7/actor is missing" in rows[7][1]


def test_new_folder_and_another_type(run_copy, merge):
    root, exports = run_copy(2)
    code, _, errors = merge(STEPS="2", CKPT_ROOT=str(root), TARGET_DIR_MODE="new", DTYPE="bfloat16")
    assert code == 0, errors
    target = root.parent / "hf/global_step_2"
    assert not (folder(root, 2) / "model.safetensors").exists()
    written, exported = load_file(target / "model.safetensors"), load_file(folder(exports, 2) / "model.safetensors")
    assert all(torch.equal(written[name], exported[name].bfloat16()) for name in exported)
    assert hf_folder.folder_problems(target) == []
    assert merge(STEPS="2", CKPT_ROOT=str(root), TARGET_DIR_MODE="new", DTYPE="float32")[0] == 0
    assert {info.dtype for info in hf_folder.tensor_infos(target).values()} == {"F32"}


@pytest.mark.parametrize(
    "environment, words",
    [
        ({}, "STEPS is not set"),
        ({"STEPS": "last"}, "STEPS='last'"),
        ({"STEPS": "1", "CKPT_ROOT": "/nowhere"}, "CKPT_ROOT /nowhere is no folder"),
        ({"STEPS": "all"}, "no global_step_N folder"),
        ({"STEPS": "1", "MODEL_PATH": "/nowhere"}, "MODEL_PATH /nowhere has no config.json"),
        ({"STEPS": "1", "DTYPE": "int8"}, "DTYPE=int8"),
        ({"STEPS": "1", "TARGET_DIR_MODE": "old"}, "TARGET_DIR_MODE=old"),
    ],
)
def test_bad_requests(merge, tmp_path, environment, words):
    code, _, errors = merge(**{"CKPT_ROOT": str(tmp_path), **environment})
    assert code == 2 and words in errors


def test_script_help_and_cpu_switch(merge_script):
    done = merge_script("--help")
    assert done.returncode == 0 and all(
        name in done.stdout for name in ("STEPS", "CKPT_ROOT", "TARGET_DIR_MODE", "DTYPE")
    )
    done = merge_script(STEPS="1", USE_CPU_INIT="maybe")
    assert done.returncode == 2 and "USE_CPU_INIT=maybe" in done.stderr


def process(root: Path, step: int, *options: str) -> tool.Result:
    """One step in this process."""
    args = tool.build_parser().parse_args(["--ckpt-root", str(root), "--target-root", str(root / "hf"), *options])
    return tool.process_step(args, step)


def edit_shard(root: Path, rank: int, change) -> None:
    path = root / f"global_step_1/actor/model_world_size_2_rank_{rank}.pt"
    state = torch.load(path, weights_only=False)
    change(state)
    torch.save(state, path)


NAME = "model.language_model.layers.0.mlp.up_proj.weight"


def test_nan_is_found_and_the_target_stays_as_it_was(run_copy):
    root, _ = run_copy(2)
    edit_shard(root, 1, lambda state: state[NAME].to_local().view(-1)[:1].fill_(float("nan")))
    before = sorted(path.name for path in folder(root, 1).iterdir())
    result = process(root, 1)
    assert (
        result.status == "failed"
        and "NaN or infinite values in 1 tensors" in result.detail
        and "up_proj" in result.detail
    )
    assert sorted(path.name for path in folder(root, 1).iterdir()) == before


def test_missing_tensor_and_mixed_ranks_are_named(run_copy):
    root, _ = run_copy(2)
    edit_shard(root, 1, lambda state: state.pop(NAME))
    assert "rank 1 holds other tensors than rank 0" in process(root, 1).detail
    edit_shard(root, 0, lambda state: state.pop(NAME))
    result = process(root, 1)
    assert result.status == "failed" and f"tensors missing: {NAME}" in result.detail


def test_damaged_files_are_named(run_copy):
    root, _ = run_copy(2)
    actor = root / "global_step_1/actor"
    shard = actor / "model_world_size_2_rank_0.pt"
    os.truncate(shard, 1000)
    assert "model_world_size_2_rank_0.pt is cut short (1000 bytes)" in process(root, 1).detail
    (actor / "fsdp_config.json").write_text("{")
    assert "fsdp_config.json is damaged" in process(root, 1).detail


def test_support_files_come_from_the_base_model(run_copy, model):
    root, _ = run_copy(2)
    (folder(root, 1) / "generation_config.json").unlink()
    assert "missing: generation_config.json" in process(root, 1).detail
    assert process(root, 1, "--base-model", str(model)).status == "merged"
    assert (folder(root, 1) / "generation_config.json").read_bytes() == (model / "generation_config.json").read_bytes()


def test_dry_run_writes_nothing(run_copy):
    root, _ = run_copy(2)
    result = process(root, 1, "--dry-run")
    assert result.status == "would merge" and "no weights" in result.detail
    assert not (folder(root, 1) / "model.safetensors").exists()


def test_merge_killed_while_moving_in_is_done_again(run_copy, monkeypatch):
    root, exports = run_copy(2)
    real, calls = os.replace, []

    def killed(source, target):
        if Path(target).parent == folder(root, 1):
            calls.append(target)
            if len(calls) == 2:
                raise KeyboardInterrupt
        real(source, target)

    monkeypatch.setattr(os, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        process(root, 1)
    monkeypatch.undo()
    (folder(root, 1) / "tokenizer.json").unlink()
    shutil.copytree(
        folder(root, 1), root / "global_step_1/actor/.huggingface.merging"
    )  # a killed run cleans nothing up
    shutil.copy(folder(exports, 1) / "tokenizer.json", folder(root, 1))
    assert process(root, 1, "--force").status == "merged"
    for path in folder(exports, 1).iterdir():
        assert (folder(root, 1) / path.name).read_bytes() == path.read_bytes()


def test_new_shards_never_meet_an_old_index(tmp_path):
    """Moving in a model of other shards: the old index goes first, stale shards go, the new index comes last."""
    model, target = tmp_path / "model", tmp_path / "target"
    model.mkdir()
    target.mkdir()
    for name in ("model-00001-of-00003.safetensors", "model.safetensors.index.json", "config.json"):
        (target / name).write_text("old")
    for name in (
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
        "model.safetensors.index.json",
    ):
        (model / name).write_text("new")
    order: list[str] = []
    real = os.replace
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "replace", lambda a, b: (order.append(Path(b).name), real(a, b)))
        tool.move_in(model, target)
    assert order[-1] == "model.safetensors.index.json"
    assert sorted(p.name for p in target.iterdir() if p.read_text() == "new") == sorted(order)
    assert {p.name for p in target.iterdir()} == {*order, "config.json"}


def test_steps_are_found_in_numeric_order(tmp_path):
    for name in ("global_step_100", "global_step_25", "global_step_x", "latest"):
        (tmp_path / name).mkdir()
    (tmp_path / "global_step_7").touch()
    assert shards.find_steps(tmp_path) == [25, 100]
    assert tool.parse_steps("25, 50 25", tmp_path) == [25, 50]


def test_shards_of_gpu_ranks_load_without_a_gpu(tmp_path):
    """Checkpoints of GPU ranks name a cuda mesh; merging runs where no GPU is visible. Uneven shards included."""
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor, Shard
    from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta

    mesh = DeviceMesh("cuda", torch.arange(2), mesh_dim_names=("fsdp",), _init_backend=False, _rank=0)
    whole = torch.arange(10.0).view(5, 2)
    meta = TensorMeta(whole.shape, whole.stride(), whole.dtype)
    for rank, part in enumerate((whole[:3], whole[3:])):
        weight = DTensor(part.clone(), DTensorSpec(mesh, (Shard(0),), tensor_meta=meta), requires_grad=False)
        torch.save({"weight": weight, "buffer": torch.ones(2)}, shards.shard_path(tmp_path, 2, rank))
    (tmp_path / "fsdp_config.json").write_text('{"FSDP_version": 2, "world_size": 2}')
    merged = shards.merge_shards(tmp_path)
    assert torch.equal(merged["weight"], whole) and torch.equal(merged["buffer"], torch.ones(2))
    assert list(merged) == ["weight", "buffer"] and type(merged["weight"]) is torch.Tensor
    assert shards.merge_shards(tmp_path, torch.bfloat16)["weight"].dtype == torch.bfloat16
