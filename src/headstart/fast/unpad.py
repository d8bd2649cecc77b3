"""Inference without padding: linear layers and norms see tokens only, and attention alone sees a padded batch.

Replaces: models/backbones.py, `TransformerBackbone.forward`, in inference.
Equal by: tests/fast/test_unpad.py
Pays: benchmarks/results/serve-tiny-cpu-2-cores.md
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from headstart.batch import Batch
from headstart.models.backbones import BackboneOutput, BidirectionalBackbone, CausalBackbone, TransformerBackbone
from headstart.models.transformer import Block

# oneDNN compiles a kernel for each number of rows, which takes as long as multiplying some hundred rows.
FINE, COARSE = 16, 64  # the number of tokens is a multiple of FINE up to COARSE, and of COARSE above it


@dataclass(frozen=True)
class UnpaddedLayout:
    """Where the tokens of a padded (B, T) batch are; the last one is repeated until N is a round number."""

    shape: tuple[int, int]  # (B, T)
    indices: Tensor  # (N,), of each token in the flattened batch
    positions: Tensor  # (N,), of each token in its text
    slots: Tensor  # (B * T,), the index of the token at each position; any at padding

    def pad_heads(self, x: Tensor) -> Tensor:
        """Queries, keys or values (1, H, N, d) as a padded batch (B, H, T, d); padding holds arbitrary ones."""
        padded = x[0].transpose(0, 1).index_select(0, self.slots)  # (B * T, H, d)
        return padded.view(*self.shape, *padded.shape[1:]).transpose(1, 2)

    def pad(self, hidden: Tensor) -> Tensor:
        """Vectors (N, D) as a padded batch (B, T, D); padding holds arbitrary ones."""
        return hidden.index_select(0, self.slots).view(*self.shape, -1)


def unpadded_layout(attention_mask: Tensor) -> UnpaddedLayout:
    """The tokens of a batch whose padding is at the end of each text."""
    count, length = attention_mask.shape
    mask = attention_mask.flatten()
    indices = mask.nonzero()[:, 0]
    extra = -len(indices) % (FINE if len(indices) < COARSE else COARSE)
    if extra:
        indices = torch.cat((indices, indices[-1:].expand(extra)))
    slots = mask.cumsum(0).sub_(1).clamp_(min=0)
    return UnpaddedLayout((count, length), indices, torch.remainder(indices, length), slots)


class _Unpadded(TransformerBackbone):
    skips_padding = True

    def forward(  # type: ignore[override]
        self, batch: Batch, output_positions: Tensor | None = None, output_attentions: bool = False
    ) -> Tensor | BackboneOutput:
        """As the plain one; vectors at padding are arbitrary."""
        is_short = batch.unpadded and batch.tokens.numel() <= COARSE  # the new layout costs more than it saves
        has_types = batch.segments is not None and self.embedding.token_type_embedding is not None
        if self.training or output_attentions or has_types or is_short:
            return super().forward(batch, output_positions, output_attentions)
        layout = unpadded_layout(batch.attention_mask)
        positions = layout.positions[None]
        hidden = self.embedding(batch.tokens.flatten().index_select(0, layout.indices)[None], positions)[0]  # (N, D)
        layers = self.stack.layer_inputs(batch.tokens, self.mask(batch), self.is_causal(batch), positions, None)
        for number, (block, inputs) in enumerate(zip(self.stack.blocks, layers, strict=True), 1):
            assert isinstance(block, Block)
            heads = block.attention.project(block.normed(hidden, block.attention_norm)[None], inputs.rope)
            mixed, _ = block.attention.attend(*map(layout.pad_heads, heads), inputs)
            indices = layout.indices
            if number == len(layers) and output_positions is not None:
                indices, hidden = output_positions, hidden.index_select(0, layout.slots[output_positions])
            update = block.attention.out_proj(mixed.transpose(1, 2).flatten(2).flatten(0, 1).index_select(0, indices))
            hidden, _ = block.after_attention(hidden, update, inputs)
        hidden = self.stack.final_norm(hidden)
        return hidden if output_positions is not None else layout.pad(hidden)


class UnpaddedCausalBackbone(_Unpadded, CausalBackbone):
    """A causal backbone that skips padding."""


class UnpaddedBidirectionalBackbone(_Unpadded, BidirectionalBackbone):
    """A bidirectional backbone that skips padding."""
