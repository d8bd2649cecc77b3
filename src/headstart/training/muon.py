"""Muon: momentum made orthogonal, for the matrices of a body (Jordan et al., 2024).

torch.optim.Muon always computes in bfloat16, which on a CPU costs more than the training step itself, and
treats the joint query-key-value matrix as one. This one computes in float32 on a CPU, takes matrices of one
shape together, and cuts joint matrices into the square parts they are made of.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
ROUNDS = 5


def orthogonal(matrices: Tensor) -> Tensor:
    """The nearest half-orthogonal matrix to each of (N, rows, columns), roughly, by Newton-Schulz rounds."""
    kind = torch.bfloat16 if matrices.device.type == "cuda" else torch.float32
    x = matrices.to(kind)
    is_tall = x.shape[-2] > x.shape[-1]
    if is_tall:
        x = x.mT
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    a, b, c = COEFFICIENTS
    for _ in range(ROUNDS):
        square = x @ x.mT
        x = a * x + (b * square + c * square @ square) @ x
    return (x.mT if is_tall else x).to(matrices.dtype)


def parts_of(matrix: Tensor) -> list[Tensor]:
    """A joint matrix cut into its parts of at most square shape along the rows; views, not copies."""
    rows, columns = matrix.shape
    whole = rows % columns == 0 and rows // columns in (2, 3)
    return list(matrix.split(columns, dim=0)) if whole else [matrix]


def _size(rate: float, shape: Sequence[int]) -> float:
    """How far a matrix of this shape is moved."""
    return rate * 0.2 * max(shape) ** 0.5


class Holder(Protocol):
    """What holds a part of each matrix, and can bring a matrix together and cut it up again."""

    def matrix(self, tensor: Tensor) -> Tensor:
        """The whole matrix of which `tensor` is a part."""
        ...

    def part(self, tensor: Tensor, like: Tensor) -> Tensor:
        """The part of a whole matrix that belongs to the weight `like`."""
        ...


class Muon(torch.optim.Optimizer):
    """Steps of about AdamW's size, so that one learning rate and one decay serve both (Liu et al., 2025).

    A `holder` says that weights are parts of matrices: one matrix at a time is then brought together to be turned.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        momentum: float = 0.95,
        weight_decay: float = 0.0,
        holder: Holder | None = None,
    ):
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})
        self.holder = holder

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Change every matrix that has a gradient."""
        for group in self.param_groups:
            learning = [weight for weight in group["params"] if weight.grad is not None]
            if self.holder is not None:
                for weight in learning:
                    push = self._push(weight, group["momentum"])
                    weight.mul_(1 - group["lr"] * group["weight_decay"])
                    weight.sub_(self._turned(self.holder, push, weight, group["lr"]))
            elif learning:
                self._step_together(learning, group)

    def _step_together(self, learning: list[nn.Parameter], group: dict[str, Any]) -> None:
        """What one weight after the other would be given, in a few calls for all of them."""
        slopes = [weight.grad for weight in learning if weight.grad is not None]
        memories = [self._momentum(weight) for weight in learning]
        torch._foreach_lerp_(memories, slopes, 1 - group["momentum"])
        pushes = torch._foreach_lerp(slopes, memories, group["momentum"])
        torch._foreach_mul_(list[Tensor](learning), 1 - group["lr"] * group["weight_decay"])
        by_shape: dict[tuple[int, ...], tuple[list[Tensor], list[Tensor]]] = {}
        for weight, push in zip(learning, pushes, strict=True):
            for part, direction in zip(parts_of(weight), parts_of(push), strict=True):
                parts, directions = by_shape.setdefault(tuple(part.shape), ([], []))
                parts.append(part)
                directions.append(direction)
        for shape, (parts, directions) in by_shape.items():
            turned = orthogonal(torch.stack(directions))
            if turned.device.type == "cuda":
                turned = turned.contiguous()  # laid out like the weights, so that one call serves them all
            torch._foreach_sub_(parts, turned.unbind(0), alpha=_size(group["lr"], shape))

    @staticmethod
    def _turned(holder: Holder, push: Tensor, weight: Tensor, rate: float) -> Tensor:
        """What to take from a weight that is a part of a matrix."""
        directions = torch.stack(parts_of(holder.matrix(push)))
        return holder.part(orthogonal(directions).flatten(0, 1) * _size(rate, directions.shape[1:]), weight)

    def _push(self, weight: nn.Parameter, momentum: float) -> Tensor:
        """The gradient with Nesterov's momentum."""
        assert weight.grad is not None
        memory = self._momentum(weight)
        memory.lerp_(weight.grad, 1 - momentum)
        return weight.grad.lerp(memory, momentum)

    def _momentum(self, weight: nn.Parameter) -> Tensor:
        state = self.state[weight]
        if "momentum" not in state:
            state["momentum"] = torch.zeros_like(weight)
        return state["momentum"]
