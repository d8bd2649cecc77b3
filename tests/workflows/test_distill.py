"""Students of finished runs: a base of a base, a classifier of several."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from headstart.cli.app import app
from headstart.config import merge
from headstart.data.text_io import hashes
from headstart.errors import ConfigError, RunError
from headstart.inference.loaded_model import load_model
from headstart.training.callbacks import Note
from headstart.workflows.finetune import finetune
from headstart.workflows.pretrain import pretrain
from headstart.workflows.recipe import run_recipe
from headstart.workflows.resume import resume
from tests.helpers.datasets import QUICK, write_corpus, write_labelled

pytestmark = pytest.mark.slow  # whole trainings, one after the other

MASKED = merge(
    QUICK,
    {
        "objective": {"name": "masked-lm"},
        "training": {"max_steps": 40, "save_steps": 3},
        "optimizer": {"learning_rate": 0.01},
    },
)
SMALLER = {
    "model": {**QUICK["model"], "hidden_size": 8, "intermediate_size": 16},
    "objective": {"name": "masked-lm"},
    "training": {"max_steps": 8, "max_length": 32, "tokens_per_batch": 256, "save_steps": 3, "distillation_alpha": 1.0},
}
TUNING = {"training": {"max_epochs": 2, "max_length": 32, "batch_size": 8, "save_steps": 5}}


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """A base, and two classifiers that came from it."""
    folder = tmp_path_factory.mktemp("world")
    write_corpus(folder / "corpus.txt", 200)
    write_corpus(folder / "more.txt", 80, seed=11)
    write_labelled(folder / "table.tsv", 80)
    pretrain([str(folder / "corpus.txt")], folder / "base", settings=MASKED)
    for seed in (0, 1):
        settings = merge(TUNING, {"training": {"seed": seed}, "optimizer": {"learning_rate": 0.01}})
        finetune(str(folder / "base"), str(folder / "table.tsv"), folder / f"tuned-{seed}", settings=settings)
    return folder


def interrupt_at(step):
    def listen(event):
        if getattr(event, "step", 0) >= step:
            raise InterruptedError

    return listen


def losses_of(run):
    lines = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    return [line["loss"] for line in lines if "learning_rate" in line]


def test_a_student_equal_to_its_teacher_has_no_loss(world, tmp_path):
    """It starts from the teacher's own weights, at a rate that moves nothing."""
    still = merge(
        MASKED, {"training": {"max_steps": 2, "distillation_alpha": 1.0}, "optimizer": {"learning_rate": 1e-12}}
    )
    base = str(world / "base")
    pretrain([str(world / "more.txt")], tmp_path / "student", base=base, teacher=base, settings=still)
    assert max(losses_of(tmp_path / "student")) < 1e-6


def test_a_smaller_base_learns_from_a_larger_one(world, tmp_path):
    run = tmp_path / "student"
    corpus = str(world / "more.txt")
    longer = merge(SMALLER, {"training": {"max_steps": 60}, "optimizer": {"learning_rate": 0.01}})
    pretrain([corpus], run, teacher=str(world / "base"), settings=longer)
    found = losses_of(run)
    assert found[-1] < 0.7 * found[0]
    student, teacher = load_model(str(run)), load_model(str(world / "base"))
    assert student.tokenizer.fingerprint == teacher.tokenizer.fingerprint
    assert student.info.config.model.hidden_size == 8
    assert np.isin(teacher.train_fingerprints, student.train_fingerprints).all()  # it may have them from its teacher
    assert student.info.inputs.teacher == [str(world / "base")]


def ends_alike(work, folder, step):
    """A run stopped at a step and taken up again has the bytes of one that never was."""
    work("whole")
    with pytest.raises(InterruptedError):
        work("stopped", on_event=interrupt_at(step))
    resume(folder / "stopped")
    left, right = (folder / name / "model.safetensors" for name in ("whole", "stopped"))
    assert left.read_bytes() == right.read_bytes()


def test_a_taught_base_that_was_stopped_ends_as_if_it_never_had(world, tmp_path):
    def work(out, **more):
        pretrain([str(world / "more.txt")], tmp_path / out, teacher=str(world / "base"), settings=SMALLER, **more)

    ends_alike(work, tmp_path, 7)


def test_an_ensemble_is_poured_into_one_model(world, tmp_path):
    notes = []
    done = finetune(
        str(world / "base"),
        str(world / "table.tsv"),
        tmp_path / "student",
        teacher=f"{world / 'tuned-0'},{world / 'tuned-1'}",
        unlabelled=[str(world / "more.txt")],
        settings=merge(TUNING, {"optimizer": {"learning_rate": 0.01}}),
        on_event=lambda event: notes.append(event.text) if isinstance(event, Note) else None,
    )
    assert done.score.accuracy > 0.6
    texts = (world / "more.txt").read_text().splitlines()
    assert f"{len(set(texts)):,} texts without labels are labelled by the teachers" in notes
    student = load_model(str(tmp_path / "student"))
    assert np.isin(hashes(texts), student.train_fingerprints).all()
    inputs = student.info.inputs
    assert inputs.teacher == [str(world / "tuned-0"), str(world / "tuned-1")]
    assert inputs.unlabelled[0].corpus == str(world / "more.txt")


def test_a_taught_classifier_that_was_stopped_ends_as_if_it_never_had(world, tmp_path):
    def work(out, **more):
        finetune(
            str(world / "base"),
            str(world / "table.tsv"),
            tmp_path / out,
            teacher=[str(world / "tuned-0")],
            unlabelled=[str(world / "more.txt")],
            settings=TUNING,
            **more,
        )

    ends_alike(work, tmp_path, 10)


def test_a_student_from_scratch_takes_its_teachers_tokenizer(world, tmp_path):
    small = merge(TUNING, {"model": QUICK["model"]})
    finetune("scratch", str(world / "table.tsv"), tmp_path / "student", teacher=str(world / "tuned-0"), settings=small)
    found = load_model(str(tmp_path / "student")).tokenizer.fingerprint
    assert found == load_model(str(world / "base")).tokenizer.fingerprint


@pytest.mark.parametrize(
    ("teacher", "over", "problem"),
    [
        ("tuned-0", {}, "cannot teach masked-lm"),
        ("base", {"objective": {"name": "causal-lm"}}, "cannot teach causal-lm"),
        ("base", {"objective": {"name": "causal+masked"}}, "cannot be distilled"),
        ("base", {"tokenizer": {"vocab_size": 500}}, "tokenizer.vocab_size"),
        ("base", {"training": {"max_length": 128}, "model": {"max_position_embeddings": 128}}, "64 tokens at most"),
        ("none", {}, "no run at"),
    ],
)
def test_a_teacher_that_cannot_teach_is_refused(world, tmp_path, teacher, over, problem):
    with pytest.raises((ConfigError, RunError), match=problem) as caught:
        pretrain(
            [str(world / "more.txt")], tmp_path / "student", teacher=str(world / teacher), settings=merge(SMALLER, over)
        )
    assert caught.value.hint
    assert not (tmp_path / "student").exists()


def test_teachers_must_fit_the_data_and_the_student(world, tmp_path):
    table = world / "table.tsv"
    other = tmp_path / "other.tsv"
    other.write_text(table.read_text().replace("\tgood", "\tfine"))
    with pytest.raises(RunError, match="has the classes"):
        finetune(str(world / "base"), str(other), tmp_path / "x", teacher=str(world / "tuned-0"), settings=TUNING)
    pretrain([str(world / "more.txt")], tmp_path / "stranger", settings=merge(MASKED, {"training": {"max_steps": 1}}))
    with pytest.raises(RunError, match="another tokenizer"):
        finetune(
            str(tmp_path / "stranger"), str(table), tmp_path / "y", teacher=str(world / "tuned-0"), settings=TUNING
        )
    with pytest.raises(ConfigError, match="need teachers"):
        finetune(str(world / "base"), str(table), tmp_path / "z", unlabelled=["x.txt"], settings=TUNING)
    with pytest.raises(ConfigError, match="named twice"):
        finetune(str(world / "base"), str(table), tmp_path / "z", teacher="a,a", settings=TUNING)


def test_the_commands_take_teachers(world, tmp_path):
    words = ["--distill-from", world / "base", "--steps", 2, "--max-length", 32, "--out", tmp_path / "student"]
    call("pretrain", world / "more.txt", "--preset", "tiny", *words)
    ensemble = f"{world / 'tuned-0'},{world / 'tuned-1'}"
    more = ["--distill-from", ensemble, "--unlabeled", world / "more.txt", "--epochs", 1, "--max-length", 32]
    call("finetune", world / "base", world / "table.tsv", *more, "--out", tmp_path / "poured")


def call(*words):
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code == 0, (result.output, result.exception)


RECIPE = """
title = "a student"
preset = "tiny"

[model]
num_layers = 1
hidden_size = 8
num_heads = 2
intermediate_size = 16
max_position_embeddings = 64

[objective]
name = "masked-lm"

[training]
max_length = 32
tokens_per_batch = 256
save_steps = 3

[texts.more]
path = "more.txt"

[[stages]]
name = "student"
mix = { more = 1 }
teacher = "base"
training = { max_steps = 8 }

[[stages]]
name = "labels"
kind = "finetune"
table = "table.tsv"
teacher = "tuned-0"
unlabelled = ["more"]
training = { max_epochs = 1, max_length = 32 }
"""


def test_stages_of_a_recipe_have_teachers(world, tmp_path):
    (tmp_path / "recipe.toml").write_text(RECIPE)
    run_small_recipe = lambda out, **more: run_recipe(tmp_path / "recipe.toml", world, tmp_path / out, **more)
    run_small_recipe("whole")
    stages = []

    def interrupt(event):
        stages.extend([1] * (isinstance(event, Note) and event.text.startswith("stage ")))
        if len(stages) == 2 and getattr(event, "step", 0) >= 2:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        run_small_recipe("stopped", on_event=interrupt)
    resume(tmp_path / "stopped")
    for path in (tmp_path / "whole").glob("weights-*"):
        assert path.read_bytes() == (tmp_path / "stopped" / path.name).read_bytes()
    first = json.loads((tmp_path / "whole" / "stages" / "01-student" / "run.json").read_text())
    assert first["inputs"]["teacher"] == [str(world / "base")]
    with pytest.raises(ConfigError, match="no-such"):
        run_small_recipe("other", settings={"student": {"teacher": "no-such"}})
