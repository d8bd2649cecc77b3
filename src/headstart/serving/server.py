"""The process of `headstart serve`: it listens, limits connections, and stops without losing requests."""

import asyncio
import gc
import json
import logging
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TextIO

import uvicorn
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from headstart.config import TrainingConfig, parse
from headstart.errors import ConfigError
from headstart.serving.registry import AppState
from headstart.serving.schema import Limits, ServerConfig

LOOPBACK = ("127.0.0.1", "localhost", "::1")
MIN_TOKEN_LENGTH = 16
KEEP_ALIVE_SECONDS = 15  # for a connection without a request
MAX_HEAD_BYTES = 32 * 1024  # of a request's line and headers
PARSE_BYTES = 4096  # parsed at once, before looking for a request that was sent too early


def serve(
    runs: Sequence[str],
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    token_file: Path | None = None,
    settings: Mapping[str, Any] | None = None,
    precision: str | None = None,
    log_texts: bool = False,
    as_json: bool = False,
    quiet: bool = False,
    on_ready: Callable[[str], None] = lambda url: None,
) -> None:
    """Serve runs until a signal arrives; returns when all requests in flight are answered."""
    limits = parse(ServerConfig, settings or {}).limits
    if precision is not None:
        parse(TrainingConfig, {"precision": precision}, "training")
    token = read_token(token_file) if token_file is not None else None
    if token is None and host not in LOOPBACK:
        problem = f"at {host} everybody on the network could use this server"
        raise ConfigError(problem, hint="give a secret with --token-file FILE, or leave --host out")
    logger = make_logger(as_json=as_json, quiet=quiet)
    hosts = frozenset() if token is not None else frozenset([*LOOPBACK, host])
    state = AppState(runs, limits, logger, token, hosts, log_texts, precision)
    listener = listen(host, port)  # a port in use is reported before models are loaded
    state.load_all()
    if precision == "bf16":
        for model in state.models:
            if model.precision == "float32":
                logger.warning("%s runs in float32: this machine has no bfloat16 arithmetic", model.name)
    name = f"[{host}]" if ":" in host else host
    url = f"http://{name}:{listener.getsockname()[1]}"
    run_server(state, listener, lambda: on_ready(url))


def read_token(path: Path) -> str:
    """The secret in the first line of a file."""
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the token file {path} cannot be read: {error}", hint="give a text file") from None
    token = lines[0].strip() if lines else ""
    if len(token) < MIN_TOKEN_LENGTH or not token.isascii() or not token.isprintable() or " " in token:
        problem = f"the first line of {path} must be a token of {MIN_TOKEN_LENGTH} or more letters, digits and signs"
        raise ConfigError(problem, hint="make one: python3 -c 'import secrets; print(secrets.token_urlsafe(32))'")
    return token


# --- the log


class JSONFormatter(logging.Formatter):
    """JSON lines for machines; a request is a record with `fields`."""

    def format(self, record: logging.LogRecord) -> str:
        """One line."""
        fields = getattr(record, "fields", None) or {"message": record.getMessage()}
        return json.dumps({"time": self.formatTime(record, self.datefmt), **fields})


def make_logger(*, as_json: bool = False, quiet: bool = False, stream: TextIO | None = None) -> logging.Logger:
    """A logger of one server, to standard error by default; `quiet` leaves requests out."""
    logger = logging.Logger("headstart.serving", logging.WARNING if quiet else logging.INFO)
    handler = logging.StreamHandler(stream)
    make_formatter = JSONFormatter if as_json else logging.Formatter
    handler.setFormatter(make_formatter("%(asctime)s %(message)s", "%Y-%m-%dT%H:%M:%S"))
    logger.addHandler(handler)
    return logger


# --- connections


class Timeout:
    """Calls a function after some seconds unless it is stopped."""

    def __init__(self, seconds: float, callback: Callable[[], None]):
        self._seconds, self._callback = seconds, callback
        self._handle: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Start the clock unless it runs already."""
        if self._handle is None:
            self._handle = asyncio.get_running_loop().call_later(self._seconds, self._callback)

    def stop(self) -> None:
        """Stop the clock."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None


class LimitedProtocol(HttpToolsProtocol):
    """uvicorn's HTTP connection with limits that uvicorn lacks.

    It limits the size of a request head, the time for a head and for accepting a response, the number of pipelined
    requests and the number of connections. When the client disconnects, it cancels the task of its request.
    """

    def __init__(self, *args: Any, limits: Limits, **options: Any):
        super().__init__(*args, **options)
        self._wrapped_app, self.app = self.app, self._run_app
        self._limits = limits
        self._task: asyncio.Task[Any] | None = None  # of the request that is being answered
        self._unread = b""  # sent too early: parsed when the request before is answered
        self._num_pending = 0  # bytes parsed since the last complete head or piece of a body
        self._head_timeout = Timeout(limits.client_timeout, lambda: self.transport.abort())
        self._write_timeout = Timeout(limits.client_timeout, self._check_progress)
        self._buffer_size = 0  # at the last check

    async def _run_app(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._task = asyncio.current_task()
        try:
            await self._wrapped_app(scope, receive, send)
        finally:
            self._task = None

    def connection_made(self, transport: Any) -> None:
        """Wait for the first head, unless there are too many connections."""
        super().connection_made(transport)
        if len(self.connections) > self._limits.max_connections:
            self._reject("503 Service Unavailable", "too many clients are connected", "try again in a moment")
        else:
            self._head_timeout.start()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the request that is being answered."""
        self._head_timeout.stop()
        self._write_timeout.stop()
        self._unread = b""
        super().connection_lost(exc)
        if self._task is not None:
            self._task.cancel()

    def data_received(self, data: bytes) -> None:
        """Parse bytes of the client."""
        self._unread += data
        self._parse()

    def _parse(self) -> None:
        """Parse up to a request that has to wait for the one before."""
        data, position = self._unread, 0
        while position < len(data) and not self.pipeline and not self.transport.is_closing():
            chunk = data[position : position + PARSE_BYTES]
            position += PARSE_BYTES
            self._num_pending += len(chunk)
            super().data_received(chunk)
            if self._num_pending > MAX_HEAD_BYTES:
                self.send_400_response("")
        if self.transport.is_closing():
            return
        self._unread = data[position:]
        if self._unread:
            self.flow.pause_reading()
        # Unless a response is being computed, the client owes a head or the rest of a body.
        (self._head_timeout.stop if self._is_answering() else self._head_timeout.start)()

    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def on_header(self, name: bytes, value: bytes) -> None:
        """Store a header; trailers after a body are ignored."""
        if "method" not in self.scope:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Start to answer a request."""
        self._num_pending = 0
        num_hosts = sum(name == b"host" for name, _ in self.headers)
        if num_hosts > 1 or (num_hosts == 0 and self.parser.get_http_version() == "1.1"):
            raise ValueError("not one Host header")  # the parser raises its own error from it
        super().on_headers_complete()
        if self.parser.should_upgrade():  # to another protocol: the rest of the bytes is not HTTP
            self.cycle.keep_alive = False

    def on_body(self, body: bytes) -> None:
        """Store a piece of a body."""
        self._num_pending = 0
        super().on_body(body)

    def on_response_complete(self) -> None:
        """Parse the next request if it is here already."""
        super().on_response_complete()
        if self._unread and not self.pipeline:
            self.loop.call_soon(self._parse)

    def pause_writing(self) -> None:
        """The client accepts less than the server sends."""
        super().pause_writing()
        self._buffer_size = self.transport.get_write_buffer_size()
        self._write_timeout.start()

    def resume_writing(self) -> None:
        """The client has caught up."""
        self._write_timeout.stop()
        super().resume_writing()

    def _check_progress(self) -> None:
        """Disconnect a client that has accepted nothing since the last check."""
        size = self.transport.get_write_buffer_size()
        if size >= self._buffer_size:
            self.transport.abort()
        else:
            self._buffer_size = size
            self._write_timeout.stop()
            self._write_timeout.start()

    def send_400_response(self, msg: str) -> None:
        """Reject invalid bytes, unless that would look like the response to the request before."""
        if self._is_answering() and (self.cycle.response_started or not self.cycle.more_body):
            self.transport.abort()
        else:
            self._reject("400 Bad Request", "this is not an HTTP request", "or its head is too long")

    def _reject(self, status: str, error: str, hint: str) -> None:
        body = json.dumps({"error": error, "hint": hint})
        headers = ["Content-Type: application/json", f"Content-Length: {len(body)}", "Connection: close"]
        if status.startswith("503"):
            headers.append("Retry-After: 5")
        self.transport.write("\r\n".join([f"HTTP/1.1 {status}", *headers, "", body]).encode("ascii"))
        self.transport.close()


# --- the process


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 takes any free port."""
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        # asyncio sets TCP_NODELAY only if the socket names its protocol; otherwise short responses wait for 40 ms
        listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(1024)
    except (OSError, OverflowError) as error:
        problem = f"cannot listen at {host} port {port}: {getattr(error, 'strerror', None) or error}"
        raise ConfigError(problem, hint="choose another --host or --port") from None
    return listener


class StoppingServer(uvicorn.Server):
    """A server that refuses new requests after a signal, and exits when those in flight are answered."""

    def __init__(self, config: uvicorn.Config, state: AppState, on_ready: Callable[[], None]):
        super().__init__(config)
        self.state, self.on_ready, self.deadline = state, on_ready, float("inf")

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, and report it."""
        await super().startup(sockets)
        self.on_ready()

    def handle_exit(self, sig: int, frame: Any) -> None:
        """Stop after the requests in flight; the second signal stops at once."""
        self.should_exit = self.force_exit = self.state.is_stopping
        self.state.is_stopping = True
        self.deadline = time.monotonic() + self.state.limits.shutdown_timeout

    async def on_tick(self, counter: int) -> bool:
        """Whether to exit; uvicorn asks ten times a second."""
        is_over = not self.state.in_flight or time.monotonic() > self.deadline
        return await super().on_tick(counter) or (self.state.is_stopping and is_over)


def run_server(state: AppState, listener: socket.socket, on_ready: Callable[[], None]) -> None:
    """Serve until a signal arrives; then refuse new requests and finish those in flight."""
    from headstart.serving.app import App

    logger = logging.getLogger("uvicorn")
    logger.addHandler(logging.NullHandler())
    logger.propagate = False  # the middleware logs requests and errors
    config = uvicorn.Config(
        App(state),
        http=partial(LimitedProtocol, limits=state.limits),  # type: ignore[arg-type]
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=2,
    )
    gc.collect()
    gc.freeze()  # the models stay: scanning them in every collection would stop all responses for 0.2 seconds
    try:
        StoppingServer(config, state, on_ready).run(sockets=[listener])
    finally:
        gc.unfreeze()
        state.close()
