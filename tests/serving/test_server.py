"""How the server listens."""

import asyncio
import socket

import pytest

pytest.importorskip("uvicorn")
from headstart.serving.server import listen


def _has_ipv6():
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_a_short_answer_is_sent_at_once(host):
    """Else it waits for word of the packet before, which a client gives after 40 ms."""
    if host == "::1" and not _has_ipv6():
        pytest.skip("no IPv6 here")
    listener = listen(host, 0)

    async def connect():
        accepted = asyncio.get_running_loop().create_future()
        server = await asyncio.start_server(lambda _, writer: accepted.set_result(writer), sock=listener)
        async with server:
            _, client = await asyncio.open_connection(host, listener.getsockname()[1])
            own = (await accepted).get_extra_info("socket")
            found = own.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            client.close()
            (await accepted).close()
        return found

    assert asyncio.run(connect())
