"""Without --out a run is written to a new folder in runs/, named after its parts."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from headstart.cli.app import app
from headstart.cli.training import new_folder
from headstart.errors import ConfigError


@pytest.mark.parametrize(
    ("parts", "name"),
    [
        (["fr-tiny", "reviews.tsv"], "fr-tiny-reviews"),
        (["runs/base/", "../some data/cls-books-fr"], "base-cls-books-fr"),
        (["scratch", "a b.CSV.xz", "en-de"], "scratch-a_b-en-de"),
        (["scratch", "imdb"], "scratch-imdb"),
        (["/", "..."], "run-run"),
        (["base", "été.tsv"], "base-été"),
    ],
)
def test_a_run_is_named_after_its_parts(tmp_path, monkeypatch, parts, name):
    monkeypatch.chdir(tmp_path)
    assert new_folder(Path("runs"), *parts) == Path("runs") / name


def test_existing_folders_are_not_reused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for taken in ("base-a", "base-a-2"):
        (tmp_path / "runs" / taken).mkdir(parents=True)
    (tmp_path / "runs" / "base-a-3").symlink_to("nowhere")
    assert new_folder(Path("runs"), "base", "a.tsv") == Path("runs/base-a-4")


def test_a_folder_is_named_whatever_the_current_folder(tmp_path, monkeypatch):
    (tmp_path / "books").mkdir()
    monkeypatch.chdir(tmp_path / "books")
    assert new_folder(Path("runs"), "base", ".") == Path("runs/base-books")


def test_many_processes_need_a_folder(monkeypatch):
    def problem(*words):
        return CliRunner().invoke(app, ["finetune", "base", "a.tsv", *words]).exception

    assert "needs a folder" in str(problem("--nproc", "2"))
    for name, value in {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "here", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    assert isinstance(problem(), ConfigError)
    assert "needs a folder" in str(problem())


@pytest.mark.slow
def test_the_commands_say_where_the_run_is(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "corpus.txt").write_text("a small text of our own, read again and again\n\n" * 60)
    rows = "".join(f"a {'fine' if n % 2 else 'poor'} text {n}\t{'yes' if n % 2 else 'no'}\n" for n in range(40))
    (tmp_path / "reviews.tsv").write_text("text\tlabel\n" + rows)
    small = ["--set", "model.num_layers=1", "--set", "model.hidden_size=16", "--set", "model.num_heads=1"]
    read = ["pretrain", "corpus.txt=2", "--steps", "2", "--set", "tokenizer.vocab_size=300", *small]
    for words, place in (
        (read, "runs/corpus"),
        (read, "runs/corpus-2"),
        (["finetune", "runs/corpus", "reviews.tsv", "--steps", "2"], "runs/corpus-reviews"),
    ):
        result = CliRunner().invoke(app, words)
        assert result.exit_code == 0, result.output
        assert place in result.output
        assert (tmp_path / place / "run.json").is_file()
    (tmp_path / "made.toml").write_text(
        'title = "own"\npreset = "tiny"\n[model]\nnum_layers = 1\nhidden_size = 16\nnum_heads = 1\n[tokenizer]\nvocab_size = 300\n'
        '[texts.own]\npath = "corpus.txt"\n[[stages]]\nname = "one"\nmix = { own = 1 }\ntraining = { max_steps = 2 }\n'
    )
    for _ in range(2):  # the same command continues the run, which is finished then
        result = CliRunner().invoke(app, ["pretrain", "--recipe", "made.toml"])
        assert result.exit_code == 0, result.output
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == [
        "corpus", "corpus-2", "corpus-reviews", "made",
    ]  # fmt: skip
