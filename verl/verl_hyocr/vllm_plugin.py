"""Target of the ``vllm.general_plugins`` entry point: runs, possibly several times, in every vLLM process.

CPU backend of vLLM 0.25.1 only (D2):

* ``XDRotaryEmbedding`` has no CPU forward and inherits one whose C++ kernel takes 1-D positions: heap corruption.
* CPU linear layers repack their weight and drop the parameter, so weights could never be synced again.
* Mixture-of-experts layers (Hy3) repack theirs too; without repacking they compute on views of the loaded tensors.
* torch's ``log_softmax`` on the CPU is off by up to 1e-4 over a vocabulary of 120,000 with a peak (fp32 running sum);
  ``logsumexp``, which the actor uses, is right to 1e-6. The sampler's log-probs are computed the same way.
"""

from __future__ import annotations

import functools

_done = False


def register() -> None:
    """Idempotent."""
    global _done
    if _done:
        return
    from vllm.platforms import current_platform

    from verl_hyocr.registry import is_disabled

    if current_platform.is_cpu():
        if not is_disabled("D2.engine"):
            _use_native_rotary()
            _keep_linear_weights()
            _keep_expert_weights()
        if not is_disabled("D2.sampler"):
            _accurate_logprobs()
    _done = True


def _use_native_rotary() -> None:
    from vllm.model_executor.layers.rotary_embedding.xdrope import XDRotaryEmbedding

    XDRotaryEmbedding.forward_cpu = XDRotaryEmbedding.forward_native


def _keep_linear_weights() -> None:
    import torch
    from vllm.model_executor.layers import utils

    if not hasattr(utils, "dispatch_cpu_unquantized_gemm"):
        raise RuntimeError("vLLM no longer has layers.utils.dispatch_cpu_unquantized_gemm: check weight sync on CPU")

    def dispatch_cpu_unquantized_gemm(layer, remove_weight: bool) -> None:
        layer.cpu_linear = torch.nn.functional.linear

    utils.dispatch_cpu_unquantized_gemm = dispatch_cpu_unquantized_gemm


def _keep_expert_weights() -> None:
    from vllm.model_executor.layers.fused_moe import cpu_fused_moe

    if not hasattr(cpu_fused_moe.CPUFusedMOE, "check_grouped_gemm"):
        raise RuntimeError("vLLM no longer has CPUFusedMOE.check_grouped_gemm: check weight sync of experts on CPU")

    def check_grouped_gemm(self, layer) -> tuple[bool, str]:
        return False, "none"

    cpu_fused_moe.CPUFusedMOE.check_grouped_gemm = check_grouped_gemm


def _accurate_logprobs() -> None:
    from vllm.v1.sample.ops.topk_topp_sampler import TopKTopPSampler
    from vllm.v1.sample.sampler import Sampler

    Sampler.compute_logprobs = staticmethod(compute_logprobs)
    original = TopKTopPSampler.forward_cpu

    @functools.wraps(original)
    def forward_cpu(self, logits, generators, k, p):
        if self.logprobs_mode != "processed_logprobs":
            return original(self, logits, generators, k, p)
        self.logprobs_mode = "processed_logits"
        try:
            sampled, processed = original(self, logits, generators, k, p)
        finally:
            self.logprobs_mode = "processed_logprobs"
        return sampled, compute_logprobs(processed)

    TopKTopPSampler.forward_cpu = forward_cpu


def compute_logprobs(logits):
    """Log-probabilities (B, V) in fp32 of ``logits`` (B, V), with an accurate normaliser."""
    logits = logits.float()
    return logits - logits.logsumexp(dim=-1, keepdim=True)
