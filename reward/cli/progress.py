"""Progress on stderr: a bar on a terminal, a plain line now and then in a log."""

from __future__ import annotations

import sys
import time
from types import TracebackType

from tqdm import tqdm

_LOG_EVERY_S = 15.0


class Progress:
    """Counts towards ``total`` (None: unknown) items; use as a context manager."""

    def __init__(self, total: int | None, label: str) -> None:
        self._total, self._label, self._done = total, label, 0
        self._start = self._last_line = time.monotonic()
        self._bar = tqdm(total=total, desc=label, unit="row", dynamic_ncols=True) if sys.stderr.isatty() else None

    def __enter__(self) -> Progress:
        return self

    def add(self, count: int) -> None:
        """Count finished items."""
        self._done += count
        if self._bar is not None:
            self._bar.update(count)
        elif time.monotonic() - self._last_line >= _LOG_EVERY_S:
            self._line()

    def _line(self) -> None:
        self._last_line = time.monotonic()
        rate = self._done / max(self._last_line - self._start, 1e-9)
        total = "" if self._total is None else f"/{self._total}"
        print(f"{self._label}: {self._done}{total} rows, {rate:.0f} rows/s", file=sys.stderr, flush=True)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._bar is not None:
            self._bar.close()
        else:
            self._line()
