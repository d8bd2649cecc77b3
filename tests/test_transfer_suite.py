"""The transfer suite: which sets it finds, what it trains, what it caches and what its page says."""

import json
import lzma
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import headstart as hs
from headstart.data.datasets import Dataset, Example
from headstart.data.text_io import text_hash
from headstart.errors import DataError
from tests.helpers.datasets import write_labelled

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))
import transfer_suite as suite

ENGLISH = suite.Base("en-tiny", "en-tiny", "en", "e")
FRENCH = suite.Base("fr-tiny", "fr-tiny", "fr", "f")
MINILM = suite.Base("minilm", "runs/minilm", "en", "m", has_lm_head=False, source="model")
SET = suite.TextSet("reviews", "en", "somewhere", "print", classes=2, train=80, scored=(60,))


@pytest.fixture
def data(tmp_path):
    """A folder with one set that has a test table and one that has none."""
    for name, splits in (("plain", ("train", "valid")), ("deep/er/tested", ("train", "valid", "test"))):
        folder = tmp_path / "data" / name
        folder.mkdir(parents=True)
        for seed, split in enumerate(splits):
            write_labelled(folder / f"{split}.tsv", 40, seed=seed)
    return tmp_path / "data"


@pytest.fixture
def work(tmp_path):
    return tmp_path / "work"


@pytest.fixture
def trainers(monkeypatch):
    """Fine-tuning and pretraining that train nothing; what they were given, in order."""
    calls = []

    def finetune(base, folder, out, *, settings):
        calls.append(("finetune", base, settings))
        Path(out).mkdir(parents=True)
        return SimpleNamespace(
            warnings=["below the baseline"],
            baseline=SimpleNamespace(accuracy=0.75),
            score=SimpleNamespace(accuracy=0.7),
            curve=[{"step": 1, "accuracy": 0.7}],
        )

    def pretrain(corpora, out, *, base, settings):
        calls.append(("pretrain", base, Path(corpora[0]).read_text("utf-8").splitlines()))
        Path(out).mkdir(parents=True)
        return SimpleNamespace(seconds=12.0, tokens=100)

    info = SimpleNamespace(config=SimpleNamespace(model_dump=lambda: {"training": {"max_epochs": 3}}))
    rows = lambda run, path: (("good", 1.0, line) for line in Path(path).read_text("utf-8").splitlines())
    loaded = lambda name, with_weights=True: SimpleNamespace(info=info, train_fingerprints=np.zeros(0, np.uint64))
    for name, fake in (("finetune", finetune), ("pretrain", pretrain), ("predict", rows), ("load_model", loaded)):
        monkeypatch.setattr(hs, name, fake)
    monkeypatch.setattr(suite, "default_settings", lambda base, arm: ["pretraining", "fine-tuning"])
    return calls


def record(column="tfidf", accuracy=0.5, *, name="reviews", labels=50, seed=0, part="0", warnings=(), **more):
    """The result of a cell that scores ten texts."""
    arm, _, base = column.partition(" ")
    right = "1" * round(10 * accuracy) + "0" * (10 - round(10 * accuracy))
    found = {"set": name, "language": "en", "arm": arm, "base": base, "column": column, "budget": labels}
    found |= {"labels": labels, "seed": seed, "part": part, "accuracy": accuracy, "right": right, "count": 10}
    return found | {"seconds": 2.0, "warnings": list(warnings), "seen": 0, "commit": "abc", **more}


# --- sets ---


def test_sets_are_found_up_to_three_levels_deep(data):
    write_labelled(data / "train.tsv", 10)
    too_deep = data / "a" / "b" / "c" / "d"
    too_deep.mkdir(parents=True)
    write_labelled(too_deep / "train.tsv", 10)
    assert suite.set_folders(data) == [data, data / "plain", data / "deep/er/tested"]
    assert {"plain", "tested", "imdb", "rotten-tomatoes"} <= set(suite.candidates(data))


def test_two_folders_of_one_name_are_two_sets(data):
    (data / "more" / "plain").mkdir(parents=True)
    write_labelled(data / "more" / "plain" / "train.tsv", 10)
    assert {"plain", "more-plain"} <= set(suite.candidates(data))


def test_the_language_is_detected_by_stop_words():
    assert suite.detect_language(["What is the name of the film ?"]) == "en"
    assert suite.detect_language(["Le film est une réussite et je ne le regrette pas"]) == "fr"
    assert suite.detect_language(["Katze Hund Maus Haus Baum"]) == ""


def test_language_txt_decides_the_language(data):
    (data / "plain" / "language.txt").write_text("fr\n")
    assert suite.read_set(data / "plain")[1] == "fr"
    (data / "plain" / "language.txt").write_text("de\n")
    with pytest.raises(DataError, match="its language is de"):
        suite.read_set(data / "plain")


@pytest.mark.parametrize(
    ("header", "row", "reason"),
    [
        ("text_a\ttext_b\tlabel", "one\ttwo\tsame", "columns are text_a, text_b, label"),
        ("text\ttext_b\tlabel", "one\ttwo\tsame", "not one text and one label"),
        ("text\tscore", "one\t2.5", "columns are text, score"),
        ("text\tlabel", "the film is {n}\tnew|old{n}", "multi-label"),
        ("text\tlabel", "the film is {n}\t{n}.5", "regression"),
    ],
)
def test_a_set_of_another_kind_of_task_is_left_out_with_a_reason(tmp_path, work, capsys, header, row, reason):
    folder = tmp_path / "data" / "other"
    folder.mkdir(parents=True)
    rows = "".join(row.replace("{n}", str(n % 3)) + "\n" for n in range(12))
    for split in ("train", "valid"):
        (folder / f"{split}.tsv").write_text(f"{header}\n{rows}")
    assert suite.find_sets(tmp_path / "data", ["other"], work) == []
    assert "set other is left out: " in (printed := capsys.readouterr().out)
    assert reason in printed


def test_a_set_without_valid_is_left_out(data, work, capsys):
    (data / "plain" / "valid.tsv").unlink()
    assert [each.name for each in suite.find_sets(data, ["plain", "tested"], work)] == ["tested"]
    assert "no valid table" in capsys.readouterr().out


def test_french_reviews_give_two_balanced_sets(tmp_path, monkeypatch):
    for name, value in (("TOPIC_TEXTS", 10), ("REVIEW_TRAIN", 12), ("REVIEW_VALID", 30)):
        monkeypatch.setattr(suite, name, value)
    rows = [f"insurance\t{1 + n % 5}.0\tassureur {n}" for n in range(25)]
    rows += [f"allocine\t{0.5 + n % 4}\tfilm {n}" for n in range(12)] + ["rare\tNA\tseul"]
    path = tmp_path / "reviews.tsv.xz"
    path.write_bytes(lzma.compress("\n".join(["source\tstars\ttext", *rows]).encode()))
    topics, language, _ = suite.read_reviews(path, "topics")
    assert (language, topics.classes) == ("fr", ["allocine", "insurance"])
    assert topics.balance("train") == {"allocine": 6, "insurance": 6}
    assert topics.balance("valid") == {"allocine": 4, "insurance": 4}  # ten of each source at most
    stars, _, _ = suite.read_reviews(path, "stars")
    assert stars.classes == ["1", "2", "3", "4", "5"]  # the half stars of films are left out
    assert max(stars.balance("train").values()) - min(stars.balance("train").values()) <= 1
    assert suite.read_reviews(path, "stars")[0] == stars


def test_valid_is_halved_by_hash_and_the_halves_swap(data, work):
    dataset, *_ = suite.read_set(data / "plain")
    (valid_a, scored_a), (valid_b, scored_b) = suite.valid_and_scored(dataset)
    assert valid_a
    assert sorted(row.text for row in (*valid_a, *valid_b)) == sorted(dataset.texts("valid"))
    assert not {text_hash(row.text) for row in valid_a} & {text_hash(row.text) for row in valid_b}
    assert (scored_a, scored_b) == (valid_b, valid_a)
    (found,) = suite.find_sets(data, ["plain"], work)
    assert found.part(0) == found.part(2) != found.part(1)
    assert len(found.scored) == 2


def test_a_test_table_is_scored_and_valid_is_whole(data, work):
    (found,) = suite.find_sets(data, ["tested"], work)
    assert found.scored == (40,)
    assert found.part(0) == found.part(1)
    assert len((found.part(0) / "valid.jsonl").read_text().splitlines()) == 40
    assert hs.load_dataset(str(found.part(1)), suite.DataConfig()).classes == ["bad", "good"]


def test_scored_texts_are_in_neither_train_nor_valid():
    rows = [Example(f"text {n}", "ab"[n % 2]) for n in range(8)]
    dataset = Dataset("x", {"train": rows[:4], "valid": rows[4:6], "test": [rows[0], rows[4], *rows[6:]]}, [])
    assert suite.valid_and_scored(dataset) == [(rows[4:6], rows[6:])]


def test_adaptation_reads_unlabelled_texts_and_none_that_is_held_out(data, work):
    (before,) = suite.find_sets(data, ["tested"], work)
    train = hs.load_dataset(str(data / "deep/er/tested"), suite.DataConfig()).texts("train")
    assert Path(before.folder, "texts.txt").read_text().splitlines() == train
    scored = json.loads((before.part(0) / "scored.jsonl").read_text().splitlines()[0])["text"]
    (data / "deep/er/tested/unlabelled.txt").write_text(f"a raw text\n\n{scored}\n")
    (after,) = suite.find_sets(data, ["tested"], work)
    assert Path(after.folder, "texts.txt").read_text() == "a raw text\n"
    assert after.fingerprint != before.fingerprint


# --- cells ---


def test_budgets_are_cut_to_train_and_those_below_the_classes_are_skipped(capsys):
    assert suite.budgets_of(replace(SET, classes=20), [10, 50, 200, 1600]) == [(50, 50), (200, 80)]
    assert "10 labels are skipped" in capsys.readouterr().out


def test_cells_pair_bases_and_sets_of_one_language():
    sets = [SET, replace(SET, name="avis", language="fr")]
    arms = ["tfidf", "setfit", "frozen", "fine-tuned", "adapted"]
    cells = suite.plan_cells(sets, [ENGLISH, FRENCH, MINILM], arms, [50], 1)
    columns = {each.name: {c.column for c in cells if c.text_set == each} for each in sets}
    assert columns["avis"] == {"tfidf", "frozen fr-tiny", "fine-tuned fr-tiny", "adapted fr-tiny"}
    english = {"tfidf", "setfit minilm", "adapted en-tiny"}
    english |= {f"{arm} {base}" for arm in ("frozen", "fine-tuned") for base in ("en-tiny", "minilm")}
    assert columns["reviews"] == english


def test_a_cell_is_known_by_all_that_it_depends_on(monkeypatch):
    monkeypatch.setattr(suite, "default_settings", lambda base, arm: ["settings"])
    cell = suite.Cell(SET, "fine-tuned", ENGLISH, 50, 50, 0)
    others = [
        replace(cell, text_set=replace(SET, fingerprint="other")),
        replace(cell, base=replace(ENGLISH, fingerprint="other")),
        replace(cell, arm="frozen"),
        replace(cell, labels=20),
        replace(cell, seed=1),
    ]
    names = [cell.id, *(other.id for other in others)]
    monkeypatch.setattr(suite, "default_settings", lambda base, arm: ["other settings"])
    names.append(cell.id)
    assert len({name.rsplit(".", 1)[1] for name in names}) == len(names)
    assert replace(cell, budget=1600).id == cell.id  # the number of labels counts, not the budget


def test_the_default_settings_of_an_arm_are_known_before_it_runs(monkeypatch):
    assert suite.default_settings(ENGLISH, "frozen") == []
    (finetuning,) = suite.default_settings(ENGLISH, "fine-tuned")
    assert suite.default_settings(ENGLISH, "adapted")[0] == finetuning != suite.default_settings(ENGLISH, "adapted")[1]
    suite.default_settings.cache_clear()
    monkeypatch.setattr(suite, "syntax_tree", lambda module: "other code")
    assert suite.default_settings(ENGLISH, "fine-tuned") != [finetuning]
    suite.default_settings.cache_clear()
    monkeypatch.undo()
    assert suite.syntax_tree("headstart.no_such_module") == ""


def test_peers_and_minilm_are_left_out_when_they_are_not_installed(work, monkeypatch, capsys):
    monkeypatch.setattr(suite, "MINILM_PACKAGE", "no_such_package")
    monkeypatch.setattr(suite, "PEERS", ("no_such_peer",))
    monkeypatch.setitem(suite.ARMS, "no_such_peer", suite.fasttext)
    assert suite.find_bases(["minilm", "en-de-captions", "fr-tiny"], work)[0].language == "fr"
    assert suite.usable_arms(["no_such_peer", "tfidf"]) == ["tfidf"]
    printed = capsys.readouterr().out
    assert "base minilm is left out" in printed
    assert "base en-de-captions is left out: its language is English, German" in printed
    assert "arm no_such_peer is left out" in printed


def run(data, work, *words):
    return suite.main([str(data), "--work", str(work), "--out", str(work / "page"), *words])


def test_a_real_cell_is_cached_and_a_second_run_trains_nothing(data, work, monkeypatch, capsys):
    words = ("--sets", "tested,plain", "--arms", "tfidf", "--bases", "", "--labels", "20", "--seeds", "2")
    assert run(data, work, *words) == 0
    found = json.loads((work / "page.json").read_text())
    assert len(found["cells"]) == 4
    for cell in found["cells"]:
        assert cell["accuracy"] == cell["correct"] / cell["count"] > 0.6
        assert 0.5 < cell["macro_f1"] <= 1
    assert "4 of 4 finished" in (work / "page.md").read_text()
    assert not any((work / "runs").glob("*"))

    def refuse(*given, **more):
        raise AssertionError("trained again")

    monkeypatch.setattr(suite, "train_tfidf", refuse)
    capsys.readouterr()
    assert run(data, work, *words) == 0
    assert "4 cells, 4 of them cached" in capsys.readouterr().out
    assert run(data, work, *words, "--list") == 0
    assert capsys.readouterr().out.count("finished") == 4


def test_one_cell_runs_alone_and_a_failure_does_not_end_the_suite(data, work, monkeypatch, capsys):
    words = ("--sets", "tested", "--arms", "tfidf", "--bases", "", "--labels", "10,20", "--seeds", "1")
    run(data, work, *words, "--list")
    first = capsys.readouterr().out.split()[1]
    assert run(data, work, *words, "--cell", first) == 0
    assert [path.stem for path in (work / "cells").iterdir()] == [first]
    assert not (work / "page.md").exists()
    assert run(data, work, *words, "--cell", "unknown") == 2
    monkeypatch.setitem(suite.ARMS, "tfidf", lambda task: 1 / 0)
    assert run(data, work, *words) == 1
    assert "failed: ZeroDivisionError" in capsys.readouterr().out
    assert run(data, work, *words, "--report-only") == 0
    assert "1 of 2 finished" in (work / "page.md").read_text()


def test_a_base_is_adapted_once_and_fine_tuned_with_defaults(data, work, trainers):
    sets = suite.find_sets(data, ["plain"], work)
    cells = suite.plan_cells(sets, [ENGLISH], ["fine-tuned", "adapted"], [10, 20], 2)
    assert suite.run_all(cells, work, 1) == 0
    assert [name for name, *_ in trainers].count("pretrain") == 1
    tuned = [call for call in trainers if call[0] == "finetune"]
    assert len(tuned) == 8
    assert tuned[0][2] == {"training": {"seed": 0, "precision": "auto"}, "data": {"train_size": 10}}
    assert {base for _, base, _ in tuned[:4]} == {"en-tiny"}
    assert all("adapted" in base for _, base, _ in tuned[4:])
    records = suite.read_records(cells, work)
    assert all(each["warnings"] == ["below the baseline"] and each["baseline"] == 0.75 for each in records)
    assert {each.get("pretraining_seconds") for each in records} == {None, 12.0}
    assert not any((work / "runs").glob("*"))
    trainers.clear()
    assert suite.run_all(cells, work, 1) == 0
    assert trainers == []


def test_frozen_vectors_are_read_by_logistic_regression(data, work, trainers, monkeypatch):
    vectors = lambda base, texts: np.array([[len(text), text.count("b")] for text in texts], np.float32)
    monkeypatch.setattr(hs, "text_vectors", vectors)
    (text_set,) = suite.find_sets(data, ["tested"], work)
    few, many = (suite.Cell(text_set, "frozen", ENGLISH, count, count, 0) for count in (2, 20))
    assert suite.run_cell(few, work)["settings"] == {"logisticregression__C": suite.DEFAULT_C}
    found = suite.run_cell(many, work)
    assert found["settings"]["logisticregression__C"] in suite.CS
    assert found["count"] == len(found["right"]) == 40


# --- report ---


def test_intervals_are_bootstrap_for_the_same_texts_and_wilson_for_others():
    same = suite.accuracy_interval([record(accuracy=0.5), record(accuracy=0.7, seed=2)])
    assert same.mean == pytest.approx(0.6)
    assert same.low < 0.6 < same.high
    swapped = suite.accuracy_interval([record(accuracy=0.5), record(accuracy=0.7, seed=1, part="1")])
    assert (swapped.low, swapped.high) == pytest.approx((0.387, 0.781), abs=1e-3)  # Wilson for 12 of 20
    thrice = [record(accuracy=0.6), record(accuracy=0.6, seed=1, part="1"), record(accuracy=0.6, seed=2)]
    assert suite.accuracy_interval(thrice).low == pytest.approx(swapped.low)  # no text counts twice


def test_ranks_are_averaged_over_the_sets_that_have_every_column():
    records = [
        record("tfidf", 0.8, name="a"),
        record("frozen en-tiny", 0.9, name="a"),
        record("fine-tuned en-tiny", 0.7, name="a"),
        record("tfidf", 0.6, name="b"),
        record("frozen en-tiny", 0.6, name="b"),
        record("fine-tuned en-tiny", 0.9, name="b"),
        record("tfidf", 1.0, name="incomplete"),
    ]
    rows = suite.by_budget(suite.group(records, "en"))[50]
    expected = {"tfidf": 2.25, "frozen en-tiny": 1.75, "fine-tuned en-tiny": 2.0}
    assert suite.average_ranks(rows) == (2, expected)
    assert suite.group(records, "fr") == {}


def test_warnings_are_counted_for_runs_below_and_above_tfidf():
    records = [
        record("tfidf", 0.8),
        record("tfidf", 0.5, seed=1),
        record("fine-tuned en-tiny", 0.78, warnings=["low"]),  # exactly two points below
        record("fine-tuned en-tiny", 0.5, seed=1, warnings=["low"]),  # neither
        record("adapted en-tiny", 0.7),
        record("adapted en-tiny", 0.9, seed=1),
    ]
    found = suite.warning_counts(records)
    assert found == {"runs": 4, "below": 2, "above": 1, "runs_warned": 2, "below_warned": 1, "above_warned": 0}


def test_the_page_shows_ranks_first_and_missing_cells_as_a_dash():
    records = [
        record("tfidf", 0.8),
        record("fine-tuned en-tiny", 0.9, warnings=["low"], seen=3),
        record("tfidf", 0.6, labels=200),
        record("adapted en-tiny", 0.7, name="more", pretraining_seconds=60.0),
    ]
    text = suite.page(records, [SET, replace(SET, name="more", scored=(5, 5))], {"command": "go", "seeds": "0"})
    lines = text.splitlines()
    assert next(at for at, line in enumerate(lines) if line.startswith("|")) < 20
    assert lines.index("## English: average ranks") < lines.index("## English: accuracy")
    assert "## French: accuracy" not in lines
    row = next(line for line in lines if line.startswith("| reviews | 50 |"))
    assert row.split(" | ")[2].startswith("0.800 [")
    assert row.split(" | ")[3].startswith("**0.900** [")
    assert row.endswith("| – | 1 of 1 |")
    assert any(line.startswith("| reviews | 200 |") and line.endswith("| – | – | – |") for line in lines)
    assert "Adapting a base takes 60.0 s more, once per set (mean)." in lines
    assert "- Of the 1 runs that beat TF-IDF on the scored texts, 1 carried one." in lines
    assert any("test: 60 | en-tiny 3 of 10 |" in line for line in lines)
    assert any("halves of valid: 5, 5 | none |" in line for line in lines)
