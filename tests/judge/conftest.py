"""Fixtures: loopback judge servers, and clients on them whose waiting times are short."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random

import pytest
import pytest_asyncio

from reward.utils.judge_client import JudgeClient
from reward.utils.judge_config import JudgeConfig, environment_names
from reward.utils.request_utils import close_judge
from reward.utils.routes import parse_server
from tests.judge.fault_server import FaultServer

FAST = {
    "model": "judge-model",
    "deadline_s": 60.0,
    "try_timeout_s": 30.0,
    "backoff_base_s": 0.001,
    "backoff_max_s": 0.01,
    "breaker_cooldown_s": 0.01,
    "breaker_max_cooldown_s": 0.02,
    "next_server_wait_s": 30.0,
    "cache_size": 0,
    "delimiter_seed": "test",
}


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch):
    """No judge setting of the developer's shell reaches a test, and no judge thread survives one."""
    for name in [*environment_names(), "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"]:
        monkeypatch.delenv(name, raising=False)
    yield
    close_judge()


@pytest.fixture
def make_server():
    """Start loopback servers; all are stopped at the end."""
    with contextlib.ExitStack() as stack:
        yield lambda *args, **kwargs: stack.enter_context(FaultServer(*args, **kwargs))


@pytest_asyncio.fixture
async def make_client():
    """``make_client(*servers, **settings)``: a client on those servers (or on their addresses)."""
    clients = []

    def make(*servers, rng=None, **settings) -> JudgeClient:
        specs = [s if not isinstance(s, FaultServer | str) else _spec(s) for s in servers]
        client = JudgeClient(JudgeConfig(**{**FAST, **settings}), servers=lambda: specs, rng=rng or random.Random(7))
        clients.append(client)
        return client

    yield make
    for client in clients:
        await client.aclose()
    leftover = [task for task in asyncio.all_tasks() if task is not asyncio.current_task() and not task.done()]
    assert not [task for task in leftover if "reward.utils" in repr(task)]


def _spec(server):
    return parse_server(server.address if isinstance(server, FaultServer) else server, "test")


@pytest.fixture
def use_routes(tmp_path, monkeypatch):
    """``use_routes(*servers, **settings)``: point the process-wide judge at servers through a routes file."""

    def use(*servers, model="judge-model", **settings) -> str:
        path = tmp_path / "routes.json"
        entries = [s.address if isinstance(s, FaultServer) else s for s in servers]
        path.write_text(json.dumps({model: entries}))
        monkeypatch.setenv("JUDGE_ROUTES_FILE", str(path))
        monkeypatch.setenv("RM_SYSTEM_JUDGE_MODEL_NAME", model)
        for name, value in {"JUDGE_BACKOFF_BASE_S": 0.001, "JUDGE_BREAKER_COOLDOWN_S": 0.01, **settings}.items():
            monkeypatch.setenv(name, str(value))
        return str(path)

    return use
