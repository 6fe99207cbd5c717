"""Is the checkpoint whole, in the released layout, with the tokens that the vision-language model needs?"""

from __future__ import annotations

from typing import Any

from utils.ckpt.hf_folder import missing_support_files
from utils.preflight.context import Context, readable
from utils.preflight.model_files import ModelFolder
from utils.preflight.results import NotChecked, Result, failed, gib, passed, some, warned

MODEL_TYPES = {"fsdp": "hunyuan_vl", "megatron": "hy_v3"}
VISION_TOKENS = {
    "image start": ("image_start_token_id", "im_start_id"),
    "image end": ("image_end_token_id", "im_end_id"),
    "image": ("image_token_id",),
    "image newline": ("image_newline_token_id", "im_newline_id"),
    "video start": ("video_start_id", "video_start_token_id"),
    "video end": ("video_end_id", "video_end_token_id"),
}
"""The six vision tokens, each with its keys in config.json."""
VLLM_IDS = {"image start": 120118, "image end": 120119, "image": 120120}
"""vLLM 0.25.1's processor for this model has these ids in its code."""
PROCESSOR_TOKENS = {"image_token": "image", "image_start_token": "image start", "image_end_token": "image end"}
RELEASED = "take config.json of the released checkpoint (a checkpoint's huggingface/ folder has it)"


def check_config(context: Context) -> list[Result]:
    check, settings = "model.config", context.settings
    if not settings.model_path:
        return [failed(check, "MODEL_PATH is not set", "set MODEL_PATH to the folder of the checkpoint")]
    try:
        config = context.model.config
    except (OSError, ValueError) as error:
        return [failed(check, str(error), "set MODEL_PATH to a HuggingFace checkpoint folder")]
    kind, wanted = config.get("model_type"), MODEL_TYPES[settings.path]
    if kind != wanted:
        remedy = f"set MODEL_PATH to a {wanted} checkpoint"
        return [failed(check, f"model_type is {kind!r}; this launcher trains {wanted!r}", remedy)]
    if settings.path == "megatron":
        return [passed(check, f"{kind}, {settings.model_path}")]
    problems = list(_layout_problems(config))
    if problems:
        return [failed(check, "; ".join(problems), RELEASED)]
    text = context.model.text
    shape = f"{text.layers} layers, {text.heads}/{text.kv_heads} heads of {text.head_dim}"
    return [passed(check, f"{kind}, {shape}, {settings.model_path}")]


def _layout_problems(config: dict[str, Any]) -> list[str]:
    """What vLLM 0.25.1 and the adaptations cannot read in a HunYuanVL configuration."""
    if "text_config" in config:
        return ["config.json has the nested layout (text_config), which vLLM 0.25.1 does not load"]
    problems = [
        f"config.json lacks {key}"
        for key in ("num_hidden_layers", "hidden_size", "num_attention_heads", "vocab_size", "vision_config")
        if key not in config
    ]
    sections = (config.get("rope_scaling") or {}).get("xdrope_section")
    if not isinstance(sections, list) or len(sections) != 4:
        problems.append(f"rope_scaling.xdrope_section is {sections}, not four numbers")
    elif "hidden_size" in config and "num_attention_heads" in config:
        half = (config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]) // 2
        if sum(sections) != half:
            problems.append(f"rope_scaling.xdrope_section adds up to {sum(sections)}, half a head is {half}")
    return problems


def check_weights(context: Context) -> list[Result]:
    check = "model.weights"
    model = _model(context)
    try:
        size, parameters, dtypes = model.weight_bytes, model.parameters, {info.dtype for info in model.tensors.values()}
    except (OSError, ValueError) as error:
        remedy = f"download or merge {model.folder} again: files of a few hundred bytes are Git LFS pointers"
        return [failed(check, str(error), remedy)]
    results = []
    # check_tokenizer asks for the template wherever it may be; a text model has no image processor.
    elsewhere = ("chat_template",) if context.settings.path == "fsdp" else ("chat_template", "processor_config")
    missing = [name for name in missing_support_files(model.folder) if not any(part in name for part in elsewhere)]
    if missing:
        remedy = "copy them from the released checkpoint"
        results.append(failed(check, f"{model.folder} lacks {some(missing)}", remedy))
    if not parameters:
        results.append(failed(check, f"{model.folder} holds no tensors", "download or merge it again"))
    found = f"{parameters / 1e6:,.0f}M parameters, {'/'.join(sorted(dtypes))}, {gib(size)}"
    return results or [passed(check, found)]


def check_tokenizer(context: Context) -> list[Result]:
    check = "model.tokenizer"
    model = _model(context)
    try:
        tokenizer, template = model.tokenizer, model.chat_template
    except (OSError, ValueError) as error:
        return [failed(check, str(error), "copy the tokenizer files from the released checkpoint")]
    results = []
    entries, vocab = tokenizer.get_vocab_size(), readable(lambda: model.text.vocab)
    if entries > vocab:
        found = f"the tokenizer has {entries} entries, the model {vocab} embeddings"
        results.append(failed(check, found, "use the tokenizer that belongs to this checkpoint"))
    results.extend(_end_token(model, tokenizer))
    if not template:
        remedy = "copy chat_template.jinja from the released checkpoint"
        results.append(failed(check, "there is no chat template: prompts cannot be built", remedy))
    elif context.settings.path == "fsdp":
        results.extend(_template(model))
    return results or [passed(check, f"{entries} entries, chat template of {len(template)} characters")]


def _end_token(model: ModelFolder, tokenizer: Any) -> list[Result]:
    entry = model.tokenizer_settings.get("eos_token")
    token = entry.get("content") if isinstance(entry, dict) else entry
    wanted = model.config.get("eos_token_id")
    ids = wanted if isinstance(wanted, list) else [wanted]
    found = tokenizer.token_to_id(token) if token else None
    if wanted is None or found in ids:
        return []
    message = f"the tokenizer's end token {token!r} has id {found}, config.json says {wanted}: answers would never end"
    return [failed("model.tokenizer", message, "use tokenizer and config.json of the same checkpoint")]


def _template(model: ModelFolder) -> list[Result]:
    from jinja2 import TemplateError

    parts = [{"type": "image"}, {"type": "text", "text": "Read the text."}]
    try:
        text = model.render([{"role": "user", "content": parts}])
    except TemplateError as error:
        remedy = "copy chat_template.jinja from the released checkpoint"
        return [failed("model.tokenizer", f"the chat template cannot be rendered: {error}", remedy)]
    image = model.config.get("image_token_id")
    count = model.tokenizer.encode(text, add_special_tokens=False).ids.count(image)
    if count == 1:
        return []
    found = f"the chat template writes {count} image tokens (id {image}) for one image"
    return [failed("model.tokenizer", found, "copy chat_template.jinja from the released checkpoint")]


def check_vision_tokens(context: Context) -> list[Result]:
    """The six vision tokens: named in the configuration, single special tokens of the tokenizer, and vLLM's ids."""
    check, model = "model.vision_tokens", _model(context)
    config, tokenizer = readable(lambda: model.config), readable(lambda: model.tokenizer)
    special = {index for index, token in tokenizer.get_added_tokens_decoder().items() if token.special}
    problems, ids = [], {}
    for name, keys in VISION_TOKENS.items():
        values = {config[key] for key in keys if key in config}
        if len(values) != 1:
            spoken = f"{' and '.join(keys)} disagree" if values else f"lacks {keys[0]}"
            problems.append(f"{name}: config.json {spoken}")
            continue
        ids[name] = index = values.pop()
        token = tokenizer.id_to_token(index)
        if token is None:
            problems.append(f"{name}: the tokenizer has no id {index}")
        elif index not in special:
            problems.append(f"{name}: {token!r} ({index}) is no special token of the tokenizer")
        elif tokenizer.encode(token, add_special_tokens=False).ids != [index]:
            problems.append(f"{name}: {token!r} is not read as one token ({index})")
        if name in VLLM_IDS and index != VLLM_IDS[name]:
            problems.append(f"{name}: id {index}, vLLM 0.25.1 expects {VLLM_IDS[name]}")
    for key, name in PROCESSOR_TOKENS.items():
        token = readable(lambda: model.tokenizer_settings).get(key)
        if isinstance(token, str) and name in ids and tokenizer.token_to_id(token) != ids[name]:
            problems.append(
                f"{name}: tokenizer_config.json names {token!r} ({tokenizer.token_to_id(token)}), not {ids[name]}"
            )
    if problems:
        remedy = "use config.json, tokenizer.json and tokenizer_config.json of the released checkpoint"
        return [failed(check, "; ".join(problems), remedy)]
    return [passed(check, ", ".join(f"{name} {index}" for name, index in ids.items()))]


def check_processor(context: Context) -> list[Result]:
    from verl_hyocr.image_tokens import ImageTokenRule

    check, model = "model.processor", _model(context)
    try:
        rule = ImageTokenRule.from_pretrained(model.folder)
    except (OSError, ValueError) as error:
        return [failed(check, str(error), "copy preprocessor_config.json from the released checkpoint")]
    vision = readable(lambda: model.config).get("vision_config") or {}
    patch = vision.get("patch_size", rule.patch_size)
    merge = vision.get("spatial_merge_size", rule.merge_size)
    if (rule.patch_size, rule.merge_size) != (patch, merge):
        found = f"the processor cuts patches of {rule.patch_size} and merges {rule.merge_size}, the model {patch} and {merge}"
        return [failed(check, found, "copy preprocessor_config.json from the released checkpoint")]
    if rule.min_pixels > rule.max_pixels:
        found = f"min_pixels {rule.min_pixels} is above max_pixels {rule.max_pixels}"
        return [failed(check, found, "copy preprocessor_config.json from the released checkpoint")]
    side = int(rule.max_pixels**0.5) // (patch * merge)
    most = side * (side + 1) + 2 * rule.cat_extra_token
    limit = context.settings.max_prompt_length
    if most > limit:
        found = f"a square image of {rule.max_pixels:,} pixels takes {most} tokens, MAX_PROMPT_LENGTH is {limit}"
        return [warned(check, found, f"set MAX_PROMPT_LENGTH={round_up(most + 256)}, or scale large pages down")]
    return [
        passed(
            check, f"patches of {patch} px, {rule.min_pixels:,} to {rule.max_pixels:,} pixels, at most {most} tokens"
        )
    ]


def round_up(tokens: int) -> int:
    """A length to suggest for ``tokens``: the next multiple of 256, of 32 for short ones."""
    unit = 256 if tokens > 512 else 32
    return -(-tokens // unit) * unit


def _model(context: Context) -> ModelFolder:
    if not context.model.folder.is_dir():
        raise NotChecked(f"{context.model.folder} is no folder")
    return context.model
