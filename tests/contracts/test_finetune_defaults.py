"""The rule for fine-tuning settings: floors that hold for every shape of data, and easy sets that are learnt by defaults."""

import math
import random

import pytest

from headstart.config import ModelConfig, resolve
from headstart.inference.loaded_model import load_model
from headstart.workflows.finetune import finetune
from headstart.workflows.finetune_defaults import (
    MAX_EPOCHS_MANY_CLASSES,
    MIN_EPOCHS,
    MIN_STEPS,
    REUSED_HEAD_MIN_STEPS,
    UPDATES_PER_CLASS,
    DatasetFacts,
    finetune_config,
    finetune_defaults,
    fits_recommendation,
)
from headstart.workflows.pretrain import pretrain

STARTS = ("reused-head", "new-head", "scratch")


def facts(texts=1600, classes=2, tokens=20.0, valid=400):
    return DatasetFacts(texts, tuple(f"class{number}" for number in range(classes)), tokens, valid)


def steps(settings, texts):
    training = settings["training"]
    return training["max_epochs"] * math.ceil(texts / training["batch_size"])


@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("classes", [2, 6, 20, 77, 150])
@pytest.mark.parametrize("tokens", [5.0, 30.0, 400.0, 3000.0])
@pytest.mark.parametrize("texts", [20, 50, 200, 1600, 10_000, 100_000])
def test_every_shape_of_data_gets_enough_steps(start, classes, tokens, texts):
    settings = finetune_defaults(facts(texts, classes, tokens), ModelConfig(), start)
    training, is_new = settings["training"], start != "reused-head"  # a reused head already knows the classes
    assert steps(settings, texts) >= (MIN_STEPS if is_new else REUSED_HEAD_MIN_STEPS)
    assert training["max_epochs"] >= MIN_EPOCHS
    if is_new and tokens <= 30 and training["max_epochs"] < MAX_EPOCHS_MANY_CLASSES:  # no token budget in the way
        assert training["max_epochs"] * texts / classes >= UPDATES_PER_CLASS
    if training["eval_steps"] is not None:
        assert 3 <= steps(settings, texts) / training["eval_steps"] <= training["max_epochs"]
    resolve("finetune", "tiny", settings)  # every value is one that the settings take


def test_more_labels_never_mean_fewer_steps():
    found = [
        steps(finetune_defaults(facts(texts), ModelConfig(), "new-head"), texts) for texts in (20, 50, 200, 400, 1600)
    ]
    assert found == sorted(found)


def test_wider_models_get_lower_learning_rates():
    rates = [
        finetune_defaults(facts(), ModelConfig(hidden_size=width), "new-head")["optimizer"]["learning_rate"]
        for width in (128, 256, 384, 768)
    ]
    assert rates == sorted(rates, reverse=True)
    assert 1e-5 <= rates[-1] <= 5e-5  # what BERT-base is fine-tuned with


def test_large_validation_sets_are_read_less_often():
    few = finetune_defaults(facts(50, valid=2000), ModelConfig(), "new-head")["training"]
    many = finetune_defaults(facts(1600, valid=400), ModelConfig(), "new-head")["training"]
    assert few["eval_steps"] is not None
    assert many["eval_steps"] is None  # after every epoch


def test_a_recommendation_holds_where_it_was_measured():
    recommended = {"training": {"max_epochs": 3, "max_length": 384}, "optimizer": {"learning_rate": 5e-5}}
    assert fits_recommendation(recommended, facts(tokens=300.0), starts_alike=True)
    assert not fits_recommendation(recommended, facts(tokens=14.0), starts_alike=True)
    assert not fits_recommendation(recommended, facts(tokens=300.0), starts_alike=False)


def test_a_shipped_base_follows_its_recommendation_at_home_and_the_rule_elsewhere():
    base = load_model("en-tiny")
    reviews = DatasetFacts(1600, ("negative", "positive"), 290.0, 400)
    at_home, _ = finetune_config(base, None, {}, data=reviews)
    assert (at_home.optimizer.learning_rate, at_home.training.max_epochs) == (5e-5, 3)
    assert (at_home.training.batch_size, at_home.training.tokens_per_batch) == (32, 16384)
    assert not at_home.training.linear_probe
    elsewhere, _ = finetune_config(base, None, {}, data=facts(1600, 6, 14.0))
    assert elsewhere.training.linear_probe
    assert elsewhere.training.max_epochs >= 10
    assert elsewhere.optimizer.learning_rate >= 1e-4
    own, _ = finetune_config(base, None, {"training": {"max_epochs": 2}}, data=facts(1600, 6, 14.0))
    assert own.training.max_epochs == 2


def test_a_preset_with_a_budget_of_its_own_is_left_alone():
    lab, _ = finetune_config(None, "lab", {}, data=facts(1600, 2, 150.0))
    assert (lab.training.max_epochs, lab.training.batch_size, lab.optimizer.learning_rate) == (15, 16, 1e-4)
    assert lab.data.truncation_side == "start"


WORDS = [f"{a}{b}" for a in ("ba", "ce", "di", "fo", "gu", "ha", "ke", "li") for b in ("lo", "mi", "na", "pe")]


def separable(path, classes, words, texts, seed=0):
    """Texts of noise around one word that gives the class away."""
    rng = random.Random(seed)
    rows = []
    for number in range(texts):
        label = number % classes
        text = rng.choices(WORDS, k=words)
        text.insert(rng.randrange(len(text) + 1), f"sign{label}x")
        rows.append(f"{' '.join(text)} {number}\tclass {label}")
    rng.shuffle(rows)
    path.write_text("text\tlabel\n" + "\n".join(rows) + "\n")


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    folder = tmp_path_factory.mktemp("base")
    rng = random.Random(1)
    signs = [f"sign{number}x" for number in range(77)]
    lines = [" ".join(rng.choices(WORDS + signs, k=12)) for _ in range(1500)]
    (folder / "corpus.txt").write_text("\n".join(lines) + "\n")
    settings = {"training": {"max_steps": 150}, "tokenizer": {"vocab_size": 500}}
    pretrain([str(folder / "corpus.txt")], folder / "run", settings=settings)
    return folder / "run"


@pytest.mark.slow
@pytest.mark.parametrize("start", ["base", "scratch"])
@pytest.mark.parametrize(
    ("classes", "words", "texts"), [(2, 4, 60), (2, 80, 200), (6, 8, 400), (20, 6, 600), (77, 6, 1600)]
)
def test_an_easy_set_is_learnt_by_defaults(base, tmp_path, start, classes, words, texts):
    for name, count, seed in (("train", texts, 0), ("valid", max(200, 3 * classes), 1)):
        (tmp_path / "data").mkdir(exist_ok=True)
        separable(tmp_path / "data" / f"{name}.tsv", classes, words, count, seed)
    settings = {"tokenizer": {"vocab_size": 600}} if start == "scratch" else {}
    found = finetune(
        str(base) if start == "base" else "scratch", str(tmp_path / "data"), tmp_path / "run", settings=settings
    )
    assert found.score.accuracy >= 0.95, found.warnings
    assert found.best_epoch > 0
