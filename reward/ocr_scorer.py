"""Dispatcher: from a scoring request to one result of fixed keys and types, by rule or by judge. It never raises.

``SCORERS`` is the one place where a task meets its scorer. A rule scorer is registered by the name of its function, so
that nothing is imported before the first sample of its task, and a scorer that cannot be imported costs its own samples
only (``scorer_error``).
"""

from __future__ import annotations

import importlib
import json
import logging
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from reward.ocr_utils import TaskType, classify_task, extract_answer, snap_score
from reward.scorer_threads import run_in_thread

logger = logging.getLogger(__name__)

DROPPED = -1.0
MAX_ANALYSIS_CHARS = 4000
DECISIONS = (
    "scored",
    "empty_reference",
    "bad_reference",
    "unknown_task",
    "judge_unavailable",
    "judge_unparsed",
    "scorer_error",
    "timeout",
)
RESULT_KEYS = ("score", "acc", "valid", "task", "reward_func", "decision", "analysis")

_LINE_BREAKS = re.compile(r"[\r\n\v\f\x1c-\x1e\x85\u2028\u2029]+")


@dataclass(frozen=True)
class RuleScorer:
    """A pure function ``(response, ref_answer) -> dict``, named ``"package.module:function"``.

    ``scores_empty_reference``: an empty reference is an answer of its own (nothing in the picture), not a defect.
    """

    entry: str
    scores_empty_reference: bool = False

    def load(self) -> Callable[[str, str], Mapping[str, Any]]:
        module, _, function = self.entry.partition(":")
        return getattr(importlib.import_module(module), function)


@dataclass(frozen=True)
class JudgeScorer:
    """A task that a judge model scores; its prompt and reply parser are registered in ``reward/utils``."""


SCORERS: dict[str, RuleScorer | JudgeScorer] = {
    TaskType.IE: RuleScorer("reward.task_scorers.ie.eval:process_ie_task"),
    TaskType.PARSING: RuleScorer("reward.task_scorers.parsing:process_parsing_task"),
    TaskType.SPOTTING: RuleScorer("reward.task_scorers.spotting:process_spotting_task", scores_empty_reference=True),
    TaskType.LAYOUT: RuleScorer("reward.task_scorers.layout:process_layout_task", scores_empty_reference=True),
    TaskType.CHART_DEPLOT: RuleScorer("reward.task_scorers.chart_deplot:process_chart_deplot_task"),
    TaskType.TRANSLATION: JudgeScorer(),
    TaskType.VQA: JudgeScorer(),
}


def needs_judge(task_type: str) -> bool:
    """Does a judge model score the task that this ``task_type`` names?"""
    return isinstance(SCORERS.get(classify_task(task_type)), JudgeScorer)


@dataclass(frozen=True)
class _Request:
    """One sample, with every field reduced to text. ``response`` and ``ref_answer`` are what is scored."""

    response: str
    ref_answer: str
    task: str
    task_type: str
    data_source: str
    question: str
    source_lang_text: str
    target_lang: str
    sample_id: str

    @classmethod
    def read(cls, scoring_obj: Mapping[str, Any]) -> _Request:
        data_source = _text(scoring_obj.get("data_source"))
        task_type = _text(scoring_obj.get("task_type")).strip() or data_source
        return cls(
            response=extract_answer(_text(scoring_obj.get("response"))),
            ref_answer=extract_answer(_text(scoring_obj.get("ref_answer"))),
            task=classify_task(task_type),
            task_type=task_type,
            data_source=data_source,
            question=_text(scoring_obj.get("question")),
            source_lang_text=_text(scoring_obj.get("source_lang_text")),
            target_lang=_text(scoring_obj.get("target_lang")),
            sample_id=_text(scoring_obj.get("id")) or _text(scoring_obj.get("index")),
        )


class OCRScorer:
    """Scores one sample at a time; holds no state of its own, so one instance serves all threads and event loops.

    A scoring request is a mapping with ``response``, ``ref_answer`` and ``task_type``; optional ``data_source`` (names
    the task when ``task_type`` is empty), ``question``, ``source_lang_text``, ``target_lang``, and ``id`` or ``index``
    for the log. A reference that is no string counts as its JSON text.
    """

    def process_scoring(self, scoring_obj: Mapping[str, Any]) -> dict[str, Any]:
        """Score one sample in this thread; a judge task blocks until its verdict. Never raises.

        Returns:
            Always these keys, always these types: ``score`` (float in [0, 1], or -1.0: drop this sample), ``acc`` (1.0
            when the score is 1, else 0.0), ``valid`` (0.0 when dropped, else 1.0), ``task``, ``reward_func``,
            ``decision`` (one of :data:`DECISIONS`), ``analysis`` (one line of at most 4,000 characters).
        """
        try:
            request = _Request.read(scoring_obj)
            return _settled(request) or _outcome(request, _score_here(request))
        except Exception as error:
            return _failure(scoring_obj, error)

    async def process_scoring_async(self, scoring_obj: Mapping[str, Any]) -> dict[str, Any]:
        """As :meth:`process_scoring`, without blocking the event loop: rules run in threads, judgements are awaited."""
        try:
            request = _Request.read(scoring_obj)
            return _settled(request) or _outcome(request, await _score_async(request))
        except Exception as error:
            return _failure(scoring_obj, error)


def _settled(request: _Request) -> dict[str, Any] | None:
    """The result of a sample that no scorer needs to see."""
    scorer = SCORERS.get(request.task)
    if scorer is None:
        return _dropped(request, "unknown_task", f"task_type {request.task_type!r} names no known task")
    if not request.ref_answer.strip() and not (isinstance(scorer, RuleScorer) and scorer.scores_empty_reference):
        return _dropped(request, "empty_reference", "the reference is empty")
    if isinstance(scorer, JudgeScorer) and not request.response.strip():
        return _result(request, 0.0, "scored", "the response is empty")
    return None


def _score_here(request: _Request) -> Mapping[str, Any]:
    scorer = SCORERS[request.task]
    if isinstance(scorer, RuleScorer):
        return scorer.load()(request.response, request.ref_answer)
    from reward.utils.request_utils import judge

    return _judged(judge(_judge_request(request)))


async def _score_async(request: _Request) -> Mapping[str, Any]:
    scorer = SCORERS[request.task]
    if isinstance(scorer, RuleScorer):
        return await run_in_thread(lambda: scorer.load()(request.response, request.ref_answer))
    from reward.utils.request_utils import judge_async

    return _judged(await judge_async(_judge_request(request)))


def _judge_request(request: _Request) -> Any:
    from reward.utils.request_utils import JudgeRequest

    return JudgeRequest(
        task=request.task,
        response=request.response,
        reference=request.ref_answer,
        question=request.question,
        source_lang_text=request.source_lang_text,
        target_lang=request.target_lang,
    )


def _judged(outcome: Any) -> Mapping[str, Any]:
    return {
        "reward": outcome.reward,
        "is_valid": outcome.decision == "scored",
        "decision": outcome.decision,
        "analysis": outcome.analysis,
    }


def _outcome(request: _Request, scored: Mapping[str, Any]) -> dict[str, Any]:
    """Check what a scorer returned and turn it into the result; a faulty return value is the scorer's fault.

    A scorer may leave ``decision`` out: valid then means "scored", not valid "bad_reference".
    """
    is_valid = bool(scored["is_valid"])
    decision = str(scored.get("decision") or ("scored" if is_valid else "bad_reference"))
    if decision not in DECISIONS or (decision == "scored") != is_valid:
        raise ValueError(f"a scorer returned is_valid={is_valid} with the decision {decision!r}")
    analysis = scored.get("analysis", "")
    if not isinstance(analysis, str):
        analysis = json.dumps(analysis, ensure_ascii=False, default=str)
    if not is_valid:
        return _dropped(request, decision, analysis)
    return _result(request, snap_score(scored["reward"]), decision, analysis)


def _result(request: _Request, score: float, decision: str, analysis: str) -> dict[str, Any]:
    return _fields(score, request.task, request.data_source, decision, analysis)


def _dropped(request: _Request, decision: str, analysis: str) -> dict[str, Any]:
    return _fields(DROPPED, request.task, request.data_source, decision, analysis)


def _fields(score: float, task: str, data_source: str, decision: str, analysis: str) -> dict[str, Any]:
    return {
        "score": score,
        "acc": 1.0 if score == 1.0 else 0.0,
        "valid": 0.0 if score == DROPPED else 1.0,
        "task": str(task),
        "reward_func": _printable(data_source) or "unknown",
        "decision": decision,
        "analysis": _one_line(analysis),
    }


def _failure(scoring_obj: Any, error: Exception) -> dict[str, Any]:
    """The result of a sample whose scoring raised: logged once, with the sample's id and the traceback."""
    fields = scoring_obj if isinstance(scoring_obj, Mapping) else {}
    sample_id, data_source, task = "unknown", "", ""
    try:
        data_source = _text(fields.get("data_source"))
        task = classify_task(_text(fields.get("task_type")).strip() or data_source)
        sample_id = _text(fields.get("id")) or _text(fields.get("index")) or sample_id
    except Exception:
        logger.exception("a sample's own fields cannot be read")
    decision = "timeout" if isinstance(error, TimeoutError) else "scorer_error"
    logger.error("%s in task %r, sample %s", decision, task, _printable(sample_id), exc_info=error)
    return _fields(DROPPED, task, data_source, decision, f"{type(error).__name__}: {_message(error)}")


def _message(error: Exception) -> str:
    try:
        return str(error)
    except Exception as broken:
        return f"(its message cannot be read: {type(broken).__name__})"


def _text(value: Any) -> str:
    """A field as text: None and NaN are missing, bytes are UTF-8, everything else that is no string is its JSON text.

    NumPy scalars and arrays, which parquet readers deliver, count as the Python values they hold.
    """
    if isinstance(value, str):
        return str(value)
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    if isinstance(value, bytes | bytearray):
        return bytes(value).decode("utf-8", "replace")
    return json.dumps(value, ensure_ascii=False, default=_plain)


def _plain(value: Any) -> Any:
    to_list = getattr(value, "tolist", None)
    return to_list() if callable(to_list) else str(value)


def _one_line(text: str) -> str:
    # Cut before the clean-up too: it must not cost time on an analysis that is megabytes long.
    line = _LINE_BREAKS.sub(" ", _printable(text[: 2 * MAX_ANALYSIS_CHARS]))
    return line if len(line) <= MAX_ANALYSIS_CHARS else line[: MAX_ANALYSIS_CHARS - 1] + "…"


def _printable(text: str) -> str:
    """Text that every writer can encode: lone surrogates become question marks."""
    return text.encode("utf-8", "replace").decode("utf-8")
