"""What passes between a request and others: its client, who may leave, and other threads, which bring the answer."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from weakref import WeakKeyDictionary

from starlette.requests import Request

LINK = "headstart.link"  # where a connection leaves itself in a request's state


class ClientGone(Exception):
    """The client left before its answer was there."""


class Link:
    """The connection of a client: whether it still stands, whom to tell when it does not, and how to cut it."""

    def __init__(self, abort: Callable[[], None]):
        self.abort, self.is_gone = abort, False
        self._watching: list[Callable[[], None]] = []

    @contextmanager
    def watched(self, tell: Callable[[], None]) -> Iterator[None]:
        """Call `tell` should the client leave meanwhile, or have left."""
        self._watching.append(tell)
        try:
            if self.is_gone:
                tell()
            yield
        finally:
            self._watching.remove(tell)

    def leave(self) -> None:
        """The client has gone."""
        self.is_gone = True
        for tell in list(self._watching):
            tell()


class AskedLink(Link):
    """The connection of a client that another server holds, which has to be asked whether it still stands."""

    def __init__(self, request: Request):
        super().__init__(lambda: None)
        self._request = request

    @contextmanager
    def watched(self, tell: Callable[[], None]) -> Iterator[None]:
        """Call `tell` should the client leave meanwhile."""
        asking = asyncio.ensure_future(self._ask())
        try:
            with super().watched(tell):
                yield
        finally:
            asking.cancel()

    async def _ask(self) -> None:
        while (await self._request.receive())["type"] != "http.disconnect":
            pass
        self.leave()


def link_of(request: Request) -> Link:
    """The connection that a request came by."""
    found = request.scope.get("state", {}).get(LINK)
    return AskedLink(request) if found is None else found


class Outbox:
    """What other threads tell an event loop; things told together wake it once."""

    def __init__(self, loop: asyncio.AbstractEventLoop):
        self._loop, self._lock = loop, threading.Lock()
        self._waiting: list[asyncio.Future[None]] = []

    def put(self, told: "asyncio.Future[None]") -> None:
        """Let `told` be done, soon and in its own loop."""
        with self._lock:
            self._waiting.append(told)
            is_first = len(self._waiting) == 1
        if is_first:
            with suppress(RuntimeError):  # the server has ended, and nobody waits
                self._loop.call_soon_threadsafe(self._empty)

    def _empty(self) -> None:
        with self._lock:
            waiting, self._waiting = self._waiting, []
        for told in waiting:
            wake(told)


_OUTBOXES: "WeakKeyDictionary[asyncio.AbstractEventLoop, Outbox]" = WeakKeyDictionary()


def outbox_of(loop: asyncio.AbstractEventLoop) -> Outbox:
    """The one outbox of a loop."""
    found = _OUTBOXES.get(loop)
    if found is None:
        found = _OUTBOXES[loop] = Outbox(loop)
    return found


def wake(told: "asyncio.Future[None]") -> None:
    """Let a future be done unless it is."""
    if not told.done():
        told.set_result(None)
