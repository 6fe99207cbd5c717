"""B2: what RLLoggingBoard reads. Samples of a training step become one JSON object each; nothing here touches verl or a disk.

The UI builds a column per field and step and indexes all of them by the sample's number, so a field is in every row of a step
or in none. It breaks on null and NaN, on prompts that are no string, and when ``logprobs`` and ``ref_logprobs`` differ in
length; it renders text as HTML. It also derives ``kl``, ``log_ratio``, ``probs`` and their sums from the two lists of
log-probs and appends them to columns of these names: a row that brought its own would shift them, hence ``token_kl``.
"""

from __future__ import annotations

import codecs
import html
import json
import math
import os
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

DROPPED_REWARD = 0.0
"""What the UI shows for a sample without a score; the scorer's own value stays in ``scores``."""

_LINE_BREAKS = {ord(character): f"\\u{ord(character):04x}" for character in "\x85\u2028\u2029"}
_FALSE, _TRUE = ("0", "false", "no", "off"), ("1", "true", "yes", "on")


@dataclass(frozen=True)
class BoardSettings:
    """What is written.

    Attributes:
        enabled: whether anything is.
        every: write steps divisible by this.
        max_samples: rows of a step, at most; 0: all.
        max_response_tokens: tokens of an answer that are written, at most; 0: all.
        file_suffix: part of the file name before ``.jsonl``.
    """

    enabled: bool = True
    every: int = 1
    max_samples: int = 128
    max_response_tokens: int = 2048
    file_suffix: str = ""

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None) -> BoardSettings:
        """From ``RLB_ENABLE``, ``RLB_EVERY``, ``RLB_MAX_SAMPLES``, ``RLB_MAX_RESPONSE_TOKENS`` and ``RLB_FILE_SUFFIX``;
        unset or empty ones take the default.

        Raises:
            ValueError: naming the variable.
        """
        environ = os.environ if environ is None else environ
        values: dict[str, Any] = {}
        text = environ.get("RLB_ENABLE", "").strip().lower()
        if text and text not in (*_FALSE, *_TRUE):
            raise ValueError(f"RLB_ENABLE={text!r} must be 1 or 0")
        if text:
            values["enabled"] = text in _TRUE
        for name, least in (("every", 1), ("max_samples", 0), ("max_response_tokens", 0)):
            variable = f"RLB_{name.upper()}"
            text = environ.get(variable, "").strip()
            if not text:
                continue
            if not re.fullmatch(r"\d+", text, re.A) or int(text) < least:
                raise ValueError(f"{variable}={text!r} must be a whole number, {least} or more")
            values[name] = int(text)
        suffix = environ.get("RLB_FILE_SUFFIX", "").strip()
        if not re.fullmatch(r"[\w.-]*", suffix, re.A):
            raise ValueError(f"RLB_FILE_SUFFIX={suffix!r} may hold letters, digits, '_', '-' and '.' only")
        return cls(**values, file_suffix=suffix)

    def wants(self, step: int) -> bool:
        return self.enabled and step % self.every == 0

    def file_name(self, step: int) -> str:
        return f"step_{step}{self.file_suffix}.jsonl"


@dataclass
class Sample:
    """One answer as the trainer knows it.

    Attributes:
        uid: its prompt; answers of one group share it.
        session: its number within the group.
        index: its number within a session of several rows; the last one carries the score.
        response: token ids of the answer, possibly only its beginning.
        response_length: number of tokens of the whole answer.
        last_token: id of the whole answer's last token; -1 when it has none.
        limit: tokens the answer could have at most; 0 when unknown.
        reward: what was trained on.
        token_values: UI field -> one number per token of ``response``.
        scores: what the reward function returned.
        messages: the prompt as a chat, images as content parts; None when it is not at hand.
        prompt: token ids of the prompt.
        drop_reason: why it was left out of the update; empty when it was not.
    """

    uid: str
    session: int
    response: np.ndarray
    reward: float
    index: int = 0
    response_length: int = 0
    last_token: int = -1
    limit: int = 0
    token_values: dict[str, np.ndarray] = field(default_factory=dict)
    scores: Mapping[str, Any] = field(default_factory=dict)
    messages: Sequence[Mapping[str, Any]] | None = None
    prompt: Sequence[int] = ()
    data_source: str = ""
    extra_info: Mapping[str, Any] = field(default_factory=dict)
    ground_truth: Any = None
    drop_reason: str = ""


def choose_groups(sizes: Mapping[str, int], tasks: Mapping[str, str], limit: int) -> list[str]:
    """Groups to write when a step has more samples than fit: whole ones, taking turns between the tasks.

    Args:
        sizes: uid -> number of samples, in order of preference.
        tasks: uid -> task.
        limit: number of samples; the last group may exceed it. 0: no limit.
    """
    queues: dict[str, list[str]] = defaultdict(list)
    for uid in sizes:
        queues[tasks.get(uid, "")].append(uid)
    turns = sorted(
        ((turn, number, uid) for number, queue in enumerate(queues.values()) for turn, uid in enumerate(queue)),
    )
    chosen: list[str] = []
    room = limit
    for _, _, uid in turns:
        if limit and room <= 0:
            break
        chosen.append(uid)
        room -= sizes[uid]
    return chosen


def ui_rows(
    step: int, samples: Iterable[Sample], tokenizer: Any, settings: BoardSettings, reference: bool = False
) -> list[dict[str, Any]]:
    """The rows of a step, groups together, every row with the same fields.

    Args:
        step: number of the training step.
        samples: whole groups; group statistics are taken over those that were trained on.
        reference: whether the run has a reference policy, for steps of which no sample reached it.
    """
    samples = list(samples)
    order = {uid: number for number, uid in enumerate(dict.fromkeys(sample.uid for sample in samples))}
    samples.sort(key=lambda sample: (order[sample.uid], sample.session, sample.index))
    groups = _trained_rewards(samples)
    present = {name for sample in samples for name in sample.token_values}
    optional = [name for name in ("values", "rollout_logprobs") if name in present]
    if reference or "ref_logprobs" in present:
        optional += ["ref_logprobs", "token_kl"]
    to_text, gap = TokenText(tokenizer), _mean_log_ratio(samples)
    limit = settings.max_samples or len(samples)
    return [_row(step, sample, groups[sample.uid], to_text, settings, optional, gap) for sample in samples[:limit]]


def encode(rows: Iterable[Mapping[str, Any]]) -> bytes:
    """JSON lines in UTF-8, on one line each whatever a reader takes for a line break. NaN and infinity raise."""
    lines = (json.dumps(row, ensure_ascii=False, allow_nan=False) for row in rows)
    return "".join(f"{line.translate(_LINE_BREAKS)}\n" for line in lines).encode("utf-8", "replace")


def _row(
    step: int,
    sample: Sample,
    rewards: list[float],
    to_text: TokenText,
    settings: BoardSettings,
    optional: list[str],
    gap: float,
) -> dict[str, Any]:
    length = max(sample.response_length, len(sample.response))
    shown = min(length, settings.max_response_tokens or length, len(sample.response))
    ids = [int(token) for token in sample.response[:shown]]
    pieces, response = to_text(ids, is_whole=shown == length)
    if shown < length:
        response += f" … [+{length - shown} tokens]"
    non_finite: list[str] = []

    def finite(name: str, values: Any) -> list[float]:
        array = np.asarray(values, dtype=np.float64)
        if not np.isfinite(array).all():
            non_finite.append(name)
            array = np.where(np.isfinite(array), array, 0.0)
        return [float(f"{value:.7g}") for value in array.tolist()]

    dropped = bool(sample.drop_reason)
    reward = DROPPED_REWARD if dropped else finite("reward", [sample.reward])[0]
    tokens = _token_values(sample, max(shown, 1), gap)
    lists = {
        name: finite(name, tokens[name])
        for name in ("logprobs", "token_rewards", "reward_tokens", "advantages", *optional)
    }
    paths = image_paths(sample.messages, sample.extra_info)
    scores = {str(name): _plain(value) for name, value in sample.scores.items()}
    task = sample.extra_info.get("task_type") or scores.get("task") or sample.data_source
    return {
        "step": int(step),
        "uid": sample.uid,
        "session": sample.session,
        "prompt": escape(
            prompt_text(sample.messages) if sample.messages is not None else to_text.prompt(sample.prompt)
        ),
        "response": escape(response),
        "reward": reward,
        "ground_truth": escape(_as_text(sample.ground_truth)),
        "dropped": dropped,
        "drop_reason": sample.drop_reason,
        "data_source": str(sample.data_source),
        "task_type": str(task),
        "scores": scores,
        "group_size": len(rewards),
        "group_mean": finite("group_mean", [np.mean(rewards) if rewards else 0.0])[0],
        "group_std": finite("group_std", [np.std(rewards, ddof=1) if len(rewards) > 1 else 0.0])[0],
        "group_rank": 0 if dropped else 1 + sum(other > reward for other in rewards),
        "response_length": length,
        "truncated": 0 < sample.limit <= length and sample.last_token != to_text.end,
        "img_path": paths[0] if paths else "",
        "img_paths": paths,
        "image_path": paths[0] if paths else "",
        # An answer without tokens gets an empty one: the UI looks at the last token.
        "response_tokens": [escape(piece) for piece in pieces] or [""],
        **lists,
        "non_finite": non_finite,
    }


def _token_values(sample: Sample, length: int, gap: float) -> dict[str, np.ndarray]:
    """All per-token fields, (length,) each.

    A dropped sample was seen by the rollout only: its log-probs are the rollout's. The reference's lie ``gap`` below them,
    the mean of the step's other samples: so the UI's KL curve stays where it is, and keeps the step. (The UI leaves out
    steps in which one sample's mean log ratio is exactly 0.)
    """

    def fit(values: Any) -> np.ndarray:
        array = np.zeros(length)
        found = np.asarray(values, dtype=np.float64)[:length]
        array[: len(found)] = found
        return array

    own, nothing = sample.token_values, np.zeros(0)
    logprobs = fit(own.get("logprobs", own.get("rollout_logprobs", nothing)))
    ref_logprobs = fit(own["ref_logprobs"]) if "ref_logprobs" in own else logprobs - gap
    scores = nothing if sample.drop_reason else own.get("reward_tokens", nothing)
    rewards = nothing if sample.drop_reason else own.get("token_rewards", scores)
    return {
        "logprobs": logprobs,
        "ref_logprobs": ref_logprobs,
        "rollout_logprobs": fit(own.get("rollout_logprobs", nothing)),
        "values": fit(own.get("values", nothing)),
        "advantages": fit(own.get("advantages", nothing)),
        "token_rewards": fit(rewards),
        "reward_tokens": fit(scores),
        "token_kl": kl_of_tokens(logprobs, ref_logprobs) if "ref_logprobs" in own else fit(nothing),
    }


def kl_of_tokens(logprobs: np.ndarray, ref_logprobs: np.ndarray) -> np.ndarray:
    """Per-token estimate k3 of KL(policy || reference), >= 0, with the clamps of verl's ``low_var_kl``.

    Schulman, "Approximating KL Divergence" (2020).
    """
    log_ratio = np.clip(ref_logprobs - logprobs, -20.0, 20.0)
    return np.clip(np.exp(log_ratio) - log_ratio - 1.0, -10.0, 10.0)


def _mean_log_ratio(samples: Iterable[Sample]) -> float:
    """Mean over samples of the mean over tokens of log policy - log reference; 0 when no sample reached both."""
    means = []
    for sample in samples:
        both = [sample.token_values.get(name, ()) for name in ("logprobs", "ref_logprobs")]
        if len(both[0]) and len(both[0]) == len(both[1]):
            means.append(float(np.mean(both[0] - both[1], dtype=np.float64)))
    means = [mean for mean in means if math.isfinite(mean)]
    return float(np.mean(means)) if means else 0.0


def _trained_rewards(samples: Sequence[Sample]) -> dict[str, list[float]]:
    """uid -> finite rewards of the sessions that were trained on."""
    last: dict[tuple[str, int], Sample] = {(sample.uid, sample.session): sample for sample in samples}
    rewards: dict[str, list[float]] = {sample.uid: [] for sample in samples}
    for (uid, _), sample in last.items():
        if not sample.drop_reason and math.isfinite(sample.reward):
            rewards[uid].append(float(sample.reward))
    return rewards


# ------------------------------------------------------------------------------------------------------------ text


def escape(text: str) -> str:
    """Text for a UI that renders it as HTML; quotes stay, since no attribute is made of it."""
    return html.escape(text, quote=False)


def prompt_text(messages: Iterable[Mapping[str, Any]]) -> str:
    """A chat as one string, images as ``<image>``; roles are named when there is more than the user's one turn."""
    turns = [(str(message.get("role", "")), _content_text(message.get("content"))) for message in messages]
    if len(turns) == 1:
        return turns[0][1]
    return "\n".join(f"{role}: {text}" for role, text in turns)


def _content_text(content: Any) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    parts = []
    for part in content:
        kind = part.get("type") if isinstance(part, Mapping) else None
        parts.append(str(part.get("text", "")) if kind == "text" else f"<{kind}>" if kind else str(part))
    return "".join(parts)


def image_paths(messages: Iterable[Mapping[str, Any]] | None, extra_info: Mapping[str, Any]) -> list[str]:
    """Where the images of a prompt are. Images without a path (bytes, decoded pictures) are left out, unless
    ``extra_info["img_path"]`` names them."""
    parts = [
        part
        for message in messages or ()
        if not isinstance(message.get("content"), str | None)
        for part in message["content"]
        if isinstance(part, Mapping) and part.get("type") == "image"
    ]
    found = [part.get("image") if isinstance(part.get("image"), str) else part.get("path") for part in parts]
    named = extra_info.get("img_path") or ()
    paths = [path for path in found if isinstance(path, str)] or ([named] if isinstance(named, str) else named)
    return [str(path).removeprefix("file://") for path in paths]


def _as_text(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(_plain(value), ensure_ascii=False)


def _plain(value: Any) -> Any:
    """A value that JSON can hold: NaN and infinities as text, numpy as Python, the unknown as its ``str``."""
    if isinstance(value, Mapping):
        return {str(name): _plain(one) for name, one in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        return _plain(value.tolist())
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if value is None:
        return ""
    return value if isinstance(value, str | int | float | bool) else str(value)


class TokenText:
    """Token ids as text pieces that read like the whole when joined.

    Pieces of byte-level vocabularies can hold a part of a character: the piece that completes it shows it, those before
    are empty. Other vocabularies are decoded token by token.

    Attributes:
        end: id of the end-of-sequence token.
    """

    def __init__(self, tokenizer: Any):
        self._tokenizer = tokenizer
        backend = getattr(tokenizer, "backend_tokenizer", None)
        self._is_byte_level = "ByteLevel(" in repr(getattr(backend, "decoder", None))
        self._bytes_of = _byte_level_alphabet()
        self._special = set(getattr(tokenizer, "all_special_ids", ()))
        self.end = getattr(tokenizer, "eos_token_id", None)

    def __call__(self, ids: Sequence[int], is_whole: bool = True) -> tuple[list[str], str]:
        """Pieces of ``ids`` and their text, special tokens included.

        Args:
            is_whole: False when more tokens follow; a character that is cut off is then left out.
        """
        if not self._is_byte_level:
            return [self._tokenizer.decode([token]) for token in ids], self._tokenizer.decode(ids)
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        # Ids beyond the vocabulary (padded embeddings) have no token.
        tokens = [token or "" for token in self._tokenizer.convert_ids_to_tokens(ids)]
        pieces = [decoder.decode(self._to_bytes(token)) for token in tokens]
        if pieces and is_whole:
            pieces[-1] += decoder.decode(b"", True)
        return pieces, "".join(pieces)

    def prompt(self, ids: Sequence[int]) -> str:
        """Text of a prompt, runs of one special token (an image's placeholders) shortened to ``token×count``."""
        runs: list[list[int]] = []
        for token in ids:
            if runs and token in self._special and runs[-1][0] == token:
                runs[-1].append(token)
            else:
                runs.append([token])
        text, plain = "", []
        for run in [*runs, None]:
            if run is not None and len(run) == 1:
                plain += run
                continue
            text += self(plain)[1] if plain else ""
            plain = []
            if run is not None:
                text += f"{self(run[:1])[1]}×{len(run)}"
        return text

    def _to_bytes(self, token: str) -> bytes:
        try:
            return bytes(self._bytes_of[character] for character in token)
        except KeyError:
            return token.encode("utf-8", "replace")


def _byte_level_alphabet() -> dict[str, int]:
    """Character -> byte of GPT-2's byte-level vocabularies: printable Latin-1 stands for itself, the rest, in order, for
    the characters from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + number): byte for number, byte in enumerate(others)}
