"""Counts the bytes that TransferQueue clients put and get; imported by verl in every process of a benchmark run.

``VERL_USE_EXTERNAL_MODULES`` names this module and ``GPU_STEP_TRANSFERS`` a folder; each process appends one JSON line per
message to its own file there: ``{"t": epoch seconds, "op": "put" | "get", "bytes": int, "role": actor class}``. The bytes
are those of the message as it goes over the socket. Storage units only answer, so nothing is counted twice.
"""

from __future__ import annotations

import functools
import json
import os
import time
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

import wrapt

FOLDER_ENV = "GPU_STEP_TRANSFERS"
MODULE = "transfer_queue.utils.zmq_utils"


def actor_class(command_line: bytes) -> str:
    """``WorkerDict`` of ``ray::WorkerDict.update_actor()``; ``driver`` for a process that is no Ray worker."""
    title = command_line.split(b"\0")[0].decode(errors="replace")
    return title.removeprefix("ray::").split(".")[0].split("(")[0].strip() if title.startswith("ray::") else "driver"


def frame_bytes(frames: Iterable[Any]) -> int:
    """Bytes of a multipart message, whatever its frames are (bytes, arrays, ``zmq.Frame``)."""
    return sum(memoryview(frame).nbytes for frame in frames)


def _record(op: str, size: int) -> None:
    line = {"t": time.time(), "op": op, "bytes": size, "role": actor_class(Path("/proc/self/cmdline").read_bytes())}
    with open(Path(os.environ[FOLDER_ENV]) / f"{os.getpid()}.jsonl", "a", encoding="utf-8") as stream:
        stream.write(json.dumps(line) + "\n")


def install(module: ModuleType) -> None:
    """Wrap ``ZMQMessage.serialize`` and ``.deserialize`` of TransferQueue's message module."""
    message, kinds = module.ZMQMessage, module.ZMQRequestType
    serialize, deserialize = message.serialize, message.deserialize

    @functools.wraps(serialize)
    def counted_serialize(self) -> list:
        frames = serialize(self)
        if self.request_type == kinds.PUT_DATA:
            _record("put", frame_bytes(frames))
        return frames

    @functools.wraps(deserialize)
    def counted_deserialize(frames: list):
        result = deserialize(frames)
        if result.request_type == kinds.GET_DATA_RESPONSE:
            _record("get", frame_bytes(frames))
        return result

    message.serialize = counted_serialize
    message.deserialize = staticmethod(counted_deserialize)


if os.environ.get(FOLDER_ENV):
    wrapt.register_post_import_hook(install, MODULE)
