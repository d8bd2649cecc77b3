"""What a finished run says of itself: its baseline, its warnings, and the baseline as its model."""

import json
import random

import numpy as np
import pytest
from typer.testing import CliRunner

from headstart.baselines.tfidf import TfidfModel, train_tfidf
from headstart.cli.app import app
from headstart.errors import RunError
from headstart.inference.classify import predict
from headstart.results import Score
from headstart.workflows.convert import export
from headstart.workflows.evaluate import evaluate
from headstart.workflows.finetune import (
    FinetuneJob,
    explain_difference,
    finetune,
    is_better,
    sample_per_class,
    warn_of_baseline,
)
from headstart.workflows.run_dir import RunDir
from tests.helpers.datasets import QUICK, write_labelled


def score(correct, loss=0.5, count=100):
    return Score(correct / count, 0.0, loss, 0.0, count, correct, 0, correct / count, count, {})


def settings(**training):
    return {**QUICK, "training": {**QUICK["training"], "max_length": 32, **training}}


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    return write_labelled(tmp_path_factory.mktemp("data") / "table.tsv", 400)


@pytest.fixture(scope="module")
def weak(table, tmp_path_factory):
    """A run of one step at no speed: TF-IDF wins."""
    out = tmp_path_factory.mktemp("runs") / "weak"
    over = {**settings(max_steps=1, keep_winner=True), "optimizer": {"learning_rate": 1e-9}}
    return finetune("scratch", str(table), out, settings=over)


def test_accuracy_decides_and_loss_breaks_ties():
    assert is_better(score(80), score(79, loss=0.1))
    assert not is_better(score(79, loss=0.1), score(80))
    assert is_better(score(80, loss=0.4), score(80, loss=0.5))
    assert not is_better(score(80), score(80))


def test_the_warning_names_both_scores_and_what_to_try():
    assert warn_of_baseline(score(81), score(80), "en-tiny", "data.tsv") == []
    (words,) = warn_of_baseline(score(70), score(80), "en-tiny", "data.tsv")
    for part in ("0.7000 against 0.8000", "100 validation texts", "headstart tune en-tiny data.tsv", "--keep-winner"):
        assert part in words


def test_few_texts_show_no_clear_difference():
    assert "inside" in explain_difference(score(8, count=10), score(7, count=10))
    words = explain_difference(score(900, count=1000), score(700, count=1000))
    assert "outside the network's 95 % interval [0.880, 0.917]: a clear difference on 1,000 texts" in words


def test_a_good_run_carries_no_warning(table, tmp_path):
    over = {**settings(max_epochs=25), "optimizer": {"learning_rate": 5e-3}}
    found = finetune("scratch", str(table), tmp_path / "run", settings=over)
    assert found.score.accuracy >= 0.9
    assert not [words for words in found.warnings if "under-trained" in words]
    assert found.baseline.count == found.score.count
    assert found.best_epoch > 0


def test_an_untrained_run_says_so(weak):
    assert any("under-trained" in words for words in weak.warnings)
    assert "not better than TF-IDF" in weak.warnings[0]  # first what matters most


def test_random_weights_are_never_kept(weak):
    assert weak.best_epoch > 0
    assert weak.curve[0]["step"] == 0  # they are evaluated, and that is all


def test_the_winner_answers(weak, table):
    assert weak.classifier == "tfidf"
    assert weak.score == weak.baseline
    assert FinetuneJob.read_result(RunDir(weak.path)).classifier == "tfidf"
    again = evaluate(str(weak.path), str(table))
    assert again.accuracy > 0.9
    labels = [label for label, _, _ in predict(str(weak.path), str(table))]
    assert {"good", "bad"} == set(labels)


def test_a_network_that_wins_stays(table, tmp_path):
    over = {**settings(max_epochs=25, keep_winner=True), "optimizer": {"learning_rate": 5e-3}}
    found = finetune("scratch", str(table), tmp_path / "run", settings=over)
    if is_better(found.score, found.baseline):
        assert found.classifier == "network"
    assert (found.classifier == "tfidf") == (tmp_path / "run" / "tfidf.json").exists()


def test_a_baseline_is_not_exported(weak, tmp_path):
    with pytest.raises(RunError, match="TF-IDF") as error:
        export(str(weak.path), "transformers", tmp_path / "out")
    assert "--keep-winner" in error.value.hint


def test_the_command_says_it_first_and_the_json_carries_it(table, tmp_path):
    words = ["finetune", "scratch", str(table), "--steps", "1", "--quiet"]
    sets = [
        f"{section}.{key}={value}"
        for section, content in {**settings(), "optimizer": {"learning_rate": 1e-9}}.items()
        for key, value in content.items()
    ]
    flags = [word for each in sets for word in ("--set", each)]
    shown = CliRunner().invoke(app, [*words, *flags, "--out", str(tmp_path / "one")])
    assert shown.exit_code == 0, shown.output
    assert shown.stdout.startswith("warning: the network is not better")
    assert "TF-IDF + linear SVM on the same texts: accuracy" in shown.stdout
    done = CliRunner().invoke(app, [*words, *flags, "--json", "--out", str(tmp_path / "two")])
    content = json.loads(done.stdout)
    assert content["warnings"]
    assert content["baseline"]["count"] == content["score"]["count"]
    assert "Warnings" in (tmp_path / "one" / "report.html").read_text()


def test_a_saved_baseline_answers_to_the_last_digit(tmp_path):
    rng = random.Random(0)
    texts = [" ".join(rng.choices(["bon", "nul", "été", "livre", "a b"], k=6)) for _ in range(80)]
    labels = [number % 3 for number in range(80)]
    model = train_tfidf(texts, labels, seed=0, classes=4)
    model.save(tmp_path)
    again = TfidfModel.load(tmp_path)
    new = [*texts, "", "jamais vu", "LIVRE été"]
    np.testing.assert_array_equal(again.predict_probabilities(new), model.predict_probabilities(new))


def test_a_damaged_baseline_is_told(tmp_path):
    with pytest.raises(RunError, match="cannot be read"):
        TfidfModel.load(tmp_path)


def test_the_check_reads_a_few_texts_of_every_class():
    targets = np.array([0] * 500 + [1] * 3 + [2] * 40)
    chosen = sample_per_class(targets)
    assert np.bincount(targets[chosen]).tolist() == [20, 3, 20]
    many = np.repeat(np.arange(1000), 25)
    assert len(sample_per_class(many)) <= 2000
