"""Requests computed together: each batch takes one item of every waiting request in turn, within a token budget."""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Generator, Hashable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from headstart.serving.schema import http_error

MIN_PARALLEL_TOKENS = 768  # queued tokens from which a second batch runs beside the first


@dataclass(eq=False)
class PendingRequest:
    """The items of one request, and its results so far."""

    kind: Hashable
    items: Sequence[Any]
    costs: Sequence[int]
    future: "asyncio.Future[list[Any]]"
    num_started: int = 0  # items in a batch that runs or has run
    results: dict[int, Any] = field(default_factory=dict)  # by the index of their item


Batch = list[tuple[PendingRequest, int]]  # items by their index


class Batcher:
    """Runs requests in batches on its own threads. All but the batches runs on the event loop."""

    def __init__(
        self,
        run_batch: Callable[[Hashable, list[Any]], Sequence[Any]],
        *,
        max_batch_tokens: int,
        max_queued_tokens: int,
        num_threads: int = 1,
        name: str = "batcher",
        on_batch: Callable[[int, int], None] = lambda num_items, tokens: None,
    ):
        self.run_batch, self.on_batch, self.num_threads = run_batch, on_batch, num_threads
        self.max_batch_tokens, self.max_queued_tokens = max_batch_tokens, max_queued_tokens
        self.queued_tokens = 0
        self._requests: deque[PendingRequest] = deque()
        self._num_running = 0  # batches
        self._tokens_per_second = float(max_batch_tokens)  # a moving average
        self._is_open = True
        self._executor = ThreadPoolExecutor(num_threads, name)

    async def submit(self, kind: Hashable, items: Sequence[Any], costs: Sequence[int], timeout: float) -> list[Any]:
        """The result of each item. A request that is too large or that finds a full queue is an HTTP error.

        A request whose task is cancelled, or whose time is over, leaves the queue.
        """
        tokens = sum(costs)
        if tokens > self.max_queued_tokens:
            problem = f"the request needs {tokens:,} tokens of work, and {self.max_queued_tokens:,} are the most"
            raise http_error(413, problem, hint="send fewer or shorter texts at once")
        if not self._is_open:
            raise http_error(503, "the server is stopping", retry_after=5)
        if self.queued_tokens + tokens > self.max_queued_tokens:
            seconds = self.queued_tokens / self._tokens_per_second
            raise http_error(429, "too much is waiting already", retry_after=seconds)
        if not items:
            return []
        request = PendingRequest(kind, items, costs, asyncio.get_running_loop().create_future())
        self._requests.append(request)
        self.queued_tokens += tokens
        self._start_batches()
        try:
            async with asyncio.timeout(timeout):
                return await request.future
        except TimeoutError:
            raise http_error(503, "the response took too long", hint="try again, or send less") from None
        finally:
            self._drop(request)

    def close(self) -> None:
        """Start no more batches."""
        self._is_open = False
        self._executor.shutdown(wait=False, cancel_futures=True)

    def _drop(self, request: PendingRequest) -> None:
        """Remove the items that are in no batch yet."""
        if request in self._requests:
            self._requests.remove(request)
            self.queued_tokens -= sum(request.costs[request.num_started :])

    def _start_batches(self) -> None:
        """Start a batch if none runs, and another one beside it if enough waits."""
        while (
            self._requests
            and self._num_running < self.num_threads
            and (self._num_running == 0 or self.queued_tokens >= MIN_PARALLEL_TOKENS)
        ):
            self._start(self._next_batch())

    def _next_batch(self) -> Batch:
        """Items of the oldest request's kind, one of each request in turn, within the token budget.

        If two threads are free and enough waits for both, each gets half.
        """
        budget, num_free = self.max_batch_tokens, self.num_threads - self._num_running
        if self.queued_tokens >= num_free * MIN_PARALLEL_TOKENS:
            budget = min(budget, -(-self.queued_tokens // num_free))
        kind = self._requests[0].kind
        candidates = deque(request for request in self._requests if request.kind == kind)
        batch: Batch = []
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
        self.queued_tokens -= tokens
        # Requests with an item in this batch go behind those without.
        served = {request for request, _ in batch}
        waiting = [request for request in self._requests if request.num_started < len(request.items)]
        self._requests = deque(sorted(waiting, key=served.__contains__))
        return batch

    def _start(self, batch: Batch) -> None:
        loop, start = asyncio.get_running_loop(), time.perf_counter()

        def notify(future: "Future[Sequence[Any]]") -> None:
            if not future.cancelled():  # by `close`
                with suppress(RuntimeError):  # the loop is closed
                    loop.call_soon_threadsafe(self._finish, batch, future, start)

        self._num_running += 1
        items = [request.items[index] for request, index in batch]
        self._executor.submit(self.run_batch, batch[0][0].kind, items).add_done_callback(notify)

    def _finish(self, batch: Batch, future: "Future[Sequence[Any]]", start: float) -> None:
        self._num_running -= 1
        if (error := future.exception()) is not None:
            self._isolate(batch, error)
            self._start_batches()
            return
        self._start_batches()  # before anything else, so that no thread waits
        tokens = sum(request.costs[index] for request, index in batch)
        seconds = max(1e-6, time.perf_counter() - start)
        self._tokens_per_second += 0.2 * (tokens / seconds - self._tokens_per_second)
        self.on_batch(len(batch), tokens)
        for (request, index), result in zip(batch, future.result(), strict=True):
            request.results[index] = result
            if len(request.results) == len(request.items) and not request.future.done():
                request.future.set_result([request.results[number] for number in range(len(request.items))])

    def _isolate(self, batch: Batch, error: BaseException) -> None:
        """Give an error to the request that caused it; the others run again without it."""
        requests = list(dict.fromkeys(request for request, _ in batch))
        if len(requests) > 1:
            for request in requests:
                self._start([(other, index) for other, index in batch if other is request])
            return
        self._drop(requests[0])
        if not requests[0].future.done():
            requests[0].future.set_exception(error)


class StreamPool:
    """Runs generators piece by piece on one thread, in turn with each other."""

    def __init__(self, max_streams: int, name: str = "streams"):
        self.max_streams, self.num_streams = max_streams, 0
        self._executor = ThreadPoolExecutor(1, name)

    async def stream(self, pieces: Generator[Any, None, None], timeout: float) -> AsyncIterator[Any]:
        """The pieces of a generator, which is closed when nobody waits for the next one any more."""
        if self.num_streams >= self.max_streams:
            raise http_error(429, f"{self.max_streams} texts are being generated already")
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        self.num_streams += 1
        try:
            while True:
                async with asyncio.timeout_at(deadline):
                    piece = await loop.run_in_executor(self._executor, next, pieces, None)
                if piece is None:
                    return
                yield piece
        except TimeoutError:
            raise http_error(503, "the response took too long", hint="ask for fewer tokens") from None
        finally:
            self.num_streams -= 1
            with suppress(RuntimeError):  # the pool is closed
                self._executor.submit(pieces.close)

    def close(self) -> None:
        """Run no more pieces."""
        self._executor.shutdown(wait=False, cancel_futures=True)
