"""Can the reward function be imported, called as verl calls it, and does it return a score for every task?"""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import inspect
import math
import numbers
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from utils.preflight import judge
from utils.preflight.context import Context
from utils.preflight.data import first_row_of_each_type
from utils.preflight.results import NotChecked, Result, failed, passed, some, warned
from utils.preflight.settings import VERL_REWARD

CALL_TIMEOUT_S = 20.0
ARGUMENTS = ("data_source", "solution_str", "ground_truth", "extra_info")
"""The keywords of verl's call."""


class LoadError(ValueError):
    """The reward function cannot be had; the message says why."""


def load(path: str, name: str) -> Callable[..., Any]:
    """The function ``name`` of a file, or of a module for ``pkg://module``, as verl loads it.

    Raises:
        LoadError: no such file or function, or the import fails.
    """
    try:
        if path.startswith("pkg://"):
            module = importlib.import_module(path.removeprefix("pkg://"))
        else:
            if not Path(path).is_file():
                raise LoadError(f"{path} does not exist")
            spec = importlib.util.spec_from_file_location("preflight_reward_function", path)
            module = importlib.util.module_from_spec(spec)
            sys.modules[spec.name] = module
            spec.loader.exec_module(module)
    except LoadError:
        raise
    except (Exception, SystemExit) as error:  # whatever the user's module raises is the finding
        raise LoadError(f"importing {path} fails: {type(error).__name__}: {error}") from error
    function = getattr(module, name, None)
    if not callable(function):
        near = [key for key, value in vars(module).items() if callable(value) and "score" in key.lower()]
        raise LoadError(f"{path} has no function {name!r}" + (f"; it has {some(near)}" if near else ""))
    return function


def signature_problem(function: Callable[..., Any]) -> str | None:
    """Why verl's call with :data:`ARGUMENTS` as keywords would raise TypeError, or None."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return None
    try:
        signature.bind(**dict.fromkeys(ARGUMENTS))
    except TypeError as error:
        return f"{function.__name__}{signature}: {error}"
    return None


def _function(context: Context) -> Callable[..., Any]:
    settings = context.settings
    if settings.reward_path == VERL_REWARD:
        raise NotChecked("verl scores by the row's data_source")
    try:
        return load(settings.reward_path, settings.reward_name)
    except LoadError as error:
        raise NotChecked(str(error)) from error


def check_function(context: Context) -> list[Result]:
    check, settings = "reward.function", context.settings
    if settings.reward_path == VERL_REWARD:
        raise NotChecked("verl scores by the row's data_source")
    try:
        function = load(settings.reward_path, settings.reward_name)
    except LoadError as error:
        return [failed(check, str(error), "set REWARD_FN_PATH and REWARD_FN_NAME to an importable function")]
    problem = signature_problem(function)
    if problem:
        return [failed(check, problem, f"accept the keywords {', '.join(ARGUMENTS)}, and **kwargs for what verl adds")]
    form = "asynchronous" if inspect.iscoroutinefunction(function) else "synchronous"
    return [passed(check, f"{settings.reward_path}: {settings.reward_name}, {form}")]


def check_calls(context: Context) -> list[Result]:
    """One call per task type of the data, with its first reference as the answer.

    With the kit's function, judge tasks are called only when a judge server answers; check_servers has said so otherwise.
    """
    from reward.ocr_scorer import needs_judge

    check, function = "reward.calls", _function(context)
    if signature_problem(function):
        raise NotChecked("it cannot be called")
    results, keys, called, left_out = [], {}, [], []
    for name, row in first_row_of_each_type(context).items():
        if context.settings.uses_kit_reward and needs_judge(name) and not judge.answering(context):
            left_out.append(name)
            continue
        outcome = call(function, arguments_for(row))
        problem = outcome_problem(outcome) or kit_problem(context, outcome)
        if problem:
            say, remedy = problem_remedy(context, outcome)
            results.append(say(check, f"{name!r}: {problem}", remedy))
            continue
        called.append(f"{name} {score_of(outcome):g}")
        keys[name] = frozenset(outcome) if isinstance(outcome, dict) else frozenset()
    if len(set(keys.values())) > 1:
        found = f"the result has other keys for {some(keys)}: verl puts them into one table"
        results.append(warned(check, found, "return the same keys for every task"))
    suffix = f"; not called without a judge: {some(left_out)}" if left_out else ""
    return results or [passed(check, f"first references score {some(called, 8) or 'nothing'}{suffix}")]


def arguments_for(row: dict[str, Any]) -> dict[str, Any]:
    """verl's keywords for a row, its reference as the answer."""
    reference = row["reward_model"]["ground_truth"]
    return {
        "data_source": row.get("data_source"),
        "solution_str": reference,
        "ground_truth": reference,
        "extra_info": {**(row.get("extra_info") or {}), "num_turns": 2, "rollout_reward_scores": {}},
    }


def call(function: Callable[..., Any], arguments: dict[str, Any], timeout_s: float = CALL_TIMEOUT_S) -> Any:
    """What the function returns, or the exception that it raised (TimeoutError after ``timeout_s``)."""
    box: list[Any] = []

    def work() -> None:
        try:
            if inspect.iscoroutinefunction(function):
                box.append(asyncio.run(function(**arguments)))
            else:
                box.append(function(**arguments))
        except (Exception, SystemExit) as error:  # the caller reports it
            box.append(error)

    # A daemon: a function that hangs must not keep the preflight from ending.
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(timeout_s)
    return box[0] if box else TimeoutError(f"no result within {timeout_s:g} s")


def score_of(outcome: Any) -> float:
    return float(outcome["score"] if isinstance(outcome, dict) else outcome)


def outcome_problem(outcome: Any) -> str | None:
    """What verl could not use in a result, or None."""
    if isinstance(outcome, BaseException):
        return f"raises {type(outcome).__name__}: {outcome}"
    if isinstance(outcome, dict) and "score" not in outcome:
        return f"returns a dict without 'score' (keys: {some(outcome, 8)})"
    score = outcome["score"] if isinstance(outcome, dict) else outcome
    # NumPy's scalars register as numbers; a tensor or an array is none.
    if not isinstance(score, numbers.Real):
        return f"returns {type(score).__name__} as score, not a number"
    if not math.isfinite(score):
        return f"returns the score {score}"
    return None


FAULTS = ("scorer_error", "timeout", "judge_unavailable", "judge_unparsed")
"""Decisions of the kit's reward that are nobody's answer's fault. Another function may mean something else by them."""


def kit_problem(context: Context, outcome: Any) -> str | None:
    """What the kit's own function could not do, or None."""
    if not context.settings.uses_kit_reward or not isinstance(outcome, dict) or outcome["decision"] not in FAULTS:
        return None
    return f"{outcome['decision']}: {outcome['analysis'][:300]}"


def problem_remedy(context: Context, outcome: Any) -> tuple[Callable[..., Result], str]:
    decision = outcome.get("decision", "") if isinstance(outcome, dict) else ""
    if str(decision).startswith("judge"):
        return failed, "run python -m reward judge-check (docs/judge.md)"
    if isinstance(outcome, TimeoutError):
        return warned, "a step waits for the slowest sample: make it faster or give it a time limit"
    return failed, "return a finite number, or a dict with 'score', for every task of the data"
