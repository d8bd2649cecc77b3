"""A last layer at a few positions equals the plain stack at these positions."""

import pytest
import torch

from headstart import fast
from headstart.fast.layers import OutputPositionsBlock
from tests.helpers.tiny_models import ATTENTIVE, SHAPES, make_backbone, make_batch


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", ATTENTIVE)
def test_the_last_layer_at_some_positions_equals_the_plain_one(kind, shape):
    plain, batch = make_backbone(kind, shape), make_batch([5, 9, 3])
    quick = fast.optimize(make_backbone(kind, shape))
    assert any(isinstance(part, OutputPositionsBlock) for part in quick.modules())
    positions = torch.tensor([0, 4, 10, 17, 18])
    assert torch.allclose(quick(batch, positions), plain(batch, positions), atol=1e-5)
    assert torch.equal(quick(batch, positions), quick(batch, positions))
    assert torch.allclose(quick(batch).flatten(0, 1)[positions], quick(batch, positions), atol=1e-5)
