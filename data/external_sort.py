"""Sort any number of records in bounded memory: sorted runs in anonymous temporary files, then one merge."""

import heapq
import struct
import tempfile
from collections.abc import Iterator
from typing import IO

_HEADER = struct.Struct("<II")
_MAX_RUNS = 128
_RECORD_OVERHEAD = 160  # bytes a buffered pair of small bytes objects costs beyond its content


class ExternalSorter:
    """Collects `(key, payload)` pairs of bytes and yields them in the order of the pair.

    The files have no name: they vanish with the process, however it ends.

    Args:
        folder: where the temporary files live; None takes the system's temporary folder.
        memory: bytes to buffer before a run is written.
    """

    def __init__(self, folder: str | None = None, memory: int = 32 << 20):
        self._folder = folder
        self._memory = memory
        self._buffer: list[tuple[bytes, bytes]] = []
        self._buffered = 0
        self._runs: list[IO[bytes]] = []
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, key: bytes, payload: bytes = b"") -> None:
        self._buffer.append((key, payload))
        self._buffered += len(key) + len(payload) + _RECORD_OVERHEAD
        self._count += 1
        if self._buffered >= self._memory:
            self._spill()

    def __iter__(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield all pairs in order. May be called again; adding between two calls is allowed."""
        self._buffer.sort()
        return heapq.merge(*[_read(run) for run in self._runs], iter(self._buffer))

    def close(self) -> None:
        for run in self._runs:
            run.close()
        self._runs, self._buffer, self._buffered = [], [], 0

    def _spill(self) -> None:
        self._buffer.sort()
        self._runs.append(self._write(iter(self._buffer)))
        self._buffer, self._buffered = [], 0
        if len(self._runs) >= _MAX_RUNS:
            merged = self._write(heapq.merge(*[_read(run) for run in self._runs]))
            for run in self._runs:
                run.close()
            self._runs = [merged]

    def _write(self, pairs: Iterator[tuple[bytes, bytes]]) -> IO[bytes]:
        # The file outlives this call, so no context manager.
        run = tempfile.TemporaryFile(dir=self._folder, prefix=".prepare_data-", suffix=".tmp")  # noqa: SIM115
        for key, payload in pairs:
            run.write(_HEADER.pack(len(key), len(payload)) + key + payload)
        run.flush()
        return run


def _read(run: IO[bytes]) -> Iterator[tuple[bytes, bytes]]:
    # A cursor of its own: `open` by descriptor shares the offset, so every read names its position.
    position = 0
    pending = b""
    start = 0
    while True:
        while len(pending) - start < _HEADER.size:
            more, pending, start = _refill(run, position, pending, start)
            if not more:
                return
            position += more
        key_size, payload_size = _HEADER.unpack_from(pending, start)
        end = start + _HEADER.size + key_size + payload_size
        while len(pending) < end:
            needed = end - start
            more, pending, start = _refill(run, position, pending, start)
            if not more:
                raise OSError("a temporary sort file ends in the middle of a record")
            position += more
            end = start + needed
        middle = start + _HEADER.size + key_size
        yield pending[start + _HEADER.size : middle], pending[middle:end]
        start = end


def _refill(run: IO[bytes], position: int, pending: bytes, start: int) -> tuple[int, bytes, int]:
    run.seek(position)
    block = run.read(1 << 18)
    return len(block), pending[start:] + block, 0
