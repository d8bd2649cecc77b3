"""The training loop: pretraining, fine-tuning and translation differ only in what they pass to it.

The random draws of a step are a function of seed and step, and the order of rows is one of seed and epoch, so a resumed run
continues as if it had never stopped. A step is the same for any number of processes: each reads its share of the rows, and
losses and counts are summed over all of them.
"""

import math
import signal
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field
from typing import Any, TypeVar

import numpy as np
import torch
from pydantic import TypeAdapter
from torch import Tensor

from headstart import fast
from headstart.batch import Batch, Loader
from headstart.config import RunConfig
from headstart.errors import Diverged, Stopped
from headstart.models.model import Model
from headstart.objectives.base import Loss, Objective, Vocabulary
from headstart.results import Number
from headstart.training.callbacks import Evaluated, Event, Saved, StepDone
from headstart.training.compile import CompiledSteps, should_compile
from headstart.training.optimizers import WeightAverage, lr_factor, make_optimizer, set_trainable_layers
from headstart.training.runtime import Runtime, StopSignal, cudnn_attention, generator_for, seed_everything

REPORT_STEPS = 10  # between two StepDone events
PREFETCHED_STEPS = 4  # whose batches are ready at most
EVALUATION_SEED = 20180611  # masks drawn in evaluations are the same in every run
PARTS = ("model", "optimizer", "best", "average")  # of a checkpoint; the last two only where they exist


T = TypeVar("T")


def loss_terms(losses: Mapping[str, Loss]) -> dict[str, Any]:
    """What is summed of the losses of a batch: numbers, and tensors on the device."""
    terms: dict[str, Any] = {}
    for name, loss in losses.items():
        terms |= {f"loss {name}": loss.total.detach().float(), f"count {name}": loss.count}
        terms[f"correct {name}"] = loss.correct.detach()
    return terms


@dataclass(frozen=True)
class Evaluation:
    """Metrics on the validation part; the higher `objective_value`, the better the model."""

    values: dict[str, float]
    objective_value: float


@dataclass
class State:
    """How far a run has come."""

    step: int = 0
    epoch: int = 0
    batch: int = 0  # batches of the epoch already read
    tokens: int = 0
    seconds: float = 0.0
    evaluated_step: int = -1  # the step of the last evaluation
    evaluated_progress: float = 0.0  # and the progress there
    best_value: float | None = None
    best_step: int = -1
    num_averaged: int = 0  # weights in the weight average
    curve: list[dict[str, Number]] = field(default_factory=list)
    meters: dict[str, Number] = field(default_factory=dict)  # sums since the last report

    def to_dict(self) -> dict[str, Any]:
        """JSON-able."""
        return asdict(self)

    @staticmethod
    def from_dict(content: dict[str, Any]) -> "State":
        """The state that `to_dict` returned, perhaps from a JSON file."""
        return TypeAdapter(State).validate_python(content)


def weighted_mean(losses: Mapping[str, Loss], label_counts: Mapping[str, int]) -> Tensor:
    """The loss that is optimised: the sum over heads of the weighted mean over the labels of the whole step."""
    means = [
        (loss.total if loss.weight == 1 else loss.weight * loss.total) / max(1, label_counts[name])
        for name, loss in losses.items()
    ]
    return sum(means[1:], means[0])


def prefetch(steps: Iterator[list[Batch]], pin_memory: bool) -> Iterator[list[Batch]]:
    """The batches of each step, prepared ahead in another thread, so that a GPU never waits for its next one.

    torch's DataLoader would need another process, which could not share the mapped corpus and its caches.
    """

    def prepare() -> list[Batch] | None:
        parts = next(steps, None)
        if parts is None:
            return None
        ready = [part.pin_memory() if pin_memory else part for part in parts]
        for part in ready:
            _ = part.num_tokens, part.label_counts  # cached, so that the step does not count
        return ready

    with ThreadPoolExecutor(max_workers=1) as worker:
        waiting = deque(worker.submit(prepare) for _ in range(PREFETCHED_STEPS))
        while (parts := waiting.popleft().result()) is not None:
            waiting.append(worker.submit(prepare))
            yield parts


class SingleDevice:
    """The whole model in one process; `distributed` has the same for several."""

    scale = 1.0  # of a loss, so that gradients over all processes are sums

    def __init__(self, model: Model, runtime: Runtime):
        self.model, self.runtime = model.to(runtime.device), runtime

    def refresh(self) -> None:
        """Note which weights are trained, before a step."""

    def losses(self, objective: Objective, batch: Batch, is_last: bool) -> dict[str, Loss]:
        """The loss of each head on this process's rows; gradients are exchanged in the backward pass of the last batch."""
        return objective.losses(self.model, batch)

    def read(self, work: Callable[[Model], T]) -> T:
        """What `work` returns for the model outside of a step."""
        return work(self.model)

    def whole(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Tensors of the model or its optimizer, unsharded."""
        return dict(tensors)

    def part(self, tensor: Tensor, like: Tensor) -> Tensor:
        """This process's part of an unsharded tensor that belongs to the weight `like`."""
        return tensor

    def matrix(self, tensor: Tensor) -> Tensor:
        """The unsharded matrix of which this process holds a part."""
        return tensor


def _strategy(model: Model, runtime: Runtime) -> SingleDevice:
    from headstart.training.distributed import DDPStrategy, FSDPStrategy

    return FSDPStrategy(model, runtime) if runtime.is_sharded else DDPStrategy(model, runtime)


class Trainer:
    """A model, its objective and data, and the state between steps."""

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
        """`may_select_initial` = False: the weights before the first step are never the best."""
        training, model = config.training, fast.optimize(model)
        self.model, self.objective, self.loader, self.vocabulary = model, objective, loader, vocabulary
        self.config, self.runtime, self.evaluate, self.on_event = config, runtime, evaluate, on_event
        self.stop = stop if stop is not None else StopSignal()
        self.may_select_initial = may_select_initial
        set_trainable_layers(model, training.freeze_backbone, training.gradual_unfreezing_epochs, 0)
        self.strategy = SingleDevice(model, runtime) if runtime.processes.is_alone else _strategy(model, runtime)
        self.optimizer = make_optimizer(model, config.optimizer, self.strategy if runtime.is_sharded else None)
        self.state = State()
        self.best: dict[str, Tensor] | None = None
        self.average = None if training.weight_averaging == "none" else WeightAverage(training)
        self.total_steps = self._total_steps()
        self.compiled: CompiledSteps | None = None
        if training.compile and should_compile(config, model, objective, runtime, self.total_steps):
            self.compiled = CompiledSteps(model, objective)
        self._sums: dict[str, Any] = {}  # of this process, since the last report
        self._unfrozen_epoch = 0  # the epoch for which trainable layers were last set
        self._start = self._last_save = time.monotonic()
        self._last_report = 0.0  # in seconds of the run

    # --- Budget -----------------------------------------------------------------------------------------------------

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
        """Steps in an epoch; the last may accumulate fewer batches than the others."""
        return math.ceil(self.loader.count(epoch) / self.config.training.gradient_accumulation_steps)

    @property
    def progress(self) -> float:
        """The fraction of the budget that is spent."""
        training, state = self.config.training, self.state
        if self.total_steps is not None:
            return state.step / self.total_steps
        if training.max_tokens is not None:
            return state.tokens / training.max_tokens
        assert training.max_minutes is not None, "the workflow sets a budget"
        return state.seconds / (60 * training.max_minutes)

    @property
    def epochs_done(self) -> float:
        """Epochs read so far, with the part of the current one."""
        if not self.state.batch:  # the next epoch may have no batches
            return float(self.state.epoch)
        return self.state.epoch + self.state.batch / max(1, self.loader.count(self.state.epoch))

    @property
    def best_epoch(self) -> float:
        """The epoch of the weights that the run selects."""
        is_last = self.config.training.checkpoint_selection == "last"
        epochs = {} if is_last else {point["step"]: point["epoch"] for point in self.state.curve}
        return epochs.get(self.state.best_step, self.epochs_done)

    # --- The loop ---------------------------------------------------------------------------------------------------

    def run(self, save: Callable[[], None] = lambda: None) -> None:
        """Train until the budget is spent; `save` is called when it is time, and before stopping early."""
        self._last_save = time.monotonic()
        self._start, self._last_report = self._last_save - self.state.seconds, self.state.seconds
        self._sums = dict(self.state.meters) if self.runtime.processes.is_main else {}
        with self.attention_kernels():
            self.evaluate_if_due()
            while self.progress < 1:
                for parts in self.batches():
                    self.step(parts)
                    self._read_clock()
                    is_done = self.progress >= 1
                    if is_done or self.state.step == 1 or self.state.step % REPORT_STEPS == 0:
                        self._report()
                    self._update_average(is_done)
                    self.evaluate_if_due()
                    self._read_clock()
                    self._save_if_due(save, is_done)
                    if is_done or self.state.batch == 0:
                        break

    def attention_kernels(self) -> AbstractContextManager[None]:
        """While this lasts, attention uses the kernels that suit the shapes of the batches."""
        return cudnn_attention() if self.objective.reads == "blocks" else nullcontext()

    def batches(self) -> Iterator[list[Batch]]:
        """The batches of each remaining step of the epoch; with a GPU another thread prepares them."""
        device, steps = self.runtime.device.type, self._collated()
        return steps if device == "cpu" else prefetch(steps, pin_memory=device == "cuda")

    def _collated(self) -> Iterator[list[Batch]]:
        epoch, start, first = self.state.epoch, self.state.batch, self.state.step
        size, order = self.config.training.gradient_accumulation_steps, self.loader.batches(epoch)
        for step, at in enumerate(range(start, len(order), size), first):
            yield self._collate_step(order[at : at + size], epoch, step)

    def _collate_step(self, batches: Sequence[np.ndarray], epoch: int, step: int) -> list[Batch]:
        """This process's batches of a step, from the row numbers of all batches."""

        def collate(rows: np.ndarray, number: int) -> Batch:
            seeds = (self.config.training.seed, step, 1, *((number,) if number else ()))
            return self.objective.collate(self.loader.fetch(rows, epoch), self.vocabulary, generator_for(*seeds))

        processes = self.runtime.processes
        if processes.is_alone:
            return [collate(rows, number) for number, rows in enumerate(batches)]
        from headstart.training.distributed import batch_shards, collate_shard

        shards = batch_shards(len(batches), processes.rank, processes.count)
        return [collate_shard(shard, batches, collate, self.objective.is_rowwise) for shard in shards]

    def step(self, parts: list[Batch]) -> None:
        """One update of the weights, by the gradients of the mean loss over all parts together."""
        config, state, processes = self.config, self.state, self.runtime.processes
        self._set_train_mode()
        seed_everything(config.training.seed, state.step, 2, *([processes.rank] if processes.rank else []))
        label_counts = self._sum_label_counts(parts)
        for part in parts:  # one graph in memory at a time
            batch = part.to(self.runtime.device)
            compiled = nullcontext() if self.compiled is None else self.compiled.installed_for(batch)
            with compiled, self.runtime.autocast():
                losses = self.strategy.losses(self.objective, batch, is_last=part is parts[-1])
            loss = weighted_mean(losses, label_counts)
            if not processes.is_alone:
                loss = loss * (0.0 if part.is_dummy else self.strategy.scale)
            loss.backward()
            if not part.is_dummy:
                terms = {"tokens": part.num_tokens, "positions": part.num_positions, **loss_terms(losses)}
                self._sums |= {name: self._sums.get(name, 0) + value for name, value in terms.items()}
        if config.optimizer.max_grad_norm:
            weights = [weight for weight in self.model.parameters() if weight.grad is not None]
            torch.nn.utils.clip_grad_norm_(weights, config.optimizer.max_grad_norm)
        factor = lr_factor(self.progress, config.lr_schedule, state.step)
        self.learning_rate = config.optimizer.learning_rate * factor
        self.optimizer.step(self.learning_rate)
        state.step += 1
        state.batch += config.training.gradient_accumulation_steps
        if state.batch >= self.loader.count(state.epoch):
            state.epoch, state.batch = state.epoch + 1, 0

    def _set_train_mode(self) -> None:
        """Undo what evaluations changed, and unfreeze layers at the beginning of an epoch."""
        training, epoch = self.config.training, self.state.epoch
        if training.gradual_unfreezing_epochs is not None and epoch != self._unfrozen_epoch:
            set_trainable_layers(self.model, training.freeze_backbone, training.gradual_unfreezing_epochs, epoch)
            self._unfrozen_epoch = epoch
        self.strategy.refresh()
        if not self.model.training or (training.freeze_backbone and self.model.backbone.training):
            self.model.train()
            if training.freeze_backbone:
                self.model.backbone.eval()

    def _sum_label_counts(self, parts: list[Batch]) -> dict[str, int]:
        """The labels of each head in this step over all processes, which agree on clock and signals at the same time."""
        own: dict[str, float] = {"tokens": sum(0 if part.is_dummy else part.num_tokens for part in parts)}
        for part in parts:
            for name, count in part.label_counts.items():
                own[f"count {name}"] = own.get(f"count {name}", 0) + count
        if not self.runtime.processes.is_alone:
            own = self._clock = self.runtime.processes.all_reduce({**own, **self._read_own_clock()})
        self.state.tokens += round(own["tokens"])
        return {name.removeprefix("count "): round(own[name]) for name in own if name.startswith("count ")}

    def _read_own_clock(self) -> dict[str, float]:
        """What this process's clock and signals say; the main process's clock counts for all."""
        now, minutes = time.monotonic(), self.config.training.save_minutes
        is_main = self.runtime.processes.is_main
        is_late = is_main and minutes is not None and now - self._last_save >= 60 * minutes
        return {"seconds": is_main * (now - self._start), "late": float(is_late), "stop": float(bool(self.stop))}

    def _read_clock(self) -> None:
        """Update time and signals; several processes agreed on them at the beginning of the step."""
        if self.runtime.processes.is_alone:
            self._clock = self._read_own_clock()
        self.state.seconds = self._clock["seconds"]

    # --- After a step -----------------------------------------------------------------------------------------------

    def _report(self) -> None:
        state, sums = self.state, self._sums_of_all()
        heads = [name.removeprefix("count ") for name in sums if name.startswith("count ") and sums[name]]
        losses = {head: sums[f"loss {head}"] / sums[f"count {head}"] for head in heads}
        loss, count = sum(losses.values()), sum(sums[f"count {head}"] for head in heads)
        if not math.isfinite(loss):
            hint = "lower --set optimizer.learning_rate, or raise lr_schedule.warmup_ratio"
            problem = f"the loss is {loss} at step {state.step}: training has diverged"
            raise Diverged(problem, hint=hint, is_shared=True)
        progress = self.progress
        self.on_event(
            StepDone(
                step=state.step,
                epoch=self.epochs_done,
                progress=min(1.0, progress),
                loss=loss,
                accuracy=sum(sums[f"correct {head}"] for head in heads) / max(1, count),
                learning_rate=self.learning_rate,
                tokens=state.tokens,
                tokens_per_second=sums["tokens"] / max(1e-9, state.seconds - self._last_report),
                padding=1 - sums["tokens"] / max(1, sums["positions"]),
                seconds=state.seconds,
                seconds_left=max(0.0, state.seconds / max(progress, 1e-9) * (1 - progress)),
                losses=losses,
            )
        )
        self._sums, self._last_report = {}, state.seconds

    def _sums_of_all(self) -> dict[str, float]:
        """The sums since the last report over all processes."""
        return self.runtime.processes.all_reduce({name: float(value) for name, value in self._sums.items()})

    def _update_average(self, is_done: bool) -> None:
        if self.average is None:
            return
        state, steps, epochs = self.state, self.steps_in(0), self.config.training.max_epochs
        left = (self.total_steps - state.step) / steps if self.total_steps is not None else 0.0
        if epochs is not None:
            left = epochs - self.epochs_done
        is_end = is_done or state.batch == 0
        state.num_averaged = self.average.update(self.model, state.step, steps, is_end, left, state.num_averaged)

    def _save_if_due(self, save: Callable[[], None], is_done: bool) -> None:
        steps, is_stopped = self.config.training.save_steps, bool(self._clock["stop"])
        is_due = bool(self._clock["late"]) or (steps is not None and self.state.step % steps == 0)
        if is_stopped or (is_due and not is_done):
            self.state.meters = self._sums_of_all()
            save()
            self._last_save = time.monotonic()
            self.on_event(Saved(self.state.step))
        if is_stopped:
            raise Stopped(self.stop.signal or signal.SIGTERM)

    def _is_evaluation_due(self) -> bool:
        state, training = self.state, self.config.training
        if state.evaluated_step == state.step:
            return False
        if state.step == 0 or self.progress >= 1:
            return True
        if training.eval_steps is not None:
            return state.step % training.eval_steps == 0
        if self.objective.reads == "blocks":  # one epoch of a corpus can be the whole run: at every tenth of it
            return int(10 * self.progress) > int(10 * state.evaluated_progress)
        return state.batch == 0

    def evaluate_if_due(self) -> None:
        """Evaluate the model, with averaged weights if there are some, and retain the best weights."""
        if self.evaluate is None or not self._is_evaluation_due():
            return
        self.model.eval()
        average = self.average
        with average.applied_to(self.model) if average is not None and average.tensors else nullcontext():
            found = self.strategy.read(self.evaluate)
            state = self.state
            state.evaluated_step, state.evaluated_progress = state.step, self.progress
            best = -math.inf if state.best_value is None else state.best_value
            is_best = found.objective_value > best and (state.step > 0 or self.may_select_initial)
            if is_best:
                state.best_value, state.best_step = found.objective_value, state.step
                if self.config.training.checkpoint_selection == "best":
                    self.best = {name: w.detach().clone() for name, w in self.model.state_dict().items()}
            state.curve.append({"epoch": round(self.epochs_done, 4), "step": state.step, **found.values})
            self.on_event(Evaluated(state.step, self.epochs_done, found.values, is_best))

    # --- The result, and checkpoints --------------------------------------------------------------------------------

    def finish(self) -> None:
        """Load the final weights into the model: the best on validation, or the last ones or their average."""
        if self.config.training.checkpoint_selection == "best" and self.best is not None:
            self.model.load_state_dict(self.best)
        elif self.average is not None and self.average.tensors:
            self.model.load_state_dict(self.average.tensors)
        self.model.eval()

    def parts(self) -> dict[str, dict[str, Tensor]]:
        """All tensors that a resume needs, unsharded; of a sharded model the main process alone returns them."""
        found = {"model": self.model.state_dict(), "optimizer": self.optimizer.tensors()}
        if self.best is not None:
            found["best"] = self.best
        if self.average is not None and self.average.tensors:
            found["average"] = self.average.tensors
        return {name: self.strategy.whole(tensors) for name, tensors in found.items()}

    def load(self, parts: Mapping[str, Mapping[str, Tensor]] | None, state: dict[str, Any]) -> None:
        """Restore what `parts` and the state's `to_dict` returned; the main process alone passes parts."""
        processes, weights = self.runtime.processes, self.model.state_dict()
        for name in processes.broadcast(lambda: [part for part in PARTS if part in (parts or {})]):
            tensors = {}
            for key, tensor in processes.broadcast_tensors(None if parts is None else parts[name]):
                like = self.optimizer.weight_of(key) if name == "optimizer" else weights[key]
                tensors[key] = self.strategy.part(tensor, like)
            if name == "model":
                self.model.load_state_dict(tensors)
            elif name == "optimizer":
                self.optimizer.load(tensors)
            else:
                tensors = {key: tensor.to(self.runtime.device) for key, tensor in tensors.items()}
                if name == "best":
                    self.best = tensors
                elif self.average is not None:
                    self.average.tensors = tensors
        self.state = State.from_dict(state)


def loss_sums(
    model: Model,
    objective: Objective,
    loader: Loader,
    vocabulary: Vocabulary,
    runtime: Runtime,
    max_batches: int | None = None,
) -> dict[str, tuple[float, int, int]]:
    """Summed loss, label count and correct predictions of each head over the loader's first epoch."""
    model.eval()
    batches = loader.batches(0)[:max_batches]
    sums: dict[str, float] = {}
    for index, is_own in runtime.shard(len(batches)):
        rng = generator_for(EVALUATION_SEED, index)
        batch = objective.collate(loader.fetch(batches[index], 0), vocabulary, rng).to(runtime.device)
        with runtime.inference_mode(), runtime.autocast():
            losses = objective.losses(model, batch)
        for name, value in loss_terms(losses).items() if is_own else ():
            sums[name] = sums.get(name, 0) + float(value)
    total = runtime.processes.all_reduce(sums)
    heads = [name.removeprefix("loss ") for name in total if name.startswith("loss ")]
    return {
        head: (total[f"loss {head}"], round(total[f"count {head}"]), round(total[f"correct {head}"])) for head in heads
    }
