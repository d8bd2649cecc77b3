"""Requests answered together: a run's threads take what is waiting, as much as a token budget holds.

They do not wait for more to come: while one batch is read the next one gathers by itself. A second thread reads beside
the first once enough has gathered to be worth it; few texts cost more each than many.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, field
from typing import Any

from headstart.serving.refusal import Refusal

WORTH = 768  # cost from which a batch is read beside another

Work = Callable[[Hashable, list[Any]], Sequence[Any]]


@dataclass(eq=False)
class Group:
    """The items of one request, and the future that gets their answers in order."""

    kind: Hashable
    items: Sequence[Any]
    costs: Sequence[int]
    deadline: float
    future: "Future[list[Any]]" = field(default_factory=Future)
    taken: int = 0
    answers: dict[int, Any] = field(default_factory=dict)

    @property
    def waiting(self) -> int:
        """Cost of the items that nobody has taken yet."""
        return sum(self.costs[self.taken :])

    def give(self, place: int, answer: Any) -> None:
        """Keep one answer; the last one answers the request."""
        self.answers[place] = answer
        if len(self.answers) == len(self.items):
            self.settle([self.answers[number] for number in range(len(self.items))])

    def settle(self, answer: "list[Any] | BaseException") -> None:
        """Answer the request, unless its client has gone."""
        try:
            if isinstance(answer, BaseException):
                self.future.set_exception(answer)
            else:
                self.future.set_result(answer)
        except InvalidStateError:  # cancelled in the meantime
            pass


@dataclass(eq=False)
class Flow:
    """Something that comes piece by piece, each handed to `emit`; None says that it is over."""

    pieces: Iterator[Any]
    emit: Callable[[Any], None]
    deadline: float
    is_cancelled: bool = False

    def cancel(self) -> None:
        """Nobody listens any more."""
        self.is_cancelled = True


@dataclass(frozen=True)
class BatchDone:
    """One batch was read."""

    items: int
    requests: int
    cost: int
    seconds: float


class Batcher:
    """Answers requests in batches on threads of its own, taking an item of each waiting request in turn."""

    def __init__(
        self,
        work: Work,
        *,
        budget: int,
        room: int,
        flows: int = 8,
        workers: int = 1,
        name: str = "batcher",
        on_batch: Callable[[BatchDone], None] = lambda done: None,
        clock: Callable[[], float] = time.monotonic,
    ):
        self.work, self.budget, self.room, self.most_flows = work, budget, room, flows
        self.name, self.on_batch, self.clock = name, on_batch, clock
        self._groups: deque[Group] = deque()
        self._flows: list[Flow] = []
        self._queued = 0
        self._rate = float(budget)  # cost a second, as measured
        self._is_open = True
        self._lock = threading.Lock()
        self._rest = [threading.Condition(self._lock) for _ in range(workers)]  # where each thread waits
        self._is_busy = [False] * workers
        self._reading = 0  # batches under way
        self._threads = [
            threading.Thread(target=self._run, args=(number,), name=f"{name}, {number}", daemon=True)
            for number in range(workers)
        ]

    @property
    def queued(self) -> int:
        """Cost of all that waits."""
        return self._queued

    @property
    def flowing(self) -> int:
        """How many flows are under way."""
        return len(self._flows)

    def start(self) -> "Batcher":
        """Begin to answer."""
        for thread in self._threads:
            thread.start()
        return self

    def submit(
        self, kind: Hashable, items: Sequence[Any], costs: Sequence[int], seconds: float
    ) -> "Future[list[Any]]":
        """Queue the items of a request; refused when they are too many, or too much waits already."""
        group = Group(kind, items, costs, self.clock() + seconds)
        cost = group.waiting
        if cost > self.room:
            raise Refusal(
                413,
                f"the request asks for {cost:,} tokens of work, and {self.room:,} are the most",
                hint="send fewer or shorter texts at once",
            )
        if not items:
            group.settle([])
            return group.future
        with self._lock:
            self._check_open()
            if self._queued + cost > self.room:
                self._sweep()  # clients that have gone give up their place
            if self._queued + cost > self.room:
                wait = self._queued / self._rate
                raise Refusal(
                    429, "too much is waiting already", hint="ask again in a moment", retry_after=wait
                )
            self._queued += cost
            self._groups.append(group)
            self._wake()
        return group.future

    def flow(self, pieces: Iterator[Any], emit: Callable[[Any], None], seconds: float) -> Flow:
        """Let `pieces` come one by one, in turn with batches and with other flows."""
        flow = Flow(pieces, emit, self.clock() + seconds)
        with self._lock:
            self._check_open()
            self._flows = [other for other in self._flows if not other.is_cancelled]
            if len(self._flows) >= self.most_flows:
                raise Refusal(
                    429,
                    f"{self.most_flows} texts are being written already",
                    hint="ask again in a moment",
                    retry_after=1,
                )
            self._flows.append(flow)
            self._rest[0].notify()
        return flow

    def close(self, seconds: float = 5.0) -> None:
        """Finish the batches under way and stop; what still waits is refused."""
        with self._lock:
            self._is_open = False
            for rest in self._rest:
                rest.notify()
        by = time.monotonic() + seconds
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(max(0.0, by - time.monotonic()))
        for group in self._groups:
            group.settle(_closing())

    def _check_open(self) -> None:
        if not self._is_open:
            raise _closing()

    def _is_worth(self) -> bool:
        """Whether a batch should be read now."""
        return bool(self._groups) and (self._reading == 0 or self._queued >= WORTH)

    def _wake(self) -> None:
        """Call the first thread that rests, whose caches are the warmest."""
        if self._is_worth():
            for rest, is_busy in zip(self._rest, self._is_busy, strict=True):
                if not is_busy:
                    rest.notify()
                    return

    def _run(self, number: int) -> None:
        """What a thread does; the first one alone takes care of flows, which come in turn."""
        while True:
            with self._lock:
                self._is_busy[number] = False
                while self._is_open and not self._is_worth() and not (number == 0 and self._flows):
                    self._rest[number].wait()
                if not self._is_open:
                    return
                self._is_busy[number] = True
                batch = self._take() if self._is_worth() else []
                flows = list(self._flows) if number == 0 else []
                self._reading += bool(batch)
                self._wake()  # what is over the budget
            if batch:
                self._answer(batch)
                with self._lock:
                    self._reading -= 1
                    self._wake()
            for flow in flows:
                self._step(flow)

    def _sweep(self) -> None:
        """Let go of requests whose client has gone, and refuse those whose time is over."""
        now, kept, late = self.clock(), deque[Group](), []
        for group in self._groups:
            if not group.future.done() and group.deadline >= now:
                kept.append(group)
                continue
            self._queued -= group.waiting
            late += [] if group.future.done() else [group]
        self._groups = kept
        for group in late:
            group.settle(
                Refusal(
                    503,
                    "the request waited too long for its turn",
                    hint="ask again, or ask for less",
                    retry_after=self._queued / self._rate,
                )
            )

    def _take(self) -> list[tuple[Group, int]]:
        """Items of the oldest request's kind, one of each request in turn, within the budget; half of much for each of two."""
        self._sweep()
        if not self._groups:
            return []
        budget, free = self.budget, len(self._threads) - self._reading
        if free > 1 and self._queued >= free * WORTH:
            budget = min(budget, -(-self._queued // free))
        kind = self._groups[0].kind
        ready = deque(group for group in self._groups if group.kind == kind)
        batch: list[tuple[Group, int]] = []
        spent = 0
        while ready:
            group = ready.popleft()
            cost = group.costs[group.taken]
            if batch and spent + cost > budget:
                break
            batch.append((group, group.taken))
            spent += cost
            group.taken += 1
            if group.taken < len(group.items):
                ready.append(group)
        self._queued -= spent
        # Those who got something go behind those who got nothing.
        served = {id(group) for group, _ in batch}
        behind = [group for group in self._groups if id(group) in served and group.taken < len(group.items)]
        self._groups = deque([*(group for group in self._groups if id(group) not in served), *behind])
        return batch

    def _answer(self, batch: list[tuple[Group, int]]) -> None:
        start = time.perf_counter()
        kind = batch[0][0].kind
        groups = {id(group): group for group, _ in batch}
        try:
            answers = self.work(kind, [group.items[place] for group, place in batch])
        except Exception as error:
            self._blame(batch, list(groups.values()), error)
            return
        cost = sum(group.costs[place] for group, place in batch)
        seconds = max(1e-6, time.perf_counter() - start)
        self._rate += 0.2 * (cost / seconds - self._rate)
        self.on_batch(BatchDone(len(batch), len(groups), cost, seconds))
        for (group, place), answer in zip(batch, answers, strict=True):
            group.give(place, answer)

    def _blame(self, batch: list[tuple[Group, int]], groups: list[Group], error: Exception) -> None:
        """Let the request that broke a batch bear it alone; its neighbours are read again without it."""
        if len(groups) == 1:
            with self._lock:
                if groups[0] in self._groups:
                    self._groups.remove(groups[0])
                    self._queued -= groups[0].waiting
            groups[0].settle(error)
            return
        for group in groups:
            self._answer([(other, place) for other, place in batch if other is group])

    def _step(self, flow: Flow) -> None:
        """The next piece of a flow."""
        is_over = flow.is_cancelled
        if not is_over:
            try:
                if self.clock() > flow.deadline:
                    raise Refusal(503, "the answer took too long", hint="ask for fewer tokens", retry_after=1)
                flow.emit(next(flow.pieces))
            except StopIteration:
                flow.emit(None)
                is_over = True
            except Exception as error:
                flow.emit(error)
                is_over = True
        if is_over:
            close = getattr(flow.pieces, "close", None)
            if close is not None:
                close()
            with self._lock:
                self._flows = [other for other in self._flows if other is not flow]


def _closing() -> Refusal:
    return Refusal(503, "the server is stopping", hint="ask again in a moment", retry_after=5)
