from pathlib import Path

import numpy as np
import pytest

from headstart.errors import ConfigError, DataError
from headstart.workflows.finetune import finetune
from headstart.workflows.plot import plot_attention, plot_attention_heads, plot_masks, plot_positions
from headstart.workflows.pretrain import pretrain
from tests.helpers.datasets import QUICK, write_corpus, write_labelled


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A bidirectional base, a causal one with learned positions, and a classifier, three steps each."""
    folder = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HEADSTART_CACHE", str(folder / "cache"))
        corpus = str(write_corpus(folder / "corpus.txt"))
        for objective, positions in (("masked-lm", "rotary"), ("causal-lm", "learned")):
            settings = {
                **QUICK,
                "objective": {"name": objective},
                "model": {**QUICK["model"], "position_embedding": positions},
            }
            settings["training"] = {**QUICK["training"], "max_steps": 3}
            pretrain([corpus], folder / objective, settings=settings)
        data = str(write_labelled(folder / "labelled.tsv"))
        short = {"training": {"max_steps": 3, "max_length": 32}}
        finetune(str(folder / "masked-lm"), data, folder / "classifier", settings=short)
    return folder


@pytest.mark.parametrize("run", ["masked-lm", "causal-lm", "classifier"])
def test_attention_of_every_run_is_drawn_in_all_three_kinds(runs, tmp_path, run):
    maps, files = plot_attention(str(runs / run), "a moving film", tmp_path / "pictures")
    assert [path.name for path in files] == ["attention.png", "attention.svg", "attention.html"]
    assert all(path.stat().st_size > 1000 for path in files)
    assert "".join(maps.queries[1:-1]).replace("▁", " ").strip() == "a moving film"
    np.testing.assert_allclose(maps.weights.sum(axis=-1), 1, atol=1e-5)
    assert maps.seen.all() == (run != "causal-lm")


def test_a_name_with_an_ending_gives_that_file_alone(runs, tmp_path):
    _, files = plot_attention(str(runs / "masked-lm"), "a film", tmp_path / "one.svg", layer=1, attention_head=2)
    assert files == [tmp_path / "one.svg"]
    assert list(tmp_path.iterdir()) == files
    assert "attention head 2" in files[0].read_text("utf-8")


@pytest.mark.parametrize(("text", "problem"), [("film " * 100, "64 at most"), ("  ", "empty")])
def test_a_text_that_cannot_be_drawn_is_a_sentence_and_a_hint(runs, tmp_path, text, problem):
    with pytest.raises(DataError) as caught:
        plot_attention(str(runs / "masked-lm"), text, tmp_path / "p.png")
    assert problem in str(caught.value)
    assert caught.value.hint
    assert not list(tmp_path.iterdir())


def test_an_ending_that_is_no_plot_is_refused_with_those_that_are(runs, tmp_path):
    with pytest.raises(ConfigError) as caught:
        plot_masks(tmp_path / "masks.pdf")
    assert ".svg" in caught.value.hint


@pytest.mark.parametrize("kind", ["png", "svg", "html"])
@pytest.mark.slow
def test_a_plot_is_the_same_bytes_each_time(tmp_path, kind):
    for name in ("one", "two"):
        plot_masks(tmp_path / f"{name}.{kind}", length=6)
    assert (tmp_path / f"one.{kind}").read_bytes() == (tmp_path / f"two.{kind}").read_bytes()


def test_positions_of_a_run_stand_beside_sinusoids(runs, tmp_path):
    maps, _ = plot_positions(str(runs / "causal-lm"), tmp_path / "p.png")
    assert [(each.kind, each.vectors.shape) for each in maps] == [("learned", (64, 16)), ("sinusoidal", (64, 16))]
    assert [each.kind for each in plot_positions(None, None, width=8, length=9)[0]] == ["sinusoidal"]
    with pytest.raises(ConfigError):
        plot_positions(str(runs / "causal-lm"), None, width=8)


@pytest.mark.parametrize(
    ("run", "file"), [("masked-lm", "corpus.txt"), ("causal-lm", "corpus.txt"), ("classifier", "labelled.tsv")]
)
@pytest.mark.slow
def test_every_run_s_attention_heads_are_studied_with_its_own_loss(runs, tmp_path, run, file):
    study, files = plot_attention_heads(str(runs / run), str(runs / file), tmp_path, max_texts=24)
    assert study.texts == 24
    assert study.ablation.shape == (1, 2)
    assert (study.ablation != 0).all()
    assert [path.name for path in files] == ["heads.png", "heads.svg", "heads.html"]
    assert "attention head 2" in Path(files[2]).read_text("utf-8")
    again, _ = plot_attention_heads(str(runs / run), str(runs / file), None, max_texts=24)
    np.testing.assert_array_equal(study.ablation, again.ablation)


def test_a_file_without_text_is_a_sentence_and_a_hint(runs, tmp_path):
    (tmp_path / "blank.txt").write_text("\n  \n")
    with pytest.raises(DataError) as caught:
        plot_attention_heads(str(runs / "masked-lm"), str(tmp_path / "blank.txt"), None)
    assert caught.value.hint
