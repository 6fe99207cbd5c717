"""Is there a Ray cluster with enough worker slots?

    python -m utils.cluster_check --nodes 1 --gpus-per-node 8        (RAY_ADDRESS picks the cluster, default auto)

Exit code 0 when the cluster offers them, 1 with the reason otherwise. Starts and changes nothing.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping

from utils.ray import gcs, host


def shortage(nodes: list[dict], wanted_nodes: int, gpus_per_node: int) -> str | None:
    """Why the cluster's nodes are not enough for the run, or None.

    Args:
        nodes: as :func:`utils.ray.gcs.probe_head` gives them: ``ip``, ``alive``, ``resources``.
    """
    alive = {node["ip"]: int(node["resources"].get("GPU", 0)) for node in nodes if node["alive"]}
    enough = [address for address, gpus in alive.items() if gpus >= gpus_per_node]
    if len(enough) >= wanted_nodes:
        return None
    listing = ", ".join(f"{address}: {gpus} GPU" for address, gpus in sorted(alive.items())) or "no node"
    return (
        f"the run needs {wanted_nodes} node(s) with {gpus_per_node} GPU(s) each; the cluster has {listing}. "
        "Start the missing nodes with utils/ray/start_ray.sh, or lower NNODES / NGPUS_PER_NODE."
    )


def head_address(environ: Mapping[str, str] = os.environ) -> str:
    """``ip:port`` of the head that ``RAY_ADDRESS`` (default auto) means.

    Raises:
        ConnectionError: when ``auto`` finds no running cluster on this host.
    """
    from ray._private.services import canonicalize_bootstrap_address

    address = canonicalize_bootstrap_address(environ.get("RAY_ADDRESS") or "auto")
    if not address:
        raise ConnectionError("no running Ray cluster on this host")
    return address


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--nodes", type=int, required=True)
    parser.add_argument("--gpus-per-node", type=int, required=True)
    args = parser.parse_args(argv)
    try:
        address = head_address()
        host_name, _, port = address.rpartition(":")
        refused = host.try_connect(host_name, int(port))
        if refused:
            raise ConnectionError(f"{address}: {refused}")
        nodes = gcs.probe_head(address)["nodes"]
    except (ConnectionError, ValueError, gcs.HeadError) as error:
        print(f"cluster_check: {str(error).splitlines()[0]}", file=sys.stderr)
        return 1
    reason = shortage(nodes, args.nodes, args.gpus_per_node)
    if reason:
        print(f"cluster_check: {reason}", file=sys.stderr)
    return 1 if reason else 0


if __name__ == "__main__":
    sys.exit(main())
