"""A real server under clients that disconnect, send invalid bytes, stall or are too many: no response is lost or mixed up."""

import asyncio
import json
import random
import signal

import pytest

from headstart.inference.embed import text_vectors
from tests.serving.clients import ask, get, read_answer, request_bytes, running

pytestmark = pytest.mark.slow

WORDS = [
    "a",
    "the",
    "film",
    "plot",
    "was",
    "superb",
    "dreadful",
    "boring",
    "moving",
    "scene",
    "actor",
    "music",
    "ending",
    "script",
    "日本",
    "🎬",
    "<b>",
    "'quote'",
]


def made_texts(count, seed=0):
    rng = random.Random(seed)
    return [f"{number} " + " ".join(rng.choices(WORDS, k=rng.randint(1, 24))) for number in range(count)]


@pytest.fixture(scope="module")
def known(runs):
    """Texts with the vectors that they have when they are read alone."""
    texts = made_texts(160)
    vectors = text_vectors(str(runs / "classifier"), texts)
    return dict(zip(texts, vectors.tolist(), strict=True))


def check_vectors(content, texts, known):
    found = content["vectors"]
    assert len(found) == len(texts)
    for vector, text in zip(found, texts, strict=True):
        assert max(abs(a - b) for a, b in zip(vector, known[text], strict=True)) < 1e-4, "a response to another request"


async def correct_client(port, known, rng, count):
    """A client that asks, over one connection, and checks every answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for _ in range(count):
        texts = rng.sample(list(known), rng.randint(1, 6))
        while True:
            writer.write(request_bytes("/v1/embed", {"texts": texts}))
            status, headers, body = await read_answer(reader)
            if status in (429, 503):
                assert int(headers["retry-after"]) >= 1
                await asyncio.sleep(0.05)
                continue
            assert status == 200, body
            check_vectors(json.loads(body), texts, known)
            break
    writer.close()


async def disconnecting_client(port, known, rng, count):
    """A client that is gone before its answer is there, sometimes in the middle of a word."""
    for _ in range(count):
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        whole = request_bytes("/v1/embed", {"texts": rng.sample(list(known), 20)})
        writer.write(whole if rng.random() < 0.7 else whole[: rng.randrange(len(whole))])
        await writer.drain()
        await asyncio.sleep(rng.random() * 0.02)
        writer.transport.abort()


async def streaming_client(port, rng, count, leaves, written):
    """A client that has texts written: it checks that the pieces make the whole, or is gone after the first ones."""
    for number in range(count):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        query = {"prompt": rng.choice(WORDS), "tokens": 40, "seed": number}
        writer.write(request_bytes("/v1/generate", query))
        if leaves:
            await reader.read(rng.randrange(1, 900))
            writer.transport.abort()
            continue
        status, _, body = await read_answer(reader)
        assert status in (200, 429), body
        if status == 200:
            *pieces, last = [json.loads(line) for line in body.splitlines()]
            assert "".join(piece["text"] for piece in pieces) == last["text"]
            assert last == written.setdefault((query["prompt"], number), last), "the text of another request"
        writer.close()


GARBAGE = [
    b"\x00\x01\x02\r\n\r\n",
    b"GET / HTTP/9.9\r\n\r\n",
    b"POST /v1/embed HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: -5\r\n\r\n",
    b"POST /v1/embed HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello!",
    b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n" + b"X-Bomb: " + b"a" * 200_000 + b"\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n" + b"".join(b"X-%d: a\r\n" % n for n in range(20_000)) + b"\r\n",
    b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
]


async def invalid_client(port, rng, count):
    """A client that sends no HTTP, no JSON, or far too much of it; it hears why, and nothing breaks."""
    bodies = [b"{", b"[" * 50_000, b'{"texts": [NaN]}', b"\xff\xfe", b'{"texts": ["' + b"a" * 300_000 + b'"]}']
    for number in range(count):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        if number % 2:
            writer.write(GARBAGE[rng.randrange(len(GARBAGE))])
            with_answer = await asyncio.wait_for(reader.read(64), 30)
            assert b" 200 " not in with_answer
        else:
            writer.write(request_bytes("/v1/embed", bodies[rng.randrange(len(bodies))]))
            status, _, body = await read_answer(reader)
            assert status in (400, 413, 422), body
            assert set(json.loads(body)) == {"error", "hint"}
        writer.close()


async def storm(port, known):
    rng = random.Random(7)
    seeds = [random.Random(rng.random()) for _ in range(30)]
    tasks = [correct_client(port, known, seed, 12) for seed in seeds[:14]]
    tasks += [disconnecting_client(port, known, seed, 15) for seed in seeds[14:24]]
    tasks += [invalid_client(port, seed, 12) for seed in seeds[24:]]
    written = {}
    tasks += [streaming_client(port, random.Random(n % 3), 10, n > 5, written) for n in range(9)]
    await asyncio.gather(*tasks)
    await correct_client(port, known, rng, 3)
    status, text = await get(port, "/metrics")
    assert status == 200
    return text


def value(text, name):
    return sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith(name))


def test_cancelled_malformed_and_oversized_requests_affect_no_other_response(runs, known):
    bounds = ["limits.max_body_bytes=65536", "limits.max_batch_tokens=512", "limits.max_queued_tokens=8192"]
    with running(runs / "classifier", runs / "base", settings=bounds, options=["--quiet"]) as (process, port):
        text = asyncio.run(storm(port, known))
        for _ in range(100):
            if value(text, "headstart_streams{") == 0:
                break
            text = asyncio.run(get(port, "/metrics"))[1]
        assert value(text, "headstart_streams{") == 0
        assert value(text, 'headstart_requests_total{endpoint="/v1/embed",status="200"}') >= 14 * 12
        assert value(text, 'headstart_requests_total{endpoint="/v1/generate",status="200"}') >= 30
        assert 'status="500"' not in text
        assert value(text, "headstart_clients_gone_total") > 0
        assert value(text, "headstart_requests_under_way") == 1  # the one that asks for this text
        assert value(text, 'headstart_queued_tokens{run="classifier"}') == 0
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=30) == 0
        assert "Error" not in process.read_log()


def test_a_stopping_server_finishes_requests_in_flight_and_refuses_new_ones(runs, known):
    texts = list(known)[:60]

    async def stop_in_the_middle(process, port):
        tasks = [asyncio.create_task(ask(port, "/v1/embed", {"texts": texts})) for _ in range(8)]
        while value((await get(port, "/metrics"))[1], "headstart_requests_under_way") < 9:
            await asyncio.sleep(0)
        process.send_signal(signal.SIGTERM)
        statuses = set()
        while True:  # until the socket is closed, new requests get 503
            try:
                status, headers, _ = await ask(port, "/v1/embed", {"texts": ["late"]})
            except (ConnectionError, asyncio.IncompleteReadError):
                break
            statuses.add(status)
            if status == 503:
                assert headers["retry-after"]
        for status, _, content in await asyncio.gather(*tasks):
            assert status == 200
            check_vectors(content, texts, known)
        return statuses

    with running(runs / "classifier", settings=["limits.max_batch_tokens=16"]) as (process, port):
        statuses = asyncio.run(stop_in_the_middle(process, port))
        assert 503 in statuses
        assert process.wait(timeout=30) == 0


def test_slow_clients_are_disconnected_and_delay_no_other(runs, known):
    async def many_clients(port):
        heads = [await asyncio.open_connection("127.0.0.1", port) for _ in range(10)]
        for _, writer in heads:
            writer.write(b"POST /v1/embed HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: ")
        bodies = [await asyncio.open_connection("127.0.0.1", port) for _ in range(10)]
        for _, writer in bodies:
            writer.write(request_bytes("/v1/embed", {"texts": ["a" * 500]})[:-50])
        await correct_client(port, known, random.Random(3), 5)  # nobody waits for them
        for reader, _ in heads:
            assert await asyncio.wait_for(reader.read(), 30) == b""  # disconnected
        for reader, _ in bodies:
            status, _, body = await asyncio.wait_for(read_answer(reader), 30)
            assert status == 408
            assert "slowly" in json.loads(body)["error"]

    async def never_reading_client(port):
        """Ask for much, again and again, and never take in a byte."""
        _, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
        writer.transport.pause_reading()
        query = request_bytes("/v1/embed", {"texts": ["a film"] * 200})
        for _ in range(400):
            writer.write(query)
        await correct_client(port, known, random.Random(4), 5)
        while value((await get(port, "/metrics"))[1], "headstart_clients_gone_total") == 0:
            await asyncio.sleep(0.1)
        writer.transport.abort()

    with running(runs / "classifier", settings=["limits.client_timeout=2"]) as (_, port):
        asyncio.run(many_clients(port))
        asyncio.run(never_reading_client(port))


def test_more_clients_than_the_limit_are_refused(runs):
    async def many_clients(port):
        held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(4)]
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        status, headers, body = await asyncio.wait_for(read_answer(reader), 30)
        writer.close()
        assert status == 503
        assert headers["retry-after"] == "5"
        assert "clients" in json.loads(body)["error"]
        for _, writer in held:
            writer.close()

    with running(runs / "classifier", settings=["limits.max_connections=4"]) as (_, port):
        asyncio.run(many_clients(port))
