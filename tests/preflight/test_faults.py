"""Planted faults: each is named by the check that is meant for it, and by no other, with the value that repairs it."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import resource
import socket
import struct
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

REPO = Path(__file__).resolve().parents[2]

NUMBERS = [
    # settings, check, part of the finding, part of the remedy
    ({"MAX_MODEL_LEN": "100"}, "model_length", "below MAX_PROMPT_LENGTH=128", "set MAX_MODEL_LEN=160"),
    ({"MAX_MODEL_LEN": "4096"}, "model_length", "the model's 2048 positions", "set MAX_MODEL_LEN=2048"),
    ({"MAX_NUM_SEQS": "300"}, "model_length", "MAX_NUM_SEQS=300", "set MAX_NUM_SEQS=256"),
    ({"MAX_TOKENS_PER_GPU": "64"}, "token_budget", "longest sample of 160", "set MAX_TOKENS_PER_GPU=160"),
    ({"LOGPROB_MAX_TOKENS_PER_GPU": "64"}, "token_budget", "=64 cannot", "set LOGPROB_MAX_TOKENS_PER_GPU=160"),
    ({"PPO_MINI_BATCH_SIZE": "3"}, "batch", "does not divide TRAIN_BATCH_SIZE=4", "set PPO_MINI_BATCH_SIZE=2"),
    (
        {"NGPUS_PER_NODE": "3", "PPO_MINI_BATCH_SIZE": "2"},
        "batch",
        "4 x 4 = 16 is no multiple of the 3",
        "set TRAIN_BATCH_SIZE=6",
    ),
    ({"ROLLOUT_N": "1"}, "batch", "a group of one", "set ROLLOUT_N=2"),
    ({"ROLLOUT_TP": "3", "NGPUS_PER_NODE": "4"}, "tensor_parallel", "does not divide NGPUS", "set ROLLOUT_TP=2"),
    ({"ROLLOUT_TP": "8", "NGPUS_PER_NODE": "8"}, "tensor_parallel", "4 attention heads", "set ROLLOUT_TP=4"),
    ({"TEMPERATURE": "0"}, "sampling", "no advantage is left", "set TEMPERATURE=1.0"),
    ({"TOP_P": "1.5"}, "sampling", "not in (0, 1]", "set TOP_P=1.0"),
    ({"CALCULATE_LOG_PROBS": "False"}, "rollout_correction", "needs log-probs", "set CALCULATE_LOG_PROBS=True"),
    ({"ROLLOUT_IS_THRESHOLD": "5.0_0.2"}, "rollout_correction", "no room around 1", "=0.2_5.0"),
]


@pytest.mark.parametrize(("settings", "check", "found", "remedy"), NUMBERS)
def test_numbers_that_do_not_fit(preflight, monkeypatch, settings, check, found, remedy):
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    report = preflight()
    assert report.bad() == {f"numbers.{check}": "FAIL"} and report.code == 1
    row = report.row(f"numbers.{check}")
    assert found in row["found"] and remedy in row["remedy"]


def test_hydra_overrides_are_looked_at(preflight):
    report = preflight("--", "actor_rollout_ref.rollout.max_num_batched_tokens=100", "trainer.save_freq=3")
    assert report.bad() == {"numbers.model_length": "FAIL"}
    assert "max_num_batched_tokens=256" in report.row("numbers.model_length")["remedy"]


# ------------------------------------------------------------------------------------------------------------- model
def only_failure(report, check: str, found: str, remedy: str = "") -> None:
    """Nothing but ``check`` failed, and it says why and what to do."""
    assert report.bad() == {check: "FAIL"} and report.code == 1
    row = report.row(check)
    assert found in row["found"] and row["remedy"] and remedy in row["remedy"], row


def test_folder_without_config(preflight, monkeypatch, tmp_path):
    monkeypatch.setenv("MODEL_PATH", str(tmp_path / "nowhere"))
    only_failure(preflight(), "model.config", "config.json is missing", "set MODEL_PATH")


def test_another_architecture(preflight, edit_json):
    edit_json("config.json", model_type="qwen2_5_vl")
    only_failure(preflight(), "model.config", "'qwen2_5_vl'", "hunyuan_vl checkpoint")


def test_nested_config_as_transformers_writes_it(preflight, edit_json):
    edit_json("config.json", text_config={"hidden_size": 64, "num_hidden_layers": 2})
    only_failure(preflight(), "model.config", "nested layout", "released checkpoint")


def test_rope_sections_of_another_model(preflight, edit_json):
    edit_json("config.json", rope_scaling={"type": "xdrope", "xdrope_section": [8, 8]})
    only_failure(preflight(), "model.config", "xdrope_section is [8, 8]")


def test_truncated_weights(preflight, copied_model):
    with open(copied_model / "model.safetensors", "r+b") as weights:
        weights.truncate(1_000_000)
    only_failure(preflight(), "model.weights", "its header promises", "download")


def test_git_lfs_pointer_instead_of_weights(preflight, copied_model):
    (copied_model / "model.safetensors").write_text(
        "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"
    )
    only_failure(preflight(), "model.weights", "cut short", "Git LFS")


def test_missing_generation_config(preflight, copied_model):
    (copied_model / "generation_config.json").unlink()
    only_failure(preflight(), "model.weights", "lacks generation_config.json", "copy")


def test_missing_chat_template(preflight, copied_model):
    (copied_model / "chat_template.jinja").unlink()
    only_failure(preflight("--except", "data.lengths"), "model.tokenizer", "no chat template", "chat_template.jinja")


def test_chat_template_without_image(preflight, copied_model):
    (copied_model / "chat_template.jinja").write_text("{% for m in messages %}{{ m['role'] }}{% endfor %}")
    only_failure(preflight(), "model.tokenizer", "writes 0 image tokens")


def test_end_token_of_another_tokenizer(preflight, edit_json):
    edit_json("config.json", eos_token_id=7)
    only_failure(preflight(), "model.tokenizer", "answers would never end")


def test_vision_token_that_vllm_does_not_expect(preflight, edit_json):
    edit_json("config.json", image_start_token_id=120122, im_start_id=120122)
    only_failure(preflight(), "model.vision_tokens", "vLLM 0.25.1 expects 120118")


def test_vision_token_that_is_missing_in_the_config(preflight, edit_json):
    edit_json("config.json", video_end_id=None)
    only_failure(preflight(), "model.vision_tokens", "video end: config.json lacks video_end_id")


def test_vision_token_that_is_plain_text(preflight, copied_model):
    path = copied_model / "tokenizer.json"
    read = json.loads(path.read_text())
    read["added_tokens"] = [token for token in read["added_tokens"] if token["id"] != 120119]
    path.write_text(json.dumps(read))
    only_failure(preflight(), "model.vision_tokens", "(120119) is no special token")


def test_processor_of_another_model(preflight, copied_model, edit_json):
    settings = json.loads((copied_model / "processor_config.json").read_text())["image_processor"]
    edit_json("processor_config.json", image_processor={**settings, "patch_size": 14})
    only_failure(preflight(), "model.processor", "patches of 14", "preprocessor_config.json")


# -------------------------------------------------------------------------------------------------------------- data
def test_file_that_is_no_parquet(preflight, monkeypatch, tmp_path):
    path = tmp_path / "train.parquet"
    path.write_text('{"image": "1.png"}\n')
    monkeypatch.setenv("TRAIN_FILES", str(path))
    only_failure(preflight(), "data.schema", str(path), "data/prepare_data.py")


def test_missing_column(preflight, edit_rows):
    edit_rows(lambda row: row.pop("reward_model"))
    report = preflight()
    assert report.bad()["data.schema"] == "FAIL" and "no column reward_model" in report.row("data.schema")["found"]


def test_prompt_as_text(preflight, edit_rows):
    edit_rows(lambda row: row.update(prompt="Read the text.") or row.pop("images"))
    report = preflight()
    assert report.bad()["data.schema"] == "FAIL" and "not a list of messages" in report.row("data.schema")["found"]


def test_no_validation_data(preflight, monkeypatch, healthy):
    monkeypatch.setenv("VAL_FILES", healthy["TRAIN_FILES"])
    report = preflight()
    assert report.bad() == {"data.schema": "WARN"} and report.code == 0
    assert "set VAL_FILES" in report.row("data.schema")["remedy"]


def test_fewer_rows_than_a_batch(preflight, monkeypatch):
    monkeypatch.setenv("TRAIN_BATCH_SIZE", "64")
    monkeypatch.setenv("PPO_MINI_BATCH_SIZE", "8")
    only_failure(preflight(), "data.rows", "not one step", "set TRAIN_BATCH_SIZE=16")


def test_no_rows_to_validate_on(preflight, monkeypatch, tmp_path, pages):
    empty = tmp_path / "empty.parquet"
    pq.write_table(pq.read_table(pages / "val.parquet").slice(0, 0), empty)
    monkeypatch.setenv("VAL_FILES", str(empty))
    only_failure(preflight(), "data.rows", f"no rows in VAL_FILES={empty}")


def test_references_longer_than_answers_can_be(preflight, monkeypatch):
    """A choice that people make, for a demo or a measurement: never a failure."""
    monkeypatch.setenv("MAX_RESPONSE_LENGTH", "4")
    report = preflight()
    assert (
        report.bad() == {"data.lengths": "WARN"}
        and "set MAX_RESPONSE_LENGTH=32" in report.row("data.lengths")["remedy"]
    )


def test_unknown_task_type(preflight, edit_rows):
    edit_rows(lambda row: row["extra_info"].update(task_type="Poetry") if row["extra_info"]["index"] == 3 else None)
    report = preflight()
    assert report.bad()["data.task_types"] == "FAIL"
    assert "'Poetry' (1 rows)" in report.row("data.task_types")["found"]


def test_task_type_that_names_two_tasks(preflight, edit_rows):
    edit_rows(
        lambda row: row["extra_info"].update(task_type="layout_parsing") if "Pars" in row["data_source"] else None
    )
    report = preflight()
    assert report.bad() == {"data.task_types": "WARN"} and "Parsing, Layout" in report.row("data.task_types")["found"]


def test_images_that_are_gone(preflight, edit_rows):
    edit_rows(lambda row: row.update(images=["/nowhere/1.png"]))
    only_failure(preflight(), "data.images", "/nowhere/1.png: no such file", "restore")


def test_relative_image_paths(preflight, edit_rows, monkeypatch, pages):
    edit_rows(lambda row: row.update(images=[os.path.relpath(path, pages) for path in row["images"]]))
    monkeypatch.chdir(pages)
    monkeypatch.syspath_prepend(str(REPO))
    only_failure(preflight(), "data.images", "are relative", "absolute")


def test_one_bad_image_in_many_is_a_warning(preflight, edit_rows, tmp_path):
    torn = tmp_path / "torn.png"

    def tear(row):
        if row["extra_info"]["index"] == 0:
            torn.write_bytes(Path(row["images"][0]).read_bytes()[:20])
            row["images"] = [str(torn)]

    edit_rows(tear)
    report = preflight()
    assert report.bad() == {"data.images": "WARN"} and str(torn) in report.row("data.images")["found"]


def test_more_images_than_allowed(preflight, edit_rows):
    def double(row):
        row["images"] = row["images"] * 2
        row["prompt"][0]["content"] += "<image>"

    edit_rows(double)
    assert preflight("--", "+actor_rollout_ref.rollout.limit_images=2").bad() == {}
    only_failure(
        preflight("--", "+actor_rollout_ref.rollout.limit_images=1"), "data.image_count", "up to 2", "set MAX_IMAGES=2"
    )


def test_prompt_without_its_placeholder(preflight, edit_rows):
    edit_rows(lambda row: row["prompt"][0].update(content="Read the text."))
    only_failure(preflight(), "data.placeholders", "0 <image> for 1 image(s)", "data/prepare_data.py")


def test_references_that_cannot_score(preflight, edit_rows):
    edit_rows(lambda row: row["reward_model"].update(ground_truth="") if row["data_source"] == "Parsing" else None)
    report = preflight()
    assert report.bad() == {"data.references": "FAIL"}
    assert "empty_reference" in report.row("data.references")["found"]
    assert "python -m reward audit" in report.row("data.references")["remedy"]


def test_prompts_that_are_too_long(preflight, monkeypatch):
    monkeypatch.setenv("MAX_PROMPT_LENGTH", "24")
    report = preflight()
    assert report.bad() == {"data.lengths": "FAIL"}
    assert "longer than MAX_PROMPT_LENGTH=24" in report.row("data.lengths")["found"]
    assert re.search(r"set MAX_PROMPT_LENGTH=(32|64)\b", report.row("data.lengths")["remedy"])


# ------------------------------------------------------------------------------------------------------------ reward
SIGNATURE = "def compute_score(data_source, solution_str, ground_truth, extra_info=None, **kwargs):\n    "


@pytest.mark.parametrize(
    ("source", "check", "found", "remedy"),
    [
        ("def compute_score(:\n", "function", "SyntaxError", "importable"),
        ("import no_such_module\n", "function", "No module named 'no_such_module'", "importable"),
        ("raise SystemExit(3)\n", "function", "SystemExit", "importable"),
        ("def compute_scores(**kwargs):\n    return 0.0\n", "function", "it has compute_scores", "REWARD_FN_NAME"),
        ("def compute_score(response, reference):\n    return 0.0\n", "function", "response, reference", "data_source"),
        ("def compute_score(solution_str, ground_truth):\n    return 0.0\n", "function", "data_source", "**kwargs"),
        (SIGNATURE + "raise KeyError('task')\n", "calls", "raises KeyError", "finite number"),
        (SIGNATURE + "return None\n", "calls", "returns NoneType as score", "finite number"),
        (SIGNATURE + "return float('nan')\n", "calls", "the score nan", "finite number"),
        (SIGNATURE + "return {'reward': 1.0}\n", "calls", "without 'score' (keys: reward)", "'score'"),
        ("async " + SIGNATURE + "return 'good'\n", "calls", "returns str as score", "finite number"),
    ],
)
def test_reward_functions_that_verl_cannot_use(preflight, reward_file, source, check, found, remedy):
    reward_file(source)
    only_failure(preflight(), f"reward.{check}", found, remedy)


def test_reward_function_that_does_not_exist(preflight, monkeypatch, tmp_path):
    monkeypatch.setenv("REWARD_FN_PATH", str(tmp_path / "gone.py"))
    only_failure(preflight(), "reward.function", "gone.py does not exist", "REWARD_FN_PATH")


@pytest.mark.parametrize("form", ["", "async "])
def test_reward_functions_that_verl_can_use(preflight, reward_file, form):
    reward_file(form + SIGNATURE + "return {'score': len(solution_str) / 100, 'length': 1.0}\n")
    assert preflight().bad() == {}


def test_reward_function_that_drops_a_sample(preflight, reward_file):
    """The contract of dropped samples is another function's too; what its decisions mean is its own affair."""
    reward_file(SIGNATURE + "return {'score': -1.0, 'valid': 0.0, 'task': 'Parsing', 'decision': 'scorer_error'}\n")
    assert preflight().bad() == {}


def test_reward_function_that_fails_for_one_task_only(preflight, reward_file):
    reward_file(SIGNATURE + "return {'Parsing': 1.0, 'Spotting': 0.5}[extra_info['task_type']]\n")
    only_failure(preflight(), "reward.calls", "'IE': raises KeyError")


def test_results_with_other_keys_per_task(preflight, reward_file):
    reward_file(SIGNATURE + "return {'score': 1.0, extra_info['task_type']: 1.0}\n")
    report = preflight()
    assert report.bad() == {"reward.calls": "WARN"} and "same keys" in report.row("reward.calls")["remedy"]


def test_reward_function_that_hangs(preflight, reward_file, monkeypatch):
    monkeypatch.setattr("utils.preflight.reward.CALL_TIMEOUT_S", 0.2)
    reward_file("import threading\n" + SIGNATURE + "threading.Event().wait()\n")
    report = preflight()
    assert report.bad() == {"reward.calls": "WARN"} and "no result within" in report.row("reward.calls")["found"]


# ------------------------------------------------------------------------------------------------------------- judge
@contextmanager
def judge_server(verdict: str | None = "1") -> Iterator[str]:
    """An OpenAI-compatible server that gives everybody ``verdict``; yields its address."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self._send({"object": "list", "data": [{"id": "my-judge", "object": "model"}]})

        def do_POST(self):
            self.rfile.read(int(self.headers["Content-Length"]))
            message = {"role": "assistant", "content": verdict}
            choice = {"index": 0, "finish_reason": "stop", "message": message}
            self._send({"id": "1", "object": "chat.completion", "created": 0, "model": "my-judge", "choices": [choice]})

        def _send(self, body):
            text = json.dumps(body).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *arguments):
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def vqa_data(edit_rows):
    def vqa(row):
        if row["data_source"] == "IE":
            row["extra_info"].update(task_type="VQA", question="What is the code?")

    edit_rows(vqa)


@pytest.fixture
def routes(tmp_path, monkeypatch, healthy):
    from reward.utils.request_utils import close_judge

    def write(*servers: object) -> Path:
        path = tmp_path / "routes.json"
        path.write_text(json.dumps({"my-judge": list(servers)}))
        monkeypatch.setenv("JUDGE_ROUTES_FILE", str(path))
        monkeypatch.setenv("RM_SYSTEM_JUDGE_MODEL_NAME", "my-judge")
        close_judge()
        return path

    yield write
    close_judge()


def test_judge_task_without_a_route(preflight, vqa_data, monkeypatch):
    monkeypatch.setenv("RM_SYSTEM_JUDGE_MODEL_NAME", "nobody")
    report = preflight()
    only_failure(report, "judge.routes", "VQA need a judge", 'add {"nobody": ["host:port"]}')
    assert "not called without a judge: VQA" in report.row("reward.calls")["found"]


def test_judge_that_does_not_answer(preflight, vqa_data, routes):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        routes(f"127.0.0.1:{taken.getsockname()[1]}")
        only_failure(preflight(), "judge.servers", "no judge server answers", "judge-check")


def test_one_judge_of_two_does_not_answer(preflight, vqa_data, routes):
    with judge_server() as address, socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        routes(address, {"url": f"http://127.0.0.1:{taken.getsockname()[1]}/v1", "model": "hosted"})
        report = preflight("--only", "judge")
    assert report.bad() == {"judge.servers": "WARN"} and "1 of 2 judge servers" in report.row("judge.servers")["found"]


def test_judge_that_judges(preflight, vqa_data, routes):
    with judge_server('{"score": 1}') as address:
        routes(address)
        report = preflight()
    calls = report.row("reward.calls")
    assert report.row("judge.servers")["status"] == "PASS" and "VQA" in calls["found"], calls


def test_judge_that_talks_nonsense(preflight, vqa_data, routes, monkeypatch):
    monkeypatch.setenv("JUDGE_PARSE_TRIES", "1")
    with judge_server("I would rather not say.") as address:
        routes(address)
        only_failure(preflight(), "reward.calls", "judge_unparsed", "judge-check")


# ------------------------------------------------------------------------------------------- memory, disk, checkpoints
def test_kv_cache_that_holds_no_sample(preflight, edit_json):
    edit_json("config.json", num_hidden_layers=10000)
    only_failure(preflight(), "memory.kv_cache", "1.0 GiB", "set VLLM_CPU_KVCACHE_SPACE=2")


def test_gpu_share_that_holds_no_sample(preflight, gpu_host, monkeypatch):
    gpu_host(total=8192)
    monkeypatch.setenv("GPU_MEMORY_UTILIZATION", "0.1")
    report = preflight()
    assert report.bad()["memory.kv_cache"] == "FAIL"
    assert "set GPU_MEMORY_UTILIZATION=0.2" in report.row("memory.kv_cache")["remedy"]


def test_micro_batch_that_is_too_large_for_the_gpu(preflight, gpu_host, monkeypatch):
    gpu_host(total=16384)
    monkeypatch.setenv("USE_FUSED_KERNELS", "False")
    monkeypatch.setenv("MAX_TOKENS_PER_GPU", "65536")
    report = preflight()
    assert report.bad() == {"memory.training": "WARN"}
    suggested = int(re.search(r"set MAX_TOKENS_PER_GPU=(\d+)", report.row("memory.training")["remedy"]).group(1))
    monkeypatch.setenv("MAX_TOKENS_PER_GPU", str(suggested))
    assert preflight().bad() == {}, "the suggestion fits"


def test_engine_that_keeps_its_memory(preflight, gpu_host, monkeypatch):
    gpu_host(total=16384)
    for name, value in (
        ("FREE_CACHE_ENGINE", "False"),
        ("USE_FUSED_KERNELS", "False"),
        ("GPU_MEMORY_UTILIZATION", "0.9"),
    ):
        monkeypatch.setenv(name, value)
    report = preflight()
    assert (
        report.bad() == {"memory.training": "WARN"}
        and "FREE_CACHE_ENGINE=True" in report.row("memory.training")["remedy"]
    )


def test_too_little_host_memory(preflight, monkeypatch):
    monkeypatch.setattr("utils.preflight.node_probe._memory", lambda: [16 * 2**30, 2 * 2**30])
    report = preflight()
    assert (
        report.bad() == {"memory.host": "WARN"} and "2.0 GiB of 16.0 GiB are free" in report.row("memory.host")["found"]
    )


def sparse_weights(path: Path, parameters: int) -> None:
    """A safetensors file of ``parameters`` fp32 zeros that takes no room on the disk."""
    header = json.dumps({"w": {"dtype": "F32", "shape": [parameters], "data_offsets": [0, 4 * parameters]}}).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        file.truncate(8 + len(header) + 4 * parameters)


def test_checkpoints_that_fill_the_disk(preflight, copied_model, monkeypatch):
    sparse_weights(copied_model / "model.safetensors", 10**12)
    report = preflight()
    assert report.bad() == {"disk.checkpoints": "FAIL", "memory.host": "FAIL"}
    assert (
        "free in" not in report.row("disk.checkpoints")["found"]
        and "OUTPUT_DIR" in report.row("disk.checkpoints")["remedy"]
    )


def test_many_checkpoints_that_fill_the_disk_later(preflight, monkeypatch):
    monkeypatch.setenv("TOTAL_STEPS", "1000000")
    monkeypatch.setenv("SAVE_FREQ", "1")
    report = preflight()
    assert report.bad() == {"disk.checkpoints": "WARN"} and "full at step" in report.row("disk.checkpoints")["found"]
    kept = int(re.search(r"MAX_CKPT_TO_KEEP=(\d+)", report.row("disk.checkpoints")["remedy"]).group(1))
    monkeypatch.setenv("MAX_CKPT_TO_KEEP", str(kept // 2))
    assert preflight().bad() == {}, "keeping fewer than suggested fits"


def test_nothing_is_saved(preflight, monkeypatch):
    monkeypatch.setenv("SAVE_FREQ", "-1")
    report = preflight()
    assert (
        report.bad() == {"disk.checkpoints": "WARN"} and report.row("disk.checkpoints")["remedy"] == "set SAVE_FREQ=25"
    )


def test_output_below_a_file(preflight, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("OUTPUT_DIR", str(tmp_path / "file" / "out"))
    only_failure(preflight(), "disk.writable", "cannot be written", "set OUTPUT_DIR")


@pytest.fixture
def checkpoint(healthy):
    """``checkpoint(step, world)``: a whole one without tensors in the run's folder; returns its folder."""
    from verl_hyocr.checkpoint import publish, shard_names, work_folder

    root = Path(healthy["OUTPUT_DIR"]) / "hyocr_1_5_verl/hyocr_1_5_grpo/ckpt"

    def make(step: int, world: int = 1) -> Path:
        folder = work_folder(root) / f"global_step_{step}"
        (folder / "actor/huggingface").mkdir(parents=True)
        (folder / "actor/huggingface/config.json").write_text("{}")
        (folder / "actor/fsdp_config.json").write_text(json.dumps({"world_size": world}))
        for name in ("data.pt", *(f"actor/{shard}" for shard in shard_names(world))):
            with zipfile.ZipFile(folder / name, "w") as file:
                file.writestr("data", "")
        publish(root, step)
        return root / f"global_step_{step}"

    return make


def test_resume_from_a_whole_checkpoint(preflight, checkpoint):
    checkpoint(2)
    report = preflight()
    assert report.bad() == {} and "resumes after step 2 of 4" in report.row("resume.checkpoint")["found"]


def test_resume_with_another_number_of_workers(preflight, checkpoint):
    checkpoint(2, world=8)
    only_failure(preflight(), "resume.checkpoint", "8 ranks wrote it", "Use 8 GPUs")


def test_resume_from_a_half_checkpoint(preflight, checkpoint, monkeypatch):
    (checkpoint(2) / "actor/optim_world_size_1_rank_0.pt").unlink()
    only_failure(preflight(), "resume.checkpoint", "holds no whole checkpoint", "EXPERIMENT_NAME")
    whole = checkpoint(3)
    report = preflight()
    assert report.bad() == {"resume.checkpoint": "WARN"} and "after step 3" in report.row("resume.checkpoint")["found"]
    monkeypatch.setenv("RESUME_MODE", str(whole.with_name("global_step_2")))
    only_failure(preflight(), "resume.checkpoint", "optim_world_size_1_rank_0.pt is missing", "choose another")


def test_resume_that_would_train_nothing(preflight, checkpoint):
    checkpoint(4)
    report = preflight()
    assert (
        report.bad() == {"resume.checkpoint": "WARN"}
        and report.row("resume.checkpoint")["remedy"] == "set TOTAL_STEPS=6"
    )


# ------------------------------------------------------------------------------------------------ environment and host
def test_logger_that_verl_does_not_have(preflight, monkeypatch):
    monkeypatch.setenv("LOGGERS", "console,tensorbord")
    only_failure(preflight(), "loggers.backends", "'tensorbord'", "LOGGERS")


def test_logger_that_is_not_installed(preflight, monkeypatch):
    monkeypatch.setenv("LOGGERS", "clearml")
    if "clearml" in {name.lower() for name in importlib.metadata.packages_distributions()}:
        pytest.skip("clearml is installed here")
    only_failure(preflight(), "loggers.backends", "not installed", "pip install clearml")


def test_other_version_of_transformers(preflight, monkeypatch, tmp_path):
    folder = tmp_path / "site/transformers-9.9.9.dist-info"
    folder.mkdir(parents=True)
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: transformers\nVersion: 9.9.9\n")
    monkeypatch.syspath_prepend(str(folder.parent))
    only_failure(preflight(), "versions.pins", "transformers is 9.9.9, tested with", "install_cpu.sh")
    monkeypatch.setenv("HYOCR_ALLOW_VERSION_MISMATCH", "1")
    assert preflight().bad() == {"versions.pins": "WARN"}


@pytest.mark.parametrize(
    ("name", "value"),
    [("VERL_USE_EXTERNAL_PLUGINS", "none"), ("VERL_USE_EXTERNAL_PLUGINS", "other"), ("VLLM_PLUGINS", "")],
)
def test_plugin_switched_off(preflight, monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    only_failure(preflight(without="ray"), "versions.plugin", name, "unset it")


def test_plugin_that_fails_on_import(preflight, monkeypatch):
    code = "import sys; sys.exit('verl-hyocr could not adapt verl in this process: broken')"
    monkeypatch.setattr("utils.preflight.context.START_CODE", code)
    only_failure(preflight(without="ray"), "versions.plugin", "could not adapt verl", "import verl")


def test_adaptation_switched_off(preflight, monkeypatch):
    monkeypatch.setenv("HYOCR_DISABLE", "A5")
    report = preflight()
    assert (
        report.bad() == {"versions.switches": "WARN"} and "HYOCR_DISABLE=A5" in report.row("versions.switches")["found"]
    )


def test_second_model_runner(preflight, monkeypatch):
    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", "1")
    only_failure(preflight(), "versions.switches", "second model runner", "unset VLLM_USE_V2_MODEL_RUNNER")


@pytest.mark.parametrize("name", ["NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"])
def test_interface_that_does_not_exist(preflight, monkeypatch, name):
    monkeypatch.setenv(name, "nosuch0")
    only_failure(preflight(), "network.interfaces", f"{name}=nosuch0: no such interface", f"set {name} to one of: ")


def test_loopback_between_nodes(preflight, monkeypatch):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    assert preflight().bad() == {}
    monkeypatch.setenv("NNODES", "2")
    only_failure(preflight(), "network.interfaces", "reaches no other node")


def test_adapter_that_does_not_exist(preflight, monkeypatch):
    monkeypatch.setenv("NCCL_IB_HCA", "=nosuch_0:1")
    only_failure(preflight(), "network.adapters", "NCCL_IB_HCA=", "NCCL_IB_")


def test_few_open_files(preflight):
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (512, hard))
    only_failure(preflight(), "host.open_files", "at most 512 open files", "ulimit -n 8192")
    resource.setrlimit(resource.RLIMIT_NOFILE, (2048, hard))
    assert preflight().bad() == {"host.open_files": "WARN"}


def test_cache_that_cannot_be_written(preflight, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "file" / "hf"))
    only_failure(preflight(), "host.hf_cache", "cannot be written", "set HF_HOME")


def test_small_shared_memory(preflight, monkeypatch):
    monkeypatch.setattr("utils.preflight.node_probe._disk", lambda path: [64 * 2**20, 60 * 2**20])
    only_failure(preflight(), "host.shared_memory", "/dev/shm has 64 MiB", "--shm-size")


def test_object_store_larger_than_shared_memory(preflight, monkeypatch):
    monkeypatch.setenv("RAY_OBJECT_STORE_GB", "100")
    report = preflight()
    assert (
        report.bad() == {"host.shared_memory": "WARN"}
        and "RAY_OBJECT_STORE_GB=15" in report.row("host.shared_memory")["remedy"]
    )


@pytest.mark.parametrize(
    ("machine", "check", "status", "found", "remedy"),
    [
        ({"driver": "470.82.01"}, "host.driver", "FAIL", "older than 535.161.08", "update"),
        ({"cuda": "12.4"}, "host.driver", "WARN", "supports CUDA 12.4", "cuda-compat"),
        ({"used": 40000}, "host.gpus", "WARN", "in use by other programs: GPU 0", "nvidia-smi"),
    ],
)
def test_gpus_that_do_not_suit(preflight, gpu_host, machine, check, status, found, remedy):
    gpu_host(**machine)
    report = preflight()
    assert report.bad() == {check: status}
    assert found in report.row(check)["found"] and remedy in report.row(check)["remedy"]


def test_fewer_gpus_than_asked_for(preflight, gpu_host, monkeypatch):
    gpu_host(count=2)
    monkeypatch.setenv("NGPUS_PER_NODE", "4")
    only_failure(preflight(), "host.gpus", "2 GPU(s), NGPUS_PER_NODE=4", "set NGPUS_PER_NODE=2")


# ----------------------------------------------------------------------------------------------------------- megatron
@pytest.fixture
def hy3(monkeypatch, tmp_path, healthy):
    """The other model's run on 16 nodes: released sizes, no weights of note, text data, verl's own reward."""
    folder = tmp_path / "hy3"
    folder.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        (folder / name).write_bytes((Path(healthy["MODEL_PATH"]) / name).read_bytes())
    (folder / "chat_template.jinja").write_text("{{ messages[0]['content'] }}")
    sparse_weights(folder / "model.safetensors", 1000)
    shape = {
        "model_type": "hy_v3", "num_hidden_layers": 80, "hidden_size": 4096, "num_attention_heads": 64, "head_dim": 128,
        "num_key_value_heads": 8, "num_experts": 192, "vocab_size": 120832, "eos_token_id": 120001,
        "max_position_embeddings": 32768,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(shape))
    for name in ("train", "val"):
        row = {
            "data_source": "math_dapo",
            "prompt": [{"role": "user", "content": "What is 1 + 1?"}],
            "reward_model": {"style": "rule", "ground_truth": "2"},
        }
        pq.write_table(pa.Table.from_pylist([row] * 128), tmp_path / f"{name}.parquet")
        monkeypatch.setenv(f"{name.upper()}_FILES", str(tmp_path / f"{name}.parquet"))
    for name in healthy:
        if name not in ("MODEL_PATH", "TRAIN_FILES", "VAL_FILES", "OUTPUT_DIR", "HF_HOME"):
            monkeypatch.delenv(name)
    for name, value in {"GPU_MEMORY_GIB": "96", "HOST_MEMORY_GIB": "2000", "MODEL_PATH": str(folder)}.items():
        monkeypatch.setenv(name, value)


MEGATRON = ("--path", "megatron", "--except", "host")


def test_megatron_layout_without_alarm(preflight, hy3):
    report = preflight(*MEGATRON)
    assert report.bad() == {}, report.bad()
    assert "verl's own rules" in report.row("data.task_types")["found"] and "reward.calls" in report.not_checked
    assert {"megatron.world", "megatron.experts", "megatron.actor_budget"} <= {row["check"] for row in report.results}


@pytest.mark.parametrize(
    ("settings", "check", "remedy"),
    [
        ({"NNODES": "12"}, "megatron.world", "NNODES"),
        ({"TRAIN_PP": "1", "TRAIN_CP": "1", "TRAIN_EP": "7"}, "megatron.experts", "TRAIN_EP"),
        ({"TRAIN_PP": "32", "TRAIN_CP": "4", "TRAIN_EP": "4"}, "megatron.layers", "TRAIN_PP"),
        ({"ACTOR_MAX_TOKENS_PER_GPU": "16"}, "megatron.actor_budget", "ACTOR_MAX_TOKENS_PER_GPU to 1280"),
        ({"ROLLOUT_TP": "4"}, "megatron.rollout_weights", "ROLLOUT_TP"),
    ],
)
def test_megatron_layouts_that_do_not_fit(preflight, hy3, monkeypatch, settings, check, remedy):
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    report = preflight(*MEGATRON)
    assert report.bad().get(check) == "FAIL" and remedy in report.row(check)["remedy"]


def test_megatron_needs_its_own_model(preflight, hy3, monkeypatch, tiny_model):
    monkeypatch.setenv("MODEL_PATH", str(tiny_model))
    report = preflight(*MEGATRON)
    assert report.bad()["model.config"] == "FAIL" and "hy_v3 checkpoint" in report.row("model.config")["remedy"]
