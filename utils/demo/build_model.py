"""Write a random-weight HunYuanVL checkpoint in the released layout.

    python -m utils.demo.build_model OUT [--size tiny|released] [--dtype float32] [--seed 0]

The folder has what the released checkpoint has: the flat ``config.json`` (which vLLM 0.25 insists on), weights under the
released names, tokenizer with the real special-token ids, processor and chat template. ``tiny`` is for CPUs and tests;
``released`` has HunyuanOCR-1.5's dimensions, for benchmarks. The weights are random; the tiny model's embedding rows of the
demo's alphabet lean to a common direction, so that sampled answers consist of these characters and rewards vary.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from pathlib import Path

ALPHABET = "01 "
"""Characters that answers of the demo model consist of (besides the end token)."""

BOS, EOS, PAD = "<｜hy_begin▁of▁sentence｜>", "<｜hy_Assistant_end｜>", "<｜hy_▁pad▁｜>"
USER, ASSISTANT = "<｜hy_User｜>", "<｜hy_Assistant｜>"
CONTROL_IDS = {BOS: 120000, EOS: 120001, PAD: 120002, USER: 120003, ASSISTANT: 120004}
IMAGE_START, IMAGE_END, IMAGE_PAD = "<｜hy_image▁start｜>", "<｜hy_image▁end｜>", "<｜hy_image▁pad｜>"
VISION_IDS = {
    IMAGE_START: 120118,
    IMAGE_END: 120119,
    IMAGE_PAD: 120120,
    "<｜hy_image▁newline｜>": 120121,
    "<｜hy_video▁start｜>": 120122,
    "<｜hy_video▁end｜>": 120123,
    "<｜hy_video▁pad｜>": 120124,
}
"""vLLM 0.25.1 hard-codes 120118 to 120120 and the pad id 120002: any test model must use them."""
VOCAB_SIZE = 120128

TEXT_SIZES = {
    "tiny": dict(
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=2048,
    ),
    "released": dict(
        hidden_size=1024,
        intermediate_size=3584,
        num_hidden_layers=24,
        num_attention_heads=16,
        num_key_value_heads=8,
        head_dim=128,
        max_position_embeddings=32768,
    ),
}
VISION_SIZES = {
    "tiny": dict(
        hidden_size=64,
        intermediate_size=128,
        num_attention_heads=4,
        num_hidden_layers=2,
        max_image_size=128,
        min_image_size=32,
        max_vit_seq_len=4096,
    ),
    "released": dict(
        hidden_size=1152,
        intermediate_size=4304,
        num_attention_heads=16,
        num_hidden_layers=27,
        max_image_size=2048,
        min_image_size=512,
        max_vit_seq_len=16384,
    ),
}
PIXELS = {"tiny": (32 * 32, 128 * 128), "released": (512 * 512, 2048 * 2048)}
INIT_STD = {"tiny": 0.1, "released": 0.02}

CHAT_TEMPLATE = (
    "{{ '" + BOS + "' }}{% for m in messages %}"
    "{% if m['role'] == 'assistant' %}{{ '"
    + ASSISTANT
    + "' }}{% elif m['role'] == 'user' %}{{ '"
    + USER
    + "' }}{% endif %}"
    "{% if m['content'] is string %}{{ m['content'] }}{% else %}{% for c in m['content'] %}"
    "{% if c['type'] == 'image' or 'image' in c %}{{ '" + IMAGE_START + IMAGE_PAD + IMAGE_END + "' }}"
    "{% elif c['type'] == 'text' %}{{ c['text'] }}{% endif %}{% endfor %}{% endif %}"
    "{% if m['role'] == 'assistant' %}{{ '" + EOS + "' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '" + ASSISTANT + "' }}{% endif %}"
)


def build_tokenizer():
    """A byte-level tokenizer of 120,125 entries with the released special tokens at their ids."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    taken = {**{index: char for index, char in enumerate(alphabet)}}
    taken.update({index: token for token, index in {**CONTROL_IDS, **VISION_IDS}.items()})
    vocab = {taken.get(index, f"<f{index}>"): index for index in range(max(taken) + 1)}
    core = Tokenizer(models.BPE(vocab=vocab, merges=[], byte_fallback=False))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token in (*CONTROL_IDS, *VISION_IDS)]
    )
    vision = list(VISION_IDS)
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        bos_token=BOS,
        eos_token=EOS,
        pad_token=PAD,
        chat_template=CHAT_TEMPLATE,
        extra_special_tokens={
            "image_token": IMAGE_PAD,
            "image_start_token": IMAGE_START,
            "image_end_token": IMAGE_END,
            "video_token": vision[6],
            "video_start_token": vision[4],
            "video_end_token": vision[5],
        },
    )


def flat_config(size: str, dtype: str) -> dict:
    """The released, flat layout of ``config.json`` for a size."""
    text = TEXT_SIZES[size]
    quarter = text["head_dim"] // 8
    return {
        "architectures": ["HunYuanVLForConditionalGeneration"],
        "model_type": "hunyuan_vl",
        "dtype": dtype,
        "torch_dtype": dtype,
        "vocab_size": VOCAB_SIZE,
        "org_vocab_size": VOCAB_SIZE,
        **text,
        "attention_head_dim": text["head_dim"],
        "hidden_act": "silu",
        "initializer_range": INIT_STD[size],
        "rms_norm_eps": 1e-5,
        "use_cache": True,
        "use_qk_norm": True,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "mlp_bias": False,
        "use_cla": False,
        "pad_token_id": CONTROL_IDS[PAD],
        "pad_id": CONTROL_IDS[PAD],
        "bos_token_id": CONTROL_IDS[BOS],
        "eos_token_id": CONTROL_IDS[EOS],
        "eod_token_id": CONTROL_IDS[EOS],
        "sep_token_id": 4,
        "tie_word_embeddings": True,
        "rope_theta": 10000.0,
        "rope_scaling": {
            "alpha": 1000.0,
            "beta_fast": 32,
            "beta_slow": 1,
            "factor": 1.0,
            "mscale": 1.0,
            "mscale_all_dim": 1.0,
            "type": "xdrope",
            "xdrope_section": [quarter] * 4,
        },
        "image_token_id": VISION_IDS[IMAGE_PAD],
        "image_start_token_id": VISION_IDS[IMAGE_START],
        "image_end_token_id": VISION_IDS[IMAGE_END],
        "image_newline_token_id": 120121,
        "im_start_id": VISION_IDS[IMAGE_START],
        "im_end_id": VISION_IDS[IMAGE_END],
        "im_newline_id": 120121,
        "video_start_id": 120122,
        "video_end_id": 120123,
        "vision_config": {
            "model_type": "hunyuan_vl",
            "hidden_act": "gelu",
            "interpolate_mode": "bilinear",
            "num_channels": 3,
            **VISION_SIZES[size],
            "out_hidden_size": text["hidden_size"],
            "text_hidden_size": text["hidden_size"],
            "patch_size": 16,
            "spatial_merge_size": 2,
            "temporal_patch_size": 1,
            "img_max_token_num": 4096,
            "rms_norm_eps": 1e-5,
        },
    }


def _tilt_to_alphabet(model, tokenizer) -> None:
    """Make the tiny model answer in the demo's alphabet, with some length.

    The residual branches of the text model are shrunk, which leaves the last hidden state (RMS 1 after the norm) close to the
    direction of the last token's embedding. Rows of the alphabet, of the end token and of what precedes an answer share one
    direction of norm s, for a logit of about s·sqrt(hidden) where the other 120,000 rows have about 0 and weigh e^11.7.
    """
    import torch

    for layer in model.model.language_model.layers:
        layer.self_attn.o_proj.weight.data *= 0.25
        layer.mlp.down_proj.weight.data *= 0.25
    table = model.get_input_embeddings().weight.data
    hidden = table.shape[1]
    generator = torch.Generator().manual_seed(1)
    direction = torch.randn(hidden, generator=generator)
    direction /= direction.norm()
    strength = 24.0 / hidden**0.5
    answer_ids = [*tokenizer(ALPHABET, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id]
    noise = torch.randn(len(answer_ids), hidden, generator=generator) * (0.4 / hidden**0.5)
    for row, index in enumerate(answer_ids):
        table[index] = (strength * direction + noise[row]).to(table.dtype)
    # Tied weights: what precedes an answer must be able to set the direction without being sampled itself.
    table[tokenizer.convert_tokens_to_ids(ASSISTANT)] = (0.8 * strength * direction).to(table.dtype)
    table[tokenizer.eos_token_id] *= 0.88
    table[answer_ids[ALPHABET.index(" ")]] *= 0.92


def build(out: str | os.PathLike, size: str = "tiny", dtype: str = "float32", seed: int = 0) -> Path:
    """Write the checkpoint; a folder that is already complete for these arguments is left alone.

    Raises:
        FileExistsError: when ``out`` exists and is not a checkpoint that this function wrote.
    """
    out = Path(out)
    stamp = json.dumps({"size": size, "dtype": dtype, "seed": seed, "format": 6}, sort_keys=True)
    stamp_file = out / "demo_model.json"
    if stamp_file.exists() and stamp_file.read_text() == stamp:
        return out
    if out.exists() and any(out.iterdir()) and not stamp_file.exists():
        raise FileExistsError(f"{out} exists and was not written by this builder; choose another folder")

    import torch
    from transformers.models.hunyuan_vl import HunYuanVLConfig, HunYuanVLForConditionalGeneration, HunYuanVLProcessor
    from transformers.models.hunyuan_vl.image_processing_pil_hunyuan_vl import HunYuanVLImageProcessorPil

    temporary = out.with_name(f".{out.name}.{os.getpid()}")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    raw = flat_config(size, dtype)
    (temporary / "config.json").write_text(json.dumps(raw, indent=1))

    tokenizer = build_tokenizer()
    low, high = PIXELS[size]
    processor = HunYuanVLProcessor(
        image_processor=HunYuanVLImageProcessorPil(min_pixels=low, max_pixels=high),
        tokenizer=tokenizer,
        chat_template=CHAT_TEMPLATE,
    )
    torch.manual_seed(seed)
    config = HunYuanVLConfig.from_pretrained(temporary)
    torch_dtype = getattr(torch, dtype)
    with torch.device("cuda" if size == "released" and torch.cuda.is_available() else "cpu"):
        model = HunYuanVLForConditionalGeneration(config)
    model = model.to("cpu").float()
    if size == "tiny":
        _tilt_to_alphabet(model, tokenizer)
    model.to(torch_dtype).save_pretrained(temporary)
    # save_pretrained wrote transformers' nested layout; the released one is flat.
    (temporary / "config.json").write_text(json.dumps(raw, indent=1))
    generation = {
        "bos_token_id": raw["bos_token_id"],
        "eos_token_id": raw["eos_token_id"],
        "pad_token_id": raw["pad_token_id"],
    }
    (temporary / "generation_config.json").write_text(json.dumps(generation, indent=1))
    processor.save_pretrained(temporary)
    (temporary / "demo_model.json").write_text(stamp)
    shutil.rmtree(out, ignore_errors=True)
    os.replace(temporary, out)
    return out


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("out", help="folder to write")
    parser.add_argument("--size", choices=sorted(TEXT_SIZES), default="tiny")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(argv)
    try:
        path = build(args.out, args.size, args.dtype, args.seed)
    except FileExistsError as error:
        print(f"build_model: {error}", file=sys.stderr)
        return 2
    print(f"{path}: {args.size} HunYuanVL, {args.dtype}, random weights")
    return 0


if __name__ == "__main__":
    sys.exit(main())
