"""prepare_data.py as its users meet it: command lines in, files and exit codes out."""

import gzip
import io
import json
import random
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from PIL import Image

from data import prepare_data
from data.rejects import REJECT_KINDS, WARNING_KINDS
from data.schema import SCHEMA

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def page(tmp_path):
    """A folder with distinct images p0.png ... p9.png of a size the model does not resize."""
    for number in range(10):
        Image.new("RGB", (640, 512), (number, 10, 20)).save(tmp_path / f"p{number}.png")
    return tmp_path


def record(**changes):
    base = {"image": "p0.png", "ref_answer": "text", "question": "Read it.", "task_type": "Parsing"}
    return {name: value for name, value in {**base, **changes}.items() if value is not None}


def write(folder, *records, name="in.jsonl"):
    path = folder / name
    path.write_text("".join(json.dumps(r, ensure_ascii=False) + "\n" for r in records), encoding="utf-8")
    return path


def run(folder, *inputs, extra=()):
    """Exit code of a run that puts everything into `out.parquet`."""
    args = ["--inputs", *map(str, inputs), "--output_train", str(folder / "out.parquet")]
    return prepare_data.main([*args, "--workers", "1", "--quiet", *extra])


def rows(folder, name="out.parquet"):
    return pq.read_table(folder / name).to_pylist()


def findings(folder, kind="rejects"):
    path = folder / f"out.parquet.{kind}.jsonl"
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def only_row(folder, *records, extra=()):
    assert run(folder, write(folder, *records), extra=extra) == 0, findings(folder)
    (row,) = rows(folder)
    return row


def reject(folder, rec, extra=()):
    assert run(folder, write(folder, rec), extra=extra) == 1
    assert json.loads((folder / "out.parquet.report.json").read_text())["written"] is False
    (found,) = findings(folder)
    assert found["kind"] in REJECT_KINDS
    assert found["line"] == 1 and found["file"] == str(folder / "in.jsonl")
    assert json.loads(found["raw"]) == rec
    return found["kind"], found["field"]


# -- the output row --


def test_the_simple_record_becomes_the_documented_row(page):
    row = only_row(page, record(extra="dropped", source_lang_text="Hallo", target_lang="en"))
    path = str(page / "p0.png")
    identity = row["extra_info"].pop("id")
    assert len(identity) == 32
    assert row == {
        "data_source": "Parsing",
        "prompt": [{"role": "user", "content": "<image>Read it."}],
        "images": [path],
        "reward_model": {"style": "rule", "ground_truth": "text"},
        "extra_info": {
            "task_type": "Parsing",
            "question": "Read it.",
            "img_path": [path],
            "source_lang_text": "Hallo",
            "target_lang": "en",
            "index": 0,
            "split": "train",
        },
    }


def test_every_file_has_the_one_schema_and_no_nulls(page):
    source = write(page, record(), record(image="p1.png", task_type="VQA", ref_answer=3, question=""))
    assert run(page, source, extra=["--output_val", str(page / "val.parquet"), "--val_ratio", "0"]) == 0
    assert not (page / "val.parquet").exists()
    table = pq.read_table(page / "out.parquet")
    assert table.schema.equals(SCHEMA, check_metadata=False)
    assert all(not field.nullable for field in SCHEMA)
    assert {row["reward_model"]["ground_truth"] for row in table.to_pylist()} == {"text", "3"}


def test_verl_reads_the_paths_as_images(page):
    from verl.utils.dataset.rl_dataset import RLHFDataset

    row = only_row(page, record())
    dataset = RLHFDataset.__new__(RLHFDataset)
    dataset.image_key, dataset.video_key, dataset.audio_key = "images", "videos", "audios"
    dataset.processor = object()
    (message,) = dataset._build_messages(row, "prompt")
    image, text = message["content"]
    assert (image["type"], image["image"]) == ("image", str(page / "p0.png"))
    assert text == {"type": "text", "text": "Read it."}


@pytest.mark.parametrize("answer", [{"日期": "2024", "n": [1, None]}, [1, 2], 2.5, False])
def test_an_answer_that_is_no_text_becomes_json(page, answer):
    row = only_row(page, record(task_type="VQA", ref_answer=answer))
    assert row["reward_model"]["ground_truth"] == json.dumps(answer, ensure_ascii=False)


def test_numbers_of_a_reference_keep_their_spelling(page):
    answer = '{"总额": 12.50, "n": [1e3, -0.0, 7], "big": 1e999}'
    source = write(page, record(ref_answer="ANSWER"))
    source.write_text(source.read_text().replace('"ANSWER"', answer))
    assert run(page, source) == 0
    assert rows(page)[0]["reward_model"]["ground_truth"] == answer


def test_data_source_defaults_to_the_task_type_as_written(page):
    assert only_row(page, record(task_type="rule_based_parsing"))["data_source"] == "rule_based_parsing"
    row = only_row(page, record(), extra=["--data-source", "mine"])
    assert (row["data_source"], row["extra_info"]["task_type"]) == ("mine", "Parsing")


def test_the_task_type_option_names_the_task_of_records_that_do_not(page):
    row = only_row(page, record(task_type=None), extra=["--task-type", "视觉问答"])
    assert row["extra_info"]["task_type"] == "视觉问答"
    assert reject(page, record(), extra=["--task_type", "VQA"]) == ("task_type_conflict", "task_type")


# -- prompts --


def test_one_placeholder_an_image_when_the_prompt_is_omitted(page):
    row = only_row(page, record(image=None, images=["p0.png", "p1.png"]))
    assert row["prompt"] == [{"role": "user", "content": "<image><image>Read it."}]
    assert row["images"] == [str(page / "p0.png"), str(page / "p1.png")]


def test_a_text_prompt_keeps_its_placeholders_or_gets_them_in_front(page):
    placed = only_row(page, record(prompt="First <image> then read."))
    assert placed["prompt"] == [{"role": "user", "content": "First <image> then read."}]
    bare = only_row(page, record(prompt="Read all."))
    assert bare["prompt"] == [{"role": "user", "content": "<image>Read all."}]
    assert bare["extra_info"]["question"] == "Read it."


def test_chat_messages_with_openai_parts(page):
    prompt = [
        {"role": "system", "content": "You read."},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "Look: "},
                {"type": "image_url", "image_url": {"url": (page / "p3.png").as_uri()}},
                {"type": "text", "text": "read"},
            ],
        },
    ]
    row = only_row(page, record(image=None, prompt=prompt))
    assert row["prompt"] == [
        {"role": "system", "content": "You read."},
        {"role": "user", "content": "Look: <image>read"},
    ]
    assert row["images"] == [str(page / "p3.png")]


def test_stray_media_tags_are_rejected_or_written_apart(page):
    rec = record(question="What does <image> or <video> do in HTML?")
    assert reject(page, rec) == ("stray_media_tag", "question")
    row = only_row(page, rec, extra=["--escape-media-tags"])
    assert row["prompt"][0]["content"] == "<image>What does < image> or < video> do in HTML?"
    assert row["extra_info"]["question"] == rec["question"]
    assert [found["kind"] for found in findings(page, "warnings")] == ["escaped_tag"]


# -- the SFT layouts --


@pytest.mark.parametrize("mount", ["img_path_sh", "img_path_cq"])
def test_turns_layout(page, mount):
    row = only_row(
        page, {mount: str(page / "p1.png"), "conv": [{"question": "Read.", "answer": "abc"}], "task_type": "Parsing"}
    )
    assert row["prompt"] == [{"role": "user", "content": "<image>Read."}]
    assert row["reward_model"]["ground_truth"] == "abc"
    assert row["extra_info"]["question"] == "Read."


def test_chat_layout(page):
    turns = [
        {"from": "system", "value": "Be exact."},
        {"from": "human", "value": "<image>\nRead."},
        {"from": "gpt", "value": "abc"},
        {"from": "human", "value": "Again?"},
    ]
    row = only_row(page, {"image_path": ["p1.png"], "conversations": turns, "task_type": "Parsing"})
    assert [message["content"] for message in row["prompt"]] == ["Be exact.", "<image>\nRead."]
    assert row["extra_info"]["question"] == "Read."
    assert row["reward_model"]["ground_truth"] == "abc"
    assert [found["kind"] for found in findings(page, "warnings")] == ["extra_turns"]


def test_chat_layout_without_a_mark_gets_it_in_front(page):
    turns = [{"from": "human", "value": "Read."}, {"from": "gpt", "value": "abc"}]
    row = only_row(page, {"image_path": "p1.png", "conversations": turns, "task_type": "Parsing"})
    assert row["prompt"] == [{"role": "user", "content": "<image>Read."}]


def test_an_output_can_be_an_input(page):
    assert run(page, write(page, *(record(image=f"p{n}.png", ref_answer=f"t{n}") for n in range(6)))) == 0
    first = rows(page)
    again = page / "again"
    again.mkdir()
    args = ["--inputs", str(page / "out.parquet"), "--output_train", str(again / "out.parquet"), "--workers", "1"]
    assert prepare_data.main([*args, "--quiet"]) == 0
    assert rows(again) == first


# -- rejects of single records --

BROKEN = [
    (record(image=None), "missing_image", "images"),
    (record(image=""), "missing_image", "images"),
    (record(image=5), "image_type", "image"),
    (record(image=["p0.png", None]), "image_type", "image"),
    (record(img_path="p1.png"), "image_conflict", "img_path"),
    (record(ref_answer=None), "missing_reference", "ref_answer"),
    (record(question=None), "missing_question", "question"),
    (record(question=3), "field_type", "question"),
    (record(task_type=None), "missing_task_type", "task_type"),
    (record(task_type="ocr"), "unknown_task_type", "task_type"),
    (record(task_type="layout_parsing"), "ambiguous_task_type", "task_type"),
    (record(task_type=["Parsing"]), "field_type", "task_type"),
    (record(prompt=4), "field_type", "prompt"),
    (record(prompt=["hello"]), "prompt_message", "prompt[0]"),
    (record(prompt=[{"role": "user", "content": 1}]), "prompt_message", "prompt[0].content"),
    (record(prompt=[{"role": "user", "content": [{"type": "video"}]}]), "prompt_part", "prompt[0].content[0]"),
    (record(prompt=[{"role": "assistant", "content": "<image>"}]), "prompt_last_role", "prompt"),
    (record(prompt=[]), "prompt_last_role", "prompt"),
    (record(prompt=[{"role": "user", "content": "no slot"}]), "placeholder_count", "prompt"),
    (record(prompt="<image><image>"), "placeholder_count", "prompt"),
    (record(prompt="<image> <audio>"), "stray_media_tag", "prompt"),
    (
        record(prompt=[{"role": "user", "content": [{"type": "text", "text": "<image>"}]}]),
        "stray_media_tag",
        "prompt[0].content[0]",
    ),
    (record(question="<｜hy_Assistant｜>"), "control_token", "question"),
    (record(image="data:image/png;base64,AAAA"), "image_remote", "image"),
    (record(image="s3://bucket/a.png"), "image_remote", "image"),
    (record(image="a\0b.png"), "image_path", "image"),
    (record(image=["p0.png", "missing.png"]), "image_not_found", "image[1]"),
    (record(image="p0.png/deeper.png"), "image_not_found", "image"),
    (record(image="x" * 5000), "image_not_found", "image"),
    (record(image="."), "image_not_file", "image"),
    (record(ref_answer="  "), "reference_empty", "ref_answer"),
    (record(ref_answer="<answer> </answer>", task_type="VQA"), "reference_empty", "ref_answer"),
    (
        {"image_path": "p0.png", "conversations": [{"from": "gpt", "value": "x"}], "task_type": "VQA"},
        "conversation_shape",
        "conversations",
    ),
    ({"img_path_sh": "p0.png", "conv": [], "task_type": "VQA"}, "conversation_shape", "conv"),
    ({"img_path_sh": "p0.png", "conv": [{"question": "q"}], "task_type": "VQA"}, "missing_reference", "conv[0].answer"),
]


@pytest.mark.parametrize(("rec", "kind", "field"), BROKEN, ids=[f"{kind}-{n}" for n, (_, kind, _) in enumerate(BROKEN)])
def test_a_broken_record_is_named_with_its_field(page, rec, kind, field):
    assert reject(page, rec) == (kind, field)


def test_text_that_utf8_cannot_hold(page):
    source = page / "in.jsonl"
    source.write_text('{"image":"p0.png","question":"","task_type":"Parsing","ref_answer":"\\ud800"}\n')
    assert run(page, source) == 1
    assert [(f["kind"], f["field"]) for f in findings(page)] == [("invalid_unicode", "ref_answer")]


LINES = [
    (b'{"image": "p0.png"', "invalid_json"),
    (b"[1]", "not_an_object"),
    (b'{"a": NaN}', "invalid_json"),
    (b'{"a": {"b": 1, "b": 2}}', "duplicate_key"),
    (b'{"a": "\xff"}', "invalid_utf8"),
    (b"[" * 100_000, "invalid_json"),
    (b"9" * 5000, "invalid_json"),
]


@pytest.mark.parametrize(("line", "kind"), LINES, ids=[f"{kind}-{n}" for n, (_, kind) in enumerate(LINES)])
def test_a_broken_line_comes_back_byte_for_byte(page, line, kind):
    (page / "in.jsonl").write_bytes(b"\n" + line + b"\n")
    assert run(page, page / "in.jsonl") == 1
    (found,) = findings(page)
    assert (found["kind"], found["line"]) == (kind, 2)
    assert found["raw"].encode("utf-8", "surrogateescape") == line


def test_a_line_over_the_limit_is_reported_and_the_next_is_read(page):
    long = record(ref_answer="x" * (3 << 20))
    assert run(page, write(page, record(), long, record(image="p1.png")), extra=["--max-line-mb", "1"]) == 1
    (found,) = findings(page)
    assert (found["kind"], found["line"]) == ("line_too_long", 2)
    assert len(found["raw"]) == 4096


# -- images --


def broken_images(folder):
    good = (folder / "p0.png").read_bytes()
    (folder / "cut.png").write_bytes(good[: len(good) - 40])
    (folder / "empty.png").write_bytes(b"")
    (folder / "text.png").write_text("no image")
    Image.effect_noise((600, 600), 50).save(folder / "cut.jpg")
    jpeg = (folder / "cut.jpg").read_bytes()
    (folder / "cut.jpg").write_bytes(jpeg[: len(jpeg) // 2])
    Image.new("L", (2020, 10)).save(folder / "narrow.png")
    Image.new("I;16", (600, 600)).save(folder / "deep.png")
    Image.new("1", (9500, 9500)).save(folder / "bomb.png")
    Image.new("1", (14_000, 14_000)).save(folder / "bigger_bomb.png")


@pytest.mark.parametrize(
    ("image", "kind"),
    [
        ("cut.png", "image_undecodable"),
        ("cut.jpg", "image_undecodable"),
        ("empty.png", "image_empty"),
        ("text.png", "image_unreadable"),
        ("narrow.png", "image_aspect_ratio"),
        ("deep.png", "image_mode"),
        ("bomb.png", "image_too_many_pixels"),
        ("bigger_bomb.png", "image_too_many_pixels"),
    ],
)
def test_an_image_that_training_could_not_use(page, image, kind):
    broken_images(page)
    assert reject(page, record(image=image)) == (kind, "image")


def test_image_checks_can_be_reduced(page):
    broken_images(page)
    assert run(page, write(page, record(image="cut.jpg")), extra=["--check-images", "open"]) == 0
    assert run(page, write(page, record(image="cut.png")), extra=["--check-images", "open"]) == 0
    assert run(page, write(page, record(image="text.png")), extra=["--check-images", "open"]) == 1
    assert run(page, write(page, record(image="nowhere.png")), extra=["--check-images", "none"]) == 0


def test_what_the_processor_would_do_to_an_image_is_said(page):
    Image.new("RGB", (100, 100)).save(page / "small.png")
    Image.new("RGB", (3000, 3000)).save(page / "large.jpg")
    Image.new("RGBA", (600, 600), (0, 0, 0, 0)).save(page / "clear.png")
    upside_down = Image.new("RGB", (600, 600))
    exif = upside_down.getexif()
    exif[0x0112] = 3
    upside_down.save(page / "turned.jpg", exif=exif)
    upside_down.save(page / "two.tiff", save_all=True, append_images=[Image.new("RGB", (600, 600))])
    names = {
        "small.png": "image_upscaled",
        "large.jpg": "image_downscaled",
        "clear.png": "image_transparency",
        "turned.jpg": "image_orientation",
        "two.tiff": "image_frames",
    }
    source = write(page, *(record(image=name) for name in names))
    assert run(page, source) == 0
    found = findings(page, "warnings")
    assert [f["kind"] for f in found] == list(names.values())
    assert all(f["kind"] in WARNING_KINDS and f["field"] == "image" for f in found)
    assert "100x100 becomes 512x512" in found[0]["reason"]
    assert run(page, source, extra=["--resized-images", "reject", "--on-error", "skip"]) == 0
    assert [f["line"] for f in findings(page)] == [1, 2]


def test_relative_paths_start_at_the_input_or_at_the_image_root(page, tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    source = write(elsewhere, record())
    assert run(page, source) == 1
    assert run(page, source, extra=["--image-root", str(page)]) == 0
    assert rows(page)[0]["images"] == [str(page / "p0.png")]


# -- inputs --


def test_compressed_globbed_and_parquet_inputs(page):
    lines = [json.dumps(record(image=f"p{n}.png")).encode() + b"\r\n" for n in range(6)]
    (page / "a.jsonl").write_bytes(b"\xef\xbb\xbf" + lines[0] + b"\n\n" + lines[1].strip())
    (page / "b.gz").write_bytes(gzip.compress(lines[2]) + gzip.compress(lines[3]))
    (page / "c.zst").write_bytes(zstandard.compress(lines[4]))
    pq.write_table(pa.Table.from_pylist([json.loads(lines[5]) | {"prompt": None}]), page / "d.parquet")
    assert run(page, page / "[abcd].*") == 0
    assert sorted(row["images"][0][-6:] for row in rows(page)) == [f"p{n}.png" for n in range(6)]


def test_standard_input(page, monkeypatch):
    stream = io.BufferedReader(io.BytesIO(json.dumps(record(image=str(page / "p0.png"))).encode()))
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(stream))
    assert run(page, "-") == 0
    assert len(rows(page)) == 1


def test_a_damaged_archive_is_reported_after_what_was_read(page):
    letters = random.Random(0)
    texts = ["".join(letters.choices("0123456789abcdef", k=200)) for _ in range(1500)]
    packed = gzip.compress(b"".join(json.dumps(record(ref_answer=text)).encode() + b"\n" for text in texts))
    (page / "in.gz").write_bytes(packed[: len(packed) // 2])
    assert run(page, page / "in.gz", extra=["--on-error", "skip"]) == 0
    (found,) = findings(page)
    assert found["kind"] == "unreadable_input"
    assert found["line"] == len(rows(page)) + 1 > 500


def test_images_inside_parquet_are_refused(page):
    pq.write_table(
        pa.Table.from_pylist([record(image=None) | {"images": [{"bytes": b"\x89PNG", "path": "a.png"}]}]),
        page / "in.parquet",
    )
    assert run(page, page / "in.parquet") == 1
    assert findings(page)[0]["kind"] == "image_type"


# -- policies --


def test_nothing_is_written_when_something_is_rejected(page):
    source = write(page, record(), record(image="p1.png", task_type="nope"), record(image="p2.png", ref_answer=None))
    assert run(page, source) == 1
    assert [f["line"] for f in findings(page)] == [2, 3]
    assert not (page / "out.parquet").exists()
    assert run(page, source, extra=["--on-error", "skip"]) == 0
    assert len(rows(page)) == 1
    assert [f["line"] for f in findings(page)] == [2, 3]


def test_a_failed_run_leaves_the_earlier_output_alone_and_a_clean_one_clears_old_findings(page):
    assert run(page, write(page, record())) == 0
    before = (page / "out.parquet").read_bytes()
    assert run(page, write(page, record(task_type="nope"))) == 1
    assert (page / "out.parquet").read_bytes() == before
    assert run(page, write(page, record())) == 0
    assert findings(page) == []
    assert sorted(p.name for p in page.iterdir() if p.suffix not in (".png", ".jsonl")) == [
        "out.parquet",
        "out.parquet.report.json",
    ]


def test_duplicates_and_contradictions_are_reported(page):
    (page / "copy.png").write_bytes((page / "p0.png").read_bytes())
    source = write(page, record(), record(image="copy.png"), record(ref_answer="another"))
    assert run(page, source) == 0
    kinds = [(f["line"], f["kind"]) for f in findings(page, "warnings")]
    assert sorted(kind for _, kind in kinds) == ["conflicting_reference", "duplicate"]
    written = rows(page)
    assert len(written) == 3 and len({row["extra_info"]["id"] for row in written}) == 3
    assert run(page, source, extra=["--duplicates", "drop"]) == 0
    assert len(rows(page)) == 2
    assert run(page, source, extra=["--duplicates", "reject"]) == 1
    assert [f["kind"] for f in findings(page)] == ["duplicate"]
    assert json.loads(findings(page)[0]["raw"])["ref_answer"] == "text"


def test_an_ambiguous_task_can_be_taken_with_a_warning(page):
    row = only_row(page, record(task_type="layout_parsing"), extra=["--ambiguous-task", "warn"])
    assert row["extra_info"]["task_type"] == "layout_parsing"
    assert [f["kind"] for f in findings(page, "warnings")] == ["ambiguous_task_type"]


def test_a_dry_run_reports_and_writes_nothing(page, capsys):
    source = write(page, record(), record(task_type="nope"))
    before = sorted(page.iterdir())
    assert run(page, source, extra=["--dry-run", "--json"]) == 1
    assert sorted(page.iterdir()) == before
    report = json.loads(capsys.readouterr().out)
    assert report["rejected"] == {"unknown_task_type": 1}
    assert report["written"] is False


@pytest.mark.parametrize(
    "extra",
    [
        ["--task-type", "ocr"],
        ["--val_ratio", "1"],
        ["--workers", "0"],
        ["--max-prompt-length", "100"],
        ["--model", "/nowhere"],
        ["--image-root", "/nowhere"],
        ["--max-image-pixels", "999999999"],
        ["--output_val", "val.txt"],
    ],
)
def test_wrong_usage_is_exit_code_2(page, extra):
    source = write(page, record())
    try:
        code = run(page, source, extra=extra)
    except SystemExit as stop:
        code = stop.code
    assert code == 2
    assert not (page / "out.parquet").exists()


def test_inputs_that_cannot_be(page, capsys):
    source = write(page, record())
    for inputs in (["none.jsonl"], [str(page / "*.nothing")], [str(page)], [source, source]):
        assert run(page, *inputs) == 2
    for output in (str(source), str(page)):
        assert prepare_data.main(["--inputs", str(source), "--output_train", output]) == 2
    assert "no such file" in capsys.readouterr().err


def test_no_usable_row_is_a_failure(page):
    assert run(page, write(page), extra=["--on-error", "skip"]) == 1
    assert not (page / "out.parquet").exists()
    assert json.loads((page / "out.parquet.report.json").read_text())["failure"]


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_model_folder_without_a_tokenizer_is_said_to_be_one(page, capsys, workers):
    (page / "model").mkdir()
    extra = ["--model", str(page / "model"), "--workers", workers]
    assert run(page, write(page, record()), extra=extra) == 1
    assert "preprocessor_config.json" in capsys.readouterr().err
    (page / "model/preprocessor_config.json").write_text("{}")
    assert run(page, write(page, record()), extra=extra) == 1
    assert "tokenizer" in capsys.readouterr().err


def test_it_runs_as_a_script_from_anywhere(page):
    source = write(page, *(record(image=f"p{n}.png") for n in range(10)))
    command = [sys.executable, str(ROOT / "data/prepare_data.py"), "--inputs", source.name, "--workers", "2"]
    command += ["--output_train", "t.parquet", "--output_val", "v.parquet", "--val_ratio", "0.2", "--stats"]
    done = subprocess.run(command, cwd=page, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "train: 8 rows" in done.stderr and "val: 2 rows" in done.stderr
    assert "Parsing" in done.stdout
    assert [row["extra_info"]["split"] for row in rows(page, "v.parquet")] == ["val"] * 2


def test_no_module_hides_one_of_the_standard_library():
    names = {path.stem for path in (ROOT / "data").glob("*")}
    assert not names & sys.stdlib_module_names


def test_the_documentation_lists_every_finding():
    text = (ROOT / "docs/data.md").read_text(encoding="utf-8")
    assert not [kind for kind in {**REJECT_KINDS, **WARNING_KINDS} if f"`{kind}`" not in text]
