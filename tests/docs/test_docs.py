"""The READMEs and the adaptation page say what is there: links, settings and their defaults, commands, steps."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
READMES = ("README.md", "README_zh.md")
PAGES = (
    *READMES,
    "ADAPTATION_en.md",
    "requirements/README.md",
    *sorted(f"docs/{path.name}" for path in ROOT.glob("docs/*.md")),
)


def read(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def code_blocks(page: str) -> list[str]:
    return re.findall(r"^```bash\n(.*?)^```", read(page), re.M | re.S)


def prose(page: str) -> str:
    return re.sub(r"^```.*?^```", "", read(page), flags=re.M | re.S)


def anchors(page: str) -> set[str]:
    """GitHub's anchors of a page's headings."""
    titles = re.findall(r"^#+ (.+)$", prose(page), re.M)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.fixture(scope="module")
def settings() -> dict[str, str]:
    """Name -> default of every setting that the launcher's help lists."""
    result = subprocess.run(
        ["bash", str(ROOT / "train_grpo.sh"), "--help"],
        # The documented defaults are those of a GPU host.
        env={"PATH": os.environ["PATH"], "VERL_PLATFORM": "cuda"},
        capture_output=True,
        text=True,
        check=True,
    )
    found = dict(re.findall(r"^  ([A-Z][A-Z0-9_]+) +(\S+)", result.stdout, re.M))
    found.pop("NAME")
    return {name: value.replace(f"{ROOT}/", "./").replace("(none)", "none") for name, value in found.items()}


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page):
    targets = re.findall(r"\]\(([^)\s]+)\)", prose(page))
    for target in targets:
        if target.startswith(("http://", "https://")):
            continue
        path, _, anchor = target.partition("#")
        file = (ROOT / page).parent / path if path else ROOT / page
        assert file.exists(), f"{page} links {target}"
        if anchor:
            name = str(file.resolve().relative_to(ROOT))
            assert anchor in anchors(name), f"{page} links {target}; {name} has {sorted(anchors(name))}"


@pytest.mark.parametrize("page", READMES)
def test_settings_have_the_stated_default(page, settings):
    rows = dict(re.findall(r"^\| `([A-Z][A-Z0-9_]+)` \| (\S+) \|", read(page), re.M))
    assert len(rows) > 20
    assert rows == {name: settings.get(name) for name in rows}


def test_both_readmes_list_the_same_settings_and_commands():
    english, chinese = (
        [re.sub(r"\s+#.*", "", line) for block in code_blocks(page) for line in block.splitlines()] for page in READMES
    )
    assert english == chinese
    rows = [re.findall(r"^\| `([A-Z][A-Z0-9_]+)` \|", read(page), re.M) for page in READMES]
    assert rows[0] == rows[1]


def test_both_readmes_have_the_same_sections():
    sections = [re.findall(r"^## (\d+)\.", read(page), re.M) for page in READMES]
    assert sections[0] == sections[1] == [str(number) for number in range(1, len(sections[0]) + 1)]


# Read by scripts other than the launcher, or by the launcher without being one of its listed settings.
ELSEWHERE = {"CKPT_ROOT", "DEMO_DIR", "HEAD_IP", "STEPS", "TARGET_DIR_MODE", "USE_MEGATRON", "USE_SGLANG"}


@pytest.mark.parametrize("page", [*READMES, "docs/performance.md"])
def test_assignments_in_commands_are_settings(page, settings):
    names = {name for block in code_blocks(page) for name in re.findall(r"(?:^|\s)([A-Z][A-Z0-9_]+)=", block, re.M)}
    assert names - set(settings) - ELSEWHERE == set()


@pytest.mark.parametrize("page", PAGES)
def test_scripts_in_commands_exist(page):
    for block in code_blocks(page):
        for path in re.findall(r"(?:bash|python|source) ([\w./-]+\.(?:sh|py))\b", block):
            assert (ROOT / path).is_file(), f"{page}: {path}"
        for module in re.findall(r"python -m ((?:utils|reward|data)[\w.]*)", block):
            parts = ROOT.joinpath(*module.split("."))
            assert parts.with_suffix(".py").is_file() or (parts / "__main__.py").is_file(), f"{page}: {module}"


@pytest.mark.parametrize("page", ["ADAPTATION_en.md", "requirements/README.md", *READMES])
def test_named_files_exist(page):
    for path in re.findall(
        r"`((?:tests|docs|utils|data|reward|verl|benchmarks|requirements)/[\w./-]+\.\w+)`", prose(page)
    ):
        assert (ROOT / path).exists(), f"{page}: {path}"


def test_every_step_is_described():
    code = "import verl; from verl_hyocr import registry; print(*(step.id for step in registry.steps()))"
    env = {**os.environ, "VERL_PLATFORM": "cpu"}
    output = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True).stdout
    page = read("ADAPTATION_en.md")
    overview = page[page.index("## Overview") : page.index("## How it becomes active")]
    steps = output.split()
    assert "A1" in steps and "G" in steps
    assert [step for step in steps if f"`{step}`" not in overview] == []


def test_every_check_is_named():
    ids = re.findall(r'^@check\("([^"]+)"\)', read("tests/fork/checks.py"), re.M)
    assert ids
    assert [step for step in ids if f"`{step}`" not in read("ADAPTATION_en.md")] == []
