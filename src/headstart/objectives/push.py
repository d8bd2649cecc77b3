"""Virtual adversarial training: an answer must hold when a text's vectors are pushed the way that turns it most.

It needs no label, and was the best for film reviews of which few are labelled (Miyato et al., 2017).
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional as F

from headstart.batch import Batch
from headstart.models.model import Model


def turned(scores: Tensor, pushed: Tensor) -> Tensor:
    """How far answers (B, C) are from those before, which are taken as given; summed."""
    before = scores.detach().log_softmax(dim=-1)
    return F.kl_div(pushed.log_softmax(dim=-1), before, reduction="sum", log_target=True)


class Chance:
    """What chance is drawn from, as it stood: passes that `again` runs in drop out the very same."""

    def __init__(self, device: torch.device):
        self.device = device
        self.state = torch.get_rng_state()
        self.on_gpu = torch.cuda.get_rng_state(device) if device.type == "cuda" else None

    def restore(self) -> None:
        """Draw from here on what was drawn since."""
        torch.set_rng_state(self.state)
        if self.on_gpu is not None:
            torch.cuda.set_rng_state(self.on_gpu, self.device)

    @contextmanager
    def again(self) -> Iterator[None]:
        """Draw the same once more; afterwards chance goes on where it was."""
        now = Chance(self.device)
        self.restore()
        try:
            yield
        finally:
            now.restore()


def worst_push(model: Model, batch: Batch, scores: Tensor, reach: float, chance: Chance) -> Tensor:
    """The shift (B, T, D), as long as `reach` of each text's vectors, along which its answer turns most, roughly.

    `chance` is that of the pass that gave the scores. One round of the paper's search: it starts along the text's
    own vectors with their numbers moved on by one place, where the paper draws a way by chance.
    """
    with chance.again(), torch.no_grad():
        vectors = model.body.embedding(replace(batch, shift=None))[0].float()
        vectors = vectors * batch.real[..., None]  # padding is not pushed
        length = reach * vectors.square().sum(dim=(1, 2), keepdim=True).sqrt()  # (B, 1, 1)
        way = _unit(vectors.roll(1, dims=-1))
    way.requires_grad_()
    with chance.again():
        apart = turned(scores, model(replace(batch, shift=length * way))["class"].float())
    (slope,) = torch.autograd.grad(apart, way)
    return length * _unit(slope * batch.real[..., None])


def _unit(way: Tensor) -> Tensor:
    """Each text's (T, D) of length one; what is all zero stays so."""
    way = way / way.abs().amax(dim=(1, 2), keepdim=True).clamp(min=1e-30)  # squares of small numbers vanish
    return way / way.square().sum(dim=(1, 2), keepdim=True).sqrt().clamp(min=1e-30)
