"""Bad input gets one clear sentence, a hint, exit code 2 and no traceback; nothing is lost or half-written."""

import errno
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from headstart.cli.app import app
from headstart.config import merge
from headstart.errors import HeadstartError
from tests.helpers.datasets import QUICK, flags, write_corpus, write_labelled

STEP = merge(QUICK, {"training": {"max_steps": 1}})


def call(*words):
    """Run a command in this process: its exit code, and what it said of a problem."""
    result = CliRunner().invoke(app, [str(word) for word in words])
    if isinstance(result.exception, HeadstartError):
        return 2, str(result.exception), result.exception.hint
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.output, ""


@pytest.fixture
def table(tmp_path):
    return write_labelled(tmp_path / "table.tsv")


@pytest.fixture
def base(tmp_path):
    corpus, path = write_corpus(tmp_path / "corpus.txt"), tmp_path / "base"
    words = flags(merge(STEP, {"objective": {"name": "masked-lm"}}))
    assert call("pretrain", corpus, "--out", path, "--quiet", *words)[0] == 0
    return path


def test_a_second_run_into_an_existing_folder_is_refused(table, tmp_path):
    out = tmp_path / "run"
    assert call("finetune", "scratch", table, "--out", out, "--quiet", *flags(STEP))[0] == 0
    before = (out / "model.safetensors").read_bytes()
    code, said, hint = call("finetune", "scratch", table, "--out", out, "--quiet", *flags(STEP))
    assert (code, "already holds a run" in said, "headstart resume" in hint) == (2, True, True)
    assert (out / "model.safetensors").read_bytes() == before


def test_a_folder_with_other_things_in_it_is_never_touched(table, tmp_path):
    out = tmp_path / "mine"
    out.mkdir()
    (out / "thesis.txt").write_text("years of work")
    code, said, hint = call("finetune", "scratch", table, "--out", out, "--quiet", *flags(STEP))
    assert (code, "is not empty" in said, "--out" in hint) == (2, True, True)
    assert [path.name for path in out.iterdir()] == ["thesis.txt"]


@pytest.mark.parametrize(
    ("number", "words"), [(errno.ENOSPC, "No space left"), (errno.EROFS, "Read-only"), (errno.EACCES, "Permission")]
)
def test_a_disk_that_cannot_be_written_gets_a_sentence(table, tmp_path, monkeypatch, number, words):
    real = os.fsync

    def fail(handle):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", fail)
    code, said, hint = call("finetune", "scratch", table, "--out", tmp_path / "run", "--quiet", *flags(STEP))
    monkeypatch.setattr(os, "fsync", real)
    assert (code, words in said, "--out" in hint) == (2, True, True)
    assert not (tmp_path / "run").exists()


def test_a_disk_that_fills_up_in_mid_run_leaves_the_last_checkpoint(tmp_path, table, monkeypatch):
    from headstart import checkpoint
    from headstart.workflows.resume import resume

    often = merge(QUICK, {"training": {"max_steps": 9, "save_steps": 2}})
    out, real, calls = tmp_path / "run", checkpoint.save_file, []

    def fill(*args):
        calls.append(args)
        if len(calls) > 4:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(*args)

    monkeypatch.setattr(checkpoint, "save_file", fill)
    code, said, hint = call("finetune", "scratch", table, "--out", out, "--quiet", *flags(often))
    assert (code, "No space left" in said, "headstart resume" in hint) == (2, True, True)
    monkeypatch.setattr(checkpoint, "save_file", real)
    assert not [path for path in (out / "checkpoints").iterdir() if path.name.startswith(".")]
    assert resume(out) is not None
    assert (out / "model.safetensors").exists()


@pytest.mark.parametrize("shipped", [{}, {"en-tiny": Path("somewhere")}], ids=["alone", "beside shipped bases"])
def test_a_missing_base_is_named_and_the_nearest_offered(base, table, tmp_path, monkeypatch, shipped):
    monkeypatch.setattr("headstart.inference.loaded_model.shipped_bases", lambda: shipped)
    code, said, hint = call("finetune", tmp_path / "bsae", table, "--out", tmp_path / "run")
    assert (code, "no run at" in said, "base" in hint) == (2, True, True)
    assert not (tmp_path / "run").exists()


def test_a_base_whose_tokenizer_was_exchanged_is_refused(base, table, tmp_path):
    from headstart.config import TokenizerConfig
    from headstart.data.tokenizer_training import train_tokenizer

    train_tokenizer(["quite other texts"] * 9, TokenizerConfig(type="characters", vocab_size=20)).save(base)
    code, said, hint = call("finetune", base, table, "--out", tmp_path / "run")
    assert (code, "not the one this run was trained with" in said, "fingerprint" in hint) == (2, True, True)


def test_another_tokenizer_than_the_base_s_is_refused(base, table, tmp_path):
    code, said, hint = call("finetune", base, table, "--out", tmp_path / "run", "--tokenizer", "wordpiece")
    assert (code, "another tokenizer" in said, "brings its own" in hint) == (2, True, True)


def test_another_shape_than_the_base_s_is_refused(base, table, tmp_path):
    code, said, _ = call("finetune", base, table, "--out", tmp_path / "run", "--set", "model.hidden_size=32")
    assert (code, "model.hidden_size" in said) == (2, True)


def test_a_run_that_memory_cannot_hold_is_refused_with_advice_unless_forced(table, tmp_path, monkeypatch):
    from headstart.planning import plan

    monkeypatch.setattr(plan, "free_bytes", lambda kind: 2**20)
    code, said, hint = call("finetune", "scratch", table, "--out", tmp_path / "run", "--quiet", *flags(STEP))
    assert code == 2
    assert "GiB" in said
    assert hint
    assert not (tmp_path / "run").exists()
    assert (
        call("finetune", "scratch", table, "--out", tmp_path / "run", "--quiet", "--ignore-memory-check", *flags(STEP))[
            0
        ]
        == 0
    )


def test_a_model_larger_than_memory_is_refused_before_it_is_built(table, tmp_path):
    large = ["model.hidden_size=32768", "model.num_heads=128", "model.intermediate_size=131072", "model.num_layers=40"]
    settings = [word for each in large for word in ("--set", each)]
    code, said, hint = call("finetune", "scratch", table, "--out", tmp_path / "run", "--quiet", *flags(STEP), *settings)
    assert (code, "GiB" in said, "--ignore-memory-check" in hint) == (2, True, True)
    assert not (tmp_path / "run").exists()


def test_torn_weights_are_named(base, table, tmp_path):
    weights = base / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:50])
    code, said, _ = call("finetune", base, table, "--out", tmp_path / "run")
    assert (code, "cannot be read" in said) == (2, True)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["finetune", "scratch", "imbd", "--out", "r"], "imbd"),
        (["finetune", "scratch", "{table}", "--out", "r", "--preset", "tinny"], "tinny"),
        (["finetune", "scratch", "{table}", "--out", "r", "--set", "training.epoch=3"], "training.epoch"),
        (["finetune", "scratch", "{table}", "--out", "r", "--set", "epochs"], "section.key=value"),
        (["finetune", "scratch", "{table}", "--out", "r", "--epochs", "2", "--steps", "3"], "budget is given twice"),
        (["finetune", "scratch", "{table}", "--out", "r", "--train-size", "5000"], "5,000 labels are requested"),
        (["finetune", "scratch", "{table}", "--out", "r", "--text-column", "review"], "review"),
        (["finetune", "scratch", "{table}", "--out", "r", "--set", "objective.poling=mean"], "poling"),
        (["finetune", "scratch", "{table}", "--out", "r", "--set", "training.device=cuda:7"], "cuda:7"),
        (["finetune", "scratch", "{table}", "--out", "r", "--save-steps", "often"], "--save-steps"),
        (["finetune", "scratch", "{table}", "--out", "r", "--config", "missing.toml"], "missing.toml"),
        (["finetune", "scratch", "{table}", "--out", "r", "--tokenizer", "bep"], "bep"),
        (["pretrain", "nowhere.txt", "--out", "r"], "nowhere.txt"),
        (["pretrain", "{table}", "--out", "r", "--objective", "classify"], "classify"),
        (["pretrain", "{table}", "--out", "r", "--objective", "masked_lm"], "masked_lm"),
        (["pretrain", "{table}", "--out", "r", "--max-length", "4000"], "4000"),
        (["evaluate", "nowhere", "{table}"], "nowhere"),
        (["predict", "nowhere", "-"], "nowhere"),
        (["resume", "nowhere"], "nowhere"),
        (["compare", "{table}", "--out", "r", "--arms", "scracth"], "scracth"),
        (["compare", "{table}", "--out", "r", "--train-size", "ten"], "ten"),
        (["audit", "nowhere.csv"], "nowhere.csv"),
        (["audit", "{table}", "--pair", "en-de"], "no column 'en'; it has 'text', 'label'"),
        (["audit", "nowhere", "--pair", "en-de"], "nowhere"),
        (["download", "tatoeba", "--pair", "en-de", "--out", "r"], "tatoeba"),
        (["download", "libreoffice-help", "--pair", "de", "--out", "r"], "'de'"),
    ],
)
def test_every_wrong_word_is_answered_with_a_sentence_and_a_hint(words, said, table, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, problem, hint = call(*[word.format(table=table) for word in words])
    assert code == 2
    assert said in problem
    assert hint
    assert not (tmp_path / "r").exists()


ANY_TEXT = st.text(max_size=40) | st.sampled_from(
    ["", "x", "a" * 5000, '"', '""', "\x00", "﻿", "\r", "😀 label", "a\tb"]
)


@pytest.mark.slow
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    kind=st.sampled_from([".tsv", ".csv", ".jsonl"]),
    rows=st.lists(st.tuples(ANY_TEXT, st.sampled_from(["good", "bad ", " ugly", "😀", ""])), max_size=12),
    junk=st.binary(max_size=12),
    place=st.integers(0, 400),
    newline=st.sampled_from(["\n", "\r\n"]),
)
def test_fuzzed_tables_never_give_a_traceback_or_a_half_written_folder(tmp_path, kind, rows, junk, place, newline):
    import csv
    import io
    import json
    import shutil

    if kind == ".jsonl":
        text = "".join(json.dumps({"text": text, "label": label}) + newline for text, label in rows)
    else:
        handle = io.StringIO()
        writer = csv.writer(handle, delimiter="\t" if kind == ".tsv" else ",", lineterminator=newline)
        writer.writerows([("text", "label"), *rows])
        text = handle.getvalue()
    content = text.encode("utf-8", "surrogatepass")
    path = tmp_path / f"fuzzed{kind}"
    path.write_bytes(content[:place] + junk + content[place:])
    out = tmp_path / "run"
    shutil.rmtree(out, ignore_errors=True)
    code, said, _ = call("finetune", "scratch", path, "--out", out, "--quiet", *flags(STEP))
    assert code in (0, 2), said
    assert (out / "model.safetensors").exists() == (code == 0)
    assert out.exists() == (code == 0)
    assert call("audit", path, "--json", "--tokenizer", "characters")[0] in (0, 2)


@pytest.mark.slow
def test_no_traceback_reaches_the_user(tmp_path):
    import subprocess
    import sys

    done = subprocess.run(
        [sys.executable, "-m", "headstart", "evaluate", "nowhere", "imdb"], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 2
    assert done.stderr.splitlines()[0].startswith("error: ")
    assert done.stderr.splitlines()[1].startswith("hint: ")
    assert "Traceback" not in done.stderr
    assert not done.stdout
    assert not list(Path(tmp_path).iterdir())


@pytest.mark.slow
def test_a_disk_that_is_really_full_gets_its_sentence(table, tmp_path):
    """The limit on a file's size stands in for a full disk: the system itself refuses to write on."""
    import subprocess
    import sys

    code = (
        "import resource, signal, sys; signal.signal(signal.SIGXFSZ, signal.SIG_IGN);"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (20000, 20000));"
        "from headstart.cli.app import main; main()"
    )
    words = ["finetune", "scratch", str(table), "--out", str(tmp_path / "run"), "--quiet", *flags(STEP)]
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True)
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    assert "cannot write" in done.stderr
    assert "hint: " in done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["pretrain", "{one}", "--out", "r", "--objective", "next-sentence", "--steps", "1"], "one document"),
        (["finetune", "scratch", "{table}", "--out", "r", "--set", "objective.pooling=pooler"], "no pooler"),
        (["pretrain", "{table}", "--out", "r", "--set", "training.freeze_backbone=true"], "is for fine-tuning"),
        (["compare", "{table}", "--out", "r", "--train-size", "20,4000"], "4,000 labels are requested"),
        (["compare", "{table}", "--out", "r", "--arms", "fine-tuned"], "need a base"),
        (["compare", "{table}", "--out", "r", "--seed", "-1"], "training.seed"),
        (["compare", "{table}", "--out", "r", "--tokens", "5"], "go with --objectives"),
        (["compare", "{table}", "--out", "r", "--objectives", "causal-lm,masked-lm"], "needs text"),
        (["compare", "{table}", "--pair", "en-fr", "--out", "r"], "not on parallel text"),
        (["tune", "scratch", "{table}", "--pair", "en-fr", "--out", "r"], "not on parallel text"),
        (["audit", "{table}", "--set", "tokenizer.vocab_size=2"], "vocab_size"),
        (["audit", "{table}", "--set", "model.hidden_size=2"], "model"),
        (["demo", "--out", "r", "--train-size", "500000"], "500,000 labels are requested"),
        (["demo", "--out", "r", "--seeds", "0"], "0 seeds"),
        (["demo", "--out", "r", "--base", "en-tin"], "no run at en-tin"),
    ],
)
@pytest.mark.slow
def test_what_cannot_work_is_refused_before_anything_is_written(words, said, table, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    one = tmp_path / "one.txt"
    one.write_text("a single short document\n")
    code, problem, hint = call(*[word.format(table=table, one=one) for word in words])
    assert code == 2
    assert said in problem
    assert hint
    assert not (tmp_path / "r").exists()


def test_strictness_also_holds_for_a_corpus_in_the_cache(tmp_path):
    table = tmp_path / "texts.tsv"
    table.write_text("text\tlabel\nfine words here\tx\n\tx\nmore fine words\tx\n")
    words = flags(merge(STEP, {"objective": {"name": "causal-lm"}}))
    assert call("pretrain", table, "--out", tmp_path / "a", "--quiet", *words)[0] == 0
    ready = [*words, "--set", f"tokenizer.type={tmp_path / 'a'}"]
    assert call("pretrain", table, "--out", tmp_path / "b", "--quiet", *ready)[0] == 0
    code, said, _ = call("pretrain", table, "--out", tmp_path / "c", "--quiet", "--strict", *ready)
    assert code == 2
    assert "texts.tsv:3" in said
