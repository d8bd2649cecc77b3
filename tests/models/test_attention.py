import pytest
import torch

from headstart.models.dropout import drop
from headstart.models.transformer import mix, visible, watched


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("with_mask", [True, False])
def test_attention_with_dropout_drops_weights_of_plain_attention(causal, with_mask):
    torch.manual_seed(0)
    query, key, value = torch.randn(3, 2, 2, 5, 8).unbind(0)
    mask = torch.tensor([[True] * 5, [True] * 3 + [False] * 2])[:, None, None, :] if with_mask else None
    _, weights = watched(query, key, value, visible(5, causal, mask, query.device))
    torch.manual_seed(7)
    expected = drop(weights, 0.3, True) @ value
    torch.manual_seed(7)
    assert torch.allclose(mix(query, key, value, mask, causal, 0.3), expected, atol=1e-6)
