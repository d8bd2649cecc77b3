"""A model held in parts by many processes, through PyTorch's FSDP2."""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from headstart.batch import Batch
from headstart.models.block import Block
from headstart.models.model import Model
from headstart.objectives.base import Loss, Objective
from headstart.training.replicas import Asked, Copy
from headstart.training.runtime import Runtime

Found = TypeVar("Found")


class Sharded(Copy):
    """A part of every matrix in each process; a block's matrices come together when it is read (FSDP2).

    Gradients are added up at every batch: to hold whole ones until the last would undo what is saved.
    """

    def __init__(self, model: Model, runtime: Runtime):
        self.model, self.runtime = model, runtime
        self.scale = float(runtime.processes.count)
        self._mesh = init_device_mesh(runtime.device.type, (runtime.processes.count,))
        for block in [module for module in model.modules() if isinstance(module, Block)]:
            matrices: list[nn.Module] = [part for part in block.modules() if isinstance(part, nn.Linear)]
            fully_shard(matrices, mesh=self._mesh, mp_policy=self._policy())
        self._root: Any = fully_shard(Asked(model), mesh=self._mesh)
        model.to(runtime.device)  # buffers

    def _policy(self) -> MixedPrecisionPolicy:
        """Matrices travel in the precision in which autocast would use them; gradients are added up in float32."""
        if self.runtime.precision == torch.float32:
            return MixedPrecisionPolicy()
        return MixedPrecisionPolicy(self.runtime.precision, torch.float32, cast_forward_inputs=False)

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
            full = tensor.full_tensor().cpu() if isinstance(tensor, DTensor) else tensor
            if self.runtime.processes.is_main:
                kept[name] = full
        return kept

    def part(self, tensor: Tensor, like: Tensor) -> Tensor:
        """Cut out of the whole, which every process has in hand."""
        if not isinstance(like, DTensor) or tensor.shape != like.shape:
            return tensor
        return distribute_tensor(
            tensor.to(self.runtime.device), like.device_mesh, like.placements, src_data_rank=None
        )

    def matrix(self, tensor: Tensor) -> Tensor:
        """Gathered; every process gets it."""
        return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
