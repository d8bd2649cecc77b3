"""Backbones without attention: recurrence and convolution."""

from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from headstart.batch import Batch, select_positions
from headstart.config import ModelConfig
from headstart.errors import ConfigError
from headstart.models.backbones import Backbone
from headstart.models.transformer import make_norm


class RecurrentBackbone(Backbone):
    """Bidirectional LSTM layers, half the hidden size each way (Hochreiter and Schmidhuber, 1997)."""

    sees_ahead = True
    layer_names = ("lstms", "norms")

    def __init__(self, config: ModelConfig, vocab_size: int):
        if config.hidden_size % 2:
            raise ConfigError(
                f"a bi-lstm needs an even model.hidden_size, not {config.hidden_size}",
                hint=f"try {config.hidden_size + 1}",
            )
        super().__init__(config, vocab_size)
        self.lstms = nn.ModuleList(
            nn.LSTM(config.hidden_size, config.hidden_size // 2, batch_first=True, bidirectional=True)
            for _ in range(config.num_layers)
        )
        self.norms = nn.ModuleList(make_norm(config) for _ in range(config.num_layers))
        self.final_norm = make_norm(config)
        self.dropout = nn.Dropout(config.dropout)
        self.apply(self.init_weights)

    def forward(self, batch: Batch, output_positions: Tensor | None = None) -> Tensor:
        """A vector for every token (B, T, D), or for those at `output_positions` (N, D); the LSTM never reads padding."""
        hidden = self.embedding(batch.tokens, token_types=batch.segments)
        lengths = batch.attention_mask.sum(dim=1).clamp(min=1).cpu()
        for lstm, norm in zip(self.lstms, self.norms, strict=True):
            packed = pack_padded_sequence(norm(hidden), lengths, batch_first=True, enforce_sorted=False)
            update, _ = pad_packed_sequence(lstm(packed)[0], batch_first=True, total_length=hidden.shape[1])
            hidden = hidden + self.dropout(update)
        output: Tensor = self.final_norm(select_positions(hidden, output_positions))
        return output


class ConvolutionalBackbone(Backbone):
    """Gated convolutions; with dilation, each sees twice as far as the one before it (Oord et al., 2016)."""

    sees_ahead = True
    layer_names = ("convs", "norms")

    def __init__(self, config: ModelConfig, vocab_size: int):
        if config.kernel_size % 2 == 0:
            raise ConfigError(
                f"a cnn needs an odd model.kernel_size, not {config.kernel_size}", hint=f"try {config.kernel_size + 1}"
            )
        super().__init__(config, vocab_size)
        dilations = [2**layer if config.dilation else 1 for layer in range(config.num_layers)]
        self.convs = nn.ModuleList(
            nn.Conv1d(config.hidden_size, 2 * config.hidden_size, config.kernel_size, padding="same", dilation=dilation)
            for dilation in dilations
        )
        self.norms = nn.ModuleList(make_norm(config) for _ in range(config.num_layers))
        self.final_norm = make_norm(config)
        self.dropout = nn.Dropout(config.dropout)
        self.apply(self.init_weights)

    def forward(self, batch: Batch, output_positions: Tensor | None = None) -> Tensor:
        """A vector for every token (B, T, D), or for those at `output_positions` (N, D); padding is zero in every layer."""
        hidden = self.embedding(batch.tokens, token_types=batch.segments)
        mask = batch.attention_mask[..., None]
        for convolution, norm in zip(self.convs, self.norms, strict=True):
            update = convolution((norm(hidden) * mask).transpose(1, 2)).transpose(1, 2)
            hidden = hidden + self.dropout(F.glu(update, dim=-1))
        output: Tensor = self.final_norm(select_positions(hidden, output_positions))
        return output
