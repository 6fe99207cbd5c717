"""Rows of a text reinforcement-learning set as verl reads them: five fields, their checks, and parquet files of them.

=============  ==========================================================================================
data_source    text; picks the scoring rule
prompt         chat messages, ``[{"role": "user", "content": "…"}]``; the last one is the user's
ability        text; a category, e.g. ``"math"``
reward_model   ``{"style": "rule", "ground_truth": "…"}``; the reference as the rule compares it
extra_info     ``{"split": "train", "index": 0, …}``; metadata
=============  ==========================================================================================
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

FIELDS = ("data_source", "prompt", "ability", "reward_model", "extra_info")
ROLES = ("system", "user", "assistant", "tool")


class DataError(ValueError):
    """Data cannot be read or written as asked; the message names file, row, field and remedy."""


def problems(row: Mapping[str, Any]) -> list[str]:
    """What is wrong with a row, one line a field: ``"field: what it is, what it must be"``. Empty: nothing."""
    found = [f"{name}: missing" for name in FIELDS if row.get(name) is None]
    for name in ("data_source", "ability"):
        value = row.get(name)
        if value is not None and (not isinstance(value, str) or not value.strip()):
            found.append(f"{name}: {_shown(value)}, must be a text that is not empty")
    if row.get("prompt") is not None:
        found += _prompt_problems(row["prompt"])
    reward = row.get("reward_model")
    if reward is not None:
        if not isinstance(reward, Mapping):
            found.append(f"reward_model: {_shown(reward)}, must be an object with style and ground_truth")
        else:
            for name in ("style", "ground_truth"):
                value = reward.get(name)
                if not isinstance(value, str) or not value.strip():
                    found.append(f"reward_model.{name}: {_shown(value)}, must be a text that is not empty")
    extra = row.get("extra_info")
    if extra is not None and not isinstance(extra, Mapping):
        found.append(f"extra_info: {_shown(extra)}, must be an object, e.g. {{'split': 'train', 'index': 0}}")
    return found


def _prompt_problems(prompt: Any) -> list[str]:
    if isinstance(prompt, str) or not isinstance(prompt, Iterable):
        return [f"prompt: {_shown(prompt)}, must be a list of messages, e.g. [{{'role': 'user', 'content': '1+1=?'}}]"]
    messages = list(prompt)
    if not messages:
        return ["prompt: no message"]
    found = []
    for number, message in enumerate(messages):
        if not isinstance(message, Mapping):
            found.append(f"prompt[{number}]: {_shown(message)}, must be an object with role and content")
            continue
        if message.get("role") not in ROLES:
            found.append(f"prompt[{number}].role: {_shown(message.get('role'))}, must be one of {', '.join(ROLES)}")
        content = message.get("content")
        if not isinstance(content, str) or not content.strip():
            found.append(f"prompt[{number}].content: {_shown(content)}, must be a text that is not empty")
    if not found and messages[-1]["role"] not in ("user", "tool"):
        found.append(f"prompt: ends with the role {messages[-1]['role']!r}; the last message must be the user's")
    return found


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def read_parquet(path: str | os.PathLike, batch_size: int = 4096) -> Iterator[dict[str, Any]]:
    """Rows of a parquet file, in order.

    Raises:
        DataError: when it is missing or no parquet file.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=batch_size):
                yield from batch.to_pylist()
    except FileNotFoundError as error:
        raise DataError(f"{path}: no such file") from error
    except (pa.ArrowInvalid, OSError) as error:
        raise DataError(f"{path}: cannot be read as parquet ({error})") from error


def write_parquet(path: str | os.PathLike, rows: Iterable[Mapping[str, Any]], chunk: int = 8192) -> int:
    """Write rows; the file appears complete or not at all. Returns how many were written.

    The first chunk fixes the columns' types.

    Raises:
        DataError: for no rows at all, or when a later row does not fit the types of the first ones.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    writer, written, held = None, 0, []

    def flush() -> None:
        nonlocal writer, written
        try:
            table = pa.Table.from_pylist([dict(row) for row in held], schema=writer.schema if writer else None)
        except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
            first = written + 1
            raise DataError(f"{path}: rows {first} to {written + len(held)} differ in type ({error})") from error
        if writer is None:
            writer = pq.ParquetWriter(temporary, table.schema)
        writer.write_table(table)
        written += len(held)
        held.clear()

    try:
        for row in rows:
            held.append(row)
            if len(held) >= chunk:
                flush()
        if held:
            flush()
        if writer is None:
            raise DataError(f"{path}: nothing to write, no rows")
        writer.close()
        os.replace(temporary, path)
    finally:
        if writer is not None:
            writer.close()
        temporary.unlink(missing_ok=True)
    return written


def perfect_answer(ground_truth: str) -> str:
    """An answer that states the reference in every form that the mathematics rules look for."""
    return f"Answer: \\boxed{{{ground_truth}}}\n#### {ground_truth}"


def routed_score(data_source: str, answer: str, ground_truth: str) -> float:
    """Score of an answer by the rule that verl picks for ``data_source``.

    Raises:
        NotImplementedError: when verl has no rule for it.
    """
    from verl.utils.reward_score import default_compute_score

    result = default_compute_score(data_source, answer, ground_truth)
    return float(result["score"] if isinstance(result, Mapping) else result)
