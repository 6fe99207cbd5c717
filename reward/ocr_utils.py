"""Task names, answer extraction and score snapping: what every part of the reward kit agrees on. No heavy imports.

A ``task_type`` string names a task when it contains its English alias (any case) or its Chinese alias (verbatim):

>>> classify_task("rule_based_parsing"), classify_task("IE-rule"), classify_task("高难度检测识别")
('Parsing', 'IE', 'Spotting')

Aliases of up to three letters count only as a token of their own:

>>> classify_task("movie_vqa"), classify_task("docIE"), classify_task("Pie_qa")
('VQA', 'IE', '')
"""

from __future__ import annotations

import math
import re
from enum import StrEnum
from functools import cache, lru_cache

_SHORT_ALIAS_LETTERS = 3
_SNAP = 1e-4


class TaskType(StrEnum):
    """Aliases of the tasks: ``NAME`` is the English one and the canonical name, ``NAME_ZH`` the Chinese one.

    The order is the precedence when a ``task_type`` names several tasks; a new task goes to the end.
    """

    IE = "IE"
    IE_ZH = "信息抽取"
    PARSING = "Parsing"
    PARSING_ZH = "通用解析"
    SPOTTING = "Spotting"
    SPOTTING_ZH = "检测识别"
    LAYOUT = "Layout"
    LAYOUT_ZH = "版面分析"
    CHART_DEPLOT = "chart_deplot"
    CHART_DEPLOT_ZH = "图表解析"
    TRANSLATION = "Translation"
    TRANSLATION_ZH = "翻译"
    VQA = "VQA"
    VQA_ZH = "视觉问答"


def is_ie(task_type: object) -> bool:
    """Does this name hit information extraction?"""
    return _matches(task_type, TaskType.IE, TaskType.IE_ZH)


def is_parsing(task_type: object) -> bool:
    """Does this name hit document parsing?"""
    return _matches(task_type, TaskType.PARSING, TaskType.PARSING_ZH)


def is_spotting(task_type: object) -> bool:
    """Does this name hit text spotting?"""
    return _matches(task_type, TaskType.SPOTTING, TaskType.SPOTTING_ZH)


def is_layout(task_type: object) -> bool:
    """Does this name hit layout analysis?"""
    return _matches(task_type, TaskType.LAYOUT, TaskType.LAYOUT_ZH)


def is_chart_deplot(task_type: object) -> bool:
    """Does this name hit chart-to-data?"""
    return _matches(task_type, TaskType.CHART_DEPLOT, TaskType.CHART_DEPLOT_ZH)


def is_translation(task_type: object) -> bool:
    """Does this name hit translation?"""
    return _matches(task_type, TaskType.TRANSLATION, TaskType.TRANSLATION_ZH)


def is_vqa(task_type: object) -> bool:
    """Does this name hit visual question answering?"""
    return _matches(task_type, TaskType.VQA, TaskType.VQA_ZH)


def classify_task(task_type: object) -> str:
    """Canonical task name of a ``task_type`` string, or "" when it names no task. Never raises.

    An exact alias wins; otherwise the first task, in the order of :class:`TaskType`, that the name hits. Use
    :func:`matching_tasks` to warn about names that hit several.

    >>> classify_task("vqa"), classify_task("图表解析"), classify_task("layout_parsing"), classify_task("ocr")
    ('VQA', 'chart_deplot', 'Parsing', '')
    """
    hits = matching_tasks(task_type)
    return hits[0] if hits else ""


def matching_tasks(task_type: object) -> tuple[str, ...]:
    """Canonical names of all tasks that a ``task_type`` hits, in precedence order; more than one is ambiguous.

    >>> matching_tasks("layout_parsing"), matching_tasks("Layout")
    (('Parsing', 'Layout'), ('Layout',))
    """
    return _matching_tasks(str(task_type)) if isinstance(task_type, str) else ()


@lru_cache(maxsize=4096)
def _matching_tasks(name: str) -> tuple[str, ...]:
    exact = name.strip()
    for canonical, aliases in _aliases().items():
        if any(_same_alias(exact, alias) for alias in aliases):
            return (canonical,)
    return tuple(canonical for canonical, aliases in _aliases().items() if _matches(name, *aliases))


@cache
def _aliases() -> dict[str, tuple[TaskType, ...]]:
    """Canonical name to aliases, in the order of the enum."""
    return {
        member.value: tuple(
            TaskType[name] for name in (member.name, f"{member.name}_ZH") if name in TaskType.__members__
        )
        for member in TaskType
        if not member.name.endswith("_ZH")
    }


def canonical_tasks() -> tuple[str, ...]:
    """Canonical names of all tasks, in precedence order."""
    return tuple(_aliases())


def _same_alias(name: str, alias: str) -> bool:
    return name.lower() == alias.lower() if alias.isascii() else name == alias


def _matches(task_type: object, *aliases: TaskType) -> bool:
    """Does the name contain one of the aliases, as a token of its own where the alias is short?"""
    if not isinstance(task_type, str):
        return False
    return any(_contains(task_type, alias.value) for alias in aliases)


def _contains(name: str, alias: str) -> bool:
    if not alias.isascii():
        return alias in name
    found = _alias_pattern(alias).finditer(name)
    if len(alias) > _SHORT_ALIAS_LETTERS:
        return next(found, None) is not None
    return any(_is_token(name, match.start(), match.end()) for match in found)


@cache
def _alias_pattern(alias: str) -> re.Pattern[str]:
    # The lookahead finds overlapping occurrences too; ASCII keeps the Turkish dotless i from folding to I.
    return re.compile(re.escape(alias), re.IGNORECASE | re.ASCII)


def _is_token(name: str, start: int, end: int) -> bool:
    """Is ``name[start:end]`` delimited by what is not a cased letter, or by a change of case?

    On the left only lower to upper counts: ``docIE`` starts a word at ``I``, ``Pie`` does not start one at ``i``.
    """
    if start > 0:
        before, first = name[start - 1], name[start]
        if _has_case(before) and not (before.islower() and first.isupper()):
            return False
    if end < len(name):
        last, after = name[end - 1], name[end]
        if _has_case(after) and last.isupper() == after.isupper():
            return False
    return True


def _has_case(char: str) -> bool:
    return char.lower() != char.upper()


def extract_answer(text: str) -> str:
    """What of a text is scored: it without its complete ``<think>`` blocks, then its last complete ``<answer>`` block.

    Tags are lower case; an unclosed tag is text. Linear time.

    >>> extract_answer("<think>2 or 3?</think><answer>2</answer> no: <answer>3</answer>")
    '3'
    >>> extract_answer("<answer></answer>"), extract_answer("<think>hm"), extract_answer("a<think>b</think>c")
    ('', '<think>hm', 'ac')
    """
    text = _drop_blocks(text, "<think>", "</think>")
    last_close = text.rfind("</answer>")
    opening = text.rfind("<answer>", 0, max(last_close, 0))
    if opening < 0:
        return text
    start = opening + len("<answer>")
    return text[start : text.find("</answer>", start)]


def _drop_blocks(text: str, opening: str, closing: str) -> str:
    kept, position = [], 0
    while (start := text.find(opening, position)) >= 0:
        end = text.find(closing, start + len(opening))
        if end < 0:
            break
        kept.append(text[position:start])
        position = end + len(closing)
    kept.append(text[position:])
    return "".join(kept)


def snap_score(score: float) -> float:
    """A score in [0, 1] with values within 1e-4 of an end set to exactly 0.0 or 1.0.

    Raises:
        ValueError: the score is NaN, infinite, or further than 1e-4 outside [0, 1].

    >>> snap_score(0.99995), snap_score(0.00003), snap_score(0.5)
    (1.0, 0.0, 0.5)
    """
    value = float(score)
    if not math.isfinite(value) or not -_SNAP <= value <= 1.0 + _SNAP:
        raise ValueError(f"a score must be in [0, 1], got {value!r}")
    if value <= _SNAP:
        return 0.0
    return 1.0 if value >= 1.0 - _SNAP else value
