"""Which ports a server is given, and what happens where it cannot have one."""

from __future__ import annotations

import socket

import pytest

from livetables.local.ports import LOOPBACK, PORTS, free_ports, is_free
from livetables.model.errors import SetupError


def test_ports_are_different_and_free() -> None:
    ports = free_ports(3)
    assert len(set(ports)) == 3
    assert all(port in PORTS and is_free(port) for port in ports)


def test_a_port_on_which_somebody_listens_is_not_free() -> None:
    with socket.create_server((LOOPBACK, 0)) as taken:
        assert not is_free(taken.getsockname()[1])


@pytest.mark.parametrize("host", ["203.0.113.1", "nobody.invalid"])
def test_a_host_that_is_not_of_this_machine_is_named_and_not_asked_for_each_port(host: str) -> None:
    with pytest.raises(SetupError, match=f"nothing can listen at {host}") as refusal:
        free_ports(2, host)
    assert "server.host" in refusal.value.cure


def test_nothing_is_asked_where_no_port_is_needed() -> None:
    assert free_ports(0, "nobody.invalid") == []
