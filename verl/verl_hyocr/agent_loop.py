"""B6: bad words of several tokens, which depend on what was sampled before, are barred per request.

Upstream seam: ``rollout.agent.agent_loop_config_path`` and ``default_agent_loop``; used only when there are such words
(``sampling_guards.py`` bars single tokens without it). Process: agent-loop workers.
"""

from __future__ import annotations

from typing import Any

from verl.experimental.agent_loop.single_turn_agent_loop import SingleTurnAgentLoop

from verl_hyocr.sampling_guards import SEQUENCES


class HyocrAgentLoop(SingleTurnAgentLoop):
    """One answer per prompt, like upstream's loop, for training and validation; vLLM never finishes a bad word in it."""

    async def run(self, sampling_params: dict[str, Any], **kwargs):
        words = list((self.rollout_config.custom or {}).get(SEQUENCES) or [])
        return await super().run({**sampling_params, "bad_words": words}, **kwargs)
