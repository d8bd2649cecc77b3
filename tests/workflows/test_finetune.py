"""A base's own head goes on where it names the very classes of the data, and starts fresh elsewhere."""

import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch

import headstart as hs
from headstart.batch import Batch, pad
from headstart.config import merge
from headstart.inference.loaded_model import load_model
from headstart.models.model import describe_transfer, reuses_head
from headstart.objectives.classification import Classification
from headstart.training.callbacks import Note
from headstart.training.evaluate import predict_probabilities
from headstart.training.runtime import start_runtime
from headstart.workflows.compare import compare
from headstart.workflows.evaluate import evaluate
from headstart.workflows.finetune import FinetuneJob, finetune, load_labelled, make_task
from headstart.workflows.finetune_defaults import finetune_config
from headstart.workflows.package import package
from headstart.workflows.resume import resume
from tests.helpers.datasets import QUICK, write_labelled

TUNING = {"training": {"max_epochs": 1, "max_length": 32}}


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """A classifier that is some good at telling good from bad, as a run and packed, and another table of that kind."""
    folder = tmp_path_factory.mktemp("world")
    first = write_labelled(folder / "first.tsv", 120, seed=1)
    write_labelled(folder / "table.tsv", 60, seed=2)
    learning = {"training": {"max_steps": 60}, "optimizer": {"learning_rate": 0.01}}
    finetune("scratch", str(first), folder / "run", settings=merge(QUICK, learning))
    package(str(folder / "run"), "packed", folder / "bases")
    return folder


def start(world, base="run", classes=None, settings=None, trained=None):
    """The classifier before its first step, the account of what crossed, and what they were made from."""
    trained = trained or load_model(str(world / base))
    config, objective = finetune_config(trained, None, merge(TUNING, settings or {}))
    dataset = load_labelled(str(world / "table.tsv"), config)
    dataset = replace(dataset, classes=classes or dataset.classes)
    task = make_task(dataset, trained.tokenizer, config)
    model, moved = FinetuneJob(config, start_runtime(config.training), base=trained).build_model(task)
    return model.eval(), moved, task, config, objective, trained


def probabilities(model, objective, task, config):
    runtime = start_runtime(config.training)
    return predict_probabilities(model, objective, task.rows["train"], task.tokenizer, runtime, 512)


def test_a_swapped_head_is_new_and_everything_below_it_is_the_base(world):
    base = hs.load_model(str(world / "run"))
    before = {name: weight.clone() for name, weight in base.weights.items()}
    head = hs.HeadSpec("class", 3, {"pooling": "mean", "projection": "linear"})
    model, transfer = hs.swap_heads(base, {"topic": head})
    tokens, real = pad(
        [base.tokenizer.add_special_tokens(ids, 32) for ids in base.tokenizer.encode(["fine", "a film"])], 0
    )
    scores = model(Batch(tokens, real))["topic"]
    assert scores.shape == (2, 3)
    scores.sum().backward()
    with torch.no_grad():
        model.backbone.table.add_(1.0)
    assert all(torch.equal(base.weights[name], weight) for name, weight in before.items())
    assert {name.split(".")[0] for name in transfer.reused} == {"backbone"}
    assert set(transfer.initialized) == {name for name in model.state_dict() if name.startswith("heads.topic.")}
    assert set(transfer.dropped) == {name for name in base.weights if name.startswith("heads.class.")}


def test_layers_above_the_ones_to_reset_start_fresh_under_a_swapped_head(world):
    base = hs.load_model(str(world / "run"))
    head = hs.HeadSpec("class", 2, {"pooling": "mean", "projection": "linear"})
    _, transfer = hs.swap_heads(base, {"class": head}, reset_layers=1)
    assert any(name.startswith("backbone.stack.blocks.0.") for name in transfer.initialized)
    assert "backbone.embedding.token_embedding.weight" in transfer.reused


@pytest.mark.parametrize("base", ["run", "bases/packed"])
@pytest.mark.parametrize("classes", [["bad", "good"], ["good", "bad"]])
def test_a_head_that_fits_goes_on_whatever_the_order_of_the_classes(world, base, classes):
    model, moved, task, config, objective, trained = start(world, base, classes)
    assert reuses_head(moved)
    assert not moved.initialized
    assert not moved.dropped
    before = probabilities(trained.model(), objective, task, config)
    after = probabilities(model, objective, task, config)
    order = [trained.info.classes.index(name) for name in classes]
    assert np.array_equal(before[:, order], after)
    assert "(the head too), 0 weights initialized, 0 weights dropped" in describe_transfer(moved)
    assert trained.why_new_head(config, objective, task.classes) == ""


def test_a_head_of_many_classes_answers_the_same_in_any_order(world):
    old, new = ["b", "d", "a", "c"], ["a", "b", "c", "d"]
    trained = load_model(str(world / "run"))
    rows = torch.randn(4, trained.weights["heads.class.classifier.weight"].shape[1])
    weights = {**trained.weights, "heads.class.classifier.weight": rows}
    if "heads.class.classifier.bias" in weights:
        weights["heads.class.classifier.bias"] = torch.randn(4)
    many = replace(trained, info=replace(trained.info, classes=old), weights=weights)
    model, moved, *_ = start(world, trained=many, classes=new)
    assert reuses_head(moved)
    for name in (name for name in weights if ".classifier." in name):
        for label in new:
            own = model.state_dict()[name][new.index(label)]
            assert torch.equal(own, weights[name][old.index(label)])


@pytest.mark.parametrize(
    ("classes", "settings", "reason"),
    [
        (["bad", "fine"], {}, ""),
        (["bad", "good", "fine"], {}, ""),
        (None, {"training": {"head_init": "random"}}, ""),
        (None, {"training": {"reinit_top_layers": 1}}, "layers below it are reinitialized"),
        (None, {"objective": {"pooling": "max"}}, "--set objective.pooling=mean reuses it"),
        (None, {"objective": {"head_hidden_layer": "linear"}}, "--set objective.head_hidden_layer=dense reuses it"),
    ],
)
def test_any_other_head_starts_fresh_and_it_is_told_why(world, classes, settings, reason):
    if classes is not None:  # the labels of the table do not matter here, only the head
        trained = load_model(str(world / "run"))
        config, objective = finetune_config(trained, None, merge(TUNING, settings))
        assert not trained.can_reuse_head(config, objective, classes)
        assert trained.why_new_head(config, objective, classes) == ""
        return
    _, moved, task, config, objective, trained = start(world, settings=settings)
    assert not reuses_head(moved)
    assert {name for name in moved.dropped if name.startswith("heads.")}
    assert {name for name in moved.initialized if name.startswith("heads.")}
    assert "the head too" not in describe_transfer(moved)
    why = trained.why_new_head(config, objective, task.classes)
    assert reason in why
    assert bool(reason) == bool(why)


def test_dropout_and_frozen_bodies_are_no_reason_for_a_fresh_head(world):
    for settings in (
        {"model": {"dropout": 0.2}, "objective": {"head_dropout": 0.3}},
        {"training": {"freeze_backbone": True}},
        {"training": {"gradual_unfreezing_epochs": 1}},
    ):
        assert reuses_head(start(world, settings=settings)[1])


def test_a_backbone_without_a_head_has_none_to_reuse(world):
    trained = load_model(str(world / "run"))
    config, objective = finetune_config(trained, None, TUNING)
    bare = replace(trained, info=replace(trained.info, has_heads=False))
    assert isinstance(objective, Classification)
    assert not bare.can_reuse_head(config, objective, ["bad", "good"])


@pytest.mark.slow
def test_a_run_begins_where_its_base_ended_and_says_so(world, tmp_path):
    messages = []
    done = finetune(
        str(world / "bases" / "packed"),
        str(world / "table.tsv"),
        tmp_path / "on",
        settings=merge(TUNING, {"data": {"train_size": 8}}),
        on_event=lambda event: messages.append(event.text) if isinstance(event, Note) else None,
    )
    assert any("weights reused (the head too), 0 weights initialized" in line for line in messages)
    task = start(world, "bases/packed")[2]
    rows = [(row.text, row.label) for row in task.dataset.valid]
    (tmp_path / "valid.tsv").write_text("text\tlabel\n" + "".join(f"{a}\t{b}\n" for a, b in rows))
    found = evaluate(str(world / "bases" / "packed"), str(tmp_path / "valid.tsv"))
    assert done.curve[0]["step"] == 0
    assert done.curve[0]["accuracy"] == pytest.approx(found.accuracy)
    assert done.curve[0]["loss"] == pytest.approx(found.loss, rel=1e-4)
    assert reuses_head(done.transfer)
    assert "the head too" in (tmp_path / "on" / "report.html").read_text()
    messages.clear()
    fresh = merge(TUNING, {"training": {"head_init": "random"}})
    finetune(
        str(world / "run"),
        str(world / "table.tsv"),
        tmp_path / "fresh",
        settings=fresh,
        on_event=lambda event: messages.append(event.text) if isinstance(event, Note) else None,
    )
    assert any("weights reused, " in line for line in messages)


@pytest.mark.slow
@pytest.mark.parametrize("step", [0, 2])
def test_a_run_that_was_stopped_goes_on_with_the_head_it_began_with(world, tmp_path, step):
    settings = merge(TUNING, {"training": {"save_steps": 1}})

    def tune(out, **more):
        return finetune(str(world / "run"), str(world / "table.tsv"), tmp_path / out, settings=settings, **more)

    def interrupt(event):
        if getattr(event, "step", -1) >= step:
            raise InterruptedError

    tune("whole")
    with pytest.raises(InterruptedError):
        tune("stopped", on_event=interrupt)
    assert (tmp_path / "stopped" / "checkpoints").exists() == (step > 0)
    resume(tmp_path / "stopped")
    left, right = (tmp_path / name / "model.safetensors" for name in ("whole", "stopped"))
    assert left.read_bytes() == right.read_bytes()


@pytest.mark.slow
def test_a_head_that_went_on_may_have_a_teacher(world, tmp_path):
    done = finetune(
        str(world / "run"), str(world / "table.tsv"), tmp_path / "student", teacher=str(world / "run"), settings=TUNING
    )
    assert reuses_head(done.transfer)


@pytest.mark.slow
def test_a_comparison_keeps_the_head_in_the_arms_of_the_base_alone_and_says_so(world, tmp_path):
    shutil.copytree(world / "run", tmp_path / "base")
    found = compare(
        str(world / "table.tsv"),
        [str(tmp_path / "base")],
        tmp_path / "compared",
        seeds=1,
        arms=["scratch", "frozen", "fine-tuned"],
        settings=TUNING,
    )
    assert found.arm("scratch").transfer is None
    assert reuses_head(found.arm("base frozen").transfer)
    assert reuses_head(found.arm("base fine-tuned").transfer)
    assert sum("arms of base start with the base's own head" in note for note in found.notes) == 1
    report = (tmp_path / "compared" / "report.html").read_text()
    assert "weights reused (the head too)" in report
    fresh = compare(
        str(world / "table.tsv"),
        [str(tmp_path / "base")],
        tmp_path / "fresh",
        seeds=1,
        arms=["fine-tuned"],
        settings=merge(TUNING, {"training": {"head_init": "random"}}),
    )
    assert not reuses_head(fresh.arm("base fine-tuned").transfer)
    assert not any("own head" in note for note in fresh.notes)
