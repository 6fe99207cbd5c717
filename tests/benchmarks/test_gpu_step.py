"""benchmarks/gpu_step.py: its figures from recorded runs, its options, and what it relies on in verl and TransferQueue.

Assets: metrics of the two runs of docs/performance.md on one H200, cut down to the keys that are read.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

ROOT = Path(__file__).resolve().parents[2]
ASSETS = Path(__file__).with_name("assets")
sys.path.insert(0, str(ROOT / "benchmarks"))

import gpu_step  # noqa: E402
from gpu_step_lib import (  # noqa: E402
    compare,
    count_transfers,
    floor,
    inputs,
    memory,
    parse,
    plan,
    result,
    run,
    sampling,
    table,
    varying_reward,
)

H200 = {"tflops": 989.0, "terabytes": 4.8, "source": "nominal, H200"}
MACHINE = {"device": "NVIDIA H200", "gpus": [], "cpu_cores": 16, "host_gb": 128.0, "python": "3.12", "packages": {}}


def options(*words: str):
    args = gpu_step.parser().parse_args(list(words))
    args.token_budget = args.token_budget[0] if args.token_budget else None
    return args


def planned(*words: str, gpus: int = 1, overrides: tuple[str, ...] = ()) -> plan.Plan:
    return plan.make_plan(options(*words), gpus, list(overrides))


def h200(name: str, *words: str) -> dict:
    """The result of a run of docs/performance.md: 8 prompts x 8 answers of 512 tokens, pages of 800x1000."""
    records = parse.read_jsonl((ASSETS / f"h200_{name}.metrics.jsonl").read_text())
    budgets = ("--token-budget", "32768", "--logprob-token-budget", "65536")
    chosen = planned("--prompts", "8", *budgets, *words)
    return result.build(chosen, MACHINE, H200, [], records, [], [], started=0.0, seconds=317.0)


@pytest.fixture(scope="module")
def packed():
    return h200("packed")


LOG = """\
100.0\t[train_grpo] checking
128.3\tpreflight: 34 PASS, 1 WARN, 0 FAIL, 7 not applicable in 28.3 s: ready
140.0\t[ray] head is up: 1 of 1 node(s) in the cluster 192.0.2.2:42065
140.1\t[ray] RAY_ADDRESS=192.0.2.2:42065  (logs: /tmp/rr/42065/session_latest/logs)
146.0\tpreflight: 5 PASS, 0 WARN, 0 FAIL, 11 not applicable in 6.2 s: ready
147.0\t[train_grpo] run folder: /tmp/o/gpu_step/run
170.0\t\x1b[36m(TaskRunnerV1 pid=2257)\x1b[0m INFO:2026-11-30 16:25:32,972:train and validate dataloader initialized, train
170.9\t\x1b[36m(TaskRunnerV1 pid=2257)\x1b[0m INFO:2026-11-30 16:25:33,868:create worker group dict_keys(['actor_rollout_ref'])
201.0\t\x1b[36m(TaskRunnerV1 pid=2257)\x1b[0m INFO:2026-11-30 16:26:04,004:actor and ref model engine initialized
201.1\t\x1b[36m(TaskRunnerV1 pid=2257)\x1b[0m INFO:2026-11-30 16:26:04,043:reward loop manager initialized
296.5\t\x1b[36m(TaskRunnerV1 pid=2257)\x1b[0m INFO:2026-11-30 16:27:39,473:checkpoint engine manager initialized
300.0\tTraining Progress:   0%|          | 0/3 [00:00<?, ?it/s]
365.5\t\x1b[36m(TaskRunnerV1 pid=2257)\x1b[0m step:1 - global_seqlen/min:85840.0 - timing_s/step:65.05436463499996
365.6\t\x1b[36m(TaskRunnerV1 pid=2257)\x1b[0m Training Progress:  33%|###       | 1/3 [01:05<02:10, 65.10s/it]
402.1\t\x1b[36m(TaskRunnerV1 pid=2257)\x1b[0m step:2 - global_seqlen/min:85856.0 - timing_s/step:36.396958874000006
a line without an arrival time
441.7\t\x1b[36m(TaskRunnerV1 pid=2257)\x1b[0m step:3 - global_seqlen/min:85928.0 - timing_s/step:39.45283626500003
"""
"""The lines that matter, as a run prints them."""
STARTED = 99.0


def transfer(when: float, op: str, size: int, role: str = "WorkerDict") -> dict:
    return {"t": when, "op": op, "bytes": size, "role": role}


@pytest.fixture
def recorded():
    """The packed run with a log, memory samples once a second and transfers, all of which the asset lacks."""
    samples = [
        {"t": t, "host_gb": 30 + t / 100, "gpu_gb": [20.0 + t % 7], "object_store_bytes": 1000 * t}
        for t in range(100, 445)
    ]
    samples[5]["run_gb"], samples[300]["run_gb"] = 5.0, 25.0
    transfers = [
        transfer(310, "put", 100, "AgentLoopWorkerTQ"),
        transfer(330, "get", 300),
        transfer(370, "put", 110, "AgentLoopWorkerTQ"),
        transfer(380, "get", 200),
        transfer(381, "get", 130),
        transfer(390, "get", 50, "TaskRunnerV1"),
        transfer(50, "get", 7),
    ]
    records = parse.read_jsonl((ASSETS / "h200_packed.metrics.jsonl").read_text())
    lines = parse.log_lines(LOG)
    chosen = planned("--prompts", "8")
    return result.build(chosen, MACHINE, H200, lines, records, samples, transfers, STARTED, seconds=350.0)


# ------------------------------------------------------------------------------------------------ seconds and rates


def test_first_step_apart_and_median_of_the_others(packed):
    summary = packed["summary"]
    assert summary["first"]["step"] == pytest.approx(65.05, abs=0.01)
    assert summary["median"]["step"] == pytest.approx((36.397 + 39.453) / 2, abs=0.001)
    assert summary["median"]["update_actor"] == pytest.approx((17.963 + 20.525) / 2, abs=0.001)
    assert summary["steps_in_median"] == 2


def test_what_no_timer_has_is_everything_else(packed):
    assert packed["summary"]["first"][parse.REST] == pytest.approx(9.08, abs=0.01)
    for row in packed["steps"]:
        seconds = dict(row["seconds"])
        step = seconds.pop("step")
        assert seconds["reward"] is None
        assert sum(value for value in seconds.values() if value is not None) == pytest.approx(step)


def test_rates(packed):
    summary = packed["summary"]
    assert summary["samples"] == 64
    assert summary["samples_per_second"] == pytest.approx(64 / 37.925, rel=1e-3)
    assert summary["tokens_per_second"] == pytest.approx(85892 / 37.925, rel=1e-3)


@pytest.mark.parametrize("index", [1, 2])
def test_counted_flops_are_those_that_verl_logged(packed, index):
    # Independent: verl counts patches and lengths from the batch, the benchmark from page size and means. verl's clock runs
    # in the worker, without what the trainer spends around it.
    row = packed["steps"][index]
    used = packed["summary"]["operations"]["update_actor"] / (row["seconds"]["update_actor"] * 989e12)
    assert 0.93 * row["mfu"] < used <= row["mfu"]


def test_floor_times_ratio_is_the_median(packed):
    summary = packed["summary"]
    assert set(summary["floor"]) == {"gen", "old_log_prob", "ref", "update_actor"}
    for phase, seconds in summary["floor"].items():
        assert seconds * summary["ratio"][phase] == pytest.approx(summary["median"][phase])
    assert summary["floor"]["update_actor"] == pytest.approx(3 * summary["floor"]["ref"])
    assert summary["floor_shared"]["ref"] < summary["floor"]["ref"]
    assert summary["mfu"]["ref"] == pytest.approx(1 / summary["ratio"]["ref"])


def test_first_figures_need_two_two_and_eight_seconds_at_most():
    # 256 samples of the first figures on an H200: "roughly 2, 2 and 8 s", which is no exact count.
    work = planned("--prompts", "32").work(820, 512)
    found = floor.floors(floor.model_shape("released"), work, 989, 4.8)
    assert 1.0 < found["ref"] < 2.0
    assert 3.0 < found["update_actor"] < 6.0


def test_twice_the_gpus_halve_the_floors():
    shape = floor.model_shape("released")
    one = floor.floors(shape, planned("--prompts", "32").work(820, 512), 989, None)
    two = floor.floors(shape, planned("--prompts", "32", gpus=2).work(820, 512), 989, None)
    for phase in one:
        assert two[phase] == pytest.approx(one[phase] / 2)


def test_decoding_is_bound_by_memory_traffic():
    shape, work = floor.model_shape("released"), planned("--prompts", "8").work(830, 512)
    assert floor.rollout_seconds(shape, work, 989, 4.8) > 3 * floor.rollout_seconds(shape, work, 989, None)


@pytest.mark.parametrize(
    ("name", "card"),
    [("NVIDIA H200", "H200"), ("NVIDIA H20", "H20"), ("NVIDIA A100-SXM4-80GB", "A100"), ("NVIDIA H800", "H800")],
)
def test_cards_are_told_apart(name, card):
    assert floor.find_card(name)[0] == card


def test_unknown_card_has_no_floor_unless_given():
    assert floor.find_card("CPU") is None
    assert gpu_step.peak_of(options(), "CPU")["tflops"] is None
    assert gpu_step.peak_of(options("--peak-tflops", "2"), "CPU")["tflops"] == 2.0


def test_patches_and_prompt_room_of_a_page():
    assert floor.page_patches("released", 800, 1000) == 50 * 62
    assert planned("--page", "800x1000").prompt_length == 896


# ------------------------------------------------------------------------------------------------ log and samples


def test_startup_is_split_at_the_launchers_and_verls_lines(recorded):
    found = recorded["startup"]
    assert list(found) == [*(name for name, _ in parse.MILESTONES), parse.BEFORE_FIRST_STEP, "total"]
    assert found["preflight"] == pytest.approx(29.3) and found["Ray"] == pytest.approx(11.7)
    assert found["rollout engines"] == pytest.approx(95.4)
    # Step 1 took 65.05 s and ended at 365.5.
    assert found["total"] == pytest.approx(365.5 - 65.054 - STARTED, abs=0.01)


def test_a_missing_line_adds_its_stretch_to_the_next(recorded):
    lines = [(when, line) for when, line in parse.log_lines(LOG) if "create worker group" not in line]
    found = parse.startup(lines, STARTED, recorded["summary"]["first"]["step"])
    whole = recorded["startup"]
    assert "worker group" not in found
    joined = whole["worker group"] + whole["workers, actor, reference"]
    assert found["workers, actor, reference"] == pytest.approx(joined)
    assert found["total"] == pytest.approx(whole["total"])


def test_startup_of_a_run_that_died():
    found = parse.startup(parse.log_lines(LOG)[:4], STARTED, None)
    assert list(found) == ["preflight", "Ray", "total"]


def test_steps_end_at_their_line():
    assert parse.step_ends(parse.log_lines(LOG)) == {1: 365.5, 2: 402.1, 3: 441.7}


def test_transfers_belong_to_the_step_they_fall_into(recorded):
    rows = [row["transfer_queue_bytes"] for row in recorded["steps"]]
    assert rows[0] == {"put": 100, "get": 300, "put AgentLoopWorkerTQ": 100, "get WorkerDict": 300}
    assert rows[1]["get"] == 380 and rows[1]["get TaskRunnerV1"] == 50
    assert rows[2] == {"put": 0, "get": 0}
    assert recorded["summary"]["transfer_queue_bytes"]["get"] == 190


def test_memory_and_object_store_of_a_run(recorded):
    assert recorded["peaks"]["gpu_gb"] == [26.0] and recorded["peaks"]["run_gb"] == 25.0
    assert recorded["peaks"]["host_before_gb"] == pytest.approx(31.0)
    # 1,000 bytes a second: 36.4 s and 39.45 s.
    assert recorded["summary"]["object_store_bytes"] == pytest.approx(38_000, abs=1500)
    assert recorded["steps"][2]["memory"]["gpu_gb"] == 26.0


def test_object_store_bytes_are_differences_of_the_running_total():
    samples = [{"t": t, "object_store_bytes": value} for t, value in ((0, 10), (5, 30), (9, 30), (12, 100))]
    found = parse.created_per_step([{"t": 1}, *samples], {1: (4, 6), 2: (6, 12)})
    assert found == {1: 20, 2: 70}


def test_gpu_memory_is_that_of_the_fullest_card():
    samples = [{"t": 1, "gpu_gb": [3.0, 5.0], "host_gb": 9.0}, {"t": 2, "gpu_gb": [4.0, 2.0], "host_gb": 8.0}]
    assert parse.memory_per_step(samples, {1: (0, 3), 2: (4, 5)}) == {1: {"gpu_gb": 5.0, "host_gb": 9.0}, 2: {}}
    assert result.peaks(samples, {})["gpu_gb"] == [4.0, 5.0]


@given(st.lists(st.floats(-100, 100), min_size=3, max_size=30))
def test_slope_and_its_error_are_those_of_numpy(values):
    coefficients, covariance = np.polyfit(range(len(values)), values, 1, cov=True)
    rise, error = parse.slope(list(enumerate(values)))
    assert rise == pytest.approx(coefficients[0], abs=1e-6)
    assert error == pytest.approx(covariance[0, 0] ** 0.5, abs=1e-6)


def test_growth_leaves_the_first_step_out():
    rows = [{"step": step, "memory": {"run_gb": 50.0 if step == 1 else 10 + 0.5 * step}} for step in range(1, 21)]
    found = result.growth(rows)["run_gb"]
    assert found["gb_per_step"] == pytest.approx(0.5) and found["error"] == pytest.approx(0, abs=1e-9)
    assert (found["first"], found["last"], found["steps"]) == (11.0, 20.0, 19)
    assert parse.slope([(1, 1.0), (2, 2.0)]) is None


def test_torn_last_line_is_left_out_and_a_torn_middle_is_an_error():
    assert parse.read_jsonl('{"a": 1}\n{"a": ') == [{"a": 1}]
    with pytest.raises(ValueError, match="line 1"):
        parse.read_jsonl('{"a": \n{"a": 1}\n')


def test_a_run_without_steps_has_no_result():
    with pytest.raises(result.NoSteps):
        result.build(planned(), MACHINE, H200, [], [], [], [], started=0.0, seconds=1.0)


# ------------------------------------------------------------------------------------------------ tables


def test_table_has_a_row_for_every_phase(packed):
    text = table.render(packed)
    for name in table.PHASE_ROWS.values():
        assert f"\n{name} " in text
    assert "in rollout" in text and "NVIDIA H200 x 1" in text
    assert "memory, GB" not in text


def test_table_says_why_it_has_no_floors(packed):
    chosen = planned("--size", "tiny", "--prompts", "8", "--group-size", "8", gpus=0)
    unknown = {"tflops": None, "terabytes": None, "source": None}
    records = parse.read_jsonl((ASSETS / "h200_packed.metrics.jsonl").read_text())
    found = result.build(chosen, {**MACHINE, "device": "CPU"}, unknown, [], records, [], [], 0.0, 1.0)
    assert "--peak-tflops" in table.render(found) and "--peak-tflops" not in table.render(packed)


def test_table_of_a_recorded_run(recorded):
    text = table.render(recorded)
    assert "rollout engines" in text and "TransferQueue, put a step" in text and "AgentLoopWorkerTQ" in text


def test_long_run_prints_growth():
    found = h200("packed")
    found["plan"]["long_run"] = True
    found["growth"] = {"run_gb": {"gb_per_step": 0.25, "error": 0.01, "first": 9.0, "last": 13.5, "steps": 19}}
    assert "+0.2500" in table.render(found)


def test_result_survives_json(recorded):
    assert table.render(json.loads(json.dumps(recorded))) == table.render(recorded)


def test_compare_gives_ratios_and_changed_settings(packed):
    text = compare.render(h200("padded", "--plain"), packed)
    assert "USE_REMOVE_PADDING: False -> (default)" in text
    assert "WARNING" not in text and "scaling" not in text
    update = next(line for line in text.splitlines() if line.startswith("update "))
    assert update.split()[-1] == f"{((24.646 + 23.668) / 2) / ((17.963 + 20.525) / 2):.2f}x"


def test_compare_of_other_work_warns(packed):
    assert "WARNING: not the same work (response_tokens" in compare.render(
        packed, h200("packed", "--response-tokens", "64")
    )


def test_compare_of_other_gpus_gives_scaling_efficiency(packed):
    two = json.loads(json.dumps(packed))
    two["plan"]["gpus"] = 2
    two["summary"]["samples_per_second"] *= 1.5
    assert "scaling efficiency 1 -> 2 GPUs: 75%" in compare.render(packed, two)


# ------------------------------------------------------------------------------------------------ options and plan


@pytest.mark.parametrize("size", sorted(plan.DEFAULTS))
def test_plan_uses_settings_that_the_launcher_has(size):
    known = plan.launcher_knobs(plan.LAUNCHER.read_text())
    assert set(planned("--size", size, "--plain").launcher_settings()) <= known | {"HYOCR_DISABLE"}
    # HYOCR_DISABLE is no launcher setting: the fork reads it in every process.
    assert {setting.split("=")[0] for setting in plan.PLAIN_SETTINGS} <= known | {"HYOCR_DISABLE"}


def test_users_settings_win_over_plain():
    assert planned("--plain").launcher_settings()["USE_REMOVE_PADDING"] == "False"
    assert planned("--plain", "--set", "USE_REMOVE_PADDING=True").launcher_settings()["USE_REMOVE_PADDING"] == "True"


def test_answers_have_a_fixed_length_and_overrides_follow():
    assert planned(overrides=("a.b=1",)).hydra() == ["actor_rollout_ref.rollout.ignore_eos=True", "a.b=1"]


def test_long_run_has_twenty_steps_of_8192_tokens():
    found = planned("--rows", "64")
    assert (found.steps, found.response_tokens, found.prompts * found.group_size) == (20, 8192, 64)
    assert planned("--rows", "64", "--steps", "30").steps == 30
    # The longest sample is the least a budget may be.
    assert (
        int(planned("--rows", "64", "--token-budget", "4096").launcher_settings()["MAX_TOKENS_PER_GPU"]) == 896 + 8192
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--rows", "64", "--prompts", "8"), "give one of them"),
        (("--rows", "63"), "multiple of --group-size"),
        (("--gpus", "4"), "this machine has 2"),
        (("--gpus", "2", "--rollout-tp", "3"), "must divide"),
        (("--prompts", "1", "--group-size", "3"), "multiple of 2 GPUs"),
        (("--set", "NO_SUCH=1"), "no setting of train_grpo.sh"),
        (("--set", "MODEL_PATH=/x"), "use --out and --inputs"),
    ],
)
def test_contradictions_are_refused(words, message):
    with pytest.raises(plan.PlanError, match=message):
        planned(*words, gpus=2)


@pytest.mark.parametrize(
    "words",
    [
        ("--page", "800"),
        ("--set", "lower=1"),
        ("--steps", "0"),
        ("--peak-tflops", "-1"),
        ("--size", "tiny"),
        ("--out", "OUT"),
        ("--compare", "missing.json", "missing.json"),
        ("--token-budget", "1", "2", "--size", "tiny", "--out", "OUT"),
    ],
)
def test_bad_usage_ends_with_2(words, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("VERL_PLATFORM", "cpu")
    with pytest.raises(SystemExit) as stop:
        gpu_step.main([str(tmp_path / "new") if word == "OUT" else word for word in words])
    assert stop.value.code == 2
    assert "error:" in capsys.readouterr().err


def test_results_are_never_overwritten(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("VERL_PLATFORM", "cpu")
    (tmp_path / "result.json").write_text("{}")
    with pytest.raises(SystemExit):
        gpu_step.main(["--size", "tiny", "--out", str(tmp_path)])
    assert "holds results already" in capsys.readouterr().err
    assert (tmp_path / "result.json").read_text() == "{}"


def test_command_line_prints_its_plan():
    script = ["benchmarks/gpu_step.py", "--size", "tiny", "--dry-run", "--", "a.b=1"]
    env = {**os.environ, "VERL_PLATFORM": "cpu"}
    done = subprocess.run([sys.executable, *script], cwd=ROOT, env=env, capture_output=True, text=True, check=True)
    assert "TRAIN_BATCH_SIZE=2\n" in done.stdout
    assert done.stdout.strip().endswith("-- actor_rollout_ref.rollout.ignore_eos=True a.b=1")


# ------------------------------------------------------------------------------------------------ memory by formula


def test_parameters_are_those_of_the_model():
    # What verl printed for the released dimensions: 995.50M.
    assert memory.parameters(floor.model_shape("released")) / 1e6 == pytest.approx(995.50, rel=1e-3)


def test_estimate_matches_the_measured_update():
    chosen = planned("--prompts", "8")
    parts = memory.actor_bytes(floor.model_shape("released"), 32768, chosen, checkpointing=True, chunked=False)
    assert sum(parts.values()) == pytest.approx(41.4 * 1024**3, rel=0.1)


def test_more_gpus_chunks_and_checkpoints_need_less():
    shape, one, eight = floor.model_shape("released"), planned(), planned(gpus=8)

    def total(chosen=one, checkpointing=True, chunked=True):
        return sum(memory.actor_bytes(shape, 16384, chosen, checkpointing, chunked).values())

    assert total(eight) < total() < total(chunked=False)
    assert total() < total(checkpointing=False)


def test_estimate_needs_no_gpu(capsys):
    assert gpu_step.main(["--memory-estimate", "--gpus", "8", "--token-budget", "16384"]) == 0
    text = capsys.readouterr().out
    assert "16,384" in text and "A100" in text and "8 GPU(s)" in text


def test_cache_tokens_fill_what_the_weights_leave():
    shape = floor.model_shape("released")
    assert floor.kv_bytes_per_token(shape.text_config) == 2 * 24 * 8 * 128 * 2
    assert memory.cache_tokens(shape, 80, 0.5, 1) == int((40e9 - 2 * memory.parameters(shape)) // 98304)
    assert memory.cache_tokens(shape, 1, 0.5, 1) == 0


# ------------------------------------------------------------------------------------------------ the run itself


def test_pages_fill_every_step_and_are_reused(tmp_path):
    import pyarrow.parquet as pq

    chosen = planned("--size", "tiny", "--steps", "3", gpus=0)
    train, val = inputs.prepare_pages(chosen, tmp_path)
    assert pq.read_metadata(train).num_rows >= 3 * chosen.prompts
    before = train.stat().st_mtime_ns
    assert inputs.prepare_pages(chosen, tmp_path) == (train, val)
    assert train.stat().st_mtime_ns == before
    # No answer is too short for the references: the launcher's preflight would refuse the run.
    rows = pq.read_table(train).to_pylist()
    assert {row["reward_model"]["ground_truth"] for row in rows} == {"0"}


def test_failing_builder_says_why(tmp_path):
    (tmp_path / "pages-96x64-12").write_text("in the way")
    with pytest.raises(inputs.InputError, match="make_data"):
        inputs.prepare_pages(planned("--size", "tiny", gpus=0), tmp_path)


def test_environment_has_nothing_of_the_callers_settings(tmp_path):
    base = {"PATH": "/bin", "ROLLOUT_N": "99", "TEMPERATURE": "0.1", "RAY_ADDRESS": "1.2.3.4:1", "HF_HOME": "/h"}
    found = run.environment(planned("--size", "tiny"), {"MODEL_PATH": "m"}, tmp_path, base, tmp_path / "r", None)
    assert found["ROLLOUT_N"] == "2" and found["HF_HOME"] == "/h" and found["MODEL_PATH"] == "m"
    assert "TEMPERATURE" not in found and "RAY_ADDRESS" not in found
    assert run.HOOK in found["VERL_USE_EXTERNAL_MODULES"] and str(ROOT / "benchmarks") in found["PYTHONPATH"]


def test_a_launcher_that_refuses_fails_the_benchmark(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("VERL_PLATFORM", "cpu")
    args = options("--size", "tiny", "--out", str(tmp_path))
    paths = {"MODEL_PATH": str(tmp_path / "none"), "TRAIN_FILES": "none", "VAL_FILES": "none"}
    chosen = plan.make_plan(args, 0, [])
    with pytest.raises(gpu_step.RunFailed, match="exit code 2"):
        gpu_step.once(args, chosen, {**MACHINE, "device": "CPU"}, H200, paths, "run", None)
    assert "has no config.json" in capsys.readouterr().err
    assert parse.log_lines((tmp_path / "run/run.log").read_text())
    assert parse.read_jsonl((tmp_path / "run/samples.jsonl").read_text())[0]["host_gb"] > 0


def test_a_finished_run_leaves_its_figures_only(tmp_path, monkeypatch, capsys):
    # The launcher's place is taken by a script with its output and its files: a real run takes minutes.
    script = tmp_path / "launcher.sh"
    log = "".join(line.partition("\t")[2] + "\n" for line in LOG.splitlines() if "\t" in line)
    (tmp_path / "log.txt").write_text(log)
    script.write_text(
        'mkdir -p "$OUTPUT_DIR/$PROJECT_NAME/$EXPERIMENT_NAME"\n'
        f'cp {ASSETS}/h200_packed.metrics.jsonl "$OUTPUT_DIR/$PROJECT_NAME/$EXPERIMENT_NAME/metrics.jsonl"\n'
        f"""echo '{{"t": 1, "op": "put", "bytes": 5, "role": "x"}}' > "$GPU_STEP_TRANSFERS/1.jsonl"\n"""
        f"cat {tmp_path}/log.txt\n"
    )
    monkeypatch.setattr(run, "LAUNCHER", script)
    monkeypatch.setattr(inputs, "prepare", lambda plan, folder, dtype: folder.mkdir() or {"MODEL_PATH": str(folder)})
    monkeypatch.setenv("VERL_PLATFORM", "cpu")
    out = tmp_path / "out"
    code = gpu_step.main(["--size", "tiny", "--out", str(out), "--peak-tflops", "1", "--repeat-first-step"])
    assert code == 0
    assert sorted(path.name for path in out.iterdir()) == ["cold", "result.json", "run", "table.txt"]
    kept = ["metrics.jsonl", "run.log", "samples.jsonl", "transfers.jsonl"]
    assert sorted(path.name for path in (out / "run").iterdir()) == kept
    assert (out / "table.txt").read_text() in capsys.readouterr().out
    found = compare.load(out / "result.json")
    assert found["cold"]["first_step"] == pytest.approx(65.05, abs=0.01) and found["summary"]["ratio"]
    assert gpu_step.main(["--compare", str(out / "result.json"), str(out / "result.json")]) == 0
    assert "settings that differ: none" in capsys.readouterr().out


def test_announcements():
    assert run.announcements("[ray] head is up: 1 of 1 node(s)") == ["Ray: done"]
    assert run.announcements("(TaskRunnerV1 pid=1) step:3 - a:1 - timing_s/step:12.345 - b:2") == ["step 3: 12.35 s"]
    assert run.announcements("global_step:3 - x") == []


def test_reward_varies_with_the_text():
    found = {varying_reward.compute_score("x", text, "")["score"] for text in ("0", "1", "01 0", "abc", "")}
    assert len(found) > 2 and all(0 <= score < 1 for score in found)


def test_processes_of_a_run_are_found_by_their_mark():
    child = subprocess.Popen(
        [sys.executable, "-c", "print(flush=True); input()"],
        env={**os.environ, sampling.MARKER: "only-this-test"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        child.stdout.readline()
        assert [process.pid for process in sampling.run_processes("only-this-test")] == [child.pid]
        assert sampling.run_memory_gb("only-this-test") > 0
    finally:
        child.communicate(b"\n")


def test_created_bytes_is_the_newest_dump(tmp_path):
    log = tmp_path / "raylet.out"
    assert sampling.created_bytes(log) is None
    log.write_text("nothing yet\n")
    assert sampling.created_bytes(log) is None
    dump = "store.cc:572: Plasma store debug dump: \nCurrent usage: 0.0001099 / 7.28369 GB\n- num bytes created total: {}\n"
    log.write_text(dump.format(119918) + dump.format(135534))
    assert sampling.created_bytes(log) == 135534


# ------------------------------------------------------------------------------------------------ contracts


def test_transfer_queue_messages_are_counted(tmp_path, monkeypatch):
    import torch
    from transfer_queue.utils import zmq_utils

    monkeypatch.setenv(count_transfers.FOLDER_ENV, str(tmp_path))
    kinds, message = zmq_utils.ZMQRequestType, zmq_utils.ZMQMessage
    monkeypatch.setattr(message, "serialize", message.serialize)
    monkeypatch.setattr(message, "deserialize", staticmethod(message.deserialize))
    count_transfers.install(zmq_utils)

    body = {"data": {"x": torch.zeros(1000)}}
    frames = {kind: message.create(kind, "a", body).serialize() for kind in (kinds.PUT_DATA, kinds.GET_DATA_RESPONSE)}
    for found in frames.values():
        assert torch.equal(message.deserialize(found).body["data"]["x"], torch.zeros(1000))
    (path,) = tmp_path.glob("*.jsonl")
    put, get = parse.read_jsonl(path.read_text())
    assert (put["op"], get["op"]) == ("put", "get")
    assert put["bytes"] == count_transfers.frame_bytes(frames[kinds.PUT_DATA]) > 4000
    assert get["bytes"] == count_transfers.frame_bytes(frames[kinds.GET_DATA_RESPONSE]) > 4000
    assert put["role"] == "driver"


def test_role_is_the_actors_class():
    assert count_transfers.actor_class(b"ray::WorkerDict.actor_update_actor\0") == "WorkerDict"
    assert count_transfers.actor_class(b"ray::TaskRunnerV1\0\0") == "TaskRunnerV1"
    assert count_transfers.actor_class(b"python\0-c\0") == "driver"


def test_lines_that_split_the_startup_are_still_printed():
    verl = Path(find_spec("verl").origin).parent / "trainer/ppo/v1/trainer_base.py"
    sources = [verl, ROOT / "train_grpo.sh", ROOT / "utils/ray/cluster.py", ROOT / "utils/preflight/report.py"]
    text = "\n".join(path.read_text() for path in sources)
    for words in (
        "train and validate dataloader initialized",
        "create worker group",
        "actor and ref model engine initialized",
        "reward loop manager initialized",
        "checkpoint engine manager initialized",
        "Training Progress",
        'say "run folder:',
        "{state.role} is up:",
        "preflight: {summary}",
    ):
        assert words in text


def test_timers_of_the_phases_are_still_verls():
    folder = Path(find_spec("verl").origin).parent / "trainer/ppo/v1"
    text = (folder / "trainer_base.py").read_text() + (folder / "trainer_sync.py").read_text()
    for timer in (*parse.PHASES, "step"):
        assert f'marked_timer("{timer}"' in text
