"""The rule-based reward of the Hy3 recipe, as verl routes it by data_source: what counts as right and what does not."""

from __future__ import annotations

import pytest

DAPO, MATH, GSM8K, NUMINA = "math_dapo", "lighteval/MATH", "openai/gsm8k", "numina_cn_k12"

# (data_source, answer, reference, right?). A wrong answer scores -1 in DAPO's rule and 0 in the others.
CASES = [
    # DAPO and AIME: the last "Answer:" line, else the last box within the last 100 characters.
    (DAPO, "So 3+4=7.\nAnswer: 7", "7", True),
    (DAPO, "Answer: $7$", "7", True),
    (DAPO, "Answer: \\boxed{7}", "7", True),
    (DAPO, "answer : 7", "7", True),
    (DAPO, "the result is \\boxed{7}", "7", True),
    (DAPO, "the result is \\boxed{7}.", "7", True),
    (DAPO, "\\boxed{3} is wrong, so \\boxed{7}", "7", True),
    (DAPO, "Answer: 3\nNo.\nAnswer: 7", "7", True),
    (DAPO, "Answer: 1,234", "1234", True),
    (DAPO, "Answer: x = 5", "5", True),
    # fractions and roots
    (DAPO, "Answer: \\frac{3}{4}", "\\frac{3}{4}", True),
    (DAPO, "Answer: \\frac34", "\\frac{3}{4}", True),
    (DAPO, "\\boxed{\\frac{3}{4}}", "\\frac{3}{4}", True),
    (DAPO, "Answer: \\sqrt2", "\\sqrt{2}", True),
    (DAPO, "Answer: 3/4", "\\frac{3}{4}", False),
    (DAPO, "Answer: 0.75", "\\frac{3}{4}", False),
    (DAPO, "\\boxed{\\frac34}", "\\frac{3}{4}", False),  # a box is compared as it stands
    # units
    (DAPO, "Answer: 12 cm", "12", True),
    (DAPO, "Answer: 12\\text{ cm}", "12", True),
    (DAPO, "Answer: 30^\\circ", "30", True),
    (DAPO, "Answer: 30 degrees", "30", True),
    (DAPO, "Answer: \\$5", "5", True),
    (DAPO, "\\boxed{30^\\circ}", "30", False),
    (DAPO, "Answer: 7%", "7", False),
    # wrong, unreadable, or in the wrong place
    (DAPO, "Answer: 8", "7", False),
    (DAPO, "Answer: -7", "7", False),
    (DAPO, "Answer: 7.0", "7", False),
    (DAPO, "Answer: 07", "7", False),
    (DAPO, "Answer: **7**", "7", False),
    (DAPO, "\\boxed{8}", "7", False),
    (DAPO, "\\boxed{7", "7", False),
    (DAPO, "Answer: 8, that is \\boxed{7}", "7", False),
    (DAPO, "The answer is 7", "7", False),
    (DAPO, "7", "7", False),
    (DAPO, "", "7", False),
    (DAPO, "Answer: 7\n" + "x" * 400, "7", False),
    (DAPO, "\\boxed{7}" + "x" * 150, "7", False),
    ("aime2024", "Answer: 204", "204", True),
    ("aime_2025", "\\boxed{204}", "204", True),
    ("aime2024", "\\boxed{205}", "204", False),
    ("math", "Answer: 3", "3", True),
    ("math_dapo_reasoning", "Answer: 3", "3", True),
    # MATH: the last box, compared after normalisation
    (MATH, "\\boxed{\\frac{1}{2}}", "\\frac{1}{2}", True),
    (MATH, "\\boxed{\\frac12}", "\\frac{1}{2}", True),
    (MATH, "\\boxed{0.5}", "\\frac{1}{2}", True),
    (MATH, "\\boxed{1/2}", "\\frac{1}{2}", True),
    (MATH, "\\boxed{10\\text{ cm}}", "10", True),
    (MATH, "\\boxed{10\\%}", "10", True),
    (MATH, "Answer: 10", "10", False),
    ("HuggingFaceH4/MATH-500", "$\\boxed{11}$", "10", False),
    # GSM8K: what follows ####
    (GSM8K, "so #### 72", "72", True),
    (GSM8K, "so #### 1,072", "1072", True),
    (GSM8K, "so 72", "72", False),
    (GSM8K, "#### 71", "72", False),
    # NuminaMath: symbolic
    (NUMINA, "\\boxed{\\frac{1}{2}}", "\\frac{1}{2}", True),
    (NUMINA, "\\boxed{0.5}", "\\frac{1}{2}", True),
    (NUMINA, "\\boxed{3}", "\\frac{1}{2}", False),
]


def test_there_are_enough_cases():
    assert len(CASES) >= 40
    assert 10 < sum(right for *_, right in CASES) < len(CASES) - 10


@pytest.mark.parametrize(("source", "answer", "reference", "right"), CASES)
def test_the_rule_of_the_data_source_decides(script, source, answer, reference, right):
    wrong = -1.0 if source.startswith(("math", "aime")) and "/" not in source else 0.0
    assert script("hy3_rows").routed_score(source, answer, reference) == (1.0 if right else wrong)


def test_a_data_source_without_a_rule_says_so(script):
    with pytest.raises(NotImplementedError, match="my_set"):
        script("hy3_rows").routed_score("my_set", "1", "1")


def dapo_reward(length: int, answer: str = "Answer: 7", **buffer) -> float:
    """DAPO's reward of an answer of ``length`` tokens out of 8192, through verl's reward manager."""
    import asyncio

    import numpy as np
    import torch
    from omegaconf import OmegaConf
    from verl import DataProto
    from verl.experimental.reward_loop.reward_manager.dapo import DAPORewardManager

    class Tokenizer:
        def decode(self, ids, skip_special_tokens=True):
            return answer

    settings = {"enable": True, "len": 4096, "penalty_factor": 1.0, "log": True, **buffer}
    config = OmegaConf.create({"reward": {"reward_kwargs": {"max_resp_len": 8192, "overlong_buffer_cfg": settings}}})
    mask = torch.zeros(1, 8192, dtype=torch.long)
    mask[0, :length] = 1
    data = DataProto.from_dict(
        tensors={"responses": torch.zeros(1, 8192, dtype=torch.long), "attention_mask": mask},
        non_tensors={
            "data_source": np.array(["math_dapo"], dtype=object),
            "reward_model": np.array([{"ground_truth": "7"}], dtype=object),
        },
    )

    async def score():
        manager = DAPORewardManager(config, Tokenizer(), None)
        return await manager.run_single(data)

    return float(asyncio.run(score())["reward_score"])


@pytest.mark.parametrize(
    ("length", "reward"), [(1, 1.0), (4096, 1.0), (6144, 0.5), (8192, 0.0)], ids=["short", "edge", "half", "full"]
)
def test_overlong_answers_lose_up_to_the_penalty(length, reward):
    assert dapo_reward(length) == pytest.approx(reward)


def test_a_wrong_overlong_answer_is_the_worst():
    assert dapo_reward(8192, answer="Answer: 8") == pytest.approx(-2.0)
    assert dapo_reward(8192, enable=False) == pytest.approx(1.0)
