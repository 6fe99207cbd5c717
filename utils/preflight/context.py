"""What the checks share: the settings, and facts that are read once, when the first check asks for them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from utils.preflight import node_probe
from utils.preflight.data_files import DataFile
from utils.preflight.model_files import ModelFolder
from utils.preflight.results import NotChecked, remembered
from utils.preflight.settings import REPO, VERL_REWARD, Settings

LOCAL, CLUSTER = "local", "cluster"
STAGES = (LOCAL, CLUSTER)
START_CODE = "import verl, verl_hyocr.activate"
"""What every worker of a run does first."""


@dataclass
class Context:
    """One preflight.

    Args:
        settings: of the run.
        environ: the environment that the run will get.
        stages: ``"local"`` looks at what needs no Ray, ``"cluster"`` at the cluster and its nodes.
    """

    settings: Settings
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    stages: tuple[str, ...] = STAGES

    @cached_property
    def model(self) -> ModelFolder:
        if not self.settings.model_path:
            raise NotChecked("MODEL_PATH is not set")
        return ModelFolder(self.settings.model_path)

    @cached_property
    def train(self) -> list[DataFile]:
        return [DataFile(path, self.settings.image_key) for path in self.settings.train_files]

    @cached_property
    def data(self) -> list[DataFile]:
        """Training and validation files, each once; the training files are those of :attr:`train`."""
        known = {file.path: file for file in self.train}
        return [known.get(path) or DataFile(path, self.settings.image_key) for path in self.settings.data_files]

    @cached_property
    def train_rows(self) -> int:
        return readable(lambda: sum(file.rows for file in self.train))

    @cached_property
    def total_steps(self) -> int:
        """Steps of the whole run, rows that the length filter leaves out not considered."""
        if self.settings.total_steps:
            return self.settings.total_steps
        return self.train_rows // self.settings.train_batch_size * self.settings.total_epochs

    @cached_property
    def forwarded(self) -> dict[str, str]:
        """Network variables that the launcher hands to the workers of all nodes; they win over a node's own."""
        if "HYOCR_FORWARD" in self.environ:
            names = self.environ["HYOCR_FORWARD"].split()
        else:
            found_here = {entry.split("=", 1)[0] for entry in self.environ.get("HYOCR_NET_SET", "").split()}
            names = [name for name in network_variables() if name not in found_here]
        return {name: self.environ[name] for name in names if name in self.environ}

    @remembered
    def judge_servers(self) -> dict[str, str]:
        """Server -> why it does not answer, "" when it does. Raises NotChecked without a usable route."""
        from utils.preflight.judge import ping_servers

        return ping_servers()

    @cached_property
    def shared_paths(self) -> list[str]:
        """Files and folders that every node must have under the same path."""
        paths = [self.settings.model_path, *self.settings.data_files]
        if self.settings.reward_path != VERL_REWARD and not self.settings.reward_path.startswith("pkg://"):
            paths.append(self.settings.reward_path)
        return [path for path in paths if path]

    @cached_property
    def local_node(self) -> dict[str, Any]:
        return {"ip": "this host", "name": "", **node_probe.probe(self.shared_paths, network_variables())}

    @remembered
    def cluster(self) -> Any:
        """The Ray cluster: ``utils.preflight.ray_cluster.Cluster``. Raises NotChecked when it does not answer."""
        from utils.preflight.ray_cluster import find_cluster

        return find_cluster(self)

    @remembered
    def nodes(self) -> list[dict[str, Any]]:
        """Facts of the nodes to look at: this host before Ray is up, every node of the cluster afterwards.

        A single node on this host is asked once, without Ray, in the local stage.
        """
        if CLUSTER not in self.stages:
            return [self.local_node]
        try:
            cluster = self.cluster
        except NotChecked:
            return [self.local_node] if LOCAL in self.stages else []
        if cluster.is_this_host_only:
            return [self.local_node] if LOCAL in self.stages else []
        return cluster.node_facts

    @cached_property
    def gpu_bytes(self) -> int:
        """Memory of the smallest GPU among the nodes; NotChecked when no node has one."""
        sizes = [gpu["total"] for node in self.nodes for gpu in node.get("gpus") or ()]
        if not sizes:
            raise NotChecked("no GPU is visible")
        return min(sizes)

    @cached_property
    def plugin_start(self) -> subprocess.Popen[str]:
        """A process that imports verl with the plugin, as every worker will; takes seconds, so it is started early."""
        return subprocess.Popen(
            [sys.executable, "-c", START_CODE],
            env={
                **self.environ,
                "PYTHONPATH": os.pathsep.join(filter(None, (str(REPO), self.environ.get("PYTHONPATH")))),
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )


def readable(read: Any) -> Any:
    """``read()``, where a file that cannot be read means that there is nothing to check: its own check says so."""
    import pyarrow as pa

    try:
        return read()
    except (OSError, ValueError, KeyError, TypeError, pa.ArrowException) as error:
        raise NotChecked(str(error)) from error


def network_variables() -> list[str]:
    """The names in ``utils/ray/network_allowlist.txt``."""
    lines = (REPO / "utils/ray/network_allowlist.txt").read_text(encoding="utf-8").splitlines()
    return [line.split("\t")[0] for line in lines if line and not line.startswith("#")]
