"""How many triples of two tables agree, one to one, at each tolerance.

Exact up to MAX_TRIPLE_PAIRS and MAX_TEXT_PAIRS: a maximum matching of the bipartite graph of agreeing triples. Past a
limit headers and texts must be equal (numbers keep their tolerance, and the matching is still a maximum one).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal
from heapq import heappop, heappush

import numpy as np
from rapidfuzz.distance import Levenshtein
from rapidfuzz.process import cdist
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import maximum_bipartite_matching

from reward.task_scorers.chart_deplot.headers import comparable_header, display_header
from reward.task_scorers.chart_deplot.numbers import number_window
from reward.task_scorers.chart_deplot.tolerance import HIGH, TOLERANCES
from reward.task_scorers.chart_deplot.triples import Triple

MAX_TRIPLE_PAIRS = 64_000_000
MAX_TEXT_PAIRS = 16_000_000
MAX_CANDIDATES = 1_000_000
CHUNK_PAIRS = 2_000_000
WORDS_SHARE = 5
"""A text of n code points tolerates at most n // WORDS_SHARE edits."""

_FAR = 60  # Beyond every tolerance; three of them still fit in an unsigned byte.

Matching = list[tuple[Triple, Triple]]


class TooManyPairs(Exception):
    """The exact comparison would take too long."""


def match_triples(response: Sequence[Triple], reference: Sequence[Triple]) -> dict[str, Matching]:
    """Maximum one-to-one matching of agreeing triples, by tolerance name.

    Two triples agree when both values are numbers within the tolerance and the headers' distances sum to at most its
    words, or both are texts and the distances of headers and texts do, in the better pairing of the headers. Each
    distance is bounded by a fifth of its reference part.
    """
    result: dict[str, Matching] = {tolerance.name: [] for tolerance in TOLERANCES}
    for kind in (Decimal, str):
        ours = [triple for triple in response if isinstance(triple.value, kind)]
        theirs = [triple for triple in reference if isinstance(triple.value, kind)]
        if not ours or not theirs:
            continue
        try:
            found = _match_exactly(ours, theirs, numeric=kind is Decimal)
        except TooManyPairs:
            found = _match_equal_headers(ours, theirs, numeric=kind is Decimal)
        for name, pairs in found.items():
            result[name].extend((ours[i], theirs[j]) for i, j in pairs)
    return result


def _match_exactly(ours: list[Triple], theirs: list[Triple], numeric: bool) -> dict[str, list[tuple[int, int]]]:
    if len(ours) * len(theirs) > MAX_TRIPLE_PAIRS:
        raise TooManyPairs
    pred, ref, words = _candidates(ours, theirs, texts=not numeric)
    percent = _percent_needed(ours, theirs, pred, ref) if numeric else np.zeros(len(pred), dtype=np.uint8)
    matched = {}
    for tolerance in TOLERANCES:
        agree = (words <= tolerance.words) & (percent <= tolerance.percent)
        matched[tolerance.name] = _maximum_matching(pred[agree], ref[agree], len(ours), len(theirs))
    return matched


def _maximum_matching(pred: np.ndarray, ref: np.ndarray, rows: int, columns: int) -> list[tuple[int, int]]:
    if not len(pred):
        return []
    if np.bincount(pred).max() == 1 and np.bincount(ref).max() == 1:
        return list(zip(pred.tolist(), ref.tolist()))
    graph = csr_matrix((np.ones(len(pred), dtype=np.uint8), (pred, ref)), shape=(rows, columns))
    partner = maximum_bipartite_matching(graph, perm_type="column")
    return [(int(i), int(partner[i])) for i in np.flatnonzero(partner >= 0)]


def _candidates(ours: list[Triple], theirs: list[Triple], texts: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Pairs whose texts are within the widest word tolerance: indices into both sides, and the summed distance."""
    pred_names, pred_first, pred_second = _vocabulary(ours)
    ref_names, ref_first, ref_second = _vocabulary(theirs)
    headers = _text_distances(pred_names, ref_names, comparable_header, display_header)
    if texts:
        pred_texts, pred_text = _index(triple.value for triple in ours)
        ref_texts, ref_text = _index(triple.value for triple in theirs)
        values = _text_distances(pred_texts, ref_texts)
    found: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
    total = 0
    step = max(1, CHUNK_PAIRS // len(ours))
    for start in range(0, len(theirs), step):
        stop = start + step
        first, second = headers[:, ref_first[start:stop]], headers[:, ref_second[start:stop]]
        words = np.minimum(first[pred_first] + second[pred_second], first[pred_second] + second[pred_first])
        if texts:
            words += values[:, ref_text[start:stop]][pred_text]
        near = words <= HIGH.words
        total += np.count_nonzero(near)
        if total > MAX_CANDIDATES:
            raise TooManyPairs
        pred, ref = np.nonzero(near)
        found.append((pred, ref + start, words[pred, ref]))
    return tuple(np.concatenate(parts) for parts in zip(*found))


def _vocabulary(triples: list[Triple]) -> tuple[list[str], np.ndarray, np.ndarray]:
    names, positions = _index(header for triple in triples for header in triple[:2])
    return names, positions[::2], positions[1::2]


def _index(texts: Iterable[str]) -> tuple[list[str], np.ndarray]:
    """The distinct texts, and the position of each text among them."""
    index: dict[str, int] = {}
    positions = np.array([index.setdefault(text, len(index)) for text in texts])
    return list(index), positions


def _identity(text: str) -> str:
    return text


def _text_distances(
    response: list[str],
    reference: list[str],
    comparable: Callable[[str], str] = _identity,
    measured: Callable[[str], str] = _identity,
) -> np.ndarray:
    """Edit distances, shape (len(response), len(reference)), uint8; _FAR where one exceeds its reference text's cap."""
    if len(response) * len(reference) > MAX_TEXT_PAIRS:
        raise TooManyPairs
    caps = np.array([min(HIGH.words, len(measured(text)) // WORDS_SHARE) for text in reference], dtype=np.uint8)
    distances = np.full((len(response), len(reference)), _FAR, dtype=np.uint8)
    lenient = np.flatnonzero(caps)
    if len(lenient):
        near = cdist(
            [comparable(text) for text in response],
            [comparable(reference[j]) for j in lenient],
            scorer=Levenshtein.distance,
            score_cutoff=HIGH.words,
            dtype=np.uint8,
        )
        near[near > caps[lenient]] = _FAR
        distances[:, lenient] = near
    row_of = {text: i for i, text in enumerate(response)}
    for j, text in enumerate(reference):
        if text in row_of:
            distances[row_of[text], j] = 0
    return distances


def _percent_needed(ours: list[Triple], theirs: list[Triple], pred: np.ndarray, ref: np.ndarray) -> np.ndarray:
    """For each candidate pair the least tolerance, in percent, at which its numbers agree; 255 for none."""
    values = sorted({triple.value for triple in ours})
    rank_of = {value: rank for rank, value in enumerate(values)}
    rank = np.array([rank_of[triple.value] for triple in ours])[pred]
    distinct = {triple.value: 0 for triple in theirs}
    window_of = {value: index for index, value in enumerate(distinct)}
    window = np.array([window_of[triple.value] for triple in theirs])[ref]
    percent = np.full(len(pred), 255, dtype=np.uint8)
    for tolerance in reversed(TOLERANCES):
        bounds = np.empty((len(distinct), 2), dtype=np.int64)
        for index, value in enumerate(distinct):
            low, high = number_window(value, tolerance.percent)
            bounds[index] = bisect_left(values, low), bisect_right(values, high)
        inside = (bounds[window, 0] <= rank) & (rank < bounds[window, 1])
        percent[inside] = tolerance.percent
    return percent


def _match_equal_headers(ours: list[Triple], theirs: list[Triple], numeric: bool) -> dict[str, list[tuple[int, int]]]:
    """The approximation for huge tables: equal headers, equal texts; numbers by tolerance, matched optimally."""
    groups: dict[tuple, tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
    for side, triples in enumerate((ours, theirs)):
        for index, triple in enumerate(triples):
            key = triple[:2] if numeric else triple
            groups[key][side].append(index)
    result: dict[str, list[tuple[int, int]]] = {}
    for tolerance in TOLERANCES:
        pairs: list[tuple[int, int]] = []
        for pred, ref in groups.values():
            if numeric and pred and ref:
                points = [(ours[i].value, i) for i in pred]
                windows = [(*number_window(theirs[j].value, tolerance.percent), j) for j in ref]
                pairs.extend(match_points_to_windows(points, windows))
            else:
                pairs.extend(zip(pred, ref))
        result[tolerance.name] = pairs
    return result


def match_points_to_windows(
    points: list[tuple[Decimal, int]], windows: list[tuple[Decimal, Decimal, int]]
) -> list[tuple[int, int]]:
    """Maximum matching of numbers to closed intervals: each number takes the open interval that ends first.

    Optimal because such a graph is convex (Glover, 1967). Items are (value, index) and (low, high, index).
    """
    waiting: list[tuple[Decimal, int]] = []
    arriving = sorted(windows)
    position = 0
    pairs = []
    for value, point in sorted(points):
        while position < len(arriving) and arriving[position][0] <= value:
            _, high, window = arriving[position]
            heappush(waiting, (high, window))
            position += 1
        while waiting and waiting[0][0] < value:
            heappop(waiting)
        if waiting:
            pairs.append((point, heappop(waiting)[1]))
    return pairs
