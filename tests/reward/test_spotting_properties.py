"""What holds for any spotting answer. References of one picture do not overlap each other here, as in real pages; see
``region_match`` for what a junk box can do where they do."""

import json

from hypothesis import given, settings
from hypothesis import strategies as st

from reward.task_scorers.spotting import process_spotting_task
from reward.task_scorers.text_metrics import clean_text

TEXTS = st.text(st.sampled_from("ab(,)1 汉<>"), max_size=6)
CELLS = st.integers(0, 24)


def box_of(cell):
    """A box of its own in a grid of 25."""
    left, top = cell % 5 * 200, cell // 5 * 200
    return left, top, left + 100, top + 80


@st.composite
def references(draw):
    cells = draw(st.lists(CELLS, min_size=1, max_size=6, unique=True))
    return [(draw(TEXTS), box_of(cell)) for cell in cells]


@st.composite
def loose_items(draw):
    left, top, right, bottom = box_of(draw(CELLS))
    shift = st.integers(-60, 60)
    return draw(TEXTS), (left + draw(shift), top + draw(shift), right + draw(shift), bottom + draw(shift))


def written(items):
    return json.dumps([{"box": box, "text": text} for text, box in items])


def score(response, reference):
    result = process_spotting_task(written(response), written(reference))
    assert result["decision"] == "scored"
    assert 0.0 <= result["reward"] <= 1.0
    return result["reward"]


@settings(max_examples=100, deadline=None)
@given(references(), st.randoms(use_true_random=False))
def test_a_right_answer_scores_1_in_any_order(reference, random):
    shuffled = random.sample(reference, len(reference))
    assert score(shuffled, reference) == 1.0


@settings(max_examples=150, deadline=None)
@given(st.lists(loose_items(), max_size=7), st.lists(loose_items(), min_size=1, max_size=7), st.data())
def test_order_changes_nothing(response, reference, data):
    expected = score(response, reference)
    assert score(data.draw(st.permutations(response)), data.draw(st.permutations(reference))) == expected


@settings(max_examples=100, deadline=None)
@given(references(), st.data())
def test_every_region_taken_from_a_right_answer_costs(reference, data):
    rest = list(reference)
    previous = 1.0
    while rest:
        rest.pop(data.draw(st.integers(0, len(rest) - 1)))
        current = score(rest, reference)
        assert current < previous
        previous = current
    assert previous == 0.0


@settings(max_examples=150, deadline=None)
@given(references(), st.data())
def test_taking_out_a_matched_region_never_helps(reference, data):
    response = [(data.draw(st.sampled_from([text, "ab", ""])), box) for text, box in reference]
    taken = data.draw(st.integers(0, len(response) - 1))
    assert score(response[:taken] + response[taken + 1 :], reference) <= score(response, reference)


@settings(max_examples=200, deadline=None)
@given(references(), st.lists(loose_items(), max_size=6), st.data())
def test_junk_never_helps(reference, response, data):
    before = score(response, reference)
    boxes = [box for _, box in [*reference, *response]]
    empty = ("", data.draw(st.sampled_from(boxes)))
    far = (data.draw(TEXTS), (5000, 5000, 5100, 5100))
    assert score([*response, far], reference) <= before
    if all(clean_text(text) for text, _ in reference):
        assert score([*response, empty], reference) <= before
    if response:
        assert score([*response, data.draw(st.sampled_from(response))], reference) <= before


@settings(max_examples=100, deadline=None)
@given(st.text('a(1,2)<ref>/quad[]{}":box\ud800 .', max_size=60), st.text("a(1,2),(3,4)<>refquad/", max_size=60))
def test_any_two_texts_score_or_drop_the_same_way_each_time(response, reference):
    result = process_spotting_task(response, reference)
    assert result == process_spotting_task(response, reference)
    assert result["reward"] == -1.0 if result["decision"] == "bad_reference" else 0.0 <= result["reward"] <= 1.0
    own = process_spotting_task(reference, reference)
    assert own["reward"] == (1.0 if own["is_valid"] else -1.0)
