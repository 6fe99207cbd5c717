"""Are the tested versions installed, and does the plugin act when verl is imported?"""

from __future__ import annotations

import importlib.metadata
import sys
from collections.abc import Mapping
from pathlib import Path

from utils.preflight.context import Context
from utils.preflight.results import Result, failed, passed, warned
from utils.preflight.settings import REPO

START_TIMEOUT_S = 120.0
INSTALL = "install the locked versions: bash install_cu13.sh (GPU) or bash install_cpu.sh"


def host_bounds() -> dict[str, str]:
    """The bounds of ``requirements/host.txt``."""
    lines = (REPO / "requirements/host.txt").read_text(encoding="utf-8").splitlines()
    return dict(line.split("=", 1) for line in lines if "=" in line and not line.startswith("#"))


def check_python(context: Context) -> list[Result]:
    have, wanted = f"{sys.version_info.major}.{sys.version_info.minor}", host_bounds()["python"].split()
    if have in wanted:
        return [passed("versions.python", f"Python {have}, {sys.executable}")]
    remedy = f"make an environment with Python {wanted[0]} and {INSTALL}"
    return [failed("versions.python", f"Python {have}; the locked packages are for {' and '.join(wanted)}", remedy)]


def check_pins(context: Context) -> list[Result]:
    from verl_hyocr import versions

    wrong = versions.mismatches()
    if not wrong:
        pins = ", ".join(f"{name} {pin}" for name, pin in versions.PINS.items())
        return [passed("versions.pins", pins)]
    if context.environ.get(versions.ALLOW_ENV) == "1":
        return [warned("versions.pins", "; ".join(wrong), f"allowed by {versions.ALLOW_ENV}=1; else {INSTALL}")]
    return [failed("versions.pins", "; ".join(wrong), f"{INSTALL}, or set {versions.ALLOW_ENV}=1 to try anyway")]


def plugin_problem(environ: Mapping[str, str]) -> tuple[str, str] | None:
    """(what is wrong, remedy) when verl or vLLM would not load the fork; None when both will."""
    reinstall = f"run {sys.executable} -m pip install --no-deps -e {REPO / 'verl'}"
    policy = environ.get("VERL_USE_EXTERNAL_PLUGINS", "auto").strip().lower()
    if policy == "none" or (policy != "auto" and "hyocr" not in [name.strip() for name in policy.split(",")]):
        return f"VERL_USE_EXTERNAL_PLUGINS={policy} keeps verl from loading verl-hyocr", "unset it"
    allowed = environ.get("VLLM_PLUGINS")
    if allowed is not None and "hyocr" not in [name.strip() for name in allowed.split(",")]:
        return f"VLLM_PLUGINS={allowed} keeps vLLM from loading verl-hyocr", "unset it, or add hyocr to it"
    for group in ("verl.plugins", "vllm.general_plugins"):
        if not any(entry.name == "hyocr" for entry in importlib.metadata.entry_points(group=group)):
            return f"no entry point hyocr in {group}: verl-hyocr is not installed, or broken", reinstall
    import verl_hyocr

    folder = Path(verl_hyocr.__file__).resolve().parent
    if folder != (REPO / "verl/verl_hyocr").resolve():
        return f"verl-hyocr is loaded from {folder}, not from this checkout", reinstall
    return None


def check_plugin(context: Context) -> list[Result]:
    """Imports verl in a process of its own and reads the activation line that every worker prints."""
    problem = plugin_problem(context.environ)
    if problem:
        return [failed("versions.plugin", *problem)]
    output, errors = context.plugin_start.communicate(timeout=START_TIMEOUT_S)
    if context.plugin_start.returncode:
        last = (errors.strip().splitlines() or ["no output"])[-1]
        remedy = "run python -c 'import verl, verl_hyocr.activate' for the whole message; " + INSTALL
        return [failed("versions.plugin", f"importing verl with the plugin fails: {last}", remedy)]
    active = [line for line in output.splitlines() if line.startswith("verl-hyocr ")]
    return [passed("versions.plugin", active[-1] if active else "active")]


def check_switches(context: Context) -> list[Result]:
    """Variables that switch parts of the fork off or bring back what it cannot work with."""
    results = []
    disabled = context.environ.get("HYOCR_DISABLE", "").strip()
    if disabled:
        found = f"HYOCR_DISABLE={disabled}: these adaptations are off, the run may train on wrong numbers"
        results.append(warned("versions.switches", found, "unset HYOCR_DISABLE unless you are looking for a fault"))
    runner = context.environ.get("VLLM_USE_V2_MODEL_RUNNER", "0")
    if context.settings.path == "fsdp" and runner != "0":
        found = f"VLLM_USE_V2_MODEL_RUNNER={runner}: vLLM's second model runner cannot run HunYuanVL"
        results.append(failed("versions.switches", found, "unset VLLM_USE_V2_MODEL_RUNNER"))
    return results or [passed("versions.switches", "nothing switched off")]
