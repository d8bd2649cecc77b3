"""A model as each of several processes holds it: alone, a copy of the whole, or a part of every matrix.

DDP and FSDP2 watch a module's call, while an objective reads body and heads as it likes, so both are given a
module whose call is the asking. Both take means of gradients over processes; the losses are scaled to sums.
"""

import warnings
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from headstart.batch import Batch
from headstart.models.model import Model
from headstart.objectives.base import Loss, Objective
from headstart.training.runtime import Runtime

Found = TypeVar("Found")


class Copy:
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


class Asked(nn.Module):
    """A model whose call is any work with it."""

    def __init__(self, model: Model):
        super().__init__()
        self.model = model

    def forward(self, work: Callable[[Model], Any]) -> Any:
        """What the work finds."""
        return work(self.model)


class Replica(Copy):
    """The whole model in each process; gradients are added up while the way back is still under way (DDP)."""

    def __init__(self, model: Model, runtime: Runtime):
        super().__init__(model, runtime)
        self.scale = float(runtime.processes.count)
        self._asked = Asked(model)
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
        some_unused = bool(self.runtime.processes.add_up({"unused": unused})["unused"])
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


def make_copy(model: Model, runtime: Runtime) -> Copy:
    """The model on its device, as one of the run's processes holds it."""
    if runtime.is_sharded:
        from headstart.training.sharded import Sharded  # half a second that others need not wait

        return Sharded(model, runtime)
    return Copy(model, runtime) if runtime.processes.is_alone else Replica(model, runtime)
