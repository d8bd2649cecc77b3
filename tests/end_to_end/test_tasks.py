"""Every task from a table to a prediction, through the commands."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from headstart.cli.app import app
from headstart.errors import HeadstartError
from headstart.inference.loaded_model import load_model
from headstart.workflows.convert import export
from headstart.workflows.evaluate import evaluate
from headstart.workflows.finetune import finetune

WORDS = {"red": "colour", "blue": "colour", "dog": "animal", "cat": "animal"}
SETTINGS = {"training": {"max_steps": 4, "max_length": 24}}
RNG = np.random.default_rng(0)


def sentence(count=4):
    return " ".join(RNG.choice([*WORDS, "the", "a", "is"], count))


def write(path, header, rows):
    path.write_text("\n".join("\t".join(row) for row in [header, *rows]) + "\n")
    return str(path)


def several_labels(folder):
    rows = []
    for _ in range(60):
        text = sentence()
        rows.append((text, "|".join(sorted({WORDS[word] for word in text.split() if word in WORDS}))))
    return write(folder / "data.tsv", ("text", "labels"), rows), {"label_column": "labels"}


def numbers(folder):
    rows = [(text := sentence(), f"{100 + sum(word == 'red' for word in text.split()) + 0.5}") for _ in range(60)]
    return write(folder / "data.tsv", ("text", "score"), rows), {"label_column": "score"}


def stars(folder):
    rows = [(text := sentence(), str(sum(word in WORDS for word in text.split()))) for _ in range(60)]
    return write(folder / "data.tsv", ("text", "label"), rows), {"task": "ordinal"}


def pairs(folder):
    rows = [((first := sentence()), *((first, "same") if at % 2 else (sentence(), "other"))) for at in range(60)]
    return write(folder / "data.tsv", ("a", "b", "label"), rows), {"text_column": "a,b"}


def tags(folder):
    lines = []
    for _ in range(60):
        lines += [f"{word}\t{'B-' + WORDS[word] if word in WORDS else 'O'}" for word in sentence(6).split()] + [""]
    (folder / "data.conll").write_text("\n".join(lines) + "\n")
    return str(folder / "data.conll"), {}


TASKS = {
    "multi-label": (several_labels, "micro_f1"),
    "regression": (numbers, "spearman"),
    "ordinal": (stars, "quadratic_kappa"),
    "single-label": (pairs, "accuracy"),
    "token": (tags, "span_f1"),
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    found = {}
    for task, (make, _) in TASKS.items():
        folder = tmp_path_factory.mktemp(task)
        data, columns = make(folder)
        notes = []
        result = finetune(
            "scratch", data, folder / "run", settings={**SETTINGS, "data": columns}, on_event=notes.append
        )
        found[task] = folder, data, result, [note.text for note in notes if hasattr(note, "text")]
    return found


@pytest.mark.slow
@pytest.mark.parametrize("task", TASKS)
def test_a_run_of_any_task_is_scored_beside_a_baseline(runs, task):
    folder, data, result, _ = runs[task]
    metric = TASKS[task][1]
    score = evaluate(str(folder / "run"), data)
    assert score.count >= 60
    assert isinstance(getattr(score, metric), float)
    assert result.baseline is not None
    assert isinstance(getattr(result.baseline, metric), float)
    assert result.comparison
    assert load_model(str(folder / "run")).task == task


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "words"),
    [("multi-label", "task: multi-label, 2 labels"), ("regression", "task: regression"), ("token", "task: token")],
)
def test_the_task_that_labels_show_is_said_aloud(runs, task, words):
    assert sum(words in note for note in runs[task][3]) == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "line", "check"),
    [
        ("multi-label", "the red dog", lambda label: set(label.split("|")) <= {"animal", "colour", ""}),
        ("regression", "the red dog", lambda label: 90 < float(label) < 120),
        ("ordinal", "the red dog", lambda label: label in "01234"),
        ("single-label", "the red dog\ta cat", lambda label: label in ("same", "other")),
        ("token", "the red dog", lambda label: len(label.split()) == 3),
    ],
)
def test_predict_answers_each_line_as_the_task_writes_labels(runs, task, line, check):
    run = str(runs[task][0] / "run")
    found = CliRunner().invoke(app, ["predict", run, "-", "--json"], input=f"{line}\n{line}\n")
    assert found.exit_code == 0, found.output
    first, second = (json.loads(each) for each in found.stdout.splitlines())
    assert first["label"] == second["label"]
    assert first["probability"] == pytest.approx(second["probability"], abs=1e-6)
    assert check(first["label"])
    assert (first["probability"] is None) == (task == "regression")


@pytest.mark.slow
@pytest.mark.parametrize("task", TASKS)
def test_evaluate_prints_every_task_in_words_and_as_json(runs, task):
    folder, data, *_ = runs[task]
    words = CliRunner().invoke(app, ["evaluate", str(folder / "run"), data])
    assert words.exit_code == 0, words.output
    found = CliRunner().invoke(app, ["evaluate", str(folder / "run"), data, "--json"])
    content = json.loads(found.stdout)
    assert content[TASKS[task][1]] is not None
    assert {"accuracy", "count", "loss", "macro_f1"} <= content.keys()
    assert content.get("task", "single-label") == task


@pytest.mark.slow
def test_padding_and_batches_change_no_prediction_of_tokens(runs):
    run = str(runs["token"][0] / "run")
    lines = "a\nthe red dog is a cat the blue dog\n"
    together = CliRunner().invoke(app, ["predict", run, "-"], input=lines).stdout.splitlines()
    alone = [
        CliRunner().invoke(app, ["predict", run, "-"], input=line + "\n").stdout.strip()
        for line in lines.split("\n")[:2]
    ]
    assert together == alone


@pytest.mark.slow
def test_every_token_of_a_text_beyond_the_longest_window_has_a_tag(runs):
    run = str(runs["token"][0] / "run")
    found = CliRunner().invoke(app, ["predict", run, "-", "--json"], input="red the " * 300 + "\n")
    assert len(json.loads(found.stdout)["label"].split()) == 600


@pytest.mark.slow
@pytest.mark.parametrize("task", TASKS)
def test_the_result_of_a_finished_run_is_read_back(runs, task):
    from headstart.workflows.finetune import Finetuned, FinetuneJob
    from headstart.workflows.run_dir import RunDir

    folder, _, result, _ = runs[task]
    with RunDir.open(folder / "run") as run_dir:
        found = FinetuneJob.read_result(run_dir)
    assert isinstance(found, Finetuned)
    assert type(found.score) is type(result.score)
    assert getattr(found.score, TASKS[task][1]) == getattr(result.score, TASKS[task][1])
    assert getattr(found.score, "intervals", None) == getattr(result.score, "intervals", None)


@pytest.mark.slow
@pytest.mark.parametrize(("task", "to"), [("token", "transformers"), ("ordinal", "onnx"), ("multi-label", "onnx")])
def test_an_export_that_would_change_answers_is_refused_in_one_sentence(runs, task, to, tmp_path):
    with pytest.raises(HeadstartError, match=f"trained for {task}, which cannot be exported to {to}"):
        export(str(runs[task][0] / "run"), to, tmp_path / "out")


@pytest.mark.slow
@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("command", ["compare", "tune"])
def test_commands_that_work_on_classes_name_the_task_they_refuse(runs, task, command, tmp_path):
    _, data, *_ = runs[task]
    columns = TASKS[task][0](tmp_path)[1]
    flags = [word for name, value in columns.items() for word in (f"--{name.replace('_', '-')}", value)]
    arguments = (
        ["compare", data, "--seeds", "1"] if command == "compare" else ["tune", "scratch", data, "--trials", "1"]
    )
    found = CliRunner().invoke(app, [*arguments, *flags, "-o", str(tmp_path / "out")])
    assert isinstance(found.exception, HeadstartError)
    assert "works on one text with one class" in str(found.exception)


@pytest.mark.slow
def test_a_run_on_pairs_refuses_single_texts(runs, tmp_path):
    data = write(tmp_path / "one.tsv", ("text", "label"), [("a", "same"), ("b", "other")])
    with pytest.raises(HeadstartError, match="reads pairs of texts"):
        evaluate(str(runs["single-label"][0] / "run"), data, settings={"data": {"text_column": "text"}})
