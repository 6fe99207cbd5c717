"""The preflight counts prompts without transformers: it must count what training counts."""

from __future__ import annotations

import pytest

from utils.preflight.context import Context
from utils.preflight.data import prompt_tokens, sample
from utils.preflight.settings import read_settings


@pytest.fixture
def context(healthy) -> Context:
    return Context(read_settings(healthy))


def test_prompts_are_as_long_as_in_training(context):
    from verl_hyocr.prompt_filter import image_size

    from data.token_counts import TokenCounter

    counter = TokenCounter(context.settings.model_path)
    rows = [row for _, _, row in sample(context)]
    assert len(rows) > 10
    for row in rows:
        assert prompt_tokens(context, row) == counter.prompt(
            row["prompt"], [image_size(path) for path in row["images"]]
        )


def test_several_images_and_a_system_message(context):
    from data.token_counts import TokenCounter

    image = sample(context)[0][2]["images"][0]
    prompt = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "<image>First, <image> then."}]
    counted = prompt_tokens(context, {"prompt": prompt, "images": [image, image]})
    assert counted == TokenCounter(context.settings.model_path).prompt(prompt, [(96, 64), (96, 64)])


def test_prompt_with_an_unreadable_image_is_not_counted(context):
    assert prompt_tokens(context, {"prompt": [{"role": "user", "content": "<image>"}], "images": ["/nowhere"]}) is None
