"""Reward function for verl: ``reward.custom_reward_function.path=reward_ocr.py``, ``name=compute_score`` or
``name=compute_score_async``.

verl calls both forms with the same keywords and picks by whether the function is a coroutine function. Take the
asynchronous one when the data has judge tasks (translation, VQA): hundreds of judgements are then in flight in one
reward worker, and rule scorers run in threads beside them. The synchronous one is for everything else: verl's thread
pool, tests, a notebook.

>>> compute_score("VQA", "12", "", {})["decision"]
'empty_reference'
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

# verl loads this file by its path, in workers whose working directory is somewhere else.
_ROOT = str(Path(__file__).resolve().parent)
if _ROOT not in sys.path:
    sys.path.insert(0, _ROOT)

from reward.ocr_scorer import OCRScorer  # noqa: E402

_SCORER = OCRScorer()


def compute_score(
    data_source: Any = None,
    solution_str: Any = None,
    ground_truth: Any = None,
    extra_info: Mapping[str, Any] | None = None,
    *,
    response: Any = None,
    ref_answer: Any = None,
    **kwargs: Any,
) -> dict[str, Any]:
    """Score one answer. Never raises.

    Args:
        data_source: where the sample comes from; names the task when ``extra_info["task_type"]`` is missing or empty.
        solution_str: the model's answer (``response`` is its older name).
        ground_truth: the reference (``ref_answer`` is its older name); what is no string counts as its JSON text.
        extra_info: ``task_type`` picks the scorer; ``question``, ``source_lang_text`` and ``target_lang`` go to the
            judge; ``id`` or ``index`` names the sample in the log.
        kwargs: whatever else verl passes (the reward router's address, its tokenizer); not used.

    Returns:
        Always the same keys and types: ``score`` (float in [0, 1], or -1.0: drop this sample), ``acc`` (1.0 when the
        score is 1), ``valid`` (0.0 when dropped), ``task``, ``reward_func``, ``decision``, ``analysis`` (str).
    """
    return _SCORER.process_scoring(_request(data_source, solution_str, ground_truth, extra_info, response, ref_answer))


async def compute_score_async(
    data_source: Any = None,
    solution_str: Any = None,
    ground_truth: Any = None,
    extra_info: Mapping[str, Any] | None = None,
    *,
    response: Any = None,
    ref_answer: Any = None,
    **kwargs: Any,
) -> dict[str, Any]:
    """As :func:`compute_score`, without blocking the event loop."""
    return await _SCORER.process_scoring_async(
        _request(data_source, solution_str, ground_truth, extra_info, response, ref_answer)
    )


def _request(
    data_source: Any, solution_str: Any, ground_truth: Any, extra_info: Any, response: Any, ref_answer: Any
) -> dict[str, Any]:
    known = extra_info if isinstance(extra_info, Mapping) else {}
    names = ("task_type", "question", "source_lang_text", "target_lang", "id", "index")
    return {
        "data_source": data_source,
        "response": response if solution_str is None else solution_str,
        "ref_answer": ref_answer if ground_truth is None else ground_truth,
        **{name: known.get(name) for name in names},
    }
