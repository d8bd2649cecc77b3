"""A flow as an answer: a JSON line for each piece, for as long as somebody listens."""

import asyncio
import json
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from headstart.errors import HeadstartError
from headstart.serving.batcher import Batcher, Flow
from headstart.serving.link import ClientGone, link_of
from headstart.serving.refusal import Refusal, refusal_of

LINES = "application/x-ndjson"


class Listener:
    """The pieces of a flow as they come to one client; leaving ends the flow."""

    def __init__(self, request: Request, seconds: float):
        self._loop = asyncio.get_running_loop()
        self._pieces: asyncio.Queue[Any] = asyncio.Queue()
        self._watch = ExitStack()
        self._watch.enter_context(link_of(request).watched(lambda: self._pieces.put_nowait(ClientGone())))
        self._by = self._loop.time() + seconds
        self._flow: Flow | None = None

    def begin(self, batcher: Batcher, pieces: Iterator[Any], seconds: float) -> None:
        """Let the flow start."""
        try:
            self._flow = batcher.flow(pieces, self._emit, seconds)
        except HeadstartError:
            self.close()
            raise

    def _emit(self, piece: Any) -> None:
        try:
            self._loop.call_soon_threadsafe(self._pieces.put_nowait, piece)
        except RuntimeError:  # the server has ended
            if self._flow is not None:
                self._flow.cancel()

    async def next(self) -> Any:
        """The next piece; None when it was the last."""
        try:
            async with asyncio.timeout_at(self._by):
                found = await self._pieces.get()
        except TimeoutError:
            raise Refusal(
                503, "the answer took too long", hint="ask for fewer tokens", retry_after=1
            ) from None
        if isinstance(found, BaseException):
            raise found
        return found

    def end(self) -> None:
        """Let the piece at hand be the last."""
        self._pieces.put_nowait(None)

    def close(self) -> None:
        """Stop the flow if it is still going."""
        self._watch.close()
        if self._flow is not None:
            self._flow.cancel()


class LinesResponse(Response):
    """A line for each piece; a problem on the way is the last line."""

    def __init__(self, first: Any, listener: Listener):
        super().__init__(media_type=LINES)
        self._first, self._listener = first, listener
        self.raw_headers = [pair for pair in self.raw_headers if pair[0] != b"content-length"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the lines."""
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            piece = self._first
            while piece is not None:
                await send({"type": "http.response.body", "body": _line(piece), "more_body": True})
                piece = await self._after()
            await send({"type": "http.response.body", "body": b""})
        finally:
            self._listener.close()

    async def _after(self) -> Any:
        try:
            return await self._listener.next()
        except HeadstartError as error:
            self._listener.end()
            return refusal_of(error).to_dict()


def _line(piece: Any) -> bytes:
    return json.dumps(piece, ensure_ascii=False, allow_nan=False).encode("utf-8") + b"\n"
