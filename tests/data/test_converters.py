"""Public annotation formats in, records that prepare_data.py takes out: checked by running both."""

import json
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from PIL import Image

from data import prepare_data
from data.converters import icdar, omnidocbench
from data.converters.common import scaled

ROOT = Path(__file__).resolve().parents[2]


def read(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def prepared(folder, source):
    args = ["--inputs", str(source), "--output_train", str(folder / "t.parquet"), "--workers", "1", "--quiet"]
    assert prepare_data.main(args) == 0, (folder / "t.parquet.rejects.jsonl").read_text()
    return pq.read_table(folder / "t.parquet").to_pylist()


@pytest.fixture
def spotting(tmp_path):
    for name in ("img_1", "img_2", "img_3"):
        Image.new("RGB", (1280, 720)).save(tmp_path / f"{name}.jpg")
    (tmp_path / "gt_img_1.txt").write_bytes(
        "\ufeff377,117,463,117,465,130,378,130,Genaxis Theatre\r\n"
        "493,115,519,115,519,131,493,131,[06]\r\n374,155,409,155,409,170,374,170,###\r\n"
        '1270,-5,1290,-5,1290,20,1270,20,"a, b"\r\n'.encode()
    )
    (tmp_path / "gt_img_2.txt").write_text("1,2,3,2,3,4,1,4,###\n")
    (tmp_path / "img_3.txt").write_text("")
    return tmp_path


def test_icdar_folder(spotting):
    out = spotting / "out.jsonl"
    assert icdar.main(["--images", str(spotting), "--output", str(out)]) == 0
    first, empty = read(out)
    assert first["ref_answer"] == ('Genaxis Theatre(295,162),(363,181)[06](385,160),(405,182)"a, b"(992,0),(1000,28)')
    assert first["task_type"] == "Spotting" and first["image"].endswith("img_1.jpg")
    assert empty["ref_answer"] == "" and empty["image"].endswith("img_3.jpg")
    assert len(prepared(spotting, out)) == 2


def test_icdar_says_what_it_left_out(spotting, capsys):
    assert icdar.main(["--images", str(spotting), "--output", str(spotting / "o.jsonl")]) == 0
    told = capsys.readouterr().err
    assert f"{icdar.NOTE_UNREADABLE}: 1" in told and f"{icdar.NOTE_ONLY_UNREADABLE}: 1" in told


@pytest.mark.parametrize(
    "line",
    ["1,2,3,4,5,6,7,text", "a,2,3,4,5,6,7,8,text", "1,2,3,4,5,6,7,8,", "1,2,3,4,5,6,nan,8,x", "1,2,3,4,5,6,7,8,(1,2)"],
)
def test_icdar_names_a_line_it_cannot_read(spotting, capsys, line):
    (spotting / "img_3.txt").write_text(line + "\n")
    out = spotting / "out.jsonl"
    assert icdar.main(["--images", str(spotting), "--output", str(out)]) == 1
    assert not out.exists()
    assert "img_3.txt: " in capsys.readouterr().err
    assert icdar.main(["--images", str(spotting), "--output", str(out), "--on-error", "skip"]) == 0
    assert len(read(out)) == 1


def test_icdar_two_corners_and_a_missing_label_file(tmp_path, capsys):
    Image.new("RGB", (100, 200)).save(tmp_path / "a.png")
    Image.new("RGB", (100, 200)).save(tmp_path / "b.png")
    (tmp_path / "gt_a.txt").write_text("10,20,50,40,word\n")
    out = tmp_path / "o.jsonl"
    args = ["--images", str(tmp_path), "--corners", "2", "--output", str(out), "--on-error", "skip"]
    assert icdar.main(args) == 0
    assert read(out)[0]["ref_answer"] == "word(100,100),(500,200)"
    assert "no label file gt_b.txt" in capsys.readouterr().err


def test_coordinates_run_to_1000_on_both_axes_and_stay_inside():
    assert scaled(1280, 720, 1280, 720) == (1000, 1000)
    assert scaled(-3, 9999, 1280, 720) == (0, 1000)
    assert scaled(640, 0, 1280, 720) == (500, 0)


def block(category, order, **fields):
    top = 100.0 * (order or 0)
    return {
        "category_type": category,
        "poly": [100.0, top, 900.0, top, 900.0, top + 50, 100.0, top + 50],
        "ignore": False,
        "order": order,
        "anno_id": fields.pop("anno_id", f"{category}{order}"),
        **fields,
    }


@pytest.fixture
def page(tmp_path):
    (tmp_path / "images").mkdir()
    Image.new("RGB", (1000, 2000)).save(tmp_path / "images/p1.png")
    dets = [
        block("text_block", 2, text="The paragraph goes", anno_id=7),
        block("title", 1, text="A\ntitle"),
        block("text_block", 6, text="on here.", anno_id=8),
        block("equation_isolated", 3, latex="$$\nE = mc^2\n$$"),
        block("table", 4, html="<table><tr><td>1</td></tr></table>", latex="x"),
        block("figure", 5),
        block("figure_caption", 7, text="Figure 1"),
        block("header", None, text="Running head"),
        block("text_mask", None),
        block("text_block", 8, text="unclear") | {"ignore": True},
    ]
    relation = [{"source_anno_id": 7, "target_anno_id": 8, "relation_type": "truncated"}]
    info = {"page_no": 0, "width": 1000, "height": 2000, "image_path": "p1.png", "page_attribute": {}}
    return tmp_path, {"layout_dets": dets, "page_info": info, "extra": {"relation": relation}}


def convert(folder, pages, *extra):
    (folder / "pages.json").write_text(json.dumps(pages), encoding="utf-8")
    out = folder / "out.jsonl"
    args = ["--pages", str(folder / "pages.json"), "--images", str(folder / "images"), "--output", str(out), *extra]
    return omnidocbench.main(args), out


def test_omnidocbench_page_to_markdown_in_reading_order(page, capsys):
    folder, content = page
    code, out = convert(folder, [content])
    assert code == 0
    (record,) = read(out)
    assert record["ref_answer"] == "\n\n".join(
        [
            "# A title",
            "The paragraph goes on here.",
            "$$E = mc^2$$",
            "<table><tr><td>1</td></tr></table>",
            "Figure 1",
        ]
    )
    told = capsys.readouterr().err
    assert (
        "header left out: 1" in told and "ignored blocks left out: 1" in told and "masked regions left out: 1" in told
    )
    (row,) = prepared(folder, out)
    assert row["extra_info"]["task_type"] == "Parsing"


def test_omnidocbench_page_to_layout(page):
    folder, content = page
    code, out = convert(folder, [content], "--task", "layout")
    assert code == 0
    (record,) = read(out)
    assert record["ref_answer"].startswith(
        "A\ntitle<hy-meta><layout>title</layout><poly>(100,50),(900,50),(900,75),(100,75)</poly></hy-meta>"
    )
    assert record["ref_answer"].count("<hy-meta>") == 8
    assert "<layout>paragraph</layout>" in record["ref_answer"]
    (row,) = prepared(folder, out)
    assert row["extra_info"]["task_type"] == "Layout"


def test_omnidocbench_names_what_it_cannot_convert(page, capsys):
    folder, content = page
    broken = [
        {"layout_dets": []},
        {**content, "layout_dets": [block("text_block", 1, text="")]},
        {**content, "layout_dets": "none"},
        [],
    ]
    code, out = convert(folder, [content, *broken])
    assert code == 1 and not out.exists()
    told = capsys.readouterr().err
    assert "page 1: page_info" in told and "page 2: block text_block1 (text_block) holds no text" in told
    assert "page 3: layout_dets" in told and "page 4: page_info" in told
    assert convert(folder, {"pages": 1})[0] == 1
    (folder / "pages.json").write_text("[")
    assert omnidocbench.main(["--pages", str(folder / "pages.json"), "--images", ".", "--output", str(out)]) == 1


def test_relations_that_run_in_a_circle_end(page):
    folder, content = page
    content["extra"]["relation"].append({"source_anno_id": 8, "target_anno_id": 7, "relation_type": "truncated"})
    assert convert(folder, [content])[0] == 0


@pytest.mark.parametrize("name", ["icdar", "omnidocbench"])
def test_converters_run_as_scripts(name, tmp_path):
    done = subprocess.run(
        [sys.executable, str(ROOT / f"data/converters/{name}.py"), "--help"],
        cwd=tmp_path,
        capture_output=True,
        timeout=60,
    )
    assert done.returncode == 0 and b"--output" in done.stdout
