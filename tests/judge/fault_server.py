"""A scripted OpenAI-compatible server on loopback, faults included: a real HTTP server, for tests and benchmarks.

    python tests/judge/fault_server.py [--port 0] [--latency 0.5] [--slots 48] [--fail-every 3]

prints its address and serves until it is killed. ``GET /stats`` returns what it counted.

The default reply is made from the candidate answer: "answer 17" gets the VQA verdict 17 % 2 and the translation score
17 % 6, so that a mixed-up reply shows.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import ssl
import threading
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

_NUMBER = re.compile(r"answer (\d+)")


@dataclass(frozen=True)
class Fault:
    """What to do instead of replying.

    ``kind``: status (with ``status``, ``message``, ``headers``), hang, dribble (first bytes, then silence), drop (close
    the connection), slow (wait until released, then reply), body (send ``message`` as it is), short (announce more
    bytes than are sent), text (a proper reply with ``message`` as its content; None is a missing content).
    """

    kind: str
    status: int = 200
    message: str | None = ""
    headers: dict[str, str] = field(default_factory=dict)
    finish_reason: str = "stop"


def status(code: int, message: str = "scripted", **headers: str) -> Fault:
    return Fault("status", code, message, {name.replace("_", "-"): value for name, value in headers.items()})


def text(content: str | None, finish_reason: str = "stop") -> Fault:
    return Fault("text", message=content, finish_reason=finish_reason)


def body(raw: str) -> Fault:
    return Fault("body", message=raw)


HANG, DRIBBLE, DROP, SLOW, SHORT = Fault("hang"), Fault("dribble"), Fault("drop"), Fault("slow"), Fault("short")


def default_reply(request: dict[str, Any]) -> str:
    prompt = request["messages"][-1]["content"]
    number = int(_NUMBER.findall(prompt)[-1])
    if "Final Score" in prompt:
        return f"Good.\nFinal Score: {number % 6}/5"
    return f"Compared.\nJudgement: {number % 2}"


class FaultServer:
    """One server in a thread of its own; a context manager. ``stop()`` kills it, ``start()`` brings it back.

    Args:
        model: served model name; ``models`` overrides the list that ``/v1/models`` gives.
        reply: content of a good reply, from the request's body.
        latency_s: service time of a chat request.
        slots: chat requests served at the same time; None is unlimited.
        fail_every: every n-th chat request gets a 500 (after its service time); 0 is never.
        api_key: required bearer token.
        tls: serve https with it.
    """

    def __init__(
        self,
        model: str = "judge-model",
        *,
        models: list[dict[str, Any]] | None = None,
        reply: Callable[[dict[str, Any]], str] = default_reply,
        latency_s: float = 0.0,
        slots: int | None = None,
        fail_every: int = 0,
        api_key: str = "",
        tls: ssl.SSLContext | None = None,
        port: int = 0,
    ):
        self.model = model
        self.models = models
        self.reply = reply
        self.latency_s = latency_s
        self.slots = slots
        self.fail_every = fail_every
        self.api_key = api_key
        self.port = port
        self.script: deque[Fault | None] = deque()
        self.always: Fault | None = None
        self.models_fault: Fault | None = None
        self.requests: list[dict[str, Any]] = []
        self.keep_requests = True
        self.counts: Counter[str] = Counter()
        self.scored: Counter[int] = Counter()
        self.on_request: Callable[[FaultServer], None] | None = None
        self._tls = tls
        self._changed = threading.Condition()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fault-server", daemon=True)
        self._runner: web.AppRunner | None = None
        self._transports: set[asyncio.Transport] = set()
        self._released: asyncio.Event | None = None
        self._semaphore: asyncio.Semaphore | None = None
        self._failed = 0

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        return f"{'https' if self._tls else 'http'}://{self.address}/v1"

    def __enter__(self) -> FaultServer:
        self._thread.start()
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def start(self) -> None:
        asyncio.run_coroutine_threadsafe(self._start(), self._loop).result()

    def stop(self) -> None:
        """Close the port and cut every connection, as a killed process does."""
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result()

    def release(self) -> None:
        """Let slow requests go on and hung ones end."""
        self._loop.call_soon_threadsafe(self._release_now)

    def wait_for(self, name: str, count: int, timeout_s: float = 30.0) -> None:
        """Block until ``counts[name]`` reached ``count``."""
        with self._changed:
            if not self._changed.wait_for(lambda: self.counts[name] >= count, timeout_s):
                raise AssertionError(f"waited for {count} x {name}, saw {dict(self.counts)}")

    def _count(self, name: str) -> None:
        with self._changed:
            self.counts[name] += 1
            self._changed.notify_all()

    async def _start(self) -> None:
        self._released = asyncio.Event()
        self._semaphore = asyncio.Semaphore(self.slots) if self.slots else None
        app = web.Application(client_max_size=64 * 2**20)
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/v1/chat/completions", self._chat)
        app.router.add_get("/stats", self._stats)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.01, handler_cancellation=True)
        await self._runner.setup()
        site = web.TCPSite(
            self._runner, "127.0.0.1", self.port, ssl_context=self._tls, reuse_address=True, backlog=1024
        )
        await site.start()
        self.port = site._server.sockets[0].getsockname()[1]

    async def _stop(self) -> None:
        if self._runner is None:
            return
        runner, self._runner = self._runner, None
        for site in list(runner.sites):
            await site.stop()
        for transport in list(self._transports):
            transport.abort()
        self._release_now()
        await runner.cleanup()

    def _release_now(self) -> None:
        released, self._released = self._released, asyncio.Event()
        released.set()

    async def _models(self, request: web.Request) -> web.StreamResponse:
        self._count("models")
        if refused := self._refuse_key(request):
            return refused
        if self.models_fault is not None:
            return await self._misbehave(self.models_fault, request, {})
        models = self.models if self.models is not None else [{"id": self.model, "object": "model", "root": self.model}]
        return web.json_response({"object": "list", "data": models})

    async def _stats(self, request: web.Request) -> web.StreamResponse:
        return web.json_response({"counts": dict(self.counts), "scored": dict(self.scored)})

    def _refuse_key(self, request: web.Request) -> web.Response | None:
        if self.api_key and request.headers.get("Authorization") != f"Bearer {self.api_key}":
            return _error(401, "Unauthorized")
        return None

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        self._transports.add(request.transport)
        try:
            return await self._serve(request)
        finally:
            self._transports.discard(request.transport)

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        asked = await request.json()
        if self.keep_requests:
            self.requests.append(asked)
        fault = self.script.popleft() if self.script else self.always
        number = self.counts["chat"] + 1
        self._count("chat")
        if self.on_request is not None:
            self.on_request(self)
        if refused := self._refuse_key(request):
            return refused
        if fault is None:
            if self._semaphore is not None:
                async with self._semaphore:
                    await asyncio.sleep(self.latency_s)
            elif self.latency_s:
                await asyncio.sleep(self.latency_s)
            if self.fail_every and number % self.fail_every == 0:
                fault = status(500, "every n-th call fails")
        if fault is not None:
            self._count(fault.kind)
            return await self._misbehave(fault, request, asked)
        if asked["model"] not in self._served():
            return _error(404, f"The model `{asked['model']}` does not exist.")
        self._count("ok")
        content = self.reply(asked)
        if found := _NUMBER.findall(asked["messages"][-1]["content"]):
            self.scored[int(found[-1])] += 1
        return web.json_response(completion(content, asked["model"]))

    def _served(self) -> set[str]:
        return {item["id"] for item in self.models} if self.models is not None else {self.model}

    async def _misbehave(self, fault: Fault, request: web.Request, asked: dict[str, Any]) -> web.StreamResponse:
        released = self._released
        if fault.kind == "status":
            return _error(fault.status, fault.message or "", fault.headers)
        if fault.kind == "text":
            return web.json_response(completion(fault.message, asked["model"], fault.finish_reason))
        if fault.kind == "body":
            return web.Response(text=fault.message, content_type="application/json")
        if fault.kind == "slow":
            await released.wait()
            return web.json_response(completion(self.reply(asked), asked["model"]))
        if fault.kind == "hang":
            await released.wait()
        if fault.kind in ("dribble", "short"):
            response = web.StreamResponse(headers={"Content-Type": "application/json", "Content-Length": "5000"})
            await response.prepare(request)
            await response.write(b'{"id": "x", "choices": [')
            if fault.kind == "dribble":
                await released.wait()
        request.transport.abort()
        raise asyncio.CancelledError


def completion(content: str | None, model: str, finish_reason: str = "stop") -> dict[str, Any]:
    message = {"role": "assistant", "content": content}
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": model,
        "choices": [{"index": 0, "message": message, "finish_reason": finish_reason}],
        "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
    }


def _error(code: int, message: str, headers: dict[str, str] | None = None) -> web.Response:
    return web.json_response({"error": {"message": message, "code": code}}, status=code, headers=headers)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    server = parser.add_argument_group("server")
    server.add_argument("--port", type=int, default=0, help="0: any free one (default)")
    server.add_argument("--latency", type=float, default=0.0, metavar="SECONDS", help="service time of a judgement")
    server.add_argument("--slots", type=int, default=None, metavar="N", help="judgements served at the same time")
    server.add_argument("--fail-every", type=int, default=0, metavar="N", help="every n-th judgement gets a 500")
    args = parser.parse_args()
    with FaultServer(
        latency_s=args.latency, slots=args.slots, fail_every=args.fail_every, port=args.port
    ) as fault_server:
        fault_server.keep_requests = False
        print(json.dumps({"address": fault_server.address}), flush=True)
        threading.Event().wait()


if __name__ == "__main__":
    main()
