"""The client: from a judgement to an outcome, over whatever the servers do. Belongs to one event loop.

The official ``openai`` client does the HTTP, over one pool of connections; its own retries are off, because a repeated
call must go to the next server and must fit in the judgement's deadline.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import random
import secrets
import ssl
import time
from collections import Counter
from collections.abc import Callable, Iterable
from email.utils import parsedate_to_datetime
from typing import Any

import aiohttp
import httpx2
import openai

from reward.utils.judge_cache import CACHED, MADE, AskOnceCache
from reward.utils.judge_config import JudgeConfig
from reward.utils.judge_types import SCORED, UNAVAILABLE, UNPARSED, JudgeOutcome, JudgeRequest, JudgeTrace, as_repeat
from reward.utils.prompt import JUDGE_PROMPTS, build_messages
from reward.utils.routes import RoutesFile, ServerSpec
from reward.utils.server import Lease, Server, ServerPool
from reward.utils.verdicts import VERDICT_PARSERS, Verdict, parse_reply

logger = logging.getLogger(__name__)

# Kinds of failure, as they appear in ``analysis`` and in the metrics.
CONNECTION, TIMEOUT, SERVER_ERROR = "connection", "timeout", "http_5xx"
RATE_LIMITED, AUTH, NOT_FOUND, MODEL_NOT_FOUND = "rate_limited", "auth", "not_found", "model_not_found"
BAD_REQUEST, CONTEXT_LENGTH = "bad_request", "context_length"
MALFORMED, UNREADABLE, TRUNCATED = "malformed", "unparsed", "truncated"
DEADLINE = "deadline"

_SHORTEST_FIELD_CHARS = 64
_DEFAULT_PAUSE_S = 1.0
_CONTEXT_HINTS = ("context length", "context_length", "maximum context", "max_model_len", "too long", "input tokens")


class CallFailed(Exception):
    """One call brought no usable reply. ``kind`` is one of the kinds above; ``detail`` is for the log."""

    def __init__(self, kind: str, detail: str, *, retry_after_s: float | None = None):
        super().__init__(f"{kind}: {detail}")
        self.kind = kind
        self.retry_after_s = retry_after_s


class JudgeClient:
    """Judges over a pool of servers.

    Args:
        config: all settings.
        servers: gives the current servers; default: the routes file that the settings name, re-read when it changes.
        clock: monotonic seconds, for deadlines in the pool and latencies.
        rng: jitter and turns.

    Raises:
        JudgeConfigError: the routes file is not usable.
    """

    def __init__(
        self,
        config: JudgeConfig,
        *,
        servers: Callable[[], Iterable[ServerSpec]] | None = None,
        clock: Callable[[], float] = time.monotonic,
        rng: random.Random | None = None,
    ):
        self._config = config
        self._clock = clock
        self._rng = rng or random.Random()
        self._secret = config.delimiter_seed.encode() or secrets.token_bytes(32)
        if servers is None:
            servers = RoutesFile(config.routes_file, config.model, clock=clock).servers
        self._http = _http_client(config)
        self.pool = ServerPool(config, servers, api_factory=self._make_api, clock=clock, rng=self._rng)
        self.cache: AskOnceCache[JudgeOutcome] = AskOnceCache(config.cache_size, lambda o: o.decision == SCORED)

    async def aclose(self) -> None:
        """Close all connections."""
        self.pool.close()
        await self._http.aclose()

    async def judge(self, request: JudgeRequest) -> JudgeOutcome:
        """Judge one answer. Servers' faults end in an outcome, never in an exception.

        Raises:
            KeyError: the task has no prompt or no parser.
        """
        if request.task not in JUDGE_PROMPTS or request.task not in VERDICT_PARSERS:
            raise KeyError(f"no judge for the task {request.task!r}: register a prompt and a reply parser")
        started = self._clock()
        outcome, source = await self.cache.get(_key(request), lambda: self._judge_once(request))
        if source == MADE:
            return outcome
        return as_repeat(outcome, latency_s=self._clock() - started, cached=source == CACHED or outcome.reward >= 0)

    async def discover(self, name: str) -> str:
        """Ask one server, by its name in the routes file, for the model it serves; CallFailed when it does not say.

        A model name that the routes file gives is not asked for.
        """
        server = next(server for server in self.pool.servers if server.name == name)
        return await self._served_model(server)

    async def _judge_once(self, request: JudgeRequest) -> JudgeOutcome:
        trace = JudgeTrace()
        started = self._clock()
        deadline = asyncio.timeout(self._config.deadline_s)
        try:
            async with deadline:
                decision, verdict = await self._ask_until_understood(request, trace)
        except TimeoutError:
            if not deadline.expired():
                raise
            trace.failures[DEADLINE] += 1
            trace.error = f"no verdict within {self._config.deadline_s:g} s; last failure: {trace.error or 'none'}"
            decision, verdict = UNAVAILABLE, None
        latency_s = self._clock() - started
        if verdict is None:
            return trace.outcome(decision, latency_s=latency_s)
        return trace.outcome(decision, latency_s=latency_s, reward=verdict.reward, verdict=verdict.value)

    async def _ask_until_understood(self, request: JudgeRequest, trace: JudgeTrace) -> tuple[str, Verdict | None]:
        """(decision, verdict or None). Goes on over server failures until the deadline around it ends it."""
        config = self._config
        tries: Counter[str] = Counter()
        last_server = ""
        misunderstood = refused = failed = 0
        cap = config.max_field_chars
        while True:
            messages = build_messages(request, secret=self._secret, max_field_chars=cap)
            try:
                async with self.pool.lease(tries, last_server) as lease:
                    last_server = lease.server.name
                    tries[last_server] += 1
                    reply, cut_off = await self._call(lease, messages, trace)
            except CallFailed as failure:
                trace.failures[failure.kind] += 1
                trace.error = f"{last_server}: {failure}"
                kind = failure.kind
            else:
                trace.server, trace.reply = last_server, reply
                if (verdict := parse_reply(request.task, reply)) is not None:
                    trace.error = ""
                    return SCORED, verdict
                kind = TRUNCATED if cut_off else UNREADABLE
                trace.failures[kind] += 1
                trace.error = f"{last_server}: the reply holds no verdict" + (
                    f"; it was cut off at JUDGE_MAX_TOKENS={config.max_tokens}" if cut_off else ""
                )

            if kind in (MALFORMED, UNREADABLE, TRUNCATED):
                misunderstood += 1
                if misunderstood >= config.parse_tries:
                    return UNPARSED, None
            elif kind == CONTEXT_LENGTH and cap > _SHORTEST_FIELD_CHARS:
                # An answer of rare characters may need several tokens each; dropping it would reward writing such.
                longest = max(len(value) for value in _texts(request))
                cap = max(_SHORTEST_FIELD_CHARS, min(cap, longest) // 2)
                last_server = ""
            elif kind in (BAD_REQUEST, CONTEXT_LENGTH):
                refused += 1
                if refused >= config.parse_tries:
                    return UNAVAILABLE, None
            else:
                failed += 1
                await asyncio.sleep(self._backoff_s(failed))

    def _backoff_s(self, failed: int) -> float:
        longest = min(self._config.backoff_max_s, self._config.backoff_base_s * 2.0 ** min(failed - 1, 30))
        return longest * self._rng.uniform(0.5, 1.0)

    async def _call(self, lease: Lease, messages: list[dict[str, str]], trace: JudgeTrace) -> tuple[str, bool]:
        """One call to one server: (reply, whether it was cut off). Tells the lease how the server did.

        Raises:
            CallFailed: no usable reply.
        """
        server = lease.server
        limit = asyncio.timeout(self._config.try_timeout_s)
        try:
            async with limit:
                model = await self._served_model(server)
                trace.calls += 1
                completion = await server.api.chat.completions.create(
                    model=model, messages=messages, **self._sampling()
                )
            reply = _read_completion(completion)
        except CallFailed as failure:
            self._tell(lease, failure)
            raise
        except Exception as error:
            if isinstance(error, TimeoutError) and limit.expired():
                failure = CallFailed(TIMEOUT, f"no reply within {self._config.try_timeout_s:g} s")
            else:
                failure = classify(error)
            self._tell(lease, failure)
            raise failure from error
        lease.succeeded()
        return reply

    def _sampling(self) -> dict[str, Any]:
        config = self._config
        options: dict[str, Any] = {
            "temperature": config.temperature,
            "top_p": config.top_p,
            "max_tokens": config.max_tokens,
            "stream": False,
        }
        if config.enable_thinking != "auto":
            options["extra_body"] = {"chat_template_kwargs": {"enable_thinking": config.enable_thinking == "1"}}
        return options

    def _tell(self, lease: Lease, failure: CallFailed) -> None:
        """What a failed call says about its server. What an answer provokes (a 400) must not take a server out."""
        if failure.kind in (BAD_REQUEST, CONTEXT_LENGTH):
            lease.succeeded()
            return
        pause = failure.retry_after_s
        if failure.kind == RATE_LIMITED:
            lease.succeeded()
            lease.pause(min(self._config.retry_after_max_s, _DEFAULT_PAUSE_S if pause is None else pause))
            return
        if pause is not None:
            lease.pause(min(self._config.retry_after_max_s, pause))
        lease.failed(str(failure), at_once=failure.kind in (AUTH, NOT_FOUND, MODEL_NOT_FOUND))

    # -- the model that a server serves ---------------------------------------------------------------------------

    async def _served_model(self, server: Server) -> str:
        """The served model name; asked for once per server, by one caller for all."""
        if server.model:
            return server.model
        if server.discovery is None:
            server.discovery = asyncio.ensure_future(self._discover(server))
            server.discovery.add_done_callback(lambda task: _end_discovery(server, task))
        return await asyncio.shield(server.discovery)

    async def _discover(self, server: Server) -> str:
        limit_s = self._config.discovery_timeout_s
        try:
            async with asyncio.timeout(limit_s):
                page = await server.api.models.list()
        except TimeoutError as error:
            raise CallFailed(TIMEOUT, f"{server.spec.base_url}/models did not answer within {limit_s:g} s") from error
        except Exception as error:
            raise classify(error) from error
        server.model = pick_served_model(self._config.model, getattr(page, "data", None), server.name)
        return server.model

    def _make_api(self, spec: ServerSpec) -> openai.AsyncOpenAI:
        key = os.environ.get(spec.api_key_env, "").strip() if spec.api_key_env else ""
        return openai.AsyncOpenAI(
            base_url=spec.base_url,
            api_key=key or "none",
            http_client=self._http,
            max_retries=0,
            timeout=_timeout(self._config),
        )


def _end_discovery(server: Server, task: asyncio.Task[str]) -> None:
    server.discovery = None
    if not task.cancelled():
        # Looked at here, so that asyncio does not complain when every caller was cancelled meanwhile.
        task.exception()


def pick_served_model(wanted: str, listed: Any, server: str) -> str:
    """Which of a server's models judges: the one of that name, of that path's last part, or the only one.

    Raises:
        CallFailed: none can be told, or the list is no list of models.
    """
    if not isinstance(listed, list) or not all(isinstance(getattr(item, "id", None), str) for item in listed):
        raise CallFailed(MALFORMED, "the server's list of models cannot be read")
    ids = [item.id for item in listed]
    if wanted in ids:
        return wanted
    last_part = wanted.rstrip("/").rpartition("/")[2].lower()
    for item in listed:
        names = [item.id, getattr(item, "root", None)]
        if any(isinstance(name, str) and name.rstrip("/").rpartition("/")[2].lower() == last_part for name in names):
            return item.id
    # vLLM lists LoRA adapters beside their base model, with a parent.
    base = [item.id for item in listed if not getattr(item, "parent", None)]
    if len(base) == 1:
        logger.warning("judge server %s serves %r, which the routes file calls %r", server, base[0], wanted)
        return base[0]
    raise CallFailed(
        MODEL_NOT_FOUND,
        f'it serves {", ".join(ids) or "nothing"}, not {wanted}; name one with "model" in the routes file',
    )


def classify(error: Exception) -> CallFailed:
    """The kind of failure behind an exception of the openai client.

    The client does not check the shape of a reply before it works on it: a body of another shape ends in an
    AttributeError, a TypeError and the like from inside it, so what is not known by its class is a malformed reply.
    """
    if isinstance(error, CallFailed):
        return error
    lost = _lost_connection(error)
    if lost is not None:
        return CallFailed(CONNECTION, f"{type(lost).__name__}: {lost}")
    if isinstance(error, openai.APITimeoutError | TimeoutError):
        return CallFailed(TIMEOUT, "the connection did not open or the server went silent")
    if isinstance(error, openai.APIStatusError):
        return _classify_status(error)
    if isinstance(error, openai.APIConnectionError):
        cause = error.__cause__
        return CallFailed(CONNECTION, f"{type(cause).__name__}: {cause}" if cause else str(error))
    return CallFailed(MALFORMED, f"the reply cannot be read: {type(error).__name__}: {error}")


def _lost_connection(error: Exception) -> aiohttp.ClientConnectionError | None:
    """The aiohttp error behind an exception when a connection was refused or cut.

    On its way through the openai client a cut connection becomes a timeout; only the cause tells them apart.
    """
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, aiohttp.ClientConnectionError):
            return None if isinstance(cause, TimeoutError) else cause
        cause = cause.__cause__
    return None


def _classify_status(error: openai.APIStatusError) -> CallFailed:
    status, message = error.status_code, " ".join(str(error.message).split())[:300]
    lowered = message.lower()
    if status == 429:
        kind = RATE_LIMITED
    elif status in (401, 403):
        kind, message = AUTH, f"{message}; check the server's api_key_env in the routes file"
    elif status == 404:
        kind = MODEL_NOT_FOUND if "model" in lowered else NOT_FOUND
    elif status == 413 or (status in (400, 422) and any(hint in lowered for hint in _CONTEXT_HINTS)):
        kind = CONTEXT_LENGTH
    elif status in (400, 422):
        kind = BAD_REQUEST
    elif status >= 500 or status in (408, 409, 425):
        kind = SERVER_ERROR
    else:
        kind = NOT_FOUND
    return CallFailed(kind, f"HTTP {status}: {message}", retry_after_s=_retry_after_s(error.response.headers))


def _retry_after_s(headers: Any) -> float | None:
    """Seconds from ``retry-after-ms`` or ``Retry-After`` (a number or an HTTP date); None when absent or unreadable."""
    try:
        if "retry-after-ms" in headers:
            seconds = float(headers["retry-after-ms"]) / 1000.0
        elif "retry-after" not in headers:
            return None
        elif headers["retry-after"].strip().replace(".", "", 1).isdigit():
            seconds = float(headers["retry-after"])
        else:
            seconds = parsedate_to_datetime(headers["retry-after"]).timestamp() - time.time()
    except (ValueError, OverflowError):
        return None
    return seconds if 0.0 <= seconds < float("inf") else None


def _read_completion(completion: Any) -> tuple[str, bool]:
    """(text, whether it was cut off); CallFailed when the body is no chat completion with a choice.

    The openai client does not validate what it parses: any level may be missing or of another type.
    """
    choices = getattr(completion, "choices", None)
    if not isinstance(choices, list) or not choices:
        raise CallFailed(MALFORMED, "the reply has no choices")
    message = getattr(choices[0], "message", None)
    content = getattr(message, "content", None)
    if message is None or not isinstance(content, str | None):
        raise CallFailed(MALFORMED, "the reply's choice has no message")
    # None: a thinking model that spent all its tokens before the answer.
    return content or "", getattr(choices[0], "finish_reason", None) == "length"


def _texts(request: JudgeRequest) -> tuple[str, ...]:
    return request.response, request.reference, request.question, request.source_lang_text, request.target_lang


def _key(request: JudgeRequest) -> bytes:
    digest = hashlib.blake2b(digest_size=16)
    for value in (request.task, *_texts(request)):
        data = value.encode("utf-8", "surrogatepass")
        digest.update(len(data).to_bytes(8, "big"))
        digest.update(data)
    return digest.digest()


def _timeout(config: JudgeConfig) -> httpx2.Timeout:
    return httpx2.Timeout(config.try_timeout_s, connect=config.connect_timeout_s, pool=None)


def _http_client(config: JudgeConfig) -> openai.DefaultAioHttpClient:
    """The openai client's aiohttp transport.

    Its default one searches its whole pool for every call: 7 ms of processor time a call with 128 in flight, against 3.
    """
    for name in ("httpx2", "openai"):
        # They log every request at INFO.
        if logging.getLogger(name).level == logging.NOTSET:
            logging.getLogger(name).setLevel(logging.WARNING)
    cafile = os.environ.get("SSL_CERT_FILE")
    return openai.DefaultAioHttpClient(
        # 0 is aiohttp's word for no limit: slots per server bound the connections. Idle ones go before uvicorn's 5 s
        # keep-alive closes them under us.
        limits=httpx2.Limits(max_connections=0, keepalive_expiry=4.0),
        timeout=_timeout(config),
        trust_env=config.use_proxy,
        verify=ssl.create_default_context(cafile=cafile) if cafile else True,
    )
