"""B2: what a training step leaves for RLLoggingBoard, judged by the UI's own rules (``rlb_ui.py``)."""

from __future__ import annotations

import html
import inspect
import json
import logging
import math
import os
import threading
from types import SimpleNamespace

os.environ.setdefault("VERL_PLATFORM", "cpu")

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from verl_hyocr import board
from verl_hyocr.board import BoardSettings, Sample, TokenText, choose_groups, encode, ui_rows
from verl_hyocr.board_source import FOLDER, RolloutBoard
from verl_hyocr.board_writer import StepWriter

from tests.fork import rlb_ui
from tests.fork.rlb_ui import Broken
from tests.fork.test_dropped_samples import (
    bare_trainer,
    group,
    invalid,
    put,
    run_config,
    scored,
    trainer_config,
    transfer_queue,
)

OPTIONAL = ("ref_logprobs", "values", "rollout_logprobs")


@pytest.fixture(scope="module")
def tokenizer(tiny_model):
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(tiny_model)


@pytest.fixture(scope="module")
def to_text(tokenizer) -> TokenText:
    return TokenText(tokenizer)


@pytest.fixture
def run_dir(tmp_path, monkeypatch):
    monkeypatch.setenv("HYOCR_RUN_DIR", str(tmp_path))
    for name in ("ENABLE", "EVERY", "MAX_SAMPLES", "MAX_RESPONSE_TOKENS", "FILE_SUFFIX"):
        monkeypatch.delenv(f"RLB_{name}", raising=False)
    return tmp_path


def sample(uid: str, session: int, ids, reward: float = 1.0, **more) -> Sample:
    values = more.pop("values", None)
    if values is None:
        length = len(ids)
        values = {
            "logprobs": np.linspace(-2, -1, length),
            "ref_logprobs": np.linspace(-2.5, -1, length),
            "advantages": np.full(length, 0.5),
            "reward_tokens": np.eye(1, length, length - 1)[0] * reward,
            "rollout_logprobs": np.linspace(-2, -1, length),
        }
    return Sample(
        uid,
        session,
        np.array(ids, dtype=np.int64),
        reward,
        response_length=more.pop("response_length", len(ids)),
        last_token=more.pop("last_token", int(ids[-1]) if len(ids) else -1),
        token_values=values,
        **more,
    )


def chat(text: str, *images) -> list[dict]:
    parts = [{"type": "image", "image": image} for image in images] + [{"type": "text", "text": text}]
    return [{"role": "user", "content": parts}]


def rows_of(samples, tokenizer, step: int = 1, reference: bool = True, **chosen) -> list[dict]:
    """Rows of a step after a trip through the file's text."""
    content = encode(ui_rows(step, samples, tokenizer, BoardSettings(**chosen), reference))
    return [json.loads(line) for line in content.decode().splitlines()]


# -------------------------------------------------------------------------------------------------- one step's rows


def test_a_row_has_what_the_issue_of_a_run_needs(tokenizer):
    ids = [*tokenizer.encode("页 1", add_special_tokens=False), tokenizer.eos_token_id]
    rows = rows_of(
        [
            sample(
                "a",
                0,
                ids,
                0.75,
                messages=chat("Read it.", "/data/p 1.png"),
                scores=scored(0.75, score_text=0.5),
                data_source="Parsing",
                extra_info={"task_type": "Parsing_doc"},
                ground_truth="页 1",
                limit=30,
            ),
            sample("a", 1, ids[:-1], 0.25, messages=chat("Read it.", "/data/p 1.png"), limit=len(ids) - 1),
        ],
        tokenizer,
    )
    first, second = rows
    assert (first["step"], first["reward"], first["uid"], first["session"]) == (1, 0.75, "a", 0)
    assert first["prompt"] == "&lt;image&gt;Read it." and first["ground_truth"] == "页 1"
    assert "".join(first["response_tokens"]) == first["response"]
    assert html.unescape(first["response"]) == "页 1" + tokenizer.eos_token
    assert first["img_path"] == first["image_path"] == "/data/p 1.png" and first["img_paths"] == ["/data/p 1.png"]
    assert (first["data_source"], first["task_type"]) == ("Parsing", "Parsing_doc")
    assert first["scores"]["score_text"] == 0.5 and first["scores"]["decision"] == "scored"
    assert (first["group_size"], first["group_mean"], first["group_rank"], second["group_rank"]) == (2, 0.5, 1, 2)
    assert first["group_std"] == pytest.approx(np.std([0.75, 0.25], ddof=1))
    assert (first["truncated"], second["truncated"]) == (False, True)
    assert first["token_rewards"] == first["reward_tokens"] == [0.0] * (len(ids) - 1) + [0.75]
    assert first["advantages"] == [0.5] * len(ids)
    gap = np.array(first["ref_logprobs"]) - np.array(first["logprobs"])
    assert first["token_kl"] == pytest.approx(np.exp(gap) - gap - 1, abs=1e-6)
    assert not first["dropped"] and first["drop_reason"] == "" and first["non_finite"] == []


def test_kl_is_verls_low_var_kl():
    from verl.trainer.ppo.core_algos import kl_penalty

    policy, reference = torch.tensor([-1.0, -3.0, -30.0, -0.1]), torch.tensor([-1.5, -0.5, -0.5, -0.1])
    expected = kl_penalty(policy, reference, "low_var_kl")
    assert board.kl_of_tokens(policy.double().numpy(), reference.double().numpy()) == pytest.approx(expected.numpy())


def test_no_row_brings_a_column_that_the_ui_derives(tokenizer):
    """The UI appends its own ``kl`` to a column of that name: sample 1 would show sample 0's."""
    rows = rows_of([sample("a", 0, [50, 51]), sample("a", 1, [50, 51, 52])], tokenizer)
    derived = {"kl", "log_ratio", "probs", "ref_probs", "response_tokens_len", "reward_gap", "avg_reward", "avg_length"}
    assert not any(
        row.keys() & (derived | {f"{kind}_{name}" for kind in ("avg", "sum") for name in derived}) for row in rows
    )
    steps: dict = {}
    for number, row in enumerate(rows):
        rlb_ui.take(row | {"kl": row["token_kl"]}, steps, f"row {number}", variant=False)
    with pytest.raises(Broken, match="kl has 4 values"):
        rlb_ui.check_step(1, steps[1])


@pytest.mark.parametrize(
    "damage",
    [
        lambda rows: rows[0].pop("ref_logprobs"),
        lambda rows: rows[1].pop("token_rewards"),
        lambda rows: rows[0].update(reward=None),
        lambda rows: rows[0].update(reward=math.nan),
        lambda rows: rows[0].update(prompt=chat("Read")),
        lambda rows: rows[0].update(ground_truth=None),
        lambda rows: rows[0]["ref_logprobs"].pop(),
        lambda rows: rows[0].update(response_tokens=rows[0]["response_tokens"][:1]),
        lambda rows: rows[0]["logprobs"].__setitem__(0, math.inf),
    ],
)
def test_the_contract_notices_what_breaks_the_ui(tokenizer, tmp_path, damage):
    rows = rows_of([sample("a", 0, [50, 51]), sample("a", 1, [50, 51, 52])], tokenizer)
    path = tmp_path / "step_1.jsonl"
    path.write_bytes(encode(rows))
    rlb_ui.load(tmp_path)
    damage(rows)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises((Broken, KeyError, IndexError)):
        rlb_ui.load(tmp_path)


def test_text_is_escaped_where_the_ui_renders_html(tokenizer):
    evil = "<table><script>alert('&amp;')</script>"
    ids = tokenizer.encode(evil, add_special_tokens=False)
    row = rows_of([sample("a", 0, ids, messages=chat(evil), ground_truth=evil)], tokenizer)[0]
    for text in (row["prompt"], row["response"], row["ground_truth"], *row["response_tokens"]):
        assert "<" not in text and ">" not in text
    assert html.unescape("".join(row["response_tokens"])) == html.unescape(row["response"]) == evil
    assert html.unescape(row["prompt"]) == html.unescape(row["ground_truth"]) == evil


def test_non_finite_numbers_are_replaced_and_named(tokenizer):
    values = {"logprobs": np.array([math.nan, -1.0]), "ref_logprobs": np.array([-1.0, -math.inf])}
    row = rows_of(
        [sample("a", 0, [50, 51], math.nan, values=values, scores={"acc": math.nan, "note": None})], tokenizer
    )[0]
    assert row["reward"] == 0.0 and row["logprobs"] == [0.0, -1.0] and row["ref_logprobs"] == [-1.0, 0.0]
    assert {"reward", "logprobs", "ref_logprobs"} <= set(row["non_finite"])
    assert row["scores"] == {"acc": "nan", "note": ""}


def test_a_sample_is_one_line_for_every_reader(tokenizer):
    text = "a\u2028b\x85c\x0cd\re\nf\u2029g"
    content = encode(ui_rows(1, [sample("a", 0, [50], ground_truth=text)] * 2, tokenizer, BoardSettings()))
    assert len(content.decode().splitlines()) == 2
    assert json.loads(content.decode().splitlines()[0])["ground_truth"] == text


def test_dropped_samples_are_marked_and_leave_the_curves_alone(tokenizer, tmp_path):
    kept = [sample("a", session, [50, 51, 52], float(session), scores=scored(float(session))) for session in range(2)]
    lost = sample(
        "a",
        2,
        [50, 51],
        -1.0,
        values={"rollout_logprobs": np.array([-3.0, -4.0]), "reward_tokens": np.array([0.0, -1.0])},
        scores=invalid(),
        drop_reason="judge_unavailable",
    )
    for number, samples in enumerate((kept, [*kept, lost], [lost]), 1):
        (tmp_path / f"step_{number}.jsonl").write_bytes(
            encode(ui_rows(number, samples, tokenizer, BoardSettings(), reference=True))
        )
    steps = rlb_ui.load(tmp_path)
    curve = rlb_ui.kl_curve(steps)
    assert curve[2] == pytest.approx(curve[1], rel=1e-5), "the dropped sample does not move the KL curve"
    row = json.loads((tmp_path / "step_2.jsonl").read_text().splitlines()[-1])
    assert (row["reward"], row["dropped"], row["drop_reason"], row["group_rank"]) == (0.0, True, "judge_unavailable", 0)
    assert (row["group_size"], row["group_mean"]) == (2, 0.5), "the group of the update, without the dropped sample"
    assert row["scores"]["score"] == -1.0 and row["logprobs"] == [-3.0, -4.0]
    assert row["token_rewards"] == row["reward_tokens"] == row["advantages"] == row["token_kl"] == [0.0, 0.0]


def test_a_long_answer_is_cut_and_says_so(tokenizer):
    ids = tokenizer.encode("0123456789", add_special_tokens=False)
    row = rows_of(
        [sample("a", 0, ids, limit=len(ids), last_token=tokenizer.eos_token_id)], tokenizer, max_response_tokens=4
    )[0]
    assert len(row["response_tokens"]) == len(row["logprobs"]) == len(row["advantages"]) == 4
    assert row["response"] == f"{''.join(row['response_tokens'])} … [+{len(ids) - 4} tokens]"
    assert row["response_length"] == len(ids) and not row["truncated"]


def test_an_empty_answer_can_be_looked_at(tokenizer):
    row = rows_of([sample("a", 0, [], 0.0, values={})], tokenizer)[0]
    assert row["response"] == "" and row["response_tokens"] == [""] and row["logprobs"] == [0.0]


@pytest.mark.parametrize(
    ("messages", "text", "paths"),
    [
        (chat("Q", "file:///a.png", "/b.png"), "<image><image>Q", ["/a.png", "/b.png"]),
        (
            [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Q"}],
            "system: Be brief.\nuser: Q",
            ["/x.png"],
        ),
        ([{"role": "user", "content": [{"type": "image", "bytes": b"", "path": "/c.png"}]}], "<image>", ["/c.png"]),
        ([{"role": "user", "content": [{"type": "image", "image": object()}, "tail"]}], "<image>tail", ["/x.png"]),
        ([{"role": "user", "content": None}], "", ["/x.png"]),
    ],
)
def test_prompts_and_images_come_from_the_chat(messages, text, paths):
    assert board.prompt_text(messages) == text
    assert board.image_paths(messages, {"img_path": "/x.png"}) == paths


def test_a_prompt_without_its_chat_is_decoded_with_short_placeholders(tokenizer):
    image = tokenizer.convert_tokens_to_ids(tokenizer.convert_ids_to_tokens(120120))
    ids = [
        *tokenizer.encode("See", add_special_tokens=False),
        *[image] * 800,
        *tokenizer.encode("?", add_special_tokens=False),
    ]
    row = rows_of([sample("a", 0, [50], prompt=ids)], tokenizer)[0]
    assert html.unescape(row["prompt"]) == f"See{tokenizer.decode([image])}×800?"


@settings(max_examples=60)
@given(st.text(max_size=40))
def test_tokens_read_like_the_text(tokenizer, to_text, text):
    ids = tokenizer.encode(text, add_special_tokens=False)
    pieces, whole = to_text(ids)
    assert len(pieces) == len(ids) and "".join(pieces) == whole == tokenizer.decode(ids)


@settings(max_examples=100)
@given(st.data())
def test_tokens_of_any_answer_read_like_its_text(tokenizer, to_text, data):
    """Whatever the model emits: broken characters, special tokens, ids that have no token."""
    ids = data.draw(st.lists(st.integers(0, 120_125) | st.integers(0, 400), max_size=30))
    pieces, whole = to_text(ids)
    assert len(pieces) == len(ids) and "".join(pieces) == whole == tokenizer.decode(ids)
    cut = data.draw(st.integers(0, len(ids)))
    assert whole.startswith("".join(to_text(ids[:cut], is_whole=False)[0]))


def test_a_character_shows_at_the_token_that_completes_it(tokenizer):
    ids = tokenizer.encode("齉x", add_special_tokens=False)
    assert len(ids) > 2, "the tiny vocabulary splits it"
    pieces, _ = TokenText(tokenizer)(ids)
    assert pieces == [""] * (len(ids) - 2) + ["齉", "x"]


def test_an_id_without_a_token_is_empty(tokenizer):
    assert TokenText(tokenizer)([50, 10**6])[0][1] == ""


def floats(allow_broken: bool):
    broken = st.sampled_from([math.nan, math.inf, -math.inf])
    return (st.floats(-30, 0) | broken) if allow_broken else st.floats(-30, 0)


@st.composite
def any_sample(draw, uid: str, session: int, names: list[str]) -> Sample:
    length = draw(st.integers(0, 6))
    dropped = draw(st.booleans())
    chosen = ["rollout_logprobs"] if dropped else ["logprobs", "advantages", "reward_tokens", *names]
    return sample(
        uid,
        session,
        draw(st.lists(st.integers(0, 300), min_size=length, max_size=length)),
        draw(floats(True)),
        values={name: np.array(draw(st.lists(floats(True), min_size=length, max_size=length))) for name in chosen},
        messages=draw(st.sampled_from([None, chat("<b>Q</b>", "/a.png"), [{"role": "user", "content": "~$*#"}]])),
        scores=draw(
            st.sampled_from([{}, scored(), {"a": math.nan, "b": [1, None], "step": 7, "reward": "x", "kl": [1]}])
        ),
        ground_truth=draw(st.sampled_from([None, "</font>", {"x": math.inf}, ["\ud800"], 3])),
        extra_info=draw(st.sampled_from([{}, {"task_type": "VQA", "img_path": ["/b.png"]}])),
        drop_reason="timeout" if dropped else "",
    )


@settings(max_examples=60)
@given(st.data())
def test_whatever_happened_the_ui_shows_the_step(tokenizer, tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("board")
    for step in range(1, data.draw(st.integers(1, 3)) + 1):
        names = data.draw(st.lists(st.sampled_from(OPTIONAL), unique=True))
        samples = [
            data.draw(any_sample(f"g{uid}", session, names))
            for uid in range(data.draw(st.integers(1, 3)))
            for session in range(data.draw(st.integers(1, 3)))
        ]
        content = encode(
            ui_rows(step, samples, tokenizer, BoardSettings(max_response_tokens=4), data.draw(st.booleans()))
        )
        (folder / f"step_{step}_rank0.jsonl").write_bytes(content)
        rows = [json.loads(line) for line in content.decode().split("\n")[:-1]]
        assert len({frozenset(row) for row in rows}) == 1, "every field in every row"
        assert len(rows) == len(samples)
    for variant in (False, True):
        rlb_ui.load(folder, variant)


# ------------------------------------------------------------------------------------------------ settings and choice


def test_settings_come_from_the_environment():
    assert BoardSettings.from_env({}) == BoardSettings(True, 1, 128, 2048, "")
    chosen = {
        "RLB_ENABLE": "False",
        "RLB_EVERY": "5",
        "RLB_MAX_SAMPLES": "0",
        "RLB_MAX_RESPONSE_TOKENS": " 64 ",
        "RLB_FILE_SUFFIX": "_rank0",
    }
    assert BoardSettings.from_env(chosen) == BoardSettings(False, 5, 0, 64, "_rank0")


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("RLB_ENABLE", "maybe"),
        ("RLB_EVERY", "0"),
        ("RLB_EVERY", "often"),
        ("RLB_MAX_SAMPLES", "-1"),
        ("RLB_MAX_RESPONSE_TOKENS", "1.5"),
        ("RLB_FILE_SUFFIX", "../x"),
    ],
)
def test_a_wrong_setting_is_named(variable, value):
    with pytest.raises(ValueError, match=variable):
        BoardSettings.from_env({variable: value})


def test_a_wrong_setting_is_refused_before_the_run(monkeypatch):
    from verl_hyocr import launch_config

    monkeypatch.setenv("RLB_EVERY", "0")
    assert any("RLB_EVERY" in reason for reason in launch_config.refusals(run_config()))


@settings(max_examples=100)
@given(st.dictionaries(st.text("abcdef", min_size=1, max_size=3), st.integers(1, 5), max_size=12), st.integers(0, 30))
def test_groups_stay_whole_and_tasks_take_turns(sizes, limit):
    tasks = {uid: uid[0] for uid in sizes}
    chosen = choose_groups(sizes, tasks, limit)
    assert len(set(chosen)) == len(chosen) and set(chosen) <= set(sizes)
    if not limit or sum(sizes.values()) <= limit:
        assert set(chosen) == set(sizes)
    else:
        assert limit <= sum(sizes[uid] for uid in chosen) < limit + 5
        counts = [sum(uid[0] == task for uid in chosen) for task in set(tasks.values())]
        waiting = [sum(uid[0] == task for uid in sizes) for task in set(tasks.values())]
        assert all(count >= min(most, max(counts) - 1) for count, most in zip(counts, waiting))


def test_at_most_max_samples_are_written_with_statistics_of_whole_groups(tokenizer):
    samples = [sample("a", session, [50], float(session)) for session in range(4)]
    rows = rows_of(samples, tokenizer, max_samples=2)
    assert [row["session"] for row in rows] == [0, 1] and rows[0]["group_size"] == 4


# ------------------------------------------------------------------------------------------------------- the writer


def test_files_appear_whole_and_replace_those_of_an_earlier_run(tmp_path):
    folder = tmp_path / "new" / FOLDER
    for content in (b"first\n", b"second\n"):
        writer = StepWriter(folder)
        writer.submit(3, "step_3.jsonl", lambda content=content: content)
        writer.close()
        assert [path.name for path in folder.iterdir()] == ["step_3.jsonl"]
        assert (folder / "step_3.jsonl").read_bytes() == content and writer.lost == 0
        (folder / ".step_2.jsonl.99.tmp").write_text("of a killed run")


def test_a_step_that_cannot_be_made_keeps_the_old_file(tmp_path, caplog):
    writer = StepWriter(tmp_path)
    writer.submit(1, "step_1.jsonl", lambda: b"good\n")
    writer.submit(1, "step_1.jsonl", lambda: 1 / 0)
    writer.close()
    assert (tmp_path / "step_1.jsonl").read_bytes() == b"good\n" and writer.lost == 1
    assert "ZeroDivisionError" in caplog.text and "1 step(s) of this run are not in" in caplog.text


def test_a_failing_disk_is_said_once(tmp_path, caplog):
    (tmp_path / FOLDER).write_text("a file where the folder should be")
    writer = StepWriter(tmp_path / FOLDER)
    for step in range(1, 3):
        writer.submit(step, f"step_{step}.jsonl", lambda: b"x")
    writer.close()
    assert writer.lost == 2
    said = [record for record in caplog.records if "is not written" in record.message]
    assert len(said) == 1 and said[0].levelno == logging.ERROR and "FileExistsError" in said[0].message


def test_a_slow_disk_costs_steps_and_no_time(tmp_path, caplog):
    writer, slow, started = StepWriter(tmp_path, depth=1), threading.Event(), threading.Event()

    def wait() -> bytes:
        started.set()
        slow.wait(60)
        return b"x"

    writer.submit(1, "step_1.jsonl", wait)
    assert started.wait(60)
    for step in (2, 3, 4):
        writer.submit(step, f"step_{step}.jsonl", lambda: b"x")
    slow.set()
    writer.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step_1.jsonl", "step_2.jsonl"]
    assert writer.lost == 2 and caplog.text.count("still being written") == 1


def test_a_disk_that_hangs_does_not_hold_up_the_end(tmp_path, caplog):
    writer, hang = StepWriter(tmp_path), threading.Event()
    writer.submit(1, "step_1.jsonl", lambda: hang.wait(60) and b"x")
    writer.close(timeout=0.01)
    hang.set()
    assert "did not answer" in caplog.text


# ------------------------------------------------------------------------------------ from a real transfer queue, v1


@pytest.fixture(scope="module")
def shared_queue():
    with transfer_queue() as tq:
        yield tq


@pytest.fixture
def queue(shared_queue):
    yield shared_queue
    for partition, items in (shared_queue.kv_list() or {}).items():
        if items:
            shared_queue.kv_clear(keys=list(items), partition_id=partition)


def describe(queue, keys: list[str]) -> None:
    """Add what the agent loop takes over from the data set."""
    from verl.utils.tensordict_utils import list_of_dict_to_tensordict

    rows = [
        {
            "raw_prompt": chat("Read.", f"/img/{key[0]}.png"),
            "extra_info": {"task_type": "Parsing", "index": 3},
            "data_source": "Parsing",
            "reward_model": {"ground_truth": "text", "style": "rule"},
        }
        for key in keys
    ]
    queue.kv_batch_put(keys=keys, partition_id="train", fields=list_of_dict_to_tensordict(rows))


def train_on(queue, keys: list[str]) -> None:
    """Add what the passes of a step add."""
    from verl.utils.tensordict_utils import list_of_dict_to_tensordict

    answers = queue.kv_batch_get(keys=keys, partition_id="train", select_fields=["responses"])["responses"].unbind()
    rows = [
        {
            "old_log_probs": torch.full((len(one),), -1.0),
            "ref_log_prob": torch.full((len(one),), -1.5),
            "advantages": torch.full((len(one),), 0.25),
        }
        for one in answers
    ]
    queue.kv_batch_put(keys=keys, partition_id="train", fields=list_of_dict_to_tensordict(rows))


def board_trainer(tokenizer, monkeypatch, queue):
    """The trainer with its board, whose upstream step samples, pads and computes on a real queue."""
    from verl.trainer.ppo.v1.trainer_base import PPOTrainer

    config = trainer_config(
        data__max_response_length=16,
        actor_rollout_ref__rollout__max_model_len=64,
        actor_rollout_ref__actor__ppo_mini_batch_size=1,
        trainer__critic_warmup=0,
    )
    trainer = bare_trainer(config)
    trainer.tokenizer, trainer.use_critic, trainer.use_reference_policy = tokenizer, False, True
    trainer.actor_rollout_wg = type("Workers", (), {"_dispatch_info": {"actor": [0]}})
    trainer.board = RolloutBoard.from_env()
    trainer.health.enabled = False

    def step_once(self, metrics, timing_raw, size):
        batch, _ = self.replay_buffer.sample(self.global_steps, "train", size)
        self.on_sample_end()
        batch = self._balance_batch(batch, metrics=metrics)
        train_on(queue, batch.keys)
        return batch

    monkeypatch.setattr(PPOTrainer, "_step_once", step_once)
    return trainer


def run_step(trainer, groups: int) -> list[dict]:
    timing: dict = {}
    trainer._step_once({}, timing, groups)
    if trainer.board is None:
        return []
    assert "rl_logging_board" in timing
    trainer.board.close()
    path = trainer.board.writer.folder / trainer.board.settings.file_name(trainer.global_steps)
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_a_step_of_the_trainer_is_written(queue, tokenizer, monkeypatch, run_dir):
    infos = group("a", [scored(), invalid(), scored(0.5)]) | group("b", [scored()] * 3)
    put(infos)
    describe(queue, list(infos))
    rows = run_step(board_trainer(tokenizer, monkeypatch, queue), 2)
    assert sorted((row["uid"], row["session"]) for row in rows) == [(u, s) for u in "ab" for s in range(3)], (
        "no padding"
    )
    by_place = {(row["uid"], row["session"]): row for row in rows}
    lost = by_place["a", 1]
    assert (lost["dropped"], lost["drop_reason"], lost["reward"]) == (True, "judge_unavailable", 0.0)
    kept = by_place["a", 2]
    assert (kept["reward"], kept["group_size"], kept["group_mean"], kept["group_rank"]) == (0.5, 2, 0.75, 2)
    assert kept["logprobs"] == [-1.0] * 5 and kept["ref_logprobs"] == [-1.5] * 5 and kept["advantages"] == [0.25] * 5
    assert kept["img_path"] == "/img/a.png" and kept["ground_truth"] == "text" and kept["task_type"] == "Parsing"
    assert kept["prompt"] == "&lt;image&gt;Read." and kept["scores"]["score"] == 0.5
    steps = rlb_ui.load(run_dir / FOLDER)
    assert list(steps) == [1] and rlb_ui.kl_curve(steps)[1] == pytest.approx(0.5)


def test_a_step_whose_update_was_skipped_is_written(queue, tokenizer, monkeypatch, run_dir):
    infos = group("a", [invalid(), invalid(), scored()])
    put(infos)
    describe(queue, list(infos))
    rows = run_step(board_trainer(tokenizer, monkeypatch, queue), 1)
    assert [row["drop_reason"] for row in rows] == ["judge_unavailable", "judge_unavailable", "group_too_small"]
    assert all(row["dropped"] and row["reward"] == 0.0 and row["group_size"] == 0 for row in rows)
    rlb_ui.load(run_dir / FOLDER)


def test_settings_are_obeyed(queue, tokenizer, monkeypatch, run_dir):
    for name, value in {"EVERY": "2", "MAX_SAMPLES": "2", "MAX_RESPONSE_TOKENS": "3", "FILE_SUFFIX": "_rank0"}.items():
        monkeypatch.setenv(f"RLB_{name}", value)
    trainer = board_trainer(tokenizer, monkeypatch, queue)
    for step, uids in ((1, "ab"), (2, "cd")):
        trainer.global_steps = step
        infos = {key: info for uid in uids for key, info in group(uid, [scored()] * 3).items()}
        put(infos, step=step)
        describe(queue, list(infos))
        rows = run_step(trainer, 2)
        queue.kv_clear(keys=list(queue.kv_list("train")["train"]), partition_id="train")
        assert len(rows) == (0 if step == 1 else 2)
    assert [path.name for path in (run_dir / FOLDER).iterdir()] == ["step_2_rank0.jsonl"]
    assert all(len(row["logprobs"]) == 3 and row["group_size"] == 3 for row in rows)
    assert list(rlb_ui.load(run_dir, variant=True)) == [2]


@pytest.mark.parametrize("switch", [("RLB_ENABLE", "0"), ("HYOCR_DISABLE", "B2"), ("HYOCR_RUN_DIR", "")])
def test_nothing_is_written_when_switched_off(queue, tokenizer, monkeypatch, run_dir, switch):
    monkeypatch.setenv(*switch)
    infos = group("a", [scored(), scored(0.0)])
    put(infos)
    assert run_step(board_trainer(tokenizer, monkeypatch, queue), 1) == []
    assert list(run_dir.iterdir()) == []


def test_training_goes_on_without_the_disk(queue, tokenizer, monkeypatch, run_dir, caplog):
    (run_dir / FOLDER).write_text("a file where the folder should be")
    infos = group("a", [scored(), scored(0.0)])
    put(infos)
    describe(queue, list(infos))
    trainer = board_trainer(tokenizer, monkeypatch, queue)
    assert run_step(trainer, 1) == [] and trainer.board.writer.lost == 1
    assert "Training goes on" in caplog.text


def test_training_goes_on_when_rows_cannot_be_read(queue, tokenizer, monkeypatch, run_dir, caplog):
    put(group("a", [scored(), scored(0.0)]))
    trainer = board_trainer(tokenizer, monkeypatch, queue)
    monkeypatch.setattr("verl_hyocr.board_source.tq.kv_batch_get", lambda **_: 1 / 0)
    trainer.board.log_queue(trainer, SimpleNamespace(keys=["a_0_0"], tags=[{}], partition_id="train"))
    trainer.board.close()
    assert trainer.board.writer.lost == 1 and "ZeroDivisionError" in caplog.text


def test_the_end_of_a_run_waits_for_the_last_file(monkeypatch, run_dir):
    """Also a run that ends in an error."""
    from verl_hyocr.safe_trainer import SafeTrainerSync

    trainer = bare_trainer()
    trainer.board = RolloutBoard.from_env()

    def fit(self):
        self.board.writer.submit(1, "step_1.jsonl", lambda: b"x\n")
        raise RuntimeError("out of memory")

    monkeypatch.setattr(SafeTrainerSync, "fit", fit)
    with pytest.raises(RuntimeError, match="out of memory"):
        trainer.fit()
    assert (run_dir / FOLDER / "step_1.jsonl").read_bytes() == b"x\n"


# ---------------------------------------------------------------------------------------------------------- upstream


def test_upstream_still_has_what_is_read():
    from verl.trainer.ppo.ray_trainer import RayPPOTrainer
    from verl.trainer.ppo.v1 import agent_loop_tq, trainer_base

    source = inspect.getsource(trainer_base)
    for name in ("old_log_probs", "ref_log_prob", "values", "advantages", "token_level_rewards", "rm_scores"):
        assert f'"{name}"' in source, name
    written = inspect.getsource(agent_loop_tq.AgentLoopWorkerTQ._agent_loop_postprocess)
    assert "field.update(kwargs)" in written, "raw_prompt, extra_info, data_source and reward_model are in the queue"
    assert "_step_once(self, metrics: dict, timing_raw: dict" in source
    fit = inspect.getsource(inspect.unwrap(RayPPOTrainer.fit))
    assert "self._log_rollout_data(batch, reward_extra_infos_dict, timing_raw, rollout_data_dir)" in fit
    assert 'self.config.trainer.get("rollout_data_dir", None)' in fit and "_dump_executor._shutdown" in fit
