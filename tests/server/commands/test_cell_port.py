"""The port of a cell: two cells that start at the same moment must not share it by mistake."""

from __future__ import annotations

import contextlib
import socket

import pytest

from voxlane.server.commands.supervisor import reserve
from voxlane.server.config import Config, ServerConfig
from voxlane.server.errors import ConfigError


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_of_two_cells_that_start_at_once_one_gets_the_port() -> None:
    config = Config(ServerConfig("127.0.0.1", free_port()))
    with reserve(config) as held:  # no process of it listens yet
        with pytest.raises(ConfigError, match="the port is in use"), reserve(config):
            pass
        assert held.getsockname()[1] == config.server.port
    with reserve(config):  # free again
        pass


def test_a_cell_that_shares_its_port_lets_the_next_one_start() -> None:
    config = Config(ServerConfig("127.0.0.1", free_port(), reuse_port=True))
    with reserve(config) as one, reserve(config) as other:
        assert one.getsockname() == other.getsockname() == ("127.0.0.1", config.server.port)


def test_cells_at_two_addresses_may_have_one_port() -> None:
    port = free_port()
    with contextlib.ExitStack() as held:
        hosts = ("127.0.1.1", "127.0.1.2")
        found = [held.enter_context(reserve(Config(ServerConfig(host, port)))).getsockname() for host in hosts]
        assert found == [(host, port) for host in hosts]
