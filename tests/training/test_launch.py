"""TCP connections of a process fail after a time without an answer."""

import os
import socket

import pytest

from headstart.training.launch import set_tcp_timeouts, tcp_timeouts

pytestmark = pytest.mark.skipif(
    not hasattr(socket, "TCP_USER_TIMEOUT"), reason="this system cannot limit how long a connection is silent"
)


def timeout(connection: socket.socket) -> int:
    return connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)


def test_open_connections_get_a_timeout_and_still_work():
    handles = len(os.listdir("/proc/self/fd"))
    one, other = socket.socketpair()
    with (
        one,
        other,
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as ours,
        socket.socket(type=socket.SOCK_DGRAM),
    ):
        assert timeout(ours) == 0
        set_tcp_timeouts(30.0)
        assert timeout(ours) == 30_000
        assert ours.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        there, _ = server.accept()
        with there:
            there.sendall(b"still open")
            assert ours.recv(10) == b"still open"
    assert len(os.listdir("/proc/self/fd")) == handles


def test_connections_opened_later_get_it_too(monkeypatch):
    monkeypatch.setattr("headstart.training.launch.CONNECTION_INTERVAL", 0.001)
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        tcp_timeouts(12.0),
        socket.create_connection(server.getsockname()) as late,
    ):
        while not timeout(late):
            pass
        assert timeout(late) == 12_000
