"""``python -m reward explain``: a person sees why a score is what it is."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from reward.__main__ import main

ROOT = Path(__file__).resolve().parents[2]

SPOTTING = "<ref>Total</ref><quad>(100,100),(300,150)</quad>"


@pytest.fixture
def explain(tmp_path, capsys):
    def call(task, response, reference, *options):
        (tmp_path / "response.txt").write_text(response, encoding="utf-8")
        (tmp_path / "ref.txt").write_text(reference, encoding="utf-8")
        files = ["--response", str(tmp_path / "response.txt"), "--ref", str(tmp_path / "ref.txt")]
        code = main(["explain", "--task", task, *files, *map(str, options)])
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return call


def test_spotting_shows_pairs_and_what_has_none(explain):
    reference = SPOTTING + "<ref>9.50</ref><quad>(400,100),(500,150)</quad>"
    response = "<ref>Tota1</ref><quad>(100,100),(300,150)</quad><ref>junk</ref><quad>(700,700),(800,800)</quad>"
    code, out, _ = explain("spotting", response, reference)
    assert code == 0
    # One pair costs 1 of 5 letters, two regions cost 1 each: 1 - 2.2 / 3.
    assert "score     0.266667" in out
    assert "1 matches, 1 predictions and 1 references without a match; total cost 2.2000 of 3" in out
    assert re.search(r"P1 +R1 +1.000 +0.200 +Tota1 +Total", out)
    assert re.search(r"P2 +- +- +1.000 +junk +-", out)
    assert re.search(r"- +R2 +- +1.000 +- +9.50", out)


def test_spotting_picture_has_both_sides_in_their_place(explain, tmp_path):
    Image.new("RGB", (500, 1000), "white").save(tmp_path / "page.png")
    response = SPOTTING + "<ref>junk</ref><quad>(600,600),(800,800)</quad>"
    png = tmp_path / "sub" / "match.png"
    code, _, err = explain("spotting", response, SPOTTING, "--image", tmp_path / "page.png", "--png", png)
    assert code == 0
    assert f"wrote {png}" in err
    with Image.open(png) as image:
        assert image.size == (500, 1000)
        # The unmatched prediction's right edge: x = 0.8 * 500, y = 0.7 * 1000.
        assert image.getpixel((400, 700)) == (0xF4, 0x6D, 0x43)
        assert image.getpixel((250, 900)) == (255, 255, 255)


def test_layout_picture_without_an_image(explain, tmp_path):
    block = "x<hy-meta><layout>text</layout><poly>(100,100),(900,120),(900,300),(100,300)</poly></hy-meta>"
    code, out, _ = explain("layout", "nothing", block, "--png", tmp_path / "match.png")
    assert code == 0
    assert "response: format error" in out
    assert "[text] x" in out
    with Image.open(tmp_path / "match.png") as image:
        assert image.size == (1000, 1000)
        assert image.getpixel((900, 200)) == (0xD7, 0x30, 0x27)


def test_parsing_report_and_comparison(explain, tmp_path):
    reference = (
        "Some <b> text here, long enough.<table><tr><td>a</td><td>b</td></tr><tr><td>1</td><td>2</td></tr></table>"
    )
    response = reference.replace(">2<", ">3<").replace("text", "test")
    code, out, _ = explain("parsing", response, reference, "--html", tmp_path / "diff.html")
    assert code == 0
    assert "decided by       text_and_tables" in out
    assert "reference table 1 with response table 1: TEDS 0.8571, structure only 1.0000" in out
    page = (tmp_path / "diff.html").read_text(encoding="utf-8")
    assert '<td class="changed">3</td>' in page
    assert '<td class="changed">2</td>' in page
    assert '<td class="">1</td>' in page
    assert "<del>s</del>" in page
    assert "<ins>x</ins>" in page


def test_comparison_shows_tables_that_were_not_compared_and_escapes_markup(explain, tmp_path):
    reference = "text &lt;script&gt;alert(1)&lt;/script&gt;<table><tr><td>a</td></tr></table>"
    code, out, _ = explain("parsing", "text", reference, "--html", tmp_path / "diff.html")
    assert code == 0
    assert "decided by       table_count" in out
    page = (tmp_path / "diff.html").read_text(encoding="utf-8")
    assert "0 in the response, 1 in the reference, not compared" in page
    assert '<td class="missing">a</td>' in page
    assert "<script>" not in page


def test_chart_report(explain):
    reference = "| | v |\n|---|---|\n| A | 10 |\n| B | 20 |"
    code, out, _ = explain("chart_deplot", reference.replace("20", "99"), reference)
    assert code == 0
    assert "similarity, slight 0.3333" in out
    assert "only in the reference:" in out


def test_information_extraction_report(explain):
    code, out, _ = explain("IE", '{"total": "9.50", "extra": "x"}', '{"total": "9.50", "date": "2024"}')
    assert code == 0
    assert "score     0.333333" in out
    assert re.search(r"total +9\.50 +9\.50 +yes +1\.0000", out)
    assert re.search(r"date +2024 +\(missing\) +no +0\.0000", out)
    assert re.search(r"extra +\(missing\) +x +no +0\.0000", out)
    code, out, _ = explain("IE", "a receipt", "a receipt")
    assert code == 0
    assert "scored as in parsing" in out
    assert "decided by       identical" in out


def test_judge_tasks_show_the_verdict(explain, monkeypatch):
    from reward.utils import request_utils

    asked = []

    def judge(request):
        asked.append(request)
        return request_utils.JudgeOutcome(reward=1.0, decision="scored", analysis='{"verdict": 1}')

    monkeypatch.setattr(request_utils, "judge", judge)
    code, out, _ = explain("VQA", "12", "12", "--question", "How many?")
    assert code == 0
    assert '"verdict": 1' in out
    assert asked[0].question == "How many?"


def test_a_dropped_sample_says_why_and_sets_the_exit_code(explain):
    code, out, _ = explain("spotting", SPOTTING, "```json\n[]\n```")
    assert code == 1
    assert "score     -1 (dropped)" in out
    assert "bad_reference" in out


def test_json_is_the_result_itself(explain):
    code, out, _ = explain("IE", "{}", "{}", "--json")
    assert code == 0
    assert json.loads(out)["score"] == 1.0


def test_a_line_of_a_file(tmp_path, capsys):
    source = tmp_path / "in.jsonl"
    source.write_text('{"bad": 1}\n{"response": "x", "ref_answer": {"a": 1}, "task_type": "IE"}\n{oops\n')
    assert main(["explain", "--from", str(source), "--line", "2"]) == 0
    assert "task      IE" in capsys.readouterr().out
    for line, message in (("1", "field response is missing"), ("3", "not JSON"), ("9", "no sample in line 9")):
        assert main(["explain", "--from", str(source), "--line", line]) == 2
        assert message in capsys.readouterr().err
    assert main(["explain", "--from", str(source)]) == 2


def test_wrong_use_is_explained(explain, tmp_path, capsys):
    assert main(["explain", "--task", "IE"]) == 2
    assert "--response and --ref missing" in capsys.readouterr().err
    for task, options, message in (
        ("ocr", [], "names none of IE, Parsing"),
        ("IE", ["--png", tmp_path / "a.png"], "--png is for spotting and layout"),
        ("spotting", ["--html", tmp_path / "a.html"], "--html is for parsing"),
        ("spotting", ["--image", tmp_path / "a.png"], "--image needs --png"),
        ("spotting", ["--image", tmp_path / "none.png", "--png", tmp_path / "a.png"], "no such image"),
        ("spotting", ["--image", tmp_path / "ref.txt", "--png", tmp_path / "a.png"], "cannot be decoded"),
    ):
        code, _, err = explain(task, SPOTTING, SPOTTING, *options)
        assert (code, message in err) == (2, True), err
    (tmp_path / "latin.txt").write_bytes(b"\xff")
    assert main(["explain", "--task", "IE", "--response", str(tmp_path / "latin.txt"), "--ref", "-"]) == 2
    assert "latin.txt: not UTF-8 at byte 0" in capsys.readouterr().err
    assert main(["explain", "--task", "IE", "--response", str(tmp_path / "none.txt"), "--ref", "-"]) == 2
    assert "none.txt: No such file" in capsys.readouterr().err


def test_a_reader_that_has_seen_enough_is_no_error(tmp_path):
    (tmp_path / "ref.txt").write_text("".join(f"<ref>t{i}</ref><quad>({i},1),({i + 9},9)</quad>" for i in range(900)))
    name = str(tmp_path / "ref.txt")
    command = [sys.executable, "-m", "reward", "explain", "--task", "spotting", "--response", name, "--ref", name]
    running = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    running.stdout.close()
    assert running.stderr.read() == b""
    assert running.wait() == 1
