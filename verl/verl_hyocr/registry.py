"""What is adapted, where it acts, and whether it is active in this process.

An adaptation is one or more *steps*. A step replaces something in one upstream module as soon as that module is
imported (``wrapt`` post-import hooks), so that modules which import the symbol by value already get the replacement.
Replacements carry a mark (:func:`mark`); :func:`problems` looks for the mark in every module that holds the symbol.
"""

from __future__ import annotations

import importlib
import logging
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import wrapt

logger = logging.getLogger("verl_hyocr")

DISABLE_ENV = "HYOCR_DISABLE"
"""Comma-separated step ids that are left out. For diagnosis and for the tests that prove each step is needed."""


class AdaptationError(RuntimeError):
    """An adaptation is missing, or upstream no longer has what it relies on. Training must not start."""


@dataclass(frozen=True)
class Step:
    """One replacement in one upstream module.

    Attributes:
        id: ``"A5"`` or ``"A4.rotary"``; the part before the dot is the adaptation.
        module: upstream module whose import triggers the step.
        apply: called once with that module.
        symbols: ``(module, attribute path)`` pairs that must carry the step's mark once their module is imported.
        title: a few words for logs and docs.
    """

    id: str
    module: str
    apply: Callable[[ModuleType], None]
    symbols: tuple[tuple[str, str], ...]
    title: str

    @property
    def adaptation(self) -> str:
        return self.id.split(".")[0]


@dataclass
class _State:
    steps: dict[str, Step] = field(default_factory=dict)
    applied: set[str] = field(default_factory=set)
    failed: dict[str, BaseException] = field(default_factory=dict)


_state = _State()


def disabled_steps() -> set[str]:
    """Step ids (or adaptation ids) switched off through ``HYOCR_DISABLE``."""
    return {part.strip() for part in os.environ.get(DISABLE_ENV, "").split(",") if part.strip()}


def is_disabled(step_id: str) -> bool:
    off = disabled_steps()
    return step_id in off or step_id.split(".")[0] in off


def mark(obj: Any, step_id: str) -> Any:
    """Label a replacement so that :func:`problems` recognises it; returns ``obj``.

    Several steps may replace one symbol: ``functools.wraps`` hands the labels of what is wrapped on to the wrapper.
    """
    obj.__hyocr_steps__ = marks(obj) | {step_id}
    return obj


def marks(obj: Any) -> frozenset[str]:
    """Ids of the steps that replaced ``obj``."""
    return frozenset(getattr(obj, "__hyocr_steps__", ()))


def resolve(module: ModuleType, path: str) -> Any:
    """``getattr`` along a dotted path; raises :class:`AdaptationError` naming the missing part."""
    obj: Any = module
    for part in path.split("."):
        if not hasattr(obj, part):
            raise AdaptationError(f"{module.__name__} has no {path!r} (missing {part!r})")
        obj = getattr(obj, part)
    return obj


def install(step: Step) -> None:
    """Register a step: it runs now if its module is imported, else when it is. Installing twice is a no-op."""
    if step.id in _state.steps:
        return
    _state.steps[step.id] = step
    if is_disabled(step.id):
        logger.warning("verl-hyocr: %s (%s) is disabled by %s", step.id, step.title, DISABLE_ENV)
        return

    def hook(module: ModuleType) -> None:
        try:
            step.apply(module)
        except BaseException as error:
            _state.failed[step.id] = error
            logger.error("verl-hyocr: %s (%s) could not be applied to %s: %s", step.id, step.title, step.module, error)
            raise
        _state.applied.add(step.id)

    wrapt.register_post_import_hook(hook, step.module)


def steps() -> list[Step]:
    """All installed steps, in order of installation."""
    return list(_state.steps.values())


def problems(import_targets: bool = False) -> list[str]:
    """What is wrong in this process: failed steps and symbols that are not (or no longer) ours.

    Args:
        import_targets: import every step's module first; otherwise modules not imported yet count as armed.
    """
    found = []
    for step in steps():
        if is_disabled(step.id):
            continue
        if step.id in _state.failed:
            found.append(f"{step.id} ({step.title}) failed: {_state.failed[step.id]!r}")
            continue
        for module_name, path in step.symbols:
            if import_targets:
                importlib.import_module(module_name)
            module = sys.modules.get(module_name)
            # A module without a spec is still being imported: its hooks have not run yet.
            if module is None or getattr(getattr(module, "__spec__", None), "_initializing", False):
                continue
            found_marks = marks(resolve(module, path))
            if step.id not in found_marks:
                names = ", ".join(sorted(found_marks)) or "none"
                found.append(f"{step.id} ({step.title}): {module_name}.{path} is not adapted (adapted by: {names})")
    return found


def active_adaptations() -> list[str]:
    """Ids of the adaptations of which every step is applied or armed, e.g. ``["A1", "A2", …]``."""
    by_adaptation: dict[str, bool] = {}
    for step in steps():
        ok = not is_disabled(step.id) and step.id not in _state.failed
        by_adaptation[step.adaptation] = by_adaptation.get(step.adaptation, True) and ok
    return sorted(name for name, ok in by_adaptation.items() if ok)
