"""Write a tiny random-weight Hy3 checkpoint (HYV3ForCausalLM) in the released layout, for tests and dry trials.

    python verl/examples/hy3/build_tiny_model.py OUT [--dtype float32|bfloat16] [--layers 4] [--experts 8] [--seed 0]

The folder loads in transformers, vLLM and Megatron-Bridge: released weight names (one tensor an expert, ``router.gate``,
``expert_bias``, ``shared_mlp``), a ``config.json`` with the released keys as well as transformers' own, a byte-level
tokenizer and a chat template. The routing bias of every expert is random, so that a run which changes it is noticed.
Answers consist of digits and end early now and then, so that their lengths, and with them DAPO's overlong rewards, vary.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from pathlib import Path

BOS, EOS, PAD, USER, ASSISTANT = "<|begin|>", "<|end|>", "<|pad|>", "<|user|>", "<|assistant|>"
SPECIALS = (BOS, EOS, PAD, USER, ASSISTANT)
ALPHABET = "0123456789"
VOCAB_SIZE = 512
"""256 bytes, the specials, and filler tokens: verl bars the rollout from ids that the tokenizer does not have, so that ids
without a token would weigh in the actor's probabilities only. A power of two divides by any tensor-parallel size."""

CHAT_TEMPLATE = (
    "{{ '" + BOS + "' }}{% for m in messages %}"
    "{{ '" + ASSISTANT + "' if m['role'] == 'assistant' else '" + USER + "' }}{{ m['content'] }}"
    "{% if m['role'] == 'assistant' %}{{ '" + EOS + "' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '" + ASSISTANT + "' }}{% endif %}"
)


def build_tokenizer():
    """Byte-level tokenizer of VOCAB_SIZE entries: bytes, the specials, fillers that no text contains."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocab = {char: index for index, char in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    vocab |= {token: len(vocab) + index for index, token in enumerate(SPECIALS)}
    vocab |= {f"<f{index}>": index for index in range(len(vocab), VOCAB_SIZE)}
    core = Tokenizer(models.BPE(vocab=vocab, merges=[], byte_fallback=False))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIALS])
    return PreTrainedTokenizerFast(
        tokenizer_object=core, bos_token=BOS, eos_token=EOS, pad_token=PAD, chat_template=CHAT_TEMPLATE
    )


def config_dict(tokenizer, layers: int, experts: int, dtype: str) -> dict:
    """``config.json``: the released keys (vLLM, Megatron-Bridge read these) and transformers' names for the same sizes."""
    return {
        "architectures": ["HYV3ForCausalLM"],
        "model_type": "hy_v3",
        "torch_dtype": dtype,
        "vocab_size": VOCAB_SIZE,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "hidden_act": "silu",
        "max_position_embeddings": 4096,
        "initializer_range": 0.1,
        "rms_norm_eps": 1e-5,
        "rope_parameters": {"rope_type": "default", "rope_theta": 11158840.0},
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
        "tie_word_embeddings": False,
        "num_experts": experts,
        "num_experts_per_tok": 2,
        "num_shared_experts": 1,
        "expert_hidden_dim": 32,
        "moe_intermediate_size": 32,
        "first_k_dense_replace": 1,
        "mlp_layer_types": ["dense"] + ["sparse"] * (layers - 1),
        "router_scaling_factor": 2.826,
        "qk_norm": True,
        "route_norm": True,
        "moe_router_use_sigmoid": True,
        "moe_router_enable_expert_bias": True,
        "use_grouped_mm": False,
        "enable_lm_head_fp32": True,
        "enable_moe_fp32_combine": False,
        "enable_attention_fp32_softmax": False,
        "output_router_logits": False,
        "num_nextn_predict_layers": 0,
    }


def _tilt_to_digits(model, tokenizer) -> None:
    """Give every input one common direction that the head reads as "a digit or the end"."""
    import torch

    # Small residual branches leave the last hidden state close to the embedding.
    for layer in model.model.layers:
        layer.self_attn.o_proj.weight.data *= 0.25
        experts = getattr(layer.mlp, "experts", layer.mlp)
        down = experts.down_proj
        (down.weight if hasattr(down, "weight") else down).data.mul_(0.25)
        if experts is not layer.mlp:
            layer.mlp.shared_experts.down_proj.weight.data *= 0.25
    generator = torch.Generator().manual_seed(1)
    table, head = model.get_input_embeddings().weight.data, model.get_output_embeddings().weight.data
    direction = torch.randn(table.shape[1], generator=generator)
    direction /= direction.norm()
    table += 2.0 * direction
    wanted = [*tokenizer(ALPHABET, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id]
    head[wanted] += 1.5 * direction
    head[tokenizer.eos_token_id] -= 0.2 * direction


def build(out: str | os.PathLike, *, layers: int = 4, experts: int = 8, dtype: str = "float32", seed: int = 0) -> Path:
    """Write the checkpoint; a folder that is complete for these arguments is left alone.

    Raises:
        ValueError: fewer than 2 layers (the first is dense) or fewer than 2 experts.
        FileExistsError: when ``out`` is not empty and was not written by this function.
    """
    if layers < 2 or experts < 2:
        raise ValueError(f"Hy3 needs at least 2 layers and 2 experts, got {layers} and {experts}")
    out = Path(out)
    stamp = json.dumps(
        {"layers": layers, "experts": experts, "dtype": dtype, "seed": seed, "format": 2}, sort_keys=True
    )
    stamp_file = out / "tiny_hy3.json"
    if stamp_file.exists() and stamp_file.read_text() == stamp:
        return out
    if out.exists() and any(out.iterdir()) and not stamp_file.exists():
        raise FileExistsError(f"{out} exists and was not written by this builder; choose another folder")

    import torch
    from transformers.models.hy_v3 import HYV3Config, HYV3ForCausalLM

    temporary = out.with_name(f".{out.name}.{os.getpid()}")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    tokenizer = build_tokenizer()
    raw = config_dict(tokenizer, layers, experts, dtype)
    (temporary / "config.json").write_text(json.dumps(raw, indent=1))
    torch.manual_seed(seed)
    model = HYV3ForCausalLM(HYV3Config.from_pretrained(temporary)).float()
    for layer in model.model.layers[1:]:
        layer.mlp.e_score_correction_bias.normal_(std=0.2)
    # Norms of 1 would hide a library that does not load them.
    for name, parameter in model.named_parameters():
        if name.endswith("norm.weight"):
            torch.nn.init.normal_(parameter, mean=1.0, std=0.1)
    _tilt_to_digits(model, tokenizer)
    bias = {name: buffer.clone() for name, buffer in model.named_buffers() if name.endswith("e_score_correction_bias")}
    model.to(getattr(torch, dtype))
    for name, buffer in model.named_buffers():
        if name in bias:
            buffer.data = bias[name]  # stays fp32 in every checkpoint
    model.save_pretrained(temporary)
    # save_pretrained wrote transformers' keys only.
    (temporary / "config.json").write_text(json.dumps(raw, indent=1))
    tokenizer.save_pretrained(temporary)
    (temporary / "tiny_hy3.json").write_text(stamp)
    shutil.rmtree(out, ignore_errors=True)
    os.replace(temporary, out)
    return out


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("out", help="folder to write")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--layers", type=int, default=4, help="the first is dense (default 4)")
    parser.add_argument("--experts", type=int, default=8, help="routed experts; 2 are used by a token (default 8)")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(argv)
    try:
        path = build(args.out, layers=args.layers, experts=args.experts, dtype=args.dtype, seed=args.seed)
    except (ValueError, FileExistsError) as error:
        print(f"build_tiny_model: {error}", file=sys.stderr)
        return 2
    print(f"{path}: tiny Hy3, {args.layers} layers, {args.experts} experts, {args.dtype}, random weights")
    return 0


if __name__ == "__main__":
    sys.exit(main())
