"""Settings from the environment: defaults, types, ranges, messages; the documentation lists them all."""

from __future__ import annotations

from pathlib import Path

import pytest

from reward.utils.judge_config import JudgeConfig, JudgeConfigError, environment_names, environment_table

ROOT = Path(__file__).resolve().parents[2]


def test_empty_environment_gives_the_defaults():
    assert JudgeConfig.from_env({}) == JudgeConfig() == JudgeConfig.from_env({"JUDGE_DEADLINE_S": " "})


def test_values_are_read_in_their_type():
    config = JudgeConfig.from_env(
        {
            "RM_SYSTEM_JUDGE_MODEL_NAME": " my/judge ",
            "JUDGE_DEADLINE_S": "12.5",
            "JUDGE_MAX_TOKENS": "100",
            "JUDGE_USE_PROXY": "Yes",
            "JUDGE_ENABLE_THINKING": "auto",
            "JUDGE_CACHE_SIZE": "0",
        }
    )
    assert (config.model, config.deadline_s, config.max_tokens) == ("my/judge", 12.5, 100)
    assert (config.use_proxy, config.enable_thinking, config.cache_size) == (True, "auto", 0)


@pytest.mark.parametrize(
    "name, value, complaint",
    [
        ("JUDGE_DEADLINE_S", "soon", "not a number"),
        ("JUDGE_DEADLINE_S", "0", "too small"),
        ("JUDGE_DEADLINE_S", "nan", "finite"),
        ("JUDGE_DEADLINE_S", "inf", "finite"),
        ("JUDGE_MAX_TOKENS", "1.5", "whole number"),
        ("JUDGE_TEMPERATURE", "3", "too large"),
        ("JUDGE_USE_PROXY", "maybe", "0 or 1"),
        ("JUDGE_ENABLE_THINKING", "yes", "auto"),
        ("JUDGE_MAX_FAILURE_RATE", "1.5", "too large"),
    ],
)
def test_bad_value_names_its_variable(name, value, complaint):
    with pytest.raises(JudgeConfigError, match=complaint) as error:
        JudgeConfig.from_env({name: value})
    assert name in str(error.value) and value in str(error.value)


def test_documentation_lists_every_variable_with_its_default():
    assert environment_table() in (ROOT / "docs" / "judge.md").read_text(encoding="utf-8")
    assert len(set(environment_names())) == len(environment_names())
