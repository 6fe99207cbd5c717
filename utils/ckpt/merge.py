"""Merges sharded FSDP checkpoints into HuggingFace folders. Users call the script beside it:

    STEPS=100 bash utils/ckpt/merge_fsdp_ckpt_to_hf.sh
    STEPS="25 50 75 100" CKPT_ROOT=/data/run/ckpt bash utils/ckpt/merge_fsdp_ckpt_to_hf.sh
    STEPS=all TARGET_DIR_MODE=new bash utils/ckpt/merge_fsdp_ckpt_to_hf.sh

The result is what training itself writes when actor.checkpoint.save_contents has hf_model: weight files equal byte by
byte; configuration, tokenizer and processor are copied from the checkpoint.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from utils.ckpt import hf_folder, shards

DTYPES = ("checkpoint", "bfloat16", "float16", "float32")
MODES = ("inplace", "new")
SAFETENSORS_NAMES = {"bfloat16": "BF16", "float16": "F16", "float32": "F32"}


@dataclass
class Result:
    """Outcome of one step: status is merged, complete (nothing to do), would merge (dry run) or failed."""

    step: int
    status: str
    target: str
    detail: str = ""
    tensors: int = 0
    gigabytes: float = 0.0
    seconds: float = 0.0


def is_complete(target: Path, dtype: str, reference: Path | None) -> str | None:
    """None when ``target`` already holds the merged model (headers only); else what it lacks."""
    if not target.is_dir():
        return "not there"
    if problems := hf_folder.folder_problems(target, reference, values=False):
        return "; ".join(problems)
    if dtype != "checkpoint":
        types = {info.dtype for info in hf_folder.tensor_infos(target).values()}
        if types != {SAFETENSORS_NAMES[dtype]}:
            return f"weights are {', '.join(sorted(types))}, not {dtype}"
    return None


def save_weights(state: dict, source: Path, folder: Path) -> None:
    """Writes the weight files for ``state`` (transformers' names) into ``folder`` as training's own export does.

    Args:
        source: folder with the config.json of the model.
    """
    import torch
    from accelerate import init_empty_weights
    from transformers import AutoConfig, AutoModelForImageTextToText
    from verl.utils.transformers_compat import drop_tied_target_keys

    config = AutoConfig.from_pretrained(source)
    with init_empty_weights():
        model = AutoModelForImageTextToText.from_config(config, torch_dtype=torch.bfloat16)
    expected = model.state_dict()
    problems = hf_folder.compare_shapes(
        {name: hf_folder.TensorInfo("", tuple(tensor.shape)) for name, tensor in state.items()},
        {name: tuple(tensor.shape) for name, tensor in expected.items()},
    )
    if problems:
        raise shards.CheckpointError(f"the checkpoint does not fit its config.json: {'; '.join(problems)}")
    drop_tied_target_keys(state, model, config)
    model.save_pretrained(folder, state_dict=state)


def merge_step(actor: Path, target: Path, dtype: str, base_model: Path | None) -> tuple[int, int]:
    """Merges the checkpoint ``actor`` into ``target``; a killed merge never leaves ``target`` whole with wrong weights.

    The model is built and verified in a folder beside ``target`` and moved in file by file, weights first and the files
    that make a folder loadable last.

    Returns:
        (number of tensors, bytes of the weight files)

    Raises:
        CheckpointError, FolderError: with the reason.
    """
    import torch

    source = actor / "huggingface"
    if not (source / "config.json").is_file():
        raise shards.CheckpointError(f"{source}/config.json is missing: interrupted save")
    work = target.parent / f".{target.name}.merging"
    if work.exists():
        shutil.rmtree(work)
    work.mkdir(parents=True)
    try:
        state = shards.merge_shards(actor, None if dtype == "checkpoint" else getattr(torch, dtype))
        # save_pretrained also writes configuration in transformers' own form: it goes to a folder of its own.
        weights = work / "weights"
        save_weights(state, source, weights)
        del state
        model = work / "model"
        model.mkdir()
        for path in sorted(source.iterdir()):
            if path.is_file() and not is_weight_file(path.name):
                shutil.copy2(path, model)
        if base_model is not None:
            add_support_files(base_model, model)
        for path in sorted(weights.iterdir()):
            if is_weight_file(path.name):
                # transformers leaves mode 600: others could not serve the model.
                path.chmod((source / "config.json").stat().st_mode)
                os.replace(path, model / path.name)
        if problems := hf_folder.folder_problems(model, base_model):
            raise hf_folder.FolderError("; ".join(problems))
        tensors = len(hf_folder.tensor_infos(model))
        size = sum(path.stat().st_size for path in hf_folder.weight_files(model))
        move_in(model, target)
        return tensors, size
    finally:
        shutil.rmtree(work)


def is_weight_file(name: str) -> bool:
    return name.endswith((".safetensors", ".safetensors.index.json"))


def add_support_files(base_model: Path, folder: Path) -> None:
    """Copies what ``folder`` lacks beside the weights (a generation config, say) from the base model."""
    for names in hf_folder.SUPPORT_FILES:
        if not any((folder / name).is_file() for name in names):
            for name in names:
                if (base_model / name).is_file():
                    shutil.copy2(base_model / name, folder)


def move_in(model: Path, target: Path) -> None:
    """Moves the files of ``model`` over those of ``target`` (same file system); stale weight files go first."""
    target.mkdir(parents=True, exist_ok=True)
    fresh = {path.name for path in model.iterdir()}
    # An old index over new shards would load as a mixture: it goes before the first shard comes.
    (target / hf_folder.INDEX).unlink(missing_ok=True)
    for path in target.iterdir():
        if is_weight_file(path.name) and path.name not in fresh:
            path.unlink()
    for path in sorted(model.iterdir(), key=lambda path: (not path.name.endswith(".safetensors"), path.name)):
        os.replace(path, target / path.name)


def target_folder(root: Path, step: int, mode: str, target_root: Path) -> Path:
    return root / f"global_step_{step}/actor/huggingface" if mode == "inplace" else target_root / f"global_step_{step}"


def process_step(args: argparse.Namespace, step: int) -> Result:
    """One row of the summary; never raises for a bad checkpoint."""
    actor = args.ckpt_root / f"global_step_{step}/actor"
    target = target_folder(args.ckpt_root, step, args.target_dir_mode, args.target_root)
    started = time.monotonic()
    result = Result(step, "failed", str(target))
    try:
        if not actor.is_dir():
            raise shards.CheckpointError(f"{actor} is missing")
        lacks = "--force" if args.force else is_complete(target, args.dtype, args.base_model)
        if lacks is None:
            result.status = "complete"
        elif args.dry_run:
            shards.world_size(actor)
            result.status, result.detail = "would merge", lacks
        else:
            result.tensors, size = merge_step(actor, target, args.dtype, args.base_model)
            result.status, result.gigabytes = "merged", size / 1e9
    # A checkpoint from a crashed run can fail in any way; the other steps are still worth merging.
    except Exception as error:
        known = isinstance(error, (shards.CheckpointError, hf_folder.FolderError))
        result.detail = str(error) if known else f"{type(error).__name__}: {error}"
    result.seconds = time.monotonic() - started
    return result


def parse_steps(text: str, root: Path) -> list[int]:
    """Steps named by "all" or by numbers separated by spaces or commas. Raises ValueError."""
    if text.strip() == "all":
        found = shards.find_steps(root)
        if not found:
            raise ValueError(f"no global_step_N folder in {root}")
        return found
    words = text.replace(",", " ").split()
    if not words or not all(word.isdigit() for word in words):
        raise ValueError(f'STEPS={text!r}: a number, several ("25 50"), or all')
    return list(dict.fromkeys(map(int, words)))


def print_table(results: list[Result]) -> None:
    print(f"{'step':>8}  {'status':12} {'tensors':>7} {'GB':>7} {'s':>7}  target / reason")
    for row in results:
        numbers = f"{row.tensors or '':>7} {f'{row.gigabytes:.2f}' if row.gigabytes else '':>7} {row.seconds:>7.1f}"
        print(f"{row.step:>8}  {row.status:12} {numbers}  {row.target}{'  ' + row.detail if row.detail else ''}")


def build_parser() -> argparse.ArgumentParser:
    env = os.environ.get
    run = Path(
        env("OUTPUT_DIR") or "outputs",
        env("PROJECT_NAME") or "hyocr_1_5_verl",
        env("EXPERIMENT_NAME") or "hyocr_1_5_grpo",
    )
    parser = argparse.ArgumentParser(
        prog="merge_fsdp_ckpt_to_hf.sh", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    what = parser.add_argument_group("what to merge")
    what.add_argument("--steps", default=env("STEPS"), help='STEPS: "100", "25 50 75 100" or all')
    what.add_argument(
        "--ckpt-root",
        type=Path,
        default=Path(env("CKPT_ROOT") or run / "ckpt"),
        help="CKPT_ROOT: folder with the global_step_N folders (OUTPUT_DIR/PROJECT_NAME/EXPERIMENT_NAME/ckpt)",
    )
    where = parser.add_argument_group("where to")
    where.add_argument(
        "--target-dir-mode",
        choices=MODES,
        default=env("TARGET_DIR_MODE") or "inplace",
        help="TARGET_DIR_MODE: inplace = global_step_N/actor/huggingface (default), new = TARGET_ROOT/global_step_N",
    )
    where.add_argument(
        "--target-root",
        type=Path,
        default=Path(env("TARGET_ROOT")) if env("TARGET_ROOT") else None,
        help="TARGET_ROOT: for mode new (default: the folder hf beside CKPT_ROOT)",
    )
    how = parser.add_argument_group("how")
    how.add_argument(
        "--dtype",
        choices=DTYPES,
        default=env("DTYPE") or "checkpoint",
        help="DTYPE: checkpoint keeps the trained weights' type, as the export during training does (default)",
    )
    how.add_argument(
        "--base-model",
        type=Path,
        default=Path(env("MODEL_PATH")) if env("MODEL_PATH") else None,
        help="MODEL_PATH: released checkpoint; its names and shapes are compared, missing support files copied from it",
    )
    how.add_argument("--force", action="store_true", help="merge again what is complete")
    how.add_argument("--dry-run", action="store_true", help="say what would be merged and why")
    how.add_argument("--json", action="store_true", help="JSON on stdout instead of the table")
    return parser


def main(argv: list[str] | None = None) -> int:
    from tqdm import tqdm

    parser = build_parser()
    args = parser.parse_args(argv)
    # argparse does not check defaults, and these come from the environment.
    if args.dtype not in DTYPES:
        parser.error(f"DTYPE={args.dtype}: use {', '.join(DTYPES)}")
    if args.target_dir_mode not in MODES:
        parser.error(f"TARGET_DIR_MODE={args.target_dir_mode}: use {' or '.join(MODES)}")
    if args.steps is None:
        parser.error('STEPS is not set: a number, several ("25 50"), or all')
    if not args.ckpt_root.is_dir():
        parser.error(f"CKPT_ROOT {args.ckpt_root} is no folder")
    if args.base_model is not None and not (args.base_model / "config.json").is_file():
        parser.error(f"MODEL_PATH {args.base_model} has no config.json")
    args.target_root = args.target_root or args.ckpt_root.absolute().parent / "hf"
    try:
        steps = parse_steps(args.steps, args.ckpt_root)
    except ValueError as error:
        parser.error(str(error))
    results = []
    for step in tqdm(steps, desc="merging", unit="step", disable=not sys.stderr.isatty()):
        results.append(process_step(args, step))
        row = results[-1]
        if not sys.stderr.isatty():
            print(f"[merge] step {step}: {row.status} {row.detail}".rstrip(), file=sys.stderr, flush=True)
    if args.json:
        print(json.dumps([asdict(row) for row in results]))
    else:
        print_table(results)
    return 1 if any(row.status == "failed" for row in results) else 0


if __name__ == "__main__":
    sys.exit(main())
