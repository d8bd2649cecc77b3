"""The process that listens: connections that do not wait for ever, and a stop that loses nothing."""

import asyncio
import json
import logging
import socket
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from headstart.errors import ConfigError
from headstart.serving.app import make_app
from headstart.serving.bounds import Bounds
from headstart.serving.guard import ABORT
from headstart.serving.service import Service

LONGEST_HEAD = 32 * 1024  # bytes of a request's line and headers
IDLE = 15  # seconds that a connection may rest between two requests


def connection_class(bounds: Bounds) -> type[H11Protocol]:
    """A connection that is closed when a request's head does not come in time, or when there are too many."""

    class Connection(H11Protocol):
        """One client."""

        _timer: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            """A client is there; its first head is awaited."""
            super().connection_made(transport)
            self.app_state = {**self.app_state, ABORT: transport.abort}
            if len(self.connections) > bounds.connections:
                self._answer(
                    503, "too many clients are connected", "ask again in a moment", "Retry-After: 5\r\n"
                )
            else:
                self._wait_for_head()

        def connection_lost(self, exc: Exception | None) -> None:
            """The client is gone."""
            self._stop_waiting()
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            """Something came."""
            super().data_received(data)
            if self.conn.their_state is not h11.IDLE:
                self._stop_waiting()
            elif self._timer is None:
                self._wait_for_head()

        def send_400_response(self, msg: str) -> None:
            """Say why what came is no request of ours."""
            self._answer(400, "that is no HTTP request", "or its head is too long")

        def _wait_for_head(self) -> None:
            self._timer = self.loop.call_later(bounds.slow, self._give_up)

        def _stop_waiting(self) -> None:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

        def _give_up(self) -> None:
            self._timer = None
            if not self.transport.is_closing():
                self.transport.abort()

        def _answer(self, status: int, error: str, hint: str, headers: str = "") -> None:
            body = json.dumps({"error": error, "hint": hint})
            head = (
                f"HTTP/1.1 {status} {'Bad Request' if status == 400 else 'Service Unavailable'}\r\n{headers}"
            )
            fixed = (
                f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
            )
            self.transport.write((head + fixed + body).encode("ascii"))
            self.transport.close()

    return Connection


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
        h11_max_incomplete_event_size=LONGEST_HEAD,
    )
    try:
        Server(config, service, on_ready).run(sockets=[listener])
    finally:
        service.library.close()
