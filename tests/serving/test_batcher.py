"""Requests computed together: right results for the right callers, fairly, and within limits."""

import asyncio
import threading
from contextlib import asynccontextmanager

import pytest
from fastapi import HTTPException

from headstart.serving.batcher import MIN_PARALLEL_TOKENS, Batcher, StreamPool


class Work:
    """Work that waits for a permit before each batch, and remembers what it was given."""

    def __init__(self):
        self.batches, self.started, self.permits = [], threading.Semaphore(0), threading.Semaphore(0)

    def __call__(self, kind, items):
        self.started.release()
        assert self.permits.acquire(timeout=30)
        self.batches.append((kind, list(items)))
        if "poison" in items:
            raise ValueError("bad")
        return [f"{kind}:{item}" for item in items]

    async def start_is_seen(self, timeout=30):
        return await asyncio.to_thread(self.started.acquire, timeout=timeout)


@asynccontextmanager
async def opened(num_threads=1, scale=1):
    work = Work()
    limits = {"max_batch_tokens": 10 * scale, "max_queued_tokens": 100 * scale}
    batcher = Batcher(work, **limits, num_threads=num_threads)
    try:
        yield batcher, work
    finally:
        work.permits.release(1000)
        batcher.close()


async def submit(batcher, kind, items, costs, timeout=60):
    """A task that waits for a request, which is queued already."""
    task = asyncio.create_task(batcher.submit(kind, items, costs, timeout))
    await asyncio.sleep(0)
    return task


async def busy(batcher, work):
    """Let a first batch start, so that later requests wait."""
    first = await submit(batcher, "a", ["first"], [1])
    assert await work.start_is_seen()
    return first


async def finish(work, *tasks):
    work.permits.release(1000)
    return await asyncio.wait_for(asyncio.gather(*tasks), 30)


def in_loop(test):
    """The test run in an event loop."""

    def run(*given, **named):
        asyncio.run(test(*given, **named))

    run.__name__ = test.__name__
    return run


@in_loop
async def test_requests_that_wait_are_computed_together_and_each_gets_its_own_results():
    async with opened() as (batcher, work):
        first = await busy(batcher, work)
        others = [await submit(batcher, "a", [f"{n}x", f"{n}y"], [1, 1]) for n in range(4)]
        found = await finish(work, first, *others)
        assert found == [["a:first"], *([f"a:{n}x", f"a:{n}y"] for n in range(4))]
        assert [len(items) for _, items in work.batches] == [1, 8]


@in_loop
async def test_a_batch_is_within_the_budget_and_an_item_over_it_is_computed_alone():
    async with opened() as (batcher, work):
        first = await busy(batcher, work)
        others = [await submit(batcher, "a", [n], [cost]) for n, cost in enumerate((6, 4, 1, 25, 5))]
        await finish(work, first, *others)
        assert [items for _, items in work.batches] == [["first"], [0, 1], [2], [3], [4]]


@in_loop
async def test_kinds_are_not_mixed():
    async with opened() as (batcher, work):
        first = await busy(batcher, work)
        others = [await submit(batcher, kind, [n], [1]) for n, kind in enumerate("abab")]
        await finish(work, first, *others)
        assert work.batches == [("a", ["first"]), ("a", [0, 2]), ("b", [1, 3])]


@in_loop
async def test_a_small_request_does_not_wait_behind_a_large_one():
    async with opened() as (batcher, work):
        first = await busy(batcher, work)
        large = await submit(batcher, "a", list(range(30)), [1] * 30)
        small = await submit(batcher, "a", ["small"], [1])
        await finish(work, first, large, small)
        assert "small" in work.batches[1][1]
        assert large.result() == [f"a:{n}" for n in range(30)]


@in_loop
async def test_a_request_without_an_item_in_the_last_batch_comes_before_one_with():
    async with opened() as (batcher, work):
        first = await busy(batcher, work)
        one = await submit(batcher, "a", [1, 2], [10, 10])
        two = await submit(batcher, "a", [3], [10])
        await finish(work, first, one, two)
        assert [items for _, items in work.batches] == [["first"], [1], [3], [2]]


@in_loop
async def test_a_cancelled_request_is_not_computed():
    async with opened() as (batcher, work):
        first = await busy(batcher, work)
        gone = await submit(batcher, "a", [1, 2], [1, 1])
        stays = await submit(batcher, "a", [3], [1])
        gone.cancel()
        await asyncio.sleep(0)
        await finish(work, first, stays)
        assert work.batches == [("a", ["first"]), ("a", [3])]
        assert batcher.queued_tokens == 0


@in_loop
async def test_a_request_cancelled_during_its_batch_does_not_affect_others():
    async with opened() as (batcher, work):
        first = await busy(batcher, work)
        first.cancel()
        other = await submit(batcher, "a", ["other"], [1])
        assert await finish(work, other) == [["a:other"]]


@in_loop
async def test_a_full_queue_is_refused_with_a_time_to_try_again():
    async with opened() as (batcher, work):
        first = await busy(batcher, work)
        long = await submit(batcher, "a", range(10), [9] * 10)
        with pytest.raises(HTTPException) as caught:
            await batcher.submit("a", [1, 2], [9, 9], 60)
        assert caught.value.status_code == 429
        assert int(caught.value.headers["Retry-After"]) >= 1
        assert caught.value.detail["hint"]
        await finish(work, first, long)


@in_loop
async def test_cancelled_requests_leave_the_queue():
    async with opened() as (batcher, work):
        first = await busy(batcher, work)
        gone = await submit(batcher, "a", range(10), [9] * 10)
        gone.cancel()
        await asyncio.sleep(0)
        other = await submit(batcher, "a", [1, 2], [9, 9])
        assert (await finish(work, first, other))[1] == ["a:1", "a:2"]


@in_loop
async def test_a_request_that_could_never_fit_is_too_large():
    async with opened() as (batcher, _):
        with pytest.raises(HTTPException) as caught:
            await batcher.submit("a", [1, 2], [60, 60], 60)
        assert caught.value.status_code == 413


@in_loop
async def test_a_request_whose_time_is_over_is_refused_and_not_computed():
    async with opened() as (batcher, work):
        first = await busy(batcher, work)
        late = await submit(batcher, "a", ["late"], [1], timeout=0.01)
        patient = await submit(batcher, "a", ["patient"], [1])
        with pytest.raises(HTTPException) as caught:
            await late
        assert caught.value.status_code == 503
        assert await finish(work, first, patient) == [["a:first"], ["a:patient"]]
        assert work.batches[1] == ("a", ["patient"])
        assert batcher.queued_tokens == 0


@in_loop
async def test_a_request_that_breaks_a_batch_fails_alone():
    async with opened() as (batcher, work):
        first = await busy(batcher, work)
        good = [await submit(batcher, "a", [f"good {n}"], [1]) for n in range(2)]
        bad = await submit(batcher, "a", ["poison", "more"], [1, 1])
        last = await submit(batcher, "a", ["last"], [1])
        found = await finish(work, first, *good, last)
        assert found[1:] == [["a:good 0"], ["a:good 1"], ["a:last"]]
        with pytest.raises(ValueError, match="bad"):
            await bad


@in_loop
async def test_the_rest_of_a_broken_request_is_not_computed():
    async with opened() as (batcher, work):
        first = await busy(batcher, work)
        bad = await submit(batcher, "a", ["poison", *range(20)], [1] * 21)
        await finish(work, first)
        with pytest.raises(ValueError, match="bad"):
            await bad
        assert await batcher.submit("a", ["other"], [1], 60) == ["a:other"]
        assert [len(items) for _, items in work.batches] == [1, 10, 1]
        assert batcher.queued_tokens == 0


@in_loop
async def test_nothing_is_accepted_once_it_is_closed():
    async with opened() as (batcher, _):
        batcher.close()
        with pytest.raises(HTTPException) as caught:
            await batcher.submit("a", [1], [1], 60)
        assert caught.value.status_code == 503


# --- two threads


@in_loop
async def test_a_second_batch_starts_only_when_enough_waits():
    async with opened(2, MIN_PARALLEL_TOKENS) as (batcher, work):
        first = await busy(batcher, work)
        little = await submit(batcher, "a", ["little"], [MIN_PARALLEL_TOKENS - 1])
        assert not await work.start_is_seen(timeout=0.05)
        more = await submit(batcher, "a", ["more"], [1])
        assert await work.start_is_seen()  # while the first one still runs
        assert await finish(work, first, little, more) == [["a:first"], ["a:little"], ["a:more"]]
        assert sorted(len(items) for _, items in work.batches) == [1, 2]


@in_loop
async def test_a_large_queue_is_divided_between_two_threads():
    async with opened(2, MIN_PARALLEL_TOKENS) as (batcher, work):
        items = list(range(4))
        whole = await submit(batcher, "a", items, [MIN_PARALLEL_TOKENS] * 4)
        assert await work.start_is_seen()
        assert await work.start_is_seen()
        assert await finish(work, whole) == [[f"a:{item}" for item in items]]
        assert [len(items) for _, items in work.batches] == [2, 2]
        assert batcher.queued_tokens == 0


@in_loop
async def test_an_error_on_one_thread_does_not_affect_the_other():
    async with opened(2, MIN_PARALLEL_TOKENS) as (batcher, work):
        bad = await submit(batcher, "a", ["poison", "b", "c", "d"], [MIN_PARALLEL_TOKENS] * 4)
        good = await submit(batcher, "a", ["good"], [1])
        assert await finish(work, good) == [["a:good"]]
        with pytest.raises(ValueError, match="bad"):
            await bad
        assert await batcher.submit("a", ["after"], [1], 60) == ["a:after"]


# --- streams


@in_loop
async def test_streams_come_piece_by_piece_in_turn_with_each_other():
    order, pool = [], StreamPool(2)

    def pieces(name):
        for number in range(3):
            order.append(f"{name}{number}")
            yield f"{name}{number}"

    async def collect(name):
        return [piece async for piece in pool.stream(pieces(name), 30)]

    assert await asyncio.gather(collect("x"), collect("y")) == [["x0", "x1", "x2"], ["y0", "y1", "y2"]]
    assert order == ["x0", "y0", "x1", "y1", "x2", "y2"]
    assert pool.num_streams == 0
    pool.close()


@in_loop
async def test_a_cancelled_stream_is_closed():
    pool, closed = StreamPool(2), threading.Event()

    def endless():
        try:
            while True:
                yield 1
        finally:
            closed.set()

    async def listen():
        async for _ in pool.stream(endless(), 30):
            pass

    task = asyncio.create_task(listen())
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await asyncio.to_thread(closed.wait, 30)
    assert pool.num_streams == 0
    pool.close()


@in_loop
async def test_too_many_streams_are_refused_and_a_late_one_ends():
    pool = StreamPool(1)
    stream = pool.stream(iter_forever(), 0.2)
    assert await anext(stream) == 1
    with pytest.raises(HTTPException) as caught:
        await anext(pool.stream(iter_forever(), 30))
    assert caught.value.status_code == 429
    with pytest.raises(HTTPException) as caught:
        async for _ in stream:
            pass
    assert caught.value.status_code == 503
    assert pool.num_streams == 0
    pool.close()


def iter_forever():
    while True:
        yield 1


@in_loop
async def test_an_error_in_a_stream_reaches_its_listener():
    def broken():
        yield 1
        raise ValueError("bad")

    pool = StreamPool(1)
    stream = pool.stream(broken(), 30)
    assert await anext(stream) == 1
    with pytest.raises(ValueError, match="bad"):
        await anext(stream)
    pool.close()


@in_loop
async def test_batches_run_while_a_text_is_generated():
    go = threading.Event()

    def pieces():
        assert go.wait(30)
        yield 1

    pool = StreamPool(1)
    async with opened() as (batcher, work):
        task = asyncio.create_task(anext(pool.stream(pieces(), 30)))
        await asyncio.sleep(0)
        work.permits.release(1)
        assert await batcher.submit("a", [1], [1], 60) == ["a:1"]
        go.set()
        assert await asyncio.wait_for(task, 30) == 1
    pool.close()
