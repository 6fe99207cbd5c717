"""Token counts from sizes alone, against the processor that resizes and counts for real."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from verl_hyocr.image_tokens import ImageTokenRule

from data import prepare_data
from data.token_counts import TokenCounter

sides = st.integers(1, 700)


def chat(text, images):
    return [{"role": "user", "content": [*({"type": "image"} for _ in range(images)), {"type": "text", "text": text}]}]


def processed_length(processor, messages, sizes):
    text = processor.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    images = [Image.new("RGB", size) for size in sizes]
    return len(processor(text=[text], images=images)["input_ids"][0])


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(sides, sides), min_size=1, max_size=3), st.text(max_size=30))
def test_a_prompt_counts_as_the_processor_makes_it(processor, processor_folder, sizes, text):
    if any(max(size) > 200 * min(size) for size in sizes):
        return
    text = "".join(char for char in text if char not in "<>")
    counter = _counter(processor_folder)
    content = "<image>" * len(sizes) + text
    expected = processed_length(processor, chat(text, len(sizes)), sizes)
    assert counter.prompt([{"role": "user", "content": content}], sizes) == expected


_counters = {}


def _counter(folder):
    return _counters.setdefault(folder, TokenCounter(str(folder)))


@settings(max_examples=300, deadline=None)
@given(st.integers(1, 9000), st.integers(1, 9000), st.sampled_from([(16, 2), (14, 2), (16, 1)]), st.integers(10, 22))
def test_the_size_rule_is_the_processors(width, height, patch, low):
    from transformers.models.hunyuan_vl.image_processing_pil_hunyuan_vl import smart_resize

    rule = ImageTokenRule(patch_size=patch[0], merge_size=patch[1], min_pixels=2**low, max_pixels=2 ** (low + 3))
    arguments = dict(factor=patch[0] * patch[1], min_pixels=rule.min_pixels, max_pixels=rule.max_pixels)
    try:
        expected = smart_resize(height, width, **arguments)[::-1]
    except ValueError:
        with pytest.raises(ValueError, match="aspect ratio"):
            rule.target_size(width, height)
        return
    assert rule.target_size(width, height) == expected


def test_the_rule_reads_settings_in_both_places_and_spellings(tmp_path, processor, processor_folder):
    assert ImageTokenRule.from_pretrained(processor_folder) == ImageTokenRule.from_processor(processor)
    flat = {"min_pixels": 1024, "max_pixels": 2048, "patch_size": 14, "merge_size": None}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(flat))
    rule = ImageTokenRule.from_pretrained(tmp_path)
    assert (rule.min_pixels, rule.max_pixels, rule.patch_size, rule.merge_size) == (1024, 2048, 14, 2)
    with pytest.raises(FileNotFoundError, match="preprocessor_config"):
        ImageTokenRule.from_pretrained(tmp_path / "none")


def test_what_counts_as_scaling():
    rule = ImageTokenRule()
    assert rule.scale(2048, 2048) == "" and rule.scale(512, 512) == ""
    assert rule.scale(2080, 2048) == "down" and rule.scale(480, 512) == "up"
    assert rule.tokens(512, 512) == 16 * 17 + 2
    with pytest.raises(ValueError, match="no content"):
        rule.tokens(0, 5)


def test_the_statistics_count_tokens_and_the_share_that_training_drops(processor, processor_folder, tmp_path, capsys):
    sizes = [(64, 64), (64, 96), (200, 200), (640, 320)]
    records, lengths = [], []
    for number, size in enumerate(sizes):
        Image.new("RGB", size, (number, 0, 0)).save(tmp_path / f"{number}.png")
        records.append({"image": f"{number}.png", "question": "Read", "ref_answer": "abc", "task_type": "VQA"})
        lengths.append(processed_length(processor, chat("Read", 1), [size]))
    (tmp_path / "in.jsonl").write_text("\n".join(map(json.dumps, records)))
    args = ["--inputs", str(tmp_path / "in.jsonl"), "--output_train", str(tmp_path / "t.parquet"), "--workers", "1"]
    args += ["--model", str(processor_folder), "--max-prompt-length", str(sorted(lengths)[1]), "--json", "--stats"]
    assert prepare_data.main([*args, "--quiet"]) == 0
    report = json.loads(capsys.readouterr().out)["stats"]
    found = report["tasks"]["VQA"]
    assert report["length_unit"] == "tokens"
    assert found["prompt_length"] == {
        "p50": sorted(lengths)[1],
        "p95": max(lengths),
        "max": max(lengths),
    }
    assert found["over_max_prompt_length"] == 2
    assert found["answer_length"]["max"] == len(processor.tokenizer("abc")["input_ids"])
    assert found["images_shrunk"] == 1
    assert prepare_data.main(args) == 0
    assert f"prompt > {sorted(lengths)[1]}" in capsys.readouterr().err
