"""The training dataset: what it keeps and drops, and that its cache knows what it has to know."""

import json
import logging
import multiprocessing
import os
import random
import time

import pytest
from omegaconf import OmegaConf
from PIL import Image
from verl_hyocr import dataset as dataset_module
from verl_hyocr.dataset import HyocrDataset, images_of
from verl_hyocr.dataset_cache import DatasetCache
from verl_hyocr.prompt_filter import NO_IMAGE, NO_PROMPT, TOO_LONG, image_size

from data import prepare_data

SIZES = [(64, 64), (64, 128), (200, 200), (320, 160), (96, 700), (33, 47)]


@pytest.fixture(scope="module")
def parquet(tmp_path_factory):
    """12 rows over images of different sizes, two of them with two images."""
    folder = tmp_path_factory.mktemp("rows")
    records = []
    for number in range(12):
        name = f"{number}.png"
        Image.new("RGB", SIZES[number % len(SIZES)], (number, 0, 0)).save(folder / name)
        images = [name] if number % 6 else [name, "0.png"]
        records.append(
            {"images": images, "question": f"Read {number} " * (number + 1), "ref_answer": "a", "task_type": "VQA"}
        )
    (folder / "in.jsonl").write_text("\n".join(map(json.dumps, records)))
    args = [
        "--inputs",
        str(folder / "in.jsonl"),
        "--output_train",
        str(folder / "t.parquet"),
        "--workers",
        "1",
        "--quiet",
    ]
    assert prepare_data.main(args) == 0
    return folder / "t.parquet"


def make(parquet, processor, limit=10_000, **config):
    settings = OmegaConf.create({"max_prompt_length": limit, "filter_overlong_prompts_workers": 2, **config})
    return HyocrDataset([str(parquet)], processor.tokenizer, settings, processor)


def real_length(row, processor):
    """Length with everything decoded and processed, as upstream counts."""
    text = processor.apply_chat_template(row["raw_prompt"], add_generation_prompt=True, tokenize=False)
    return len(processor(text=[text], images=images_of(row["raw_prompt"]))["input_ids"][0])


def ids(dataset):
    return [row["extra_info"]["id"] for row in dataset.dataframe]


def test_prompts_are_kept_exactly_up_to_the_limit_of_the_processor(parquet, processor):
    everything = make(parquet, processor)
    lengths = {row["extra_info"]["id"]: real_length(row, processor) for row in map(everything.__getitem__, range(12))}
    assert len(set(lengths.values())) > 6
    for limit in sorted(set(lengths.values()))[::2]:
        dataset = make(parquet, processor, limit)
        assert ids(dataset) == [row for row in ids(everything) if lengths[row] <= limit]
        dropped = dataset.filter_report.dropped
        assert {drop.row_id: drop.length for drop in dropped} == {r: n for r, n in lengths.items() if n > limit}
        assert {drop.reason for drop in dropped} <= {TOO_LONG}


def test_it_keeps_what_upstream_keeps(parquet, processor, monkeypatch):
    ours = make(parquet, processor, 120)
    monkeypatch.setattr(dataset_module, "can_count", lambda *_: False)
    upstreams = make(parquet, processor, 120)
    assert ids(ours) == ids(upstreams)
    assert 0 < len(ours) < 12


def test_no_pixel_is_decoded(parquet, processor, monkeypatch):
    def load(self):
        raise AssertionError("decoded")

    monkeypatch.setattr(Image.Image, "load", load)
    from PIL import ImageFile

    monkeypatch.setattr(ImageFile.ImageFile, "load", load)
    assert len(make(parquet, processor)) == 12


def test_what_is_dropped_is_reported_with_its_reason(parquet, processor, tmp_path, capsys):
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pq.read_table(parquet)
    rows = table.to_pylist()[:6]
    rows[1]["images"] = [str(tmp_path / "gone.png")] * len(rows[1]["images"])
    rows[2]["prompt"][0]["content"] = "no slot"
    rows[3]["prompt"][0]["content"] += "<video>"
    rows[4]["prompt"][0]["content"] += "long " * 3000
    pq.write_table(pa.Table.from_pylist(rows, schema=table.schema), tmp_path / "t.parquet")
    dataset = make(tmp_path / "t.parquet", processor, 2000)
    assert ids(dataset) == [rows[0]["extra_info"]["id"], rows[5]["extra_info"]["id"]]
    assert [(drop.index, drop.reason) for drop in dataset.filter_report.dropped] == [
        (1, NO_IMAGE),
        (2, NO_PROMPT),
        (3, NO_PROMPT),
        (4, TOO_LONG),
    ]
    told = capsys.readouterr().out
    assert "kept 2 of 6" in told and "gone.png: FileNotFoundError" in told and "limit 2000" in told


def test_an_empty_result_is_an_error_that_says_why(parquet, processor):
    with pytest.raises(ValueError, match=r"every prompt was dropped(.|\n)*over max_prompt_length"):
        make(parquet, processor, 3)


def test_settings_that_change_sizes_are_measured_by_the_processor(parquet, processor, capsys):
    dataset = make(parquet, processor, 60, mm_processor_kwargs={"min_pixels": 32 * 32, "max_pixels": 64 * 64})
    assert dataset.filter_report is None
    assert len(dataset) > len(make(parquet, processor, 60))


def test_sizes_of_all_forms_of_images(tmp_path):
    image = Image.new("RGB", (30, 20))
    image.save(tmp_path / "a.png")
    path = str(tmp_path / "a.png")
    for source in (image, path, f"file://{path}", tmp_path / "a.png", (tmp_path / "a.png").read_bytes()):
        assert image_size(source) == (30, 20)
    with pytest.raises(TypeError, match="int"):
        image_size(3)


# -- the cache --


@pytest.fixture
def builds(monkeypatch):
    """Counts how often rows are read and filtered."""
    count = []
    original = HyocrDataset._read_and_filter

    def counted(self):
        count.append(1)
        return original(self)

    monkeypatch.setattr(HyocrDataset, "_read_and_filter", counted)
    return count


def cached(parquet, processor, folder, limit=120, **config):
    return make(parquet, processor, limit, enable_dataset_cache=True, dataset_cache_dir=str(folder), **config)


def test_a_second_start_reads_the_same_rows_from_the_cache(parquet, processor, tmp_path, builds):
    plain = make(parquet, processor, 120)
    first, second = (cached(parquet, processor, tmp_path) for _ in range(2))
    assert len(builds) == 1
    assert [first[n] for n in range(len(first))] == [plain[n] for n in range(len(plain))]
    assert [second[n] for n in range(len(second))] == [plain[n] for n in range(len(plain))]
    assert second.filter_report is None
    (dropped,) = tmp_path.glob("*.dropped.jsonl")
    assert len(dropped.read_text().splitlines()) == 12 - len(plain)
    assert not list(tmp_path.glob("*.tmp"))


def test_the_cache_is_off_unless_asked_for_and_lies_beside_the_data(parquet, processor, builds):
    make(parquet, processor)
    assert not (parquet.parent / "dataset_cache").exists()
    make(parquet, processor, enable_dataset_cache=True)
    assert len(list((parquet.parent / "dataset_cache").glob("*.arrow"))) == 1


@pytest.mark.parametrize(
    "change",
    [
        {"limit": 130},
        {"apply_chat_template_kwargs": {"x": 1}},
        {"max_samples": 5},
        {"filter_overlong_prompts": False},
        {"mm_processor_kwargs": {"backend": "pil"}},
        {"dataset_cache_force_rebuild": True},
    ],
)
def test_another_option_of_the_filter_misses(parquet, processor, tmp_path, builds, change):
    cached(parquet, processor, tmp_path)
    change = dict(change)
    samples = change.pop("max_samples", -1)
    settings = {"max_prompt_length": 120, "enable_dataset_cache": True, "dataset_cache_dir": str(tmp_path), **change}
    if "limit" in change:
        settings["max_prompt_length"] = settings.pop("limit")
    config = OmegaConf.create(settings)
    HyocrDataset([str(parquet)], processor.tokenizer, config, processor, max_samples=samples)
    assert len(builds) == 2


def test_a_changed_image_setting_misses(parquet, processor, tmp_path, builds, monkeypatch):
    before = cached(parquet, processor, tmp_path)
    smaller = {"shortest_edge": 1024, "longest_edge": 64 * 64}
    monkeypatch.setattr(processor.image_processor, "size", smaller)
    assert len(cached(parquet, processor, tmp_path)) > len(before)
    assert len(builds) == 2


def test_the_key_knows_processor_tokenizer_and_files(parquet, processor, tmp_path, monkeypatch):
    def key():
        data = HyocrDataset.__new__(HyocrDataset)
        data.__dict__.update(base.__dict__)
        return dataset_module.digest(data._cache_parts())

    base = make(parquet, processor)
    keys = {key()}
    processor.tokenizer(["a", "b c"], padding=True, truncation=True, max_length=7)
    assert keys == {key()}, "how the tokenizer was called before does not matter"
    with monkeypatch.context() as patch:
        patch.setattr(processor.image_processor, "size", {"shortest_edge": 1024, "longest_edge": 128 * 128})
        keys.add(key())
    with monkeypatch.context() as patch:
        patch.setattr(processor.image_processor, "patch_size", 14)
        keys.add(key())
    with monkeypatch.context() as patch:
        patch.setattr(processor, "chat_template", processor.chat_template + " ")
        keys.add(key())
    with monkeypatch.context() as patch:
        patch.setattr(processor, "cat_extra_token", False)
        keys.add(key())
    moved = time.time_ns() + 10**9
    os.utime(parquet, ns=(moved, moved))
    keys.add(key())
    assert len(keys) == 6


def test_a_damaged_entry_is_built_again(parquet, processor, tmp_path, builds, caplog):
    cached(parquet, processor, tmp_path)
    (entry,) = tmp_path.glob("*.arrow")
    entry.write_bytes(entry.read_bytes()[:100])
    with caplog.at_level(logging.WARNING):
        dataset = cached(parquet, processor, tmp_path)
    assert len(builds) == 2 and len(dataset) > 0
    assert "damaged" in caplog.text


def test_a_folder_that_cannot_be_written_costs_a_warning_only(parquet, processor, tmp_path, builds, caplog):
    (tmp_path / "file").write_text("")
    with caplog.at_level(logging.WARNING):
        dataset = cached(parquet, processor, tmp_path / "file" / "cache")
    assert len(dataset) > 0 and "dataset_cache_dir" in caplog.text


def test_random_samples_without_a_seed_are_not_cached(parquet, processor, tmp_path, builds):
    config = OmegaConf.create(
        {"max_prompt_length": 999, "enable_dataset_cache": True, "dataset_cache_dir": str(tmp_path), "shuffle": True}
    )
    dataset = HyocrDataset([str(parquet)], processor.tokenizer, config, processor, max_samples=5)
    assert len(dataset) == 5 and list(tmp_path.iterdir()) == [] and builds == []


def test_a_resumed_and_pickled_dataset_finds_its_rows_again(parquet, processor, tmp_path):
    dataset = cached(parquet, processor, tmp_path)
    before = ids(dataset)
    state = dataset.__getstate__()
    assert "dataframe" not in state and "filter_report" not in state
    again = HyocrDataset.__new__(HyocrDataset)
    again.__dict__.update(state)
    again.resume_dataset_state()
    assert ids(again) == before


def _start(folder, log):
    import datasets

    def build():
        with open(log, "a") as handle:
            handle.write("built\n")
        return datasets.Dataset.from_dict({"x": list(range(random.Random(0).randrange(5, 50)))})

    rows = DatasetCache(folder).load_or_build("key", build)
    with open(log, "a") as handle:
        handle.write(f"{len(rows)}\n")


def test_starters_at_the_same_time_build_once(tmp_path):
    context = multiprocessing.get_context("fork")
    starters = [context.Process(target=_start, args=(str(tmp_path / "c"), str(tmp_path / "log"))) for _ in range(4)]
    for starter in starters:
        starter.start()
    for starter in starters:
        starter.join(60)
    assert [starter.exitcode for starter in starters] == [0] * 4
    lines = (tmp_path / "log").read_text().splitlines()
    assert lines.count("built") == 1 and len(set(lines) - {"built"}) == 1 and len(lines) == 5
