"""The one training loop: pretraining, fine-tuning and translation differ only in what they hand to it.

Chance at a step is a function of seed and step alone, and the order of rows one of seed and epoch, so a
run that is taken up at a step goes on as if it had never stopped. A step is the same for any number of
processes: each reads its share of the rows, and sums over all of them are what counts.
"""

import math
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor

from headstart.batch import Batch
from headstart.config import RunConfig
from headstart.data.samplers import Loader
from headstart.errors import Diverged, Stopped
from headstart.models.model import Model
from headstart.objectives.base import Loss, Objective, Vocabulary
from headstart.training.callbacks import Evaluated, Event, Saved, StepDone
from headstart.training.compile import Compiled, should_compile
from headstart.training.ema import WeightAverage
from headstart.training.lr_schedule import lr_factor
from headstart.training.optimizers import make_optimizer, set_trainable_layers
from headstart.training.parallel import batch_shards, collate_shard, make_strategy
from headstart.training.prefetch import prefetch
from headstart.training.runtime import Runtime, StopSignal, cudnn_attention, seed_everything

TOLD_EVERY = 10  # steps between two StepDone events
PARTS = ("model", "optimizer", "best", "average")  # of a checkpoint; the last two only where there are some


def nested(sums: Mapping[str, float]) -> dict[str, Any]:
    """Sums since the last telling, as they are kept in a checkpoint."""
    totals: dict[str, list[float]] = {}
    for name in sums:
        if name.startswith("total "):
            head = name.removeprefix("total ")
            totals[head] = [sums[name], round(sums[f"counted {head}"]), round(sums[f"correct {head}"])]
    return {"totals": totals, "tokens": round(sums["read"]), "computed": round(sums["computed"])}


class Meters:
    """Sums since the last telling, of this process."""

    def __init__(self) -> None:
        self.by_head: dict[str, float] = {}
        self.last_seconds = 0.0
        self._clear()

    def _clear(self) -> None:
        self.totals: dict[str, list[Any]] = {}
        self.tokens = self.computed = 0

    def add(self, losses: dict[str, Any], part: Batch) -> None:
        """Count what one batch gave."""
        for name, loss in losses.items():
            total, count, correct = self.totals.get(name, [0.0, 0, 0])
            self.totals[name] = [
                total + loss.total.detach().float(),
                count + loss.count,
                correct + loss.correct.detach(),
            ]
        self.tokens += part.num_tokens
        self.computed += part.num_positions

    def sums(self) -> dict[str, float]:
        """All of them by name."""
        found: dict[str, float] = {"read": self.tokens, "computed": self.computed}
        for name, (total, count, right) in self.totals.items():
            found |= {f"total {name}": float(total), f"counted {name}": count, f"correct {name}": int(right)}
        return found

    def load(self, content: dict[str, Any], seconds: float) -> None:
        """Go on from what `nested` gave, also by way of a file, where a sum that is not finite is None."""
        self.last_seconds = seconds
        if content:
            self.totals = {
                name: [math.nan if value is None else value for value in sums]
                for name, sums in content["totals"].items()
            }
            self.tokens, self.computed = content["tokens"], content["computed"]

    def finish(self, seconds: float, sums: Mapping[str, float]) -> dict[str, float]:
        """Means of sums over all processes."""
        whole = nested(sums)
        totals = whole["totals"].items()
        self.by_head = {name: total / max(1, count) for name, (total, count, _) in totals if count}
        found = {
            "loss": sum(self.by_head.values()),
            "accuracy": sum(right for _, (_, _, right) in totals) / max(1, sum(row[1] for _, row in totals)),
            "tokens_per_second": whole["tokens"] / max(1e-9, seconds - self.last_seconds),
            "padding": 1 - whole["tokens"] / max(1, whole["computed"]),
        }
        self.last_seconds = seconds
        self._clear()
        return found


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
    best_value: float = -math.inf
    best_step: int = -1
    averaged: int = 0  # weights that the average was made of
    curve: list[dict[str, float]] = field(default_factory=list)
    since: dict[str, Any] = field(default_factory=dict)  # sums since the last telling

    def to_dict(self) -> dict[str, Any]:
        """JSON-able; infinity is kept as None."""
        content = asdict(self)
        content["best_value"] = None if math.isinf(self.best_value) else self.best_value
        return content

    @staticmethod
    def from_dict(content: dict[str, Any]) -> "State":
        """What `to_dict` gave, also by way of a file, where what is not finite is None."""
        best = content["best_value"]
        curve = [{name: math.nan if v is None else v for name, v in p.items()} for p in content["curve"]]
        return State(**{**content, "best_value": -math.inf if best is None else best, "curve": curve})


def sum_of_means(losses: Mapping[str, Loss], whole: Mapping[str, int]) -> Tensor:
    """What is learnt from: each head's mean over the whole step's answers, by its weight."""
    means = [
        (loss.total if loss.weight == 1 else loss.weight * loss.total) / max(1, whole[name])
        for name, loss in losses.items()
    ]
    return sum(means[1:], means[0])


class Trainer:
    """A model, what is asked of it, and the state between steps."""

    def __init__(
        self,
        model: Model,
        objective: Objective,
        loader: Loader,
        vocabulary: Vocabulary,
        config: RunConfig,
        runtime: Runtime,
        evaluate: Callable[[Model], Evaluation] | None = None,
        on_event: Callable[[Event], None] = lambda event: None,
        stop: StopSignal | None = None,
        may_select_initial: bool = True,
    ):
        self.may_select_initial = (
            may_select_initial  # False: the weights before the first step are never the best
        )
        self.model, self.objective, self.loader, self.vocabulary = model, objective, loader, vocabulary
        self.config, self.runtime, self.evaluate, self.on_event = config, runtime, evaluate, on_event
        self.stop = stop if stop is not None else StopSignal()
        set_trainable_layers(
            model, config.training.freeze_backbone, config.training.gradual_unfreezing_epochs, 0
        )
        self.strategy = make_strategy(model, runtime)
        self.optimizer = make_optimizer(
            model, config.optimizer, self.strategy if runtime.is_sharded else None
        )
        self.state = State()
        self.best: dict[str, Tensor] | None = None
        self.average = WeightAverage(config.training)
        self.total_steps = self._total_steps()
        self._since = Meters()
        self._thawed_at = 0  # the epoch for which it was last said which weights learn
        has_long_run = should_compile(config, model, objective, runtime, self.total_steps)
        self.compiled = Compiled(model, objective) if has_long_run else None

    def _total_steps(self) -> int | None:
        training = self.config.training
        if training.max_steps is not None:
            return training.max_steps
        if training.max_epochs is None:
            return None
        whole = int(training.max_epochs)
        steps, rest = sum(self.steps_in(epoch) for epoch in range(whole)), training.max_epochs - whole
        return max(1, steps + (math.ceil(rest * self.steps_in(whole)) if rest else 0))

    def steps_in(self, epoch: int) -> int:
        """Steps in an epoch; the last may gather fewer batches than the others."""
        return math.ceil(self.loader.count(epoch) / self.config.training.gradient_accumulation_steps)

    @property
    def progress(self) -> float:
        """The share of the budget that is spent."""
        training, state = self.config.training, self.state
        if self.total_steps is not None:
            return state.step / self.total_steps
        if training.max_tokens is not None:
            return state.tokens / training.max_tokens
        assert training.max_minutes is not None, "the workflow sets a budget"
        return state.seconds / (60 * training.max_minutes)

    def run(self, save: Callable[[], None] = lambda: None) -> None:
        """Train until the budget is spent; `save` is called when it is time, and before stopping early."""
        with self.attending():
            self._run(save)

    def attending(self) -> AbstractContextManager[None]:
        """While this lasts, attention is computed as suits the shapes of its batches."""
        return cudnn_attention() if self.objective.reads == "blocks" else nullcontext()

    def _run(self, save: Callable[[], None]) -> None:
        self._start = time.monotonic() - self.state.seconds
        self._saved_at = time.monotonic()
        self._since.load(self.state.since if self.runtime.processes.is_main else {}, self.state.seconds)
        training = self.config.training
        self._evaluate_if_due()
        while self.progress < 1:
            for parts in self._steps():
                self._step(parts)
                self._look()
                done = self.progress >= 1
                self._tell(done)
                self._turn_epoch()
                self._take_average(done)
                self._evaluate_if_due()
                self._look()
                is_time = training.save_steps is not None and self.state.step % training.save_steps == 0
                if (is_time or self._seen["late"] or self._seen["stop"]) and not (
                    done and not self._seen["stop"]
                ):
                    self.state.since = nested(self.runtime.processes.all_reduce(self._since.sums()))
                    save()
                    self._saved_at = time.monotonic()
                    self.on_event(Saved(self.state.step))
                if self._seen["stop"]:
                    raise Stopped(self.stop.signal or signal.SIGTERM)
                if done or self.state.batch == 0:
                    break

    def _moment(self) -> dict[str, float]:
        """What this process's clock and signals say; the main one's clock is everybody's."""
        now, minutes = time.monotonic(), self.config.training.save_minutes
        is_main = self.runtime.processes.is_main
        is_late = minutes is not None and now - self._saved_at >= 60 * minutes
        return {
            "seconds": (now - self._start) if is_main else 0.0,
            "late": float(is_late and is_main),
            "stop": float(bool(self.stop)),
        }

    def _look(self) -> None:
        """Note the time and the wish to stop: as they are, or as all processes agreed at the step's beginning."""
        if self.runtime.processes.is_alone:
            self._seen = self._moment()
        self.state.seconds = self._seen["seconds"]

    def _steps(self) -> Iterator[list[Batch]]:
        """The rest of the current epoch, a step at a time; made in another thread when a GPU waits."""
        device, steps = self.runtime.device.type, self._make_steps()
        return steps if device == "cpu" else prefetch(steps, is_pinned=device == "cuda")

    def _make_steps(self) -> Iterator[list[Batch]]:
        epoch, start, step = self.state.epoch, self.state.batch, self.state.step
        seed, gathered = self.config.training.seed, self.config.training.gradient_accumulation_steps
        batches, processes = self.loader.batches(epoch), self.runtime.processes
        for at in range(start, len(batches), gathered):
            numbers = batches[at : at + gathered]
            yield [
                collate_shard(
                    share, numbers, epoch, self.objective, self.loader, self.vocabulary, (seed, step, 1)
                )
                for share in batch_shards(len(numbers), processes.rank, processes.count)
            ]
            step += 1

    def _step(self, parts: list[Batch]) -> None:
        """One change of the weights, by gradients of the mean over all parts together."""
        training, state = self.config.training, self.state
        self._set_to_learn()
        seed_everything(training.seed, state.step, 2, *self.runtime.processes.seed_offset)
        whole = self._agree(parts)
        for part in parts:  # one graph alive at a time
            moved = part.to(self.runtime.device)
            reading = nullcontext() if self.compiled is None else self.compiled.reading(moved)
            with reading, self.runtime.autocast():
                losses = self.strategy.losses(self.objective, moved, is_last=part is parts[-1])
            mean = sum_of_means(losses, whole)
            if not self.runtime.processes.is_alone:
                mean = mean * (0.0 if part.is_dummy else self.strategy.scale)
            mean.backward()
            if not part.is_dummy:
                self._since.add(losses, part)
        learning = [weight for weight in self.model.parameters() if weight.grad is not None]
        if self.config.optimizer.max_grad_norm:
            torch.nn.utils.clip_grad_norm_(learning, self.config.optimizer.max_grad_norm)
        share = lr_factor(self.progress, self.config.lr_schedule, state.step)
        self.rate = self.config.optimizer.learning_rate * share
        self.optimizer.step(self.rate)
        state.step += 1
        state.batch = min(state.batch + training.gradient_accumulation_steps, self.loader.count(state.epoch))

    def _set_to_learn(self) -> None:
        """What evaluations have changed is undone; what has not changed since the last step costs no time."""
        training, epoch = self.config.training, self.state.epoch
        if training.gradual_unfreezing_epochs is not None and epoch != self._thawed_at:
            set_trainable_layers(
                self.model, training.freeze_backbone, training.gradual_unfreezing_epochs, epoch
            )
            self._thawed_at = epoch
        self.strategy.refresh()
        if not self.model.training or (training.freeze_backbone and self.model.backbone.training):
            self.model.train()
            if training.freeze_backbone:
                self.model.backbone.eval()

    def _agree(self, parts: list[Batch]) -> dict[str, int]:
        """How many answers of each kind the step has, over all processes; what else they must agree on goes along."""
        own: dict[str, float] = {}
        for part in parts:
            for name, count in part.label_counts.items():
                own[f"count {name}"] = own.get(f"count {name}", 0) + count
            own["tokens"] = own.get("tokens", 0) + (0 if part.is_dummy else part.num_tokens)
        if self.runtime.processes.is_alone:
            found = own
        else:
            found = self._seen = self.runtime.processes.all_reduce({**own, **self._moment()})
        self.state.tokens += round(found["tokens"])
        return {
            name.removeprefix("count "): round(found[name]) for name in found if name.startswith("count ")
        }

    def _turn_epoch(self) -> None:
        if self.state.batch >= self.loader.count(self.state.epoch):
            self.state.epoch, self.state.batch = self.state.epoch + 1, 0

    def _take_average(self, done: bool) -> None:
        if self.average.kind == "none":
            return
        state, steps = self.state, self.steps_in(0)
        left = (self.total_steps - state.step) / steps if self.total_steps is not None else 0.0
        if self.config.training.max_epochs is not None:
            left = self.config.training.max_epochs - self.epochs_done
        is_end = done or state.batch == 0
        state.averaged = self.average.take(self.model, state.step, steps, is_end, left, state.averaged)

    @property
    def epochs_done(self) -> float:
        """Epochs read so far, with the part of the current one."""
        if not self.state.batch:  # an epoch that may never be read is not counted
            return float(self.state.epoch)
        return self.state.epoch + self.state.batch / max(1, self.loader.count(self.state.epoch))

    @property
    def best_epoch(self) -> float:
        """The epoch of the weights that the run selects."""
        is_last = self.config.training.checkpoint_selection == "last"
        epochs = {} if is_last else {point["step"]: point["epoch"] for point in self.state.curve}
        return epochs.get(self.state.best_step, self.epochs_done)

    def _tell(self, done: bool) -> None:
        state = self.state
        if not (done or state.step == 1 or state.step % TOLD_EVERY == 0):
            return
        found = self._since.finish(state.seconds, self.runtime.processes.all_reduce(self._since.sums()))
        if not math.isfinite(found["loss"]):
            error = Diverged(
                f"the loss is {found['loss']} at step {state.step}: training has diverged",
                hint="lower --set optimizer.learning_rate, or raise lr_schedule.warmup_ratio",
            )
            error.is_shared = True
            raise error
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
        if training.eval_steps is not None:
            return state.step % training.eval_steps == 0
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
            self._mark(self.strategy.read(self.evaluate))

    def _mark(self, found: Evaluation) -> None:
        """Write down the marks of the weights that stand in the model, and keep those if they are the best."""
        state = self.state
        state.evaluated_at, state.evaluated_progress = state.step, self.progress
        is_best = found.rank > state.best_value and (state.step > 0 or self.may_select_initial)
        if is_best:
            state.best_value, state.best_step = found.rank, state.step
            if self.config.training.checkpoint_selection == "best":
                self.best = {
                    name: weight.detach().clone() for name, weight in self.model.state_dict().items()
                }
        state.curve.append({"epoch": round(self.epochs_done, 4), "step": state.step, **found.values})
        self.on_event(Evaluated(state.step, self.epochs_done, found.values, is_best))

    def finish(self) -> None:
        """Put the weights to keep into the model: the best on validation, or the last, averaged if that was asked."""
        if self.config.training.checkpoint_selection == "best" and self.best is not None:
            self.model.load_state_dict(self.best)
        elif self.average.tensors:
            self.model.load_state_dict(self.average.tensors)
        self.model.eval()

    def parts(self) -> dict[str, dict[str, Tensor]]:
        """All tensors that a resume needs, whole; with the main process alone where the model is sharded."""
        found = {"model": self.model.state_dict(), "optimizer": self.optimizer.tensors()}
        if self.best is not None:
            found["best"] = self.best
        if self.average.tensors:
            found["average"] = self.average.tensors
        return {name: self.strategy.whole(tensors) for name, tensors in found.items()}

    def load(self, parts: Mapping[str, Mapping[str, Tensor]] | None, state: dict[str, Any]) -> None:
        """Take up what `parts` and the state gave; the main process has them, and hands them on."""
        processes, weights = self.runtime.processes, self.model.state_dict()
        there = processes.all_reduce({name: float(name in (parts or {})) for name in PARTS})
        for name in (name for name in PARTS if there[name]):
            found = {}
            for key, tensor in processes.broadcast_tensors(None if parts is None else parts[name]):
                like = self.optimizer.weight_of(key) if name == "optimizer" else weights[key]
                found[key] = self.strategy.part(tensor, like)
            if name == "model":
                self.model.load_state_dict(found)
            elif name == "optimizer":
                self.optimizer.load(found)
            else:
                kept = {key: tensor.to(self.runtime.device) for key, tensor in found.items()}
                if name == "best":
                    self.best = kept
                else:
                    self.average.tensors = kept
        self.state = State.from_dict(state)
