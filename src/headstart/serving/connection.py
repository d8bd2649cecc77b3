"""One client's connection: nothing that it sends is read without bound, and nothing is waited for for ever."""

import asyncio
import json
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from headstart.serving.bounds import Bounds
from headstart.serving.link import LINK, Link

LONGEST_HEAD = 32 * 1024  # bytes of a request's line and headers
PORTION = 4096  # bytes read on before looking whether a client sends its next request too early


class BadRequest(Exception):
    """What came is no request of ours."""


class Timer:
    """Something that is done after a while, unless it is called off."""

    def __init__(self, loop: asyncio.AbstractEventLoop, seconds: float, act: Any):
        self._loop, self._seconds, self._act = loop, seconds, act
        self._handle: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Begin to count, unless it counts already."""
        if self._handle is None:
            self._handle = self._loop.call_later(self._seconds, self._ring)

    def stop(self) -> None:
        """Call it off."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _ring(self) -> None:
        self._handle = None
        self._act()


class Pen:
    """A transport that writes at once what is written in one turn of the loop: head and body of an answer go together."""

    def __init__(self, loop: asyncio.AbstractEventLoop, transport: asyncio.Transport):
        self._loop, self._transport = loop, transport
        self._waiting: list[bytes] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        """Send `data` in this turn, after what waits already."""
        if not self._waiting:
            self._loop.call_soon(self._flush)
        self._waiting.append(data)

    def close(self) -> None:
        """Send what waits, then hang up."""
        self._flush()
        self._transport.close()

    def abort(self) -> None:
        """Hang up at once."""
        self._waiting = []
        self._transport.abort()

    def get_write_buffer_size(self) -> int:
        """Bytes that the client has not taken in."""
        return self._transport.get_write_buffer_size() + sum(map(len, self._waiting))

    def _flush(self) -> None:
        waiting, self._waiting = self._waiting, []
        if waiting:
            self._transport.write(b"".join(waiting))


def connection_class(bounds: Bounds) -> type[HttpToolsProtocol]:
    """The connections of a server with these bounds."""

    class Connection(HttpToolsProtocol):
        """One client: cut off when a head does not come in time or an answer is not taken in, or when there are too many."""

        _held = b""  # came too early: read when the request before is answered
        _unread = 0  # bytes that came since something was understood

        def connection_made(self, transport: Any) -> None:
            """A client is there; its first head is awaited."""
            super().connection_made(Pen(self.loop, transport))  # type: ignore[arg-type]
            self._link = Link(self.transport.abort)
            self.app_state = {**self.app_state, LINK: self._link}
            self._waiting = Timer(self.loop, bounds.slow, self._cut)
            self._deaf = Timer(self.loop, bounds.slow, self._look)
            if len(self.connections) > bounds.connections:
                self._answer(
                    503, "too many clients are connected", "ask again in a moment", "Retry-After: 5\r\n"
                )
            else:
                self._waiting.start()

        def connection_lost(self, exc: Exception | None) -> None:
            """The client is gone."""
            self._waiting.stop()
            self._deaf.stop()
            self._unset_keepalive_if_required()
            self._held = b""
            super().connection_lost(exc)
            self._link.leave()

        def data_received(self, data: bytes) -> None:
            """Something came."""
            self._held += data
            self._read_on()

        def _read_on(self) -> None:
            """Read what came, up to a request that has to wait for the one before."""
            data, at = self._held, 0
            while at < len(data) and not self.pipeline and not self.transport.is_closing():
                portion, at = data[at : at + PORTION], at + PORTION
                self._unread += len(portion)
                super().data_received(portion)
                if self._unread > LONGEST_HEAD:
                    self.send_400_response("")
            if self.transport.is_closing():
                return
            self._held = data[at:]
            if self._held:
                self.flow.pause_reading()
            # While nothing is being answered the client owes us a head, or the rest of a body that nobody wants.
            (self._waiting.stop if self._is_busy() else self._waiting.start)()

        def _is_busy(self) -> bool:
            return self.cycle is not None and not self.cycle.response_complete

        def on_header(self, name: bytes, value: bytes) -> None:
            """A header came; those that follow a body are not kept."""
            if "method" not in self.scope:
                super().on_header(name, value)

        def on_headers_complete(self) -> None:
            """The head is there: the request begins to be answered."""
            self._unread = 0
            hosts = sum(name == b"host" for name, _ in self.headers)
            if hosts > 1 or (hosts == 0 and self.parser.get_http_version() == "1.1"):
                raise BadRequest
            super().on_headers_complete()
            if self.parser.should_upgrade():  # to what, we do not speak
                self.cycle.keep_alive = False

        def on_body(self, body: bytes) -> None:
            """Some of the body is there."""
            self._unread = 0
            super().on_body(body)

        def on_message_complete(self) -> None:
            """The whole request is there."""
            self._unread = 0
            super().on_message_complete()

        def on_response_complete(self) -> None:
            """A request is answered: the next one, should it be there, is read."""
            super().on_response_complete()
            if self._held and not self.pipeline:
                self._unset_keepalive_if_required()
                self.loop.call_soon(self._read_on)

        def pause_writing(self) -> None:
            """The client takes in less than we send."""
            super().pause_writing()
            self._left = self.transport.get_write_buffer_size()
            self._deaf.start()

        def resume_writing(self) -> None:
            """It has caught up."""
            self._deaf.stop()
            super().resume_writing()

        def _look(self) -> None:
            """Cut off a client that has taken in nothing since the last look."""
            left = self.transport.get_write_buffer_size()
            if left < self._left:
                self._left = left
                self._deaf.start()
            else:
                self._cut()

        def _cut(self) -> None:
            self.transport.abort()

        def send_400_response(self, msg: str) -> None:
            """Say that what came is no request of ours, unless that would look like the answer to one before."""
            if self._is_busy() and (self.cycle.response_started or not self.cycle.more_body):
                self._cut()
            else:
                self._answer(400, "that is no HTTP request", "or its head is too long")

        def _answer(self, status: int, error: str, hint: str, headers: str = "") -> None:
            body = json.dumps({"error": error, "hint": hint})
            reason = {400: "Bad Request", 503: "Service Unavailable"}[status]
            head = f"HTTP/1.1 {status} {reason}\r\n{headers}"
            fixed = (
                f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
            )
            self.transport.write((head + fixed + body).encode("ascii"))
            self.transport.close()

    return Connection
