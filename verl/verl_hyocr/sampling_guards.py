"""B6: vision control tokens and bad words never appear in answers, and both sides normalise over the same tokens.

The tokens that mark images in a prompt are ordinary entries of the vocabulary; an answer with one in it breaks whatever
pairs images with placeholders. verl bars the image placeholder in the rollout only. Here all six tokens get a bias of -1e9,
in the rollout engine *and* in the actor and reference: log-probs of all of them are those of the policy that really samples,
so rollout log-probs, importance ratios, KL and entropy stay exact however much probability the model itself gives to a
barred token. The actor also leaves out the entries past the tokenizer's end, which verl bars in the rollout.

The driver resolves the setting once (:func:`resolve`), workers get it as ``HYOCR_LOGIT_BIAS`` (:func:`from_environment`).
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

ENV = "HYOCR_LOGIT_BIAS"
DEFAULT_BIAS = -1e9
HIGHEST_BIAS = -1000.0
AGENT_LOOP = "hyocr_single_turn"
AGENT_LOOPS = str(Path(__file__).parent / "configs" / "agent_loops.yaml")
SEQUENCES = "bad_word_sequences"
"""Key in ``rollout.custom`` through which the agent loop gets bad words of several tokens."""
CONTROL_TOKENS = {
    "image_start_token_id": "im_start_id",
    "image_end_token_id": "im_end_id",
    "image_token_id": "image_token_id",
    "image_newline_token_id": "im_newline_id",
    "video_start_id": "video_start_id",
    "video_end_id": "video_end_id",
}
"""Keys of the released config.json, and the older names that it has as well."""


class GuardError(ValueError):
    """The sampling guards cannot be set up as asked; the message says why and what to do."""


def control_token_ids(model_config: Mapping[str, Any]) -> list[int]:
    """Ids of the six vision control tokens of a HunYuanVL ``config.json``.

    Raises:
        GuardError: naming the keys that are missing.
    """
    places = [model_config, model_config.get("text_config") or {}]
    found = {}
    for name, older in CONTROL_TOKENS.items():
        values = [place[key] for place in places for key in (name, older) if isinstance(place.get(key), int)]
        if values:
            found[name] = values[0]
    missing = [name for name in CONTROL_TOKENS if name not in found]
    if missing:
        raise GuardError(
            f"config.json of the model has no {', '.join(missing)}, so its vision control tokens cannot be barred. Use the "
            "released config.json, or set ADD_VISION_LOGIT_BIAS=False."
        )
    return sorted(set(found.values()))


@dataclass
class LogitBias:
    """A bias for some tokens, the same in rollout, actor and reference.

    Attributes:
        token_ids: biased entries of the vocabulary.
        value: what is added to their logits; -1e9 leaves a probability of exactly 0.
    """

    token_ids: list[int]
    value: float
    _index: torch.Tensor | None = field(default=None, repr=False)

    def apply(self, logits: torch.Tensor, known_tokens: int | None = None) -> torch.Tensor:
        """Add the bias to ``logits`` (..., V) in place and return them.

        A constant changes no derivative and the layer that made the logits does not keep them, so this goes past autograd and
        costs no memory. The bias is finite: with -inf the entropy's ``p * logit`` would be NaN.

        Args:
            known_tokens: entries from this one on are barred too (the vocabulary is padded beyond the tokenizer).
        """
        if self._index is None or self._index.device != logits.device:
            self._index = torch.tensor(self.token_ids, dtype=torch.long, device=logits.device)
        value = max(self.value, torch.finfo(logits.dtype).min / 16)
        plain = logits.detach()
        plain[..., self._index] += value
        if known_tokens is not None and known_tokens < plain.shape[-1]:
            plain[..., known_tokens:] += value
        return logits

    def install(self, output_layer: torch.nn.Module, known_tokens: int | None = None) -> None:
        """Bias whatever ``output_layer`` returns from now on."""
        output_layer.register_forward_hook(lambda _module, _inputs, logits: self.apply(logits, known_tokens))

    def dumps(self) -> str:
        return json.dumps({"token_ids": self.token_ids, "value": self.value})


def from_environment() -> LogitBias | None:
    """The bias that the driver resolved for this run; None when the guards are off."""
    text = os.environ.get(ENV, "").strip()
    if not text:
        return None
    parts = json.loads(text)
    return LogitBias([int(one) for one in parts["token_ids"]], float(parts["value"]))


@dataclass(frozen=True)
class Guards:
    """What :func:`resolve` found.

    Attributes:
        bias: for all sides; None when there is nothing to bar.
        sequences: bad words of several tokens, which only the rollout can bar (its log-probs are then those of what is left,
            while the actor's are those of the whole vocabulary, at the positions where such a word was about to be finished).
    """

    bias: LogitBias | None
    sequences: list[str]


def resolve(custom: Mapping[str, Any], model_config: Mapping[str, Any], load_tokenizer) -> Guards:
    """Settings of ``actor_rollout_ref.rollout.custom`` -> what is barred.

    Args:
        custom: ``add_vision_logit_bias`` (default True), ``vision_logit_bias_value`` (default -1e9), ``bad_words`` (strings).
        model_config: content of config.json.
        load_tokenizer: called without arguments when there are bad words.

    Raises:
        GuardError: for values that cannot be used.
    """
    value = custom.get("vision_logit_bias_value", DEFAULT_BIAS)
    try:
        value = DEFAULT_BIAS if value is None else float(value)
    except (TypeError, ValueError) as error:
        raise GuardError(f"vision_logit_bias_value must be a number, got {value!r}") from error
    if not value <= HIGHEST_BIAS:
        raise GuardError(
            f"vision_logit_bias_value={value:g} is no bar: set it to {HIGHEST_BIAS:g} or below (the default is "
            f"{DEFAULT_BIAS:g}), or switch the guard off with add_vision_logit_bias=False."
        )
    on = custom.get("add_vision_logit_bias", True)
    if not isinstance(on, bool):
        raise GuardError(f"add_vision_logit_bias must be True or False, got {on!r}")
    ids = set(control_token_ids(model_config)) if on else set()
    words = custom.get("bad_words") or []
    if isinstance(words, str) or not all(isinstance(word, str) and word.strip() for word in words):
        raise GuardError(f"bad_words must be a list of strings that are not blank, got {words!r}")
    sequences = []
    tokenizer = load_tokenizer() if words else None
    for word in words:
        # vLLM's rule: a word stands for itself and, where that is as long, for itself after a blank.
        plain, spaced = (tokenizer.encode(p + word.lstrip(), add_special_tokens=False) for p in ("", " "))
        if len(plain) > 1:
            sequences.append(word)
        else:
            ids.update(plain + (spaced if len(spaced) == 1 else []))
    return Guards(LogitBias(sorted(ids), value) if ids else None, sequences)


def config_defaults(config, model_config: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration keys that carry out ``rollout.custom``'s guards in a run, to be set in the driver.

    Raises:
        GuardError: for values that cannot be used.
    """
    from omegaconf import OmegaConf

    rollout = "actor_rollout_ref.rollout"
    custom = OmegaConf.select(config, f"{rollout}.custom")

    def load_tokenizer():
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(OmegaConf.select(config, "actor_rollout_ref.model.path"))

    guards = resolve(OmegaConf.to_container(custom, resolve=True) if custom else {}, model_config, load_tokenizer)
    # Always set, so that a value exported by hand cannot reach only one side.
    wanted = {f"ray_kwargs.ray_init.runtime_env.env_vars.{ENV}": guards.bias.dumps() if guards.bias else ""}
    if not guards.sequences:
        return wanted
    loop, path = (
        OmegaConf.select(config, f"{rollout}.agent.{key}") for key in ("default_agent_loop", "agent_loop_config_path")
    )
    if loop not in ("single_turn_agent", AGENT_LOOP) or (path not in (None, AGENT_LOOPS) and loop != AGENT_LOOP):
        raise GuardError(
            f"bad_words of several tokens ({', '.join(guards.sequences)}) are barred by the agent loop {AGENT_LOOP}, but the "
            f"run uses its own (default_agent_loop={loop}, agent_loop_config_path={path}). Derive your loop from "
            "verl_hyocr.agent_loop.HyocrAgentLoop and name it so in your file, or leave these words out."
        )
    return wanted | {
        f"{rollout}.custom.{SEQUENCES}": guards.sequences,
        f"{rollout}.agent.default_agent_loop": AGENT_LOOP,
        f"{rollout}.agent.agent_loop_config_path": path or AGENT_LOOPS,
    }
