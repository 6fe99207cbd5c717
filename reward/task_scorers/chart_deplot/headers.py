"""One spelling for the headers of rows and columns.

Box-plot statistics become one private-use character each. Compared, it stands for a run of six, so that no word
tolerance (at most five) turns one statistic into another: "group min" is never "group max".
"""

from __future__ import annotations

import re

from reward.task_scorers.chart_deplot.textlines import fold_width

_Q1, _MEDIAN, _Q3, _MIN, _MAX = (chr(0xF0F1 + i) for i in range(5))
_SPELLING = {_Q1: "q1", _MEDIAN: "median", _Q3: "q3", _MIN: "min", _MAX: "max"}
_TO_DISPLAY = str.maketrans(_SPELLING)
_TO_COMPARE = str.maketrans({mark: mark * 6 for mark in _SPELLING})
_PRIVATE = str.maketrans({mark: "\ufffd" for mark in _SPELLING})

_WORD = r"(?<![a-z0-9])(?:{})(?![a-z0-9])"
_STATISTIC = re.compile(
    "|".join(
        f"(?P<{name}>{pattern})"
        for name, pattern in {
            "q1": "(?:下|第一)四分位数?|" + _WORD.format("(?:lower|first|1st) quartile|q1"),
            "median": "(?:第二四分位数?|中位数)|" + _WORD.format("median|(?:second|2nd) quartile|q2"),
            "q3": "(?:上|第三)四分位数?|" + _WORD.format("(?:upper|third|3rd) quartile|q3"),
            "min": "最小值|" + _WORD.format("min(?:imum)?"),
            "max": "最大值|" + _WORD.format("max(?:imum)?"),
        }.items()
    )
)
_ALIAS = re.compile(r" ?\( ?(?:q[123]|median) ?\)")
_MARKS = {"q1": _Q1, "median": _MEDIAN, "q3": _Q3, "min": _MIN, "max": _MAX}

_MATH = re.compile(r"\$([^$]*)\$|\\\(([^$\\]*)\\\)")
_WRAPPER = re.compile(r"\\(?:(?:text|math)(?:bf|it|rm|sf|bb)?|operatorname|rm|bf) ?\{([^{}]*)\}")
_BRACED_SCRIPT = re.compile(r"([\^_])\{([0-9n+-]*)\}")
_SHORT_SCRIPT = re.compile(r"([\^_])([0-9n])")
_SUPERSCRIPT = str.maketrans("0123456789n+-", "⁰¹²³⁴⁵⁶⁷⁸⁹ⁿ⁺⁻")
_SUBSCRIPT = str.maketrans("0123456789n+-", "₀₁₂₃₄₅₆₇₈₉ₙ₊₋")
_MAX_WRAPPER_DEPTH = 4


def normalize_header(text: str) -> str:
    """Normalise a row or column header.

    Blanks collapse, full width folds to half width, simple LaTeX wrappers go, µ (U+00B5) is μ, case folds to lower, and
    the first box-plot statistic (quartile, median, minimum, maximum; Chinese or English) goes to the end behind a dash.

    >>> display_header(normalize_header("Group A 下四分位数（Q1）")), display_header(normalize_header("Group A-Q1"))
    ('group a-q1', 'group a-q1')
    """
    text = " ".join(fold_width(text).translate(_PRIVATE).split()).replace("\u00b5", "\u03bc")
    if "$" in text or "\\" in text:
        text = _strip_latex(text)
    text = text.lower()
    match = _STATISTIC.search(text)
    if match is None:
        return text
    before = text[: match.start()].rstrip("-_— (")
    alias = _ALIAS.match(text, match.end())
    after = text[alias.end() if alias else match.end() :].lstrip("-_— )")
    return "-".join(part for part in (before, after, _MARKS[match.lastgroup]) if part)


def _strip_latex(text: str) -> str:
    # A short script such as x_1 is one only within math: elsewhere sales_2019 is a name.
    text = _MATH.sub(lambda match: _SHORT_SCRIPT.sub(_unicode_script, match.group(1) or match.group(2) or ""), text)
    for _ in range(_MAX_WRAPPER_DEPTH):
        text, count = _WRAPPER.subn(r"\1", text)
        if not count:
            break
    text = _BRACED_SCRIPT.sub(_unicode_script, text)
    return " ".join(re.sub(r"\\([%$_&#])", r"\1", text).split())


def _unicode_script(match: re.Match[str]) -> str:
    return match.group(2).translate(_SUPERSCRIPT if match.group(1) == "^" else _SUBSCRIPT)


def display_header(header: str) -> str:
    """A normalised header for people; also the text whose length bounds the word tolerance."""
    return header.translate(_TO_DISPLAY)


def comparable_header(header: str) -> str:
    """A normalised header in the form whose edit distance counts."""
    return header.translate(_TO_COMPARE)
