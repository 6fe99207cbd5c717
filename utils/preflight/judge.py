"""Can judge tasks be judged: a usable route, and servers that answer?"""

from __future__ import annotations

import asyncio
import dataclasses
from urllib.parse import urlsplit

from utils.preflight.context import Context
from utils.preflight.data import task_types
from utils.preflight.results import NotChecked, Result, failed, passed, some, warned
from utils.ray.host import try_connect

PING_S = 5.0


def judged_types(context: Context) -> list[str]:
    """Task types of the data that a judge model scores. Raises NotChecked when there are none, or another reward is used."""
    from reward.ocr_scorer import needs_judge

    if not context.settings.uses_kit_reward:
        raise NotChecked("another reward function asks its judges its own way")
    names = sorted(name for name in task_types(context) if needs_judge(name))
    if not names:
        raise NotChecked("the data has no judge tasks")
    return names


def check_routes(context: Context) -> list[Result]:
    from reward.utils.judge_config import JudgeConfigError
    from reward.utils.routes import usable_routes

    check, names = "judge.routes", judged_types(context)
    try:
        servers = usable_routes()
    except JudgeConfigError as error:
        message, _, remedy = str(error).partition("; ")
        return [failed(check, f"{some(names)} need a judge: {message}", remedy or "see docs/judge.md")]
    return [passed(check, f"{len(servers)} server(s) for {some(names)}")]


def ping(context: Context) -> dict[str, str]:
    """:func:`ping_servers`, once. Raises NotChecked when the data has no judge task."""
    judged_types(context)
    return context.judge_servers


def ping_servers() -> dict[str, str]:
    """Server -> what went wrong when it was asked for its model ("" when it answered).

    Raises:
        NotChecked: no usable route.
    """
    from reward.utils.judge_client import CallFailed, JudgeClient
    from reward.utils.judge_config import JudgeConfig, JudgeConfigError
    from reward.utils.routes import ServerSpec, usable_servers

    try:
        config = JudgeConfig.from_env()
        specs = usable_servers(config.model, config.routes_file)
    except JudgeConfigError as error:
        raise NotChecked(str(error)) from error
    config = dataclasses.replace(
        config,
        discovery_timeout_s=min(PING_S, config.discovery_timeout_s),
        connect_timeout_s=min(PING_S, config.connect_timeout_s),
        try_timeout_s=min(PING_S, config.try_timeout_s),
    )

    async def ask(client: JudgeClient, spec: ServerSpec) -> str:
        if spec.model:
            # A hosted judge may have no list of models, so that only the connection can be tried.
            url = urlsplit(spec.base_url)
            return await asyncio.to_thread(try_connect, url.hostname, url.port, PING_S) or ""
        try:
            await client.discover(spec.name)
        except CallFailed as failure:
            return str(failure) or type(failure).__name__
        return ""

    async def ask_all() -> dict[str, str]:
        client = JudgeClient(config, servers=lambda: specs)
        try:
            answers = await asyncio.gather(*(ask(client, spec) for spec in specs))
        finally:
            await client.aclose()
        return dict(zip((spec.name for spec in specs), answers, strict=True))

    return asyncio.run(ask_all())


def answering(context: Context) -> bool:
    """Whether some judge server answers."""
    try:
        return any(problem == "" for problem in ping(context).values())
    except NotChecked:
        return False


def check_servers(context: Context) -> list[Result]:
    check, answers = "judge.servers", ping(context)
    silent = [f"{name} ({problem})" for name, problem in answers.items() if problem]
    remedy = "start them, or correct the routes file; python -m reward judge-check tries each (docs/judge.md)"
    if len(silent) == len(answers):
        return [failed(check, f"no judge server answers: {some(silent)}", remedy)]
    if silent:
        return [warned(check, f"{len(silent)} of {len(answers)} judge servers do not answer: {some(silent)}", remedy)]
    return [passed(check, f"{some(answers)} answer")]
