"""Is a HuggingFace folder of the model whole? File set, tensor names, shapes, sizes, finite values.

    python -m utils.ckpt.hf_folder FOLDER [--reference MODEL_PATH] [--no-values] [--json]

Without a reference names and shapes come from the folder's own config.json: transformers builds the model on the meta
device, its reversible name mapping gives the released names. Exit code: 0 whole, 1 not (reasons on stdout), 2 usage.
"""

from __future__ import annotations

import argparse
import json
import struct
import sys
from dataclasses import dataclass
from pathlib import Path

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
# Each entry: any one of these file names will do.
SUPPORT_FILES = (
    ("config.json",),
    ("generation_config.json",),
    ("tokenizer.json",),
    ("tokenizer_config.json",),
    ("preprocessor_config.json", "processor_config.json"),
    ("chat_template.jinja", "chat_template.json"),
)


class FolderError(ValueError):
    """The folder is no whole model; the message says what is wrong."""


@dataclass(frozen=True)
class TensorInfo:
    dtype: str
    shape: tuple[int, ...]


def read_header(path: Path) -> dict[str, TensorInfo]:
    """Names, types and shapes of one safetensors file, without reading values.

    Raises:
        FolderError: the file is cut short, too long or no safetensors file.
    """
    size = path.stat().st_size
    with open(path, "rb") as stream:
        prefix = stream.read(8)
        length = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else 0
        if not 0 < length <= size - 8:
            raise FolderError(f"{path.name} is cut short ({size} bytes)")
        try:
            header = json.loads(stream.read(length))
        except ValueError:
            raise FolderError(f"{path.name} has no readable safetensors header") from None
    header.pop("__metadata__", None)
    end = max((entry["data_offsets"][1] for entry in header.values()), default=0)
    if size != 8 + length + end:
        raise FolderError(f"{path.name} has {size} bytes, its header promises {8 + length + end}")
    return {name: TensorInfo(entry["dtype"], tuple(entry["shape"])) for name, entry in header.items()}


def weight_files(folder: Path) -> list[Path]:
    """The weight files of ``folder``: of its index, else the single one. Raises FolderError if one is missing."""
    index = folder / INDEX
    if index.is_file():
        try:
            names = sorted(set(json.loads(index.read_text())["weight_map"].values()))
        except (ValueError, KeyError, AttributeError):
            raise FolderError(f"{INDEX} is damaged") from None
    else:
        names = [WEIGHTS]
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        raise FolderError(f"no weights: {', '.join(missing)} missing")
    return [folder / name for name in names]


def tensor_infos(folder: Path) -> dict[str, TensorInfo]:
    """All tensors of ``folder``'s weight files by name. Raises FolderError."""
    found: dict[str, TensorInfo] = {}
    for path in weight_files(folder):
        for name, info in read_header(path).items():
            if name in found:
                raise FolderError(f"tensor {name} is in two weight files")
            found[name] = info
    return found


def missing_support_files(folder: Path) -> list[str]:
    """What is missing beside the weights: configuration, tokenizer, processor, chat template."""
    missing = []
    for names in SUPPORT_FILES:
        if not any((folder / name).is_file() and (folder / name).stat().st_size for name in names):
            missing.append(" or ".join(names))
    return missing


def expected_shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    """Released name -> shape of every tensor that a checkpoint with ``folder``'s config.json holds."""
    import torch
    from transformers import AutoConfig, AutoModelForImageTextToText
    from transformers.core_model_loading import revert_weight_conversion

    config = AutoConfig.from_pretrained(folder)
    with torch.device("meta"):
        model = AutoModelForImageTextToText.from_config(config)
    state = model.state_dict()
    for name in model.all_tied_weights_keys:
        state.pop(name, None)
    return {name: tuple(tensor.shape) for name, tensor in revert_weight_conversion(model, state).items()}


def compare_shapes(found: dict[str, TensorInfo], expected: dict[str, tuple[int, ...]]) -> list[str]:
    """Differences between the tensors found and those expected, at most a few names for each kind."""

    def some(names: list[str]) -> str:
        return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")

    problems = []
    if missing := sorted(expected.keys() - found.keys()):
        problems.append(f"tensors missing: {some(missing)}")
    if extra := sorted(found.keys() - expected.keys()):
        problems.append(f"tensors that the released checkpoint does not have: {some(extra)}")
    wrong = [
        f"{n} {list(found[n].shape)} instead of {list(s)}"
        for n, s in expected.items()
        if n in found and found[n].shape != s
    ]
    if wrong:
        problems.append(f"wrong shapes: {some(sorted(wrong))}")
    return problems


def not_finite(folder: Path) -> list[str]:
    """Names of the tensors with NaN or infinite values; one tensor at a time in memory."""
    from safetensors import safe_open

    bad = []
    for path in weight_files(folder):
        with safe_open(path, framework="pt") as weights:
            for name in weights.keys():  # noqa: SIM118 - safe_open is no mapping
                tensor = weights.get_tensor(name)
                if tensor.is_floating_point() and not tensor.isfinite().all():
                    bad.append(name)
    return bad


def folder_problems(folder: Path, reference: Path | None = None, values: bool = True) -> list[str]:
    """Everything that keeps ``folder`` from being a whole model; empty when it is.

    Args:
        reference: a released checkpoint whose names and shapes must be equal; default: from ``folder``'s config.json.
        values: also read every tensor and look for NaN and infinity.
    """
    if missing := missing_support_files(folder):
        return [f"missing: {', '.join(missing)}"]
    try:
        found = tensor_infos(folder)
        if reference is None:
            expected = expected_shapes(folder)
        else:
            expected = {name: info.shape for name, info in tensor_infos(reference).items()}
    except FolderError as error:
        return [str(error)]
    problems = compare_shapes(found, expected)
    if not problems and values and (bad := not_finite(folder)):
        problems.append(f"NaN or infinite values in {len(bad)} tensors: {', '.join(bad[:3])}")
    return problems


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--reference", type=Path, help="released checkpoint to compare names and shapes with")
    parser.add_argument("--no-values", action="store_true", help="headers only: do not look for NaN")
    parser.add_argument("--json", action="store_true", help="JSON on stdout")
    args = parser.parse_args(argv)
    for path in filter(None, (args.folder, args.reference)):
        if not path.is_dir():
            print(f"error: {path} is no folder", file=sys.stderr)
            return 2
    problems = folder_problems(args.folder, args.reference, values=not args.no_values)
    if args.json:
        print(json.dumps({"folder": str(args.folder), "problems": problems}))
    else:
        print("\n".join(problems) if problems else f"{args.folder}: whole")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
