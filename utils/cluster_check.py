"""Is there a Ray cluster with enough worker slots?

    python -m utils.cluster_check --nodes 1 --gpus-per-node 8        (RAY_ADDRESS picks the cluster, default auto)

Exit code 0 when the cluster offers them, 1 with the reason otherwise. Starts and changes nothing.
"""

from __future__ import annotations

import argparse
import os
import sys


def shortage(nodes: list[dict], wanted_nodes: int, gpus_per_node: int) -> str | None:
    """Why ``ray.nodes()`` is not enough for the run, or None.

    Args:
        nodes: records with ``Alive``, ``NodeManagerAddress`` and ``Resources``.
    """
    alive = {node["NodeManagerAddress"]: int(node["Resources"].get("GPU", 0)) for node in nodes if node["Alive"]}
    enough = [address for address, gpus in alive.items() if gpus >= gpus_per_node]
    if len(enough) >= wanted_nodes:
        return None
    listing = ", ".join(f"{address}: {gpus} GPU" for address, gpus in sorted(alive.items())) or "no node"
    return (
        f"the run needs {wanted_nodes} node(s) with {gpus_per_node} GPU(s) each; the cluster has {listing}. "
        "Start the missing nodes with utils/ray/start_ray.sh, or lower NNODES / NGPUS_PER_NODE."
    )


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--nodes", type=int, required=True)
    parser.add_argument("--gpus-per-node", type=int, required=True)
    args = parser.parse_args(argv)
    import ray

    address = os.environ.get("RAY_ADDRESS", "auto")
    try:
        ray.init(address=address, log_to_driver=False, configure_logging=False)
    except (ConnectionError, RuntimeError, ValueError) as error:
        print(f"cluster_check: cannot reach a Ray cluster at {address}: {str(error).splitlines()[0]}", file=sys.stderr)
        return 1
    reason = shortage(ray.nodes(), args.nodes, args.gpus_per_node)
    ray.shutdown()
    if reason:
        print(f"cluster_check: {reason}", file=sys.stderr)
    return 1 if reason else 0


if __name__ == "__main__":
    sys.exit(main())
