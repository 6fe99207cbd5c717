"""Text helpers shared by the scorers."""

import unicodedata

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reward.task_scorers.text_metrics import (
    clean_text,
    distance_matrix,
    ends_in_repetition,
    is_no_text,
    nfc,
    normalized_distance,
    preview,
)

TEXTS = st.text(st.characters(exclude_categories=()), max_size=30)


@pytest.mark.parametrize(
    ("a", "b", "distance"),
    [
        ("", "", 0.0),
        ("", "abc", 1.0),
        ("abc", "abd", 1 / 3),
        ("ab", "abcd", 0.5),
        ("汉字", "汉子", 0.5),
        ("😀a", "a", 0.5),
        ("a\ud800", "a", 0.5),
    ],
)
def test_distance_counts_code_points_over_the_longer_length(a, b, distance):
    assert normalized_distance(a, b) == pytest.approx(distance)
    assert normalized_distance(b, a) == pytest.approx(distance)


@settings(max_examples=100)
@given(st.lists(TEXTS, max_size=4), st.lists(TEXTS, max_size=4))
def test_distance_matrix_is_the_distance_of_every_pair(a, b):
    expected = np.array([[normalized_distance(x, y) for y in b] for x in a]).reshape(len(a), len(b))
    assert np.allclose(distance_matrix(a, b), expected)


def test_distance_matrix_of_very_long_texts_compares_their_beginnings():
    long = "a" * 30_000
    assert distance_matrix([long + "b"], [long + "c"]).tolist() == [[0.0]]
    assert distance_matrix(["b" + long], ["c" + long])[0, 0] == 1 / 64


@pytest.mark.parametrize(
    ("text", "cleaned"),
    [
        ("<b>bold</b>", "bold"),
        ("one<br/>two<br />three<br>", "onetwothree"),
        ('<font color="red">x</font>', "x"),
        ("<hy-meta>x</hy-meta>", "x"),
        ("H₂SO₄ x₁₀", "H2SO4x10"),
        (" a\tb\nc\u3000d\u00a0e ", "abcde"),
        ("cafe\u0301", "café"),
        ("Ａbc，。!", "Ａbc，。!"),
        ("3 <5 and 7> 2", "3<5and7>2"),
        ("<3", "<3"),
        ("<b", "<b"),
        ("<金额>", "<金额>"),
        ("\ud800 <b>", "\ud800"),
    ],
)
def test_clean_text(text, cleaned):
    assert clean_text(text) == cleaned


def test_a_comparison_is_text_and_not_a_tag():
    assert clean_text("a < b and c > d") == "a<bandc>d"


@pytest.mark.parametrize("text", ["<a " * 21_000, "<" * 64_000, "<a" + " " * 64_000 + "<", "</a/" * 16_000])
def test_cleaning_unclosed_tags_keeps_them(text):
    assert clean_text(text) == "".join(text.split())


@settings(max_examples=100)
@given(st.text("ae\u0301\u0323\u0308한\u1100\u1161\u11a8が\u3099", max_size=60))
def test_nfc_of_pieces_is_nfc(text):
    long = text + "," + "中" * 2100 + "," + text
    assert nfc(long) == unicodedata.normalize("NFC", long)


def test_a_run_of_combining_marks_is_composed_in_pieces_of_thirty():
    run = "a" + "\u0301\u0323" * 20_000
    composed = nfc(run)
    assert composed.startswith("\u1ea1")
    assert len(composed) == len(run) - 1
    assert nfc("a" + "\u0301\u0323" * 12) == unicodedata.normalize("NFC", "a" + "\u0301\u0323" * 12)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("没有文字", True),
        ("图中无文字。", True),
        (" No Text ", True),
        ("There is no text in this picture.", True),
        ("no\ntext", True),
        ("", False),
        ("casino text", False),
        ("text", False),
        ("no text" + "x" * 53, True),
        ("no text" + "x" * 54, False),
    ],
)
def test_no_text_phrases_in_at_most_60_characters(text, expected):
    assert is_no_text(text) is expected


def _ends_in_repetition_slowly(text, min_repeats, min_unit):
    return any(
        text.endswith(text[len(text) - unit :] * min_repeats) for unit in range(min_unit, len(text) // min_repeats + 1)
    )


@settings(max_examples=300)
@given(st.text("ab", max_size=6), st.text("ab", min_size=1, max_size=4), st.integers(1, 8), st.integers(2, 5))
def test_repetition_agrees_with_its_definition(head, unit, times, min_repeats):
    text = head + unit * times
    for min_unit in (1, 2, 3):
        expected = _ends_in_repetition_slowly(text, min_repeats, min_unit)
        assert ends_in_repetition(text, min_repeats, min_unit) is expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("x" * 20, True),
        ("x" * 19, False),
        ("head " + "ab" * 10, True),
        ("ab" * 9, False),
        ("ab" * 10 + "!", False),
        ("line of text\n" * 10, True),
        ("a" * 64_000, True),
        (("a" * 3_300 + "b") * 19, True),
        (("a" * 7_000 + "b") * 9, False),
        ("", False),
    ],
)
def test_ten_copies_of_a_unit_of_two_or_more(text, expected):
    assert ends_in_repetition(text) is expected


def test_preview_can_always_be_encoded():
    assert preview("a\ud800b").encode() == b"a?b"
    assert preview("x" * 50, 10) == "x" * 9 + "…"
