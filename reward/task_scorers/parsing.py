"""Scorer of the task Parsing: a page as text, formulas and HTML tables.

With both sides normalised (`normalize.py`) the score is

    text                                          when the reference has no table,
    0.5·text + 0.25·mean TEDS + 0.25·mean TEDS-S  otherwise, 0 when that is below 0.5,

where text = 1 − Levenshtein distance / longer length over the whole document, tables included, set to 0 below 0.5 and
to 1 above 0.99. Tables are paired one to one so that the sum of TEDS and TEDS-S (`teds.py`) is largest. Another number
of tables than the reference's, a pair with TEDS < 0.4 or with TEDS-S < 0.5: score 0. In texts longer than
`MAX_PLAIN_LENGTH` once normalised, a tag of a table counts as one character.

Before all that: a reference that is empty, or that the normaliser empties, cannot be scored; a response identical to
the reference scores 1; a response that ends in ten or more copies of one unit and is more than twice as long as the
reference scores 0.
"""

import json
import re
import zlib
from dataclasses import dataclass
from functools import lru_cache
from statistics import fmean
from typing import Any

from reward.task_scorers.normalize import NormalizedDocument, normalize_document
from reward.task_scorers.text_metrics import ends_in_repetition, normalized_distance

TEXT_FLOOR = 0.5
TEXT_CEILING = 0.99
TEDS_FLOOR = 0.4
STRUCTURE_FLOOR = 0.5
SCORE_FLOOR = 0.5
# Writing out the closing tags that an answer of 64,000 characters left out can more than double it, and the edit
# distance takes quadratic time.
MAX_PLAIN_LENGTH = 80_000

_TABLE_TAG = re.compile(r"</?(?:table|tr|td)(?: [a-z]{7}=\"[0-9]{1,4}\"){0,2}>")

_EMPTY = NormalizedDocument("", ())


@dataclass(frozen=True)
class TablePair:
    """A table of the response, the table of the reference it is compared to, and their similarities in [0, 1]."""

    response_index: int
    reference_index: int
    teds: float
    structure_teds: float


@dataclass(frozen=True)
class ParsingDetails:
    """Everything a person needs to see why an answer got its score.

    `reason` names the rule that set the score: "identical", "repetition", "text", "text_and_tables", or for a 0
    "table_count", "teds_floor", "structure_floor", "score_floor"; "" when the reference is unusable.
    `text_similarity` is the plain value in [0, 1], before it is set to 0 below 0.5 and to 1 above 0.99. The HTML of a
    table is `response.tables[i].to_html()`.
    """

    score: float
    decision: str
    reason: str = ""
    response: NormalizedDocument = _EMPTY
    reference: NormalizedDocument = _EMPTY
    text_similarity: float = 0.0
    table_pairs: tuple[TablePair, ...] = ()

    def summary(self) -> dict[str, Any]:
        """Return the figures as a small JSON-ready dictionary."""
        summary: dict[str, Any] = {"reason": self.reason, "text_similarity": round(self.text_similarity, 6)}
        if self.response.tables or self.reference.tables:
            summary["tables"] = {"response": len(self.response.tables), "reference": len(self.reference.tables)}
        if self.table_pairs:
            summary["teds"] = round(fmean(pair.teds for pair in self.table_pairs), 6)
            summary["structure_teds"] = round(fmean(pair.structure_teds for pair in self.table_pairs), 6)
        return summary


def process_parsing_task(response: str, ref_answer: str) -> dict[str, Any]:
    """Score a parsed page against its reference.

    Returns `reward` in [0, 1] with decision "scored"; -1.0 with `is_valid` False and decision "empty_reference" or
    "bad_reference" when the reference cannot be scored. `analysis` is JSON text with the rule that set the score and
    the similarities of text and tables.

    >>> process_parsing_task("$x^{2}$", "x^2")["reward"]
    1.0
    """
    details = parsing_details(response, ref_answer)
    return {
        "analysis": json.dumps(details.summary()),
        "is_valid": details.decision == "scored",
        "reward": details.score,
        "decision": details.decision,
    }


def parsing_details(response: str, ref_answer: str) -> ParsingDetails:
    """Score `response` against `ref_answer` and keep what the score was made of."""
    response_trimmed, reference_trimmed = response.strip(), ref_answer.strip()
    if not reference_trimmed:
        return ParsingDetails(-1.0, "empty_reference")
    reference = _normalize_reference(ref_answer)
    if not reference.text:
        return ParsingDetails(-1.0, "bad_reference")
    if response_trimmed == reference_trimmed:
        pairs = tuple(TablePair(i, i, 1.0, 1.0) for i in range(len(reference.tables)))
        return ParsingDetails(1.0, "scored", "identical", reference, reference, 1.0, pairs)
    normalized = normalize_document(response)
    similarity = _text_similarity(normalized.text, reference.text)
    pairs = ()
    if len(response) > 2 * len(ref_answer) and (ends_in_repetition(response) or ends_in_repetition(response_trimmed)):
        score, reason = 0.0, "repetition"
    else:
        text = 0.0 if similarity < TEXT_FLOOR else 1.0 if similarity > TEXT_CEILING else similarity
        if not reference.tables:
            score, reason = text, "text"
        elif len(normalized.tables) != len(reference.tables):
            score, reason = 0.0, "table_count"
        else:
            pairs = _pair_tables(normalized, reference)
            score, reason = _score_with_tables(text, pairs)
    return ParsingDetails(score, "scored", reason, normalized, reference, similarity, pairs)


def _text_similarity(first: str, second: str) -> float:
    """1 − Levenshtein distance / longer length; in texts beyond `MAX_PLAIN_LENGTH` a table's tag counts as one."""
    if max(len(first), len(second)) > MAX_PLAIN_LENGTH:
        first, second = _TABLE_TAG.sub(_tag_symbol, first), _TABLE_TAG.sub(_tag_symbol, second)
    return 1.0 - normalized_distance(first, second)


def _tag_symbol(tag: re.Match[str]) -> str:
    # Plane 16 is private use: tags differ among themselves and from any text.
    return chr(0x100000 + zlib.crc32(tag[0].encode()) % 0xFFFE)


def _score_with_tables(text: float, pairs: tuple[TablePair, ...]) -> tuple[float, str]:
    if any(pair.teds < TEDS_FLOOR for pair in pairs):
        return 0.0, "teds_floor"
    if any(pair.structure_teds < STRUCTURE_FLOOR for pair in pairs):
        return 0.0, "structure_floor"
    score = 0.5 * text + 0.25 * fmean(p.teds for p in pairs) + 0.25 * fmean(p.structure_teds for p in pairs)
    return (score, "text_and_tables") if score >= SCORE_FLOOR else (0.0, "score_floor")


def _pair_tables(response: NormalizedDocument, reference: NormalizedDocument) -> tuple[TablePair, ...]:
    # Imported here: compiled code that a page without tables does not need.
    from reward.task_scorers.teds import pair_tables

    return tuple(TablePair(*pair) for pair in pair_tables(response.tables, reference.tables))


@lru_cache(maxsize=64)
def _normalize_reference(ref_answer: str) -> NormalizedDocument:
    # The answers of one GRPO group share their reference.
    return normalize_document(ref_answer)
