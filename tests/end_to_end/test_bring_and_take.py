"""A model that was brought in goes through every other command, and leaves again as itself."""

import json

import pytest
import torch
from typer.testing import CliRunner

from headstart.cli.app import app
from headstart.errors import HeadstartError
from headstart.inference.loaded_model import load_model
from tests.convert.hf_models import save_stock
from tests.helpers.datasets import write_corpus, write_labelled

pytestmark = pytest.mark.slow

PLACES = {"max_position_embeddings": 66}
KINDS = {
    "bert": ("AutoModelForPreTraining", PLACES),
    "camembert": ("AutoModelForMaskedLM", {**PLACES, "type_vocab_size": 1}),
    "modernbert": ("AutoModelForMaskedLM", {**PLACES, "local_attention": 8}),
    "gpt2": ("AutoModelForCausalLM", {}),
    "llama": ("AutoModelForCausalLM", {**PLACES, "num_key_value_heads": 2, "tie_word_embeddings": True}),
}
# How to fine-tune each so that it leaves as a stock classifier; ModernBERT's has a norm that ours lack.
POOLER = ["--set", "objective.pooling=pooler", "--set", "objective.head_hidden_layer=linear"]
LEAVES = {
    "bert": (POOLER, "BertForSequenceClassification"),
    "camembert": ([*POOLER, "--set", "model.pooler=true"], "BertForSequenceClassification"),
    "gpt2": ([], "GPT2ForSequenceClassification"),
    "llama": ([], "LlamaForSequenceClassification"),
}


def call(*words):
    result = CliRunner().invoke(app, [str(word) for word in words])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


def bring(kind, tmp_path):
    door, settings = KINDS[kind]
    save_stock(tmp_path / "stock", kind, door, **settings)
    call("import", tmp_path / "stock", "--out", tmp_path / "base")
    return tmp_path / "base"


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_every_command_takes_a_model_that_was_brought_in(kind, tmp_path):
    base = bring(kind, tmp_path)
    table, corpus = write_labelled(tmp_path / "table.tsv"), write_corpus(tmp_path / "corpus.txt", 60)
    texts = tmp_path / "texts.txt"
    texts.write_text("a superb film\na boring plot\n")
    result = json.loads(call("evaluate", base, corpus, "--json"))
    assert result["count"] > 0
    assert result["loss"] > 0
    quick = ["--steps", "3", "--max-length", "32", "--set", "training.batch_size=8"]
    tune = call("finetune", base, table, "--out", tmp_path / "run", "--json", *quick)
    assert sum(json.loads(tune)["transfer"]["reused"].values()) > 0
    assert len(call("predict", tmp_path / "run", texts).splitlines()) == 2
    assert json.loads(call("evaluate", tmp_path / "run", table, "--json"))["count"] == 60
    call("embed", base, texts, "--out", tmp_path / "vectors.npy", "--quiet")
    call("search", base, texts, "a superb film", "--top", "1")
    call("plot", "attention", base, "the quick fox", "--out", tmp_path / "attention.svg")
    call("plot", "heads", base, texts, "--max-texts", "2", "--out", tmp_path / "heads.svg")


@pytest.mark.parametrize("kind", sorted(LEAVES))
def test_a_model_that_was_brought_in_and_taught_leaves_as_a_stock_classifier(kind, tmp_path):
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    base, (words, name) = bring(kind, tmp_path), LEAVES[kind]
    table = write_labelled(tmp_path / "table.tsv")
    quick = ["--steps", "3", "--max-length", "32", "--set", "training.batch_size=8", "--quiet"]
    call("finetune", base, table, "--out", tmp_path / "run", *quick, *words)
    said = call("export", tmp_path / "run", "--to", "transformers", "--out", tmp_path / "out")
    assert said.startswith(f"{name} in ")
    assert "tokens of 17 texts equal" in said
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    model = AutoModelForSequenceClassification.from_pretrained(tmp_path / "out").eval()
    assert model.config.id2label == {0: "bad", 1: "good"}
    texts = ["a superb film", "the plot was boring and the music was boring, too", ""]
    with torch.no_grad():
        scores = model(**tokenizer(texts, padding=True, truncation=True, return_tensors="pt")).logits.softmax(-1)
    trained = load_model(str(tmp_path / "run"))
    from headstart.batch import Batch, pad

    rows = [
        torch.from_numpy(trained.tokenizer.add_special_tokens(ids, 32)).long()
        for ids in trained.tokenizer.encode(texts)
    ]
    ours = trained.model()(Batch(*pad(rows, trained.tokenizer.pad_id)))["class"].softmax(-1)
    assert torch.allclose(scores, ours, atol=1e-5)


def test_a_comparison_takes_a_model_that_was_brought_in(tmp_path):
    base, table = bring("bert", tmp_path), write_labelled(tmp_path / "table.tsv")
    quick = ["--epochs", "1", "--max-length", "32", "--seeds", "2", "--quiet"]
    result = json.loads(call("compare", table, "--base", base, "--out", tmp_path / "compared", "--json", *quick))
    assert [arm["kind"] for arm in result["arms"]].count("fine-tuned") == 1


def test_a_body_without_scores_embeds_and_is_taught_but_answers_nothing(tmp_path):
    save_stock(tmp_path / "stock", "bert", "AutoModel", **PLACES)
    assert "no language-model head" in call("import", tmp_path / "stock", "--out", tmp_path / "base")
    texts, table = tmp_path / "texts.txt", write_labelled(tmp_path / "table.tsv")
    texts.write_text("a superb film\na boring plot\n")
    call("embed", tmp_path / "base", texts, "--out", tmp_path / "vectors.npy", "--quiet")
    call("plot", "attention", tmp_path / "base", "the quick fox", "--out", tmp_path / "attention.svg")
    call("finetune", tmp_path / "base", table, "--out", tmp_path / "run", "--steps", "1", "--quiet")
    drawing = ["plot", "heads", tmp_path / "base", texts, "--out", tmp_path / "heads.svg"]
    for words in (["evaluate", tmp_path / "base", texts], drawing):
        with pytest.raises(HeadstartError, match="without a language-model head"):
            call(*words)
    said = call("export", tmp_path / "base", "--to", "transformers", "--out", tmp_path / "out")
    assert said.startswith("BertModel in ")


def test_the_line_told_at_the_end_loads_the_model(tmp_path):
    import transformers

    base = bring("llama", tmp_path)
    said = call("export", base, "--to", "transformers", "--out", tmp_path / "out").splitlines()[-1]
    assert said.startswith("load it: transformers.AutoModelForCausalLM")
    model = eval(said.removeprefix("load it: "), {"transformers": transformers})
    assert type(model).__name__ == "LlamaForCausalLM"
    call("import", tmp_path / "out", "--out", tmp_path / "again")
    first, second = load_model(str(base)), load_model(str(tmp_path / "again"))
    assert set(first.weights) == set(second.weights)
    assert all(torch.equal(weight, second.weights[name]) for name, weight in first.weights.items())
