"""The whole walk, small: raw text to base to classifier to report, by command and by function."""

import io
import json
import lzma

import pytest
from typer.testing import CliRunner

import headstart as hs
from headstart.cli.app import app
from headstart.config import merge
from headstart.reports.comparison import headline
from headstart.workflows.compare import compare, read_comparison
from headstart.workflows.package import package
from tests.helpers.datasets import BAD, GOOD, QUICK, flags, write_corpus, write_labelled

FAST = merge(QUICK, {"training": {"batch_size": 8}, "optimizer": {"learning_rate": 0.01}})


def call(*words, given=None):
    result = CliRunner().invoke(app, [str(word) for word in words], input=given)
    assert result.exit_code == 0, (result.output, result.exception)
    return result.stdout


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """A corpus, a table, a base and a classifier."""
    folder = tmp_path_factory.mktemp("world")
    write_corpus(folder / "corpus.txt", 400)
    write_labelled(folder / "table.tsv", 120)
    words = flags(merge(QUICK, {"optimizer": {"learning_rate": 0.01}}))
    call("pretrain", folder / "corpus.txt", "--objective", "masked-lm", "--steps", 60, "--out", folder / "base", *words)
    tuned = flags({"training": FAST["training"], "optimizer": FAST["optimizer"]})
    call("finetune", folder / "base", folder / "table.tsv", "--epochs", 8, "--out", folder / "tuned", *tuned)
    return folder


@pytest.mark.slow
def test_a_language_model_is_evaluated_by_perplexity(world):
    found = json.loads(call("evaluate", world / "base", world / "corpus.txt", "--json"))
    assert found["perplexity"] > 1
    assert 0 <= found["accuracy"] <= 1
    assert found["bits_per_byte"] is None  # a masked model does not predict every token
    assert found["leaked"] > 300


@pytest.mark.slow
def test_a_causal_model_is_evaluated_by_bits_per_byte(world, tmp_path):
    words = flags(merge(QUICK, {"optimizer": {"learning_rate": 0.01}}))
    corpus = world / "corpus.txt"
    call("pretrain", corpus, "--objective", "causal-lm", "--steps", 80, "--out", tmp_path / "lm", *words)
    found = json.loads(call("evaluate", tmp_path / "lm", corpus, "--json"))
    assert 0.1 < found["bits_per_byte"] < 8
    assert found["perplexity"] < 30


def test_a_classifier_learns_and_its_leaks_are_counted(world):
    found = json.loads(call("evaluate", world / "tuned", world / "table.tsv", "--json"))
    assert found["count"] == 120
    assert found["accuracy"] > 0.8
    assert found["leaked"] > 90  # the table it was trained on
    assert found["leak_free_count"] == found["count"] - found["leaked"]
    words = call("evaluate", world / "tuned", world / "table.tsv")
    assert "leak-free accuracy" in words


def test_predictions_come_one_a_line_in_order(world, tmp_path):
    texts = [f"the {GOOD[0]} {GOOD[1]} film", f"a {BAD[0]} {BAD[1]} plot", "", "odd\x85line and\u2028more"]
    out = call("predict", world / "tuned", "-", given="\n".join(texts) + "\n").splitlines()
    lines = [line.split("\t") for line in out]
    assert [len(line) for line in lines] == [3] * len(texts)
    assert lines[0][0] == "good"
    assert lines[1][0] == "bad"
    assert all(0.5 <= float(line[1]) <= 1 for line in lines)
    rows = [json.loads(line) for line in call("predict", world / "tuned", world / "table.tsv", "--json").splitlines()]
    assert len(rows) == 120


@pytest.mark.slow
def test_compressed_data_gives_the_same_run(world, tmp_path):
    packed = tmp_path / "table.tsv.xz"
    packed.write_bytes(lzma.compress((world / "table.tsv").read_bytes()))
    words = ["--epochs", 1, *flags(FAST)]
    call("finetune", "scratch", world / "table.tsv", "--out", tmp_path / "plain", *words)
    call("finetune", "scratch", packed, "--out", tmp_path / "packed", *words)
    assert (tmp_path / "plain/model.safetensors").read_bytes() == (tmp_path / "packed/model.safetensors").read_bytes()


def test_saved_weights_load_exactly(world):
    import torch
    from safetensors.torch import load_file

    model = hs.load_model(str(world / "tuned")).model()
    for name, weight in load_file(world / "tuned" / "model.safetensors").items():
        assert torch.equal(model.state_dict()[name], weight)


@pytest.mark.slow
def test_the_same_seed_gives_the_same_bytes_and_another_does_not(world, tmp_path):
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        call("finetune", world / "base", world / "table.tsv", "--seed", seed, "--out", tmp_path / name, "--epochs", 1)
    a, b, c = ((tmp_path / name / "model.safetensors").read_bytes() for name in "abc")
    assert a == b != c


@pytest.mark.slow
def test_a_comparison_reports_every_arm_with_seeds_and_tests(world, tmp_path):
    out = tmp_path / "compare"
    words = flags({"training": FAST["training"], "optimizer": FAST["optimizer"]})
    said = call(
        "compare", world / "table.tsv", "--base", world / "base", "--seeds", 2, "--train-size", "20,60", "--epochs", 1,
        "--out", out, *words,
    )  # fmt: skip
    found = json.loads((out / "comparison.json").read_text())
    kinds = {(arm["kind"], arm["labels"]) for arm in found["arms"]}
    assert kinds == {(kind, n) for kind in ("classical", "scratch", "frozen", "fine-tuned") for n in (20, 60)}
    for arm in found["arms"]:
        assert [result["seed"] for result in arm["results"]] == [0, 1]
        assert arm["accuracy"]["low"] <= arm["accuracy"]["mean"] <= arm["accuracy"]["high"]
        if arm["kind"] != "classical":
            assert arm["results"][0]["curve"][0]["epoch"] == 0  # before any step
    tuned = next(arm for arm in found["arms"] if arm["kind"] == "fine-tuned")
    assert sum(tuned["transfer"]["reused"].values()) > 0
    assert {test["against"] for test in found["tests"]} == {"classical", "scratch"}
    assert found["provenance"]["seeds"] == [0, 1]
    page = (out / "report.html").read_text()
    assert "<svg" in page
    assert "http://" not in page.replace("http://www.w3.org", "")
    for name in ("curves.png", "curves.svg", "label-efficiency.png", "label-efficiency.svg"):
        assert (out / name).stat().st_size > 1000
    assert "fine-tuned" in said
    assert "is finished" in call("resume", out)


@pytest.mark.slow
def test_a_comparison_that_died_goes_on_where_it_was(world, tmp_path):
    out, done = tmp_path / "compare", []

    def die(event):
        done.append(event)
        if len([e for e in done if type(e).__name__ == "Stage" and ", seed" in e.name]) == 4:
            raise InterruptedError

    settings = {"training": {**FAST["training"], "max_epochs": 1}}
    with pytest.raises(InterruptedError):
        compare(str(world / "table.tsv"), [str(world / "base")], out, seeds=2, settings=settings, on_event=die)
    before = {path: path.stat().st_mtime_ns for path in (out / "arms").iterdir()}
    assert len(before) == 3
    found = hs.resume(out)
    assert {path: path.stat().st_mtime_ns for path in before} == before
    whole = compare(str(world / "table.tsv"), [str(world / "base")], tmp_path / "whole", seeds=2, settings=settings)
    assert [arm.accuracy for arm in found.arms] == [arm.accuracy for arm in whole.arms]


def test_a_run_s_folder_holds_what_is_promised(world):
    names = {path.name for path in (world / "tuned").iterdir()}
    assert {
        "run.json",
        "tokenizer.json",
        "model.safetensors",
        "train_fingerprints.npy",
        "log.jsonl",
        "result.json",
    } <= names
    assert "checkpoints" not in names


@pytest.mark.slow
def test_no_embedded_test_review_enters_pretraining(tmp_path):
    import numpy as np

    from headstart.data.text_io import hashes
    from headstart.workflows.pretrain import pretrain

    settings = merge(QUICK, {"training": {"max_steps": 1}, "objective": {"name": "causal-lm"}})
    pretrain(["rotten-tomatoes"], tmp_path / "base", settings=settings)
    dataset = hs.load_dataset("rotten-tomatoes", hs.load_model(str(tmp_path / "base")).info.config.data, with_test=True)
    seen = np.load(tmp_path / "base" / "train_fingerprints.npy")
    assert not np.isin(hashes(dataset.texts("test")), seen).any()
    assert not np.isin(hashes(dataset.texts("valid")), seen).any()
    assert np.isin(hashes(dataset.texts("train")), seen).mean() > 0.98


@pytest.mark.slow
def test_the_demo_runs_small_from_audit_to_report(world, tmp_path, monkeypatch):
    monkeypatch.setattr("headstart.workflows.demo.DATA", "rotten-tomatoes")  # the shorter reviews
    monkeypatch.setattr("headstart.workflows.demo.LENGTH", 32)
    monkeypatch.setattr("headstart.workflows.demo.SHIPPED_LENGTH", 48)
    package(str(world / "base"), "xx-ready", tmp_path / "bases")
    monkeypatch.setenv("HEADSTART_BASES", str(tmp_path / "bases"))
    out = tmp_path / "demo"
    words = ["--minutes", "0.05", "--seeds", 1, "--train-size", 40, "--epochs", 2, "--base", "xx-ready"]
    said = call("demo", "--out", out, *words)
    assert "report" in said
    assert (out / "report.html").exists()
    found = read_comparison(out / "compare")
    names = ["classical", "scratch", "base fine-tuned", "xx-ready fine-tuned"]
    assert [arm.name for arm in found.arms] == names
    assert [found.settings[name]["training"]["max_epochs"] for name in names[1:]] == [2, 2, 1]
    against = {(test.arm, test.against) for test in found.tests}
    assert {("xx-ready fine-tuned", name) for name in names[:3]} <= against
    assert any("xx-ready has settings of its own" in note for note in found.notes)
    read = next(note for note in found.notes if "tokens of a text" in note)
    assert "scratch and base fine-tuned read at most 32 tokens of a text (both its ends" in read
    assert "xx-ready fine-tuned read at most 48 tokens of a text (both its ends" in read
    again = call("demo", "--out", out, *words)
    assert "report" in again


@pytest.mark.slow
def test_the_demo_refuses_a_base_that_reads_too_little_before_it_begins(world, tmp_path):
    with pytest.raises(hs.HeadstartError, match=r"over model\.max_position_embeddings 64"):
        hs.run_demo(tmp_path / "demo", base=str(world / "base"))
    assert not (tmp_path / "demo").exists()


@pytest.mark.slow
def test_a_base_with_settings_of_its_own_has_no_arm_from_scratch(world, tmp_path):
    settings = {"training": {**FAST["training"], "max_epochs": 2}}
    found = compare(
        str(world / "table.tsv"),
        {str(world / "base"): {"training": {"max_epochs": 1}}},
        out=tmp_path / "c",
        seeds=2,
        settings=merge(QUICK, settings),
    )
    kinds = {arm.name: (arm.kind, arm.control) for arm in found.arms}
    assert kinds == {
        "classical": ("classical", ""),
        "scratch": ("scratch", ""),
        "base frozen": ("frozen", ""),
        "base fine-tuned": ("fine-tuned", ""),
    }
    epochs = {name: own["training"]["max_epochs"] for name, own in found.settings.items()}
    assert epochs == {"scratch": 2, "base frozen": 1, "base fine-tuned": 1}
    assert ("base fine-tuned", "scratch") in {(test.arm, test.against) for test in found.tests}
    assert any(note.startswith("base has settings of its own") for note in found.notes)
    assert "Pretraining" not in headline(found)


@pytest.mark.slow
def test_a_base_that_no_epoch_makes_better_is_said_to_be_scored_as_it_came(world, tmp_path):
    for split in ("train", "valid", "test"):
        (tmp_path / "set").mkdir(exist_ok=True)
        write_labelled(tmp_path / "set" / f"{split}.tsv", 40, seed=len(split))
    # One base knows the task, and a rate that high makes it forget; the other has it all to learn.
    for name, rate, is_still in (("tuned", 1.0, True), ("base", 0.01, False)):
        found = compare(
            str(tmp_path / "set"),
            [str(world / name)],
            tmp_path / name,
            seeds=1,
            arms=("fine-tuned",),
            settings=merge(
                {"training": FAST["training"]}, {"training": {"max_epochs": 4}, "optimizer": {"learning_rate": rate}}
            ),
        )
        words = f"1 of 1 seeds of {name} fine-tuned with 40 labels are best on valid before the first step"
        assert any(words in note for note in found.notes) == is_still


def test_the_audit_lists_what_leaks(tmp_path):
    folder = tmp_path / "set"
    folder.mkdir()
    write_labelled(folder / "train.tsv", 40)
    lines = (folder / "train.tsv").read_text().splitlines()
    (folder / "valid.tsv").write_text("\n".join([*lines[:3], "quite new\tgood", "also new\tbad"]) + "\n")
    found = json.loads(call("audit", folder, "--tokenizer", "characters", "--json"))
    assert len(found["leaks"]) == 2
    assert found["splits"]["valid"]["in_train"] == 2
    assert "train.tsv:3" in call("audit", folder, "--tokenizer", "characters")


def test_standard_input_is_read_as_bytes_in_utf_8(world, monkeypatch):
    broken = io.BytesIO(b"fine\n\xff\xfe broken\n")
    monkeypatch.setattr("sys.stdin", type("In", (), {"buffer": broken})())
    with pytest.raises(hs.HeadstartError, match="standard input"):
        list(hs.predict(str(world / "tuned"), "-"))


@pytest.mark.slow
def test_a_run_can_be_watched_in_tensorboard(world, tmp_path):
    pytest.importorskip("tensorboard")
    words = flags(merge(FAST, {"training": {"tensorboard": "true"}}))
    call("finetune", "scratch", world / "table.tsv", "--epochs", 1, "--out", tmp_path / "run", *words)
    assert list((tmp_path / "run" / "tensorboard").glob("events*"))


@pytest.mark.slow
def test_bases_of_one_name_are_distinct_and_each_has_its_own_control(world, tmp_path):
    words = flags(merge(QUICK, {"optimizer": {"learning_rate": 0.01}}))
    for name, objective in (("a", "causal-lm"), ("b", "masked-lm")):
        base = tmp_path / name / "base"
        call("pretrain", world / "corpus.txt", "--objective", objective, "--steps", 5, "--out", base, *words)
    bases = [str(tmp_path / name / "base") for name in "ab"]
    settings = {"training": {**FAST["training"], "max_epochs": 1}}
    found = compare(str(world / "table.tsv"), bases, tmp_path / "c", seeds=2, settings=settings)
    names = [arm.name for arm in found.arms]
    assert len(set(names)) == len(names) == 7  # classical, and scratch, frozen and fine-tuned of each
    against = {(test.arm, test.against) for test in found.tests}
    assert ("a/base fine-tuned", "scratch") in against
    assert ("b/base fine-tuned", "scratch like b/base") in against
    assert ("b/base fine-tuned", "scratch") not in against
    assert ("b/base fine-tuned", "a/base fine-tuned") in against  # which base is better is a test too, made once
    assert ("a/base fine-tuned", "b/base fine-tuned") not in against


@pytest.mark.slow
def test_objectives_are_compared_at_equal_operations(world, tmp_path):
    words = [*flags({"model": QUICK["model"], "tokenizer": QUICK["tokenizer"]}), "--max-length", 32]
    words += ["--set", "training.precision=bfloat16"]
    said = call(
        "compare", world / "table.tsv", "--corpus", world / "corpus.txt", "--objectives", "causal-lm,masked-lm",
        "--tokens", 2000, "--seeds", 2, "--epochs", 1, "--out", tmp_path / "c", "--arms", "scratch,fine-tuned", *words,
    )  # fmt: skip
    assert "causal-lm fine-tuned" in said
    tokens = json.loads((tmp_path / "c" / "objectives.json").read_text())["tokens"]
    assert tokens["masked-lm"] > tokens["causal-lm"] == 2000
    bases = [hs.load_model(str(tmp_path / "c/bases" / name)) for name in tokens]
    assert len({base.tokenizer.fingerprint for base in bases}) == 1
    assert {base.info.config.training.precision for base in bases} == {"bfloat16"}


def test_evaluation_counts_the_rows_it_could_not_use(world, tmp_path):
    table = tmp_path / "holes.tsv"
    table.write_text((world / "table.tsv").read_text() + "\tgood\nno label\t\n")
    found = json.loads(call("evaluate", world / "tuned", table, "--json"))
    assert (found["count"], found["skipped"]) == (120, 2)
    assert "2 rows could not be used" in call("evaluate", world / "tuned", table)


def test_a_language_model_is_judged_on_a_folder_s_test_part(world, tmp_path):
    folder = tmp_path / "set"
    folder.mkdir()
    write_labelled(folder / "train.tsv", 60)
    write_labelled(folder / "test.tsv", 20, seed=7)
    found = json.loads(call("evaluate", world / "base", folder, "--json"))
    assert found["documents"] == 20


@pytest.mark.slow
def test_compiled_training_takes_the_same_steps(world, tmp_path):
    import shutil

    if shutil.which("g++") is None and shutil.which("clang++") is None:
        pytest.skip("torch.compile needs a C++ compiler")
    words = ["--steps", 2, *flags(FAST), "--set", "model.dropout=0"]  # which a compiler draws in its own way
    for name, extra in (("plain", []), ("compiled", ["--set", "training.compile=true"])):
        call("finetune", "scratch", world / "table.tsv", "--out", tmp_path / name, *words, *extra)
    scores = [json.loads((tmp_path / name / "result.json").read_text())["score"] for name in ("plain", "compiled")]
    assert scores[0]["loss"] == pytest.approx(scores[1]["loss"], abs=1e-4)
