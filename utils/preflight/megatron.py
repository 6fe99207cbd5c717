"""Rules of the Megatron path: do the parallel sizes, the lengths and the model fit each other and the cluster?

    TRAIN_PP=16 TRAIN_EP=8 … python -m utils.preflight.megatron [--json]      (the variables of run_hy_v3_megatron.sh)

Exit code 0 when the layout can run, 1 when it cannot, 2 when a variable cannot be read.

Pure functions. Each ``check_*(settings)`` returns a list of :class:`Finding`; :func:`check_all` runs them all. Nothing
is imported but the standard library, nothing is read but ``config.json`` in :func:`read_model`.

Megatron builds two grids over the same GPUs. Attention and dense layers live on TP x CP x DP x PP, experts on
ETP x EP x EDP x PP, and both must fill the world: TP*CP*PP and ETP*EP*PP each divide the number of GPUs.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple

GIB = 1024**3
WEIGHT_BYTES = 2
"""bf16 weights, in training and rollout."""
GRAD_BYTES = 4
"""Megatron's gradient buffers are fp32."""
OPTIMIZER_BYTES = 12
"""fp32 master weight and two Adam moments."""


class Finding(NamedTuple):
    """Result of one rule.

    Attributes:
        name: short id, e.g. ``"experts"``.
        ok: False when the run cannot work.
        message: what was compared, with the numbers; when a rule could not be applied it says so.
        remedy: which setting to change and to what; empty when ``ok``.
    """

    name: str
    ok: bool
    message: str
    remedy: str


@dataclass(frozen=True)
class ModelShape:
    """The sizes of a HYV3 checkpoint that parallelism depends on; defaults are the released Hy3 (295B parameters)."""

    num_layers: int = 80
    num_dense_layers: int = 1
    hidden_size: int = 4096
    ffn_size: int = 13312
    num_heads: int = 64
    num_kv_heads: int = 8
    head_dim: int = 128
    vocab_size: int = 120832
    num_experts: int = 192
    num_shared_experts: int = 1
    expert_ffn_size: int = 1536
    tied_embeddings: bool = False

    @property
    def expert_parameters(self) -> int:
        """Parameters of all routed experts."""
        return self.num_sparse_layers * self.num_experts * 3 * self.hidden_size * self.expert_ffn_size

    @property
    def num_sparse_layers(self) -> int:
        return self.num_layers - self.num_dense_layers

    @property
    def dense_parameters(self) -> int:
        """Everything else but embeddings and head; norms are left out (below 0.01%)."""
        attention = self.hidden_size * self.head_dim * (2 * self.num_heads + 2 * self.num_kv_heads)
        shared = self.num_shared_experts * 3 * self.hidden_size * self.expert_ffn_size
        router = self.hidden_size * self.num_experts
        return (
            self.num_layers * attention
            + self.num_dense_layers * 3 * self.hidden_size * self.ffn_size
            + self.num_sparse_layers * (shared + router)
        )

    @property
    def embedding_parameters(self) -> int:
        return self.vocab_size * self.hidden_size * (1 if self.tied_embeddings else 2)

    @property
    def parameters(self) -> int:
        return self.expert_parameters + self.dense_parameters + self.embedding_parameters


@dataclass(frozen=True)
class MegatronSettings:
    """What the rules look at; defaults are those of ``run_hy_v3_megatron.sh``.

    Attributes:
        nodes, gpus_per_node: the cluster.
        tp, pp, cp, ep, etp: training's tensor, pipeline, context, expert and expert-tensor parallel size. ``etp`` 0
            means "as tp", which is Megatron's default.
        first_stage_layers, last_stage_layers: layers of an uneven first or last pipeline stage; 0: even.
        actor_tokens_per_gpu, log_prob_tokens_per_gpu: token budgets of a micro-batch on one GPU.
        dynamic_batch: whether micro-batches are packed by those budgets.
        micro_batch: samples of a micro-batch on one GPU without dynamic batching.
        optimizer_on_gpu: whether the optimizer state is on the GPU during the update.
        rollout_tp: GPUs of one vLLM replica. rollout_memory: its share of the GPU's memory, 0 to 1.
        gpu_gib, host_gib: memory of one GPU and of one node in GiB; 0: unknown, rules about memory say so.
    """

    nodes: int = 16
    gpus_per_node: int = 8
    tp: int = 1
    pp: int = 16
    cp: int = 8
    ep: int = 8
    etp: int = 1
    first_stage_layers: int = 0
    last_stage_layers: int = 0
    max_prompt_length: int = 2048
    max_response_length: int = 8192
    max_model_len: int = 10240
    actor_tokens_per_gpu: int = 30720
    log_prob_tokens_per_gpu: int = 40960
    dynamic_batch: bool = True
    micro_batch: int = 2
    train_batch_size: int = 128
    mini_batch_size: int = 128
    rollout_n: int = 16
    optimizer_on_gpu: bool = True
    rollout_tp: int = 16
    rollout_memory: float = 0.65
    gpu_gib: float = 0.0
    host_gib: float = 0.0
    model: ModelShape = ModelShape()

    @property
    def world(self) -> int:
        return self.nodes * self.gpus_per_node

    @property
    def expert_tp(self) -> int:
        return self.etp or self.tp

    @property
    def dp(self) -> int:
        """Data-parallel size of attention and dense layers; 0 when the grid does not fit."""
        return self.world // (self.tp * self.pp * self.cp)

    @property
    def longest(self) -> int:
        return self.max_prompt_length + self.max_response_length


ENVIRONMENT: dict[str, str] = {
    "nodes": "NNODES",
    "gpus_per_node": "NGPUS_PER_NODE",
    "tp": "TRAIN_TP",
    "pp": "TRAIN_PP",
    "cp": "TRAIN_CP",
    "ep": "TRAIN_EP",
    "etp": "TRAIN_ETP",
    "first_stage_layers": "FIRST_STAGE_LAYERS",
    "last_stage_layers": "LAST_STAGE_LAYERS",
    "max_prompt_length": "MAX_PROMPT_LENGTH",
    "max_response_length": "MAX_RESPONSE_LENGTH",
    "max_model_len": "MAX_MODEL_LEN",
    "actor_tokens_per_gpu": "ACTOR_MAX_TOKENS_PER_GPU",
    "log_prob_tokens_per_gpu": "LOGPROB_MAX_TOKENS_PER_GPU",
    "dynamic_batch": "USE_DYNAMIC_BSZ",
    "micro_batch": "MICRO_BATCH_SIZE",
    "train_batch_size": "TRAIN_BATCH_SIZE",
    "mini_batch_size": "PPO_MINI_BATCH_SIZE",
    "rollout_n": "ROLLOUT_N",
    "rollout_tp": "ROLLOUT_TP",
    "rollout_memory": "GPU_MEMORY_UTILIZATION",
    "gpu_gib": "GPU_MEMORY_GIB",
    "host_gib": "HOST_MEMORY_GIB",
}
"""Field of :class:`MegatronSettings` to the variable of ``run_hy_v3_megatron.sh`` that sets it; remedies name these."""


def read_model(folder: str | Path) -> ModelShape:
    """Sizes from a HuggingFace folder's ``config.json`` (HYV3, released or transformers' key names).

    Raises:
        ValueError: no readable ``config.json``, or another architecture.
    """
    path = Path(folder) / "config.json"
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"{path} cannot be read ({error.strerror}): is MODEL_PATH a HuggingFace folder?") from error
    except ValueError as error:
        raise ValueError(f"{path} is no JSON: {error}") from error
    if raw.get("model_type") != "hy_v3":
        raise ValueError(f"{path}: model_type is {raw.get('model_type')!r}; the Megatron path is for 'hy_v3'")
    missing = [
        key for key in ("num_hidden_layers", "hidden_size", "num_attention_heads", "num_experts") if key not in raw
    ]
    if missing:
        raise ValueError(f"{path} lacks {', '.join(missing)}")
    layers = raw["num_hidden_layers"]
    kinds = raw.get("mlp_layer_types")
    dense = kinds.count("dense") if kinds else raw.get("first_k_dense_replace", 1)
    return ModelShape(
        num_layers=layers,
        num_dense_layers=min(dense, layers),
        hidden_size=raw["hidden_size"],
        ffn_size=raw.get("intermediate_size", 13312),
        num_heads=raw["num_attention_heads"],
        num_kv_heads=raw.get("num_key_value_heads", raw["num_attention_heads"]),
        head_dim=raw.get("head_dim") or raw["hidden_size"] // raw["num_attention_heads"],
        vocab_size=raw.get("vocab_size", 120832),
        num_experts=raw["num_experts"],
        num_shared_experts=raw.get("num_shared_experts", 1) or 0,
        expert_ffn_size=raw.get("moe_intermediate_size", raw.get("expert_hidden_dim", 1536)),
        tied_embeddings=bool(raw.get("tie_word_embeddings", False)),
    )


def settings_from_environment(environ: Mapping[str, str], **known: Any) -> MegatronSettings:
    """Settings from the variables of ``run_hy_v3_megatron.sh``; unset or empty ones keep its defaults.

    ``MAX_MODEL_LEN`` defaults to prompt + response, as in the script.

    Args:
        environ: usually ``os.environ``. ``MODEL_PATH``, when it is a local folder, gives the model's sizes.
        known: fields that are already known, e.g. ``gpu_gib`` from the driver; they yield to ``environ``.

    Raises:
        ValueError: naming the variable that is no number, or an unusable ``MODEL_PATH``.
    """
    values = dict(known)
    kinds = {field.name: field.type for field in fields(MegatronSettings)}
    for name, variable in ENVIRONMENT.items():
        text = environ.get(variable, "").strip()
        if not text:
            continue
        if kinds[name] == "bool":
            if text.lower() not in ("true", "false", "1", "0"):
                raise ValueError(f"{variable} must be True or False, got {text!r}")
            values[name] = text.lower() in ("true", "1")
            continue
        try:
            values[name] = float(text) if kinds[name] == "float" else int(text)
        except ValueError as error:
            raise ValueError(f"{variable} must be a number, got {text!r}") from error
    if not environ.get("MAX_MODEL_LEN", "").strip() and "max_model_len" not in values:
        values["max_model_len"] = MegatronSettings(**values).longest
    path = environ.get("MODEL_PATH", "")
    if path and "model" not in values and Path(path).expanduser().is_dir():
        values["model"] = read_model(Path(path).expanduser())
    return MegatronSettings(**values)


def _finding(name: str, ok: bool, message: str, remedy: str) -> Finding:
    return Finding(name, bool(ok), message, "" if ok else remedy)


def check_sizes(settings: MegatronSettings) -> list[Finding]:
    """Every count is positive; the other rules divide by them."""
    wrong = [
        f"{variable}={getattr(settings, name)}"
        for name, variable in ENVIRONMENT.items()
        if name not in ("etp", "first_stage_layers", "last_stage_layers", "dynamic_batch", "gpu_gib", "host_gib")
        and getattr(settings, name) <= 0
    ]
    wrong += [
        f"{ENVIRONMENT[name]}={getattr(settings, name)}"
        for name in ("etp", "first_stage_layers", "last_stage_layers")
        if getattr(settings, name) < 0
    ]
    if not 0 < settings.rollout_memory < 1:
        wrong.append(f"GPU_MEMORY_UTILIZATION={settings.rollout_memory}")
    return [
        _finding(
            "sizes",
            not wrong,
            "all sizes are positive" if not wrong else f"not usable: {', '.join(wrong)}",
            "set positive whole numbers, and a share between 0 and 1 for GPU_MEMORY_UTILIZATION",
        )
    ]


def check_world_size(settings: MegatronSettings) -> list[Finding]:
    """Both of Megatron's grids fill the GPUs: TP*PP*CP and ETP*EP*PP divide nodes x GPUs per node."""
    s, world = settings, settings.world
    dense, expert = s.tp * s.pp * s.cp, s.expert_tp * s.ep * s.pp
    remedy = "change NNODES x NGPUS_PER_NODE to a multiple, or lower {}"
    return [
        _finding(
            "world",
            world % dense == 0,
            f"TP {s.tp} x PP {s.pp} x CP {s.cp} = {dense}; the cluster has {s.nodes} x {s.gpus_per_node} = {world} GPUs",
            remedy.format("TRAIN_PP, TRAIN_CP or TRAIN_TP"),
        ),
        _finding(
            "expert world",
            world % expert == 0,
            f"ETP {s.expert_tp} x EP {s.ep} x PP {s.pp} = {expert}; the cluster has {world} GPUs",
            remedy.format("TRAIN_EP, TRAIN_ETP or TRAIN_PP"),
        ),
    ]


def check_model_split(settings: MegatronSettings) -> list[Finding]:
    """Experts divide by EP, layers by PP, heads and expert width by the tensor sizes."""
    s, m = settings, settings.model
    uneven = [part for part in (s.first_stage_layers, s.last_stage_layers) if part]
    layers, stages = m.num_layers - sum(uneven), s.pp - len(uneven)
    # With both ends set and no stage between, nothing may be left over.
    even = (layers >= 0 and layers % stages == 0) if stages > 0 else layers == 0
    found = [
        _finding(
            "experts",
            m.num_experts % s.ep == 0,
            f"{m.num_experts} experts on EP {s.ep}",
            f"set TRAIN_EP to a divisor of {m.num_experts}: {_divisors(m.num_experts, s.world)}",
        ),
        _finding(
            "layers",
            even,
            f"{layers} layers on {stages} {'even ' if uneven else ''}pipeline stages (PP {s.pp})",
            f"set TRAIN_PP to a divisor of {m.num_layers}: {_divisors(m.num_layers, s.world)}; or give the first or last "
            "stage a different number with FIRST_STAGE_LAYERS, LAST_STAGE_LAYERS",
        ),
        _finding(
            "heads",
            m.num_heads % s.tp == 0 and (m.num_kv_heads % s.tp == 0 or s.tp % m.num_kv_heads == 0),
            f"{m.num_heads} heads and {m.num_kv_heads} key-value heads on TP {s.tp}",
            f"set TRAIN_TP to a divisor of {m.num_kv_heads}: {_divisors(m.num_kv_heads, s.world)}",
        ),
        _finding(
            "expert width",
            m.expert_ffn_size % s.expert_tp == 0,
            f"experts of width {m.expert_ffn_size} on ETP {s.expert_tp}",
            f"set TRAIN_ETP to a divisor of {m.expert_ffn_size}; 1 keeps experts whole",
        ),
    ]
    return found


def check_token_budget(settings: MegatronSettings) -> list[Finding]:
    """budget x CP holds the longest sample, and the rollout's context does."""
    s = settings
    found = [
        _finding(
            "model length",
            s.max_model_len >= s.longest,
            f"context of the rollout {s.max_model_len}, prompt + response {s.longest}",
            f"set MAX_MODEL_LEN to {s.longest} or more",
        )
    ]
    if not s.dynamic_batch:
        return found
    need = -(-s.longest // s.cp)
    for name, variable, budget in (
        ("actor budget", "ACTOR_MAX_TOKENS_PER_GPU", s.actor_tokens_per_gpu),
        ("log-prob budget", "LOGPROB_MAX_TOKENS_PER_GPU", s.log_prob_tokens_per_gpu),
    ):
        found.append(
            _finding(
                name,
                budget * s.cp >= s.longest,
                f"{budget} tokens x CP {s.cp} = {budget * s.cp}; the longest sample has {s.longest}",
                f"set {variable} to {need} or more, or raise TRAIN_CP",
            )
        )
    return found


def check_batch(settings: MegatronSettings) -> list[Finding]:
    """Mini-batches divide the batch and spread evenly over data-parallel ranks."""
    s = settings
    found = [
        _finding(
            "mini-batch",
            s.train_batch_size % s.mini_batch_size == 0,
            f"{s.train_batch_size} prompts a step in mini-batches of {s.mini_batch_size}",
            f"set PPO_MINI_BATCH_SIZE to a divisor of {s.train_batch_size}",
        )
    ]
    if s.dp < 1:
        return found
    samples, unit = s.mini_batch_size * s.rollout_n, s.dp * (1 if s.dynamic_batch else s.micro_batch)
    found.append(
        _finding(
            "data parallel",
            samples % unit == 0,
            f"{samples} answers a mini-batch on {s.dp} data-parallel ranks"
            + ("" if s.dynamic_batch else f" in micro-batches of {s.micro_batch}"),
            f"make PPO_MINI_BATCH_SIZE x ROLLOUT_N a multiple of {unit}",
        )
    )
    return found


def check_rollout(settings: MegatronSettings) -> list[Finding]:
    """One vLLM replica: its GPUs, its share of heads and experts, and whether the weights fit."""
    s, m = settings, settings.model
    within = s.rollout_tp <= s.gpus_per_node and s.gpus_per_node % s.rollout_tp == 0
    whole_nodes = s.rollout_tp > s.gpus_per_node and s.rollout_tp % s.gpus_per_node == 0
    found = [
        _finding(
            "rollout GPUs",
            s.world % s.rollout_tp == 0 and (within or whole_nodes),
            f"rollout TP {s.rollout_tp} on {s.nodes} nodes with {s.gpus_per_node} GPUs",
            "set ROLLOUT_TP to a divisor of NGPUS_PER_NODE, or to a multiple of it (whole nodes) that divides "
            f"NNODES x NGPUS_PER_NODE = {s.world}",
        ),
        _finding(
            "rollout heads",
            _splits_for_vllm(m, s.rollout_tp),
            f"{m.num_heads} heads, {m.num_kv_heads} key-value heads, {m.num_experts} experts of width "
            f"{m.expert_ffn_size} on rollout TP {s.rollout_tp}",
            "set ROLLOUT_TP to a power of two that divides the heads and the expert width",
        ),
    ]
    weights = m.parameters * WEIGHT_BYTES / s.rollout_tp / GIB
    text = f"weights {m.parameters * WEIGHT_BYTES / GIB:.0f} GiB / rollout TP {s.rollout_tp} = {weights:.1f} GiB a GPU"
    if not s.gpu_gib:
        found.append(_finding("rollout weights", True, f"{text}; the GPU's memory is unknown: not checked", ""))
        return found
    share = s.gpu_gib * s.rollout_memory
    least = next(
        (
            tp
            for tp in _powers_of_two(s.world)
            if _splits_for_vllm(m, tp) and m.parameters * WEIGHT_BYTES / tp / GIB < share
        ),
        None,
    )
    found.append(
        _finding(
            "rollout weights",
            weights < share,
            f"{text}; the rollout may use {s.gpu_gib:.0f} GiB x {s.rollout_memory} = {share:.1f} GiB, cache included",
            (f"set ROLLOUT_TP to {least} or more" if least else f"no ROLLOUT_TP up to {s.world} fits: add nodes")
            + ", or raise GPU_MEMORY_UTILIZATION",
        )
    )
    return found


def check_training_memory(settings: MegatronSettings) -> list[Finding]:
    """Weights, gradients and optimizer state of one GPU; state of all GPUs of a node in host memory (offload)."""
    s, m = settings, settings.model
    expert_dp = max(1, s.world // (s.expert_tp * s.ep * s.pp))
    experts = m.expert_parameters / (s.expert_tp * s.ep * s.pp)
    # The heaviest stage has embeddings or head besides its layers.
    dense = m.dense_parameters / (s.tp * s.pp) + m.embedding_parameters / 2 / s.tp
    resident = (experts + dense) * (WEIGHT_BYTES + GRAD_BYTES)
    state = experts * OPTIMIZER_BYTES / expert_dp + dense * OPTIMIZER_BYTES / max(1, s.dp * s.cp)
    need = (resident + (state if s.optimizer_on_gpu else 0)) / GIB
    text = f"weights, gradients{' and optimizer state' if s.optimizer_on_gpu else ''} need {need:.1f} GiB a GPU"
    found = []
    if s.gpu_gib:
        found.append(
            _finding(
                "training memory",
                need < 0.9 * s.gpu_gib,
                f"{text} without activations; the GPU has {s.gpu_gib:.0f} GiB",
                "raise TRAIN_PP, TRAIN_EP or TRAIN_TP (with more nodes), or set OPTIMIZER_CPU_OFFLOAD=True",
            )
        )
    else:
        found.append(_finding("training memory", True, f"{text}; the GPU's memory is unknown: not checked", ""))
    host = (state + (experts + dense) * WEIGHT_BYTES) * s.gpus_per_node / GIB
    if s.host_gib:
        found.append(
            _finding(
                "host memory",
                host < 0.9 * s.host_gib,
                f"offloaded weights and optimizer state need {host:.0f} GiB a node; it has {s.host_gib:.0f} GiB",
                "add nodes, or set PARAM_OFFLOAD=False or OPTIMIZER_OFFLOAD=False if the GPUs have room",
            )
        )
    return found


def check_all(settings: MegatronSettings) -> list[Finding]:
    """All rules; only :func:`check_sizes` when sizes are not positive, as the others divide by them."""
    found = check_sizes(settings)
    if not found[0].ok:
        return found
    for rule in (
        check_world_size,
        check_model_split,
        check_token_budget,
        check_batch,
        check_rollout,
        check_training_memory,
    ):
        found += rule(settings)
    return found


def _powers_of_two(limit: int) -> list[int]:
    return [2**k for k in range(limit.bit_length()) if 2**k <= limit]


def _splits_for_vllm(model: ModelShape, tp: int) -> bool:
    kv_ok = model.num_kv_heads % tp == 0 or tp % model.num_kv_heads == 0
    return model.num_heads % tp == 0 and kv_ok and tp <= model.num_experts and model.expert_ffn_size % tp == 0


def _divisors(number: int, limit: int) -> str:
    return ", ".join(str(k) for k in range(1, min(number, limit) + 1) if number % k == 0)


def _gpu_gib() -> float:
    """Memory of this host's first GPU in GiB; 0 without one."""
    try:
        answer = subprocess.run(
            ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"],
            capture_output=True,
            text=True,
            timeout=30,
            check=True,
        ).stdout
        return float(answer.split()[0]) / 1024
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return 0.0


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        prog="python -m utils.preflight.megatron",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object a rule instead of text")
    args = parser.parse_args(argv)
    try:
        found = check_all(settings_from_environment(os.environ, gpu_gib=_gpu_gib()))
    except ValueError as error:
        print(f"preflight: {error}", file=sys.stderr)
        return 2
    for finding in found:
        if args.json:
            print(json.dumps(finding._asdict()))
        else:
            print(f"{'ok  ' if finding.ok else 'FAIL'} {finding.name}: {finding.message}")
            if not finding.ok:
                print(f"     {finding.remedy}")
    return 0 if all(finding.ok for finding in found) else 1


if __name__ == "__main__":
    sys.exit(main())
