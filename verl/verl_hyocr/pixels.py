"""Pixel values that travel once per prompt, as bytes, instead of once per sample and pass as 32-bit floats.

An image processor's output is an affine map of 8-bit pixels: four bytes for each byte of information. The n samples of a
group share it, and every pass over the batch reads it again. Here a prompt's pixel values are stored once in the
TransferQueue, in a partition of their own, under a key that its samples carry instead (:data:`KEY`); a worker fetches what
its batch names and keeps it for the step.

Values are restored bit by bit, which :func:`compact` checks; what does not survive the round trip is stored as it came.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch

PARTITION = "pixels"
"""TransferQueue partition of the stored pixel values."""
FIELD = "pixels"
KEY = "hyocr_pixels"
"""Entry of a sample's ``multi_modal_inputs`` with a packed :class:`PixelRef` in place of its ``pixel_values``."""


@dataclass(frozen=True)
class Affine:
    """How an image processor maps bytes to pixel values: ``(byte * scale - mean) / std`` per channel.

    Attributes:
        scale: ``rescale_factor`` of the image processor, usually 1/255.
        mean, std: per channel.
        patch: pixels per channel and patch; a patch is (channels * patch,), channel by channel.
    """

    scale: float
    mean: tuple[float, ...]
    std: tuple[float, ...]
    patch: int

    @classmethod
    def of(cls, image_processor: Any) -> Affine | None:
        """The map of a transformers image processor; None when it does not rescale and normalise."""
        if not (getattr(image_processor, "do_rescale", False) and getattr(image_processor, "do_normalize", False)):
            return None
        mean, std = tuple(image_processor.image_mean), tuple(image_processor.image_std)
        size = image_processor.patch_size
        return cls(float(image_processor.rescale_factor), mean, std, int(size) ** 2)

    def _channels(self, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        mean, std = (torch.tensor(part, dtype=torch.float32, device=device) for part in (self.mean, self.std))
        return mean.repeat_interleave(self.patch), std.repeat_interleave(self.patch)

    def restore(self, pixels: torch.Tensor) -> torch.Tensor:
        """(P, channels * patch) uint8 -> float32 pixel values, on the same device."""
        mean, std = self._channels(pixels.device)
        # The image processor's own order, types and roundings: it rescales in 64 bits and normalises in 32.
        return (pixels.double() * self.scale).float().sub_(mean).div_(std)

    def bytes_of(self, pixel_values: torch.Tensor) -> torch.Tensor | None:
        """The inverse of :meth:`restore`; None when the values are not such a map's."""
        if pixel_values.dtype != torch.float32 or pixel_values.shape[-1] != len(self.mean) * self.patch:
            return None
        mean, std = self._channels(pixel_values.device)
        pixels = ((pixel_values * std + mean) / self.scale).round_().clamp_(0, 255).to(torch.uint8)
        return pixels if torch.equal(self.restore(pixels), pixel_values) else None


def compact(pixel_values: torch.Tensor, affine: Affine | None) -> torch.Tensor:
    """Pixel values (P, D) as uint8 where they can be restored exactly, otherwise unchanged."""
    pixels = affine.bytes_of(pixel_values) if affine is not None else None
    return pixel_values if pixels is None else pixels


@dataclass(frozen=True)
class PixelRef:
    """What a sample carries instead of pixel values.

    Attributes:
        key: name in the queue (:func:`key_of`).
        affine: how stored bytes become pixel values.
    """

    key: str
    affine: Affine | None

    def packed(self) -> list:
        """Plain types: the queue's serialisation turns tuples into lists and data classes into dictionaries."""
        affine = self.affine
        return [self.key, affine and [affine.scale, list(affine.mean), list(affine.std), affine.patch]]

    @classmethod
    def unpack(cls, packed: list) -> PixelRef:
        key, affine = packed
        return cls(key, affine and Affine(affine[0], tuple(affine[1]), tuple(affine[2]), affine[3]))

    def values(self, stored: torch.Tensor) -> torch.Tensor:
        """Pixel values (P, D), from what the queue holds."""
        return self.affine.restore(stored) if stored.dtype == torch.uint8 else stored


def key_of(step: int, uid: str) -> str:
    """Name of a prompt's stored pixel values; the step says when they can go."""
    return f"{step}:{uid}"


def step_of(key: str) -> int:
    return int(key.split(":", 1)[0])


def refs_in(samples: Iterable[Any]) -> list[PixelRef | None]:
    """The reference in each sample's ``multi_modal_inputs``; None for samples that carry none."""
    packed = [(getattr(sample, "data", sample) or {}).get(KEY) for sample in samples]
    return [None if one is None else PixelRef.unpack(one) for one in packed]


class PixelStore:
    """A worker's copy of the pixel values of its current step.

    Args:
        fetch: keys -> one tensor (P, D) each, in order.
    """

    def __init__(self, fetch):
        self._fetch = fetch
        self._held: dict[str, torch.Tensor] = {}
        self._lock = threading.Lock()

    def get(self, keys: list[str]) -> list[torch.Tensor]:
        """Pixel values for ``keys``, fetched once; those of earlier steps are let go.

        Raises:
            KeyError: the queue does not hold a key.
        """
        with self._lock:
            missing = [key for key in dict.fromkeys(keys) if key not in self._held]
            if missing:
                newest = max(map(step_of, missing))
                self._held = {key: value for key, value in self._held.items() if step_of(key) >= newest}
                fetched = self._fetch(missing)
                self._held.update(zip(missing, fetched, strict=True))
            return [self._held[key] for key in keys]


def fetch_from_queue(keys: list[str]) -> list[torch.Tensor]:
    """Read stored pixel values from the TransferQueue.

    Raises:
        KeyError: with the keys, when the queue does not hold them (any more).
    """
    import transfer_queue as tq

    try:
        data = tq.kv_batch_get(keys=keys, partition_id=PARTITION, select_fields=[FIELD])
    except (ValueError, RuntimeError) as error:
        raise KeyError(
            f"pixel values {keys} are not in the TransferQueue's partition {PARTITION!r}: {error}"
        ) from error
    return list(data[FIELD].unbind())


STORE = PixelStore(fetch_from_queue)
"""The store of this process."""


async def put(key: str, pixels: torch.Tensor) -> None:
    """Store a prompt's (P, D) pixel values."""
    import transfer_queue as tq

    await tq.async_kv_put(key=key, partition_id=PARTITION, fields={FIELD: pixels}, tag={"step": step_of(key)})


def clear_before(step: int) -> int:
    """Remove the pixel values of steps before ``step`` from the queue; returns how many prompts' went."""
    import transfer_queue as tq

    held = (tq.kv_list(PARTITION) or {}).get(PARTITION, {})
    old = [key for key in held if step_of(key) < step]
    if old:
        tq.kv_clear(keys=old, partition_id=PARTITION)
    return len(old)
