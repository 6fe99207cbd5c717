"""RLLoggingBoard's rules for log files, written anew from its behaviour, to prove that a dump loads and can be looked at.

The UI reads every ``*.jsonl`` of a folder line by line, makes one list per field and step, derives KL and probabilities from
the two lists of log-probs, and then indexes all lists of a step by the number of the sample on screen. Where it would show
an error or a wrong number, :class:`Broken` is raised.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np

COLUMNS = (
    *("prompt", "response", "ref_response", "reward", "ref_reward", "valid_reward", "ref_valid_reward"),
    *("response_tokens", "response_tokens_len", "values", "token_rewards"),
    *("logprobs", "ref_logprobs", "probs", "ref_probs"),
    *("kl", "avg_kl", "sum_kl", "log_ratio", "avg_log_ratio", "sum_log_ratio"),
)
TABLE = (
    *("prompt", "response", "reward", "valid_reward", "ref_response", "ref_reward", "ref_valid_reward"),
    *("avg_log_ratio", "sum_log_ratio", "avg_kl", "sum_kl"),
)


class Broken(AssertionError):
    """The UI would fail or show something wrong."""


def require(condition: Any, message: str) -> None:
    if not condition:
        raise Broken(message)


def log_files(folder: Path, variant: bool = False) -> list[Path]:
    """Files that the UI takes; the dddraxxx variant wants ``_rank0.jsonl``, and looks into subfolders."""
    if variant:
        return [path for path in folder.rglob("*") if path.name.endswith("_rank0.jsonl")]
    return [path for path in folder.iterdir() if path.name.endswith(".jsonl")]


def load(folder: Path, variant: bool = False) -> dict[int, dict[str, list]]:
    """Step -> field -> one value per sample."""
    files = log_files(folder, variant)
    require(files, f"no log file in {folder}")
    steps: dict[int, dict[str, list]] = {}
    for path in files:
        before = -1
        with open(path, encoding="utf8", errors="strict") as lines:
            for number, line in enumerate(lines, 1):
                where = f"{path.name}:{number}"
                row = json.loads(line, parse_constant=lambda name, where=where: require(False, f"{where}: {name}"))
                take(row, steps, where, variant)
                require(not variant or row["step"] >= before, f"{where}: not sorted by step")
                before = row["step"]
    for step, columns in steps.items():
        check_step(step, columns)
    return steps


def take(row: dict[str, Any], steps: dict[int, dict[str, list]], where: str, variant: bool) -> None:
    require(isinstance(row.get("step"), int), f"{where}: step")
    for name in ("prompt", "response"):
        require(isinstance(row.get(name), str), f"{where}: {name} is {type(row.get(name)).__name__}, not text")
    require(isinstance(row.get("reward"), float) and math.isfinite(row["reward"]), f"{where}: reward")
    columns = steps.setdefault(row["step"], {name: [] for name in COLUMNS})
    for name, value in row.items():
        require(value is not None, f"{where}: {name} is null")
        if variant or name in columns:
            columns.setdefault(name, []).append(value)
    if "response_tokens" in row:
        columns["response_tokens_len"].append(len(row["response_tokens"]))
    if "logprobs" in row and "ref_logprobs" in row:
        policy, reference = np.array(row["logprobs"]), np.array(row["ref_logprobs"])
        require(policy.shape == reference.shape, f"{where}: logprobs and ref_logprobs differ in length")
        log_ratio = policy - reference
        kl = np.exp(log_ratio) - 1 - log_ratio
        for name, values in (("log_ratio", log_ratio), ("kl", kl)):
            columns[name].append(values.tolist())
            columns[f"avg_{name}"].append(float(np.mean(values)))
            columns[f"sum_{name}"].append(float(np.sum(values)))
        columns["probs"].append(np.exp(policy).tolist())
        columns["ref_probs"].append(np.exp(reference).tolist())


def check_step(step: int, columns: dict[str, list]) -> None:
    """Every list that has anything has one value per sample, and every sample can be looked at."""
    samples = len(columns["prompt"])
    for name, values in columns.items():
        require(not values or len(values) == samples, f"step {step}: {name} has {len(values)} values, not {samples}")
    for number in range(samples):
        view(step, columns, number)


def view(step: int, columns: dict[str, list], sample: int) -> list[tuple[str, dict[str, float]]]:
    """The table of tokens of one sample: text and what belongs to it."""
    for name in TABLE:
        require(not columns[name] or columns[name][sample] is not None, f"step {step}: {name}[{sample}]")
    if not columns["token_rewards"]:
        return []
    count = len(columns["logprobs"][sample])
    tokens = columns["response_tokens"][sample]
    require(len(tokens) >= count, f"step {step}, sample {sample}: more values than tokens")
    tokens = tokens[:count]
    require(tokens, f"step {step}, sample {sample}: no token to look at")
    table = []
    names = {"token_rewards", "log_ratio", "kl", "values", "logprobs", "ref_logprobs", "probs", "ref_probs"}
    for number, token in enumerate(tokens):
        require(isinstance(token, str), f"step {step}, sample {sample}: token {number} is no text")
        values = {}
        for name in names:
            if columns[name]:
                require(len(columns[name][sample]) == count, f"step {step}, sample {sample}: length of {name}")
                values[name] = columns[name][sample][number]
                require(math.isfinite(values[name]), f"step {step}, sample {sample}: {name}[{number}]")
        table.append((token, values))
    return table


def kl_curve(steps: dict[int, dict[str, list]]) -> dict[int, float]:
    """The UI's KL curve: the mean log ratio of the steps in which no sample's is exactly 0."""
    return {
        step: float(np.mean(columns["avg_log_ratio"]))
        for step, columns in steps.items()
        if columns["avg_log_ratio"] and all(columns["avg_log_ratio"])
    }
