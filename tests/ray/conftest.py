"""A host of its own for each Ray test."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from tests.ray.hosts import Host, Site, free_port, two_sites


@pytest.fixture
def make_host():
    hosts: list[Host] = []

    def make(namespace: str | None = None) -> Host:
        hosts.append(Host(namespace))
        return hosts[-1]

    yield make
    for host in hosts:
        host.close()


@pytest.fixture
def ray_host(make_host) -> Host:
    return make_host()


@pytest.fixture
def port() -> str:
    return str(free_port())


@pytest.fixture
def other_port() -> str:
    return str(free_port())


@pytest.fixture
def own_address() -> str:
    """An address of this host that a second Ray node can use."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("8.8.8.8", 53))
        except OSError as error:
            pytest.skip(f"no route to anywhere, so no address but loopback: {error}")
        return probe.getsockname()[0]


@pytest.fixture
def sites() -> Iterator[tuple[Site, Site]]:
    with two_sites("10.231.77") as found:
        yield found
