"""How long a machine that has vanished is waited for: the system waits a quarter of an hour, or for ever."""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event, Thread

LOOKS = 1.0  # seconds between two looks for new connections
OPEN = Path("/proc/self/fd")


@contextmanager
def limited(port: int, seconds: float) -> Iterator[None]:
    """Meanwhile, connections of this process to `port` of any machine fail after so many seconds without an answer."""
    over = Event()

    def look() -> None:
        while not over.wait(LOOKS):
            limit(port, seconds)

    looking = Thread(target=look, daemon=True)
    looking.start()
    try:
        yield
    finally:
        over.set()
        looking.join()


def limit(port: int, seconds: float) -> int:
    """Let this process's connections to `port` fail after so many seconds without an answer; how many there are.

    Torch opens them without a limit and hands none of them out, so they are looked up where the system lists them.
    """
    if not (hasattr(socket, "TCP_USER_TIMEOUT") and OPEN.is_dir()):  # another system: its own patience holds
        return 0
    found = 0
    for path in list(OPEN.iterdir()):
        with suppress(OSError):  # closed in the meantime, or not connected
            if os.readlink(path).startswith("socket:"):
                found += _limit(int(path.name), port, seconds)
    return found


def _limit(handle: int, port: int, seconds: float) -> bool:
    with socket.socket(fileno=os.dup(handle)) as connection:
        is_internet = connection.family in (socket.AF_INET, socket.AF_INET6)
        if not is_internet or connection.type != socket.SOCK_STREAM or connection.getpeername()[1] != port:
            return False
        tcp = socket.IPPROTO_TCP
        connection.setsockopt(tcp, socket.TCP_USER_TIMEOUT, round(1000 * seconds))
        connection.setsockopt(tcp, socket.TCP_KEEPIDLE, max(1, int(seconds / 3)))
        connection.setsockopt(tcp, socket.TCP_KEEPINTVL, max(1, int(seconds / 6)))
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        return True
