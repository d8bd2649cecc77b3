"""headstart translate: a line out for a line in, whatever the lines hold."""

import json

import pytest
from typer.testing import CliRunner

import headstart as hs
from headstart.cli.app import app
from headstart.errors import ConfigError, DataError, RunError
from headstart.inference.translate import Candidate, open_translator
from tests.helpers.datasets import BODY, QUICK, write_corpus
from tests.helpers.parallel_datasets import TASKS, write_aligned

SETTINGS = {
    "model": {**BODY, "max_position_embeddings": 40, "position_embedding": "sinusoidal"},
    "tokenizer": {"type": "bpe", "vocab_size": 300},
    "training": {"max_length": 40, "tokens_per_batch": 1024, "max_steps": 3},
    "lr_schedule": {"warmup_steps": 10},
}
STRANGE = ["7", "", "  ", "\t", "\x0b1", "2\u20283", "4\x0c5\x1c6\x857", "carriage\rreturn", "é😀" * 9, "9 " * 80]


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    folder = tmp_path_factory.mktemp("world")
    write_aligned(folder / "pairs", TASKS["number-words"], count=60)
    for name, shared in (("one", True), ("two", False)):
        settings = {**SETTINGS, "tokenizer": {**SETTINGS["tokenizer"], "shared_vocab": shared}}
        hs.finetune("scratch", str(folder / "pairs"), folder / name, pair="src-trg", settings=settings)
    quick = {**QUICK, "objective": {"name": "causal-lm"}, "training": {"max_steps": 1, "max_length": 32}}
    hs.pretrain([str(write_corpus(folder / "corpus.txt", 30))], folder / "causal", settings=quick)
    return folder


def run(*words, text=None):
    return CliRunner().invoke(app, [str(word) for word in words], input=text)


@pytest.mark.parametrize("name", ["one", "two"])
@pytest.mark.slow
def test_every_line_gets_what_it_gets_alone(world, name):
    translator = open_translator(str(world / name))
    lines = ["1234", "7", "", "88 11 9", "7"]
    found = list(hs.translate(translator, lines, beam=3, n_best=2))
    assert [each.line for each in found] == [1, 2, 3, 4, 5]
    assert [each.source for each in found] == lines
    assert found[2].candidates == [Candidate("", 0.0, 0.0, False)]
    for each in found:
        (alone,) = hs.translate(translator, [each.source], beam=3, n_best=2)
        assert [one.text for one in alone.candidates] == [one.text for one in each.candidates]
        assert [one.score for one in alone.candidates] == pytest.approx(
            [one.score for one in each.candidates], abs=1e-4
        )
        assert each.text == each.candidates[0].text


@pytest.mark.parametrize("chunk_lines", [1, 3, 100])
def test_lines_are_read_as_they_are_needed(world, chunk_lines):
    taken = []

    def lines():
        for number in range(10):
            taken.append(number)
            yield str(number)

    found = hs.translate(str(world / "one"), lines(), beam=2, max_length=4, chunk_lines=chunk_lines)
    assert taken == []
    next(found)
    assert len(taken) <= chunk_lines
    assert [each.line for each in found] == list(range(2, 11))


def test_stdin_to_stdout_keeps_the_number_and_the_order_of_lines(world):
    done = run("translate", world / "one", "-", "--max-length", 6, text="\n".join(STRANGE) + "\n")
    assert done.exit_code == 0
    assert done.stdout.count("\n") == len(STRANGE)
    lines = done.stdout.removesuffix("\n").split("\n")
    assert [not line for line in lines[1:4]] == [True] * 3
    assert len("".join(lines).splitlines()) <= 1
    assert "2 lines were longer than 40 tokens and read that far: 9, 10\n" in done.stderr
    assert "translations were cut at the limit (--max-length): 1, 5, 6, " in done.stderr


@pytest.mark.parametrize(
    ("bad", "said"), [(b"\xff", "standard input:3 is not UTF-8"), (b"1\x00", "standard input:3 holds a NUL byte")]
)
def test_a_line_that_is_no_text_is_named_and_those_before_it_are_translated(world, bad, said):
    done = run("translate", world / "one", "-", "--max-length", 4, "--quiet", text=b"1\n2\n" + bad + b"\n4\n")
    assert isinstance(done.exception, DataError)
    assert said in str(done.exception)
    assert done.exception.hint
    assert done.stdout.count("\n") == 2


def test_a_file_without_a_line_end_a_crlf_file_and_an_empty_one(world, tmp_path):
    for content, count in ((b"1\n2", 2), (b"1\r\n\r\n2\r\n", 3), (b"", 0), (b"\n", 1), (b"\xef\xbb\xbf1\n", 1)):
        (tmp_path / "in.src").write_bytes(content)
        done = run("translate", world / "one", tmp_path / "in.src", "--max-length", 3, "--quiet")
        assert (done.exit_code, done.stdout.count("\n")) == (0, count)


def test_n_best_and_scores_stand_before_the_text(world):
    words = ("translate", world / "one", "-", "--max-length", 5, "--quiet", "--n-best", 3, "--print-scores")
    lines = [line.split("\t") for line in run(*words, text="12\n\n34\n").stdout.splitlines()]
    assert [line[0] for line in lines] == ["1", "1", "1", "2", "3", "3", "3"]
    scores = [float(line[1]) for line in lines]
    assert scores[:3] == sorted(scores[:3], reverse=True)
    assert lines[3] == ["2", "0.0000", ""]


def test_json_and_a_file_to_write_to(world, tmp_path):
    done = run(
        "translate", world / "one", world / "pairs" / "test.src", "--json", "--max-length", 5, "--out", tmp_path / "o"
    )
    assert done.stdout == ""
    found = [json.loads(line) for line in (tmp_path / "o").read_text().splitlines()]
    sources = (world / "pairs" / "test.src").read_text().splitlines()
    assert [each["source"] for each in found] == sources
    assert set(found[0]) == {"line", "source", "candidates", "is_source_cut"}
    assert set(found[0]["candidates"][0]) == {"text", "score", "log_probability", "is_cut"}
    assert [path.name for path in tmp_path.iterdir()] == ["o"]


def test_a_failure_leaves_the_old_file(world, tmp_path):
    (tmp_path / "o").write_text("old")
    (tmp_path / "in").write_bytes(b"1\n\xff\n")
    done = run("translate", world / "one", tmp_path / "in", "--out", tmp_path / "o", "--max-length", 3)
    assert isinstance(done.exception, DataError)
    assert (tmp_path / "o").read_text() == "old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "o"]


def test_a_table_gives_its_text_column(world, tmp_path):
    (tmp_path / "in.tsv").write_text("text\tother\n12\tx\n34\ty\n")
    done = run("translate", world / "one", tmp_path / "in.tsv", "--max-length", 3, "--quiet")
    assert done.stdout.count("\n") == 2


def test_what_does_not_translate_says_so(world):
    with pytest.raises(RunError, match="does not translate") as caught:
        hs.translate(str(world / "causal"), ["1"])
    assert "--pair" in caught.value.hint
    with pytest.raises(RunError, match="is a translator") as caught:
        hs.generate(str(world / "one"), "1")
    assert "headstart translate" in caught.value.hint
    for wrong in ({"beam": 2, "n_best": 3}, {"max_length": 0}, {"length_penalty": float("nan")}):
        with pytest.raises(ConfigError):
            hs.translate(str(world / "one"), ["1"], **wrong)


def test_one_string_instead_of_a_list_is_refused(world):
    with pytest.raises(TypeError, match="list of strings"):
        hs.translate(str(world / "one"), "12")
