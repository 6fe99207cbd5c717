"""The parsing scorer: its score rule by rule, and the faults of the published policy, each named after the fault."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reward.task_scorers.parsing import parsing_details, process_parsing_task
from reward.task_scorers.table_tree import Table
from reward.task_scorers.teds import teds
from tests.reward.table_strategies import tables

PROSE = "The quick brown fox jumps over the lazy dog while seven wizards make toxic brew for the evil queen."


def score(response: str, reference: str) -> float:
    result = process_parsing_task(response, reference)
    assert result["is_valid"] is True
    assert result["decision"] == "scored"
    assert 0.0 <= result["reward"] <= 1.0
    return result["reward"]


def reason(response: str, reference: str) -> str:
    return json.loads(process_parsing_task(response, reference)["analysis"])["reason"]


def html(*rows: str, attributes: str = "") -> str:
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row.split('|'))}</tr>" for row in rows)
    return f"<table{attributes}>{body}</table>"


PRICES = html("Item|Price|Stock", "Apple|1.20|14", "Banana|0.80|55", "Cherry|3.00|7")


@pytest.mark.parametrize("reference", ["", "  \n\n ", "\t"])
@pytest.mark.parametrize("response", ["", "text"])
def test_an_empty_reference_drops_the_sample(response, reference):
    result = process_parsing_task(response, reference)
    assert (result["reward"], result["is_valid"], result["decision"]) == (-1.0, False, "empty_reference")


@pytest.mark.parametrize(
    "reference", ["(12,34),(56,78)", "<quad>(1,2),(3,4)</quad>", "<|im_end|>", "<br>", "$$", r"\quad"]
)
def test_a_reference_that_normalises_to_nothing_drops_the_sample_even_when_repeated(reference):
    for response in (reference, "text", ""):
        result = process_parsing_task(response, reference)
        assert (result["reward"], result["is_valid"], result["decision"]) == (-1.0, False, "bad_reference")


@pytest.mark.parametrize("response", ["", "   ", "<|im_end|>", "(1,2),(3,4)", "</table>"])
def test_an_empty_response_scores_0_and_is_valid(response):
    """Fault: an empty response was dropped, so that the policy could escape by answering nothing."""
    assert score(response, PROSE) == 0.0
    assert score(response, PRICES) == 0.0


@pytest.mark.parametrize(
    "text", ["x", "a  b\n\nc", "$$ \\frac{a}{b} $$", "<table>", "</table>x", "ab" * 40, PRICES, "(1,2)"]
)
def test_identical_answers_score_1(text):
    """Fault: an answer equal to its reference lost points to the normaliser or the repetition rule."""
    assert score(text, text) == 1.0
    assert score(f"  {text}\n", text) == 1.0
    assert reason(text, text) == "identical"


def test_a_response_that_ends_in_repetition_scores_0():
    reference = PROSE
    assert score(PROSE + "ab" * 60, reference) == 0.0
    assert reason(PROSE + "ab" * 60, reference) == "repetition"
    assert reason(PROSE + "-" * 150, reference) == "repetition"
    assert reason(PROSE + "a long unit of text that comes again. " * 10, reference) == "repetition"
    assert reason(PROSE + "ab" * 60 + "\n", reference) == "repetition"


def test_repetition_counts_only_in_responses_more_than_twice_as_long():
    short = PROSE + "ab" * 20
    assert len(short) <= 2 * len(PROSE)
    assert reason(short, PROSE) == "text"
    # Measured on the raw strings: this normalises to the reference, but the model is looping.
    assert score(PROSE + "<br>" * 120, PROSE) == 0.0


def test_nine_repeats_are_no_loop():
    response = "0123456789abcdefghijklmnopqrstuvwxyz" * 9
    assert reason("x" + response, "y" * 40) == "text"


def test_text_score_is_the_levenshtein_similarity():
    assert score("abcdefghiX", "abcdefghij") == pytest.approx(0.9)
    assert score("abcdefgh", "abcdefghij") == pytest.approx(0.8)
    assert score("abcdefghijkl", "abcdefghij") == pytest.approx(10 / 12)


def test_text_below_a_half_is_0_and_above_99_percent_is_1():
    assert score("abcdeVWXYZ", "abcdefghij") == 0.5
    assert score("abcdUVWXYZ", "abcdefghij") == 0.0
    reference = "x" * 99 + "abcdefghij" * 10
    assert score(reference + "y", reference) == 1.0
    assert score("y" + "x" * 98 + "abcdefghij" * 10, reference) == 1.0
    assert score("yy" + "x" * 97 + "abcdefghij" * 10, reference) == pytest.approx(197 / 199)


def test_public_case_parse_01_identical_paragraphs():
    text = "# Title\n\nHello world\n\nSecond paragraph"
    assert score(text, text) == 1.0
    assert score(text.replace("world", "world "), text) == 1.0


def test_public_case_parse_02_other_text_of_the_same_shape():
    assert score("# X\nfoo\nbar", "# T\nHello\nSecond") == 0.0


def test_public_case_parse_03_empty_answer():
    assert score("", "# Title\n\nHello world\n\nSecond paragraph") == 0.0


def test_public_case_parse_05_a_missed_paragraph_break_costs_one_character():
    assert score("Block one\nBlock two", "Block one\n\nBlock two") == pytest.approx(16 / 17)
    assert score("Block one  \nBlock\ntwo", "Block one Block two") == 1.0


@pytest.mark.parametrize(
    ("response", "reference"),
    [
        ("x^2", "x^{2}"),
        (r"\[\sqrt{12} = \sqrt{2^2 \times 3}\]", r"\sqrt{12}=\sqrt{2^2\times3}"),
        (r"\(a + b = c\)", "$$a+b=c$$"),
        ("I like to eat at a caf\u00e9", "I like to eat at a cafe\u0301"),
        ("Hello<br/>everyone", "Hello\neveryone"),
        ("total： １２０（元）", "total: 120(元)"),
        ("A &amp; B &lt; C", "A & B < C"),
        ("Text<|im_end|>", "Text"),
    ],
    ids=["form-01", "form-02", "form-05", "parse-06", "parse-08", "full width", "entities", "end token"],
)
def test_answers_that_read_the_same_score_1(response, reference):
    assert score(response, reference) == 1.0
    assert score(reference, response) == 1.0


def test_a_digit_does_not_buy_a_paragraph_break():
    """Fault: the separator was a digit, so a digit in the text matched a paragraph break for free."""
    for digit in "0123456789":
        assert score(f"abcd{digit}efgh", "abcd\n\nefgh") == pytest.approx(8 / 9)


def test_coordinates_go_on_both_sides():
    """Fault: trailing coordinates were removed from one side only."""
    assert score("Figure one(1,2),(3,4)", "Figure one") == 1.0
    assert score("Figure one", "Figure one(1,2),(3,4)") == 1.0
    assert score("Figure one(5,6),(7,8)", "Figure one(1,2),(3,4)") == 1.0


def test_public_case_post_01_coordinates_in_a_table_cell_are_content():
    """Fault: the coordinate cleaner deleted the content of table cells."""
    reference = html("(2,4),(3,3)|x")
    assert score(html("|x"), reference) < 1.0
    assert score(reference + "\nFigure(1,2),(3,4)", reference + "\nFigure") == 1.0
    assert score("$(1,2),(3,4)$ = P", "$(9,9),(9,9)$ = P") < 1.0


def test_a_table_tag_with_attributes_is_a_table():
    """Fault: only a bare `<table>` was scored as a table, so wrong cells cost next to nothing in a long page."""
    reference = PROSE * 10 + html("a|b", "c|d", attributes=' border="1" class="x"')
    response = PROSE * 10 + html("w|x", "y|z", attributes=' border="1" class="x"')
    details = parsing_details(response, reference)
    assert len(details.table_pairs) == 1
    assert details.table_pairs[0].teds == pytest.approx(1 - 4 / 7)
    assert details.score == pytest.approx(0.5 * 1.0 + 0.25 * (1 - 4 / 7) + 0.25)
    assert score(html("a|b"), html("a|b", attributes="\nwidth=9")) == 1.0


def test_another_number_of_tables_scores_0():
    two = html("a|b") + html("c|d")
    assert score(PROSE + html("a|b|c|d"), PROSE + two) == 0.0
    assert reason(PROSE + html("a|b|c|d"), PROSE + two) == "table_count"
    assert reason(PROSE + two + html("x"), PROSE + two) == "table_count"
    assert reason(PROSE, PROSE + html("a")) == "table_count"


def test_tables_without_one_in_the_reference_are_text():
    assert reason(PROSE + html("a"), PROSE) == "text"
    markdown = PROSE + "\n\n| a | b |\n|---|---|\n| 1 | 2 |"
    assert parsing_details(markdown.replace("| 2 |", "| 3 |"), markdown).table_pairs == ()


def test_the_score_with_tables_is_the_weighted_sum():
    response = PROSE + PRICES.replace("1.20", "1.25")
    details = parsing_details(response, PROSE + PRICES)
    pair = details.table_pairs[0]
    assert pair.teds == pytest.approx(1 - 0.25 / 17)
    assert pair.structure_teds == 1.0
    assert details.text_similarity > 0.99
    assert details.score == pytest.approx(0.5 + 0.25 * pair.teds + 0.25)
    damaged = parsing_details(PRICES.replace("<tr><td>Cherry</td><td>3.00</td><td>7</td></tr>", ""), PRICES)
    assert damaged.score == pytest.approx(0.5 * damaged.text_similarity + 0.25 * 13 / 17 + 0.25 * 13 / 17)


def test_a_pair_below_the_floors_scores_0():
    page = PROSE * 10
    wrong_text = page + html("w|x|y", "v|u|t")
    reference = page + html("a|b|c", "d|e|f")
    assert teds(wrong_text, reference) < 0.4
    assert reason(wrong_text, reference) == "teds_floor"
    assert score(wrong_text, reference) == 0.0
    # One long cell keeps TEDS at 0.4 while the structure is below a half.
    spans = "".join(f'<td colspan="2">{c}</td>' for c in "bcdef")
    wrong_structure = f"{page}<table><tr><td>a</td>{spans}</tr></table>"
    plain = page + html("a|b|c|d|e|f")
    details = parsing_details(wrong_structure, plain)
    assert details.reason in ("teds_floor", "structure_floor")
    assert details.score == 0.0


def test_a_sum_below_a_half_scores_0():
    reference = html("a|b|c|d|e|f")
    response = html("a|b|c|x|y|z") + "junk, more junk. " * 9
    details = parsing_details(response, reference)
    assert details.table_pairs[0].teds >= 0.4
    assert details.reason == "score_floor"
    assert details.score == 0.0


def test_all_tables_right_in_a_page_of_wrong_text_is_a_half():
    reference = "x" * 400 + html("a|b")
    response = "y" * 400 + html("a|b")
    assert score(response, reference) == 0.5


def test_every_table_counts():
    """Public case teds-08: only the first table was read, so a wrong second one was free."""
    reference = html("a") + html("b")
    details = parsing_details(html("a") + html("ZZZ"), reference)
    assert sorted(pair.teds for pair in details.table_pairs) == pytest.approx([2 / 3, 1.0])
    assert sum(pair.teds for pair in details.table_pairs) / 2 == pytest.approx(0.8333, abs=1e-4)
    assert details.score < 1.0


def test_tables_are_paired_by_similarity_not_by_order():
    """Fault: tables were paired first come, so one table moved made all of them wrong."""
    first, second, third = html("a|b|c", "1|2|3"), html("Name|Ada", "Year|1815", "City|London"), PRICES
    reference = "\n\n".join((first, second, third))
    details = parsing_details("\n\n".join((third, first, second)), reference)
    assert [(pair.response_index, pair.reference_index) for pair in details.table_pairs] == [(0, 2), (1, 0), (2, 1)]
    assert all(pair.teds == 1.0 for pair in details.table_pairs)


def test_th_is_td():
    """Fault: a header cell written `th` never matched the same cell written `td`."""
    assert score(PRICES.replace("<td>", "<th>").replace("</td>", "</th>"), PRICES) == 1.0
    wrong = PRICES.replace("<td>Item</td><td>Price</td>", "<th>WRONG</th><th>XX</th>")
    assert score(wrong, PRICES) < 1.0


def test_thead_and_tbody_cost_nothing():
    rows = PRICES.removeprefix("<table>").removesuffix("</table>")
    head, _, body = rows.partition("</tr>")
    assert score(f"<table><thead>{head}</tr></thead><tbody>{body}</tbody></table>", PRICES) == 1.0


def test_spans_survive_normalisation():
    """Fault: blanks were stripped before parsing, `<tdcolspan="2">` was an unknown tag, and the cell was lost."""
    reference = '<table><tr><td colspan="2">head</td></tr><tr><td>a</td><td>b</td></tr></table>'
    details = parsing_details(reference.replace("head", "h ead"), reference)
    assert details.reference.tables[0].rows[0][0].colspan == 2
    assert details.score == 1.0
    lost = parsing_details(reference.replace(' colspan="2"', ""), reference)
    assert lost.table_pairs[0].structure_teds == pytest.approx(1 - 1 / 6)
    assert lost.score < 1.0
    assert score(reference.replace('"2"', '"2px"'), reference) == 1.0


def test_truncated_and_wrapped_tables_are_read():
    assert score(PRICES.removesuffix("</td></tr></table>"), PRICES) == 1.0
    assert score(f"<div>{PRICES}</div>", PRICES) == 1.0
    assert score(f"<html><body>{PRICES}</body></html>", PRICES) == 1.0


def test_caption_text_counts_in_the_text_but_not_in_teds():
    reference = PRICES.replace("<table>", "<table><caption>Table 1: fruit prices this week</caption>")
    details = parsing_details(PRICES, reference)
    assert details.table_pairs[0].teds == 1.0
    assert details.text_similarity < 1.0


def test_cell_texts_are_normalised_before_teds():
    response = html("$x^{2}$|（元）", "&alpha;|a<br>b")
    reference = html("x^2|(元)", r"\alpha|ab")
    details = parsing_details(response, reference)
    assert details.table_pairs[0].teds == 1.0
    assert details.score == 1.0


def test_a_nested_table_compares_as_text():
    nested = "<table><tr><td>a<table><tr><td>n</td></tr></table></td></tr></table>"
    assert score(nested, html("an")) == 1.0


def test_a_loop_of_empty_rows_earns_nothing():
    """Public case teds-15."""
    reference = html(*["v|v|v|v"] * 6)
    assert score("<table>" + "<tr><td></td><td></td><td></td><td></td></tr>" * 1000 + "</table>", reference) == 0.0


def test_analysis_is_small_json_whatever_the_input():
    for response, reference in (("a", "a"), ("\ud800", "a\ud800b"), (PRICES * 30, PRICES * 29), ("x", "")):
        analysis = process_parsing_task(response, reference)["analysis"]
        assert len(analysis) < 300
        assert "reason" in json.loads(analysis)


def test_details_hold_what_a_person_needs_to_see():
    details = parsing_details("Text A\n\n" + PRICES.replace("14", "15"), "Text B\n\n" + PRICES)
    assert details.response.text.startswith("TextA")
    assert details.reference.text.startswith("TextB")
    assert details.response.tables[0].to_html().startswith("<table><tr><td>Item</td>")
    assert 0.9 < details.text_similarity < 1.0
    assert details.reason == "text_and_tables"
    assert details.summary()["teds"] == pytest.approx(details.table_pairs[0].teds, abs=1e-6)


def test_huge_normalised_texts_are_still_compared():
    response = "<table><tr>" + "<td>" * 15_990
    reference = "<table><tr>" + "<td>" * 16_000
    assert 0.99 < score(response, reference) < 1.0
    assert score("<table>" + "<td>x" * 8000, reference) == 0.0


def page(parts: list[str | Table]) -> str:
    return "\n\n".join(part if isinstance(part, str) else part.to_html() for part in parts)


words = st.text("abcdefg 12$\\{}^()中，", min_size=1, max_size=12)
pages = st.lists(words | tables(3, 3), min_size=1, max_size=4)


@settings(max_examples=150, deadline=None)
@given(pages)
def test_a_usable_reference_scores_1_against_itself(parts):
    text = page(parts)
    result = process_parsing_task(text, text)
    assert result["reward"] == (1.0 if result["is_valid"] else -1.0)
    details = parsing_details(text + "\n", text)
    assert details.score in (1.0, -1.0)


@settings(max_examples=150, deadline=None)
@given(pages, pages)
def test_scores_are_in_range_with_the_same_keys_and_deterministic(first, second):
    result = process_parsing_task(page(first), page(second))
    assert set(result) == {"analysis", "is_valid", "reward", "decision"}
    assert result["reward"] == -1.0 if not result["is_valid"] else 0.0 <= result["reward"] <= 1.0
    assert isinstance(result["reward"], float)
    assert result == process_parsing_task(page(first), page(second))


@settings(max_examples=100, deadline=None)
@given(pages, st.data())
def test_damage_to_a_right_answer_never_helps(parts, data):
    reference = page(parts)
    at = data.draw(st.integers(0, len(parts) - 1))
    target = parts[at]
    damages: list[list[str | Table]] = [parts[:at] + parts[at + 1 :], [*parts, Table(((),))], [*parts, "junk"]]
    if isinstance(target, Table):
        rows = target.rows
        for i in range(len(rows)):
            damages.append([*parts[:at], Table(rows[:i] + rows[i + 1 :]), *parts[at + 1 :]])
            damages.append([*parts[:at], Table((*rows[:i], rows[i][1:], *rows[i + 1 :])), *parts[at + 1 :]])
        damages.append([*parts[:at], Table((*rows, ())), *parts[at + 1 :]])
    best = parsing_details(reference, reference).score
    for damaged in damages:
        assert parsing_details(page(damaged), reference).score <= best


@settings(max_examples=60, deadline=None)
@given(tables(4, 4), st.integers(1, 6))
def test_more_empty_rows_never_help(table, extra):
    reference = PROSE + table.to_html()
    scores = [
        process_parsing_task(PROSE + Table(table.rows + ((),) * count).to_html(), reference)["reward"]
        for count in range(extra)
    ]
    assert scores == sorted(scores, reverse=True)


def test_the_same_in_every_process_and_under_every_hash_seed():
    program = (
        "from reward.task_scorers.parsing import process_parsing_task as p\n"
        f"print(p({(PROSE + PRICES.replace('14', '15') + html('a|b'))!r}, {(PROSE + html('a|c') + PRICES)!r}))"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed},
            cwd=Path(__file__).parents[2],
            capture_output=True,
            text=True,
            check=True,
            timeout=300,
        ).stdout
        for seed in ("0", "1")
    }
    assert len(outputs) == 1
