"""Starts, stops and shows the Ray nodes of this host. Users call the scripts beside it:

bash utils/ray/start_ray.sh local            # one node
bash utils/ray/start_ray.sh 4 0              # head of four nodes
HEAD_IP=10.0.0.1 bash utils/ray/start_ray.sh 4 3
bash utils/ray/stop_ray.sh                   # what start_ray.sh started on this host, nothing else
python utils/ray/cluster.py status --json
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]
if str(REPO) not in sys.path:
    sys.path.insert(0, str(REPO))

from utils.ray import gcs, host  # noqa: E402

# sockaddr_un holds 107 characters; Ray appends "/session_<date>_<time>_<micros>_<pid>/sockets/plasma_store.<n>".
MAX_TEMP_DIR = 107 - len("/session_2026-01-01_00-00-00_000000_4194304/sockets/plasma_store.1")
POLL_S = 2.0
START_TIMEOUT_S = 180.0
RECORD_WAIT_S = 30.0
# How the head finds that a node is gone: five checks in a row, 3 s apart, each unanswered for 5 s or refused. That is 15 s
# for a killed node and 40 s for one without power or network; with Ray's own 10 s a silent node takes more than a minute.
HEALTH_CHECKS = {
    "RAY_health_check_period_ms": "3000",
    "RAY_health_check_timeout_ms": "5000",
    "RAY_health_check_failure_threshold": "5",
}


class ClusterError(RuntimeError):
    """The node cannot be started or stopped; the message names the reason and the remedy."""


class UsageError(ClusterError):
    """The request itself is wrong: exit code 2."""


def say(message: str) -> None:
    print(f"[ray] {message}", file=sys.stderr, flush=True)


# -------------------------------------------------------------------------------------------------------------- options
def _environment_number(name: str, kind: type, default):
    text = os.environ.get(name, "")
    if not text:
        return default
    try:
        return kind(text)
    except ValueError:
        raise UsageError(f"{name}={text!r} is not a number") from None


def build_parser() -> argparse.ArgumentParser:
    env = os.environ.get
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="cluster.py", description=__doc__, formatter_class=formatter)
    commands = parser.add_subparsers(dest="command", required=True)

    start = commands.add_parser(
        "start",
        prog="start_ray.sh",
        usage="start_ray.sh local [options] [-- ray-start-options]\n"
        "       start_ray.sh NNODES INDEX [options] [-- ray-start-options]",
        description="Starts this host's Ray node: the only one (local), the head (INDEX 0) or a worker that joins it.\n"
        "Every option has an environment variable. Exit code: 0 running, 1 failed, 2 bad usage.",
        formatter_class=formatter,
    )
    start.add_argument("nnodes", help="local, or the number of nodes of the cluster")
    start.add_argument("index", nargs="?", help="this node's number: 0 is the head")
    group = start.add_argument_group("addresses")
    group.add_argument("--head-ip", default=env("HEAD_IP"), help="HEAD_IP: the head's address or host name")
    group.add_argument(
        "--hosts-file",
        default=env("HOSTS_FILE"),
        help="HOSTS_FILE: one host a line, the head first; used without HEAD_IP",
    )
    group.add_argument(
        "--node-ip", default=env("NODE_IP"), help="NODE_IP: this node's own address (default: by the route)"
    )
    group.add_argument("--port", type=int, default=_environment_number("RAY_PORT", int, 6379), help="RAY_PORT (6379)")
    group.add_argument(
        "--wait-seconds",
        type=float,
        default=_environment_number("RAY_WAIT_SECONDS", float, 300.0),
        help="RAY_WAIT_SECONDS (300): how long a worker waits for the head, and --wait-for-nodes for the workers",
    )
    group.add_argument(
        "--wait-for-nodes",
        action="store_true",
        default=env("RAY_WAIT_FOR_NODES") == "1",
        help="RAY_WAIT_FOR_NODES=1: return only when all NNODES nodes have joined",
    )
    group = start.add_argument_group("resources")
    group.add_argument(
        "--gpus",
        type=int,
        default=_environment_number("NGPUS_PER_NODE", int, None),
        help="NGPUS_PER_NODE: GPUs to offer (default: all that are found; 0 for a node without GPU work)",
    )
    group.add_argument(
        "--logical-gpus",
        type=int,
        default=_environment_number("RAY_LOGICAL_GPUS", int, None),
        help="RAY_LOGICAL_GPUS: a CPU-only host offers this many GPU slots (the CPU demo)",
    )
    group.add_argument(
        "--cpus",
        type=int,
        default=_environment_number("RAY_NUM_CPUS", int, None),
        help="RAY_NUM_CPUS: CPU slots (default: cores)",
    )
    group.add_argument(
        "--object-store-gb",
        type=float,
        default=_environment_number("RAY_OBJECT_STORE_GB", float, None),
        help="RAY_OBJECT_STORE_GB: object store size (default: Ray's, 30%% of the memory)",
    )
    group = start.add_argument_group("files and interface")
    group.add_argument("--temp-dir", default=env("RAY_TEMP_DIR"), help="RAY_TEMP_DIR: sessions and logs (RUN_DIR/PORT)")
    group.add_argument(
        "--dashboard", action="store_true", default=env("DASHBOARD") == "1", help="DASHBOARD=1: web dashboard"
    )
    group.add_argument(
        "--dashboard-host",
        default=env("DASHBOARD_HOST", "127.0.0.1"),
        help="DASHBOARD_HOST (127.0.0.1; 0.0.0.0 = everybody)",
    )
    group.add_argument(
        "--dashboard-port",
        type=int,
        default=_environment_number("DASHBOARD_PORT", int, 8265),
        help="DASHBOARD_PORT (8265)",
    )
    group = start.add_argument_group("how it runs")
    group.add_argument(
        "--block",
        action="store_true",
        help="stay until the node dies or SIGTERM comes, then stop it (containers, srun)",
    )
    group.add_argument(
        "--allow-version-mismatch",
        action="store_true",
        default=env("RAY_ALLOW_VERSION_MISMATCH") == "1",
        help="RAY_ALLOW_VERSION_MISMATCH=1: join although torch, vllm, verl or transformers differ from the head's",
    )
    group.add_argument("--dry-run", action="store_true", help="check everything, print the ray command, start nothing")
    group.add_argument("--json", action="store_true", help="print the node's record as JSON")

    stop = commands.add_parser(
        "stop",
        prog="stop_ray.sh",
        description="Stops the Ray node that start_ray.sh started on this host as this user, and nothing else.\n"
        "Exit code: 0 all stopped (or nothing to stop), 1 something is left, 2 bad usage.",
        formatter_class=formatter,
    )
    stop.add_argument(
        "--port",
        type=int,
        default=_environment_number("RAY_PORT", int, None),
        help="RAY_PORT: only the node of this port",
    )
    stop.add_argument("--all", action="store_true", help="every node recorded here, when there are several")
    stop.add_argument("--purge", action="store_true", help="also delete the sessions and logs of the stopped nodes")
    stop.add_argument("--dry-run", action="store_true", help="list what would be stopped")

    status = commands.add_parser("status", help="the nodes start_ray.sh started here, and the clusters they belong to")
    status.add_argument("--json", action="store_true", help="JSON on stdout")
    return parser


# --------------------------------------------------------------------------------------------------------------- checks
def parse_shape(nnodes: str, index: str | None) -> tuple[int, int]:
    """(number of nodes, this node's index) from the two positional arguments. Raises UsageError."""
    if nnodes == "local":
        if index not in (None, "0"):
            raise UsageError(f"local takes no index (got {index})")
        return 1, 0
    if not nnodes.isdigit() or int(nnodes) < 1:
        raise UsageError(f"NNODES must be a positive number or 'local', not {nnodes!r}")
    if index is None:
        raise UsageError(f"which of the {nnodes} nodes is this? start_ray.sh {nnodes} INDEX, INDEX 0 on the head")
    if not index.isdigit() or int(index) >= int(nnodes):
        raise UsageError(f"INDEX must be 0..{int(nnodes) - 1}, not {index!r}")
    return int(nnodes), int(index)


def choose_gpus(args: argparse.Namespace) -> int:
    """GPU slots this node offers. Raises UsageError when the wish and the host do not fit."""
    found, source = host.detect_gpus()
    if args.logical_gpus is not None:
        if found:
            raise UsageError(f"RAY_LOGICAL_GPUS is for hosts without GPU; this one has {found} ({source})")
        if args.gpus not in (None, args.logical_gpus):
            raise UsageError(f"NGPUS_PER_NODE={args.gpus} contradicts RAY_LOGICAL_GPUS={args.logical_gpus}")
        if args.logical_gpus < 1:
            raise UsageError("RAY_LOGICAL_GPUS must be at least 1")
        return args.logical_gpus
    if args.gpus is None:
        if not found:
            raise UsageError(
                f"no GPU found ({source}): set RAY_LOGICAL_GPUS=1 for the CPU demo, "
                "or NGPUS_PER_NODE=0 for a node without GPU work"
            )
        return found
    if args.gpus < 0 or args.gpus > found:
        raise UsageError(f"NGPUS_PER_NODE={args.gpus}, but this host has {found} ({source})")
    return args.gpus


def head_name(args: argparse.Namespace) -> str:
    """The head's host name or address from HEAD_IP or the hosts file. Raises UsageError."""
    if args.head_ip:
        return args.head_ip
    if not args.hosts_file:
        raise UsageError("where is the head? set HEAD_IP=<address>, or HOSTS_FILE=<one host a line, head first>")
    try:
        hosts = host.read_hosts(Path(args.hosts_file))
    except OSError as error:
        raise UsageError(f"HOSTS_FILE {args.hosts_file}: {error.strerror}") from None
    if not hosts:
        raise UsageError(f"HOSTS_FILE {args.hosts_file} names no host")
    return hosts[0]


def check_sizes(args: argparse.Namespace, temp_dir: Path) -> None:
    if not 1 <= args.port <= 65535:
        raise UsageError(f"RAY_PORT={args.port} is not a port")
    if len(str(temp_dir)) > MAX_TEMP_DIR:
        raise UsageError(f"RAY_TEMP_DIR {temp_dir} is too long for Ray's sockets: at most {MAX_TEMP_DIR} characters")
    if args.object_store_gb is not None:
        wanted = int(args.object_store_gb * 1e9)
        if wanted < 80_000_000:
            raise UsageError("RAY_OBJECT_STORE_GB must be at least 0.08")
        free = host.free_shared_memory()
        if free is not None and wanted > free:
            say(
                f"warning: object store of {wanted / 1e9:.1f} GB, but /dev/shm has {free / 1e9:.1f} GB free: "
                "Ray will put it on disk, which is slow"
            )


def check_versions(probe: dict, head: str, allow_kit: bool) -> None:
    """Compares this environment with the head's. Raises ClusterError naming each difference."""
    mine = gcs.local_versions()
    theirs = dict((probe["record"] or {}).get("versions", {}))
    theirs.update(ray=probe["ray_version"], python=probe["python_version"])
    different = {name: (there, mine.get(name)) for name, there in theirs.items() if there != mine.get(name)}
    if allow_kit:
        for name in [name for name in different if name not in ("ray", "python")]:
            say(f"warning: {name} differs: head {different[name][0]}, here {different.pop(name)[1]}")
    if different:
        rows = "; ".join(f"{name}: head {there}, here {here or 'none'}" for name, (there, here) in different.items())
        raise ClusterError(f"version mismatch with the head {head}: {rows}. Install the same lock file on every node")


# --------------------------------------------------------------------------------------------------------------- pieces
def network_environment(nnodes: int, node_ip: str, head_ip: str) -> dict[str, str]:
    """The node's environment after sourcing network_envs.sh. Raises ClusterError when the wanted tier cannot be had."""
    script = REPO / "utils/ray/network_envs.sh"
    environment = {**os.environ, "NNODES": str(nnodes), "NODE_IP": node_ip, "HEAD_IP": head_ip}
    done = subprocess.run(
        ["bash", "-c", 'source "$1" || exit $?; env -0', "bash", str(script)],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    )
    if done.returncode:
        raise ClusterError("network_envs.sh refused the settings (see above)")
    found = dict(entry.split("=", 1) for entry in done.stdout.split("\0") if "=" in entry)
    if nnodes > 1:
        # vLLM would take the address of the route to the internet: another network, or none.
        found.setdefault("VLLM_HOST_IP", node_ip)
        found = {**HEALTH_CHECKS, **found}
    return found


def reach_head(name: str, port: int, deadline: float) -> str:
    """Waits until ``name``:``port`` accepts connections; returns the head's IP address.

    Raises:
        ClusterError: not within the deadline (time.monotonic() value); with the last reason.
    """
    started = reported = time.monotonic()
    while True:
        address = host.resolve(name)
        reason = f"the name {name!r} does not resolve" if address is None else host.try_connect(address, port)
        if reason is None:
            return address
        now = time.monotonic()
        if now >= deadline:
            raise ClusterError(f"head {name}:{port} not reached within {now - started:.0f} s: {reason}")
        if reported == started or now - reported >= 10:
            say(f"waiting for the head {name}:{port} ({deadline - now:.0f} s left): {reason}")
            reported = now
        time.sleep(max(0.0, min(POLL_S, deadline - now)))


def probe_started_head(address: str, deadline: float) -> dict:
    """``gcs.probe_head``, once the head has come up completely: it listens some seconds before it publishes its record."""
    patience = time.monotonic() + RECORD_WAIT_S
    while True:
        try:
            probe = gcs.probe_head(address, timeout_s=max(15.0, deadline - time.monotonic()))
        except gcs.HeadError as error:
            raise ClusterError(f"{address}: {error}") from None
        if probe["record"] is not None:
            return probe
        if time.monotonic() > patience:
            say(f"the head {address} was not started by start_ray.sh: only Ray's and Python's versions are compared")
            return probe
        time.sleep(POLL_S)


def wait_for_nodes(address: str, nnodes: int, deadline: float) -> None:
    """Returns when ``nnodes`` nodes are alive. Raises ClusterError naming the missing indices at the deadline."""
    while True:
        nodes = [node for node in gcs.probe_head(address)["nodes"] if node["alive"]]
        if len(nodes) >= nnodes:
            say(f"all {nnodes} nodes are there: " + ", ".join(f"{node['name']} {node['ip']}" for node in nodes))
            return
        missing = sorted(set(range(nnodes)) - {node_index(node["name"]) for node in nodes})
        if time.monotonic() >= deadline:
            raise ClusterError(f"{len(nodes)} of {nnodes} nodes joined; missing INDEX {', '.join(map(str, missing))}")
        say(f"{len(nodes)} of {nnodes} nodes; waiting for INDEX {', '.join(map(str, missing))}")
        time.sleep(POLL_S)


def node_name(index: int) -> str:
    return f"hyocr-{index}"


def node_index(name: str) -> int:
    """Inverse of node_name; -1 for a node that start_ray.sh did not start."""
    prefix, _, number = name.partition("-")
    return int(number) if prefix == "hyocr" and number.isdigit() else -1


def ray_command(args: argparse.Namespace, plan: dict, extra: list[str]) -> list[str]:
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--disable-usage-stats", "--log-color", "false"]
    if plan["index"] == 0:
        command += ["--head", f"--port={args.port}", f"--include-dashboard={str(args.dashboard).lower()}"]
        if args.dashboard:
            command += [f"--dashboard-host={args.dashboard_host}", f"--dashboard-port={args.dashboard_port}"]
    else:
        command += [f"--address={plan['address']}"]
    command += [f"--node-ip-address={plan['node_ip']}", f"--node-name={node_name(plan['index'])}"]
    command += [f"--temp-dir={plan['temp_dir']}", f"--num-gpus={plan['gpus']}"]
    if args.cpus is not None:
        command += [f"--num-cpus={args.cpus}"]
    if args.object_store_gb is not None:
        command += [f"--object-store-memory={int(args.object_store_gb * 1e9)}"]
    return command + extra


def explain_start_failure(output: str, port: int) -> str:
    """The line of ``ray start``'s output that says why it failed."""
    if "already running" in output or "already in use" in output or "already occupied" in output:
        return f"port {port} or one of Ray's other ports is taken on this host; choose another RAY_PORT"
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if "Error" in line or "error" in line or "mismatch" in line]
    return (errors or lines or ["no output"])[-1]


# ------------------------------------------------------------------------------------------------------------- commands
@contextlib.contextmanager
def port_lock(run_dir: Path, port: int):
    """One start or stop per port at a time."""
    with open(run_dir / f"{port}.lock", "w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ClusterError(f"another start_ray.sh or stop_ray.sh works on port {port} right now") from None
        yield


def plan_node(args: argparse.Namespace, nnodes: int, index: int, run_dir: Path) -> dict:
    """Everything decided before a process starts; for a worker this waits for the head."""
    gpus = choose_gpus(args)
    temp_dir = Path(args.temp_dir or run_dir / str(args.port)).absolute()
    check_sizes(args, temp_dir)
    mine = host.own_addresses()
    if args.node_ip and args.node_ip not in mine:
        raise UsageError(f"NODE_IP={args.node_ip} is not an address of this host ({', '.join(sorted(mine))})")
    plan = {"index": index, "nnodes": nnodes, "gpus": gpus, "temp_dir": str(temp_dir)}
    if index == 0:
        wanted = args.node_ip
        if nnodes > 1 and (args.head_ip or args.hosts_file):
            name = head_name(args)
            wanted = wanted or host.resolve(name)
            if wanted not in mine:
                raise UsageError(
                    f"this is INDEX 0, the head, but {name} ({wanted or 'unknown name'}) is not an address of this "
                    f"host ({', '.join(sorted(mine))}): wrong HEAD_IP, wrong host or wrong INDEX"
                )
        node_ip = wanted or host.address_towards("8.8.8.8") or "127.0.0.1"
        if nnodes > 1 and node_ip.startswith("127."):
            raise UsageError("the head of several nodes needs an address the others can reach: set HEAD_IP or NODE_IP")
        return {**plan, "node_ip": node_ip, "address": f"{node_ip}:{args.port}"}

    name = head_name(args)
    deadline = time.monotonic() + args.wait_seconds
    head_ip = reach_head(name, args.port, deadline)
    if head_ip.startswith("127.") or head_ip == "::1":
        raise UsageError(f"HEAD_IP={name} is a loopback address: give the head's address in the cluster's network")
    address = f"{head_ip}:{args.port}"
    probe = probe_started_head(address, deadline)
    check_versions(probe, address, args.allow_version_mismatch)
    planned = (probe["record"] or {}).get("nnodes")
    if planned not in (None, nnodes):
        raise ClusterError(
            f"the head {address} was started for {planned} nodes, not {nnodes}: wrong NNODES or another cluster's head"
        )
    taken = [node for node in probe["nodes"] if node["alive"] and node["name"] == node_name(index)]
    if taken:
        raise ClusterError(f"INDEX {index} is already taken in the cluster {address} by {taken[0]['ip']}")
    node_ip = args.node_ip or host.address_towards(head_ip)
    return {**plan, "node_ip": node_ip, "address": address}


def start(args: argparse.Namespace, extra: list[str]) -> int:
    from utils.ray import node_state

    nnodes, index = parse_shape(args.nnodes, args.index)
    run_dir = node_state.default_run_dir()
    node_state.ensure_run_dir(run_dir)
    path = node_state.state_path(run_dir, args.port)
    with port_lock(run_dir, args.port):
        state = running_node(args, nnodes, index, path)
        if state is None:
            if index == 0 and (owner := host.listener_on(args.port)):
                raise ClusterError(
                    f"port {args.port} is in use by {owner}, not started by this script: another cluster? "
                    "Choose another RAY_PORT, or attach to it with RAY_ADDRESS"
                )
            plan = plan_node(args, nnodes, index, run_dir)
            environment = network_environment(nnodes, plan["node_ip"], plan["address"].rsplit(":", 1)[0])
            command = ray_command(args, plan, extra)
            if args.dry_run:
                print(" ".join(command))
                return 0
            state = launch(args, plan, command, environment, path)
    if args.wait_for_nodes and nnodes > 1:
        wait_for_nodes(state.RAY_ADDRESS, nnodes, time.monotonic() + args.wait_seconds)
    report(state, args)
    return block(state, path) if args.block else 0


def running_node(args: argparse.Namespace, nnodes: int, index: int, path: Path):
    """The node that runs already if it is the one asked for, else None. Raises ClusterError when it is another one."""
    from utils.ray import node_state

    if not path.exists():
        return None
    state = node_state.read_state(path)
    if not node_state.is_alive(state):
        say(f"the node recorded in {path} is gone; cleaning up")
        node_state.stop_node(state)
        path.unlink()
        return None
    wish = (nnodes, index, choose_gpus(args))
    if wish != (state.NNODES, state.NODE_INDEX, state.NUM_GPUS):
        raise ClusterError(
            f"port {args.port} already has a node of yours ({state.role} of {state.NNODES} nodes, {state.NUM_GPUS} GPU, "
            f"since {state.STARTED_AT}): stop it (stop_ray.sh --port {args.port}) or choose another RAY_PORT"
        )
    say(f"already running since {state.STARTED_AT}: {state.role}, {state.NUM_GPUS} GPU")
    return state


def launch(args: argparse.Namespace, plan: dict, command: list[str], environment: dict[str, str], path: Path):
    """Runs ``ray start``, checks that the node is in the cluster and records its processes. Cleans up when it fails."""
    from utils.ray import node_state

    state = node_state.NodeState(
        RAY_ADDRESS=plan["address"],
        RAY_PORT=args.port,
        NODE_INDEX=plan["index"],
        NNODES=plan["nnodes"],
        NODE_IP=plan["node_ip"],
        RAY_TEMP_DIR=plan["temp_dir"],
        NODE_ID=uuid.uuid4().hex,
        NUM_GPUS=plan["gpus"],
        HOST_BOOT_ID=node_state.boot_id(),
        STARTED_AT=datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
        DASHBOARD_URL=f"http://{args.dashboard_host}:{args.dashboard_port}"
        if args.dashboard and plan["index"] == 0
        else "",
    )
    environment = {**environment, node_state.MARKER: state.NODE_ID}
    # RAY_ADDRESS would make `ray start --head` and its agents talk to another cluster.
    environment.pop("RAY_ADDRESS", None)
    # Written first: should this process be killed while Ray comes up, stop_ray.sh still finds the node by its marker.
    node_state.write_state(path, state)
    say(f"starting {state.role} of {state.NNODES} node(s) on {state.NODE_IP}, {state.NUM_GPUS} GPU")
    try:
        log = Path(plan["temp_dir"])
        log.mkdir(mode=0o700, parents=True, exist_ok=True)
        log = log / "ray_start.log"
        with open(log, "w") as stream:
            done = subprocess.run(
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=stream,
                timeout=START_TIMEOUT_S,
            )
        if done.returncode:
            raise ClusterError(
                f"ray start failed: {explain_start_failure(log.read_text(), args.port)} (all of it: {log})"
            )
        record = None
        if plan["index"] == 0:
            record = {"nnodes": plan["nnodes"], "versions": gcs.local_versions(), "started_at": state.STARTED_AT}
        nodes = gcs.wait_for_node(plan["address"], node_name(plan["index"]), record)
        # With a loopback address Ray picks another one by itself: the cluster's own table has the last word.
        state.NODE_IP = next(n["ip"] for n in nodes if n["alive"] and n["name"] == node_name(plan["index"]))
        if plan["index"] == 0:
            state.RAY_ADDRESS = f"{state.NODE_IP}:{args.port}"
        state.processes = [node_state.describe_process(process) for process in node_state.node_processes(state)]
        if not node_state.is_alive(state):
            raise ClusterError(f"Ray came up and died at once; see {plan['temp_dir']}/session_latest/logs")
        node_state.write_state(path, state)
    except BaseException as error:
        node_state.stop_node(state)
        path.unlink(missing_ok=True)
        if isinstance(error, subprocess.TimeoutExpired):
            raise ClusterError(f"ray start took over {START_TIMEOUT_S:.0f} s; see {plan['temp_dir']}") from None
        if isinstance(error, gcs.HeadError):
            raise ClusterError(f"{plan['address']}: {error}") from None
        raise
    alive = sum(node["alive"] for node in nodes)
    say(f"{state.role} is up: {alive} of {plan['nnodes']} node(s) in the cluster {state.RAY_ADDRESS}")
    if plan["index"] == 0 and plan["nnodes"] > 1:
        say(f"on the other nodes: HEAD_IP={state.NODE_IP} RAY_PORT={args.port} start_ray.sh {state.NNODES} INDEX")
    return state


def report(state, args: argparse.Namespace) -> None:
    if args.json:
        print(json.dumps(vars(state)))
    else:
        say(f"RAY_ADDRESS={state.RAY_ADDRESS}  (logs: {state.RAY_TEMP_DIR}/session_latest/logs)")
        if state.DASHBOARD_URL:
            say(f"dashboard: {state.DASHBOARD_URL}")


def block(state, path: Path) -> int:
    from utils.ray import node_state

    def leave(signum, frame):
        raise SystemExit(0)

    signal.signal(signal.SIGTERM, leave)
    signal.signal(signal.SIGINT, leave)
    try:
        while node_state.is_alive(state):
            if not path.exists():
                say("stopped by stop_ray.sh")
                return 0
            time.sleep(1.0)
        if not path.exists():
            say("stopped by stop_ray.sh")
            return 0
        say(f"error: the node died; see {state.RAY_TEMP_DIR}/session_latest/logs")
        return 1
    finally:
        node_state.stop_node(state)
        path.unlink(missing_ok=True)


def stop(args: argparse.Namespace) -> int:
    from utils.ray import node_state

    run_dir = node_state.default_run_dir()
    states = [item for item in node_state.list_states(run_dir) if args.port in (None, item[1].RAY_PORT)]
    if not states:
        where = f" on port {args.port}" if args.port else ""
        say(f"nothing to stop: no node started by start_ray.sh{where} is recorded in {run_dir}")
        return 0
    if len(states) > 1 and not args.all:
        rows = "; ".join(f"--port {s.RAY_PORT}: {s.role} of {s.RAY_ADDRESS}, since {s.STARTED_AT}" for _, s in states)
        raise UsageError(f"several nodes of yours run here, say which (--port) or --all. {rows}")
    code = 0
    for path, state in states:
        title = f"{state.role} of {state.RAY_ADDRESS} (port {state.RAY_PORT})"
        if node_state.boot_id() != state.HOST_BOOT_ID:
            say(f"{title}: recorded on another host or before a reboot, nothing of it can run here")
        if args.dry_run:
            found = node_state.node_processes(state)
            print(f"{title}: " + ", ".join(f"{p.pid} {p.name()}" for p in found))
            continue
        with port_lock(run_dir, state.RAY_PORT):
            count, left = node_state.stop_node(state)
            if left:
                say(f"error: {title}: still running after SIGKILL: {', '.join(str(p.pid) for p in left)}")
                code = 1
                continue
            path.unlink(missing_ok=True)
            if args.purge:
                purge_sessions(Path(state.RAY_TEMP_DIR))
            say(f"{title}: stopped, {count} processes")
    return code


def purge_sessions(temp_dir: Path) -> None:
    """Deletes what Ray left in ``temp_dir``, and nothing that somebody else put there."""
    for path in temp_dir.glob("session_*"):
        if path.is_symlink():
            path.unlink()
        else:
            shutil.rmtree(path)
    for name in ("ray_start.log", "ray_current_cluster"):
        (temp_dir / name).unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        temp_dir.rmdir()


def status(args: argparse.Namespace) -> int:
    from utils.ray import node_state

    rows = []
    for path, state in node_state.list_states(node_state.default_run_dir()):
        row = {**vars(state), "state_file": str(path), "alive": node_state.is_alive(state), "nodes": None}
        if row["alive"]:
            with contextlib.suppress(gcs.HeadError):
                row["nodes"] = gcs.probe_head(state.RAY_ADDRESS)["nodes"]
        rows.append(row)
    if args.json:
        print(json.dumps(rows))
    elif not rows:
        print("no node started by start_ray.sh on this host")
    else:
        for row in rows:
            life = "up" if row["alive"] else "gone"
            where = f"{row['RAY_ADDRESS']}  node {row['NODE_INDEX']} of {row['NNODES']}"
            print(f"{where}  {row['NUM_GPUS']} GPU  {life}  since {row['STARTED_AT']}")
            for node in row["nodes"] or []:
                gpus = int(node["resources"].get("GPU", 0))
                print(f"    {node['name']:12} {node['ip']:15} {'alive' if node['alive'] else 'dead':5} {gpus} GPU")
    return 0 if all(row["alive"] for row in rows) and rows else 1


def main(argv: list[str] | None = None) -> int:
    argv = list(sys.argv[1:] if argv is None else argv)
    extra: list[str] = []
    if "--" in argv:
        cut = argv.index("--")
        argv, extra = argv[:cut], argv[cut + 1 :]
    try:
        args = build_parser().parse_args(argv)
        if extra and args.command != "start":
            raise UsageError("only start_ray.sh takes options after --")
        if args.command == "start":
            # SIGTERM while Ray comes up runs the same clean-up as Ctrl-C.
            signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
            return start(args, extra)
        return stop(args) if args.command == "stop" else status(args)
    except UsageError as error:
        say(f"error: {error}")
        return 2
    except (RuntimeError, OSError) as error:
        say(f"error: {error}")
        return 1
    except KeyboardInterrupt:
        say("interrupted; what had been started was stopped")
        return 130


if __name__ == "__main__":
    sys.exit(main())
