"""The one training loop: pretraining, fine-tuning and translation differ only in what they hand to it.

Chance at a step is a function of seed and step alone, and the order of rows one of seed and epoch, so a
run that is taken up at a step goes on as if it had never stopped.
"""

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from queue import Queue
from threading import Thread
from typing import Any

import torch
from torch import Tensor

from headstart.batch import Batch
from headstart.config import RunConfig
from headstart.data.loader import Loader
from headstart.errors import RunError, Stopped
from headstart.models.model import Model
from headstart.objectives.base import Alphabet, Objective, counts
from headstart.training.average import Average
from headstart.training.events import Evaluated, Event, Saved, StepDone
from headstart.training.optim import make_optimizer, thaw
from headstart.training.runtime import Runtime, StopWish, generator_for, seed_everything
from headstart.training.schedule import rate_at

TOLD_EVERY = 10  # steps between two StepDone events


@dataclass(frozen=True)
class Evaluation:
    """Marks on the validation part; the higher `rank`, the better the model."""

    values: dict[str, float]
    rank: float


@dataclass
class State:
    """Where a run stands."""

    step: int = 0
    epoch: int = 0
    batch: int = 0  # batches of the epoch already read
    tokens: int = 0
    seconds: float = 0.0
    evaluated_at: int = -1  # the step of the last evaluation
    evaluated_progress: float = 0.0  # and the progress there
    best_rank: float = -math.inf
    best_step: int = -1
    averaged: int = 0  # weights that the average was made of
    curve: list[dict[str, float]] = field(default_factory=list)
    since: dict[str, Any] = field(default_factory=dict)  # sums since the last telling

    def to_dict(self) -> dict[str, Any]:
        """JSON-able; infinity is kept as None."""
        content = asdict(self)
        content["best_rank"] = None if math.isinf(self.best_rank) else self.best_rank
        return content

    @staticmethod
    def from_dict(content: dict[str, Any]) -> "State":
        """What `to_dict` gave."""
        best = content["best_rank"]
        return State(**{**content, "best_rank": -math.inf if best is None else best})


class Trainer:
    """A model, what is asked of it, and the state between steps."""

    def __init__(
        self,
        model: Model,
        objective: Objective,
        loader: Loader,
        alphabet: Alphabet,
        config: RunConfig,
        runtime: Runtime,
        evaluate: Callable[[Model], Evaluation] | None = None,
        on_event: Callable[[Event], None] = lambda event: None,
        stop: StopWish | None = None,
    ):
        self.model, self.objective, self.loader, self.alphabet = model, objective, loader, alphabet
        self.config, self.runtime, self.evaluate, self.on_event = config, runtime, evaluate, on_event
        self.stop = stop if stop is not None else StopWish()
        self.optimizer = make_optimizer(model, config.optimizer)
        self.state = State()
        self.best: dict[str, Tensor] | None = None
        self.average = Average(config.training)
        self.total_steps = self._total_steps()
        self._since = _Since()
        if config.training.compile:
            model.body.compile()

    def _total_steps(self) -> int | None:
        training = self.config.training
        if training.steps is not None:
            return training.steps
        if training.epochs is None:
            return None
        whole = int(training.epochs)
        steps, rest = sum(self.steps_in(epoch) for epoch in range(whole)), training.epochs - whole
        return max(1, steps + (math.ceil(rest * self.steps_in(whole)) if rest else 0))

    def steps_in(self, epoch: int) -> int:
        """Steps in an epoch; the last may gather fewer batches than the others."""
        return math.ceil(self.loader.count(epoch) / self.config.training.accumulate)

    @property
    def progress(self) -> float:
        """The share of the budget that is spent."""
        training, state = self.config.training, self.state
        if self.total_steps is not None:
            return state.step / self.total_steps
        if training.tokens is not None:
            return state.tokens / training.tokens
        assert training.minutes is not None, "the workflow sets a budget"
        return state.seconds / (60 * training.minutes)

    def run(self, save: Callable[[], None] = lambda: None) -> None:
        """Train until the budget is spent; `save` is called when it is time, and before stopping early."""
        start = time.monotonic() - self.state.seconds
        self._since.load(self.state.since, self.state.seconds)
        saved_at = time.monotonic()
        training = self.config.training
        self._evaluate_if_due()
        while self.progress < 1:
            for parts in self._steps():
                self._step(parts)
                self.state.seconds = time.monotonic() - start
                done = self.progress >= 1
                self._tell(done)
                self._turn_epoch()
                self._take_average(done)
                self._evaluate_if_due()
                self.state.seconds = time.monotonic() - start
                is_time = training.save_every is not None and self.state.step % training.save_every == 0
                waited = (time.monotonic() - saved_at) / 60
                is_late = training.save_minutes is not None and waited >= training.save_minutes
                if (is_time or is_late or self.stop) and not (done and not self.stop):
                    self.state.since = self._since.to_dict()
                    save()
                    saved_at = time.monotonic()
                    self.on_event(Saved(self.state.step))
                if self.stop:
                    assert self.stop.signal is not None
                    raise Stopped(self.stop.signal)
                if done or self.state.batch == 0:
                    break

    def _steps(self) -> Iterator[list[Batch]]:
        """The rest of the current epoch, a step at a time; made in another thread when a GPU waits."""
        if self.runtime.device.type == "cpu":
            yield from self._make_steps()
            return
        queue: Queue[list[Batch] | BaseException | None] = Queue(maxsize=4)
        abandoned = StopWish()

        def fill() -> None:
            try:
                for parts in self._make_steps():
                    queue.put([part.pin() if self.runtime.device.type == "cuda" else part for part in parts])
                    if abandoned:
                        return
                queue.put(None)
            except BaseException as error:
                queue.put(error)

        worker = Thread(target=fill, daemon=True)
        worker.start()
        try:
            while (found := queue.get()) is not None:
                if isinstance(found, BaseException):
                    raise found
                yield found
        finally:
            abandoned.signal = 0
            while worker.is_alive():  # let it finish: a thread cut off inside torch takes the process with it
                while not queue.empty():
                    queue.get_nowait()
                worker.join(0.01)

    def _make_steps(self) -> Iterator[list[Batch]]:
        epoch, start, step = self.state.epoch, self.state.batch, self.state.step
        seed, gathered = self.config.training.seed, self.config.training.accumulate
        batches = self.loader.batches(epoch)
        for at in range(start, len(batches), gathered):
            rng = generator_for(seed, step, 1)
            yield [
                self.objective.collate(self.loader.fetch(numbers, epoch), self.alphabet, rng)
                for numbers in batches[at : at + gathered]
            ]
            step += 1

    def _step(self, parts: list[Batch]) -> None:
        """One change of the weights, by gradients of the mean over all parts together."""
        training, state = self.config.training, self.state
        thaw(self.model, training.freeze, training.unfreeze_every, state.epoch)
        self.model.train()
        if training.freeze:
            self.model.body.eval()
        seed_everything(training.seed, state.step, 2)
        whole: dict[str, int] = {}
        for part in parts:
            for name, count in counts(part).items():
                whole[name] = whole.get(name, 0) + count
        for part in parts:  # one graph alive at a time
            moved = part.to(self.runtime.device)
            with self.runtime.autocast():
                losses = self.objective.losses(self.model, moved)
            means = [loss.weight * loss.total / max(1, whole[name]) for name, loss in losses.items()]
            mean = torch.stack(means).sum()
            mean.backward()
            self._since.add(losses, whole, part)
            state.tokens += part.count
        learning = [weight for weight in self.model.parameters() if weight.grad is not None]
        if self.config.optimizer.clip:
            torch.nn.utils.clip_grad_norm_(learning, self.config.optimizer.clip)
        share = rate_at(self.progress, self.config.schedule, state.step)
        self.rate = self.config.optimizer.learning_rate * share
        self.optimizer.step(self.rate)
        state.step += 1
        state.batch += len(parts)

    def _turn_epoch(self) -> None:
        if self.state.batch >= self.loader.count(self.state.epoch):
            self.state.epoch, self.state.batch = self.state.epoch + 1, 0

    def _take_average(self, done: bool) -> None:
        if self.average.kind == "none":
            return
        state, steps = self.state, self.steps_in(0)
        left = (self.total_steps - state.step) / steps if self.total_steps is not None else 0.0
        if self.config.training.epochs is not None:
            left = self.config.training.epochs - self.epochs_done
        is_end = done or state.batch == 0
        state.averaged = self.average.take(self.model, state.step, steps, is_end, left, state.averaged)

    @property
    def epochs_done(self) -> float:
        """Epochs read so far, with the part of the current one."""
        if not self.state.batch:  # an epoch that may never be read is not counted
            return float(self.state.epoch)
        return self.state.epoch + self.state.batch / max(1, self.loader.count(self.state.epoch))

    def _tell(self, done: bool) -> None:
        state = self.state
        if not (done or state.step == 1 or state.step % TOLD_EVERY == 0):
            return
        found = self._since.finish(state.seconds)
        if not math.isfinite(found["loss"]):
            raise RunError(
                f"the loss is {found['loss']} at step {state.step}: training has diverged",
                hint="lower --set optimizer.learning_rate, or raise schedule.warmup",
            )
        progress = self.progress
        self.on_event(
            StepDone(
                step=state.step,
                epoch=self.epochs_done,
                progress=min(1.0, progress),
                loss=found["loss"],
                accuracy=found["accuracy"],
                learning_rate=self.rate,
                tokens=state.tokens,
                tokens_per_second=found["tokens_per_second"],
                padding=found["padding"],
                seconds=state.seconds,
                seconds_left=max(0.0, state.seconds / max(progress, 1e-9) * (1 - progress)),
                losses=self._since.by_head,
            )
        )

    def _is_due(self) -> bool:
        state, training = self.state, self.config.training
        if state.evaluated_at == state.step:
            return False
        if state.step == 0 or self.progress >= 1:
            return True
        if training.evaluate_every is not None:
            return state.step % training.evaluate_every == 0
        if (
            self.objective.reads == "blocks"
        ):  # an epoch over a corpus can be the whole run: mark every tenth of it
            return int(10 * self.progress) > int(10 * state.evaluated_progress)
        return state.batch == 0

    def _evaluate_if_due(self) -> None:
        if self.evaluate is None or not self._is_due():
            return
        self.model.eval()
        with self.average.shown(self.model):
            self._mark(self.evaluate(self.model))

    def _mark(self, found: Evaluation) -> None:
        """Write down the marks of the weights that stand in the model, and keep those if they are the best."""
        state = self.state
        state.evaluated_at, state.evaluated_progress = state.step, self.progress
        is_best = found.rank > state.best_rank
        if is_best:
            state.best_rank, state.best_step = found.rank, state.step
            if self.config.training.keep == "best":
                self.best = {
                    name: weight.detach().clone() for name, weight in self.model.state_dict().items()
                }
        state.curve.append({"epoch": round(self.epochs_done, 4), "step": state.step, **found.values})
        self.on_event(Evaluated(state.step, self.epochs_done, found.values, is_best))

    def finish(self) -> None:
        """Put the weights to keep into the model: the best on validation, or the last, averaged if that was asked."""
        if self.config.training.keep == "best" and self.best is not None:
            self.model.load_state_dict(self.best)
        elif self.average.tensors:
            self.model.load_state_dict(self.average.tensors)
        self.model.eval()


class _Since:
    """Sums since the last telling."""

    def __init__(self) -> None:
        self.by_head: dict[str, float] = {}
        self.last_seconds = 0.0
        self._clear()

    def _clear(self) -> None:
        self.totals: dict[str, list[Any]] = {}
        self.tokens = self.computed = 0

    def add(self, losses: dict[str, Any], whole: dict[str, int], part: Batch) -> None:
        for name, loss in losses.items():
            total, count, correct = self.totals.get(name, [0.0, 0, 0])
            self.totals[name] = [
                total + loss.total.detach().float(),
                count + loss.count,
                correct + loss.correct.detach(),
            ]
        self.tokens += part.count
        self.computed += part.size

    def to_dict(self) -> dict[str, Any]:
        totals = {
            name: [float(total), count, int(right)] for name, (total, count, right) in self.totals.items()
        }
        return {"totals": totals, "tokens": self.tokens, "computed": self.computed}

    def load(self, content: dict[str, Any], seconds: float) -> None:
        self.last_seconds = seconds
        if content:
            self.totals = {name: list(sums) for name, sums in content["totals"].items()}
            self.tokens, self.computed = content["tokens"], content["computed"]

    def finish(self, seconds: float) -> dict[str, float]:
        self.by_head = {name: float(total) / max(1, count) for name, (total, count, _) in self.totals.items()}
        counted = sum(count for _, count, _ in self.totals.values())
        right = sum(int(correct) for _, _, correct in self.totals.values())
        found = {
            "loss": sum(self.by_head.values()),
            "accuracy": right / max(1, counted),
            "tokens_per_second": self.tokens / max(1e-9, seconds - self.last_seconds),
            "padding": 1 - self.tokens / max(1, self.computed),
        }
        self.last_seconds = seconds
        self._clear()
        return found
