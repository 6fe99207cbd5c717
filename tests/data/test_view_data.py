"""view_data.py: what a person gets to see, and that nothing of the data acts on the page or the terminal."""

import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from data import prepare_data, view_data

ROOT = Path(__file__).resolve().parents[2]
NASTY = "</pre><script>alert('x')</script> & \"q\" \x1b[31mred\u202e"


@pytest.fixture
def data(tmp_path):
    records = []
    for number in range(8):
        Image.new("RGB", (640, 512), (number * 9, 0, 0)).save(tmp_path / f"{number}.png")
        task = "Parsing" if number % 2 else "VQA"
        text = NASTY if number == 1 else f"text {number}"
        records.append({"image": f"{number}.png", "ref_answer": text, "question": NASTY, "task_type": task})
    (tmp_path / "in.jsonl").write_text("\n".join(map(json.dumps, records)))
    out = tmp_path / "t.parquet"
    args = ["--inputs", str(tmp_path / "in.jsonl"), "--output_train", str(out), "--workers", "1", "--quiet"]
    assert prepare_data.main(args) == 0
    return out


class Page(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.tags, self.links, self.text = [], [], ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.links += [value for name, value in attrs if name in ("src", "href")]

    def handle_data(self, data):
        self.text += data


def test_the_page_is_self_contained_and_shows_text_as_text(data, tmp_path):
    out = tmp_path / "page.html"
    assert view_data.main([str(data), "--html", str(out), "--samples", "10"]) == 0
    page = Page(out.read_text(encoding="utf-8"))
    assert page.tags.count("article") == 8 and page.tags.count("img") == 8
    assert "script" not in page.tags
    assert all(link.startswith("data:image/jpeg;base64,") for link in page.links)
    assert page.text.count("</pre><script>alert('x')</script>") == 9
    assert page.text.count("self-score 1.0000") == 4 and page.text.count("self-score judge") == 4
    assert list(tmp_path.glob("*.tmp")) == []


def test_the_terminal_view(data, capsys):
    assert view_data.main([str(data), "--samples", "2"]) == 0
    shown = capsys.readouterr().out
    assert shown.count("self-score") == 4
    assert "Parsing: 4 rows" in shown and "VQA: 4 rows" in shown
    assert "(640x512)" in shown
    assert "\x1b" not in shown and "\u202e" not in shown


def test_a_task_and_another_seed_can_be_chosen(data, capsys):
    assert view_data.main([str(data), "--samples", "1", "--task", "视觉问答"]) == 0
    first = capsys.readouterr().out
    assert "VQA  row" in first and "Parsing  row" not in first
    shown = {re.search(r"row (\d+)", first)[1]}
    for seed in range(1, 8):
        view_data.main([str(data), "--samples", "1", "--task", "VQA", "--seed", str(seed)])
        shown.add(re.search(r"row (\d+)", capsys.readouterr().out)[1])
    assert len(shown) > 1


def test_a_missing_or_broken_image_is_shown_as_such(data, tmp_path, capsys):
    (tmp_path / "1.png").write_bytes(b"nothing")
    (tmp_path / "2.png").unlink()
    assert view_data.main([str(data), "--samples", "10", "--html", str(tmp_path / "p.html")]) == 0
    page = (tmp_path / "p.html").read_text(encoding="utf-8")
    assert page.count("<img") == 6 and "UnidentifiedImageError" in page and "FileNotFoundError" in page
    assert view_data.main([str(data), "--samples", "10"]) == 0
    assert capsys.readouterr().out.count("cannot be read") == 2


def test_files_that_are_no_prepared_set(tmp_path, capsys):
    assert view_data.main([str(tmp_path / "none.parquet")]) == 1
    (tmp_path / "text.parquet").write_text("text")
    assert view_data.main([str(tmp_path / "text.parquet")]) == 1
    pq.write_table(pa.table({"prompt": ["x"]}), tmp_path / "other.parquet")
    assert view_data.main([str(tmp_path / "other.parquet")]) == 1
    assert "no column data_source" in capsys.readouterr().err
    with pytest.raises(SystemExit) as stop:
        view_data.main(["x.parquet", "--task", "unheard of"])
    assert stop.value.code == 2


def test_it_runs_as_a_script(data):
    command = [sys.executable, str(ROOT / "data/view_data.py"), data.name, "--samples", "1"]
    done = subprocess.run(command, cwd=data.parent, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "self-score 1.0000" in done.stdout
