"""Dynamic batching: the threads of one model run everything that waits, up to a token budget, as one batch.

A batch never waits to become larger: while one batch runs, the next one accumulates. A second thread starts a batch
beside the first once enough tokens wait, because small batches cost more per text.
"""

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

from fastapi import HTTPException

from headstart.serving.limits import http_error

MIN_PARALLEL_TOKENS = 768  # queued tokens from which a second batch runs beside the first

RunBatch = Callable[[Hashable, list[Any]], Sequence[Any]]


@dataclass(eq=False)
class PendingRequest:
    """The items of one request and the future for their results, in order."""

    kind: Hashable
    items: Sequence[Any]
    costs: Sequence[int]
    deadline: float
    future: "Future[list[Any]]" = field(default_factory=Future)
    num_started: int = 0
    results: dict[int, Any] = field(default_factory=dict)

    @property
    def waiting_tokens(self) -> int:
        """Cost of the items that are in no batch yet."""
        return sum(self.costs[self.num_started :])

    def set_item(self, index: int, result: Any) -> None:
        """Store one result; the last one resolves the future."""
        self.results[index] = result
        if len(self.results) == len(self.items):
            self.resolve([self.results[index] for index in range(len(self.items))])

    def resolve(self, result: "list[Any] | BaseException") -> None:
        """Resolve the future unless its client has cancelled it."""
        with suppress(InvalidStateError):
            if isinstance(result, BaseException):
                self.future.set_exception(result)
            else:
                self.future.set_result(result)


@dataclass(eq=False)
class StreamJob:
    """An iterator whose pieces go to `emit` one by one; None marks the end."""

    pieces: Iterator[Any]
    emit: Callable[[Any], None]
    deadline: float
    is_cancelled: bool = False

    def cancel(self) -> None:
        """Stop before the next piece."""
        self.is_cancelled = True


@dataclass(frozen=True)
class BatchStats:
    """One batch that has run."""

    num_items: int
    num_requests: int
    tokens: int
    seconds: float


class Batcher:
    """Runs requests in batches on its own threads; a batch takes one item of each waiting request in turn."""

    def __init__(
        self,
        run_batch: RunBatch,
        *,
        max_batch_tokens: int,
        max_queued_tokens: int,
        max_streams: int = 8,
        num_threads: int = 1,
        name: str = "batcher",
        on_batch: Callable[[BatchStats], None] = lambda stats: None,
        clock: Callable[[], float] = time.monotonic,
    ):
        self.run_batch, self.on_batch, self.clock = run_batch, on_batch, clock
        self.max_batch_tokens, self.max_queued_tokens = max_batch_tokens, max_queued_tokens
        self.max_streams = max_streams
        self._requests: deque[PendingRequest] = deque()
        self._streams: list[StreamJob] = []
        self._queued_tokens = 0
        self._tokens_per_second = float(max_batch_tokens)  # a moving average
        self._is_open = True
        self._lock = threading.Lock()
        self._wake = [threading.Condition(self._lock) for _ in range(num_threads)]  # one for each thread
        self._is_busy = [False] * num_threads
        self._num_running = 0  # batches
        self._threads = [
            threading.Thread(target=self._loop, args=(index,), name=f"{name}, {index}", daemon=True)
            for index in range(num_threads)
        ]

    @property
    def queued_tokens(self) -> int:
        """Cost of all items that wait."""
        return self._queued_tokens

    @property
    def num_streams(self) -> int:
        """How many streams are running."""
        return len(self._streams)

    def start(self) -> "Batcher":
        """Start the threads."""
        for thread in self._threads:
            thread.start()
        return self

    def submit(
        self, kind: Hashable, items: Sequence[Any], costs: Sequence[int], timeout: float
    ) -> "Future[list[Any]]":
        """Queue the items of a request; an HTTP error if they are too many or the queue is full."""
        request = PendingRequest(kind, items, costs, self.clock() + timeout)
        tokens = request.waiting_tokens
        if tokens > self.max_queued_tokens:
            raise http_error(
                413,
                f"the request needs {tokens:,} tokens of work, and {self.max_queued_tokens:,} are the most",
                hint="send fewer or shorter texts at once",
            )
        if not items:
            request.resolve([])
            return request.future
        with self._lock:
            self._check_open()
            if self._queued_tokens + tokens > self.max_queued_tokens:
                self._drop_expired()  # cancelled requests leave the queue
            if self._queued_tokens + tokens > self.max_queued_tokens:
                raise http_error(
                    429,
                    "too much is waiting already",
                    hint="try again in a moment",
                    retry_after=self._queued_tokens / self._tokens_per_second,
                )
            self._queued_tokens += tokens
            self._requests.append(request)
            self._notify()
        return request.future

    def stream(self, pieces: Iterator[Any], emit: Callable[[Any], None], timeout: float) -> StreamJob:
        """Run `pieces` one by one, in turn with batches and with other streams."""
        job = StreamJob(pieces, emit, self.clock() + timeout)
        with self._lock:
            self._check_open()
            self._streams = [other for other in self._streams if not other.is_cancelled]
            if len(self._streams) >= self.max_streams:
                raise http_error(
                    429,
                    f"{self.max_streams} texts are being generated already",
                    hint="try again in a moment",
                    retry_after=1,
                )
            self._streams.append(job)
            self._wake[0].notify()
        return job

    def close(self, timeout: float = 5.0) -> None:
        """Finish the running batches and stop; requests that still wait get an error."""
        with self._lock:
            self._is_open = False
            for wake in self._wake:
                wake.notify()
        deadline = time.monotonic() + timeout
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(max(0.0, deadline - time.monotonic()))
        for request in self._requests:
            request.resolve(_stopping())

    def _check_open(self) -> None:
        if not self._is_open:
            raise _stopping()

    def _should_start(self) -> bool:
        """Whether a batch should start now."""
        return bool(self._requests) and (self._num_running == 0 or self._queued_tokens >= MIN_PARALLEL_TOKENS)

    def _notify(self) -> None:
        """Wake the first idle thread, whose caches are the warmest."""
        if self._should_start():
            for wake, is_busy in zip(self._wake, self._is_busy, strict=True):
                if not is_busy:
                    wake.notify()
                    return

    def _loop(self, index: int) -> None:
        """The loop of one thread; only the first one runs streams."""
        while True:
            with self._lock:
                self._is_busy[index] = False
                while self._is_open and not self._should_start() and not (index == 0 and self._streams):
                    self._wake[index].wait()
                if not self._is_open:
                    return
                self._is_busy[index] = True
                batch = self._next_batch() if self._should_start() else []
                streams = list(self._streams) if index == 0 else []
                self._num_running += bool(batch)
                self._notify()  # for what exceeds the budget
            if batch:
                self._run(batch)
                with self._lock:
                    self._num_running -= 1
                    self._notify()
            for job in streams:
                self._advance(job)

    def _drop_expired(self) -> None:
        """Remove cancelled requests from the queue, and answer those whose deadline has passed."""
        now, remaining, expired = self.clock(), deque[PendingRequest](), []
        for request in self._requests:
            if not request.future.done() and request.deadline >= now:
                remaining.append(request)
                continue
            self._queued_tokens -= request.waiting_tokens
            expired += [] if request.future.done() else [request]
        self._requests = remaining
        for request in expired:
            request.resolve(
                http_error(
                    503,
                    "the request waited too long for its turn",
                    hint="try again, or send less",
                    retry_after=self._queued_tokens / self._tokens_per_second,
                )
            )

    def _next_batch(self) -> list[tuple[PendingRequest, int]]:
        """Items of the oldest request's kind, one of each request in turn, within the token budget.

        If two threads are free and enough waits for both, each gets half.
        """
        self._drop_expired()
        if not self._requests:
            return []
        budget, num_free = self.max_batch_tokens, len(self._threads) - self._num_running
        if num_free > 1 and self._queued_tokens >= num_free * MIN_PARALLEL_TOKENS:
            budget = min(budget, -(-self._queued_tokens // num_free))
        kind = self._requests[0].kind
        candidates = deque(request for request in self._requests if request.kind == kind)
        batch: list[tuple[PendingRequest, int]] = []
        tokens = 0
        while candidates:
            request = candidates.popleft()
            cost = request.costs[request.num_started]
            if batch and tokens + cost > budget:
                break
            batch.append((request, request.num_started))
            tokens += cost
            request.num_started += 1
            if request.num_started < len(request.items):
                candidates.append(request)
        self._queued_tokens -= tokens
        # Requests with an item in this batch go behind those without.
        served = {id(request) for request, _ in batch}
        behind = [
            request
            for request in self._requests
            if id(request) in served and request.num_started < len(request.items)
        ]
        self._requests = deque(
            [*(request for request in self._requests if id(request) not in served), *behind]
        )
        return batch

    def _run(self, batch: list[tuple[PendingRequest, int]]) -> None:
        start = time.perf_counter()
        requests = {id(request): request for request, _ in batch}
        try:
            results = self.run_batch(batch[0][0].kind, [request.items[index] for request, index in batch])
        except Exception as error:
            self._isolate(batch, list(requests.values()), error)
            return
        tokens = sum(request.costs[index] for request, index in batch)
        seconds = max(1e-6, time.perf_counter() - start)
        self._tokens_per_second += 0.2 * (tokens / seconds - self._tokens_per_second)
        self.on_batch(BatchStats(len(batch), len(requests), tokens, seconds))
        for (request, index), result in zip(batch, results, strict=True):
            request.set_item(index, result)

    def _isolate(
        self, batch: list[tuple[PendingRequest, int]], requests: list[PendingRequest], error: Exception
    ) -> None:
        """Give an error to the request that caused it; the others run again without it."""
        if len(requests) == 1:
            with self._lock:
                if requests[0] in self._requests:
                    self._requests.remove(requests[0])
                    self._queued_tokens -= requests[0].waiting_tokens
            requests[0].resolve(error)
            return
        for request in requests:
            self._run([(other, index) for other, index in batch if other is request])

    def _advance(self, job: StreamJob) -> None:
        """Emit the next piece of a stream."""
        is_over = job.is_cancelled
        if not is_over:
            try:
                if self.clock() > job.deadline:
                    raise http_error(
                        503, "the response took too long", hint="ask for fewer tokens", retry_after=1
                    )
                job.emit(next(job.pieces))
            except StopIteration:
                job.emit(None)
                is_over = True
            except Exception as error:
                job.emit(error)
                is_over = True
        if is_over:
            close = getattr(job.pieces, "close", None)
            if close is not None:
                close()
            with self._lock:
                self._streams = [other for other in self._streams if other is not job]


def _stopping() -> HTTPException:
    return http_error(503, "the server is stopping", hint="try again in a moment", retry_after=5)


class LoopNotifier:
    """Wakes an event loop once for all futures that other threads resolve in the meantime."""

    def __init__(self, loop: asyncio.AbstractEventLoop):
        self._loop, self._lock = loop, threading.Lock()
        self._waiters: list[asyncio.Future[None]] = []

    def notify(self, waiter: "asyncio.Future[None]") -> None:
        """Resolve `waiter` soon, in its own loop."""
        with self._lock:
            self._waiters.append(waiter)
            is_first = len(self._waiters) == 1
        if is_first:
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._resolve)

    def _resolve(self) -> None:
        with self._lock:
            waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)


_NOTIFIERS: "WeakKeyDictionary[asyncio.AbstractEventLoop, LoopNotifier]" = WeakKeyDictionary()


async def wait_for(future: "Future[list[Any]]", timeout: float) -> list[Any]:
    """The result of `future`, which is cancelled on a timeout or when the caller is cancelled.

    `asyncio.wrap_future` would wake the loop once for each request of a batch.
    """
    loop = asyncio.get_running_loop()
    if (notifier := _NOTIFIERS.get(loop)) is None:
        notifier = _NOTIFIERS[loop] = LoopNotifier(loop)
    waiter: asyncio.Future[None] = loop.create_future()
    future.add_done_callback(lambda _: notifier.notify(waiter))
    try:
        async with asyncio.timeout(timeout):
            await waiter
    except TimeoutError:
        raise http_error(
            503, "the response took too long", hint="try again, or send less", retry_after=1
        ) from None
    else:
        return future.result()
    finally:
        future.cancel()
