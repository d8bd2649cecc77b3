"""Requests answered together: right answers to the right callers, fairly, and within limits."""

import threading

import pytest
from fastapi import HTTPException

from headstart.serving.batcher import MIN_PARALLEL_TOKENS, Batcher


class Held:
    """Work that waits for a word before each batch, and remembers what it was given."""

    def __init__(self, words=0):
        self.batches, self.begun, self.go = [], threading.Semaphore(0), threading.Semaphore(words)

    def __call__(self, kind, items):
        self.begun.release()
        assert self.go.acquire(timeout=30)
        self.batches.append((kind, list(items)))
        if "poison" in items:
            raise ValueError("bad")
        return [f"{kind}:{item}" for item in items]


@pytest.fixture
def held():
    return Held()


@pytest.fixture
def batcher(held):
    made = Batcher(held, max_batch_tokens=10, max_queued_tokens=100, max_streams=2).start()
    yield made
    held.go.release(1000)
    made.close()


def busy(batcher, held):
    """Let the worker begin a first batch, so that what follows gathers."""
    first = batcher.submit("a", ["first"], [1], 60)
    assert held.begun.acquire(timeout=30)
    return first


def finish(held, *futures):
    held.go.release(1000)
    return [future.result(timeout=30) for future in futures]


def test_what_comes_while_a_batch_is_read_is_read_together_and_everyone_gets_his_own(batcher, held):
    first = busy(batcher, held)
    others = [batcher.submit("a", [f"{n}x", f"{n}y"], [1, 1], 60) for n in range(4)]
    assert finish(held, first, *others) == [["a:first"], *([f"a:{n}x", f"a:{n}y"] for n in range(4))]
    assert [len(items) for _, items in held.batches] == [1, 8]


def test_a_batch_stays_within_the_budget_and_one_that_is_over_it_is_read_alone(batcher, held):
    first = busy(batcher, held)
    others = [batcher.submit("a", [n], [cost], 60) for n, cost in enumerate((6, 4, 1, 25, 5))]
    finish(held, first, *others)
    assert [items for _, items in held.batches] == [["first"], [0, 1], [2], [3], [4]]


def test_kinds_are_not_mixed(batcher, held):
    first = busy(batcher, held)
    others = [batcher.submit(kind, [n], [1], 60) for n, kind in enumerate("abab")]
    finish(held, first, *others)
    assert held.batches == [("a", ["first"]), ("a", [0, 2]), ("b", [1, 3])]


def test_a_small_request_does_not_wait_behind_a_large_one(batcher, held):
    first = busy(batcher, held)
    large = batcher.submit("a", list(range(30)), [1] * 30, 60)
    small = batcher.submit("a", ["small"], [1], 60)
    finish(held, first, large, small)
    assert "small" in held.batches[1][1]
    assert large.result() == [f"a:{n}" for n in range(30)]


def test_whoever_got_nothing_comes_before_whoever_got_something(batcher, held):
    first = busy(batcher, held)
    one = batcher.submit("a", [1, 2], [10, 10], 60)
    two = batcher.submit("a", [3], [10], 60)
    finish(held, first, one, two)
    assert [items for _, items in held.batches] == [["first"], [1], [3], [2]]


def test_a_client_that_has_gone_is_not_read_for(batcher, held):
    first = busy(batcher, held)
    gone, stays = batcher.submit("a", [1, 2], [1, 1], 60), batcher.submit("a", [3], [1], 60)
    assert gone.cancel()
    finish(held, first, stays)
    assert held.batches == [("a", ["first"]), ("a", [3])]
    assert batcher.queued_tokens == 0


def test_one_that_leaves_while_it_is_read_costs_nobody_anything(batcher, held):
    first = busy(batcher, held)
    assert first.cancel()
    other = batcher.submit("a", ["other"], [1], 60)
    assert finish(held, other) == [["a:other"]]


def test_a_full_queue_is_refused_with_a_time_to_come_back(batcher, held):
    busy(batcher, held)
    batcher.submit("a", range(10), [9] * 10, 60)
    with pytest.raises(HTTPException) as caught:
        batcher.submit("a", [1, 2], [9, 9], 60)
    assert caught.value.status_code == 429
    assert int(caught.value.headers["Retry-After"]) >= 1
    assert caught.value.detail["hint"]


def test_clients_that_have_gone_give_up_their_place_in_the_queue(batcher, held):
    first = busy(batcher, held)
    gone = batcher.submit("a", range(10), [9] * 10, 60)
    gone.cancel()
    other = batcher.submit("a", [1, 2], [9, 9], 60)
    assert finish(held, first, other)[1] == ["a:1", "a:2"]


def test_a_request_that_could_never_fit_is_too_large(batcher):
    with pytest.raises(HTTPException) as caught:
        batcher.submit("a", [1, 2], [60, 60], 60)
    assert caught.value.status_code == 413


def test_a_request_whose_time_is_over_is_refused_and_not_read(held):
    now = [0.0]
    batcher = Batcher(held, max_batch_tokens=10, max_queued_tokens=100, clock=lambda: now[0]).start()
    first = busy(batcher, held)
    late = batcher.submit("a", ["late"], [1], 5)
    patient = batcher.submit("a", ["patient"], [1], 50)
    now[0] = 10.0
    assert finish(held, first, patient) == [["a:first"], ["a:patient"]]
    with pytest.raises(HTTPException) as caught:
        late.result(timeout=30)
    assert caught.value.status_code == 503
    assert held.batches[1] == ("a", ["patient"])
    batcher.close()


def test_a_request_that_breaks_a_batch_bears_it_alone(batcher, held):
    first = busy(batcher, held)
    good = [batcher.submit("a", [f"good {n}"], [1], 60) for n in range(2)]
    bad = batcher.submit("a", ["poison", "more"], [1, 1], 60)
    last = batcher.submit("a", ["last"], [1], 60)
    finish(held, first, *good, last)
    with pytest.raises(ValueError, match="bad"):
        bad.result(timeout=30)
    assert [future.result() for future in (*good, last)] == [["a:good 0"], ["a:good 1"], ["a:last"]]


def test_the_rest_of_a_broken_request_is_not_read(batcher, held):
    first = busy(batcher, held)
    bad = batcher.submit("a", ["poison", *range(20)], [1] * 21, 60)
    finish(held, first)
    with pytest.raises(ValueError, match="bad"):
        bad.result(timeout=30)
    other = batcher.submit("a", ["other"], [1], 60)
    assert other.result(timeout=30) == ["a:other"]
    assert [len(items) for _, items in held.batches] == [1, 10, 1]


def test_nothing_is_taken_once_it_is_closed(held):
    batcher = Batcher(held, max_batch_tokens=10, max_queued_tokens=100).start()
    held.go.release(10)
    batcher.close()
    with pytest.raises(HTTPException) as caught:
        batcher.submit("a", [1], [1], 60)
    assert caught.value.status_code == 503


def collect():
    found, is_over = [], threading.Event()

    def emit(piece):
        found.append(piece)
        if piece is None or isinstance(piece, Exception):
            is_over.set()

    return found, is_over, emit


def test_streams_come_piece_by_piece_in_turn_with_each_other_and_with_batches(batcher, held):
    order = []

    def pieces(name):
        for number in range(3):
            order.append(f"{name}{number}")
            yield f"{name}{number}"

    first = busy(batcher, held)
    ends = []
    for name in "xy":
        found, is_over, emit = collect()
        batcher.stream(pieces(name), emit, 60)
        ends.append((found, is_over))
    finish(held, first)
    for (found, is_over), name in zip(ends, "xy", strict=True):
        assert is_over.wait(30)
        assert found == [f"{name}0", f"{name}1", f"{name}2", None]
    assert order == ["x0", "y0", "x1", "y1", "x2", "y2"]
    assert batcher.submit("a", [1], [1], 60).result(timeout=30) == ["a:1"]


def test_a_stream_that_nobody_listens_to_stops_and_is_closed(batcher, held):
    closed, begun = threading.Event(), threading.Event()

    def endless():
        try:
            while True:
                yield 1
        finally:
            closed.set()

    job = batcher.stream(endless(), lambda piece: begun.set(), 60)
    assert begun.wait(30)
    job.cancel()
    assert closed.wait(30)


def test_too_many_streams_are_refused_and_a_late_one_ends(held):
    now = [0.0]
    batcher = Batcher(
        held, max_batch_tokens=10, max_queued_tokens=100, max_streams=2, clock=lambda: now[0]
    ).start()
    first = busy(batcher, held)
    ends = [collect() for _ in range(2)]
    for _, _, emit in ends:
        batcher.stream(iter(int, 1), emit, 5)
    with pytest.raises(HTTPException) as caught:
        batcher.stream(iter(int, 1), lambda piece: None, 5)
    assert caught.value.status_code == 429
    now[0] = 10.0
    finish(held, first)
    for found, is_over, _ in ends:
        assert is_over.wait(30)
        assert found[-1].status_code == 503
    batcher.close()


def test_what_breaks_a_stream_is_told_to_its_listener(batcher, held):
    def broken():
        yield 1
        raise ValueError("bad")

    found, is_over, emit = collect()
    batcher.stream(broken(), emit, 60)
    assert is_over.wait(30)
    assert found[0] == 1
    assert isinstance(found[1], ValueError)


@pytest.fixture
def pair(held):
    made = Batcher(
        held,
        max_batch_tokens=10 * MIN_PARALLEL_TOKENS,
        max_queued_tokens=100 * MIN_PARALLEL_TOKENS,
        num_threads=2,
    ).start()
    yield made
    held.go.release(1000)
    made.close()


def test_little_waits_for_the_batch_that_is_read_and_much_is_read_beside_it(pair, held):
    first = busy(pair, held)
    little = pair.submit("a", ["little"], [MIN_PARALLEL_TOKENS - 1], 60)
    assert not held.begun.acquire(timeout=0.05)
    more = pair.submit("a", ["more"], [1], 60)
    assert held.begun.acquire(timeout=30)  # beside the first, which is still being read
    assert finish(held, first, little, more) == [["a:first"], ["a:little"], ["a:more"]]
    assert sorted(map(len, (items for _, items in held.batches))) == [1, 2]


def test_much_that_waits_for_two_threads_is_halved(pair, held):
    items = list(range(4))
    whole = pair.submit("a", items, [MIN_PARALLEL_TOKENS] * 4, 60)
    assert held.begun.acquire(timeout=30)
    assert held.begun.acquire(timeout=30)
    assert finish(held, whole) == [[f"a:{item}" for item in items]]
    assert [len(items) for _, items in held.batches] == [2, 2]
    assert pair.queued_tokens == 0


def test_what_one_thread_cannot_finish_spoils_nothing_for_the_other(pair, held):
    bad = pair.submit("a", ["poison", "b", "c", "d"], [MIN_PARALLEL_TOKENS] * 4, 60)
    good = pair.submit("a", ["good"], [1], 60)
    held.go.release(1000)
    with pytest.raises(ValueError, match="bad"):
        bad.result(timeout=30)
    assert good.result(timeout=30) == ["a:good"]
    assert pair.submit("a", ["after"], [1], 60).result(timeout=30) == ["a:after"]


def test_while_a_text_is_written_another_thread_answers(pair, held):
    begun, go = threading.Event(), threading.Event()

    def pieces():
        begun.set()
        assert go.wait(30)
        yield 1

    found, is_over, emit = collect()
    pair.stream(pieces(), emit, 60)
    assert begun.wait(30)
    held.go.release(1000)
    assert pair.submit("a", [1], [1], 60).result(timeout=30) == ["a:1"]
    go.set()
    assert is_over.wait(30)
    assert found == [1, None]
