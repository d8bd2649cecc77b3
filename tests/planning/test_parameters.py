"""The parameter table is exact, block by block, for every shape."""

from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headstart.config import ModelConfig, preset_names, resolve
from headstart.models.model import HeadSpec, build_model, count_parameters
from headstart.objectives import OBJECTIVES, make_objective
from headstart.planning.parameters import parameter_table
from headstart.planning.workload import count_parameters as count_by_part
from tests.helpers.tiny_models import SHAPES, tiny_config


def built_count(body, vocabulary, heads):
    with torch.device("meta"):
        return count_parameters(build_model(body, vocabulary, heads))


def preset_parts(job, preset, classes=2):
    config = resolve(job, preset)
    objective = make_objective(config.objective)
    body = objective.resolve_backbone(config.model)
    size = config.tokenizer.vocab_size
    return body, size, objective.heads(body, size, classes)


@pytest.mark.parametrize("job", ["pretrain", "finetune"])
@pytest.mark.parametrize("preset", preset_names())
def test_the_parameter_table_of_every_preset_equals_the_built_model(job, preset):
    parts = preset_parts(job, preset)
    assert parameter_table(*parts).total == built_count(*parts)


def test_the_lab_counts_to_its_known_numbers():
    assert parameter_table(*preset_parts("pretrain", "lab")).total == 21_018_401
    assert parameter_table(*preset_parts("finetune", "lab")).total == 10_968_602


def test_the_base_of_attention_is_all_you_need_counts_to_its_known_number():
    body, size, heads = preset_parts("finetune", "vaswani-base")
    found = parameter_table(body, size, heads)
    assert (size, found.total) == (37_000, 63_082_496)
    assert not found.heads  # the head is the token embedding, without a bias
    blocks = {block.name: block for block in found.blocks}
    assert blocks["token embedding"].numbers == "37,000·512 = 18,944,000"
    assert blocks["decoder cross kv"].symbols == "2D² + 2D"
    assert parameter_table(body, 40_745, heads).total == 64_999_936  # the 65 M that the paper speaks of


def test_formulas_are_given_in_symbols_and_in_numbers():
    blocks = {block.name: block for block in parameter_table(*preset_parts("pretrain", "lab")).blocks}
    assert blocks["attention qkv"].symbols == "3D² + 3D"
    assert blocks["attention qkv"].numbers == "3·200² + 3·200 = 120,600"
    assert blocks["attention qkv"].total == 4 * 120_600


bodies = st.builds(
    lambda heads, half, shares, skips, norm_first, **rest: ModelConfig(
        num_heads=heads,
        hidden_size=2 * heads * half,
        num_kv_heads=max(1, heads // 2) if shares and heads != 3 else None,
        norm_first=norm_first,
        norm_first_layer=not (skips and norm_first),
        **rest,
    ),
    architecture=st.sampled_from(["causal", "bidirectional", "encoder-decoder"]),
    num_decoder_layers=st.none() | st.integers(1, 3),
    source_vocab_size=st.none() | st.integers(8, 100),
    token_type_embeddings=st.booleans(),
    embedding_norm=st.booleans(),
    pooler=st.booleans(),
    heads=st.integers(1, 4),
    half=st.integers(1, 8),
    num_layers=st.integers(1, 3),
    intermediate_size=st.integers(1, 40),
    position_embedding=st.sampled_from(["rotary", "sinusoidal", "learned", "none"]),
    norm=st.sampled_from(["rms", "layer"]),
    norm_first=st.booleans(),
    activation=st.sampled_from(["swiglu", "geglu", "gelu", "gelu-tanh", "relu", "relu2"]),
    bias=st.booleans(),
    qk_norm=st.booleans(),
    tie_embeddings=st.booleans(),
    max_position_embeddings=st.integers(2, 50),
    shares=st.booleans(),
    mlm_head_transform=st.booleans(),
    head_bias=st.sampled_from([None, True, False]),
    skips=st.booleans(),
    sliding_window=st.sampled_from([None, 1, 4]),
)


@settings(max_examples=60, deadline=None)
@given(body=bodies, vocabulary=st.integers(8, 200), classes=st.integers(2, 9), pooling=st.sampled_from(["mean", "mean+max"]), projection=st.sampled_from(["linear", "dense"]), bias=st.booleans())  # fmt: skip
def test_the_parameter_table_of_any_shape_equals_the_built_model(body, vocabulary, classes, pooling, projection, bias):
    heads = {
        "lm": HeadSpec("lm", vocabulary, {"bias": bias}),
        "class": HeadSpec("class", classes, {"pooling": pooling, "projection": projection}),
    }
    found = parameter_table(body, vocabulary, heads)
    assert found.total == built_count(body, vocabulary, heads)
    assert sum(block.total for block in found.backbone + found.heads) == found.total


def matrices_of(table, side=""):
    return sum(block.matrix * block.times for block in table.backbone if not side or block.side == side)


def sums_by_kind(matrices):
    sums = Counter()
    for kind, size in matrices:
        sums[kind] += size
    return sums


@pytest.mark.parametrize("name", sorted(OBJECTIVES))
def test_every_objective_on_every_body_it_can_ask_is_counted(name):
    objective = OBJECTIVES[name]()
    for kind in objective.architectures:
        body = tiny_config(kind)
        heads = objective.heads(body, 40, 3)
        with torch.device("meta"):
            model = build_model(body, 40, heads)
        table, built = parameter_table(body, 40, heads), count_by_part(body, 40, heads)
        assert table.total == built.total == count_parameters(model)
        assert sum(block.total for block in table.heads) == built.heads
        assert matrices_of(table) == built.matrices
        assert matrices_of(table, "source") == built.source_matrices
        kinds = [(heads[block.name.removeprefix("head ").split(",")[0]].kind, block) for block in table.heads]
        formulas = [(kind, block.matrix) for kind, block in kinds if kind != "lm" or block.name.endswith("transform")]
        assert sums_by_kind(formulas) == sums_by_kind(built.head_matrices)


@pytest.mark.parametrize("kind", ["causal", "encoder-decoder"])
@pytest.mark.parametrize("shape", sorted(SHAPES))
def test_matrices_are_the_weights_that_every_token_is_multiplied_by(shape, kind):
    body = tiny_config(kind, shape)
    with torch.device("meta"):
        model = build_model(body, 40, {})
    matrices = [w.numel() for name, w in model.named_parameters() if w.ndim == 2 and "embedding" not in name]
    found = parameter_table(body, 40, {})
    assert matrices_of(found) == sum(matrices) == count_by_part(body, 40, {}).matrices
    if kind == "encoder-decoder":
        assert matrices_of(found, "source") + matrices_of(found, "target") == matrices_of(found)
        assert matrices_of(found, "source") == count_by_part(body, 40, {}).source_matrices
