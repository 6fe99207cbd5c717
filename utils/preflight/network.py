"""Do the interfaces and adapters that the network variables name exist on every node?"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from utils.preflight.context import Context
from utils.preflight.host import each_node, label
from utils.preflight.results import NotChecked, Result, failed, passed, some

INTERFACE_VARIABLES = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")
DETECT = (
    "unset it: utils/ray/network_envs.sh finds each node's own names; bash utils/ray/network_envs.sh --print shows them"
)


def effective(context: Context, node: dict[str, Any], variable: str) -> str:
    """A variable's value for the workers on a node: the driver's when it is forwarded, else the node's own."""
    return context.forwarded.get(variable) or node["environment"].get(variable, "")


def matching(text: str, names: Iterable[str], exact: bool = False) -> set[str]:
    """The names that a NCCL list selects: ``eth`` is a prefix, ``=eth0`` exact, ``^docker`` excludes; ports are left out.

    Args:
        exact: read the entries as whole names, as Gloo and UCX do.
    """
    exclude, text = text.startswith("^"), text.removeprefix("^")
    exact, text = exact or text.startswith("="), text.removeprefix("=")
    entries = [entry.strip().split(":")[0] for entry in text.split(",") if entry.strip()]
    names = set(names)
    hit = {name for name in names if any(name == e or (not exact and name.startswith(e)) for e in entries)}
    return names - hit if exclude else hit


def check_interfaces(context: Context) -> list[Result]:
    check, results, named = "network.interfaces", [], set()
    nodes = each_node(context)
    for node in nodes:
        for variable in INTERFACE_VARIABLES:
            text = effective(context, node, variable)
            if not text:
                continue
            named.add(f"{variable}={text}")
            problem = interface_problem(variable, text, node["interfaces"], context.settings.nnodes)
            if problem:
                up = some(sorted(name for name, is_up in node["interfaces"].items() if is_up), 8)
                remedy = f"set {variable} to one of: {up}; or {DETECT}"
                results.append(failed(check, f"{label(node)}: {variable}={text}: {problem}", remedy))
    if not named and not results:
        found = (
            "no interface is prescribed" if context.settings.nnodes == 1 else "no interface is prescribed, NCCL chooses"
        )
        return [passed(check, found)]
    return results or [passed(check, f"{some(sorted(named), 4)} on {len(nodes)} node(s)")]


def interface_problem(variable: str, text: str, interfaces: dict[str, bool], nnodes: int) -> str | None:
    """What is wrong with a list of interfaces on a node whose interfaces (name -> is up) are given."""
    found = matching(text, interfaces, exact=variable == "GLOO_SOCKET_IFNAME")
    if not found:
        return "no such interface"
    if not any(interfaces[name] for name in found):
        return f"{some(sorted(found))} is down"
    if nnodes > 1 and found == {"lo"}:
        return "the loopback interface reaches no other node"
    return None


def check_adapters(context: Context) -> list[Result]:
    check, results, named = "network.adapters", [], set()
    for node in each_node(context):
        text = effective(context, node, "NCCL_IB_HCA")
        if not text or effective(context, node, "NCCL_IB_DISABLE") == "1":
            continue
        named.add(text)
        problem = adapter_problem(text, node["adapters"])
        if problem:
            active = some(sorted(name for name, ports in node["adapters"].items() if any(ports.values())), 8)
            remedy = f"set NCCL_IB_HCA to one of: {active}" if active else "set NET_TIER=C (TCP), or NCCL_IB_DISABLE=1"
            results.append(failed(check, f"{label(node)}: NCCL_IB_HCA={text}: {problem}", f"{remedy}; or {DETECT}"))
    if not named:
        raise NotChecked("no adapter is prescribed")
    return results or [passed(check, some(sorted(named), 4))]


def adapter_problem(text: str, adapters: dict[str, dict[str, bool]]) -> str | None:
    """What is wrong with ``NCCL_IB_HCA`` on a node whose adapters (name -> port -> is active) are given."""
    if not adapters:
        return "this node has no InfiniBand or RoCE adapter"
    found = matching(text, adapters)
    if not found:
        return "no such adapter"
    if not text.startswith("^"):
        for entry in text.removeprefix("=").split(","):
            name, _, port = entry.strip().partition(":")
            if port and name in adapters and port not in adapters[name]:
                return f"{name} has no port {port}"
    if not any(active for name in found for active in adapters[name].values()):
        return f"no active port on {some(sorted(found))}"
    return None
