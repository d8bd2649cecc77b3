"""Several classifiers as one: evaluated, used and compared."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

import headstart as hs
from headstart.cli.app import app
from headstart.config import merge
from headstart.errors import ConfigError, RunError
from headstart.inference.classify import run_names
from headstart.workflows.compare import compare
from tests.helpers.datasets import QUICK, write_corpus, write_labelled

pytestmark = pytest.mark.slow  # whole trainings

TUNING = {"training": {"max_length": 32, "tokens_per_batch": 256, "batch_size": 8, "max_epochs": 1}}


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """Three classifiers of one table, two of them from one base, the third from scratch with a tokenizer of its own."""
    folder = tmp_path_factory.mktemp("ensemble")
    table = write_labelled(folder / "table.tsv", 60)
    corpus = write_corpus(folder / "corpus.txt", 100)
    base = merge(QUICK, {"training": {"max_steps": 10}, "objective": {"name": "masked-lm"}})
    hs.pretrain([str(corpus)], folder / "base", settings=base)
    for name, seed in (("a", 1), ("b", 2)):
        hs.finetune(
            str(folder / "base"), str(table), folder / name, settings=merge(TUNING, {"training": {"seed": seed}})
        )
    other = merge(merge(QUICK, {"tokenizer": {"type": "characters"}}), TUNING)
    hs.finetune("scratch", str(table), folder / "c", settings=other)
    return folder


def call(*words):
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code == 0, (result.output, result.exception)
    return result.stdout


def test_an_ensemble_averages_probabilities_whatever_the_tokenizers(world):
    table, names = str(world / "table.tsv"), [str(world / name) for name in "abc"]
    alone = [list(hs.predict(name, table)) for name in names]
    together = list(hs.predict(names, table))
    good = [[p if label == "good" else 1 - p for label, p, _ in rows] for rows in (*alone, together)]
    assert np.allclose(np.mean(good[:3], axis=0), good[3], atol=1e-6)
    assert [text for _, _, text in together] == [text for _, _, text in alone[0]]


def test_one_run_and_its_ensemble_of_one_are_the_same(world):
    table, run = str(world / "table.tsv"), str(world / "a")
    assert hs.evaluate(run, table) == hs.evaluate([run], table)


def test_the_command_marks_runs_with_commas_between_and_keeps_its_contract(world):
    runs = f"{world / 'a'},{world / 'b'}"
    found = json.loads(call("evaluate", runs, world / "table.tsv", "--json"))
    alone = json.loads(call("evaluate", world / "a", world / "table.tsv", "--json"))
    assert found.keys() == alone.keys()
    assert found["count"] == 60
    assert found["leaked"] == alone["leaked"] > 0
    lines = call("predict", runs, world / "table.tsv").splitlines()
    assert len(lines) == 60
    assert len(lines[0].split("\t")) == 3


def test_runs_that_do_not_fit_together_are_refused(world, tmp_path):
    other = tmp_path / "other.tsv"
    other.write_text((world / "table.tsv").read_text().replace("\tgood", "\tfine"))
    hs.finetune(str(world / "base"), str(other), tmp_path / "d", settings=merge(TUNING, {"training": {"max_steps": 1}}))
    table = str(world / "table.tsv")
    with pytest.raises(RunError, match=r"has the classes bad, fine, and .* bad, good") as caught:
        hs.evaluate([str(world / "a"), str(tmp_path / "d")], table)
    assert "same labels" in caught.value.hint
    with pytest.raises(RunError, match="is not a classifier, and an ensemble consists of classifiers"):
        hs.evaluate(f"{world / 'a'},{world / 'base'}", table)
    with pytest.raises(RunError, match="is given twice"):
        hs.evaluate(f"{world / 'a'},{world / 'a'}", table)


@pytest.mark.parametrize("typed", ["", "a,", ",a", "a,,b"])
def test_a_comma_too_many_is_told(typed):
    if typed:
        with pytest.raises(RunError, match="names no run"):
            run_names(typed)
    else:
        with pytest.raises(RunError):
            run_names([])


def test_a_folder_whose_name_has_a_comma_is_one_run(world, tmp_path, monkeypatch):
    (tmp_path / "a,b").symlink_to(world / "a")
    assert run_names(str(tmp_path / "a,b")) == [str(tmp_path / "a,b")]


def compare_arms(world, out, **options):
    settings = {"training": {**TUNING["training"], "batch_size": 16}}
    return compare(
        str(world / "table.tsv"), [str(world / "base")], out, seeds=2, settings=settings,
        arms=["classical", "fine-tuned", "ensemble"], **options,
    )  # fmt: skip


@pytest.mark.parametrize("folds", [None, 3])
def test_a_comparison_can_hold_the_ensemble_of_its_seeds(world, tmp_path, folds):
    found = compare_arms(world, tmp_path / "c", folds=folds)
    arm = found.arm("base ensemble")
    assert (arm.kind, len(arm.results), arm.control) == ("ensemble", 1, "base fine-tuned")
    assert {(test.arm, test.against) for test in found.tests} >= {
        ("base ensemble", "base fine-tuned"),
        ("base ensemble", "classical"),
    }
    assert any("its interval is for texts" in note for note in found.notes)
    assert "base ensemble" in (tmp_path / "c" / "report.html").read_text()
    fits = [
        [np.array(json.loads(path.read_text())["probabilities"]) for path in sorted((tmp_path / "c/arms").glob(pattern))]
        for pattern in ("base-fine-tuned-*-0.json", "base-fine-tuned-*-1.json")
    ]  # fmt: skip
    if folds is None:
        mean = (fits[0][0] + fits[1][0]) / 2
        assert arm.results[0].predictions == mean.argmax(axis=1).tolist()


def test_an_ensemble_that_would_learn_from_more_labels_is_refused(world, tmp_path):
    with pytest.raises(ConfigError, match="each seed draws its own labels"):
        compare_arms(world, tmp_path / "c", labels=[20])
    with pytest.raises(ConfigError, match="of the seeds of a fine-tuned base"):
        compare(str(world / "table.tsv"), [], tmp_path / "c", seeds=2, arms=["classical", "ensemble"])


def test_a_comparison_over_folds_scores_every_text_once_and_goes_on_where_it_died(world, tmp_path):
    done = []

    def die(event):
        done.append(event)
        if len([e for e in done if type(e).__name__ == "Stage" and ", seed" in e.name]) == 5:
            raise InterruptedError

    options = {"settings": {"training": {**TUNING["training"], "batch_size": 16}}, "arms": ["classical", "fine-tuned"]}
    data, bases = str(world / "table.tsv"), [str(world / "base")]
    with pytest.raises(InterruptedError):
        compare(data, bases, tmp_path / "died", seeds=2, folds=3, on_event=die, **options)
    times = {path: path.stat().st_mtime_ns for path in (tmp_path / "died" / "arms").iterdir()}
    assert len(times) == 4
    found = hs.resume(tmp_path / "died")
    assert {path: path.stat().st_mtime_ns for path in times} == times
    whole = compare(data, bases, tmp_path / "whole", seeds=2, folds=3, **options)
    assert [arm.accuracy for arm in found.arms] == [arm.accuracy for arm in whole.arms]
    assert (whole.scored_split, whole.scored_count) == ("3 folds", 60)
    assert whole.arm("base fine-tuned").labels == 40
    for arm in whole.arms:
        for result in arm.results:
            right = np.array(result.predictions) == np.array(whole.truth)
            assert result.accuracy == pytest.approx(right.mean())
            assert len(result.predictions) == 60
    assert any("held it out" in note for note in whole.notes)
    assert whole.arm("base fine-tuned").results[0].curve[-1].epoch == 1


def test_folds_and_label_budgets_go_together(world, tmp_path):
    found = compare(
        str(world / "table.tsv"), [], tmp_path / "c", seeds=2, folds=2, labels=[10], arms=["classical"]
    )  # fmt: skip
    assert [len(arm.results) for arm in found.arms] == [2]
    assert found.label_budgets == [10]
