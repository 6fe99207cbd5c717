"""Is there a Ray cluster with the nodes, GPUs and CPU slots that the run asks for? Names what is missing."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from utils.cluster_check import head_address
from utils.preflight.context import Context, network_variables
from utils.preflight.results import NotChecked, Result, failed, passed, remembered, some
from utils.ray import gcs, host

CPUS_PER_GPU = 3
"""CPU slots that verl reserves with every GPU."""
FURTHER_CPUS = 2
"""The trainer's process and the controller of the transfer queue."""
STORAGE_UNITS = 8
"""verl's default; the launcher sets 1 on the CPU platform."""
NODE_NAME = "hyocr-"
"""start_ray.sh names its nodes hyocr-INDEX."""


@dataclass
class Cluster:
    """A cluster that answers.

    Attributes:
        address: ``ip:port`` of the head.
        nodes: as ``utils.ray.gcs.probe_head`` gives them, dead ones included.
        record: what start_ray.sh published, or None.
        paths: that every node must have.
    """

    address: str
    nodes: list[dict[str, Any]]
    record: dict[str, Any] | None
    paths: list[str] = field(default_factory=list)

    @property
    def alive(self) -> list[dict[str, Any]]:
        return [node for node in self.nodes if node["alive"]]

    @property
    def is_this_host_only(self) -> bool:
        mine = host.own_addresses()
        return len(self.alive) == 1 and self.alive[0]["ip"] in mine

    @remembered
    def node_facts(self) -> list[dict[str, Any]]:
        """Facts of every node, through a Ray task on each; a node that does not answer has ``error``.

        Raises:
            NotChecked: the cluster cannot be joined; check_address says so.
        """
        from utils.preflight.ray_probe import ProbeError, probe_nodes

        try:
            return probe_nodes(self.address, self.paths, network_variables())
        except ProbeError as error:
            raise NotChecked(str(error)) from error


def find_cluster(context: Context) -> Cluster:
    """The cluster that ``RAY_ADDRESS`` means. Raises NotChecked with the reason when none answers."""
    try:
        address = head_address(context.environ)
        name, _, port = address.rpartition(":")
        refused = host.try_connect(name, int(port))
        if refused:
            raise ConnectionError(f"{address}: {refused}")
        probe = gcs.probe_head(address)
    except (ConnectionError, ValueError, gcs.HeadError) as error:
        raise NotChecked(str(error).splitlines()[0]) from error
    return Cluster(address, probe["nodes"], probe["record"], context.shared_paths)


def check_address(context: Context) -> list[Result]:
    check = "ray.address"
    address = context.environ.get("RAY_ADDRESS") or "auto"
    start = (
        "bash utils/ray/start_ray.sh local"
        if context.settings.nnodes == 1
        else "bash utils/ray/start_ray.sh on every node"
    )
    remedy = (
        f"start one: {start}, or START_RAY=1 on a single node; with several clusters set RAY_ADDRESS=<head ip>:<port>"
    )
    try:
        cluster = context.cluster
        facts = [] if cluster.is_this_host_only else cluster.node_facts
    except NotChecked as error:
        return [failed(check, f"no usable Ray cluster at RAY_ADDRESS={address}: {error}", remedy)]
    silent = [f"{node['ip']} ({node['error']})" for node in facts if "error" in node]
    if silent:
        found = f"nodes that run no task: {some(silent)}"
        return [failed(check, found, "look into their raylet.out, restart Ray there (stop_ray.sh, start_ray.sh)")]
    return [passed(check, f"{cluster.address}, {len(cluster.alive)} node(s)")]


def node_index(name: str) -> int | None:
    number = name.removeprefix(NODE_NAME)
    return int(number) if name.startswith(NODE_NAME) and number.isdigit() else None


def missing_nodes(cluster: Cluster, wanted: int, hosts: list[str]) -> list[str]:
    """Nodes that are not there, as exactly as is known: address, INDEX of start_ray.sh, or line of the hosts file."""
    present = {node_index(node["name"]) for node in cluster.alive}
    dead = [node for node in cluster.nodes if not node["alive"]]
    if present <= {None}:
        return [f"{node['ip']} (died)" for node in dead]
    lost = {node_index(node["name"]): node["ip"] for node in dead}
    named = []
    for index in range(wanted):
        if index in present:
            continue
        name = f"INDEX {index}"
        if index < len(hosts):
            name += f" on {hosts[index]}"
        if index in lost:
            name += f" ({lost[index]} died)"
        named.append(name)
    return named


def slots(cluster: Cluster, resource: str) -> list[tuple[str, int]]:
    """(address, slots of a resource) of the nodes that are alive."""
    return sorted((node["ip"], int(node["resources"].get(resource, 0))) for node in cluster.alive)


def check_nodes(context: Context) -> list[Result]:
    check, settings, cluster = "ray.nodes", context.settings, context.cluster
    per_node = settings.gpus_per_node
    gpus = slots(cluster, "GPU")
    enough = [address for address, count in gpus if count >= per_node]
    total = sum(count for _, count in gpus)
    wanted = f"NNODES={settings.nnodes} x NGPUS_PER_NODE={per_node}"
    if len(enough) >= settings.nnodes:
        return [passed(check, f"{wanted}; the cluster has {total} GPU(s) on {len(cluster.alive)} node(s)")]
    listing = ", ".join(f"{address}: {count} GPU" for address, count in gpus) or "no node"
    found = f"the run needs {wanted}, the cluster has {listing}"
    remedies = []
    missing = missing_nodes(cluster, settings.nnodes, _hosts(context))
    if len(cluster.alive) < settings.nnodes:
        found += (
            f"; missing: {', '.join(missing)}"
            if missing
            else f"; {settings.nnodes - len(cluster.alive)} node(s) missing"
        )
        remedies.append(
            f"run HEAD_IP={cluster.address.rpartition(':')[0]} bash utils/ray/start_ray.sh {settings.nnodes} INDEX there"
        )
    small = [f"{address} ({count})" for address, count in gpus if count < per_node]
    if small:
        found += f"; too few GPUs on {some(small)}"
    if enough:
        remedies.append(f"set NNODES={len(enough)}")
    elif most := max((count for _, count in gpus), default=0):
        remedies.append(f"set NGPUS_PER_NODE={most}")
    else:
        remedies.append("start Ray with GPUs (NGPUS_PER_NODE, RAY_LOGICAL_GPUS)")
    return [failed(check, found, ", or ".join(remedies))]


def _hosts(context: Context) -> list[str]:
    path = context.environ.get("HOSTS_FILE", "")
    try:
        return host.read_hosts(Path(path)) if path else []
    except OSError:
        return []


def check_cpus(context: Context) -> list[Result]:
    """With too few CPU slots Ray never places the workers: the run would wait for ever."""
    check, settings, cluster = "ray.cpus", context.settings, context.cluster
    units = settings.storage_units or (1 if settings.on_cpu else STORAGE_UNITS)
    cpus = slots(cluster, "CPU")
    total = sum(count for _, count in cpus)
    per_node = CPUS_PER_GPU * settings.gpus_per_node
    needed = per_node * settings.nnodes + FURTHER_CPUS + units
    fitting = [address for address, count in cpus if count >= per_node]
    if len(fitting) >= settings.nnodes and total >= needed:
        return [passed(check, f"{total} CPU slots, {needed} needed")]
    listing = ", ".join(f"{address}: {count}" for address, count in cpus)
    reserved = f"the workers reserve {per_node} CPU slots a node and {needed} in all"
    found = f"{reserved}, the cluster has {listing}: they would wait for ever"
    least = max(per_node, -(-needed // settings.nnodes))
    return [failed(check, found, f"start Ray with RAY_NUM_CPUS={least} on every node (slots may outnumber the cores)")]
