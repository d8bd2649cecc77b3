"""Backbones compiled by torch for training steps; evaluation uses the plain ones, so nothing is compiled twice.

Blocks of a corpus have one shape, for which a backbone is compiled; the short batch at the end of an epoch is not. Texts
have every shape, and a backbone is compiled once for all of them.
"""

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from headstart.batch import Batch, rows_at
from headstart.config import RunConfig, TrainingConfig
from headstart.fast.linear_cross_entropy import compiled
from headstart.models.backbones import Backbone
from headstart.models.model import Model, count_parameters
from headstart.objectives.base import Objective
from headstart.training.runtime import Runtime

WORTH_SECONDS = 300.0  # of training without compiling; a shorter run is not compiled
COMPILE_SECONDS = 60.0  # about: half as long for blocks, a little longer for texts
PLAIN_FLOPS, PLAIN_STEP_SECONDS = 100e12, 0.02  # operations a second without compiling, and the shortest step
LENGTH_MULTIPLE = 8  # to which texts are padded
SIZED_OPTIONS = ("triton.mix_order_reduction",)  # optimisations that make code for one range of sizes
GRAPHS = 16  # that one process may compile of each backbone: the earlier stages of a recipe count too
OLDEST_CAPABILITY = (7, 0)  # compute capability of a GPU that triton supports


def will_compile(
    training: TrainingConfig, *, is_able: bool, is_sharded: bool, weights: int, passes: int, tokens: float
) -> bool:
    """Whether a run is compiled: as the settings say, or for `auto` if it is long and the device `is_able`.

    The run reads `tokens` in all, with `passes` forward passes each, unless its budget is in minutes.
    """
    if training.compile != "auto":
        return training.compile
    changes = training.freeze_backbone or training.gradual_unfreezing_epochs is not None  # the compiled code
    if not is_able or is_sharded or training.deterministic or changes:
        return False
    seconds = 60 * (training.max_minutes or 0.0)
    if not seconds:
        steps = tokens / (training.tokens_per_batch * training.gradient_accumulation_steps)
        seconds = max(6.0 * weights * passes * tokens / PLAIN_FLOPS, PLAIN_STEP_SECONDS * steps)
    return seconds >= WORTH_SECONDS


def should_compile(config: RunConfig, model: Model, objective: Objective, runtime: Runtime, steps: int | None) -> bool:
    """Whether the steps of this run are compiled on this machine."""
    training = config.training
    tokens_per_step = training.tokens_per_batch * training.gradient_accumulation_steps
    return will_compile(
        training,
        is_able=can_compile(runtime.device.type),
        is_sharded=runtime.is_sharded,
        weights=count_parameters(model),
        passes=objective.cost(config.model, training.max_length).passes,
        tokens=training.max_tokens if training.max_tokens is not None else (steps or 0) * tokens_per_step,
    )


def can_compile(device: str) -> bool:
    """Whether this machine has triton, a C compiler, and a GPU that triton supports."""
    if device != "cuda" or find_spec("triton") is None or not any(map(shutil.which, ("cc", "gcc", "clang"))):
        return False
    return torch.cuda.get_device_capability() >= OLDEST_CAPABILITY


class CompiledSteps:
    """Compiled backbones of a model and its teachers, which themselves are not changed."""

    def __init__(self, model: Model, objective: Objective, backend: str = "inductor"):
        from torch._dynamo import config as dynamo  # takes a second to import

        self._has_blocks = objective.reads == "blocks"
        self._block_shapes: dict[bool, torch.Size] = {}  # causal or not: the largest shape
        self._is_started = False
        backbones = [each.backbone for each in (model, *objective.teachers)]
        # torch counts the graphs of all backbones together
        dynamo.recompile_limit = max(dynamo.recompile_limit, GRAPHS * len(backbones))
        self._forwards = [(backbone, self._compiled(backbone, backend)) for backbone in backbones]

    def _compiled(self, backbone: Backbone, backend: str) -> Callable[..., Tensor]:
        """The compiled forward pass of a backbone."""
        has_blocks, limit = self._has_blocks, backbone.config.max_position_embeddings
        options = options_for_any_size() if backend == "inductor" and not has_blocks else None
        compiled_forward = torch.compile(backbone.forward, dynamic=not has_blocks, backend=backend, options=options)

        def forward(batch: Batch, positions: Tensor | None = None) -> Tensor:
            hidden: Tensor = compiled_forward(batch if has_blocks else _with_padding(batch, limit))
            hidden = hidden[:, : batch.tokens.shape[1]]
            # (B, T, D); the number of positions varies, so all of them are computed and some are taken
            return hidden if positions is None else rows_at(hidden.flatten(0, 1), positions)

        return forward

    def _fits(self, batch: Batch) -> bool:
        """Whether the backbones are compiled for batches of this shape."""
        shape = batch.tokens.shape
        if self._has_blocks:
            largest = self._block_shapes.setdefault(batch.is_causal, shape)
            self._block_shapes[batch.is_causal] = max(largest, shape, key=torch.Size.numel)
            return shape == self._block_shapes[batch.is_causal]
        lengths = shape[1:] if batch.source is None else (shape[1], batch.source.shape[1])
        limit = min(backbone.config.max_position_embeddings for backbone, _ in self._forwards)
        sizes = [shape[0], *(_padded_length(length, limit) for length in lengths)]
        # The compiler takes sizes that are equal at first, or 1, for constants, and would compile again for others.
        self._is_started = self._is_started or len(set(sizes)) == len(sizes)
        return self._is_started and min(sizes) > 1

    @contextmanager
    def installed_for(self, batch: Batch) -> Iterator[None]:
        """While this lasts, the models use their compiled backbones, if those fit the batch."""
        if not self._fits(batch):
            yield
            return
        for backbone, forward in self._forwards:
            backbone.forward = forward  # type: ignore[method-assign]
        try:
            with compiled():
                yield
        finally:
            for backbone, _ in self._forwards:
                del backbone.forward


def options_for_any_size() -> "dict[str, str | int | bool | Callable[..., Any]]":
    """Options of torch's compiler under which one compilation serves texts of any size."""
    from torch._inductor import config as inductor  # takes a second to import

    known = inductor.get_config_copy()
    return {name: False for name in SIZED_OPTIONS if name in known}


def _padded_length(length: int, limit: int) -> int:
    """The length to which a text is padded; there are no more than `limit` positions."""
    padded = -(-length // LENGTH_MULTIPLE) * LENGTH_MULTIPLE
    return padded if padded <= limit else length


def _with_padding(batch: Batch, limit: int) -> Batch:
    """The batch with lengths that are multiples of LENGTH_MULTIPLE, flagged as padded even if it is not.

    Attention uses other kernels for other lengths, and without padding; each would be compiled.
    """
    changes: dict[str, Any] = {"unpadded": False}
    for name in ("tokens", "attention_mask", "segments", "source", "source_attention_mask"):
        tensor: Tensor | None = getattr(batch, name)
        if tensor is not None:
            changes[name] = F.pad(tensor, (0, _padded_length(tensor.shape[1], limit) - tensor.shape[1]))
    return replace(batch, **changes)
