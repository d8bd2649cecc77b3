"""headstart generate: any causal language model writes, others say why not."""

import json

import pytest
from typer.testing import CliRunner

import headstart as hs
from headstart.cli.app import app
from headstart.config import merge
from headstart.errors import ConfigError, DataError, RunError
from headstart.generation.generate import log_probabilities, prompt_batch
from headstart.inference.generate import Request, generate_lines, open_writer
from tests.helpers.datasets import QUICK, write_corpus, write_labelled

RUNS = {
    "causal": {"objective": {"name": "causal-lm"}},
    "learned": {"objective": {"name": "causal-lm"}, "model": {"position_embedding": "learned", "max_position_embeddings": 16},
                "training": {"max_length": 16}},
    "both": {"objective": {"name": "causal+masked"}},
    "masked": {"objective": {"name": "masked-lm"}},
}  # fmt: skip


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    corpus = write_corpus(folder / "corpus.txt", 100)
    for name, settings in RUNS.items():
        every = merge(merge(QUICK, {"training": {"max_steps": 3}}), settings)
        hs.pretrain([str(corpus)], folder / name, settings=every)
    hs.finetune(
        str(folder / "masked"),
        str(write_labelled(folder / "labels.tsv")),
        folder / "classifier",
        settings={"training": {"max_steps": 2}},
    )
    return folder


@pytest.fixture(scope="module")
def writer(world):
    return open_writer(str(world / "causal"))


def run(*words, text=None):
    return CliRunner().invoke(app, [str(word) for word in words], input=text)


@pytest.mark.parametrize("name", ["causal", "learned", "both"])
@pytest.mark.slow
def test_a_causal_language_model_writes(world, name):
    (found,) = hs.generate(str(world / name), "the film", tokens=6, seed=1)
    assert found.prompt == "the film"
    assert found.tokens <= 6
    assert found.is_cut == (found.tokens == 6)
    assert found.log_probability < 0


@pytest.mark.parametrize("how", [{}, {"greedy": True}, {"beam": 3, "count": 2}, {"count": 3, "top_k": 20, "seed": 7}])
@pytest.mark.slow
def test_a_prompt_alone_gets_what_it_gets_among_others(writer, how):
    given = ["the film", "a", "", "this story was really very", "the film"]
    count = how.get("count", 1)
    together = hs.generate(writer, given, tokens=9, **how)
    assert [each.prompt for each in together] == [prompt for prompt in given for _ in range(count)]
    for place, prompt in enumerate(given):
        own = together[count * place : count * (place + 1)]
        assert [each.text for each in hs.generate(writer, prompt, tokens=9, **how)] == [each.text for each in own]
        assert len({each.text for each in own}) == count


def test_what_is_streamed_is_what_is_given(writer):
    given, streamed = ["the film", "a", ""], {}
    found = hs.generate(
        writer, given, tokens=12, count=2, on_text=lambda place, text: streamed.setdefault(place, []).append(text)
    )
    assert ["".join(streamed.get(place, [])) for place in range(6)] == [each.text for each in found]


def test_a_log_probability_is_that_of_the_text_when_it_is_given(writer):
    (found,) = hs.generate(writer, "the film", tokens=5, greedy=True)
    row = writer.encode(["the film"])[0]
    (best,) = hs.generate(writer, "the film", tokens=5, beam=1)
    assert best.text == found.text
    tokens = writer.tokenizer.encode(["the film" + found.text])[0][len(row) - 1 :].tolist()
    if tokens and len(tokens) == found.tokens:
        whole = tokens + ([] if found.is_cut else [writer.tokenizer.eos_id])
        (log_probs,) = log_probabilities(writer.decoder, prompt_batch([row], 0), [whole])
        assert sum(log_probs) == pytest.approx(found.log_probability, abs=1e-3)


def test_lines_of_any_number_are_written_on_in_order(writer, monkeypatch):
    from headstart.inference import generate

    monkeypatch.setattr(generate, "CHUNK_PROMPTS", 2)
    given = ["the film", "a", "", "plot", "scene"]
    found = list(generate_lines(writer, iter(given), Request(tokens=5)))
    assert [each.text for each in found] == [each.text for each in hs.generate(writer, given, tokens=5)]


@pytest.mark.parametrize("name", ["masked", "classifier"])
def test_a_run_that_cannot_write_says_why(world, name):
    with pytest.raises(RunError, match="cannot write text") as caught:
        hs.generate(str(world / name), "the film")
    assert "causal-lm" in caught.value.hint


def test_learned_positions_end_a_text_and_refuse_a_longer_prompt(world):
    writer = open_writer(str(world / "learned"))
    (found,) = hs.generate(writer, "the film was", tokens=100, greedy=True)
    assert len(writer.encode(["the film was"])[0]) + found.tokens <= 17
    with pytest.raises(DataError, match=r"prompt 2 has \d+ tokens, and .* has positions for 16"):
        hs.generate(writer, ["a", "wonderful " * 40])


@pytest.mark.parametrize(
    "wrong",
    [
        {"greedy": True, "temperature": 0.5},
        {"beam": 2, "top_k": 3},
        {"beam": 2, "greedy": True},
        {"greedy": True, "count": 2},
        {"beam": 2, "count": 3},
        {"beam": 2, "repetition_penalty": 1.2},
        {"tokens": 0},
        {"count": 0},
        {"top_p": 2.0},
        {"temperature": 0, "count": 2},
    ],
    ids=lambda wrong: "-".join(wrong),
)
def test_a_request_that_cannot_be_is_refused_with_a_hint(wrong):
    with pytest.raises(ConfigError) as caught:
        Request(**wrong)
    assert caught.value.hint


def test_the_command_streams_one_text(world):
    done = run("generate", world / "causal", "the film", "--tokens", 6, "--seed", 1)
    (found,) = hs.generate(str(world / "causal"), "the film", tokens=6, seed=1)
    assert done.exit_code == 0
    assert done.stdout == f"the film{found.text}\n"
    assert done.stderr == ("the text was cut at --tokens 6\n" if found.is_cut else "")
    assert run("generate", world / "causal", "the film", "--tokens", 6, "--quiet").stderr == ""


def test_a_line_in_is_a_line_out_whatever_it_holds(world):
    lines = ["the film", "", "\x0ba\u2028b", " ", "carriage\rreturn", "é😀"]
    done = run(
        "generate", world / "causal", "-", "--tokens", 4, "--num-return-sequences", 2, text="\n".join(lines) + "\n"
    )
    assert done.exit_code == 0
    assert len(done.stdout.split("\n")) == 13
    assert len(done.stdout.splitlines()) == 12
    assert done.stdout.startswith("the film")


def test_json_is_an_object_a_text(world):
    done = run(
        "generate", world / "causal", "the film", "--tokens", 4, "--num-beams", 3, "--num-return-sequences", 2, "--json"
    )
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [set(each) for each in found] == [{"prompt", "text", "tokens", "is_cut", "log_probability", "score"}] * 2
    assert done.stderr == ""


def test_words_of_a_command_line_in_another_encoding_are_refused(writer):
    with pytest.raises(DataError, match="prompt 1 is not UTF-8"):
        hs.generate(writer, "caf\udce9")
