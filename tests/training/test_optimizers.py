import pytest
import torch

from headstart.config import OptimizerConfig
from headstart.models.model import HeadSpec, build_model
from headstart.training.optimizers import Muon, make_optimizer, orthogonalized, set_trainable_layers, split_joint
from tests.helpers.tiny_models import VOCABULARY, tiny_config

HEADS = {"class": HeadSpec("class", 2, {"pooling": "mean", "projection": "dense"})}


def model(layers=3):
    torch.manual_seed(0)
    return build_model(tiny_config("bidirectional", num_layers=layers), VOCABULARY.size, HEADS)


@pytest.mark.parametrize("kind", ["adamw", "adam", "muon"])
def test_every_weight_is_in_one_group_and_vectors_are_never_decayed(kind):
    net = model()
    optimizer = make_optimizer(net, OptimizerConfig(name=kind, weight_decay=0.1))
    held = [weight for group in optimizer.groups() for weight in group["params"]]
    assert sorted(map(id, held)) == sorted(map(id, net.parameters()))
    for group in optimizer.groups():
        for weight in group["params"]:
            assert group["weight_decay"] == (0.1 if weight.ndim >= 2 else 0.0)


def test_layer_wise_rates_fall_from_the_head_down():
    net = model()
    optimizer = make_optimizer(net, OptimizerConfig(layerwise_lr_decay=0.5, head_lr_multiplier=4.0))
    names = {id(weight): name for name, weight in net.named_parameters()}
    rates = {names[id(weight)]: group["lr_scale"] for group in optimizer.groups() for weight in group["params"]}
    assert rates["heads.class.classifier.weight"] == 4.0
    assert rates["backbone.stack.final_norm.weight"] == 1.0
    assert rates["backbone.stack.blocks.2.attention.qkv_proj.weight"] == 1.0
    assert rates["backbone.stack.blocks.0.attention.qkv_proj.weight"] == 0.25
    assert rates["backbone.embedding.token_embedding.weight"] == 0.125


def trained_layers(net):
    return {
        ".".join(name.split(".")[: 4 if "blocks" in name else 2 if "stack" not in name else 3])
        for name, w in net.named_parameters()
        if w.requires_grad
    }


def test_gradual_unfreezing_starts_at_the_top():
    net = model()
    seen = []
    for epoch in range(6):
        set_trainable_layers(net, False, 1.0, epoch)
        seen.append(trained_layers(net))
    assert seen[0] == {"heads.class", "backbone.stack.final_norm"}
    assert "backbone.stack.blocks.2" in seen[1]
    assert "backbone.stack.blocks.1" not in seen[1]
    assert "backbone.embedding" not in seen[3]
    assert "backbone.embedding" in seen[4]


def test_a_frozen_backbone_is_not_trained():
    net = model()
    set_trainable_layers(net, True, None, 0)
    assert trained_layers(net) == {"heads.class"}


@pytest.mark.parametrize("shape", [(8, 8), (12, 5), (5, 12)])
def test_muon_makes_updates_about_orthogonal(shape):
    torch.manual_seed(0)
    sizes = torch.linalg.svdvals(orthogonalized(torch.randn(4, *shape)))
    assert float(sizes.min()) > 0.5
    assert float(sizes.max()) < 1.3


def test_muon_cuts_joint_matrices_into_their_parts():
    assert [tuple(part.shape) for part in split_joint(torch.zeros(48, 16))] == [(16, 16)] * 3
    assert [tuple(part.shape) for part in split_joint(torch.zeros(16, 24))] == [(16, 24)]


def test_muon_agrees_with_the_one_in_torch():
    torch.manual_seed(0)
    weights = [torch.nn.Parameter(torch.randn(24, 40)) for _ in range(2)]
    weights[1].data.copy_(weights[0].data)
    ours = Muon([weights[0]], lr=0.1, momentum=0.9, weight_decay=0.1)
    theirs = torch.optim.Muon([weights[1]], lr=0.1, momentum=0.9, weight_decay=0.1, adjust_lr_fn="match_rms_adamw")
    for _ in range(3):
        update = torch.randn(24, 40)
        for weight, optimizer in zip(weights, (ours, theirs), strict=True):
            weight.grad = update.clone()
            optimizer.step()
    moved = (weights[0] - weights[1]).detach().abs().mean() / 0.1
    assert float(moved) < 0.02  # torch's rounds to bfloat16 on the way


def test_the_optimizer_state_survives_saving():
    nets = [model(), model()]
    optimizers = [make_optimizer(net, OptimizerConfig(name="muon")) for net in nets]

    def step(net, optimizer, seed):
        torch.manual_seed(seed)
        for weight in net.parameters():
            weight.grad = torch.randn_like(weight)
        optimizer.step(1e-2)

    for seed in range(3):
        step(nets[0], optimizers[0], seed)
    nets[1].load_state_dict(nets[0].state_dict())
    optimizers[1].load({name: tensor.clone() for name, tensor in optimizers[0].tensors().items()})
    for net, optimizer in zip(nets, optimizers, strict=True):
        step(net, optimizer, 9)
    for one, other in zip(nets[0].parameters(), nets[1].parameters(), strict=True):
        assert torch.equal(one, other)


def test_matrices_updated_together_equal_those_updated_alone():
    def plain_step(weight, momentum_buffer, rate, decay, momentum):
        momentum_buffer.lerp_(weight.grad, 1 - momentum)
        update = weight.grad.lerp(momentum_buffer, momentum)
        weight.mul_(1 - rate * decay)
        for part, direction in zip(split_joint(weight), split_joint(update), strict=True):
            # among others of its shape: a batched product may round otherwise than a single one
            change = orthogonalized(torch.stack([direction] * alike[tuple(part.shape)]))[0]
            part.sub_(change, alpha=rate * 0.2 * max(part.shape) ** 0.5)

    torch.manual_seed(0)
    shapes = [(12, 12), (36, 12), (12, 20), (40, 12), (12, 12), (36, 12)]
    alike = {(12, 12): 8, (12, 20): 1, (40, 12): 1}
    together = [torch.nn.Parameter(torch.randn(shape)) for shape in shapes]
    alone = [weight.detach().clone().requires_grad_() for weight in together]
    optimizer = Muon(together, lr=0.03, weight_decay=0.1)
    momenta = [torch.zeros(shape) for shape in shapes]
    for _ in range(3):
        for one, other in zip(together, alone, strict=True):
            one.grad = torch.randn(one.shape)
            other.grad = one.grad.clone()
        together[3].grad = None
        optimizer.step()
        with torch.no_grad():
            for weight, momentum_buffer in zip(alone[:3] + alone[4:], momenta[:3] + momenta[4:], strict=True):
                plain_step(weight, momentum_buffer, 0.03, 0.1, 0.95)
    for one, other in zip(together, alone, strict=True):
        assert torch.equal(one, other)
