"""What to run: a plan, and the launcher settings it means. Pure but for reading the launcher's list of settings."""

from __future__ import annotations

import argparse
import math
import re
from dataclasses import asdict, dataclass, field
from pathlib import Path

from gpu_step_lib.floor import ROOT, Work, image_rule, page_patches

LAUNCHER = ROOT / "train_grpo.sh"
REWARD = Path(__file__).resolve().with_name("varying_reward.py")
PROMPT_TEXT_TOKENS = 64
"""Room for the question and the chat template around the image tokens."""
LONG_RUN_STEPS, LONG_RUN_RESPONSE = 20, 8192

PLAIN_SETTINGS = ("USE_REMOVE_PADDING=False", "USE_FUSED_KERNELS=False", "HYOCR_DISABLE=P1")
"""``--plain``: the settings that switch the kit's optimisations off."""

DEFAULTS = {
    "released": dict(prompts=32, group_size=8, page=(800, 1000), response_tokens=512, steps=3, token_budget=16384),
    "tiny": dict(prompts=2, group_size=2, page=(96, 64), response_tokens=8, steps=2, token_budget=2048),
}
SIZE_SETTINGS = {
    "released": dict(AGENT_WORKERS="4", REWARD_WORKERS="2"),
    "tiny": dict(
        AGENT_WORKERS="1",
        REWARD_WORKERS="1",
        DATALOADER_WORKERS="0",
        MAX_NUM_SEQS="16",
        GPU_MEMORY_UTILIZATION="0.3",
        ENFORCE_EAGER="True",
        WEIGHT_BUCKET_MB="128",
        PARAM_OFFLOAD="False",
        OPTIMIZER_OFFLOAD="False",
        GRADIENT_CHECKPOINTING="False",
    ),
}
MODEL_LEN = {"released": 16384, "tiny": 256}
"""The engine's context, at least. The launcher prefills as many tokens at a time: the released size has its default."""
FIXED_LENGTHS = "actor_rollout_ref.rollout.ignore_eos=True"


class PlanError(ValueError):
    """The options contradict each other; the message says which and what to do."""


@dataclass(frozen=True)
class Plan:
    """A benchmark run. ``settings`` and ``overrides`` are the user's and win over everything else."""

    size: str
    prompts: int
    group_size: int
    page: tuple[int, int]
    response_tokens: int
    steps: int
    gpus: int
    rollout_tp: int
    token_budget: int
    logprob_token_budget: int
    plain: bool = False
    long_run: bool = False
    settings: dict[str, str] = field(default_factory=dict)
    overrides: tuple[str, ...] = ()

    @property
    def prompt_length(self) -> int:
        """Prompt tokens that the run allows: the page's image tokens and some text, rounded up."""
        return math.ceil((image_rule(self.size).tokens(*self.page) + PROMPT_TEXT_TOKENS) / 128) * 128

    @property
    def max_num_seqs(self) -> int:
        return int(self.launcher_settings().get("MAX_NUM_SEQS", 256))

    def work(self, prompt_tokens: float, response_tokens: float) -> Work:
        return Work(
            prompts=self.prompts,
            group=self.group_size,
            prompt_tokens=prompt_tokens,
            response_tokens=response_tokens,
            patches=page_patches(self.size, *self.page),
            gpus=self.gpus,
            rollout_tp=self.rollout_tp,
            max_num_seqs=self.max_num_seqs,
        )

    def launcher_settings(self) -> dict[str, str]:
        """Settings of ``train_grpo.sh``, without paths."""
        longest = self.prompt_length + self.response_tokens
        found = {
            "START_RAY": "1",
            "NNODES": "1",
            "NGPUS_PER_NODE": str(self.gpus),
            "TRAIN_BATCH_SIZE": str(self.prompts),
            "PPO_MINI_BATCH_SIZE": str(self.prompts),
            "ROLLOUT_N": str(self.group_size),
            "ROLLOUT_TP": str(self.rollout_tp),
            "MAX_PROMPT_LENGTH": str(self.prompt_length),
            "MAX_RESPONSE_LENGTH": str(self.response_tokens),
            "MAX_MODEL_LEN": str(max(longest, MODEL_LEN[self.size])),
            "MAX_TOKENS_PER_GPU": str(max(self.token_budget, longest)),
            "LOGPROB_MAX_TOKENS_PER_GPU": str(max(self.logprob_token_budget, longest)),
            "TOTAL_STEPS": str(self.steps),
            "TOTAL_EPOCHS": str(self.steps),
            "VAL_BEFORE_TRAIN": "False",
            "TEST_FREQ": "-1",
            "SAVE_FREQ": "-1",
            "SAVE_HF_MODEL": "0",
            "RESUME_MODE": "disable",
            "LOGGERS": "console,file",
            "REWARD_FN_PATH": str(REWARD),
            "REWARD_FN_NAME": "compute_score",
            **SIZE_SETTINGS[self.size],
        }
        if self.plain:
            found.update(setting.split("=", 1) for setting in PLAIN_SETTINGS)
        return {**found, **self.settings}

    def hydra(self) -> list[str]:
        return [FIXED_LENGTHS, *self.overrides]

    def to_json(self) -> dict:
        return {**asdict(self), "page": list(self.page), "overrides": list(self.overrides)}


def launcher_knobs(text: str) -> set[str]:
    """Names of the settings that the launcher declares."""
    return set(re.findall(r"^knob ([A-Z][A-Z0-9_]*) ", text, re.M))


def page_size(text: str) -> tuple[int, int]:
    """``"800x1000"`` -> ``(800, 1000)``, for argparse."""
    match = re.fullmatch(r"(\d+)[xX](\d+)", text)
    if not match or not (int(match[1]) and int(match[2])):
        raise argparse.ArgumentTypeError(f"must be WIDTHxHEIGHT in pixels, such as 800x1000, got {text!r}")
    return int(match[1]), int(match[2])


def setting(text: str) -> tuple[str, str]:
    """``"NAME=VALUE"`` of a launcher setting, for argparse."""
    name, equals, value = text.partition("=")
    if not equals or not re.fullmatch(r"[A-Z][A-Z0-9_]*", name):
        raise argparse.ArgumentTypeError(f"must be NAME=VALUE with a launcher setting's name, got {text!r}")
    return name, value


def make_plan(args: argparse.Namespace, gpus_found: int, overrides: list[str]) -> Plan:
    """The plan of parsed options.

    Args:
        args: of ``gpu_step.py``; options that were not given are None.
        gpus_found: GPUs of this machine, 0 on a CPU.
        overrides: what followed ``--``.

    Raises:
        PlanError: the options contradict each other or the launcher.
    """
    chosen = dict(DEFAULTS[args.size])
    if args.rows is not None:
        chosen.update(steps=LONG_RUN_STEPS, response_tokens=LONG_RUN_RESPONSE)
    chosen.update({name: getattr(args, name) for name in chosen if getattr(args, name) is not None})
    if args.rows is not None:
        if args.prompts is not None:
            raise PlanError("--rows and --prompts both say how many samples a step has; give one of them")
        if args.rows % chosen["group_size"]:
            raise PlanError(f"--rows {args.rows} must be a multiple of --group-size {chosen['group_size']}")
        chosen["prompts"] = args.rows // chosen["group_size"]
    gpus = args.gpus if args.gpus is not None else max(1, gpus_found)
    if gpus_found and gpus > gpus_found:
        raise PlanError(f"--gpus {gpus}: this machine has {gpus_found}")
    if gpus % args.rollout_tp:
        raise PlanError(f"--rollout-tp {args.rollout_tp} must divide --gpus {gpus}")
    samples = chosen["prompts"] * chosen["group_size"]
    if samples % gpus:
        raise PlanError(
            f"{chosen['prompts']} prompts x {chosen['group_size']} = {samples} samples must be a multiple of {gpus} GPUs"
        )
    settings = dict(args.set)
    unknown = sorted(set(settings) - launcher_knobs(LAUNCHER.read_text(encoding="utf-8")))
    if unknown:
        raise PlanError(
            f"--set {', '.join(unknown)}: no setting of train_grpo.sh (bash train_grpo.sh --help lists them)"
        )
    owned = sorted(
        set(settings) & {"MODEL_PATH", "TRAIN_FILES", "VAL_FILES", "OUTPUT_DIR", "PROJECT_NAME", "EXPERIMENT_NAME"}
    )
    if owned:
        raise PlanError(f"--set {', '.join(owned)}: the benchmark sets this itself; use --out and --inputs for folders")
    return Plan(
        **chosen,
        size=args.size,
        gpus=gpus,
        rollout_tp=args.rollout_tp,
        logprob_token_budget=args.logprob_token_budget or chosen["token_budget"],
        plain=args.plain,
        long_run=args.rows is not None,
        settings=settings,
        overrides=tuple(overrides),
    )
