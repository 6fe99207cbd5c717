"""E4: a resumed run samples the answers that the uninterrupted one would have sampled.

Symptom without it: vLLM draws from one random stream that starts anew with the engine, so the first step after a resume gets
other answers. Upstream's own switch (``rollout.full_determinism``) gives every request the same seed, and all answers of a
prompt come out alike.
Upstream: ``AgentLoopWorker._run_agent_loop``, which every agent loop of verl goes through. Process: agent-loop workers. Goes
when upstream seeds requests by step and sample.
"""

from __future__ import annotations

import functools
import hashlib
import os
from typing import Any

from verl_hyocr.registry import Step, mark, resolve

MODULE = "verl.experimental.agent_loop.agent_loop"
SYMBOL = "AgentLoopWorker._run_agent_loop"
SEED_ENV = "HYOCR_ROLLOUT_SEED"
"""Seed of the run's sampling; unset or empty: vLLM draws as upstream has it."""


def derive(seed: str, *parts: Any) -> int:
    """A 48-bit seed from the run's seed and what tells a request from the others."""
    text = "/".join(str(part) for part in (seed, *parts))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:6], "big")


def _apply(module) -> None:
    original = resolve(module, SYMBOL)

    @functools.wraps(original)
    async def _run_agent_loop(self, sampling_params, trajectory, **kwargs):
        seed = os.environ.get(SEED_ENV, "")
        if seed:
            request = [trajectory[name] for name in ("validate", "step", "sample_index")]
            request.append(kwargs.get("session_id", trajectory["rollout_n"]))
            sampling_params = {**sampling_params, "seed": derive(seed, *request)}
        return await original(self, sampling_params, trajectory, **kwargs)

    module.AgentLoopWorker._run_agent_loop = mark(_run_agent_loop, "E4")


STEPS = [Step("E4", MODULE, _apply, ((MODULE, SYMBOL),), "seeded sampling")]
