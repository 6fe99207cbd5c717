"""Reward of the benchmark: depends on the answer's text alone, so that random weights get varying scores and real gradients."""

from __future__ import annotations


def compute_score(data_source, solution_str: str, ground_truth, extra_info=None, **kwargs) -> dict[str, float]:
    """``score`` is one of 0, 1/7, … 6/7; ``length`` counts the answer's characters."""
    return {"score": sum(map(ord, solution_str)) % 7 / 7.0, "length": float(len(solution_str))}
