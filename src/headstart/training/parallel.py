"""A model as each of several processes holds it: alone, a copy of the whole, or a part of every matrix.

DDP and FSDP2 watch a module's call, while an objective reads body and heads as it likes, so both are given a
module whose call is the asking. Both take means of gradients over processes; the losses are scaled to sums.
"""

import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from headstart.batch import Batch
from headstart.data.samplers import Loader
from headstart.models.model import Model
from headstart.models.transformer import Block
from headstart.objectives.base import Loss, Objective, Vocabulary
from headstart.training.runtime import Runtime, generator_for


@dataclass(frozen=True)
class BatchShard:
    """Rows of one batch of a step: the slice called `number` of `count` even ones."""

    batch: int
    number: int = 0
    count: int = 1

    def rows(self, whole: int) -> tuple[int, int]:
        """The first row, and the one after the last, of a batch of `whole` rows."""
        return whole * self.number // self.count, whole * (self.number + 1) // self.count


def batch_shards(batches: int, rank: int, count: int) -> list[BatchShard]:
    """The shares of one process in a step of so many batches; all processes have equally many.

    Whole batches go round as long as there is one for each process; those that are left are cut.
    """
    whole = batches // count * count
    shard = [BatchShard(at + rank) for at in range(0, whole, count)]
    return shard + [BatchShard(at, rank, count) for at in range(whole, batches)]


def collate_shard(
    share: BatchShard,
    numbers: Sequence[np.ndarray],
    epoch: int,
    objective: Objective,
    loader: Loader,
    vocabulary: Vocabulary,
    chance: tuple[int, ...],
) -> Batch:
    """The share's rows as a batch, asked what they would be asked among all rows; idle where it has none.

    `numbers` are the rows of each batch of the step, and `chance` decides the questions.
    """
    own = numbers[share.batch]
    rng = generator_for(*chance, *((share.batch,) if share.batch else ()))
    start, stop = share.rows(len(own))
    is_dummy = start == stop
    if is_dummy:
        start, stop = 0, 1
    if share.count > 1 and objective.is_rowwise:
        batch = objective.collate(loader.fetch(own[start:stop], epoch), vocabulary, rng)
    else:
        batch = objective.collate(loader.fetch(own, epoch), vocabulary, rng)
        batch = batch if share.count == 1 else batch.rows(start, stop)
    return replace(batch, is_dummy=True) if is_dummy else batch


Found = TypeVar("Found")


class SingleDevice:
    """The whole model in one process, which shares it with nobody."""

    scale = 1.0  # of a loss, so that gradients over all processes are sums

    def __init__(self, model: Model, runtime: Runtime):
        self.model, self.runtime = model.to(runtime.device), runtime

    def refresh(self) -> None:
        """Take note of which weights learn, before a step."""

    def losses(self, objective: Objective, batch: Batch, is_last: bool) -> dict[str, Loss]:
        """The marks of each head on this process's rows; gradients are exchanged on the way back of the last batch."""
        return objective.losses(self.model, batch)

    def read(self, work: Callable[[Model], Found]) -> Found:
        """What `work` finds in the model outside of a step."""
        return work(self.model)

    def whole(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Tensors of the model or its optimiser as one process alone would have them."""
        return dict(tensors)

    def part(self, tensor: Tensor, like: Tensor) -> Tensor:
        """This process's part of a whole tensor that belongs to the weight `like`."""
        return tensor

    def matrix(self, tensor: Tensor) -> Tensor:
        """The whole matrix of which this process holds a part."""
        return tensor


class CallModule(nn.Module):
    """A model whose call is any work with it."""

    def __init__(self, model: Model):
        super().__init__()
        self.model = model

    def forward(self, work: Callable[[Model], Any]) -> Any:
        """What the work finds."""
        return work(self.model)


class DDPStrategy(SingleDevice):
    """The whole model in each process; gradients are added up while the way back is still under way (DDP)."""

    def __init__(self, model: Model, runtime: Runtime):
        super().__init__(model, runtime)
        self.scale = float(runtime.processes.count)
        self._asked = CallModule(model)
        self._copies: DistributedDataParallel | None = None
        self._learning: list[nn.Parameter] | None = None

    def refresh(self) -> None:
        """Take note of which weights learn; DDP asks once, so a change needs a new one."""
        learning = [weight for weight in self.model.parameters() if weight.requires_grad]
        if self._learning is None or len(learning) != len(self._learning):
            self._copies, self._learning = None, learning

    def losses(self, objective: Objective, batch: Batch, is_last: bool) -> dict[str, Loss]:
        """The marks of each head on this process's rows; gradients stay here until the last batch."""
        if self._copies is None:
            self._copies = self._wrap(objective, batch)
        with nullcontext() if is_last else self._copies.no_sync():
            return self._copies(lambda model: objective.losses(model, batch))

    def _wrap(self, objective: Objective, batch: Batch) -> DistributedDataParallel:
        """DDP, told whether some weights have no part in the answers (a pooler, say): looking each time costs time."""
        with torch.random.fork_rng([self.runtime.device] if self.runtime.device.type == "cuda" else []):
            used = _reached(objective.losses(self.model, batch))
        unused = float(any(id(weight) not in used for weight in self._learning or []))
        some_unused = bool(self.runtime.processes.all_reduce({"unused": unused})["unused"])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # its new name is not in every torch that will do
            return DistributedDataParallel(
                self._asked,
                find_unused_parameters=some_unused,
                gradient_as_bucket_view=True,
                broadcast_buffers=False,
            )


def _reached(losses: Mapping[str, Loss]) -> set[int]:
    """The ids of all weights that some loss depends on."""
    found: set[int] = set()
    seen: set[Any] = set()
    ahead: list[Any] = [loss.total.grad_fn for loss in losses.values()]
    while ahead:
        node = ahead.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            found.add(id(node.variable))
        ahead += [following for following, _ in node.next_functions]
    return found


def make_strategy(model: Model, runtime: Runtime) -> SingleDevice:
    """The model on its device, as one of the run's processes holds it."""
    if runtime.is_sharded:
        return FSDPStrategy(model, runtime)
    return SingleDevice(model, runtime) if runtime.processes.is_alone else DDPStrategy(model, runtime)


class FSDPStrategy(SingleDevice):
    """A part of every matrix in each process; a block's matrices come together when it is read (FSDP2).

    Gradients are added up at every batch: to hold whole ones until the last would undo what is saved.
    """

    def __init__(self, model: Model, runtime: Runtime):
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard  # takes half a second to import
        from torch.distributed.tensor import DTensor, distribute_tensor

        self._dtensor, self._distribute = DTensor, distribute_tensor
        self.model, self.runtime = model, runtime
        self.scale = float(runtime.processes.count)
        # Matrices travel in autocast's precision; gradients are summed in float32.
        policy = MixedPrecisionPolicy()
        if runtime.precision != torch.float32:
            policy = MixedPrecisionPolicy(runtime.precision, torch.float32, cast_forward_inputs=False)
        self._mesh = init_device_mesh(runtime.device.type, (runtime.processes.count,))
        for block in [module for module in model.modules() if isinstance(module, Block)]:
            matrices: list[nn.Module] = [part for part in block.modules() if isinstance(part, nn.Linear)]
            fully_shard(matrices, mesh=self._mesh, mp_policy=policy)
        self._root: Any = fully_shard(CallModule(model), mesh=self._mesh)
        model.to(runtime.device)  # buffers

    def losses(self, objective: Objective, batch: Batch, is_last: bool) -> dict[str, Loss]:
        """The marks of each head on this process's rows."""
        return self._root(lambda model: objective.losses(model, batch))

    def read(self, work: Callable[[Model], Found]) -> Found:
        """What `work` finds; what belongs to no block is whole meanwhile, and blocks see to themselves."""
        with torch.no_grad():
            found = self._root(work)
        self._root.reshard()
        return found

    def whole(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Gathered one by one; only the main process keeps them."""
        kept = {}
        for name, tensor in tensors.items():
            full = tensor.full_tensor().cpu() if isinstance(tensor, self._dtensor) else tensor
            if self.runtime.processes.is_main:
                kept[name] = full
        return kept

    def part(self, tensor: Tensor, like: Tensor) -> Tensor:
        """Cut out of the whole, which every process has in hand."""
        if not isinstance(like, self._dtensor) or tensor.shape != like.shape:
            return tensor
        return self._distribute(
            tensor.to(self.runtime.device), like.device_mesh, like.placements, src_data_rank=None
        )

    def matrix(self, tensor: Tensor) -> Tensor:
        """Gathered; every process gets it."""
        return tensor.full_tensor() if isinstance(tensor, self._dtensor) else tensor
