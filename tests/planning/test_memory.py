"""Predicted memory: what autograd keeps is counted as torch counts it, and more work never needs less."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headstart.config import resolve
from headstart.constants import MAX_UNCHUNKED_LOGITS
from headstart.models.model import build_model
from headstart.objectives import make_objective
from headstart.planning.memory import layer_activations, predict_memory
from headstart.planning.workload import make_workload
from headstart.workflows.plan import SyntheticData


def load_of(job="pretrain", preset="tiny", device="cpu", precision="float32", batch=4, length=16, **changes):
    return make_workload(resolve(job, preset, changes), device, precision, batch=batch, length=length)


def saved_bytes(load, objective):
    """Bytes of distinct tensors that autograd keeps, weights and buffers aside."""
    model = build_model(load.model, load.vocab_size, load.heads)
    own = {weight.untyped_storage().data_ptr() for weight in [*model.parameters(), *model.buffers()]}
    saved = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            saved[storage.data_ptr()] = (storage.nbytes(), tensor)
        return tensor

    sources = load.vocab_size if load.source_length else 0
    texts = SyntheticData(load.vocab_size, load.batch_size, load.length + objective.lookahead, 0, sources)
    batch = objective.collate(texts.fetch(texts.batches(0)[0], 0), texts, torch.Generator())
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        objective.losses(model, batch)
    return sum(size for size, _ in saved.values())


SHAPES = {
    "tiny": ("tiny", {}),
    "lab": ("lab", {}),
    "layer norm and gelu": ("tiny", {"norm": "layer", "activation": "gelu", "position_embedding": "learned"}),
    "dropout": ("tiny", {"dropout": 0.1}),
    "attention dropout": ("tiny", {"attention_dropout": 0.1, "position_embedding": "none"}),
    "relu2 after": ("tiny", {"activation": "relu2", "norm_first": False}),
}


@pytest.mark.parametrize("shape", sorted(SHAPES))
def test_a_layer_keeps_for_the_way_back_what_torch_says_it_keeps(shape):
    preset, body = SHAPES[shape]
    found = []
    for layers in (1, 2):
        changes = {"model": {**body, "num_layers": layers}, "tokenizer": {"vocab_size": 64}}
        load = load_of(preset=preset, length=32, **changes)
        objective = make_objective(resolve("pretrain", preset).objective)
        found.append(saved_bytes(load, objective))
    saved = load.batch_size * layer_activations(load, load.stacks[0])
    assert saved == pytest.approx(found[1] - found[0], rel=0.02)


TRANSLATOR = {"vocab_size": 64}
BOTH = {
    "as it is": {},
    "without dropout": {"dropout": 0.0},
    "attention dropout": {"attention_dropout": 0.1},
    "modern": {
        "dropout": 0.0,
        "position_embedding": "rotary",
        "norm": "rms",
        "norm_first": True,
        "activation": "swiglu",
    },
    "query and key norms": {"dropout": 0.0, "qk_norm": True, "norm": "rms"},
}


@pytest.mark.parametrize("shape", sorted(BOTH))
@pytest.mark.parametrize(("side", "name"), [(0, "num_layers"), (1, "num_decoder_layers")])
def test_both_stacks_of_a_translator_keep_what_torch_says_they_keep(shape, side, name):
    found = []
    for layers in (1, 2):
        body = {"num_layers": 1, "num_decoder_layers": 1, **BOTH[shape], name: layers}
        load = load_of("finetune", "translate-tiny", length=32, model=body, tokenizer=TRANSLATOR)
        found.append(saved_bytes(load, make_objective(resolve("finetune", "translate-tiny").objective)))
    saved = load.batch_size * layer_activations(load, load.stacks[side])
    assert saved == pytest.approx(found[1] - found[0], rel=0.03)


def test_averaged_weights_stand_beside_the_model():
    plain, averaged = (load_of("finetune", training={"weight_averaging": kind}) for kind in ("none", "ema"))
    difference = predict_memory(averaged).parts["averaged weights"]
    assert difference == 4 * plain.parameters.total


@settings(max_examples=40, deadline=None)
@given(
    batch=st.integers(1, 64),
    length=st.integers(2, 512),
    device=st.sampled_from(["cpu", "cuda"]),
    precision=st.sampled_from(["float32", "bfloat16"]),
    preset=st.sampled_from(["lab", "tiny", "small", "translate-tiny"]),
    job=st.sampled_from(["pretrain", "finetune"]),
)
def test_more_texts_and_longer_texts_never_need_less(batch, length, device, precision, preset, job):
    load = load_of(job, preset, device, precision, batch, length)
    peak = predict_memory(load).peak

    def is_cut(load):
        return load.num_predictions * load.vocab_size > MAX_UNCHUNKED_LOGITS[device]

    for more in (
        replace(load, batch_size=batch + 1),
        replace(load, length=length + 1, source_length=(length + 1) * bool(load.source_length)),
        replace(load, accumulation_steps=2),
    ):
        if is_cut(more) == is_cut(load):  # scores that are cut into pieces need less than those just short of it
            assert predict_memory(more).peak >= peak


def test_parts_add_up_and_the_fixed_ones_are_exact():
    load = load_of("pretrain", "lab")
    found = predict_memory(load)
    assert found.peak == sum(found.parts.values())
    assert found.parts["weights"] == 4 * 21_018_401
    assert found.parts["optimizer"] == 8 * 21_018_401


def test_muon_keeps_one_number_for_a_matrix_and_adam_two():
    muon, adam = (load_of("pretrain", "tiny", optimizer={"name": kind}) for kind in ("muon", "adamw"))
    spared = predict_memory(adam).parts["optimizer"] - predict_memory(muon).parts["optimizer"]
    assert spared == 4 * adam.parameters.matrices


@pytest.mark.parametrize("kind", ["bi-lstm", "cnn"])
def test_rivals_of_the_transformer_keep_what_torch_says_they_keep(kind):
    found = []
    for layers in (1, 2):
        changes = {"model": {"architecture": kind, "num_layers": layers}, "tokenizer": {"vocab_size": 64}}
        load = load_of(length=32, **changes)
        found.append(saved_bytes(load, make_objective(resolve("pretrain", "tiny").objective)))
    saved = load.batch_size * layer_activations(load, load.stacks[0])
    assert saved == pytest.approx(found[1] - found[0], rel=0.1)
