"""network_envs.sh: the three tiers on made-up hosts, and what the user exported stays."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[2]
SCRIPT = REPO / "utils/ray/network_envs.sh"
BASE = {"PATH": "/usr/bin:/bin", "NNODES": "2"}


class FakeHost:
    """A sysfs tree, a proc tree and an `ip` command with the real one's output format."""

    def __init__(self, root: Path) -> None:
        self.sysfs, self.proc, self.bin = root / "sys", root / "proc", root / "bin"
        for folder in (self.sysfs / "class", self.proc, self.bin):
            folder.mkdir(parents=True)
        self.ip("1: lo    inet 127.0.0.1/8 scope host lo", default="default via 10.0.0.254 dev eth0 proto dhcp")

    def adapter(
        self, name: str, layer: str = "InfiniBand", state: str = "4: ACTIVE", rate: str = "400 Gb/sec (4X NDR)"
    ):
        port = self.sysfs / f"class/infiniband/{name}/ports/1"
        port.mkdir(parents=True)
        (port / "state").write_text(state + "\n")
        (port / "link_layer").write_text(layer + "\n")
        (port / "rate").write_text(rate + "\n")
        return self

    def peer_memory(self):
        (self.sysfs / "module/nvidia_peermem").mkdir(parents=True)
        return self

    def ip(self, addresses: str, default: str = "", route: str = ""):
        script = self.bin / "ip"
        script.write_text(
            "#!/bin/bash\n"
            f'case "$*" in\n'
            f'  *"addr show") cat <<"X"\n{addresses}\nX\n;;\n'
            f'  *"route get"*) cat <<"X"\n{route}\nX\n;;\n'
            f'  *"route show default") cat <<"X"\n{default}\nX\n;;\n'
            "esac\n"
        )
        script.chmod(0o755)
        return self

    def printed(self, **environment: str) -> tuple[int, dict[str, str], str]:
        """(exit code, exported variables, notes) of --print."""
        env = {**BASE, "PATH": f"{self.bin}:{BASE['PATH']}", "SYSFS_ROOT": str(self.sysfs), "PROC_ROOT": str(self.proc)}
        done = subprocess.run(
            ["bash", str(SCRIPT), "--print"], env={**env, **environment}, capture_output=True, text=True
        )
        lines = [shlex.split(line) for line in done.stdout.splitlines()]
        assert all(words[0] == "export" and len(words) == 2 for words in lines), done.stdout
        return done.returncode, dict(words[1].split("=", 1) for words in lines), done.stderr


@pytest.fixture
def fake_host(tmp_path) -> FakeHost:
    return FakeHost(tmp_path)


def test_tier_a_takes_infiniband_ports_and_the_default_interface(fake_host):
    fake_host.adapter("mlx5_0").adapter("mlx5_10").adapter("mlx5_2").peer_memory()
    code, values, _ = fake_host.printed()
    assert code == 0
    assert values == {
        "NCCL_IB_DISABLE": "0",
        "NCCL_SOCKET_IFNAME": "=eth0",
        "GLOO_SOCKET_IFNAME": "eth0",
        "NCCL_IB_HCA": "=mlx5_0:1,mlx5_2:1,mlx5_10:1",
        "UCX_NET_DEVICES": "mlx5_0:1,mlx5_2:1,mlx5_10:1",
    }


def test_tier_b_without_gpudirect(fake_host):
    code, values, notes = fake_host.adapter("mlx5_0").printed()
    assert code == 0 and values["NCCL_NET_GDR_LEVEL"] == "LOC" and values["NCCL_IB_DISABLE"] == "0"
    assert "tier B" in notes


def test_open_kernel_modules_give_gpudirect_through_dma_buf(fake_host):
    (fake_host.proc / "driver/nvidia").mkdir(parents=True)
    (fake_host.proc / "driver/nvidia/version").write_text(
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580\n"
    )
    (fake_host.proc / "sys/kernel").mkdir(parents=True)
    release = fake_host.proc / "sys/kernel/osrelease"
    release.write_text("6.8.0-41-generic\n")
    assert "tier A" in fake_host.adapter("mlx5_0").printed()[2]
    release.write_text("5.4.0-90-generic\n")
    assert "tier B" in fake_host.printed()[2]


def test_tier_c_without_adapters_and_with_disable_ib(fake_host):
    code, values, _ = fake_host.printed()
    assert code == 0 and values["NCCL_IB_DISABLE"] == "1" and "NCCL_IB_HCA" not in values
    fake_host.adapter("mlx5_0").peer_memory()
    _, values, _ = fake_host.printed(DISABLE_IB="1")
    assert values["NCCL_IB_DISABLE"] == "1" and values["UCX_NET_DEVICES"] == "eth0" and "NCCL_IB_HCA" not in values


def test_inactive_slow_and_ethernet_ports_are_left_out(fake_host):
    fake_host.adapter("mlx5_0").adapter("mlx5_1", state="1: DOWN").adapter("mlx5_2", rate="100 Gb/sec (4X EDR)")
    fake_host.adapter("mlx5_bond_0", layer="Ethernet")
    _, values, notes = fake_host.printed(NET_TIER="A")
    assert values["NCCL_IB_HCA"] == "=mlx5_0:1"
    assert "mlx5_2:1 (InfiniBand, 100 Gb/s)" in notes and "mlx5_bond_0:1 (Ethernet, 400 Gb/s)" in notes


def test_roce_only_host_uses_its_ethernet_ports(fake_host):
    fake_host.adapter("mlx5_0", layer="Ethernet").adapter("mlx5_1", layer="Ethernet")
    assert fake_host.printed(NET_TIER="B")[1]["NCCL_IB_HCA"] == "=mlx5_0:1,mlx5_1:1"


def test_nothing_is_invented(fake_host):
    fake_host.ip("1: lo    inet 127.0.0.1/8 scope host lo", default="")
    code, values, notes = fake_host.printed(NET_TIER="C")
    assert code == 0 and "NCCL_SOCKET_IFNAME" not in values and "no interface detected" in notes
    fake_host.ip("", default="default via 10.0.0.1 dev eth0\ndefault via 10.1.0.1 dev eth1")
    code, values, notes = fake_host.printed(NET_TIER="C")
    assert "NCCL_SOCKET_IFNAME" not in values and "several default routes (eth0 eth1)" in notes


def test_interface_of_the_node_address_wins_over_the_route(fake_host):
    addresses = (
        "2: eth0    inet 10.0.0.5/24 brd 10.0.0.255 scope global eth0\\       valid_lft forever\n"
        "3: ib0    inet 172.16.0.5/16 brd 172.16.255.255 scope global ib0\\       valid_lft forever"
    )
    fake_host.ip(addresses, default="default via 10.0.0.1 dev eth0", route="172.16.0.1 dev eth9 src 10.0.0.5 uid 0")
    assert fake_host.printed(NET_TIER="C", NODE_IP="172.16.0.5")[1]["GLOO_SOCKET_IFNAME"] == "ib0"
    # On the head the route to HEAD_IP is the loopback device; the address decides.
    assert fake_host.printed(NET_TIER="C", HEAD_IP="10.0.0.5")[1]["GLOO_SOCKET_IFNAME"] == "eth0"
    assert fake_host.printed(NET_TIER="C", HEAD_IP="172.16.0.1")[1]["GLOO_SOCKET_IFNAME"] == "eth9"


def test_exported_values_are_kept(fake_host):
    fake_host.adapter("mlx5_0").peer_memory()
    given = {"NCCL_IB_HCA": "=mlx5_7:1", "NCCL_SOCKET_IFNAME": "bond0", "NCCL_DEBUG": "IN'FO"}
    _, values, notes = fake_host.printed(**given)
    assert values.items() >= given.items()
    assert "NCCL_IB_HCA==mlx5_7:1 kept" in notes


@pytest.mark.parametrize("tier", ["A", "B"])
def test_a_tier_that_cannot_be_had_is_an_error(fake_host, tier):
    code, values, notes = fake_host.printed(NET_TIER=tier)
    assert code == 1 and not values and "no active port" in notes and "NET_TIER=C" in notes
    assert fake_host.printed(NET_TIER=tier, NCCL_IB_HCA="mlx5_0")[0] == 0


@pytest.mark.parametrize(
    "environment, words",
    [
        ({"NET_TIER": "D"}, "NET_TIER=D"),
        ({"NET_TIER": "A", "DISABLE_IB": "1"}, "contradicts"),
        ({"NNODES": "x"}, "NNODES=x"),
    ],
)
def test_bad_settings(fake_host, environment, words):
    code, values, notes = fake_host.printed(**environment)
    assert code == 2 and not values and words in notes


def test_one_node_sets_nothing(fake_host):
    assert fake_host.adapter("mlx5_0").printed(NNODES="1") == (0, {}, "")


def test_sourcing_again_with_another_tier_takes_the_first_one_back(fake_host):
    fake_host.adapter("mlx5_0")
    program = f"export NET_TIER=B; source {SCRIPT}; NET_TIER=A; source {SCRIPT}; env"
    env = {**BASE, "PATH": f"{fake_host.bin}:{BASE['PATH']}", "SYSFS_ROOT": str(fake_host.sysfs), "NCCL_DEBUG": "WARN"}
    out = subprocess.run(["bash", "-euc", program], env=env, capture_output=True, text=True, check=True).stdout
    assert "NCCL_IB_HCA==mlx5_0:1" in out and "NCCL_DEBUG=WARN" in out and "HYOCR_NET_TIER=A" in out
    assert not re.search("^NCCL_NET_GDR", out, re.M)


def test_allowlist_has_25_documented_names_that_cover_what_the_script_sets():
    rows = [line.split("\t") for line in (SCRIPT.parent / "network_allowlist.txt").read_text().splitlines()]
    rows = [row for row in rows if not row[0].startswith("#")]
    names = [row[0] for row in rows]
    assert len(names) == len(set(names)) == 25
    assert all(len(row) == 2 and len(row[1]) > 10 for row in rows)
    assert set(re.findall(r"hyocr_net_set ([A-Z_]+)", SCRIPT.read_text())) <= set(names)
