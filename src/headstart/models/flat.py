"""Texts of different lengths without their padding: tokens one after the other, padded where texts must stay apart.

Only attention looks at more than one token. Everything else, which is most of the work, is the same map at every
position, and padding need not go through it.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from headstart.batch import Batch

# oneDNN makes a kernel for each number of rows it meets, which takes as long as multiplying some hundred of them.
FINE, COARSE = 16, 64  # what the number of tokens is a multiple of: few tokens, and more than COARSE of them


@dataclass(frozen=True)
class Flat:
    """Where the real tokens of a padded (B, T) batch stand; some are read twice, so that N is a round number."""

    shape: tuple[int, int]  # (B, T)
    places: Tensor  # (N,), of each real token in the flattened batch
    columns: Tensor  # (N,), of each real token in its own text
    slots: Tensor  # (B * T,), which real token stands at each place; at padding, any

    def spread(self, part: Tensor) -> Tensor:
        """Parts of tokens (1, A, N, D/A) as a padded batch (B, A, T, D/A); padding holds what is to be ignored."""
        padded = part[0].transpose(0, 1).index_select(0, self.slots)  # (B * T, A, D/A)
        return padded.view(*self.shape, *padded.shape[1:]).transpose(1, 2)

    def padded(self, hidden: Tensor) -> Tensor:
        """Vectors of tokens (N, D) as a padded batch (B, T, D); padding holds what is to be ignored."""
        return hidden.index_select(0, self.slots).view(*self.shape, -1)


def is_short(batch: Batch) -> bool:
    """Whether a batch has no padding and few tokens: to lay those out anew costs more than it saves."""
    return batch.unpadded and batch.tokens.numel() <= COARSE


def flat_of(real: Tensor) -> Flat:
    """The real tokens of a batch, whose padding stands at the end of each text."""
    count, length = real.shape
    line = real.flatten()
    places = line.nonzero()[:, 0]
    rest = -len(places) % (FINE if len(places) < COARSE else COARSE)
    if rest:
        places = torch.cat((places, places[-1:].expand(rest)))
    slots = line.cumsum(0).sub_(1).clamp_(min=0)
    return Flat((count, length), places, torch.remainder(places, length), slots)
