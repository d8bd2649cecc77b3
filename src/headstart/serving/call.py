"""One request as an endpoint sees it: its body within bounds, and its client, who may leave."""

import asyncio
import contextlib
from concurrent.futures import Future
from typing import Any

from starlette.requests import Request

from headstart.serving.bounds import Bounds
from headstart.serving.link import ClientGone, link_of, outbox_of, wake
from headstart.serving.refusal import Refusal

DRAINED = 8  # a body over the bound is read on up to this many times the bound, so that its client hears why


async def read_body(request: Request, bounds: Bounds) -> bytes:
    """The whole body, if it is JSON by its header, small enough and sent in time."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        await _drain(request, bounds)
        raise Refusal(415, "the body is not said to be JSON", hint="send Content-Type: application/json")
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        await _drain(request, bounds)
        raise Refusal(415, "the body is compressed", hint="send it plain")
    body = bytearray()
    try:
        async with asyncio.timeout(bounds.slow):
            while True:
                message = await request.receive()
                if message["type"] == "http.disconnect":
                    raise ClientGone
                body += message.get("body", b"")
                is_over = not message.get("more_body", False)
                if len(body) > bounds.body:
                    break
                if is_over:
                    return bytes(body)
    except TimeoutError:
        raise Refusal(408, "the request came too slowly", hint="send it faster, or send less") from None
    if not is_over:
        await _drain(request, bounds)
    raise Refusal(
        413, f"the body is larger than {bounds.body:,} bytes", hint="send fewer or shorter texts at once"
    )


async def _drain(request: Request, bounds: Bounds) -> None:
    """Read on for a moment without keeping anything: a client that is still sending does not listen."""
    left = DRAINED * bounds.body
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(min(2.0, bounds.slow)):
            while left > 0:
                message = await request.receive()
                if message["type"] == "http.disconnect":
                    raise ClientGone
                left -= len(message.get("body", b""))
                if not message.get("more_body", False):
                    return


async def answered(future: "Future[list[Any]]", request: Request, seconds: float) -> list[Any]:
    """What `future` gives; it is cancelled when the client leaves or time is over."""
    loop, link = asyncio.get_running_loop(), link_of(request)
    told: asyncio.Future[None] = loop.create_future()
    outbox = outbox_of(loop)
    future.add_done_callback(lambda _: outbox.put(told))
    timer = loop.call_later(seconds, wake, told)
    try:
        with link.watched(lambda: wake(told)):
            await told
        if future.done():
            return future.result()
        if link.is_gone:
            raise ClientGone
        raise Refusal(503, "the answer took too long", hint="ask again, or ask for less", retry_after=1)
    finally:
        timer.cancel()
        future.cancel()
