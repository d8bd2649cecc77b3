"""The last layer at those positions alone whose output is used.

Replaces: models/transformer.py, `Stack` with `output_positions` (label positions of masked LM, one position of a classifier).
Equal by: tests/fast/test_last_layer.py
Pays: benchmarks/results/speed-cpu-finetune.md
"""

from torch import Tensor

from headstart.models.kv_cache import KVCache
from headstart.models.transformer import Block, CrossKV, LayerInputs, Positions, Stack, select_positions


class LastLayerStack(Stack):
    """In the last block, everything after attention is computed at `output_positions` only."""

    def forward(
        self,
        hidden: Tensor,
        attention_mask: Tensor | None = None,
        is_causal: bool = False,
        positions: Positions | None = None,
        cross_kv: list[CrossKV] | None = None,
        cache: KVCache | None = None,
        output_positions: Tensor | None = None,
        output_attentions: bool = False,
    ) -> tuple[Tensor, list[Tensor], list[Tensor]]:
        """As the plain one."""
        if output_positions is None or cross_kv is not None or cache is not None or output_attentions:
            return super().forward(
                hidden, attention_mask, is_causal, positions, cross_kv, cache, output_positions, output_attentions
            )
        length = hidden.shape[1]
        positions = slice(0, length) if positions is None else positions
        layers = self.layer_inputs(length, attention_mask, is_causal, positions, None, hidden.device)
        for block, inputs in zip(self.blocks[:-1], layers, strict=False):
            hidden = block(hidden, *inputs)[0]
        last = self.blocks[-1]
        assert isinstance(last, Block)
        return self.final_norm(block_at(last, hidden, layers[-1], output_positions)), [], []


def block_at(block: Block, hidden: Tensor, inputs: LayerInputs, positions: Tensor) -> Tensor:
    """The output of a block (N, D) at `positions` of the flattened batch."""
    attention = block.attention
    query, key, value = attention.project(block.normed(hidden, block.attention_norm), inputs.rope)
    mixed, _ = attention.attend(query, key, value, inputs.attention_mask, inputs.is_causal, False)
    update = attention.out_proj(select_positions(mixed.transpose(1, 2).flatten(2), positions))
    return block.after_attention(select_positions(hidden, positions), update)[0]
