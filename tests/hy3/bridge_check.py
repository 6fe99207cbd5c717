"""Hy3 through Megatron-Bridge and back, in one process, also without a GPU.

    python tests/hy3/bridge_check.py MODEL        (needs megatron-core and megatron-bridge; prints one JSON line)

HuggingFace weights -> Megatron model -> HuggingFace weights must be bit-equal, and the Megatron model's logits those of
transformers. On a CPU it uses Megatron's own layers (``transformer_impl=local``, one matrix product an expert). Megatron-Bridge
0.6.2 cannot be imported without Transformer Engine: where that is not installed, an empty stand-in takes its place, which is
enough for the conversion and never computes anything. CUDA is stubbed likewise.
"""

from __future__ import annotations

import contextlib
import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import socket
import sys
import types
import typing


class _Anything(type):
    """A class that has every attribute."""

    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return _Anything(name, (), {})


class _StandIn(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports ``transformer_engine`` and everything below it as empty modules."""

    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "transformer_engine":
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        module = types.ModuleType(spec.name)
        module.__path__, module.__version__ = [], "0"

        def attribute(name):
            if name.startswith("__"):
                raise AttributeError(name)
            return _Anything(name, (), {})

        module.__getattr__ = attribute
        return module

    def exec_module(self, module):
        pass


def main() -> int:
    if len(sys.argv) != 2 or sys.argv[1] in ("-h", "--help"):
        print(__doc__)
        return 0 if len(sys.argv) == 2 else 2
    model_path = sys.argv[1]
    if sys.version_info < (3, 12):  # Megatron's own floor; the conversion code only needs this name
        from typing_extensions import override

        typing.override = override
    # Before the stand-in, so that Megatron itself knows that Transformer Engine is not there.
    import megatron.core
    import torch
    from megatron.core import parallel_state
    from megatron.core.models.gpt.gpt_model import GPTModel  # noqa: F401
    from megatron.core.tensor_parallel.random import CudaRNGStatesTracker

    stand_in = importlib.util.find_spec("transformer_engine") is None
    if stand_in:
        sys.meta_path.append(_StandIn())
    from megatron.bridge import AutoBridge
    from megatron.bridge.models.hy_v3 import hy_v3_bridge

    hy_v3_bridge.HAVE_TE = False
    if not torch.cuda.is_available():
        torch.cuda.current_device = lambda: "cpu"
        # Dropout is off: no random numbers are drawn.
        CudaRNGStatesTracker.fork = lambda *args, **kwargs: contextlib.nullcontext()
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK="0", WORLD_SIZE="1", LOCAL_RANK="0")
    torch.distributed.init_process_group("gloo", rank=0, world_size=1)
    parallel_state.initialize_model_parallel(1, 1)

    bridge = AutoBridge.from_hf_pretrained(model_path, trust_remote_code=True)
    provider = bridge.to_megatron_provider(load_weights=False)
    settings = {
        "params_dtype": torch.float32,
        "bf16": False,
        "autocast_dtype": torch.float32,
        "transformer_impl": "local",
        "use_cpu_initialization": True,
        "moe_grouped_gemm": False,
        "moe_permute_fusion": False,
        "moe_token_dispatcher_type": "allgather",
        "gradient_accumulation_fusion": False,
        "apply_rope_fusion": False,
        "bias_dropout_fusion": False,
        "masked_softmax_fusion": False,
    }
    for name, value in settings.items():
        setattr(provider, name, value)
    provider.finalize()
    model = provider.provide(pre_process=True, post_process=True).eval()
    bridge.load_hf_weights([model], model_path)
    exported = {entry[0]: entry[1] for entry in bridge.export_hf_weights([model], cpu=True, show_progress=False)}

    from safetensors.torch import load_file
    from transformers.models.hy_v3 import HYV3ForCausalLM

    on_disk = load_file(os.path.join(model_path, "model.safetensors"))
    equal = [
        name for name in on_disk if name in exported and torch.equal(exported[name].float(), on_disk[name].float())
    ]
    biases = [name for name in on_disk if name.endswith("mlp.expert_bias")]

    reference = HYV3ForCausalLM.from_pretrained(model_path, dtype="float32").eval()
    tokens = torch.arange(3, 35)[None]
    with torch.no_grad():
        wanted = reference(tokens).logits
        mask = torch.ones(1, 1, 32, 32, dtype=torch.bool).triu(1)
        found = model(tokens, torch.arange(32)[None], mask)
    found = found[..., : wanted.shape[-1]]
    print(
        "BRIDGE "
        + json.dumps(
            {
                "megatron_core": megatron.core.__version__,
                "transformer_engine": "stand-in" if stand_in else "installed",
                "tensors": len(on_disk),
                "bit_equal": len(equal),
                "missing": sorted(set(on_disk) - set(exported)),
                "unknown": sorted(set(exported) - set(on_disk)),
                "bias_equal": bool(biases) and all(name in equal for name in biases),
                "logits_max_abs_diff": (found - wanted).abs().max().item(),
                "logits_max_abs": wanted.abs().max().item(),
            }
        ),
        flush=True,
    )
    torch.distributed.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
