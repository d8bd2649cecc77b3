"""A model as one of several processes holds it: alone, as a full copy (DDP), or as a part of every matrix (FSDP2).

DDP and FSDP2 hook into a module's call, while an objective uses backbone and heads directly, so both wrap a module whose
call is the objective's work. Both average gradients over processes; losses are scaled so that gradients are sums.
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
    """Rows of one batch of a step: slice `number` of `count` even ones."""

    batch: int
    number: int = 0
    count: int = 1

    def rows(self, total: int) -> tuple[int, int]:
        """The first row, and the one after the last, of a batch of `total` rows."""
        return total * self.number // self.count, total * (self.number + 1) // self.count


def batch_shards(batches: int, rank: int, count: int) -> list[BatchShard]:
    """The shards of one process in a step of so many batches; all processes have the same number.

    Each process gets whole batches as long as there is one for each; the rest are cut into rows.
    """
    whole = batches // count * count
    shards = [BatchShard(at + rank) for at in range(0, whole, count)]
    return shards + [BatchShard(at, rank, count) for at in range(whole, batches)]


def collate_shard(
    shard: BatchShard,
    batches: Sequence[np.ndarray],
    epoch: int,
    objective: Objective,
    loader: Loader,
    vocabulary: Vocabulary,
    seeds: tuple[int, ...],
) -> Batch:
    """The shard's rows as a batch, with the labels that they have among all rows; a dummy where it has no rows.

    `batches` are the row numbers of each batch of the step, and `seeds` decide the labels.
    """
    rows = batches[shard.batch]
    rng = generator_for(*seeds, *((shard.batch,) if shard.batch else ()))
    start, stop = shard.rows(len(rows))
    is_dummy = start == stop
    if is_dummy:
        start, stop = 0, 1
    if shard.count > 1 and objective.is_rowwise:
        batch = objective.collate(loader.fetch(rows[start:stop], epoch), vocabulary, rng)
    else:
        batch = objective.collate(loader.fetch(rows, epoch), vocabulary, rng)
        batch = batch if shard.count == 1 else batch.rows(start, stop)
    return replace(batch, is_dummy=True) if is_dummy else batch


T = TypeVar("T")


class SingleDevice:
    """The whole model in one process."""

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


class CallModule(nn.Module):
    """A model whose call is any work with it."""

    def __init__(self, model: Model):
        super().__init__()
        self.model = model

    def forward(self, work: Callable[[Model], Any]) -> Any:
        """What `work` returns for the model."""
        return work(self.model)


class DDPStrategy(SingleDevice):
    """The whole model in each process; gradients are summed during the backward pass (DDP)."""

    def __init__(self, model: Model, runtime: Runtime):
        super().__init__(model, runtime)
        self.scale = float(runtime.processes.count)
        self._call = CallModule(model)
        self._ddp: DistributedDataParallel | None = None
        self._trained: list[nn.Parameter] = []

    def refresh(self) -> None:
        """Note which weights are trained; DDP looks once, so a change needs a new one."""
        trained = [weight for weight in self.model.parameters() if weight.requires_grad]
        if len(trained) != len(self._trained):
            self._ddp, self._trained = None, trained

    def losses(self, objective: Objective, batch: Batch, is_last: bool) -> dict[str, Loss]:
        """The loss of each head on this process's rows; gradients are not exchanged before the last batch."""
        if self._ddp is None:
            self._ddp = self._wrap(objective, batch)
        with nullcontext() if is_last else self._ddp.no_sync():
            return self._ddp(lambda model: objective.losses(model, batch))

    def _wrap(self, objective: Objective, batch: Batch) -> DistributedDataParallel:
        """DDP, told whether some weights (a pooler, say) do not affect the losses: to search at each step takes time."""
        with torch.random.fork_rng([self.runtime.device] if self.runtime.device.type == "cuda" else []):
            totals = [loss.total for loss in objective.losses(self.model, batch).values()]
        grads = torch.autograd.grad(sum(totals[1:], totals[0]), self._trained, allow_unused=True)
        unused = float(any(grad is None for grad in grads))
        some_unused = bool(self.runtime.processes.all_reduce({"unused": unused})["unused"])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # its new name is not in every supported torch
            return DistributedDataParallel(
                self._call, find_unused_parameters=some_unused, gradient_as_bucket_view=True, broadcast_buffers=False
            )


def make_strategy(model: Model, runtime: Runtime) -> SingleDevice:
    """The model on its device, as this process holds it."""
    if runtime.is_sharded:
        return FSDPStrategy(model, runtime)
    return SingleDevice(model, runtime) if runtime.processes.is_alone else DDPStrategy(model, runtime)


class FSDPStrategy(SingleDevice):
    """A part of every matrix in each process; a block's matrices are gathered when it is computed (FSDP2).

    Gradients are summed at every batch: to hold unsharded ones until the last would cost the memory that is saved.
    """

    def __init__(self, model: Model, runtime: Runtime):
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard  # takes half a second to import
        from torch.distributed.tensor import DTensor, distribute_tensor

        self._dtensor, self._distribute = DTensor, distribute_tensor
        self.model, self.runtime = model, runtime
        self.scale = float(runtime.processes.count)
        # Matrices are gathered in autocast's precision; gradients are summed in float32.
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
        """The loss of each head on this process's rows."""
        return self._root(lambda model: objective.losses(model, batch))

    def read(self, work: Callable[[Model], T]) -> T:
        """What `work` returns; weights outside of blocks are gathered meanwhile, and each block gathers its own."""
        with torch.no_grad():
            found = self._root(work)
        self._root.reshard()
        return found

    def whole(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Gathered one by one; only the main process retains them."""
        unsharded = {}
        for name, tensor in tensors.items():
            full = tensor.full_tensor().cpu() if isinstance(tensor, self._dtensor) else tensor
            if self.runtime.processes.is_main:
                unsharded[name] = full
        return unsharded

    def part(self, tensor: Tensor, like: Tensor) -> Tensor:
        """Cut out of the unsharded tensor, which every process has."""
        if not isinstance(like, self._dtensor) or tensor.shape != like.shape:
            return tensor
        return self._distribute(tensor.to(self.runtime.device), like.device_mesh, like.placements, src_data_rank=None)

    def matrix(self, tensor: Tensor) -> Tensor:
        """Gathered; every process gets it."""
        return tensor.full_tensor() if isinstance(tensor, self._dtensor) else tensor
