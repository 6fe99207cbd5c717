"""The launcher's help, dry run and refusals. Nothing here starts Ray."""

from __future__ import annotations

import fcntl
import os
import subprocess
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml


def launch(root: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess:
    """Run train_grpo.sh with only the given settings in the environment."""
    keep = {name: os.environ[name] for name in ("PATH", "HOME", "VIRTUAL_ENV", "PYTHON") if name in os.environ}
    keep.setdefault("PYTHON", os.sys.executable)
    return subprocess.run(
        ["bash", str(root / "train_grpo.sh"), *arguments],
        env={**keep, "VERL_PLATFORM": "cpu", "HF_HUB_OFFLINE": "1", **environment},
        capture_output=True,
        text=True,
        timeout=300,
        stdin=subprocess.DEVNULL,
    )


def write_rows(path: Path, *task_types: str) -> Path:
    """A parquet with what the launcher's own checks read."""
    rows = [{"data_source": name, "extra_info": {"task_type": name}} for name in task_types]
    pq.write_table(pa.Table.from_pylist(rows), path)
    return path


@pytest.fixture
def real_run(tiny_model, tmp_path) -> dict[str, str]:
    """Settings of a run that passes every check that needs no cluster."""
    parquet = write_rows(tmp_path / "train.parquet", "Parsing")
    return {
        "MODEL_PATH": str(tiny_model),
        "TRAIN_FILES": str(parquet),
        "VAL_FILES": str(parquet),
        "OUTPUT_DIR": str(tmp_path / "out"),
        "NGPUS_PER_NODE": "1",
    }


def test_help_lists_every_setting_with_its_published_default(kit_root):
    result = launch(kit_root, "--help")
    assert result.returncode == 0
    defaults = {
        line.split()[0]: line.split()[1]
        for line in result.stdout.splitlines()
        if line.startswith("  ") and line.split()
    }
    published = {
        "NGPUS_PER_NODE": "8",
        "PROJECT_NAME": "hyocr_1_5_verl",
        "EXPERIMENT_NAME": "hyocr_1_5_grpo",
        "RM_SYSTEM_JUDGE_MODEL_NAME": "Qwen/Qwen3-30B-A3B",
        "TRAIN_BATCH_SIZE": "128",
        "PPO_MINI_BATCH_SIZE": "128",
        "ROLLOUT_N": "16",
        "MAX_PROMPT_LENGTH": "8192",
        "MAX_RESPONSE_LENGTH": "8192",
        "MAX_MODEL_LEN": "16384",
        "MAX_TOKENS_PER_GPU": "16384",
        "LOGPROB_MAX_TOKENS_PER_GPU": "16384",
        "USE_DYNAMIC_BSZ": "True",
        "BALANCE_BATCH": "True",
        "MAX_IMAGES": "5",
        "ACTOR_LR": "1e-6",
        "USE_KL_LOSS": "True",
        "KL_LOSS_COEF": "0.001",
        "KL_LOSS_TYPE": "low_var_kl",
        "CLIP_RATIO_LOW": "0.2",
        "CLIP_RATIO_HIGH": "0.28",
        "CLIP_RATIO_C": "1.5",
        "ROLLOUT_IS": "token",
        "ROLLOUT_IS_THRESHOLD": "0.2_5.0",
        "PARAM_OFFLOAD": "True",
        "OPTIMIZER_OFFLOAD": "True",
        "TEMPERATURE": "1.0",
        "TOP_P": "1.0",
        "TOP_K": "-1",
        "ROLLOUT_TP": "1",
        "GPU_MEMORY_UTILIZATION": "0.6",
        "MAX_NUM_SEQS": "256",
        "ENABLE_CHUNKED_PREFILL": "False",
        "FREE_CACHE_ENGINE": "True",
        "CALCULATE_LOG_PROBS": "True",
        "SAVE_FREQ": "25",
        "RESUME_MODE": "auto",
        "SAVE_HF_MODEL": "1",
        "LOGGERS": "console,tensorboard,file",
    }
    assert {name: defaults.get(name) for name in published} == published


def test_dry_run_prints_the_command_and_the_checked_configuration(kit_root, real_run):
    result = launch(kit_root, "--dry-run", "--", "trainer.save_freq=7", **real_run)
    assert result.returncode == 0, result.stderr[-2000:]
    command, _, rest = result.stdout.partition("\n\n")
    assert "-m verl_hyocr.main" in command and command.rstrip().endswith("trainer.save_freq=7")
    config = yaml.safe_load(rest[rest.index("actor_rollout_ref:") :])
    assert config["trainer"]["save_freq"] == 7
    assert config["actor_rollout_ref"]["model"]["external_lib"] == "verl_hyocr.activate"
    assert config["actor_rollout_ref"]["rollout"]["engine_kwargs"]["vllm"]["mm_processor_kwargs"] == {"backend": "pil"}
    assert config["algorithm"]["rollout_correction"]["rollout_is_threshold"] == "0.2_5.0"
    assert not (Path(real_run["OUTPUT_DIR"]) / "hyocr_1_5_verl").exists(), "a dry run must not create the run folder"


def test_dry_run_of_the_demo_builds_nothing(kit_root, tmp_path):
    result = launch(kit_root, "--dry-run", DEMO_DIR=str(tmp_path / "demo"))
    assert result.returncode == 0, result.stderr[-2000:]
    assert "running the embedded demo" in result.stdout
    assert not (tmp_path / "demo" / "model").exists()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"MODEL_PATH": "/nowhere"}, "MODEL_PATH=/nowhere has no config.json"),
        ({"MODEL_PATH": ""}, "TRAIN_FILES is set but MODEL_PATH is not"),
        ({"TRAIN_FILES": ""}, "MODEL_PATH is set but TRAIN_FILES is not"),
        ({"TRAIN_FILES": "/nowhere.parquet"}, "data file not found: /nowhere.parquet"),
        ({"VAL_FILES": "/nowhere.parquet"}, "data file not found: /nowhere.parquet"),
        ({"REWARD_FN_PATH": "/nowhere.py"}, "REWARD_FN_PATH=/nowhere.py does not exist"),
        ({"NNODES": "0"}, "NNODES must be a positive integer, got '0'"),
        ({"ROLLOUT_N": "four"}, "ROLLOUT_N must be a positive integer, got 'four'"),
        ({"ACTOR_LR": "fast"}, "ACTOR_LR must be a number, got 'fast'"),
        ({"USE_KL_LOSS": "maybe"}, "USE_KL_LOSS must be True or False, got 'maybe'"),
        ({"SAVE_HF_MODEL": "2"}, "SAVE_HF_MODEL must be 0 or 1"),
        ({"PPO_MINI_BATCH_SIZE": "100"}, "PPO_MINI_BATCH_SIZE=100 must divide TRAIN_BATCH_SIZE=128"),
        ({"MAX_MODEL_LEN": "9000"}, "is below prompt + response = 16384"),
        ({"MAX_TOKENS_PER_GPU": "8192"}, "cannot hold the longest sample (16384 tokens)"),
        ({"ROLLOUT_TP": "3", "NGPUS_PER_NODE": "8"}, "ROLLOUT_TP=3 must divide NGPUS_PER_NODE=8"),
        ({"NGPUS_PER_NODE": "7"}, "must be a multiple of the 7 workers"),
        ({"RESUME_MODE": "sometimes"}, "RESUME_MODE must be auto, disable or a global_step_N folder"),
        ({"START_RAY": "1", "NNODES": "2"}, "START_RAY=1 starts a single node"),
    ],
)
def test_wrong_settings_end_in_one_clear_line(kit_root, real_run, settings, message):
    result = launch(kit_root, **{**real_run, **settings})
    assert result.returncode == 2
    assert message in result.stderr
    assert result.stderr.strip().splitlines()[-1].startswith("train_grpo.sh: ")


def test_unknown_argument_points_to_hydra(kit_root, real_run):
    result = launch(kit_root, "trainer.save_freq=5", **real_run)
    assert result.returncode == 2 and "Hydra overrides go after --" in result.stderr


def test_busy_run_folder_is_refused(kit_root, real_run, tmp_path):
    folder = Path(real_run["OUTPUT_DIR"]) / "hyocr_1_5_verl" / "hyocr_1_5_grpo"
    folder.mkdir(parents=True)
    with open(folder / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        result = launch(kit_root, **real_run)
    assert result.returncode == 2 and "another run is writing to" in result.stderr


def test_existing_checkpoints_are_not_overwritten(kit_root, real_run):
    folder = Path(real_run["OUTPUT_DIR"]) / "hyocr_1_5_verl" / "hyocr_1_5_grpo" / "ckpt" / "global_step_3"
    folder.mkdir(parents=True)
    result = launch(kit_root, RESUME_MODE="disable", **real_run)
    assert result.returncode == 2 and "would overwrite them" in result.stderr and folder.is_dir()


def test_judge_task_without_a_judge_is_named_before_anything_starts(kit_root, real_run, tmp_path):
    data = write_rows(tmp_path / "vqa.parquet", "Parsing", "VQA", "IE")
    result = launch(kit_root, **{**real_run, "TRAIN_FILES": str(data)}, RAY_ADDRESS="127.0.0.1:1")
    assert result.returncode == 2
    row = next(line for line in result.stdout.splitlines() if line.startswith("FAIL  judge.routes"))
    assert "VQA need a judge" in row and "Qwen/Qwen3-30B-A3B" in row


def test_unreachable_ray_is_named_before_anything_starts(kit_root, real_run):
    result = launch(kit_root, RAY_ADDRESS="127.0.0.1:1", **real_run)
    assert result.returncode == 2
    row, _, rest = result.stdout.partition("FAIL  ray.address")[2].partition("\n")
    assert "no usable Ray cluster at RAY_ADDRESS=127.0.0.1:1" in row
    assert "start_ray.sh local" in rest.splitlines()[0], "the remedy"


@pytest.mark.parametrize(
    ("override", "reason"),
    [
        ("actor_rollout_ref.model.use_liger=True", "use_liger"),
        ("actor_rollout_ref.actor.fsdp_config.ulysses_sequence_parallel_size=2", "Ulysses"),
        ("actor_rollout_ref.ref.ulysses_sequence_parallel_size=2", "Ulysses"),
        ("+data.mm_processor_kwargs.use_fast=True", "torchvision image processor"),
        (
            "+actor_rollout_ref.rollout.engine_kwargs.vllm.mm_processor_kwargs.backend=torchvision",
            "torchvision image processor",
        ),
        (
            "+actor_rollout_ref.rollout.engine_kwargs.vllm.worker_extension_cls="
            "verl.workers.rollout.vllm_rollout.utils.vLLMColocateWorkerExtension",
            "keep old position tables",
        ),
        ("actor_rollout_ref.rollout.name=sglang", "run on vllm only"),
        ("actor_rollout_ref.rollout.max_model_len=100", "below prompt + response"),
        ("data.no_such_key=1", "no_such_key"),
    ],
)
def test_what_would_train_wrongly_is_refused_with_the_reason(kit_root, real_run, override, reason):
    result = launch(kit_root, "--dry-run", "--", override, **real_run)
    assert result.returncode == 2
    assert reason in result.stderr


def test_the_fused_head_needs_its_adaptation(kit_root, real_run):
    result = launch(kit_root, "--dry-run", HYOCR_DISABLE="P2", **real_run)
    assert result.returncode == 2 and "fused forward" in result.stderr
    result = launch(kit_root, "--dry-run", HYOCR_DISABLE="P2", USE_FUSED_KERNELS="False", **real_run)
    assert result.returncode == 0, result.stderr


def test_packing_is_refused_where_samples_would_see_each_other(kit_root, real_run):
    packed = "actor_rollout_ref.model.use_remove_padding=True"
    result = launch(kit_root, "--dry-run", "--", packed, HYOCR_DISABLE="C1", **real_run)
    assert result.returncode == 2 and "packed samples would attend to each other" in result.stderr
    eager = "+actor_rollout_ref.model.override_config.attn_implementation=eager"
    result = launch(kit_root, "--dry-run", "--", packed, eager, **real_run)
    assert result.returncode == 2 and "attn_implementation=eager" in result.stderr
    assert launch(kit_root, "--dry-run", "--", packed, **real_run).returncode == 0


def test_second_model_runner_is_refused(kit_root, real_run):
    result = launch(kit_root, "--dry-run", VLLM_USE_V2_MODEL_RUNNER="1", **real_run)
    assert result.returncode == 2 and "second model runner" in result.stderr


def test_cluster_shortage_names_the_nodes():
    from utils.cluster_check import shortage

    nodes = [
        {"alive": True, "ip": "10.0.0.1", "resources": {"GPU": 8.0}},
        {"alive": True, "ip": "10.0.0.2", "resources": {"GPU": 4.0}},
        {"alive": False, "ip": "10.0.0.3", "resources": {}},
    ]
    assert shortage(nodes, 1, 8) is None
    reason = shortage(nodes, 2, 8)
    assert "10.0.0.1: 8 GPU" in reason and "10.0.0.2: 4 GPU" in reason and "10.0.0.3" not in reason


def test_forwarded_variables_are_the_needed_ones():
    from verl_hyocr.launch_env import collect

    environ = {"JUDGE_DEADLINE_S": "60", "RLB_ENABLE": "1", "VERL_PLATFORM": "cpu", "SECRET": "x", "PATH": "/bin"}
    assert collect(environ) == {"JUDGE_DEADLINE_S": "60", "RLB_ENABLE": "1", "VERL_PLATFORM": "cpu"}
    assert collect({"HYOCR_FORWARD": "MY_KEY", "MY_KEY": "k"}) == {"HYOCR_FORWARD": "MY_KEY", "MY_KEY": "k"}
    assert collect({}) == {}


def test_exported_network_variables_reach_the_workers(kit_root, real_run):
    """Only those of the allow-list, only when the user exported them, NCCL_DEBUG too (which verl's own filter drops)."""
    result = launch(kit_root, "--dry-run", **real_run, NCCL_DEBUG="INFO", NCCL_IB_HCA="mlx5_0", NCCL_NOT_LISTED="1")
    assert result.returncode == 0, result.stderr[-2000:]
    rest = result.stdout.partition("\n\n")[2]
    forwarded = yaml.safe_load(rest[rest.index("actor_rollout_ref:") :])["ray_kwargs"]["ray_init"]["runtime_env"][
        "env_vars"
    ]
    assert forwarded["NCCL_DEBUG"] == "INFO" and forwarded["NCCL_IB_HCA"] == "mlx5_0"
    assert "NCCL_NOT_LISTED" not in forwarded and "NCCL_ALGO" not in forwarded
