"""Muon: momentum orthogonalised, for the matrices of blocks (Jordan et al., 2024)."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from headstart.training.trainer import SingleDevice

NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)  # coefficients of one iteration
ITERATIONS = 5


def orthogonalized(matrices: Tensor) -> Tensor:
    """The nearest semi-orthogonal matrix to each of (N, rows, columns), roughly, by Newton-Schulz iterations."""
    x = matrices.to(torch.bfloat16 if matrices.device.type == "cuda" else torch.float32)
    is_tall = x.shape[-2] > x.shape[-1]
    if is_tall:
        x = x.mT
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    a, b, c = NEWTON_SCHULZ
    for _ in range(ITERATIONS):
        square = x @ x.mT
        x = a * x + (b * square + c * square @ square) @ x
    output: Tensor = (x.mT if is_tall else x).to(matrices.dtype)
    return output


def split_joint(matrix: Tensor) -> list[Tensor]:
    """A joint projection (query, key and value, say) as views of its square parts; another matrix as it is."""
    rows, columns = matrix.shape
    is_joint = rows % columns == 0 and rows // columns in (2, 3)
    return list(matrix.split(columns, dim=0)) if is_joint else [matrix]


def _step_size(learning_rate: float, shape: Sequence[int]) -> float:
    """The factor that makes steps about as large as AdamW's, so that one learning rate serves both (Liu et al., 2025)."""
    found: float = learning_rate * 0.2 * max(shape) ** 0.5
    return found


class Muon(torch.optim.Optimizer):
    """Muon in float32 on a CPU; matrices of one shape are updated together, and joint projections are split.

    torch.optim.Muon always computes in bfloat16, which on a CPU takes longer than the training step itself, and treats a
    joint query-key-value matrix as one. Under FSDP2, `strategy` gathers matrices.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        momentum: float = 0.95,
        weight_decay: float = 0.0,
        strategy: "SingleDevice | None" = None,
    ):
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})
        self.strategy = strategy

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update every matrix that has a gradient."""
        for group in self.param_groups:
            weights = [weight for weight in group["params"] if weight.grad is not None]
            # Sharded matrices are updated one at a time, so that one alone is in memory as a whole.
            for chunk in [weights] if self.strategy is None else [[weight] for weight in weights]:
                if chunk:
                    self._update(chunk, group["lr"], group["momentum"], group["weight_decay"])

    def _update(self, weights: list[nn.Parameter], learning_rate: float, momentum: float, weight_decay: float) -> None:
        grads = [weight.grad for weight in weights if weight.grad is not None]
        for weight in weights:
            if "momentum" not in self.state[weight]:
                self.state[weight]["momentum"] = torch.zeros_like(weight)
        momenta = [self.state[weight]["momentum"] for weight in weights]
        torch._foreach_lerp_(momenta, grads, 1 - momentum)
        updates = torch._foreach_lerp(grads, momenta, momentum)  # Nesterov's momentum
        torch._foreach_mul_(list[Tensor](weights), 1 - learning_rate * weight_decay)
        if self.strategy is None:
            self._apply_by_shape(weights, updates, learning_rate)
            return
        for weight, update in zip(weights, updates, strict=True):
            parts = torch.stack(split_joint(self.strategy.matrix(update)))
            change = orthogonalized(parts).flatten(0, 1) * _step_size(learning_rate, parts.shape[1:])
            weight.sub_(self.strategy.part(change, weight))

    @staticmethod
    def _apply_by_shape(weights: list[nn.Parameter], updates: Sequence[Tensor], learning_rate: float) -> None:
        """Subtract the orthogonalised updates, those of one shape together."""
        by_shape: dict[tuple[int, ...], tuple[list[Tensor], list[Tensor]]] = {}
        for weight, update in zip(weights, updates, strict=True):
            for part, change in zip(split_joint(weight), split_joint(update), strict=True):
                parts, changes = by_shape.setdefault(tuple(part.shape), ([], []))
                parts.append(part)
                changes.append(change)
        for shape, (parts, changes) in by_shape.items():
            orthogonal = orthogonalized(torch.stack(changes))
            if orthogonal.device.type == "cuda":
                orthogonal = orthogonal.contiguous()  # the layout of the weights, so that one kernel serves all
            torch._foreach_sub_(parts, orthogonal.unbind(0), alpha=_step_size(learning_rate, shape))
