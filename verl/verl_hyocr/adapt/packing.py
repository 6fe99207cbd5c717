"""C1: several samples in one row (``use_remove_padding=True``) and several images in one vision pass do not see each other.

Symptom without it: packed samples attend to the samples before them; log-probs are off by 1e-3 and more, silently. verl
passes input ids (1, T), positions (4, 1, T) and no mask; transformers looks for sample boundaries only in a fifth row of
positions, which it then refuses.
Upstream: ``HunYuanVLTextModel.forward``, ``HunYuanVLVisionTransformer.forward`` and the table of attention functions of
``transformers.models.hunyuan_vl.modeling_hunyuan_vl`` (that module's own table: other models keep theirs).
How: sample boundaries are read once per pass from the text axis, which restarts at every sample. ``sdpa`` then runs torch's
variable-length flash kernel where it can (CUDA, half precision), otherwise one call per sample; neither builds a (T, T)
mask. ``flash_attention_2`` gets the boundaries under transformers' own names. The vision tower, whose patches are always
packed, uses the same kernel: one call a layer instead of one per image and layer, and one read of the image grid from the
device per pass.
Process: FSDP workers, and anything that runs the transformers model. Goes when transformers finds the boundaries in four
rows of positions.
"""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass
from types import ModuleType

import torch

from verl_hyocr.registry import Step, mark

MODULE = "transformers.models.hunyuan_vl.modeling_hunyuan_vl"
KWARG = "hyocr_segments"
"""Keyword under which a pass hands its :class:`Segments` down to the attention function."""


class PackingError(ValueError):
    """Packed input that this attention implementation would compute across sample boundaries."""


@dataclass(frozen=True)
class Segments:
    """Consecutive runs of one row of tokens that attend only to themselves.

    Attributes:
        lengths: tokens per run, summing to T.
        offsets: (len(lengths) + 1,) int32 on the tokens' device: 0, then the running sum of the lengths.
    """

    lengths: tuple[int, ...]
    offsets: torch.Tensor

    @classmethod
    def of(cls, lengths: list[int], device: torch.device | str) -> Segments:
        offsets = torch.tensor([0, *lengths]).cumsum(0)
        return cls(tuple(lengths), offsets.to(device=device, dtype=torch.int32))

    @property
    def longest(self) -> int:
        return max(self.lengths)


def packed_segments(position_ids: torch.Tensor | None) -> Segments | None:
    """The samples of a packed row, or None when the input is not one row of several samples.

    Args:
        position_ids: (axes, 1, T) with the text axis first, or (1, T). A sample starts wherever the text axis does not go on
            by one, so a suffix that counts from 0 again (verl's ``pad_to_length``) is a sample of its own.
    """
    if position_ids is None or position_ids.dim() not in (2, 3) or position_ids.shape[-2] != 1:
        return None
    text_axis = position_ids.reshape(-1, position_ids.shape[-1])[0]
    starts = (text_axis.diff() != 1).nonzero().flatten() + 1
    if not len(starts):
        return None
    edges = [0, *starts.tolist(), len(text_axis)]
    return Segments.of([end - start for start, end in itertools.pairwise(edges)], position_ids.device)


def attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    segments: Segments,
    *,
    scaling: float,
    is_causal: bool,
    dropout: float = 0.0,
) -> torch.Tensor:
    """Attention within each segment.

    Args:
        query: (1, H, T, D).
        key, value: (1, H_kv, T, D), H a multiple of H_kv.
        segments: runs that sum to T.
        scaling: factor of the scores.
        is_causal: each token sees its own segment's tokens up to itself instead of all of them.
        dropout: probability on the attention weights.

    Returns:
        (1, T, H, D).
    """
    if query.is_cuda and torch.is_autocast_enabled("cuda"):
        # scaled_dot_product_attention follows autocast by itself, the variable-length kernel does not.
        query, key, value = (tensor.to(torch.get_autocast_dtype("cuda")) for tensor in (query, key, value))
    if _varlen_kernel_runs(query, dropout):
        from torch.nn.attention.varlen import varlen_attn

        packed = [tensor[0].transpose(0, 1) for tensor in (query, key, value)]
        edges, longest = segments.offsets, segments.longest
        window = (-1, 0) if is_causal else (-1, -1)
        out = varlen_attn(*packed, edges, edges, longest, longest, scale=scaling, window_size=window)
        return out.unsqueeze(0)
    parts = zip(*(tensor.split(segments.lengths, dim=2) for tensor in (query, key, value)), strict=True)
    out = [
        torch.nn.functional.scaled_dot_product_attention(
            q, k, v, dropout_p=dropout, scale=scaling, is_causal=is_causal, enable_gqa=q.shape[1] != k.shape[1]
        )
        for q, k, v in parts
    ]
    return torch.cat(out, dim=2).transpose(1, 2).contiguous()


def _varlen_kernel_runs(query: torch.Tensor, dropout: float) -> bool:
    """torch's variable-length kernel: CUDA from compute capability 8.0, half precision, no dropout."""
    return (
        query.is_cuda
        and dropout == 0.0
        and query.dtype in (torch.bfloat16, torch.float16)
        and query.shape[-1] <= 256
        and torch.cuda.get_device_capability(query.device) >= (8, 0)
    )


def _segmented(plain):
    """transformers' sdpa attention function, working within segments where a pass names them."""

    @functools.wraps(plain)
    def sdpa(module, query, key, value, attention_mask=None, dropout=0.0, scaling=None, is_causal=None, **kwargs):
        segments = kwargs.pop(KWARG, None)
        if segments is None or len(segments.lengths) == 1:
            return plain(module, query, key, value, attention_mask, dropout, scaling, is_causal, **kwargs)
        if attention_mask is not None or query.shape[2] != key.shape[2]:
            raise PackingError("packed samples take neither an attention mask nor a filled key-value cache")
        causal = module.is_causal if is_causal is None else is_causal
        out = attend(query, key, value, segments, scaling=scaling, is_causal=causal, dropout=dropout)
        return out, None

    return sdpa


def supports(attn_implementation: str | None) -> bool:
    """Whether packed samples stay apart under this attention implementation of transformers."""
    return attn_implementation == "sdpa" or str(attn_implementation).startswith("flash_attention_")


def _boundaries(attn_implementation: str, segments: Segments) -> dict:
    """Keyword arguments that tell the attention function of every layer where the samples are."""
    if not supports(attn_implementation):
        raise PackingError(
            f"attn_implementation={attn_implementation} would let packed samples attend to each other on HunYuanVL. "
            "Use sdpa or flash_attention_2, or set use_remove_padding=False."
        )
    if attn_implementation == "sdpa":
        return {KWARG: segments}
    edges, longest = segments.offsets, segments.longest
    return {"cu_seq_lens_q": edges, "cu_seq_lens_k": edges, "max_length_q": longest, "max_length_k": longest}


def _apply(module: ModuleType) -> None:
    table = type(module.ALL_ATTENTION_FUNCTIONS)()
    table["sdpa"] = _segmented(module.ALL_ATTENTION_FUNCTIONS["sdpa"])
    module.ALL_ATTENTION_FUNCTIONS = mark(table, "C1")

    text_forward = module.HunYuanVLTextModel.forward

    @functools.wraps(text_forward)
    def forward_text(self, input_ids=None, attention_mask=None, position_ids=None, past_key_values=None, **kwargs):
        if attention_mask is None and past_key_values is None:
            segments = packed_segments(position_ids)
            if segments is not None:
                kwargs |= _boundaries(self.config._attn_implementation, segments)
        return text_forward(
            self,
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            past_key_values=past_key_values,
            **kwargs,
        )

    module.HunYuanVLTextModel.forward = mark(forward_text, "C1")

    vision_forward = module.HunYuanVLVisionTransformer.forward

    @functools.wraps(vision_forward)
    def forward_vision(self, pixel_values, grid_thw, **kwargs):
        # The tower asks for single numbers of the grid many times: each would wait for the device.
        grid = grid_thw.cpu()
        edges = module.get_vision_cu_seqlens(grid)
        if self.config._attn_implementation == "sdpa":
            kwargs[KWARG] = Segments.of(edges.diff().tolist(), pixel_values.device)
            # One chunk for upstream's loop over images; the attention function keeps them apart.
            kwargs["cu_seqlens"] = edges[[0, -1]]
        else:
            kwargs["cu_seqlens"] = edges.to(pixel_values.device)
        return vision_forward(self, pixel_values, grid_thw=grid, **kwargs)

    module.HunYuanVLVisionTransformer.forward = mark(forward_vision, "C1")


STEPS = [
    Step(
        "C1",
        MODULE,
        _apply,
        (
            (MODULE, "ALL_ATTENTION_FUNCTIONS"),
            (MODULE, "HunYuanVLTextModel.forward"),
            (MODULE, "HunYuanVLVisionTransformer.forward"),
        ),
        "packed samples",
    )
]
