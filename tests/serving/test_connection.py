"""One connection, with clients that send too much, too slowly, too early, or no HTTP."""

import asyncio
import json
from contextlib import asynccontextmanager

import pytest

pytest.importorskip("uvicorn")
import uvicorn
from uvicorn.server import ServerState

from headstart.serving.schema import Limits
from headstart.serving.server import MAX_HEAD_BYTES, LimitedProtocol

HOST = b"Host: 127.0.0.1\r\n"


class App:
    """Answers with what it was sent; a request to /held waits for an event, one to /left until its client has gone."""

    def __init__(self):
        self.scopes, self.held, self.left = [], asyncio.Event(), asyncio.Event()
        self.connections = []

    async def __call__(self, scope, receive, send):
        self.scopes.append(scope)
        try:
            await self.answer(scope, receive, send)
        except asyncio.CancelledError:
            self.left.set()
            raise

    async def answer(self, scope, receive, send):
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
        if scope["path"] == "/held":
            await self.held.wait()
        if scope["path"] == "/left":
            await asyncio.Event().wait()
        answer = body or scope["path"].encode()
        headers = [(b"content-length", str(len(answer)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": answer})


@asynccontextmanager
async def connected(**limits):
    """A client of a server with these limits: what it reads from and writes to, and the application."""
    app, state = App(), ServerState()
    config = uvicorn.Config(app, ws="none", lifespan="off", log_config=None)
    config.load()
    loop = asyncio.get_running_loop()

    def make_protocol():
        app.connections.append(LimitedProtocol(config, state, {}, _loop=loop, limits=Limits(**limits)))
        return app.connections[-1]

    server = await loop.create_server(make_protocol, "127.0.0.1", 0)
    async with server:
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        try:
            yield reader, writer, app
        finally:
            writer.close()
            app.held.set()


def response_to(*parts, **limits):
    """All that the server sends to a client until it disconnects the client."""

    async def talk():
        async with connected(**limits) as (reader, writer, app):
            for part in parts:
                writer.write(part)
            answer = await asyncio.wait_for(reader.read(), 30)
            return answer, app.scopes

    return asyncio.run(talk())


INVALID = {
    "a path without end": b"GET /" + b"a" * 2 * MAX_HEAD_BYTES,
    "a header without end": b"GET / HTTP/1.1\r\n" + HOST + b"X-Bomb: " + b"a" * 2 * MAX_HEAD_BYTES,
    "headers without end": b"GET / HTTP/1.1\r\n" + HOST + b"X: a\r\n" * (MAX_HEAD_BYTES // 4),
    "blank lines without end": b"\r\n" * MAX_HEAD_BYTES,
    "no host": b"GET / HTTP/1.1\r\n\r\n",
    "two hosts": b"GET / HTTP/1.1\r\n" + HOST + HOST + b"\r\n",
    "no http": b"\x00\x01\x02\r\n\r\n",
    "two lengths": b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\nab",
    "length and chunks": b"POST / HTTP/1.1\r\n"
    + HOST
    + b"Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
}


@pytest.mark.parametrize("request_bytes", INVALID.values(), ids=INVALID)
def test_invalid_requests_are_refused_and_disconnected(request_bytes):
    answer, scopes = response_to(request_bytes)
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ")
    assert set(json.loads(body)) == {"error", "hint"}
    assert scopes == []


def test_trailers_after_a_body_are_ignored_and_limited():
    chunks = (
        b"POST /x HTTP/1.1\r\n" + HOST + b"Connection: close\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n"
    )
    answer, scopes = response_to(chunks + b"X-Late: b\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 200")
    assert answer.endswith(b"abc")
    assert b"x-late" not in dict(scopes[0]["headers"])
    answer, _ = response_to(chunks + b"X-Bomb: " + b"a" * 2 * MAX_HEAD_BYTES)
    assert answer.startswith(b"HTTP/1.1 400 ")


def test_an_http_1_0_request_needs_no_host():
    answer, _ = response_to(b"GET /old HTTP/1.0\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 200")
    assert answer.endswith(b"/old")


def test_an_upgrade_to_another_protocol_is_ignored():
    answer, _ = response_to(b"GET /plain HTTP/1.1\r\n" + HOST + b"Connection: Upgrade\r\nUpgrade: h2c\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 200")
    assert answer.endswith(b"/plain")


def test_requests_sent_at_once_are_answered_one_after_the_other():
    bodies = [b"%d " % number * (number % 900) + b"." for number in range(1, 1200)]
    sent = [b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: %d\r\n\r\n" % len(body) + body for body in bodies]

    async def talk():
        async with connected() as (reader, writer, _):
            writer.write(b"".join(sent))
            for body in bodies:
                head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 30)
                assert head.startswith(b"HTTP/1.1 200")
                assert await reader.readexactly(len(body)) == body

    asyncio.run(talk())


def test_few_pipelined_requests_are_parsed_early():
    one = b"GET /held HTTP/1.1\r\n" + HOST + b"\r\n"

    async def talk():
        async with connected() as (_, writer, app):
            writer.write(one * 20_000)
            while not app.scopes:
                await asyncio.sleep(0)
            await asyncio.wait_for(writer.drain(), 30)
            assert 0 < len(app.connections[0].pipeline) < 200
            assert len(app.scopes) == 1

    asyncio.run(talk())


def test_garbage_after_a_request_does_not_look_like_its_response():
    answer, scopes = response_to(b"GET /held HTTP/1.1\r\n" + HOST + b"\r\n\x00\x01\r\n\r\n")
    assert answer == b""
    assert len(scopes) <= 1


@pytest.mark.parametrize("start", [b"", b"\r\n", b"GET / HT", b"GET / HTTP/1.1\r\nX-Slow: "], ids=range(4))
def test_a_slow_head_times_out(start):
    assert response_to(start, client_timeout=0.05) == (b"", [])


def test_a_client_that_leaves_is_noticed_even_after_it_has_sent_its_next_request():
    async def talk():
        async with connected() as (_, writer, app):
            writer.write((b"GET /left HTTP/1.1\r\n" + HOST + b"\r\n") * 2)
            while not app.scopes:
                await asyncio.sleep(0)
            writer.transport.abort()
            await asyncio.wait_for(app.left.wait(), 30)
            assert len(app.scopes) == 1

    asyncio.run(talk())


def test_a_client_that_accepts_nothing_is_disconnected():
    async def talk():
        async with connected(client_timeout=0.05) as (_, writer, app):
            writer.transport.pause_reading()
            body = b"a" * 2**20
            writer.write(b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: %d\r\n\r\n" % len(body) + body)
            for _ in range(20):
                writer.write(b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: %d\r\n\r\n" % len(body) + body)
            await app.left.wait()

    asyncio.run(asyncio.wait_for(talk(), 30))
