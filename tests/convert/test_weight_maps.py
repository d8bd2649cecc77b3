"""Every model family accounts for every setting, and what cannot be represented is named."""

import pytest
import torch

from headstart.config import ModelConfig, resolve
from headstart.convert.families import FAMILIES
from headstart.convert.weight_map import export_weights, find_class, import_weights, weight_rules
from headstart.errors import RunError
from headstart.models.model import HeadSpec, build_model
from headstart.objectives import make_objective
from tests.convert.hf_models import BERT_LIKE, GPT2_LIKE, MODERN, make_bundle
from tests.helpers.tiny_models import tiny_config

BACKBONES = {
    "llama": {"architecture": "causal"},
    "eurobert": {"architecture": "bidirectional", "bias": True, "num_kv_heads": 1},
    "bert": {"architecture": "bidirectional", **BERT_LIKE},
    "modernbert": {"architecture": "bidirectional", **MODERN},
    "gpt2": {"architecture": "causal", **GPT2_LIKE},
}


# Dropout acts in training only, and the last ones belong to backbones that are no single Transformer stack.
WITHOUT_EFFECT = ("dropout", "attention_dropout", "kernel_size", "dilation", "num_decoder_layers", "source_vocab_size")
ALL = list(FAMILIES.values())


@pytest.mark.parametrize("family", ALL, ids=lambda family: family.name)
def test_every_setting_of_the_model_is_supported_converted_or_without_effect(family):
    of_heads = (
        {"tie_embeddings", "mlm_head_transform", "head_bias"}
        if any(c.supported for c in family.classes.values())
        else set()
    )
    of_windows = {"global_attn_every_n_layers", "local_rope_theta"} if family.supported["sliding_window"] else set()
    known = {*family.supported, *family.keys, *WITHOUT_EFFECT, *of_heads, *of_windows}
    if family.supported["position_embedding"] == ("learned",):
        known.add("rope_theta")
    assert set(ModelConfig.model_fields) - known == set()


@pytest.mark.parametrize("family", ALL, ids=lambda family: family.name)
def test_exported_weights_can_be_imported_again(family):
    body = tiny_config(**BACKBONES.get(family.model_type, BACKBONES["bert"]), num_layers=3)
    assert family.mismatches(body) == []
    torch.manual_seed(0)
    model = build_model(body, 40, {"lm": HeadSpec("lm", 40)})
    before = model.state_dict()
    modules = {**family.modules, **family.classes["lm",].modules}
    rules = weight_rules(modules, before, body, family.transpose)
    assert {rule.ours for rule in rules} == set(before)
    exported = export_weights(rules, before)
    after = import_weights(rules, exported)
    assert all(torch.equal(after[name], weight) for name, weight in before.items())
    assert len(exported) == sum(len(rule.theirs) for rule in rules)


CHANGES = {
    "position_embedding": "sinusoidal", "norm": "layer", "norm_first": False, "activation": "relu2", "qk_norm": True,
    "scale_embedding": True, "token_type_embeddings": True, "embedding_norm": True, "pooler": True, "sliding_window": 4, "architecture": "cnn",
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(CHANGES))
@pytest.mark.parametrize("kind", ["causal", "bidirectional"])
def test_an_unsupported_setting_is_named(name, kind):
    body = tiny_config(**{"architecture": kind, name: CHANGES[name]})
    with pytest.raises(RunError) as caught:
        find_class(ALL, body, {"lm": HeadSpec("lm", 40)})
    word = str(CHANGES[name]).lower() if isinstance(CHANGES[name], bool) else str(CHANGES[name])
    assert f"model.{name}={word}" in str(caught.value)
    assert "--preset tiny" in caught.value.hint
    assert "--to onnx" in caught.value.hint


def test_the_course_lab_is_refused_and_the_nearest_preset_named():
    config = resolve("pretrain", "lab")
    specs = make_objective(config.objective).heads(config.model, 50_001, 0)
    with pytest.raises(RunError) as caught:
        find_class(ALL, config.model, specs)
    for part in (
        "Llama",
        "model.position_embedding=sinusoidal",
        "model.norm_first=false",
        "model.scale_embedding=true",
    ):
        assert part in str(caught.value)
    assert "--preset tiny --objective causal-lm" in caught.value.hint


@pytest.mark.parametrize("preset", ["tiny", "small", "bert"])
@pytest.mark.parametrize("job", ["pretrain", "finetune"])
def test_presets_can_be_exported(preset, job):
    config = resolve(job, preset)
    objective = make_objective(config.objective)
    body = objective.resolve_backbone(config.model)
    family, _ = find_class(ALL, body, objective.heads(body, 40, 2))
    assert family.name == ("BERT" if preset == "bert" else "EuroBERT")


@pytest.mark.parametrize(
    ("words", "said", "hint"),
    [
        ({"objective": "classify", "settings": {"pooling": "max"}}, "objective.pooling=max", "objective.pooling=mean"),
        ({"objective": "classify", "settings": {"pooling": "mean+max"}}, "objective.pooling=mean+max", "mean"),
        (
            {"objective": "classify", "settings": {"head_hidden_layer": "linear"}},
            "objective.head_hidden_layer=linear",
            "objective.head_hidden_layer=dense",
        ),
        (
            {"objective": "classify", "architecture": "causal", "settings": {"pooling": "mean"}},
            "objective.pooling=mean",
            "objective.pooling=last",
        ),
        ({"objective": "classify", **BERT_LIKE}, "objective.pooling=mean", "objective.pooling=pooler"),
        ({"objective": "classify", **MODERN}, "no class of ModernBERT predicts classes", "--to onnx"),
        ({"objective": "replaced-token"}, "replaced tokens", "--to onnx"),
        ({"objective": "next-sentence"}, "pairs of texts", "--to onnx"),
        ({"objective": "causal-lm", "bias": True}, "model.head_bias=true", "model.head_bias=false"),
        (
            {"objective": "masked-lm", **BERT_LIKE, "mlm_head_transform": False},
            "model.mlm_head_transform=false",
            "mlm_head_transform=true",
        ),
        (
            {"objective": "masked-lm", **BERT_LIKE, "tie_embeddings": False},
            "model.tie_embeddings=false",
            "model.tie_embeddings=true",
        ),
        ({"objective": "next-sentence", **BERT_LIKE, "pooler": False}, "model.pooler=false", "model.pooler=true"),
    ],
)
def test_an_unsupported_head_is_refused_by_its_setting(words, said, hint):
    bundle = make_bundle(**words)
    with pytest.raises(RunError) as caught:
        find_class(ALL, bundle.config, bundle.heads)
    assert said in str(caught.value)
    assert hint in caught.value.hint
