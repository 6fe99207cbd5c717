"""The nodes themselves: GPUs, driver, shared memory, open files, cache, clocks, and the same software and files on each."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

from utils.preflight.context import Context
from utils.preflight.results import NotChecked, Result, failed, gib, passed, some, warned
from utils.preflight.versions import INSTALL, host_bounds

LEAST_SHM = 2**30
LEAST_FILES = 1024
GOOD_FILES = 8192
BUSY_SHARE = 0.1
CLOCK_WARN_S = 2.0
CLOCK_FAIL_S = 60.0

Node = dict[str, Any]


def each_node(context: Context) -> list[Node]:
    """The nodes that answered. Raises NotChecked when the stage sees none."""
    nodes = [node for node in context.nodes if "error" not in node]
    if not nodes:
        raise NotChecked("no node to look at in this stage")
    return nodes


def label(node: Node) -> str:
    """A node's address, with its name in the cluster if it has one."""
    return f"{node['ip']} ({node['name']})" if node["name"] else node["ip"]


def _per_node(
    context: Context, check: str, problem: Callable[[Node], tuple[str, str, str] | None], good: str
) -> list[Result]:
    """``problem`` gives (status function's name, what, remedy) for a node; equal findings are joined."""
    grouped: dict[tuple[str, str, str], list[str]] = defaultdict(list)
    nodes = each_node(context)
    for node in nodes:
        found = problem(node)
        if found:
            grouped[found].append(label(node))
    say = {"fail": failed, "warn": warned}
    results = [
        say[status](check, f"{some(addresses, 8)}: {what}", remedy)
        for (status, what, remedy), addresses in grouped.items()
    ]
    where = label(nodes[0]) if len(nodes) == 1 else f"{len(nodes)} nodes"
    return results or [passed(check, f"{where}: {good}")]


def _needs_gpus(context: Context) -> None:
    if context.settings.on_cpu:
        raise NotChecked("the CPU platform needs no GPU")


def check_gpus(context: Context) -> list[Result]:
    _needs_gpus(context)
    wanted = context.settings.gpus_per_node

    def problem(node: Node) -> tuple[str, str, str] | None:
        gpus = node["gpus"]
        if gpus is None:
            return (
                "fail",
                "nvidia-smi is missing or fails",
                "install the NVIDIA driver; in a container pass the GPUs on (--gpus all)",
            )
        if len(gpus) < wanted:
            return "fail", f"{len(gpus)} GPU(s), NGPUS_PER_NODE={wanted}", f"set NGPUS_PER_NODE={max(1, len(gpus))}"
        busy = [
            f"GPU {index} ({gib(gpu['used'])})"
            for index, gpu in enumerate(gpus)
            if gpu["used"] > BUSY_SHARE * gpu["total"]
        ]
        if busy:
            return (
                "warn",
                f"memory is in use by other programs: {some(busy)}",
                "end them (nvidia-smi shows them), else the run gets too little",
            )
        return None

    results = _per_node(context, "host.gpus", problem, f"at least {wanted} free GPU(s)")
    names = {gpu["name"] for node in each_node(context) for gpu in node["gpus"] or ()}
    if len(names) > 1:
        found = f"different GPUs: {some(sorted(names))}; the slowest sets the pace, the smallest the memory"
        results.append(warned("host.gpus", found, "use nodes of one kind"))
    return results


def check_driver(context: Context) -> list[Result]:
    _needs_gpus(context)
    bounds = host_bounds()

    def problem(node: Node) -> tuple[str, str, str] | None:
        if not node["gpus"]:
            return None
        driver = node["gpus"][0]["driver"]
        if not at_least(driver, bounds["nvidia_driver"]):
            return "fail", f"driver {driver} is older than {bounds['nvidia_driver']}", "update the NVIDIA driver"
        if node["cuda"] and not at_least(node["cuda"], bounds["cuda"]):
            remedy = "update the driver, or install the cuda-compat package (bash install_cu13.sh --check-host)"
            return (
                "warn",
                f"the driver {driver} supports CUDA {node['cuda']}, the wheels are built for {bounds['cuda']}",
                remedy,
            )
        return None

    found = each_node(context)
    if not any(node["gpus"] for node in found):
        raise NotChecked("no node has a GPU")
    results = _per_node(
        context, "host.driver", problem, f"driver {bounds['nvidia_driver']} and CUDA {bounds['cuda']} or newer"
    )
    drivers = {node["gpus"][0]["driver"] for node in found if node["gpus"]}
    if len(drivers) > 1:
        results.append(
            warned("host.driver", f"different drivers: {some(sorted(drivers))}", "install one driver on all nodes")
        )
    return results


def at_least(version: str, bound: str) -> bool:
    """Whether a dotted version is not older than another."""
    return [int(part) for part in version.split(".")] >= [int(part) for part in bound.split(".")]


def check_shared_memory(context: Context) -> list[Result]:
    """Ray's object store, data loaders and, on the CPU platform, the weight sync live in /dev/shm."""
    settings = context.settings
    bucket = settings.weight_bucket_mb * 2**20 * max(1, settings.gpus_per_node // settings.rollout_tp)
    store = context.environ.get("RAY_OBJECT_STORE_GB")
    enlarge = "enlarge /dev/shm: docker run --shm-size, in Kubernetes an emptyDir with medium Memory"

    def problem(node: Node) -> tuple[str, str, str] | None:
        if node["shm"] is None:
            return "fail", "there is no /dev/shm", "mount a tmpfs there"
        total, free = node["shm"]
        if total < LEAST_SHM:
            return (
                "fail",
                f"/dev/shm has {gib(total)}; Ray and the data loaders need at least {gib(LEAST_SHM)}",
                enlarge,
            )
        if settings.on_cpu and free < bucket:
            remedy = f"set WEIGHT_BUCKET_MB={max(1, settings.weight_bucket_mb * free // bucket)}, or {enlarge}"
            return "fail", f"/dev/shm has {gib(free)} free, the weight sync takes {gib(bucket)}", remedy
        wanted = float(store) * 1e9 if store else 0.3 * node["memory"][0]
        if total < wanted:
            remedy = f"set RAY_OBJECT_STORE_GB={max(1, int(total / 1e9 * 0.9))} for start_ray.sh, or {enlarge}"
            return (
                "warn",
                f"/dev/shm has {gib(total)}, Ray's object store wants {gib(wanted)}: it goes to disk, which is slow",
                remedy,
            )
        return None

    return _per_node(context, "host.shared_memory", problem, "/dev/shm holds Ray's object store")


def check_open_files(context: Context) -> list[Result]:
    def problem(node: Node) -> tuple[str, str, str] | None:
        soft, hard = node["open_files"]
        if soft >= GOOD_FILES or soft < 0:
            return None
        reach = (
            f"ulimit -n {GOOD_FILES}"
            if hard >= GOOD_FILES or hard < 0
            else f"raise the hard limit ({hard}), then ulimit -n {GOOD_FILES}"
        )
        status = "fail" if soft < LEAST_FILES else "warn"
        return (
            status,
            f"at most {soft} open files; Ray and judge connections need thousands",
            f"before start_ray.sh: {reach}",
        )

    return _per_node(context, "host.open_files", problem, f"{GOOD_FILES} open files or more")


def check_hf_cache(context: Context) -> list[Result]:
    def problem(node: Node) -> tuple[str, str, str] | None:
        cache = node["hf_cache"]
        if not cache["problem"]:
            return None
        return (
            "fail",
            f"the HuggingFace cache {cache['folder']} cannot be written: {cache['problem']}",
            "set HF_HOME to a writable folder",
        )

    return _per_node(context, "host.hf_cache", problem, "HuggingFace's cache is writable")


def check_clock(context: Context) -> list[Result]:
    def problem(node: Node) -> tuple[str, str, str] | None:
        skew = node.get("clock_s", 0.0)
        if skew <= CLOCK_WARN_S:
            return None
        status = "fail" if skew > CLOCK_FAIL_S else "warn"
        return status, f"the clock is off by {skew:.0f} s", "synchronise the clocks (chrony, systemd-timesyncd)"

    return _per_node(context, "host.clock", problem, f"clocks agree within {CLOCK_WARN_S:g} s")


def check_versions(context: Context) -> list[Result]:
    """Every node has this environment's Python, packages and plugin source."""
    from utils.preflight.node_probe import plugin_digest

    mine = {"python": context.local_node["python"], **context.local_node["versions"], "plugin source": plugin_digest()}

    def problem(node: Node) -> tuple[str, str, str] | None:
        # Ray brings the plugin's source to nodes that have none, or another one.
        plugin = mine["plugin source"] if context.settings.ship_code else node["plugin"]
        theirs = {"python": node["python"], **node["versions"], "plugin source": plugin}
        different = [
            f"{name}: here {mine.get(name) or 'none'}, there {theirs.get(name) or 'none'}"
            for name in sorted(mine.keys() | theirs.keys())
            if mine.get(name) != theirs.get(name)
        ]
        if not different:
            return None
        return "fail", some(different, 8), f"{INSTALL} on that node, with the same checkout, and restart Ray there"

    return _per_node(context, "host.versions", problem, "the same Python, packages and plugin as here")


def check_paths(context: Context) -> list[Result]:
    def problem(node: Node) -> tuple[str, str, str] | None:
        shipped = [context.settings.reward_path] if context.settings.ship_code else []
        missing = [path for path in node["missing_paths"] if path not in shipped]
        if not missing:
            return None
        return (
            "fail",
            f"not there: {some(missing)}",
            "put them on a shared file system, or copy them to the same path",
        )

    return _per_node(context, "host.paths", problem, "model, data and reward function are there")
