"""Translators: trained, evaluated, set against each other and drawn; what cannot be is answered with a hint."""

import json
import shutil

import numpy as np
import pytest

import headstart as hs
from headstart.config import merge
from headstart.data.tokenizer_training import open_tokenizer
from headstart.errors import ConfigError, DataError, RunError
from headstart.inference.loaded_model import load_model
from headstart.training.callbacks import Note
from headstart.workflows.evaluate import TranslationComparison
from headstart.workflows.package import package
from headstart.workflows.plot import plot_attention
from tests.helpers.datasets import BODY, write_labelled
from tests.helpers.parallel_datasets import TASKS, write_aligned

QUICK = {
    "model": {**BODY, "dropout": 0.1},
    "tokenizer": {"type": "characters", "vocab_size": 60},
    "training": {"max_length": 48, "tokens_per_batch": 1024, "max_steps": 3},
    "lr_schedule": {"warmup_steps": 10},
}
PAIR = "src-trg"


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """Pairs, a translator with one vocabulary, and one with two."""
    folder = tmp_path_factory.mktemp("world")
    write_aligned(folder / "pairs", TASKS["number-words"], count=200)
    for name, shared in (("one", True), ("two", False)):
        settings = merge(QUICK, {"tokenizer": {"shared_vocab": shared}})
        hs.finetune("scratch", str(folder / "pairs"), folder / name, pair=PAIR, settings=settings)
    return folder


@pytest.mark.parametrize("name", ["one", "two"])
def test_a_run_holds_its_pair_its_vocabularies_and_its_marks(world, name):
    content = json.loads((world / name / "run.json").read_text())
    assert content["pair"] == ["src", "trg"]
    assert content["settings"]["model"]["architecture"] == "encoder-decoder"
    assert open_tokenizer(world / name / "tokenizer.json").fingerprint == content["tokenizer_fingerprint"]
    own = world / name / "source-tokenizer.json"
    if name == "one":
        assert not own.exists()
        assert content["source_tokenizer_fingerprint"] == ""
        assert content["settings"]["model"]["source_vocab_size"] is None
    else:
        source = open_tokenizer(own)
        assert source.fingerprint == content["source_tokenizer_fingerprint"]
        assert content["settings"]["model"]["source_vocab_size"] == source.size
        assert set("0123456789") & set(source.convert_ids_to_tokens(range(source.size)))
        assert not set("0123456789") & set(
            open_tokenizer(world / name / "tokenizer.json").convert_ids_to_tokens(range(30))
        )
    result = json.loads((world / name / "result.json").read_text())
    assert set(result["curve"][0]) == {"epoch", "step", "loss", "perplexity", "accuracy", "bleu"}
    assert result["score"]["split"] == "valid"
    trained = load_model(str(world / name))
    assert trained.source_tokenizer.size == (
        content["settings"]["model"]["source_vocab_size"] or trained.tokenizer.size
    )


@pytest.mark.parametrize("name", ["one", "two"])
def test_a_translator_is_marked_on_the_test_split_by_beam_search(world, name):
    found = hs.evaluate(str(world / name), str(world / "pairs"), beam=2)
    assert (found.split, found.count, found.beam) == ("test", 20, 2)
    assert (found.leaked, found.leak_free_count) == (0, 20)
    assert found.leak_free_bleu == found.bleu
    assert found.perplexity == pytest.approx(np.exp(found.loss))
    assert set(found.signatures) >= {"bleu", "chrf", "ter"}


def test_sources_that_were_learnt_from_are_left_out_of_the_leak_free_score(world, tmp_path):
    shutil.copytree(world / "pairs", tmp_path / "pairs")
    for language in ("src", "trg"):
        file = tmp_path / "pairs" / f"test.{language}"
        seen = (tmp_path / "pairs" / f"train.{language}").read_text().splitlines()[:5]
        file.write_text("\n".join([*seen, *file.read_text().splitlines()]) + "\n")
    found = hs.evaluate(str(world / "one"), str(tmp_path / "pairs"), beam=1)
    assert (found.count, found.leaked, found.leak_free_count) == (25, 5, 20)


@pytest.mark.slow
def test_two_translators_are_set_against_each_other_on_the_same_texts(world):
    duel = hs.evaluate(str(world / "one"), str(world / "pairs"), beam=1, against=str(world / "two"))
    assert isinstance(duel, TranslationComparison)
    assert duel.score.count == duel.against.count == 20
    assert [test.measure for test in duel.tests] == ["bleu", "chrf"]
    alike = hs.evaluate(str(world / "one"), str(world / "pairs"), beam=1, against=str(world / "one"))
    assert [test.verdict for test in alike.tests] == ["no difference shown"] * 2


def test_by_loss_nothing_is_decoded_while_training(world, tmp_path):
    settings = merge(QUICK, {"objective": {"metric_for_best_model": "loss"}})
    found = hs.finetune("scratch", str(world / "pairs"), tmp_path / "run", pair=PAIR, settings=settings)
    assert set(found.curve[0]) == {"epoch", "step", "loss", "perplexity", "accuracy"}
    assert found.score.bleu >= 0


def test_pairs_that_are_too_long_are_left_out_of_train_and_told(world, tmp_path):
    events = []
    settings = merge(QUICK, {"training": {"max_length": 20}, "objective": {"metric_for_best_model": "loss"}})
    data = str(world / "pairs")
    hs.finetune("scratch", data, tmp_path / "run", pair=PAIR, settings=settings, on_event=events.append)
    notes = [event.text for event in events if isinstance(event, Note)]
    assert [note for note in notes if "over 20 tokens" in note]
    assert [note for note in notes if "tokens on both sides" in note]
    with pytest.raises(DataError, match="fits into 3 tokens"):
        hs.finetune("scratch", data, tmp_path / "no", pair=PAIR, settings=merge(QUICK, {"training": {"max_length": 3}}))


@pytest.mark.parametrize(
    ("pair", "settings", "problem"),
    [
        (None, {}, "languages"),
        ("src", {}, "pair of languages"),
        (PAIR, {"objective": {"name": "classify"}}, "translations"),
        (PAIR, {"model": {"architecture": "causal"}}, "causal"),
        (PAIR, {"model": {"source_vocab_size": 9}}, "follows from the tokenizer"),
        (PAIR, {"tokenizer": {"shared_vocab": False, "type": "."}}, "needs two"),
        (PAIR, {"objective": {"label_smoothing": 2}}, "smoothing"),
        (PAIR, {"training": {"freeze_backbone": True}}, "nothing could learn"),
        (PAIR, {"training": {"gradual_unfreezing_epochs": 1}}, "nothing could learn"),
        (PAIR, {"training": {"token_cutoff": 0.1}}, "labelled texts"),
        (PAIR, {"data": {"train_size": 10}}, "labelled texts"),
        (PAIR, {"training": {"bpe_dropout": 0.1}}, "bpe tokenizer"),
    ],
)
def test_what_cannot_be_trained_is_a_sentence_and_a_hint(world, tmp_path, pair, settings, problem):
    with pytest.raises((ConfigError, DataError, RunError), match=problem) as caught:
        hs.finetune(
            "scratch", str(world / "pairs"), tmp_path / "run", pair=pair, preset="translate-tiny",
            settings=merge(QUICK, settings),
        )  # fmt: skip
    assert caught.value.hint
    assert not (tmp_path / "run").exists()


def test_weights_of_the_last_epochs_are_averaged_and_both_sides_split_anew(world, tmp_path):
    """As in the paper, which averages its last checkpoints; resuming such runs is tested for classifiers."""
    settings = merge(
        QUICK, {"tokenizer": {"type": "bpe", "vocab_size": 300}, "objective": {"metric_for_best_model": "loss"}}
    )
    training = {"max_epochs": 3, "weight_averaging": "last_epochs", "averaging_epochs": 2, "bpe_dropout": 0.1}
    settings = merge(settings, {"training": training})
    data, found = str(world / "pairs"), []
    for name in ("first", "second"):
        run = tmp_path / name
        found.append(hs.finetune("scratch", data, run, pair=PAIR, settings=settings))
    assert found[0].curve == found[1].curve
    assert (tmp_path / "first/model.safetensors").read_bytes() == (tmp_path / "second/model.safetensors").read_bytes()


def test_translation_is_no_way_to_pretrain(tmp_path):
    (tmp_path / "corpus.txt").write_text("a text\n" * 10)
    with pytest.raises(ConfigError) as caught:
        hs.pretrain([str(tmp_path / "corpus.txt")], tmp_path / "run", settings={"objective": {"name": "translate"}})
    assert "--pair" in caught.value.hint


def test_a_tokenizer_that_was_changed_is_refused(world, tmp_path):
    shutil.copytree(world / "two", tmp_path / "run")
    shutil.copy(tmp_path / "run" / "tokenizer.json", tmp_path / "run" / "source-tokenizer.json")
    with pytest.raises(RunError, match="source-tokenizer"):
        load_model(str(tmp_path / "run"))


def test_what_is_for_translators_alone_is_refused_elsewhere(world, tmp_path):
    table = write_labelled(tmp_path / "table.tsv", 20)
    settings = {"model": BODY, "tokenizer": {"type": "characters", "vocab_size": 60}, "training": {"max_steps": 1}}
    hs.finetune("scratch", str(table), tmp_path / "run", settings=settings)
    with pytest.raises(ConfigError, match="not a translator"):
        hs.evaluate(str(tmp_path / "run"), str(table), beam=3)
    with pytest.raises(ConfigError, match="is not a translator"):
        plot_attention(str(tmp_path / "run"), "a film", None, target="ein Film")
    with pytest.raises(RunError, match="a run for"):
        hs.evaluate(str(world / "one"), str(world / "pairs"), beam=1, against=str(tmp_path / "run"))
    with pytest.raises(RunError, match="translator"):
        next(iter(hs.predict(str(world / "one"), str(table))))


@pytest.mark.parametrize(
    ("part", "queries", "keys"),
    [
        ("cross", [*"forty", "[SEP]"], ["[CLS]", *"40", "[SEP]"]),
        ("encoder", ["[CLS]", *"40", "[SEP]"], ["[CLS]", *"40", "[SEP]"]),
        ("decoder", ["[CLS]", *"forty"], ["[CLS]", *"forty"]),
    ],
)
def test_each_kind_of_a_translator_s_attention_is_drawn_with_its_tokens(world, tmp_path, part, queries, keys):
    run = str(world / "two")
    maps, files = plot_attention(run, "40", tmp_path / "pictures", target="forty", attention_type=part)
    assert (maps.queries, maps.keys, maps.is_self) == (queries, keys, part != "cross")
    np.testing.assert_allclose(maps.weights.sum(axis=-1), 1, atol=1e-5)
    assert bool(maps.seen.all()) == (part != "decoder")
    assert maps.weights[..., ~maps.seen].sum() == 0
    assert [path.name for path in files] == ["attention.png", "attention.svg", "attention.html"]
    assert f'"isSelf": {"true" if part != "cross" else "false"}' in files[2].read_text("utf-8")


def test_without_a_target_the_translator_s_own_is_drawn(world):
    maps, _ = plot_attention(str(world / "one"), "40", None)
    assert maps.keys == ["[CLS]", "4", "0", "[SEP]"]
    assert maps.queries[-1] == "[SEP]"
    with pytest.raises(ConfigError) as caught:
        plot_attention(str(world / "one"), "40", None, attention_type="crosss")
    assert "cross" in caught.value.hint


@pytest.mark.parametrize("name", ["one", "two"])
def test_a_packed_translator_is_used_by_its_name(world, tmp_path, monkeypatch, name):
    packed = package(str(world / name), "xx-digits", tmp_path)
    monkeypatch.setenv("HEADSTART_BASES", str(tmp_path))
    assert packed.measured_on == "the validation part of pairs"
    assert {"bleu", "loss"} <= set(packed.before)
    assert packed.after["loss"] == pytest.approx(packed.before["loss"], rel=0.05)
    before, after = load_model(str(world / name)), load_model("xx-digits")
    assert after.source_tokenizer.fingerprint == before.source_tokenizer.fingerprint
    lines = [each.text for each in hs.translate("xx-digits", ["17", "", "203"])]
    assert len(lines) == 3
    assert lines[1] == ""
    assert "| translates | src to trg |" in (tmp_path / "xx-digits" / "card.md").read_text("utf-8")


def test_pairs_that_are_gone_ask_for_others_to_measure_a_packed_translator_on(world, tmp_path):
    shutil.copytree(world / "one", tmp_path / "run")
    info = json.loads((tmp_path / "run" / "run.json").read_text())
    info["inputs"]["data"] = str(tmp_path / "nowhere")
    (tmp_path / "run" / "run.json").write_text(json.dumps(info))
    with pytest.raises(RunError, match="cannot be read here") as caught:
        package(str(tmp_path / "run"), "xx-gone", tmp_path / "bases")
    assert "--eval-data" in caught.value.hint
    assert not (tmp_path / "bases" / "xx-gone").exists()
    package(str(tmp_path / "run"), "xx-gone", tmp_path / "bases", eval_data=str(world / "pairs"))
