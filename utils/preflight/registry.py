"""Every check, in the order of the report. A check is a function of the context that returns results."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from utils.preflight import (
    data,
    disk,
    host,
    judge,
    loggers,
    megatron_path,
    memory,
    model,
    network,
    numbers,
    ray_cluster,
    resume,
    reward,
    versions,
)
from utils.preflight.context import CLUSTER, LOCAL, Context
from utils.preflight.results import Result

FSDP, MEGATRON = "fsdp", "megatron"


@dataclass(frozen=True)
class Check:
    """A check.

    Attributes:
        name: id; results carry it, or it followed by a dot and a part.
        run: the check.
        stage: ``"local"``, ``"cluster"``, or ``"nodes"``: in both, for the nodes that the stage can see.
        paths: the training paths that it applies to.
    """

    name: str
    run: Callable[[Context], Iterable[Result]]
    stage: str = LOCAL
    paths: tuple[str, ...] = (FSDP, MEGATRON)


NODES = "nodes"

CHECKS: tuple[Check, ...] = (
    Check("versions.python", versions.check_python),
    Check("versions.pins", versions.check_pins, paths=(FSDP,)),
    Check("versions.plugin", versions.check_plugin, paths=(FSDP,)),
    Check("versions.switches", versions.check_switches),
    Check("model.config", model.check_config),
    Check("model.weights", model.check_weights),
    Check("model.tokenizer", model.check_tokenizer),
    Check("model.vision_tokens", model.check_vision_tokens, paths=(FSDP,)),
    Check("model.processor", model.check_processor, paths=(FSDP,)),
    Check("data.schema", data.check_schema),
    Check("data.rows", data.check_rows),
    Check("data.task_types", data.check_task_types),
    Check("data.images", data.check_images),
    Check("data.image_count", data.check_image_count),
    Check("data.placeholders", data.check_placeholders),
    Check("data.references", data.check_references),
    Check("data.lengths", data.check_lengths, paths=(FSDP,)),
    Check("reward.function", reward.check_function),
    Check("reward.calls", reward.check_calls),
    Check("judge.routes", judge.check_routes),
    Check("judge.servers", judge.check_servers),
    Check("numbers.model_length", numbers.check_model_length),
    Check("numbers.token_budget", numbers.check_token_budget, paths=(FSDP,)),
    Check("numbers.batch", numbers.check_batch, paths=(FSDP,)),
    Check("numbers.tensor_parallel", numbers.check_tensor_parallel, paths=(FSDP,)),
    Check("numbers.sampling", numbers.check_sampling),
    Check("numbers.rollout_correction", numbers.check_rollout_correction),
    Check("megatron", megatron_path.check, paths=(MEGATRON,)),
    Check("memory.kv_cache", memory.check_kv_cache, NODES, paths=(FSDP,)),
    Check("memory.training", memory.check_training, NODES, paths=(FSDP,)),
    Check("memory.host", memory.check_host, NODES, paths=(FSDP,)),
    Check("disk.checkpoints", disk.check_checkpoints, paths=(FSDP,)),
    Check("disk.writable", disk.check_writable),
    Check("resume.checkpoint", resume.check, paths=(FSDP,)),
    Check("loggers.backends", loggers.check),
    Check("ray.address", ray_cluster.check_address, CLUSTER),
    Check("ray.nodes", ray_cluster.check_nodes, CLUSTER),
    Check("ray.cpus", ray_cluster.check_cpus, CLUSTER),
    Check("host.gpus", host.check_gpus, NODES),
    Check("host.driver", host.check_driver, NODES),
    Check("host.shared_memory", host.check_shared_memory, NODES),
    Check("host.open_files", host.check_open_files, NODES),
    Check("host.hf_cache", host.check_hf_cache, NODES),
    Check("host.clock", host.check_clock, CLUSTER),
    Check("host.versions", host.check_versions, CLUSTER),
    Check("host.paths", host.check_paths, CLUSTER),
    Check("network.interfaces", network.check_interfaces, NODES),
    Check("network.adapters", network.check_adapters, NODES),
)


def selected(path: str, stages: tuple[str, ...], only: tuple[str, ...], leave_out: tuple[str, ...]) -> list[Check]:
    """The checks of a training path and stages.

    ``only`` and ``leave_out`` name checks (``"data.images"``) or groups (``"data"``).
    """

    def named(check: Check, names: tuple[str, ...]) -> bool:
        return check.name in names or check.name.split(".")[0] in names

    return [
        check
        for check in CHECKS
        if path in check.paths
        and (check.stage in stages or check.stage == NODES)
        and (not only or named(check, only))
        and not named(check, leave_out)
    ]
