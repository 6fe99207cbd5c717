"""P2: log-probs and entropy without the logits of the whole batch (``use_fused_kernels=True``).

Cost without it: logits over 120,128 entries for every token of a micro-batch, prompt and image tokens included: 8 GB in fp32
for 16,384 tokens, kept for the backward pass, several times over. Only the answer's tokens are ever read.
How: the LM head runs on the positions that predict answer tokens, a chunk at a time, and the backward pass computes a
chunk's logits again. The head is called as the module it is, so that hooks on it still act.
Upstream: verl's fused forward passes know no HunYuanVL (``patch_forward_with_backends`` would install one for text models);
transformers' ``HunYuanVLForConditionalGeneration.forward`` answers them. Which positions count comes from
:class:`verl_hyocr.engine` as :data:`KEEP`.
Process: FSDP workers. Goes when verl has a fused forward for ``hunyuan_vl`` that leaves out the prompt.
"""

from __future__ import annotations

import functools
from types import ModuleType

import torch
from torch.utils.checkpoint import checkpoint

from verl_hyocr.hf import is_hunyuan_model
from verl_hyocr.registry import Step, mark

MODEL = "transformers.models.hunyuan_vl.modeling_hunyuan_vl"
PATCH = "verl.models.transformers.monkey_patch"
KEEP = "hyocr_keep"
"""Model input: (1, T) bool, the positions whose next token's log-prob is wanted; elsewhere 0 is returned."""
CHUNK = 2048
"""Positions whose logits exist at a time: 1 GB in fp32 over the released vocabulary."""


def token_log_probs(
    head, hidden: torch.Tensor, labels: torch.Tensor, temperature: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probabilities of given tokens, and the entropy, of the distribution behind each hidden state.

    Args:
        head: module from (N, H) to logits (N, V).
        hidden: (N, H).
        labels: (N,) token ids.
        temperature: of the softmax, above 0.

    Returns:
        log-probs (N,) and entropies (N,) in nats, float32.
    """
    logits = head(hidden).float()
    if temperature != 1.0:
        logits = logits / temperature
    total = logits.logsumexp(dim=-1)
    log_probs = logits.gather(-1, labels.unsqueeze(-1)).squeeze(-1) - total
    entropy = total - (logits.softmax(dim=-1) * logits).sum(dim=-1)
    return log_probs, entropy


def chunked_log_probs(
    head, hidden: torch.Tensor, labels: torch.Tensor, temperature: float = 1.0, chunk: int = CHUNK
) -> tuple[torch.Tensor, torch.Tensor]:
    """:func:`token_log_probs`, ``chunk`` positions at a time in both directions."""
    parts = []
    for states, targets in zip(hidden.split(chunk), labels.split(chunk), strict=True):
        if torch.is_grad_enabled():
            parts.append(checkpoint(token_log_probs, head, states, targets, temperature, use_reentrant=False))
        else:
            parts.append(token_log_probs(head, states, targets, temperature))
    log_probs, entropies = zip(*parts, strict=True)
    return torch.cat(log_probs), torch.cat(entropies)


def answer_positions(prompt_lengths: torch.Tensor, response_lengths: torch.Tensor, total: int) -> torch.Tensor:
    """Positions of a packed row that predict an answer token.

    Args:
        prompt_lengths, response_lengths: (B,) tokens per sample.
        total: T, tokens of the row, at least the sum of both; the rest is padding.

    Returns:
        (1, T) bool.
    """
    ends = (prompt_lengths + response_lengths).cumsum(0)
    places = torch.arange(total, device=ends.device)
    # The last token of a sample predicts nothing; a prompt's last predicts the first of the answer.
    starts = (ends - response_lengths - 1).unsqueeze(1)
    inside = (places >= starts) & (places < (ends - 1).unsqueeze(1))
    return inside.any(dim=0).unsqueeze(0)


def _answer_fused(module: ModuleType) -> None:
    original = module.HunYuanVLForConditionalGeneration.forward

    @functools.wraps(original)
    def forward(self, input_ids=None, *args, temperature=None, shift_labels=None, **kwargs):
        keep = kwargs.pop(KEEP, None)
        if temperature is None:
            return original(self, input_ids, *args, **kwargs)
        from verl.models.transformers.dense_common import CausalLMOutputForPPO

        kwargs.pop("return_dict", None)
        outputs = self.model(input_ids, *args, **kwargs)
        labels = input_ids.roll(-1, dims=-1) if shift_labels is None else shift_labels
        wanted = torch.ones_like(labels, dtype=torch.bool) if keep is None else keep.to(labels.device)
        hidden = outputs.last_hidden_state[wanted]
        log_probs, entropy = chunked_log_probs(self.lm_head, hidden, labels[wanted], temperature)
        blank = log_probs.new_zeros(labels.shape)
        return CausalLMOutputForPPO(
            log_probs=blank.masked_scatter(wanted, log_probs), entropy=blank.masked_scatter(wanted, entropy)
        )

    module.HunYuanVLForConditionalGeneration.forward = mark(forward, "P2")


def _keep_our_forward(module: ModuleType) -> None:
    original = module.patch_forward_with_backends

    @functools.wraps(original)
    def patch_forward_with_backends(model, *args, **kwargs):
        return None if is_hunyuan_model(model) else original(model, *args, **kwargs)

    module.patch_forward_with_backends = mark(patch_forward_with_backends, "P2.keep")


STEPS = [
    Step(
        "P2", MODEL, _answer_fused, ((MODEL, "HunYuanVLForConditionalGeneration.forward"),), "log-probs without logits"
    ),
    Step(
        "P2.keep", PATCH, _keep_our_forward, ((PATCH, "patch_forward_with_backends"),), "verl leaves that forward alone"
    ),
]
