"""Connections to a port fail after a time, and no others are touched."""

import os
import socket

import pytest

from headstart.training.launch import limit, limited

pytestmark = pytest.mark.skipif(
    not hasattr(socket, "TCP_USER_TIMEOUT"), reason="this system has its own patience"
)


def patience(connection: socket.socket) -> int:
    return connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)


def test_only_connections_to_the_port_get_a_limit():
    handles = len(os.listdir("/proc/self/fd"))
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_server(("127.0.0.1", 0)) as other:
        port = server.getsockname()[1]
        with (
            socket.create_connection(server.getsockname()) as ours,
            socket.create_connection(other.getsockname()) as another,
        ):
            assert limit(port, 30.0) == 1
            assert (patience(ours), patience(another)) == (30_000, 0)
            assert ours.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            there, _ = server.accept()
            with there:
                there.sendall(b"still open")
                assert ours.recv(10) == b"still open"
    assert len(os.listdir("/proc/self/fd")) == handles


def test_connections_made_later_get_it_too(monkeypatch):
    monkeypatch.setattr("headstart.training.launch.LOOKS", 0.001)
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        limited(server.getsockname()[1], 12.0),
        socket.create_connection(server.getsockname()) as late,
    ):
        while not patience(late):
            pass
        assert patience(late) == 12_000
