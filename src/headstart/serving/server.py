"""The process that listens, and a stop that loses nothing."""

import gc
import logging
import socket
import time
from collections.abc import Callable
from types import FrameType

import uvicorn

from headstart.errors import ConfigError
from headstart.serving.app import make_app
from headstart.serving.connection import connection_class
from headstart.serving.service import Service

IDLE = 15  # seconds that a connection may rest between two requests


class Server(uvicorn.Server):
    """A server that, when asked to stop, refuses what is new, finishes what is under way, and ends well."""

    def __init__(self, config: uvicorn.Config, service: Service, on_ready: Callable[[], None]):
        super().__init__(config)
        self.service, self.on_ready = service, on_ready
        self._stop_by = float("inf")

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """The first signal begins to stop; a second one does not wait."""
        gate = self.service.gate
        if gate.is_stopping:
            self.should_exit = self.force_exit = True
            return
        gate.is_stopping = True
        self._stop_by = time.monotonic() + self.service.bounds.drain

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, and say so."""
        await super().startup(sockets)
        self.on_ready()

    async def on_tick(self, counter: int) -> bool:
        """Whether it is time to end."""
        gate = self.service.gate
        is_over = gate.is_stopping and (gate.under_way == 0 or time.monotonic() > self._stop_by)
        return await super().on_tick(counter) or is_over


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens at an address; the port 0 takes any that is free."""
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        # asyncio sends at once only from sockets that name their protocol: others hold a short answer back for 40 ms
        found = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind((host, port))
        found.listen(1024)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigError(
            f"cannot listen at {host} port {port}: {reason}", hint="choose another --host or --port"
        ) from None
    return found


def run_server(service: Service, listener: socket.socket, on_ready: Callable[[], None]) -> None:
    """Serve until a signal comes, then finish what is under way."""
    quiet = logging.getLogger("uvicorn")
    quiet.addHandler(logging.NullHandler())
    quiet.propagate = False  # we say what there is to say ourselves
    config = uvicorn.Config(
        make_app(service),
        http=connection_class(service.bounds),
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=IDLE,
        timeout_graceful_shutdown=2,
    )
    gc.collect()
    gc.freeze()  # what is there now stays: to look through it again and again would stop every answer for 0.2 seconds
    try:
        Server(config, service, on_ready).run(sockets=[listener])
    finally:
        gc.unfreeze()
        service.library.close()
