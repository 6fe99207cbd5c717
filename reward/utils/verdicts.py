"""From a judge's reply to a verdict. A reply that is not understood is ``None``, never a score.

What counts is the **last** verdict in the reply, after ``<think>`` blocks, bold marks and full-width spaces are gone.
If the last one is out of range, of another scale, or a range of values, the reply is a failure, whatever stood before:
a judge that ends in nonsense is asked again.

Everything here is linear in the length of the reply.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

_OPEN, _CLOSE = "<think>", "</think>"


@dataclass(frozen=True)
class Verdict:
    """``value`` as the judge gave it, ``reward`` in [0, 1]."""

    value: float
    reward: float


def parse_reply(task: str, reply: str) -> Verdict | None:
    """Read a judge's reply. KeyError: the task has no parser in :data:`VERDICT_PARSERS`."""
    parser = VERDICT_PARSERS[task]
    text = strip_thinking(reply)
    if text is None:
        return None
    return parser(text.replace("**", "").replace("__", "").replace("\u3000", ""))


def strip_thinking(reply: str) -> str | None:
    """The reply without its thinking; None when a block is not closed.

    Chat templates that open the block in the prompt leave a lone ``</think>`` in the reply: all before it is thinking.
    """
    kept = []
    position = 0
    while (start := reply.find(_OPEN, position)) >= 0:
        kept.append(reply[position:start])
        end = reply.find(_CLOSE, start)
        if end < 0:
            return None
        position = end + len(_CLOSE)
    kept.append(reply[position:])
    return "".join(kept).rpartition(_CLOSE)[2]


# -- VQA --------------------------------------------------------------------------------------------------------------

# A line that is, but for punctuation, "Judgement: number". No class can match what follows it, so nothing backtracks.
_JUDGEMENT = re.compile(
    r"[\W_]*judge?ment[^\w:：]*[:：][^\w+\-−.]*(?P<number>[+\-−]?\s*(?:\d+(?:[.,]\d+)*|\.\d+))(?P<rest>.*)",
    re.IGNORECASE | re.DOTALL,
)
_WORD = re.compile(r"[^\W_]")
# Signs that change what a number says: "1%", "0/1", "1+".
_CHANGES_NUMBER = re.compile(r"\s*[%‰/+\-−=<>~～]\s*(?:\w|$)")


def parse_vqa(text: str) -> Verdict | None:
    """The last line that is ``Judgement: n``: 0 or 1, any other number is a failure."""
    for line in reversed(text.splitlines()):
        match = _JUDGEMENT.fullmatch(line)
        if match is None or _WORD.search(match["rest"]):
            continue
        if match["number"] not in ("0", "1") or _CHANGES_NUMBER.match(match["rest"]):
            return None
        return Verdict(int(match["number"]), float(match["number"]))
    return None


# -- Translation ------------------------------------------------------------------------------------------------------

_SCALE = 5.0
_LABELS = r"最终得分|最终评分|综合得分|综合评分|总分|final[ \t_\-]*score"
_LABEL = re.compile(rf"(?P<full>{_LABELS})|(?<![^\W_])(?P<short>score)(?![^\W\d_])", re.IGNORECASE)

# What may stand between the start of the line, or a clause mark, and the label.
_CLAUSE_MARKS = ",，.。;；:：!！?？)）]】、—-*#>|"
_FILLERS = re.compile(
    r"[ \t]*(?:(?:so|thus|hence|therefore|overall|the|my|its|translation)[ \t]+|"
    r"因此|所以|综上所述|综上|故|译文|翻译|本|该|其|的|我|给出|给){0,8}[ \t]*",
    re.IGNORECASE,
)
_LEAD_CHARS = 60

_NUMBER = r"[+\-−]?(?:\d+(?:[.,]\d+)*|\.\d+)"
_UNIT = r"(?:分|points?|pts?|stars?)"
_QUOTES = "\"'“”‘’「」『』`"
# "(0-5)" or "（满分5分）" between the label and the number; bounded, so that the scan stays linear.
_SCORE = re.compile(
    rf"""[{_QUOTES}]?\s{{0,8}}
    (?:[（(\[]\s?(?P<scale>[^()（）\[\]\n]{{0,24}})[)）\]])?
    \s{{0,8}}(?P<link>:|：|=|＝|->|→|is|为|是|達|达)?[\s{_QUOTES}\[（(【<]{{0,8}}
    (?P<number>{_NUMBER})""",
    re.IGNORECASE | re.VERBOSE,
)
_AFTER = re.compile(
    rf"""[ \t]{{0,8}}{_UNIT}?[ \t]{{0,8}}[（(\[,，{_QUOTES}]?[ \t]{{0,8}}
    (?:/|／|out[ ]of|of|满分为?|总分为?|共)[ \t]{{0,8}}(?P<denominator>{_NUMBER})[ \t]{{0,8}}{_UNIT}?""",
    re.IGNORECASE | re.VERBOSE,
)
_UNIT_AFTER = re.compile(rf"[ \t]{{0,8}}{_UNIT}(?![A-Za-z])", re.IGNORECASE)
# After a score: a letter glued to it, a second number by a dash or slash, or a percent sign make it no score.
_NO_SCORE_AFTER = re.compile(r"[A-Za-z_]|[ \t]*(?:[-−–—~～/／到至]|or|to|或)[ \t]*\d|[ \t]*[%％‰]", re.IGNORECASE)
_ANY_NUMBER = re.compile(_NUMBER)

_FAILED = object()


def parse_translation(text: str) -> Verdict | None:
    """The last score after one of the labels, in a line or as a key of a JSON object: 0 to 5, else a failure."""
    last: tuple[int, Any] = (-1, _FAILED)
    spans = []
    for start, end, obj in _json_objects(text):
        spans.append((start, end))
        key = _score_key(obj)
        if key is not None:
            last = max(last, (end, _json_score(obj[key])), key=lambda item: item[0])
    for position, score in _line_scores(_blank_out(text, spans)):
        last = max(last, (position, score), key=lambda item: item[0])
    score = last[1]
    if score is _FAILED or not 0.0 <= score <= _SCALE:
        return None
    return Verdict(score, translation_reward(score))


def translation_reward(score: float) -> float:
    """Piecewise linear from a 0-5 score to [0, 1] through (0, 0), (2, 0.2), (4, 0.8), (5, 1)."""
    if score <= 2.0:
        return 0.1 * score
    if score <= 4.0:
        return 0.2 + 0.3 * (score - 2.0)
    return 0.8 + 0.2 * (score - 4.0)


def _line_scores(text: str) -> Iterator[tuple[int, Any]]:
    """(position, score or _FAILED) of every verdict in running text, in order."""
    offset = 0
    for line in text.splitlines(keepends=True):
        for label in _LABEL.finditer(line):
            if _starts_clause(line, label.start()):
                score = _score_after(line, label)
                if score is not None:
                    yield offset + label.start(), score
        offset += len(line)


def _starts_clause(line: str, position: int) -> bool:
    """Whether a label is the judge's own statement: at the start of the line but for punctuation, or of a clause.

    A label behind other words or an opening quote is most likely cited from the answer and is no verdict.
    """
    lead = line[max(0, position - _LEAD_CHARS) : position]
    if position <= _LEAD_CHARS and not _WORD.search(lead):
        return True
    cut = max(lead.rfind(mark) for mark in _CLAUSE_MARKS)
    if cut < 0 and position > _LEAD_CHARS:
        return False
    return _FILLERS.fullmatch(lead[cut + 1 :]) is not None


def _score_after(line: str, label: re.Match[str]) -> Any:
    """The score behind a label: a number, _FAILED for a number that is no score of this scale, None for no verdict."""
    match = _SCORE.match(line, label.end())
    if match is None:
        return None
    position = match.end()
    after = _AFTER.match(line, position)
    if label["short"] and not match["link"] and not after:
        return None
    if match["scale"] is not None:
        numbers = _ANY_NUMBER.findall(match["scale"])
        if numbers and abs(_number(numbers[-1])) != _SCALE:
            return _FAILED
    if after:
        if _number(after["denominator"]) != _SCALE:
            return _FAILED
        position = after.end()
    elif unit := _UNIT_AFTER.match(line, position):
        position = unit.end()
    if _NO_SCORE_AFTER.match(line, position):
        return _FAILED
    return _number(match["number"])


def _number(text: str) -> float:
    """A float, NaN when the digits do not make one ("4,5", "1.2.3")."""
    try:
        return float(text.replace("−", "-"))
    except ValueError:
        return math.nan


def _json_objects(text: str) -> Iterator[tuple[int, int, dict[str, Any]]]:
    """(start, end, value) of the outermost JSON objects; braces that open and never close are skipped."""
    position, restarts = 0, 0
    while (start := text.find("{", position)) >= 0:
        end = _object_end(text, start)
        if end < 0:
            # Each restart may read to the end again: a few are enough for prose, and keep the scan linear.
            restarts += 1
            if restarts > 3:
                return
            position = start + 1
            continue
        try:
            value = json.loads(text[start:end])
        except (ValueError, RecursionError):
            value = None
        if isinstance(value, dict):
            yield start, end, value
        position = end


_JSON_MARK = re.compile(r'[{}"\\]')


def _object_end(text: str, start: int) -> int:
    """Index behind the brace that closes the one at ``start``, strings respected; -1 when there is none."""
    depth, quoted, skip = 0, False, -1
    for mark in _JSON_MARK.finditer(text, start):
        if mark.start() == skip:
            continue
        char = mark.group()
        if quoted:
            if char == "\\":
                skip = mark.end()
            elif char == '"':
                quoted = False
        elif char == '"':
            quoted = True
        elif char == "{":
            depth += 1
        elif char == "}":
            depth -= 1
            if depth == 0:
                return mark.end()
    return -1


def _score_key(obj: dict[str, Any]) -> str | None:
    """The key that holds the score; a final score goes before a plain one, a later key before an earlier one."""
    found = None
    for key in obj:
        label = _LABEL.fullmatch(key.strip())
        if label and (label["full"] or found is None or _is_short(found)):
            found = key
    return found


def _is_short(key: str) -> bool:
    return key.strip().lower() == "score"


def _json_score(value: Any) -> Any:
    """A number as it is, text like "4" or "4/5" read; everything else fails."""
    if isinstance(value, str):
        text = value.strip()
        number = re.match(_NUMBER, text)
        if number is None:
            return _FAILED
        after = _AFTER.match(text, number.end())
        if after and _number(after["denominator"]) != _SCALE:
            return _FAILED
        unit = _UNIT_AFTER.match(text, number.end())
        end = after.end() if after else unit.end() if unit else number.end()
        return _number(number.group()) if not text[end:].strip(" )）]。.") else _FAILED
    if isinstance(value, bool) or not isinstance(value, int | float):
        return _FAILED
    # Beyond the scale anyway; float() of a huge integer would overflow.
    return float(value) if -1e6 < value < 1e6 else _FAILED


def _blank_out(text: str, spans: list[tuple[int, int]]) -> str:
    """The text with JSON objects replaced by blanks of equal length, so that no line inside one is read again."""
    pieces, position = [], 0
    for start, end in spans:
        pieces += [text[position:start], " " * (end - start)]
        position = end
    return "".join([*pieces, text[position:]])


VERDICT_PARSERS: dict[str, Callable[[str], Verdict | None]] = {
    "Translation": parse_translation,
    "VQA": parse_vqa,
}
