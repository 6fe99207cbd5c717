"""P1: a prompt's image travels once, and is encoded once for all its samples in a micro-batch.

Cost without it: the pixel values of a page (10 MB at 800×1000) are computed, serialised, stored and read for each of the n
samples of a group in each of the three passes, and the vision tower, the larger part of the arithmetic, encodes the page
n times a pass.

* ``P1.rows``: samples carry a key instead of pixel values; the values go to the TransferQueue once per prompt, as bytes
  (:mod:`verl_hyocr.pixels`). Rows of a validation carry nothing: nobody reads them. Images are decoded, tokenized and
  processed once per prompt instead of four times per sample. Upstream: ``AgentLoopWorker._compute_score``,
  ``._compute_multi_modal_inputs``, ``._run_agent_loop`` and ``AgentLoopBase.process_multi_modal_info``,
  ``.ct_build_initial_tokens``.
* ``P1.inputs``: a micro-batch gets the values of its distinct images and an index that says which image each place of
  the batch shows. Upstream: ``extract_multi_modal_inputs``.
* ``P1.model``: the vision tower runs on the distinct images; their features are copied to the places. Gradients add up.
  Upstream: transformers' ``HunYuanVLModel.forward``.
* ``P1.groups``: dynamic micro-batches keep the samples of a prompt together. Upstream: ``rearrange_micro_batches``.

The vision tower still runs once per micro-batch on every rank, as the collectives of FSDP need.
Process: agent-loop workers, FSDP workers; :class:`verl_hyocr.trainer.HyocrTrainerSync` clears the stored values.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
from collections import OrderedDict
from types import ModuleType
from typing import Any

import torch

from verl_hyocr import groups, pixels
from verl_hyocr.hf import is_hunyuan_processor
from verl_hyocr.registry import Step, mark

AGENT = "verl.experimental.agent_loop.agent_loop"
UTILS = "verl.utils.model"
BALANCING = "verl.utils.seqlen_balancing"
MODEL = "transformers.models.hunyuan_vl.modeling_hunyuan_vl"
INDEX = "hyocr_image_index"
"""Model input: for every image place of the micro-batch, in order, the number of its image among the distinct ones."""
PROMPTS_HELD = 256
"""Prompts whose decoded images and tokens an agent-loop worker keeps for the samples to come."""


# ------------------------------------------------------------------------------------------------------ rows


class OncePerPrompt:
    """Results that the n sessions of a prompt share: the first asks, the others wait for it.

    Sessions of a prompt hand over the same message objects, so identity is the key; an entry keeps its messages alive.
    A result that failed is forgotten, and every session that waited gets the error.
    """

    def __init__(self, size: int = PROMPTS_HELD):
        self._size = size
        self._held: OrderedDict[Any, tuple[Any, asyncio.Future]] = OrderedDict()

    async def get(self, key: Any, keep: Any, compute) -> Any:
        """The result for ``key``; ``compute`` is a coroutine function without arguments, ``keep`` stays referenced."""
        entry = self._held.get(key)
        if entry is None:
            entry = self._held[key] = (keep, asyncio.ensure_future(compute()))
            while len(self._held) > self._size:
                self._held.popitem(last=False)
        try:
            # A session that is cancelled must not take the others' result with it.
            return await asyncio.shield(entry[1])
        except BaseException:
            if self._held.get(key) is entry and entry[1].done():
                del self._held[key]
            raise


_images = OncePerPrompt()
_tokens = OncePerPrompt()
_rows = OncePerPrompt()
_validating: contextvars.ContextVar[bool] = contextvars.ContextVar("hyocr_validating", default=False)


def _identity(messages: list[dict]) -> tuple[int, ...]:
    return tuple(id(message) for message in messages)


def _writes_to_queue() -> bool:
    """Whether this process's samples go to the TransferQueue (trainer v1)."""
    from transfer_queue import interface

    return interface._TQ_CLIENT is not None


def _share_rows(module: ModuleType) -> None:
    loop, worker = module.AgentLoopBase, module.AgentLoopWorker
    process, build = loop.process_multi_modal_info, loop.ct_build_initial_tokens
    run, score, inputs = worker._run_agent_loop, worker._compute_score, worker._compute_multi_modal_inputs

    @functools.wraps(process)
    async def process_multi_modal_info(self, messages):
        if not is_hunyuan_processor(self.processor):
            return await process(self, messages)
        shared = await _images.get(_identity(messages), messages, lambda: process(self, messages))
        # Loops of several turns add to these lists.
        return {name: list(value) if isinstance(value, list) else value for name, value in shared.items()}

    @functools.wraps(build)
    async def ct_build_initial_tokens(self, messages, tools=None, images=None, **kwargs):
        plain = tools or kwargs.get("videos") or kwargs.get("audios") or not images
        if plain or not is_hunyuan_processor(self.processor):
            return await build(self, messages, tools=tools, images=images, **kwargs)
        # The processor's output is only asked for videos.
        kwargs.pop("mm_inputs_out", None)
        key = (_identity(messages), *map(id, images))
        shared = await _tokens.get(key, (messages, images), lambda: build(self, messages, images=images, **kwargs))
        return list(shared)

    @functools.wraps(run)
    async def _run_agent_loop(self, sampling_params, trajectory, **kwargs):
        _validating.set(bool(trajectory["validate"]))
        return await run(self, sampling_params, trajectory, **kwargs)

    @functools.wraps(score)
    async def _compute_score(self, outputs, kwargs):
        if is_hunyuan_processor(self.processor) and _writes_to_queue():
            for output in outputs:
                if (output.multi_modal_data or {}).get("images"):
                    output.multi_modal_data[pixels.KEY] = await _shared_row(self, inputs, output, kwargs)
        return await score(self, outputs, kwargs)

    @functools.wraps(inputs)
    def _compute_multi_modal_inputs(self, output, input_ids):
        row = (output.multi_modal_data or {}).get(pixels.KEY)
        return inputs(self, output, input_ids) if row is None else dict(row)

    loop.process_multi_modal_info = mark(process_multi_modal_info, "P1.rows")
    loop.ct_build_initial_tokens = mark(ct_build_initial_tokens, "P1.rows")
    worker._run_agent_loop = mark(_run_agent_loop, "P1.rows")
    worker._compute_score = mark(_compute_score, "P1.rows")
    worker._compute_multi_modal_inputs = mark(_compute_multi_modal_inputs, "P1.rows")


async def _shared_row(worker: Any, compute_inputs, output: Any, kwargs: dict) -> dict[str, Any]:
    """The ``multi_modal_inputs`` of a sample with a key in place of the pixel values, which are stored once."""
    images = output.multi_modal_data["images"]
    step, uid, validating = int(kwargs["global_steps"]), str(kwargs["uid"]), _validating.get()
    # A loop of several turns may add images: samples share what they show, not what they started from.
    name = (uid, validating, *map(id, images))
    key = pixels.key_of(step, f"{uid}/{len(images)}")

    async def compute() -> dict[str, Any]:
        ids = torch.tensor(output.prompt_ids, dtype=torch.int64)
        event_loop = asyncio.get_running_loop()
        row = await event_loop.run_in_executor(None, lambda: compute_inputs(worker, output, ids))
        pixel_values = row.pop("pixel_values")
        if not validating:
            affine = pixels.Affine.of(worker.processor.image_processor)
            stored = await event_loop.run_in_executor(None, lambda: pixels.compact(pixel_values, affine))
            await pixels.put(key, stored)
            row[pixels.KEY] = pixels.PixelRef(key, affine).packed()
        return row

    return await _rows.get(name, images, compute)


# ---------------------------------------------------------------------------------------------------- inputs


def _share_inputs(module: ModuleType) -> None:
    from verl.utils.device import get_device_id

    original = module.extract_multi_modal_inputs

    @functools.wraps(original)
    def extract_multi_modal_inputs(batch_data, indices=None):
        samples = list(batch_data) if indices is None else [batch_data[i] for i in indices if i < len(batch_data)]
        samples = [getattr(sample, "data", sample) or {} for sample in samples]
        if not any(pixels.KEY in sample for sample in samples):
            return original(batch_data, indices)
        refs = pixels.refs_in(samples)
        first: dict[pixels.PixelRef, dict] = {}
        for ref, sample in zip(refs, samples, strict=True):
            if ref is not None:
                first.setdefault(ref, sample)
        rest = [
            {name: value for name, value in sample.items() if name not in (pixels.KEY, "image_grid_thw")}
            for sample in samples
        ]
        grids = [sample["image_grid_thw"] for sample in first.values()]
        starts = dict(zip(first, torch.tensor([0, *map(len, grids)]).cumsum(0).tolist(), strict=False))
        index = [
            starts[ref] + number
            for ref, sample in zip(refs, samples, strict=True)
            if ref is not None
            for number in range(len(sample["image_grid_thw"]))
        ]
        stored = pixels.STORE.get([ref.key for ref in first])
        device = get_device_id()
        return original(rest) | {
            "pixel_values": torch.cat([ref.values(part.to(device)) for ref, part in zip(first, stored, strict=True)]),
            "image_grid_thw": torch.cat(grids),
            INDEX: torch.tensor(index),
        }

    module.extract_multi_modal_inputs = mark(extract_multi_modal_inputs, "P1.inputs")


# ----------------------------------------------------------------------------------------------------- model


def tokens_per_image(grid: torch.Tensor, merge: int) -> list[int]:
    """Image tokens of each image of a (k, 3) grid of patches: merged rows, each with a newline, a begin and an end."""
    return [int(t) * ((int(h) // merge) * (int(w) // merge + 1) + 2) for t, h, w in grid.tolist()]


def spread_features(features: torch.Tensor, counts: list[int], index: list[int]) -> torch.Tensor:
    """Copy the features of distinct images to all their places.

    Args:
        features: (sum(counts), H).
        counts: tokens of each distinct image.
        index: image number of each place.

    Returns:
        (tokens of all places, H).
    """
    parts = features.split(counts)
    return torch.cat([parts[number] for number in index])


def _share_features(module: ModuleType) -> None:
    original = module.HunYuanVLModel.forward

    @functools.wraps(original)
    def forward(self, input_ids=None, *args, inputs_embeds=None, pixel_values=None, image_grid_thw=None, **kwargs):
        index = kwargs.pop(INDEX, None)
        if index is not None:
            index, grid = index.tolist(), image_grid_thw.cpu()
            features = self.get_image_features(pixel_values, grid, return_dict=True).pooler_output
            if index != list(range(len(grid))):
                counts = tokens_per_image(grid, self.config.vision_config.spatial_merge_size)
                features = spread_features(features.reshape(-1, features.shape[-1]), counts, index)
            if inputs_embeds is None:
                inputs_embeds = self.get_input_embeddings()(input_ids)
            features = features.to(inputs_embeds.device, dtype=inputs_embeds.dtype)
            places = self.get_placeholder_mask(input_ids, inputs_embeds=inputs_embeds, image_features=features)
            inputs_embeds = inputs_embeds.masked_scatter(places, features)
            input_ids = pixel_values = image_grid_thw = None
        return original(
            self,
            input_ids,
            *args,
            inputs_embeds=inputs_embeds,
            pixel_values=pixel_values,
            image_grid_thw=image_grid_thw,
            **kwargs,
        )

    module.HunYuanVLModel.forward = mark(forward, "P1.model")


# ---------------------------------------------------------------------------------------------------- groups


def _keep_groups(module: ModuleType) -> None:
    original = module.rearrange_micro_batches
    dist, tu = module.dist, module.tu

    @functools.wraps(original)
    def rearrange_micro_batches(
        batch,
        max_token_len,
        dp_group=None,
        num_batches_divided_by=None,
        same_micro_num_in_dp=True,
        min_num_micro_batch=None,
        use_dynamic_bsz_balance=True,
        force_group_size=1,
    ):
        def upstream():
            return original(
                batch,
                max_token_len,
                dp_group,
                num_batches_divided_by,
                same_micro_num_in_dp,
                min_num_micro_batch,
                use_dynamic_bsz_balance,
                force_group_size,
            )

        others = num_batches_divided_by is not None or min_num_micro_batch is not None or force_group_size != 1
        # What leaves here is the same on all ranks: they must agree on the collectives below.
        if others or not batch["input_ids"].is_nested or batch.get("multi_modal_inputs", None) is None:
            return upstream()
        lengths = batch["input_ids"].offsets().diff().tolist()
        refs = pixels.refs_in(batch["multi_modal_inputs"])
        names = [number if ref is None else ref.key for number, ref in enumerate(refs)]
        order = [index for group in groups.by_group(names) for index in group]
        ordered = [lengths[index] for index in order]
        budget = int(max_token_len)
        available, longest = len(lengths), max(lengths)
        wanted = groups.count_bins(ordered, budget) if longest <= budget else 0
        shared = any(ref is not None for ref in refs)
        if dist.is_initialized() and same_micro_num_in_dp and dp_group is not None:
            agreed = torch.tensor([wanted, -available, longest, int(shared)], device=module.get_device_name())
            dist.all_reduce(agreed, op=dist.ReduceOp.MAX, group=dp_group)
            wanted, available, longest, shared = int(agreed[0]), -int(agreed[1]), int(agreed[2]), bool(agreed[3])
        if not shared:
            return upstream()
        if longest > budget:
            raise ValueError(f"a sample of {longest} tokens is longer than the budget of a micro-batch ({budget})")
        if wanted > available:
            raise ValueError(f"{wanted} micro-batches are needed, but a rank has only {available} samples")
        parts = [[order[place] for place in run] for run in groups.split_evenly(ordered, wanted, budget)]
        return [tu.index_select_tensor_dict(batch, part) for part in parts], parts

    module.rearrange_micro_batches = mark(rearrange_micro_batches, "P1.groups")


STEPS = [
    Step(
        "P1.rows",
        AGENT,
        _share_rows,
        (
            (AGENT, "AgentLoopBase.process_multi_modal_info"),
            (AGENT, "AgentLoopBase.ct_build_initial_tokens"),
            (AGENT, "AgentLoopWorker._run_agent_loop"),
            (AGENT, "AgentLoopWorker._compute_score"),
            (AGENT, "AgentLoopWorker._compute_multi_modal_inputs"),
        ),
        "images travel once per prompt",
    ),
    Step(
        "P1.inputs",
        UTILS,
        _share_inputs,
        (
            (UTILS, "extract_multi_modal_inputs"),
            ("verl.workers.engine.fsdp.transformer_impl", "extract_multi_modal_inputs"),
        ),
        "distinct images of a micro-batch",
    ),
    Step(
        "P1.model", MODEL, _share_features, ((MODEL, "HunYuanVLModel.forward"),), "images encoded once per micro-batch"
    ),
    Step(
        "P1.groups",
        BALANCING,
        _keep_groups,
        ((BALANCING, "rearrange_micro_batches"), ("verl.workers.engine.utils", "rearrange_micro_batches")),
        "samples of a prompt in one micro-batch",
    ),
]
