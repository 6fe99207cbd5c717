"""Cell values: which of them are numbers, and which numbers agree.

Arithmetic is decimal and exact, so that 1.05 agrees with 1 at 5 % and a number of thousands of digits or with an
exponent like 1e999999 costs no more than its text.
"""

from __future__ import annotations

import re
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal, Inexact, InvalidOperation, Overflow

from reward.task_scorers.chart_deplot.textlines import fold_width

Value = Decimal | str
"""A normalised cell: a number, or a text."""

MAX_EXPONENT_DIGITS = 8
"""A literal with a longer exponent is zero when the exponent is negative, else a text ("not finite")."""

# Room for any text's digits; what would not fit is an error, never a rounded bound.
_EXACT = Context(prec=10_000_000, Emax=MAX_EMAX, Emin=MIN_EMIN, traps=[InvalidOperation, Overflow, Inexact])

_NUMBER = re.compile(r"[+-]?(\d+(?:\.\d*)?|\.\d+)(?:e([+-]?)(\d+))?", re.ASCII)
_GROUPED = re.compile(r"(?<![\d.,])\d+(?:,\d{3})+(?!,?\d)", re.ASCII)
_BLANK = re.compile(r"\s+")
_UNITS = str.maketrans({sign: "" for sign in "%$€£¥"} | {"\u2212": "-"})


def parse_value(cell: str) -> Value:
    """Normalise a cell and read it as a number where it is one.

    Width and case are folded, blanks, ``% $ € £ ¥`` and commas before groups of three digits go, U+2212 is a minus.

    >>> parse_value("1,234.5 %"), parse_value("−7"), parse_value("N/A"), parse_value("1,23")
    (Decimal('1234.5'), Decimal('-7'), 'n/a', '1,23')
    """
    text = cell if _NUMBER.fullmatch(cell) else _clean_value(cell)
    match = _NUMBER.fullmatch(text)
    if match is None:
        return text
    mantissa, sign, exponent = match.groups()
    if exponent and len(exponent.lstrip("0")) > MAX_EXPONENT_DIGITS:
        if sign == "-" or not mantissa.strip("0."):
            return Decimal(0)
        return text
    return Decimal(text)


def _clean_value(cell: str) -> str:
    text = fold_width(cell).replace("\\%", "%").replace("\\$", "$").translate(_UNITS).lower()
    text = _BLANK.sub("", text)
    return _GROUPED.sub(lambda match: match.group().replace(",", ""), text) if "," in text else text


def number_window(reference: Decimal, percent: int) -> tuple[Decimal, Decimal]:
    """The closed interval of numbers within ``percent`` of ``|reference|``; exact.

    >>> number_window(Decimal(-100), 5)
    (Decimal('-105.00'), Decimal('-95.00'))
    """
    if percent == 0:
        return reference, reference
    slack = _EXACT.multiply(reference.copy_abs(), Decimal(percent).scaleb(-2))
    return _EXACT.subtract(reference, slack), _EXACT.add(reference, slack)
