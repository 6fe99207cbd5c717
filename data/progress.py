"""Progress: a bar on a terminal, a plain line every few seconds in a log."""

import sys
import time
from typing import Any

from tqdm import tqdm

_SECONDS_BETWEEN_LINES = 15.0


class Progress:
    """Follows the bytes of the inputs. `total` 0: unknown.

    Args:
        total: bytes of all inputs as stored.
        quiet: show nothing.
    """

    def __init__(self, total: int, quiet: bool = False):
        self._total = total
        self._done = 0
        self._next_line = time.monotonic() + _SECONDS_BETWEEN_LINES
        on_terminal = sys.stderr.isatty() and not quiet
        self._lines = not on_terminal and not quiet
        self._bar: Any = tqdm(total=total or None, unit="B", unit_scale=True, disable=not on_terminal, desc="checking")

    def update(self, done: int, rows: int, rejected: int) -> None:
        """`done`: bytes consumed so far over all inputs."""
        self._bar.update(done - self._done)
        self._bar.set_postfix(rows=rows, rejected=rejected, refresh=False)
        self._done = done
        now = time.monotonic()
        if self._lines and now >= self._next_line:
            self._next_line = now + _SECONDS_BETWEEN_LINES
            share = f"{100 * done / self._total:.0f}%" if self._total else f"{done >> 20} MiB"
            print(f"checking: {share}, {rows} rows, {rejected} rejected", file=sys.stderr, flush=True)

    def close(self) -> None:
        self._bar.close()
