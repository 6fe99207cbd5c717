"""The routes file: which servers judge under which model name.

.. code-block:: json

    {
      "Qwen/Qwen3-30B-A3B": ["10.0.0.1:8000", "10.0.0.2:8000"],
      "a-hosted-judge": [{"url": "https://host/v1", "api_key_env": "HOSTED_KEY", "model": "its-name"}]
    }

A server is "host:port", a URL, or an object with ``url`` and any of ``api_key_env`` (the *name* of the variable that
holds the key), ``model`` (the served name: it is then not asked for) and ``concurrency`` (overrides
JUDGE_SERVER_CONCURRENCY). A URL without a path gets ``/v1``.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from reward.utils.judge_config import JudgeConfig, JudgeConfigError

logger = logging.getLogger(__name__)

CHECK_INTERVAL_S = 1.0
_DEFAULT_PORTS = {"http": 80, "https": 443}
_OBJECT_KEYS = {"url", "api_key_env", "model", "concurrency"}


@dataclass(frozen=True)
class ServerSpec:
    """One entry of the routes file. ``name`` ("host:port", plus a path that is not /v1) stands for it in metrics."""

    name: str
    base_url: str
    api_key_env: str = ""
    model: str = ""
    concurrency: int | None = None


def parse_server(entry: Any, where: str) -> ServerSpec:
    """Read one server entry.

    Args:
        entry: "host:port", a URL, or an object with ``url``.
        where: place of the entry, for the error message.

    Raises:
        JudgeConfigError: the entry cannot be read.
    """
    options: Mapping[str, Any] = entry if isinstance(entry, dict) else {"url": entry}
    unknown = sorted(set(options) - _OBJECT_KEYS)
    if unknown:
        raise JudgeConfigError(f"{where}: unknown key {unknown[0]!r}; known are {', '.join(sorted(_OBJECT_KEYS))}")
    text = options.get("url")
    if not isinstance(text, str) or not text.strip():
        raise JudgeConfigError(f'{where}: {json.dumps(entry)} is no server; write "host:port" or a full URL')
    name, base_url = _parse_url(text.strip(), where)
    for key in ("api_key_env", "model"):
        if not isinstance(options.get(key, ""), str):
            raise JudgeConfigError(f"{where}: {key} must be text")
    concurrency = options.get("concurrency")
    if concurrency is not None and (
        not isinstance(concurrency, int) or isinstance(concurrency, bool) or concurrency < 1
    ):
        raise JudgeConfigError(f"{where}: concurrency must be a whole number of at least 1")
    return ServerSpec(name, base_url, options.get("api_key_env", ""), options.get("model", ""), concurrency)


def _parse_url(text: str, where: str) -> tuple[str, str]:
    has_scheme = "://" in text
    try:
        url = urlsplit(text if has_scheme else f"http://{text}")
        host, port = url.hostname, url.port
    except ValueError as error:
        raise JudgeConfigError(f"{where}: {text!r} is no address: {error}") from None
    if url.scheme not in _DEFAULT_PORTS:
        raise JudgeConfigError(f"{where}: {text!r} must start with http:// or https://")
    if url.username is not None or url.password is not None:
        raise JudgeConfigError(f"{where}: keep keys out of the routes file; name a variable with api_key_env")
    if url.query or url.fragment:
        raise JudgeConfigError(f"{where}: {text!r} must not have a query or a fragment")
    if not host or any(c.isspace() for c in text):
        raise JudgeConfigError(f"{where}: {text!r} names no host")
    if port is None and not has_scheme:
        raise JudgeConfigError(f'{where}: {text!r} has no port; write "{text}:8000" or a full URL')
    if not has_scheme and url.path.strip("/"):
        raise JudgeConfigError(f"{where}: {text!r} has a path; write it as a full URL: http://{text}")
    shown_host = f"[{host}]" if ":" in host else host
    address = f"{shown_host}:{port if port is not None else _DEFAULT_PORTS[url.scheme]}"
    path = url.path.rstrip("/") or "/v1"
    return address if path == "/v1" else address + path, f"{url.scheme}://{address}{path}"


def read_routes(path: str | Path) -> dict[str, list[ServerSpec]]:
    """Read the whole file; each model's servers once, in the order written.

    Raises:
        JudgeConfigError: the file is missing, is no JSON, or an entry cannot be read.
    """
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise JudgeConfigError(f"{path}: the judge's routes file cannot be read: {error}") from None
    try:
        routes = json.loads(text, object_pairs_hook=_unique_keys)
    except json.JSONDecodeError as error:
        raise JudgeConfigError(f"{path}:{error.lineno}:{error.colno}: no valid JSON: {error.msg}") from None
    except (ValueError, RecursionError) as error:
        raise JudgeConfigError(f"{path}: {error}") from None
    if not isinstance(routes, dict):
        raise JudgeConfigError(f'{path}: must be an object like {{"model": ["host:port"]}}')
    return {model: _read_servers(path, model, servers) for model, servers in routes.items()}


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    seen: dict[str, Any] = {}
    for key, value in pairs:
        if key in seen:
            raise ValueError(f"the key {key!r} stands there twice; merge the two lists")
        seen[key] = value
    return seen


def _read_servers(path: str | Path, model: str, servers: Any) -> list[ServerSpec]:
    if not isinstance(servers, list):
        raise JudgeConfigError(f'{path}: the entry of {model!r} must be a list like ["host:port"]')
    specs: dict[str, ServerSpec] = {}
    for index, entry in enumerate(servers):
        spec = parse_server(entry, f"{path}: {model!r}[{index}]")
        if spec.name in specs:
            logger.warning("%s: %r lists %s twice; the first entry counts", path, model, spec.name)
        specs.setdefault(spec.name, spec)
    return list(specs.values())


def usable_servers(model_name: str, routes_file: str | Path) -> list[ServerSpec]:
    """The servers of one model, checked without any network.

    Raises:
        JudgeConfigError: no such entry, an empty one, or an API key variable that is not set.
    """
    routes = read_routes(routes_file)
    remedy = f'add {{"{model_name}": ["host:port"]}} to it, or set RM_SYSTEM_JUDGE_MODEL_NAME or JUDGE_ROUTES_FILE'
    if model_name not in routes:
        known = ", ".join(repr(name) for name in routes) or "none"
        raise JudgeConfigError(
            f"{routes_file}: no entry for the judge model {model_name!r} (entries: {known}); {remedy}"
        )
    if not routes[model_name]:
        raise JudgeConfigError(f"{routes_file}: the entry of the judge model {model_name!r} lists no server; {remedy}")
    for spec in routes[model_name]:
        if spec.api_key_env and not os.environ.get(spec.api_key_env, "").strip():
            raise JudgeConfigError(
                f"{routes_file}: {spec.name} takes its API key from {spec.api_key_env}, which is not set; export it"
            )
    return routes[model_name]


def usable_routes(model_name: str | None = None, routes_file: str | Path | None = None) -> list[str]:
    """Base URLs that can judge, for a check before a run; nothing is sent.

    Args:
        model_name: entry of the routes file; default RM_SYSTEM_JUDGE_MODEL_NAME.
        routes_file: default JUDGE_ROUTES_FILE.

    Raises:
        JudgeConfigError: there is none, or a setting is wrong; the message holds the remedy.
    """
    config = JudgeConfig.from_env()
    return [spec.base_url for spec in usable_servers(model_name or config.model, routes_file or config.routes_file)]


def api_key_variables(model_name: str | None = None, routes_file: str | Path | None = None) -> list[str]:
    """Names of the API key variables that the entry needs, for a launcher that hands them to its workers."""
    config = JudgeConfig.from_env()
    specs = read_routes(routes_file or config.routes_file).get(model_name or config.model, [])
    return sorted({spec.api_key_env for spec in specs if spec.api_key_env})


class RoutesFile:
    """One model's servers, read again when the file changes; a version that cannot be used is logged and not taken."""

    def __init__(self, path: str | Path, model: str, *, clock: Callable[[], float] = time.monotonic):
        """Raises JudgeConfigError when the file is not usable now."""
        self._path = Path(path)
        self._model = model
        self._clock = clock
        self._stamp = self._stat()
        self._servers = usable_servers(model, path)
        self._checked = clock()

    def servers(self) -> list[ServerSpec]:
        """The current servers; looks at the file at most once a second."""
        now = self._clock()
        if now - self._checked >= CHECK_INTERVAL_S:
            self._checked = now
            self._reload()
        return self._servers

    def _reload(self) -> None:
        stamp = self._stat()
        if stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            servers = usable_servers(self._model, self._path)
        except JudgeConfigError as error:
            logger.error("judge routes keep their last good version: %s", error)
            return
        if servers != self._servers:
            logger.warning("judge routes changed: %s", ", ".join(spec.name for spec in servers))
        self._servers = servers

    def _stat(self) -> tuple[int, int, int] | None:
        try:
            stat = self._path.stat()
        except OSError:
            return None
        return stat.st_mtime_ns, stat.st_size, stat.st_ino
