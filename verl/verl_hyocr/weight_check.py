"""B5: what is checked about a weight sync, and how its findings are reported.

The sender (an FSDP worker) adds a manifest to the stream: name, shape, dtype and checksum of every tensor. The receiver (a vLLM
worker) compares it with what arrived, finds engine weights that nothing wrote, and loads a random sample of the received
tensors a second time: vLLM's own loader knows how they are fused, sliced and cast, so the engine held the actor's values if and
only if that changes no bit.

Environment, read in the FSDP workers: ``WEIGHT_SYNC_CHECK_EVERY`` (0: the first sync only, N: also every N-th, -1: never),
``WEIGHT_SYNC_STRICT=1`` (a finding ends the run instead of warning). In the vLLM workers: ``WEIGHT_SYNC_SAMPLE`` (tensors that
are compared inside the engine, default 16).
"""

from __future__ import annotations

import json
import logging
import os
import random
from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Any

import torch

logger = logging.getLogger("verl_hyocr")

MANIFEST = "__verl_hyocr_manifest__"
EVERY_ENV, STRICT_ENV, SAMPLE_ENV = "WEIGHT_SYNC_CHECK_EVERY", "WEIGHT_SYNC_STRICT", "WEIGHT_SYNC_SAMPLE"
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
# A NaN with a payload that no arithmetic and no cast produces, as 16 and 32 bit patterns (fp16, bf16; fp32).
_UNWRITTEN = {2: 0x7FA5, 4: 0x7FA5A5A5}
_CHUNK = 1 << 24
_SHOWN = 8


class WeightSyncError(RuntimeError):
    """The rollout engine does not hold the actor's weights; the message names the tensors."""


def _setting(name: str, default: int, minimum: int) -> int:
    text = os.environ.get(name, "").strip() or str(default)
    try:
        value = int(text)
    except ValueError:
        value = minimum - 1
    if value < minimum:
        raise ValueError(f"{name} must be an integer of {minimum} or more, got {text!r}")
    return value


def check_settings() -> tuple[int, bool, int]:
    """``(every, strict, sample)`` from the environment.

    Raises:
        ValueError: naming the variable that does not hold what it must.
    """
    return _setting(EVERY_ENV, 0, -1), bool(_setting(STRICT_ENV, 0, 0)), _setting(SAMPLE_ENV, 16, 0)


def is_due(index: int, every: int) -> bool:
    """Whether sync number ``index`` (from 0) is checked: the first one, and every ``every``-th after it."""
    if every < 0:
        return False
    return index == 0 or (every > 0 and index % every == 0)


def checksum(tensor: torch.Tensor) -> int:
    """A sum over the bits of ``tensor``, weighted by position, so that swapped values differ too (64 bit, wraps)."""
    bits = tensor.detach().contiguous().view(-1).view(_INTEGERS[tensor.element_size()])
    total = torch.zeros((), dtype=torch.int64, device=bits.device)
    for start in range(0, bits.numel(), _CHUNK):
        part = bits[start : start + _CHUNK].to(torch.int64)
        weight = torch.arange(start, start + len(part), device=part.device) % 65521 + 1
        total += (part * weight).sum()
    return int(total)


async def with_manifest(weights: Iterable | AsyncIterator) -> AsyncIterator[tuple[str, torch.Tensor]]:
    """``weights`` (name, tensor) unchanged, then one more entry: the manifest as JSON bytes, uint8 (B,)."""
    from verl.workers.rollout.utils import ensure_async_iterator

    entries = {}
    device = torch.device("cpu")
    async for name, tensor in ensure_async_iterator(weights):
        device = tensor.device
        entries[name] = [list(tensor.shape), str(tensor.dtype), checksum(tensor)]
        yield name, tensor
    yield MANIFEST, torch.frombuffer(bytearray(json.dumps(entries).encode()), dtype=torch.uint8).to(device)


def _bits(parameter: torch.Tensor) -> torch.Tensor:
    return parameter.data.view(_INTEGERS[parameter.element_size()])


class Inspection:
    """One checked sync, on the receiving side: ``begin``, ``received`` per tensor, then ``finish``.

    Args:
        models: the engine's models that get weights (the main one first).
        sample: how many tensors are compared inside the engine.
        seed: of the sample; the same on all tensor-parallel ranks.
    """

    def __init__(self, models: list[torch.nn.Module], sample: int, seed: int):
        self.models, self.sample, self.random = models, sample, random.Random(seed)
        self.manifest: dict[str, list] | None = None
        self.seen: dict[str, list] = {}
        self.kept: list[tuple[str, torch.Tensor, list[tuple[int, str]]]] = []
        self.refused: dict[str, str] = {}
        self.unconsumed: list[str] = []
        self.before: dict[tuple[int, str], torch.Tensor] = {}

    def _parameters(self) -> Iterator[tuple[tuple[int, str], torch.Tensor]]:
        for index, model in enumerate(self.models):
            for name, parameter in model.named_parameters():
                if parameter.is_floating_point() and parameter.element_size() in _UNWRITTEN:
                    yield (index, name), parameter

    def begin(self) -> None:
        """Fill all weights with a pattern that shows where nothing is written; what they held waits in host memory."""
        for key, parameter in self._parameters():
            self.before[key] = parameter.data.to("cpu", copy=True)
            _bits(parameter).fill_(_UNWRITTEN[parameter.element_size()])

    def read_manifest(self, tensor: torch.Tensor) -> None:
        self.manifest = json.loads(tensor.cpu().numpy().tobytes())

    def received(self, name: str, tensor: torch.Tensor, targets: list[tuple[int, str]] | None) -> None:
        """Note a tensor (in the sender's name, shape and dtype) that was given to the engine.

        Args:
            targets: (model, weight) that the engine wrote for it; empty when it ignored the tensor, None for a buffer.
        """
        self.seen[name] = [list(tensor.shape), str(tensor.dtype), checksum(tensor)]
        if targets is None:
            return
        if not targets:
            self.unconsumed.append(name)
            return
        # Reservoir sampling: the tensors live in a buffer that the next bucket overwrites, so the sampled ones are copied.
        place = len(self.kept) if len(self.kept) < self.sample else self.random.randrange(len(self.seen))
        if place < self.sample:
            self.kept[place : place + 1] = [(name, tensor.clone(), targets)]

    def close(self) -> dict[str, float]:
        """Put back what was there wherever nothing was written; engine weight -> share (0 to 1) that nothing wrote."""
        found = {}
        for key, parameter in self._parameters():
            before = self.before.pop(key, None)
            if before is None:
                continue
            mask = _bits(parameter) == _UNWRITTEN[parameter.element_size()]
            count = int(mask.sum())
            if count:
                found[key[1]] = count / mask.numel()
                parameter.data[mask] = before.to(parameter.device)[mask]
        return found

    def finish(self) -> dict[str, Any]:
        """The report: plain types only, it travels between processes. Call it after vLLM's own post-processing."""
        unwritten = self.close()
        manifest = self.manifest or {}
        return {
            "tensors": len(self.seen),
            "sampled": len(self.kept),
            "refused": self.refused,
            "unconsumed": self.unconsumed,
            "unwritten": unwritten,
            "lost": sorted(set(manifest) - set(self.seen) - set(self.refused)),
            "corrupted": [name for name, entry in self.seen.items() if name in manifest and manifest[name] != entry],
            "no_manifest": self.manifest is None,
            "different": {name: gap for name, *rest in self.kept if (gap := self._gap(name, *rest)) is not None},
        }

    @torch.no_grad()
    def _gap(self, name: str, tensor: torch.Tensor, targets: list[tuple[int, str]]) -> float | None:
        """Largest difference between the engine's values and ``tensor`` loaded again; None when no bit changed."""
        worst = None
        for index, model in enumerate(self.models):
            parameters = dict(model.named_parameters())
            touched = [parameters[weight] for owner, weight in targets if owner == index and weight in parameters]
            held = [parameter.data.clone() for parameter in touched]
            if touched:
                model.load_weights([(name, tensor)])
            for parameter, old in zip(touched, held, strict=True):
                if not torch.equal(_bits(parameter), _bits(old)):
                    gap = float((parameter.data.float() - old.float()).abs().nan_to_num(float("inf")).max())
                    worst = gap if worst is None else max(worst, gap)
                    parameter.data.copy_(old)
        return worst


def _names(found: Iterable) -> str:
    found = list(found)
    more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    return ", ".join(str(name) for name in found[:_SHOWN]) + more


def problems(report: dict[str, Any]) -> list[str]:
    """What a report says is wrong, one line a kind, with names; empty when the engine holds the actor's weights."""
    lines = []
    if report["refused"]:
        lines.append("the engine refused " + _names(f"{name} ({why})" for name, why in report["refused"].items()))
    if report["unconsumed"]:
        lines.append("sent but not consumed by the engine: " + _names(report["unconsumed"]))
    if report["unwritten"]:
        shares = (f"{name} ({share:.0%} of it)" for name, share in report["unwritten"].items())
        lines.append("engine weights that the sync did not write: " + _names(shares))
    if report["lost"]:
        lines.append("sent by the actor but never received: " + _names(report["lost"]))
    if report["corrupted"]:
        lines.append("changed on the way from the actor: " + _names(report["corrupted"]))
    if report["different"]:
        gaps = (f"{name} (by up to {gap:.3g})" for name, gap in report["different"].items())
        lines.append("held by the engine with other values than received: " + _names(gaps))
    if report["no_manifest"]:
        lines.append("the stream ended without its manifest")
    return lines


def conclude(reports: list[dict[str, Any]], strict: bool, speak: bool) -> None:
    """Say what the reports of all engine workers found.

    Args:
        reports: one per vLLM worker, with ``where`` naming it.
        strict: raise on any finding. A tensor that the engine refused always raises: the weights are incomplete.
        speak: whether this process is the one that logs (rank 0); all of them raise.

    Raises:
        WeightSyncError: with every finding.
    """
    lines: dict[str, list[str]] = {}
    for report in reports:
        for line in problems(report):
            lines.setdefault(line, []).append(report["where"])
    texts = [f"{line} [{', '.join(where)}]" for line, where in lines.items()]
    if not reports:
        texts.append("no engine worker reported on it")
    if speak and not texts:
        tensors, sampled = (max((report[key] for report in reports), default=0) for key in ("tensors", "sampled"))
        print(
            f"verl-hyocr: weight sync checked: {tensors} tensors reached {len(reports)} engine worker(s) unchanged, every "
            f"engine weight was written, {sampled} sampled tensors hold the actor's values",
            flush=True,
        )
    if speak:
        for text in texts:
            logger.warning("verl-hyocr: weight sync: %s", text)
    if texts and (strict or any(report["refused"] for report in reports)):
        raise WeightSyncError("the rollout engine does not hold the actor's weights:\n  - " + "\n  - ".join(texts))
