"""A base warms up the part of a translator that fits it, and every weight is accounted for."""

import pytest
import torch

import headstart as hs
from headstart.config import ModelConfig, merge
from headstart.errors import ConfigError, RunError
from headstart.inference.loaded_model import load_model
from headstart.models.model import build_model
from headstart.objectives import make_objective
from headstart.workflows.finetune_seq2seq import PairFacts, translator_config, warm_start, warm_start_defaults
from tests.helpers.datasets import QUICK, write_corpus
from tests.helpers.parallel_datasets import TASKS, write_aligned

pytestmark = pytest.mark.slow  # five bases are trained first

BASES = {
    "encoder": {"objective": {"name": "masked-lm"}},
    "causal": {"objective": {"name": "causal-lm"}, "model": {"num_layers": 2, "norm_first": False}},
    "bert": {
        "objective": {"name": "masked-lm+next-sentence", "nsp_unit": "document"},
        "model": {
            "pooler": True,
            "token_type_embeddings": True,
            "embedding_norm": True,
            "bias": True,
            "position_embedding": "learned",
        },
    },
    "replaced": {"objective": {"name": "replaced-token"}},
    "cnn": {"objective": {"name": "masked-lm"}, "model": {"architecture": "cnn"}},
}
SHORT = {"training": {"max_steps": 2, "max_length": 32, "tokens_per_batch": 512}}


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """Bases of every kind, and pairs to translate."""
    folder = tmp_path_factory.mktemp("world")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HEADSTART_CACHE", str(folder / "cache"))
        corpus = write_corpus(folder / "corpus.txt", 200)
        for name, changes in BASES.items():
            settings = merge(merge(QUICK, {"training": {"max_steps": 2}}), changes)
            hs.pretrain([str(corpus)], folder / name, settings=settings)
    write_aligned(folder / "pairs", TASKS["copy"], count=60)
    return folder


def warmed(world, name, settings=None, preset=None):
    trained = load_model(str(world / name))
    config = translator_config(trained, preset, merge(SHORT, settings or {}))
    objective = make_objective(config.objective)
    size = trained.tokenizer.size
    torch.manual_seed(0)
    model = build_model(config.model, size, objective.heads(config.model, size, 0))
    fresh = {key: weight.clone() for key, weight in model.state_dict().items()}
    return trained, config, model, fresh, warm_start(trained, model)


@pytest.mark.parametrize(("name", "stack"), [("encoder", "encoder"), ("causal", "decoder"), ("bert", "encoder"), ("replaced", "encoder")])  # fmt: skip
@pytest.mark.slow
def test_a_base_s_layers_stand_in_the_stack_that_reads_as_it_did(world, name, stack):
    trained, config, model, fresh, moved = warmed(world, name)
    new = model.state_dict()
    assert config.model.architecture == "encoder-decoder"
    for key, weight in trained.weights.items():
        if key.startswith(("backbone.stack.blocks.", "backbone.stack.final_norm.")):
            assert torch.equal(new[key.replace("backbone.stack.", f"backbone.{stack}.", 1)], weight)
        if key.startswith("backbone.embedding."):
            assert torch.equal(new[key], weight)
    for key in moved.initialized:
        assert torch.equal(new[key], fresh[key])
    assert [key for key in moved.initialized if ".cross_attention." in key]
    assert set(moved.reused) | set(moved.initialized) == set(new)
    assert not set(moved.reused) & set(moved.initialized)
    counted = sum(moved.reused.values()) + sum(moved.dropped.values())
    assert counted == sum(weight.numel() for weight in trained.weights.values())
    assert all(key.startswith(("heads.", "backbone.pooler.")) for key in moved.dropped)


@pytest.mark.slow
def test_the_stack_that_starts_fresh_may_be_of_another_depth(world):
    _, config, model, _, _ = warmed(world, "encoder", {"model": {"num_decoder_layers": 3}})
    assert (config.model.num_layers, config.model.num_decoder_layers) == (1, 3)
    assert len(model.backbone.decoder.blocks) == 3
    _, config, model, _, _ = warmed(world, "causal", {"model": {"num_layers": 3}})
    assert (len(model.backbone.encoder.blocks), len(model.backbone.decoder.blocks)) == (3, 2)


@pytest.mark.parametrize(
    ("name", "settings", "preset", "problem"),
    [
        ("encoder", {"model": {"hidden_size": 32}}, None, "model.hidden_size"),
        ("encoder", {"model": {"num_layers": 2}}, None, "model.num_layers"),
        ("encoder", {"model": {"norm": "layer"}}, None, "model.norm"),
        ("encoder", {}, "translate-tiny", "model"),
        ("causal", {"model": {"num_decoder_layers": 3}}, None, "model.num_decoder_layers"),
        ("cnn", {}, None, "cannot initialize a translator"),
        ("encoder", {"tokenizer": {"shared_vocab": False}}, None, "one vocabulary"),
    ],
)
def test_what_does_not_fit_a_base_is_a_sentence_and_a_hint(world, name, settings, preset, problem):
    with pytest.raises(ConfigError, match=problem) as caught:
        warmed(world, name, settings, preset)
    assert caught.value.hint


def test_another_tokenizer_than_the_base_s_is_refused(world):
    with pytest.raises(RunError, match="another tokenizer"):
        warmed(world, "encoder", {"tokenizer": {"type": "characters"}})


@pytest.mark.slow
def test_a_translator_is_trained_from_a_base_and_goes_on_from_a_translator(world, tmp_path):
    pairs = str(world / "pairs")
    first = hs.finetune(str(world / "encoder"), pairs, tmp_path / "first", pair="src-trg", settings=SHORT)
    assert sum(first.transfer.reused.values()) > 0
    assert load_model(str(tmp_path / "first")).tokenizer.fingerprint == load_model(str(world / "encoder")).tokenizer.fingerprint  # fmt: skip
    again = hs.finetune(str(tmp_path / "first"), pairs, tmp_path / "again", pair="src-trg", settings=SHORT)
    assert not again.transfer.initialized
    assert not again.transfer.dropped


@pytest.mark.parametrize("pairs", [20, 500, 30_000])
def test_settings_for_pretrained_layers_follow_the_pairs(pairs):
    data, wide = PairFacts(pairs, 40.0), ModelConfig(hidden_size=384)
    found = warm_start_defaults(data, ModelConfig(hidden_size=256))
    training = found["training"]
    assert training["max_epochs"] * pairs * 40 / training["tokens_per_batch"] >= 200  # optimizer steps
    assert found["optimizer"]["learning_rate"] == 1e-3  # where the preset has 5e-3 for random weights
    assert warm_start_defaults(data, wide)["optimizer"]["learning_rate"] < 5e-4


def test_settings_of_the_user_win_over_those_that_follow_the_pairs(world):
    trained = load_model(str(world / "encoder"))
    facts = PairFacts(60, 20.0)
    fitted = translator_config(trained, None, {}, facts)
    narrow = {"model": {"num_layers": 1, "hidden_size": 16, "num_heads": 2, "intermediate_size": 24}}
    named = translator_config(trained, None, merge(narrow, {"optimizer": {"learning_rate": 0.02}}), facts)
    assert fitted.training.tokens_per_batch < 8192
    assert named.optimizer.learning_rate == 0.02  # the user's own value wins
