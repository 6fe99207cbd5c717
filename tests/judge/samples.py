"""Judgements whose right verdict the scripted server knows, and a look into an outcome."""

from __future__ import annotations

import json

from reward.utils.judge_types import JudgeRequest


def vqa(number: int) -> JudgeRequest:
    return JudgeRequest("VQA", f"answer {number}", "a reference", question="What is it?")


def translation(number: int) -> JudgeRequest:
    return JudgeRequest("Translation", f"answer {number}", "a reference", source_lang_text="源", target_lang="English")


def record(outcome) -> dict:
    return json.loads(outcome.analysis)["judge"]
