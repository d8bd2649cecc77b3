"""Every command and every piece of Python in README and docs/ runs; the reference pages are current."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from headstart.cli.app import app
from tests.helpers.datasets import GOOD, write_corpus, write_labelled
from tests.helpers.parallel_datasets import TASKS, write_aligned

ROOT = Path(__file__).parents[1]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")])
RESULTS = sorted((ROOT / "benchmarks" / "results").glob("*.md"))

# Budgets are cut so that a page takes seconds; everything else runs unchanged.
CUTS = [
    (r"--minutes \S+", "--steps 3"),
    (r"--epochs \S+", "--epochs 1"),
    (r"--seeds \S+", "--seeds 2"),
    (r"--steps \d+", "--steps 3"),
    (r"--trials \d+", "--trials 1"),
    (r"--folds \d+", "--folds 2"),
    (r'"minutes": \d+', '"steps": 3'),
    (r"seeds=\d", "seeds=2"),
]


def blocks(page: Path) -> list[tuple[str, str]]:
    """Every fenced block of a page in order, as its kind and its text."""
    return re.findall(r"```(console|python)\n(.*?)```", page.read_text("utf-8"), flags=re.DOTALL)


def cut(text: str) -> str:
    for pattern, shorter in CUTS:
        text = re.sub(pattern, shorter, text)
    return text


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder with the files that the docs speak of."""
    monkeypatch.chdir(tmp_path)
    table = write_labelled(tmp_path / "reviews.tsv", 100)
    write_labelled(tmp_path / "more.tsv", 20, seed=1)
    write_corpus(tmp_path / "corpus.txt", 300)
    write_aligned(tmp_path / "aligned", TASKS["number-words"], ("en", "fr"), count=120)
    (tmp_path / "new.txt").write_text("a superb film\na boring plot\n")
    rows = [line.split("\t") for line in table.read_text().splitlines()[1:]]
    (tmp_path / "ratings.csv").write_text(
        "review,stars,source\n"
        + "".join(f'"{text}",{label},{("films", "books")[n % 2]}\n' for n, (text, label) in enumerate(rows))
    )
    stars = {"good": "5", "bad": "1.0"}
    (tmp_path / "stars.csv").write_text(
        "text,stars\n" + "".join(f'"{text}",{stars.get(label, "3")}\n' for text, label in rows)
    )
    (tmp_path / "topics.tsv").write_text(
        "text\ttopics\n" + "".join(f"{text}\t{label}{'|film' * (n % 2)}\n" for n, (text, label) in enumerate(rows))
    )
    (tmp_path / "pairs.tsv").write_text(
        "first\tsecond\tscore\n" + "".join(f"{text}\t{text}\t{n % 5 + 0.5}\n" for n, (text, _) in enumerate(rows))
    )
    tags = ("".join(f"{word}\t{'B-verdict' if word in GOOD else 'O'}\n" for word in text.split()) for text, _ in rows)
    (tmp_path / "entities.conll").write_text("\n".join(tags))
    return tmp_path


def run(line: str) -> None:
    """A command of ours in this process, any other by the shell."""
    if not line.startswith("headstart "):
        subprocess.run(line, shell=True, check=True)
        return
    result = CliRunner().invoke(app, shlex.split(cut(line), comments=True)[1:])
    assert result.exit_code == 0, (line, result.output, result.exception)


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page)], ids=lambda page: page.name)
def test_every_command_and_every_piece_of_python_in_the_docs_runs(page, place):
    if "$DATA" in page.read_text("utf-8"):
        pytest.skip("speaks of data that is not part of the project")
    names: dict = {"__name__": "docs"}
    for kind, text in blocks(page):
        if kind == "python":
            exec(compile(cut(text), str(page), "exec"), names)
        for line in text.splitlines() if kind == "console" else []:
            if line.startswith("$ ") and not line.startswith("$ make "):
                run(line[2:])


def test_the_reference_is_current():
    done = subprocess.run(
        [sys.executable, ROOT / "docs" / "make_reference.py", "--check"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


def headings(page: Path) -> set[str]:
    """The names by which links reach a page's headings."""
    words = re.findall(r"^#+ (.+)$", page.read_text("utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w -]", "", each.strip().lower()).replace(" ", "-") for each in words}


@pytest.mark.parametrize("page", [*PAGES, *RESULTS], ids=lambda page: page.name)
def test_links_inside_the_docs_lead_somewhere(page):
    for target, place in re.findall(r"\]\(([^)#]*)(?:#([^)]*))?\)", page.read_text("utf-8")):
        if "://" in target:
            continue
        other = page.parent / target if target else page
        assert other.exists(), f"{page.name} links to {target}"
        if place and other.suffix == ".md":
            assert place in headings(other), f"{page.name} links to {target}#{place}"


def test_make_targets_named_in_the_readme_exist():
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"^\$ make (\w+)", (ROOT / "README.md").read_text("utf-8"), flags=re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE)
    assert "make test" in (ROOT / ".ci" / "run").read_text()
