"""Settings of the judge client: one dataclass, one environment variable per field.

``JudgeConfig.from_env()`` reads them once, when a process asks its first judgement; the routes file is the one thing
that may change during a run. ``docs/judge.md`` lists the variables; ``environment_table()`` prints them.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

DEFAULT_ROUTES_FILE = str(Path(__file__).with_name("judge_server_routes.json"))


class JudgeConfigError(ValueError):
    """The judge cannot be used as configured; the message names the place and the remedy."""


def _setting(default: Any, env: str, meaning: str, low: float | None = None, high: float | None = None) -> Any:
    return field(default=default, metadata={"env": env, "meaning": meaning, "low": low, "high": high})


@dataclass(frozen=True)
class JudgeConfig:
    """Every setting of the judge. Times are in seconds, limits count per process (verl runs several reward workers)."""

    model: str = _setting(
        "Qwen/Qwen3-30B-A3B", "RM_SYSTEM_JUDGE_MODEL_NAME", "entry of the routes file that judges", low=1
    )
    routes_file: str = _setting(DEFAULT_ROUTES_FILE, "JUDGE_ROUTES_FILE", "path of the routes file", low=1)

    deadline_s: float = _setting(
        180.0, "JUDGE_DEADLINE_S", "most a judgement takes, waiting and retries included", 0.01
    )
    try_timeout_s: float = _setting(60.0, "JUDGE_TRY_TIMEOUT_S", "most one call to one server takes", 0.01)
    connect_timeout_s: float = _setting(5.0, "JUDGE_CONNECT_TIMEOUT_S", "most a connection takes to open", 0.01)
    discovery_timeout_s: float = _setting(
        10.0, "JUDGE_DISCOVERY_TIMEOUT_S", "most a server takes to name its model; pings it after an outage", 0.01
    )
    server_concurrency: int = _setting(
        64, "JUDGE_SERVER_CONCURRENCY", "calls in flight per server and process", 1, 100_000
    )
    parse_tries: int = _setting(3, "JUDGE_PARSE_TRIES", "replies asked for until one parses", 1, 100)
    next_server_wait_s: float = _setting(
        2.0,
        "JUDGE_NEXT_SERVER_WAIT_S",
        "how long a repeated call waits for a server other than the one that failed",
        0.0,
    )

    backoff_base_s: float = _setting(0.25, "JUDGE_BACKOFF_BASE_S", "first back-off; doubles per failed call", 0.0)
    backoff_max_s: float = _setting(8.0, "JUDGE_BACKOFF_MAX_S", "longest back-off", 0.0)
    retry_after_max_s: float = _setting(60.0, "JUDGE_RETRY_AFTER_MAX_S", "longest Retry-After that is honoured", 0.0)
    breaker_failures: int = _setting(
        8, "JUDGE_BREAKER_FAILURES", "failures in a row that take a server out", 1, 100_000
    )
    breaker_cooldown_s: float = _setting(
        1.0, "JUDGE_BREAKER_COOLDOWN_S", "first time out; doubles per failed probe", 0.001
    )
    breaker_max_cooldown_s: float = _setting(30.0, "JUDGE_BREAKER_MAX_COOLDOWN_S", "longest time out", 0.001)

    temperature: float = _setting(0.2, "JUDGE_TEMPERATURE", "sampling temperature", 0.0, 2.0)
    top_p: float = _setting(0.95, "JUDGE_TOP_P", "nucleus sampling", 0.001, 1.0)
    max_tokens: int = _setting(2048, "JUDGE_MAX_TOKENS", "longest reply, thinking included", 1, 1_000_000)
    enable_thinking: str = _setting(
        "0", "JUDGE_ENABLE_THINKING", "0 or 1: chat_template_kwargs.enable_thinking; auto: do not send it"
    )

    max_field_chars: int = _setting(
        6000, "JUDGE_MAX_FIELD_CHARS", "longest answer, reference, source or question in a prompt", 64, 10_000_000
    )
    delimiter_seed: str = _setting(
        "", "JUDGE_DELIMITER_SEED", "makes prompts reproducible; keep it secret; empty: a new one per process"
    )
    cache_size: int = _setting(8192, "JUDGE_CACHE_SIZE", "judgements remembered per process; 0: none", 0, 100_000_000)
    use_proxy: bool = _setting(
        False, "JUDGE_USE_PROXY", "1: go through HTTP_PROXY, HTTPS_PROXY, ALL_PROXY (NO_PROXY is honoured)"
    )

    max_failure_rate: float = _setting(
        0.5, "JUDGE_MAX_FAILURE_RATE", "share of failed judgements above which a run stops; 1: never", 0.0, 1.0
    )
    failure_window: int = _setting(
        1024, "JUDGE_FAILURE_WINDOW", "latest judgements over which that share is measured", 1, 100_000_000
    )

    def __post_init__(self) -> None:
        for item in fields(self):
            _check(item.metadata["env"], getattr(self, item.name), item.metadata)
        if self.enable_thinking not in ("0", "1", "auto"):
            raise JudgeConfigError(f"JUDGE_ENABLE_THINKING={self.enable_thinking!r}: give 0, 1 or auto")

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None) -> JudgeConfig:
        """Read every setting from its variable; an unset or blank one keeps its default.

        Raises:
            JudgeConfigError: a value is of the wrong type or out of range.
        """
        environ = os.environ if environ is None else environ
        values = {}
        for item in fields(cls):
            text = environ.get(item.metadata["env"], "").strip()
            if text:
                values[item.name] = _read(item.metadata["env"], text, type(item.default))
        return cls(**values)


def environment_names() -> list[str]:
    """The variables that a launcher must hand to its workers."""
    return [item.metadata["env"] for item in fields(JudgeConfig)]


def environment_table() -> str:
    """The settings as a Markdown table: variable, default, meaning."""
    rows = ["| variable | default | meaning |", "|---|---|---|"]
    for item in fields(JudgeConfig):
        default = "reward/utils/judge_server_routes.json" if item.name == "routes_file" else _shown(item.default)
        rows.append(f"| `{item.metadata['env']}` | {default} | {item.metadata['meaning']} |")
    return "\n".join(rows)


def _shown(default: Any) -> str:
    if isinstance(default, bool):
        return str(int(default))
    return f"{default:g}" if isinstance(default, float) else str(default)


def _read(name: str, text: str, kind: type) -> Any:
    if kind is bool:
        known = {
            "1": True,
            "true": True,
            "yes": True,
            "on": True,
            "0": False,
            "false": False,
            "no": False,
            "off": False,
        }
        if text.lower() not in known:
            raise JudgeConfigError(f"{name}={text!r} is no switch: give 0 or 1")
        return known[text.lower()]
    try:
        return kind(text)
    except ValueError:
        wanted = "a whole number" if kind is int else "a number"
        raise JudgeConfigError(f"{name}={text!r} is not {wanted}") from None


def _check(name: str, value: Any, limits: Mapping[str, Any]) -> None:
    low, high = limits["low"], limits["high"]
    if isinstance(value, str):
        if low and not value:
            raise JudgeConfigError(f"{name} is empty")
        return
    if not math.isfinite(value):
        raise JudgeConfigError(f"{name}={value} is not a finite number")
    if low is not None and value < low:
        raise JudgeConfigError(f"{name}={value} is too small: the least is {low}")
    if high is not None and value > high:
        raise JudgeConfigError(f"{name}={value} is too large: the most is {high}")
