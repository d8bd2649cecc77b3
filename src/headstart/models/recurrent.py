"""Bodies that read without attention: recurrence and convolution."""

from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from headstart.batch import Batch
from headstart.config import ModelConfig
from headstart.errors import ConfigError
from headstart.models.backbones import Backbone
from headstart.models.dropout import drop
from headstart.models.transformer import at, make_norm


class RecurrentBackbone(Backbone):
    """Layers of LSTM read from both ends, half the width each way (Hochreiter and Schmidhuber, 1997)."""

    sees_ahead = True
    layer_names = ("lstms", "norms")

    def __init__(self, config: ModelConfig, vocabulary: int):
        if config.hidden_size % 2:
            raise ConfigError(
                f"a bi-lstm needs an even model.hidden_size, not {config.hidden_size}",
                hint=f"try {config.hidden_size + 1}",
            )
        super().__init__(config, vocabulary)
        self.lstms = nn.ModuleList(
            nn.LSTM(config.hidden_size, config.hidden_size // 2, batch_first=True, bidirectional=True)
            for _ in range(config.num_layers)
        )
        self.norms = nn.ModuleList(make_norm(config) for _ in range(config.num_layers))
        self.final_norm = make_norm(config)
        self.apply(self._start)

    def forward(self, batch: Batch, places: Tensor | None = None) -> Tensor:
        """A vector for every token (B, T, D); padding is never stepped over."""
        hidden, _ = self.embedding(batch)
        lengths = batch.attention_mask.sum(dim=1).clamp(min=1).cpu()
        for recurrence, norm in zip(self.lstms, self.norms, strict=True):
            packed = pack_padded_sequence(norm(hidden), lengths, batch_first=True, enforce_sorted=False)
            read, _ = pad_packed_sequence(recurrence(packed)[0], batch_first=True, total_length=hidden.shape[1])
            hidden = hidden + drop(read, self.config.dropout, self.training)
        return self.final_norm(at(hidden, places))


class ConvolutionalBackbone(Backbone):
    """Layers of convolution of `kernel` tokens; dilated, each looks twice as far as the one below (Oord et al., 2016)."""

    sees_ahead = True
    layer_names = ("convs", "norms")

    def __init__(self, config: ModelConfig, vocabulary: int):
        if config.kernel_size % 2 == 0:
            raise ConfigError(
                f"a cnn needs an odd model.kernel_size, not {config.kernel_size}", hint=f"try {config.kernel_size + 1}"
            )
        super().__init__(config, vocabulary)
        steps = [2**layer if config.dilation else 1 for layer in range(config.num_layers)]
        self.convs = nn.ModuleList(
            nn.Conv1d(config.hidden_size, 2 * config.hidden_size, config.kernel_size, padding="same", dilation=step)
            for step in steps
        )
        self.norms = nn.ModuleList(make_norm(config) for _ in range(config.num_layers))
        self.final_norm = make_norm(config)
        self.apply(self._start)

    def forward(self, batch: Batch, places: Tensor | None = None) -> Tensor:
        """A vector for every token (B, T, D); padding counts as nothing at every layer."""
        hidden, _ = self.embedding(batch)
        real = batch.attention_mask[..., None]
        for convolution, norm in zip(self.convs, self.norms, strict=True):
            read = convolution((norm(hidden) * real).transpose(1, 2)).transpose(1, 2)
            hidden = hidden + drop(F.glu(read, dim=-1), self.config.dropout, self.training)
        return self.final_norm(at(hidden, places))
