"""A4.rotary: which rotary dimensions belong to which of the four position axes.

Symptom without it: log-probs of actor and rollout differ by up to 6e-2 on prompts with an image (text: 1e-6).
Upstream: ``transformers.models.hunyuan_vl.modeling_hunyuan_vl.apply_multimodal_rotary_pos_emb`` (5.13 to 5.24).
Why: the model's authors, and vLLM, lay the sections out twice over the head dimension (``s0 s1 s2 s3 s0 s1 s2 s3``, since
both halves of the head share the frequencies); transformers doubles each section instead (``2·s0 2·s1 …``).
Process: FSDP workers, and anything that runs the transformers model. Goes when transformers repeats the list.
"""

from __future__ import annotations

from types import ModuleType

import torch

from verl_hyocr.registry import Step, mark

MODULE = "transformers.models.hunyuan_vl.modeling_hunyuan_vl"


def select_sections(table: torch.Tensor, sections: list[int]) -> torch.Tensor:
    """Pick, for each rotary dimension, the row of its axis.

    Args:
        table: cos or sin, (axes, B, L, head_dim).
        sections: dims per axis of one half of the head, summing to ``head_dim // 2``.

    Returns:
        (B, L, head_dim).
    """
    axes = len(sections)
    chunks = table.split([int(size) for size in sections] * 2, dim=-1)
    return torch.cat([chunk[index % axes] for index, chunk in enumerate(chunks)], dim=-1)


def _apply(module: ModuleType) -> None:
    rotate_half = module.rotate_half

    def apply_multimodal_rotary_pos_emb(q, k, cos, sin, mrope_section, unsqueeze_dim=1):
        """Rotate q, k (B, H, L, D) in fp32 by the per-axis tables cos, sin (axes, B, L, D)."""
        cos = select_sections(cos, mrope_section).unsqueeze(unsqueeze_dim).float()
        sin = select_sections(sin, mrope_section).unsqueeze(unsqueeze_dim).float()
        dtype, q, k = q.dtype, q.float(), k.float()
        return (q * cos + rotate_half(q) * sin).to(dtype), (k * cos + rotate_half(k) * sin).to(dtype)

    module.apply_multimodal_rotary_pos_emb = mark(apply_multimodal_rotary_pos_emb, "A4.rotary")


STEPS = [
    Step(
        "A4.rotary", MODULE, _apply, ((MODULE, "apply_multimodal_rotary_pos_emb"),), "rotary sections of the four axes"
    )
]
