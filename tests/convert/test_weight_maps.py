"""Every setting of a body is accounted for in every layout, and what has no twin is named."""

import pytest
import torch

from headstart.config import BodyConfig, resolve
from headstart.convert.from_transformers import LAYOUTS
from headstart.convert.to_transformers import HOMES
from headstart.convert.weight_map import find_home, gather, scatter
from headstart.errors import RunError
from headstart.models.model import HeadSpec, build_model
from headstart.objectives import make_objective
from tests.convert.hf_models import BERT_LIKE, GPT2_LIKE, MODERN, make_parcel
from tests.helpers.tiny_models import tiny_config

BODIES = {
    "llama": {"kind": "causal"},
    "eurobert": {"kind": "bidirectional", "biases": True, "key_value_heads": 1},
    "bert": {"kind": "bidirectional", **BERT_LIKE},
    "modernbert": {"kind": "bidirectional", **MODERN},
    "gpt2": {"kind": "causal", **GPT2_LIKE},
}


# What decides no answer: dropout acts in training alone, and the last ones belong to a body that is no Transformer.
WITHOUT_EFFECT = ("dropout", "attention_dropout", "kernel", "dilated", "decoder_layers", "source_vocabulary")


@pytest.mark.parametrize("layout", HOMES, ids=lambda layout: layout.name)
def test_every_setting_of_the_body_is_wanted_carried_or_without_effect(layout):
    heads = {name for twin in layout.twins.values() for name in twin.body}
    of_heads = {"tied", "lm_transform", "head_biases"} if heads else set()
    of_windows = {"global_every", "window_rotary_base"} if "window" in layout.wants else set()
    known = {*layout.wants, *layout.carries, *WITHOUT_EFFECT, *of_heads, *of_windows}
    if layout.wants["positions"] == ("learned",):
        known.add("rotary_base")
    assert set(BodyConfig.model_fields) - known == set()


@pytest.mark.parametrize("layout", HOMES, ids=lambda layout: layout.name)
def test_weights_go_there_and_come_back(layout):
    body = tiny_config(**BODIES[layout.model_type], layers=3)
    assert layout.mismatches(body) == []
    torch.manual_seed(0)
    model = build_model(body, 40, {"lm": HeadSpec("lm", 40)})
    rules = [*layout.rules(body), *layout.twins[("lm",)].rules(body)]
    before = model.state_dict()
    assert {rule.ours for rule in rules} == set(before)
    there = scatter(rules, before)
    back = gather(rules, there)
    assert all(torch.equal(back[name], weight) for name, weight in before.items())
    assert len(there) == sum(len(rule.theirs) for rule in rules)


def test_every_layout_that_models_leave_in_can_come_in():
    assert {layout.model_type for layout in HOMES} <= set(LAYOUTS)


CHANGES = {
    "positions": "sinusoidal", "norm": "layer", "norm_first": False, "activation": "relu2", "qk_norm": True,
    "scale_embedding": True, "segments": True, "embedding_norm": True, "pooler": True, "window": 4, "kind": "cnn",
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(CHANGES))
@pytest.mark.parametrize("kind", ["causal", "bidirectional"])
def test_a_setting_without_a_twin_is_refused_by_its_name(name, kind):
    body = tiny_config(**{"kind": kind, name: CHANGES[name]})
    with pytest.raises(RunError) as caught:
        find_home(HOMES, body, {"lm": HeadSpec("lm", 40)})
    word = str(CHANGES[name]).lower() if isinstance(CHANGES[name], bool) else str(CHANGES[name])
    assert f"body.{name}={word}" in str(caught.value)
    assert "--preset tiny" in caught.value.hint
    assert "--to onnx" in caught.value.hint


def test_the_course_lab_is_refused_and_the_nearest_preset_named():
    config = resolve("pretrain", "lab")
    specs = make_objective(config.objective).heads(config.body, 50_001, 0)
    with pytest.raises(RunError) as caught:
        find_home(HOMES, config.body, specs)
    for part in ("Llama", "body.positions=sinusoidal", "body.norm_first=false", "body.scale_embedding=true"):
        assert part in str(caught.value)
    assert "--preset tiny --objective causal-lm" in caught.value.hint


@pytest.mark.parametrize("preset", ["tiny", "small", "bert"])
@pytest.mark.parametrize("job", ["pretrain", "finetune"])
def test_presets_have_a_home(preset, job):
    config = resolve(job, preset)
    objective = make_objective(config.objective)
    body = objective.resolve_backbone(config.body)
    layout, _ = find_home(HOMES, body, objective.heads(body, 40, 2))
    assert layout.name == ("BERT" if preset == "bert" else "EuroBERT")


@pytest.mark.parametrize(
    ("words", "said", "hint"),
    [
        (
            {"objective": "classify", "settings": {"pooling": "max"}},
            "objective.pooling=max",
            "objective.pooling=mean",
        ),
        (
            {"objective": "classify", "settings": {"pooling": "mean+max"}},
            "objective.pooling=mean+max",
            "mean",
        ),
        (
            {"objective": "classify", "settings": {"projection": "linear"}},
            "objective.projection=linear",
            "objective.projection=dense",
        ),
        (
            {"objective": "classify", "kind": "causal", "settings": {"pooling": "mean"}},
            "objective.pooling=mean",
            "objective.pooling=last",
        ),
        ({"objective": "classify", **BERT_LIKE}, "objective.pooling=mean", "objective.pooling=pooler"),
        ({"objective": "classify", **MODERN}, "no class of ModernBERT answers for classes", "--to onnx"),
        ({"objective": "replaced-token"}, "replaced tokens", "--to onnx"),
        ({"objective": "next-sentence"}, "pairs of texts", "--to onnx"),
        (
            {"objective": "causal-lm", "biases": True},
            "body.head_biases=true",
            "body.head_biases=false",
        ),
        (
            {"objective": "masked-lm", **BERT_LIKE, "lm_transform": False},
            "body.lm_transform=false",
            "lm_transform=true",
        ),
        ({"objective": "masked-lm", **BERT_LIKE, "tied": False}, "body.tied=false", "body.tied=true"),
        (
            {"objective": "next-sentence", **BERT_LIKE, "pooler": False},
            "body.pooler=false",
            "body.pooler=true",
        ),
    ],
)
def test_a_head_without_a_twin_is_refused_by_its_setting(words, said, hint):
    parcel = make_parcel(**words)
    with pytest.raises(RunError) as caught:
        find_home(HOMES, parcel.body, parcel.heads)
    assert said in str(caught.value)
    assert hint in caught.value.hint
