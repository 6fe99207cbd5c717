"""What a check says: PASS, WARN or FAIL, what was found, and what to do about it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any

PASS, WARN, FAIL = "PASS", "WARN", "FAIL"
STATUSES = (PASS, WARN, FAIL)


class NotChecked(Exception):
    """A check has nothing to look at: what it needs is not there, and the check of that has said so."""


class remembered:
    """A property that is computed once, also when that raises NotChecked: asking a silent cluster takes its time."""

    def __init__(self, read: Callable[[Any], Any]):
        self._read = read
        self.__doc__ = read.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._slot = f"_remembered_{name}"

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        if instance is None:
            return self
        if self._slot not in instance.__dict__:
            try:
                instance.__dict__[self._slot] = (self._read(instance), None)
            except NotChecked as reason:
                instance.__dict__[self._slot] = (None, reason)
        value, reason = instance.__dict__[self._slot]
        if reason is not None:
            raise reason
        return value


@dataclass(frozen=True)
class Result:
    """One row of the report.

    Attributes:
        check: id, ``"numbers.model_length"``: the module and the concern.
        status: one of :data:`STATUSES`.
        found: what was looked at, with the numbers.
        remedy: what to change and to which value; empty when passed.
    """

    check: str
    status: str
    found: str
    remedy: str = ""

    def as_dict(self) -> dict[str, str]:
        return asdict(self)


def passed(check: str, found: str) -> Result:
    return Result(check, PASS, found)


def warned(check: str, found: str, remedy: str) -> Result:
    return Result(check, WARN, found, remedy)


def failed(check: str, found: str, remedy: str) -> Result:
    return Result(check, FAIL, found, remedy)


def worst(results: Iterable[Result]) -> str:
    """The most serious status; PASS for none."""
    return max((result.status for result in results), key=STATUSES.index, default=PASS)


def some(items: Iterable[object], shown: int = 3) -> str:
    """``"a, b, c and 4 more"``."""
    texts = [str(item) for item in items]
    return ", ".join(texts[:shown]) + (f" and {len(texts) - shown} more" if len(texts) > shown else "")


def gib(size: float) -> str:
    """Bytes in words: ``"1.5 GiB"``, ``"31 MiB"``."""
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 else f"{size / 2**20:.0f} MiB"
