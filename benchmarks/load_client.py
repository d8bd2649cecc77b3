"""The client of benchmarks/serve_load.py: many connections in a process of its own, over plain sockets, so that it costs little.

Requests are put together before the clock starts. Every answer is read and compared with the response to the same
text alone, so that a lost or crossed answer ends the measurement.
    python benchmarks/load_client.py '{"port": 8000, "texts": "texts.json", "way": "closed", "clients": 64, "seconds": 5}'
"""

import json
import random
import selectors
import socket
import statistics
import sys
import time
from pathlib import Path
from typing import Any

HEAD = "POST /v1/classify HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: "
WARM = 1.5  # seconds of load before the clock starts
NEAR = 2e-5  # how far a probability may be from the one alone: a batch adds up in another order


class Connection:
    """One client of the server: it sends a request and receives the response."""

    def __init__(self, port: int):
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.text, self.start, self.received = 0, 0.0, b""
        self.is_waiting, self.is_open, self.is_refused = False, True, False

    def ask(self, text: int, request: bytes, start: float) -> None:
        """Send a request; it is short, so the system takes it all at once."""
        self.text, self.start, self.received, self.is_waiting = text, start, b"", True
        assert self.socket.send(request) == len(request)

    def answer(self) -> tuple[Any, ...] | None:
        """What identifies the answer to this text; None while some of it is missing."""
        self.received = self.received + self.socket.recv(65536) if self.received else self.socket.recv(65536)
        head, found, body = self.received.partition(b"\r\n\r\n")
        if not found:
            assert self.received, "the server closed the connection"
            return None
        self.is_refused = head.startswith((b"HTTP/1.1 503", b"HTTP/1.1 429"))
        assert self.is_refused or head.startswith(b"HTTP/1.1 200"), self.received
        size = int(head[head.lower().index(b"content-length: ") + 16 :].split(b"\r", 1)[0])
        if len(body) < size:
            return None
        assert len(body) == size, "more came than one answer"
        self.is_waiting = False
        if self.is_refused:
            return ()
        label = json.loads(body)["labels"][0]
        return label.get("probability", label.get("score")), label["label"], label.get("tokens")


def is_same(found: tuple[Any, ...], alone: tuple[Any, ...], near: float) -> bool:
    """Whether two answers are to the same text; where two classes are as likely, either may be named."""
    return abs(found[0] - alone[0]) < near and found[2] == alone[2]


class Load:
    """Connections to one server, the requests for it, and the answers to each of them alone."""

    def __init__(self, port: int, texts: list[str], near: float = NEAR):
        self.port, self.requests, self.near = port, [], near
        for text in texts:
            body = json.dumps({"texts": [text]})
            self.requests.append(f"{HEAD}{len(body)}\r\n\r\n{body}".encode("ascii"))
        self.selector, self.refused = selectors.DefaultSelector(), 0
        self.alone: list[tuple[Any, ...]] = []
        one = self.connect()
        for number in range(len(texts)):
            one.ask(number, self.requests[number], 0.0)
            while (found := one.answer()) is None:
                pass
            self.alone.append(found)
        self.drop(one)

    def connect(self) -> Connection:
        """One more client."""
        made = Connection(self.port)
        self.selector.register(made.socket, selectors.EVENT_READ, made)
        return made

    def drop(self, connection: Connection) -> None:
        """One client less."""
        self.selector.unregister(connection.socket)
        connection.socket.close()
        connection.is_open = False

    def collect(self, wait: float | None) -> list[Connection]:
        """Those whose answer is there, checked."""
        done = []
        for key, _ in self.selector.select(wait):
            connection: Connection = key.data
            if not connection.is_waiting:  # the server closes idle connections
                self.drop(connection)
                continue
            found = connection.answer()
            if found is not None:
                done.append(connection)
                alone = self.alone[connection.text]
                if connection.is_refused:
                    self.refused += 1
                    self.drop(connection)
                else:
                    assert is_same(found, alone, self.near), f"a crossed answer: {found} for {alone}"
        return done

    def closed(self, clients: int, seconds: float) -> dict[str, float]:
        """As much as `clients` can get: each sends the next request at once."""
        chance, latencies = random.Random(clients), []
        start = time.perf_counter() + WARM
        end, used = start + seconds, 0.0
        waiting = [self.connect() for _ in range(clients)]
        under_way = 0
        while waiting or under_way:
            for connection in waiting:
                now = time.perf_counter()
                if now < end:
                    text = chance.randrange(len(self.requests))
                    connection.ask(text, self.requests[text], now)
                    under_way += 1
            waiting = self.collect(None) if under_way else []
            assert not self.refused, "the server refused a request"
            under_way -= len(waiting)
            now = time.perf_counter()
            if now >= start:
                used = used or self.begin()
                latencies += [now - connection.start for connection in waiting if now < end]
        return {"per_second": len(latencies) / seconds, **self.found(latencies, used)}

    def open(self, rate: float, seconds: float) -> dict[str, float]:
        """Requests that come by chance at a rate, whether or not the last one is answered; a late start counts as waiting."""
        chance, latencies, under_way, used = random.Random(1), [], 0, 0.0
        start = time.perf_counter() + 0.1
        due, free = start, list[Connection]()
        while due < start + WARM + seconds or under_way:
            now = time.perf_counter()
            while due <= now and due < start + WARM + seconds:
                free = free if not free or free[-1].is_open else [one for one in free if one.is_open]
                connection = free.pop() if free else self.connect()
                text = chance.randrange(len(self.requests))
                connection.ask(text, self.requests[text], due)
                under_way += 1
                due += chance.expovariate(rate)
            done = self.collect(max(0.0, due - time.perf_counter()))
            now, under_way = time.perf_counter(), under_way - len(done)
            if now >= start + WARM:
                used = used or self.begin()
            answered = [one for one in done if not one.is_refused]
            latencies += [now - one.start for one in answered if one.start >= start + WARM]
            free += answered
        return self.found(latencies, used)

    def begin(self) -> float:
        """Say that the clock starts, and what this process has used by then."""
        print("begin", flush=True)
        return time.process_time()

    def found(self, latencies: list[float], used: float) -> dict[str, float]:
        """The median, the slowest hundredth, and what a request costs this process."""
        percentiles = statistics.quantiles(latencies, n=100, method="inclusive")
        return {
            "p50_ms": 1000 * percentiles[49],
            "p99_ms": 1000 * percentiles[98],
            "requests": len(latencies),
            "refused": self.refused,
            "client_ms": 1000 * (time.process_time() - used) / len(latencies),
        }


def main(options: dict[str, Any]) -> None:
    """Run one measurement and print it."""
    texts, way = json.loads(Path(options.pop("texts")).read_text("utf-8")), options.pop("way")
    load = Load(options.pop("port"), texts[: options.pop("different", 200)], options.pop("near", NEAR))
    print(json.dumps({"closed": load.closed, "open": load.open}[way](**options)))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
