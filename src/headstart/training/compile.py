"""A body compiled for training steps alone: what reads it elsewhere reads it plainly, so nothing is compiled twice.

Blocks of a corpus all have one shape, for which the body is compiled; the short batch at an epoch's end is read plainly.
Texts come in every shape, for all of which it is compiled once.
"""

import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from headstart.batch import Batch, rows_at
from headstart.config import RunConfig, TrainingConfig
from headstart.models.backbones import Backbone
from headstart.models.model import Model, count_parameters
from headstart.objectives.base import Objective
from headstart.objectives.fused import fused
from headstart.training.runtime import Runtime

PAYS_AFTER = 300.0  # seconds of plain training that compiling must promise to shorten
MULTIPLE = 8  # to which lengths of texts are filled up
SIZED = ("triton.mix_order_reduction",)  # ways of joining kernels that ask for a size
GRAPHS = 16  # that may be compiled in a process for each body: stages of a recipe leave theirs behind
OLDEST = (7, 0)  # compute capability of a GPU for which triton writes code
TAKES = 60.0  # seconds that compiling itself takes, about: half as long for blocks, a little longer for texts
PLAIN_RATE, PLAIN_STEP = 100e12, 0.02  # operations a second of a plain step, and the least seconds of one


def will_compile(
    training: TrainingConfig,
    *,
    is_able: bool,
    is_sharded: bool,
    weights: int,
    num_forward: int,
    tokens: float,
) -> bool:
    """As the settings say, or where they leave it open, if a long run is ahead where it `is_able`: on a GPU with a compiler.

    The run reads `tokens` in all, `passes` times each, unless its budget is in minutes.
    """
    if training.compile != "auto":
        return training.compile
    changes = (
        training.freeze_backbone or training.gradual_unfreezing_epochs is not None
    )  # what learns, and so the compiled code
    if not is_able or is_sharded or training.deterministic or changes:
        return False
    return _plain_seconds(training, weights * num_forward, tokens) >= PAYS_AFTER


def _plain_seconds(training: TrainingConfig, weights: int, tokens: float) -> float:
    """About how long the whole run would take on a large GPU without compiling: a function of its settings alone."""
    if training.max_minutes is not None:
        return 60 * training.max_minutes
    steps = tokens / (training.tokens_per_batch * training.gradient_accumulation_steps)
    return max(6.0 * weights * tokens / PLAIN_RATE, PLAIN_STEP * steps)


class Compiled:
    """Training steps whose bodies torch has compiled, a teacher's too; the models themselves are not changed."""

    def __init__(self, model: Model, objective: Objective, backend: str = "inductor"):
        self._is_even = objective.reads == "blocks"
        self._shapes: dict[bool, torch.Size] = {}  # of blocks, for each way to read them
        self._is_begun = False
        # all bodies are of one code, for which torch compiles no more than eight graphs unless told
        from torch._dynamo import config as dynamo  # takes a second to import, for those who compile alone

        dynamo.recompile_limit = max(dynamo.recompile_limit, GRAPHS * (1 + len(objective.teachers)))
        self._bodies = [
            _CompiledBackbone(each.backbone, self._is_even, backend) for each in (model, *objective.teachers)
        ]

    def _suits(self, batch: Batch) -> bool:
        shape = batch.tokens.shape
        if self._is_even:
            if shape.numel() > self._shapes.get(batch.is_causal, torch.Size((0,))).numel():
                self._shapes[batch.is_causal] = shape
            return shape == self._shapes[batch.is_causal]
        lengths = shape[1:] if batch.source is None else (shape[1], batch.source.shape[1])
        most = min(each.most for each in self._bodies)
        sizes = [shape[0], *(_wide(length, most) for length in lengths)]
        # sizes that are equal at first, or one, are taken to be so for ever: a later batch would be compiled for anew
        self._is_begun = self._is_begun or len(set(sizes)) == len(sizes)
        return self._is_begun and min(sizes) > 1

    @contextmanager
    def reading(self, batch: Batch) -> Iterator[None]:
        """While this lasts, the bodies read compiled, if the batch is of a shape that they were compiled for."""
        if not self._suits(batch):
            yield
            return
        with ExitStack() as stack:
            for each in self._bodies:
                stack.enter_context(each.reading())
            stack.enter_context(fused())
            yield


class _CompiledBackbone:
    def __init__(self, body: Backbone, is_even: bool, backend: str):
        self._body, self._is_even, self.most = body, is_even, body.config.max_position_embeddings
        options = for_any_size() if backend == "inductor" and not is_even else None
        self._forward = torch.compile(body.forward, dynamic=not is_even, backend=backend, options=options)

    def _read(self, batch: Batch, places: Tensor | None = None) -> Tensor:
        if self._is_even:
            hidden = self._forward(batch)
        else:
            length = batch.tokens.shape[1]
            hidden = self._forward(_widened(batch, self.most))[:, :length]
        # (B, T, D); places differ in number from batch to batch, so all of it is compiled and some is taken
        return hidden if places is None else rows_at(hidden.flatten(0, 1), places)

    @contextmanager
    def reading(self) -> Iterator[None]:
        """While this lasts, the body reads compiled."""
        self._body.forward = self._read  # type: ignore[method-assign]
        try:
            yield
        finally:
            del self._body.forward


def for_any_size() -> "dict[str, str | int | bool | Callable[..., Any]]":
    """Switches of torch's compiler for texts: without the way of joining kernels that was seen to ask for a size.

    The code would be for batches on one side of that size, and the first batch on the other side compiled for anew.
    """
    from torch._inductor import config as inductor  # takes a second to import, for those who compile alone

    known = inductor.get_config_copy()
    return {name: False for name in SIZED if name in known}


def _wide(length: int, most: int) -> int:
    """The length to which a text is filled up; there are no more than `most` positions."""
    wide = -(-length // MULTIPLE) * MULTIPLE
    return wide if wide <= most else length


def _widened(batch: Batch, most: int) -> Batch:
    """The batch with lengths that are multiples of MULTIPLE, and with padding even if it needs none.

    Attention goes different ways for other lengths, and without padding; each way would be compiled.
    """
    changes: dict[str, Tensor] = {}
    for name in ("tokens", "attention_mask", "segments", "source", "source_attention_mask"):
        own: Tensor | None = getattr(batch, name)
        if own is None:
            continue
        changes[name] = F.pad(own, (0, _wide(own.shape[1], most) - own.shape[1]))
    return replace(batch, unpadded=False, **changes)  # type: ignore[arg-type]


def should_compile(
    config: RunConfig, model: Model, objective: Objective, runtime: Runtime, steps: int | None
) -> bool:
    """Whether the steps of this run are compiled here."""
    training = config.training
    in_step = training.tokens_per_batch * training.gradient_accumulation_steps
    return will_compile(
        training,
        is_able=can_compile(runtime.device.type),
        is_sharded=runtime.is_sharded,
        weights=count_parameters(model),
        num_forward=objective.workload(config.model, training.max_length).passes,
        tokens=training.max_tokens if training.max_tokens is not None else (steps or 0) * in_step,
    )


def can_compile(device: str) -> bool:
    """Whether this machine has what compiling for a GPU takes: triton, a C compiler, and a GPU that triton knows."""
    if device != "cuda" or find_spec("triton") is None or not any(map(shutil.which, ("cc", "gcc", "clang"))):
        return False
    return torch.cuda.get_device_capability() >= OLDEST
