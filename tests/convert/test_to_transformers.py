"""A run leaves as a stock model of transformers that reads and answers the same."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from headstart.atomic_io import write_folder
from headstart.batch import Batch, pad
from headstart.convert import to_transformers as exporter
from headstart.convert.from_transformers import load_transformers
from headstart.convert.parity import SAMPLES, SPECIALS
from headstart.convert.to_transformers import write_transformers
from headstart.errors import RunError
from tests.convert.hf_models import BERT_LIKE, GPT2_LIKE, MODERN, make_bundle

pytestmark = pytest.mark.slow  # transformers alone takes seconds to load

POOLER = {"pooling": "pooler", "head_hidden_layer": "linear"}
VARIANTS = [
    ("LlamaForCausalLM", {"objective": "causal-lm"}),
    (
        "LlamaForCausalLM",
        {"objective": "causal-lm", "tie_embeddings": False, "activation": "geglu", "tokenizer": "wordpiece"},
    ),
    ("LlamaForCausalLM", {"objective": "causal-lm", "num_kv_heads": 2, "rope_theta": 500.0}),
    ("LlamaForCausalLM", {"objective": "causal-lm", "bias": True, "head_bias": False}),
    ("LlamaForSequenceClassification", {"objective": "classify", "architecture": "causal"}),
    ("LlamaForSequenceClassification", {"objective": "classify", "architecture": "causal", "tokenizer": "characters"}),
    ("EuroBertForMaskedLM", {"objective": "masked-lm", "norm_eps": 1e-6}),
    ("EuroBertForMaskedLM", {"objective": "masked-lm", "tie_embeddings": False, "bias": True, "tokenizer": "unigram"}),
    ("EuroBertForMaskedLM", {"objective": "causal+masked", "attention_dropout": 0.1}),
    ("EuroBertForSequenceClassification", {"objective": "classify", "tokenizer": "unigram"}),
    ("EuroBertForSequenceClassification", {"objective": "classify", "settings": {"pooling": "first"}}),
    ("EuroBertForSequenceClassification", {"objective": "classify", "bias": True, "tie_embeddings": False}),
    ("BertForMaskedLM", {"objective": "masked-lm", **BERT_LIKE}),
    ("BertForMaskedLM", {"objective": "masked-lm", **BERT_LIKE, "pooler": False, "token_type_embeddings": False}),
    ("BertForPreTraining", {"objective": "masked-lm+next-sentence", "tokenizer": "wordpiece", **BERT_LIKE}),
    ("BertForNextSentencePrediction", {"objective": "next-sentence", **BERT_LIKE}),
    ("BertForSequenceClassification", {"objective": "classify", "settings": POOLER, **BERT_LIKE}),
    ("ModernBertForMaskedLM", {"objective": "masked-lm", **MODERN}),
    ("GPT2LMHeadModel", {"objective": "causal-lm", **GPT2_LIKE}),
    ("GPT2ForSequenceClassification", {"objective": "classify", "architecture": "causal", **GPT2_LIKE}),
]


def load(folder, auto_class):
    import transformers

    words = transformers.AutoTokenizer.from_pretrained(folder)
    return words, getattr(transformers, auto_class).from_pretrained(folder).eval()


@pytest.mark.parametrize(("name", "words"), VARIANTS)
def test_the_stock_class_gives_the_same_answers(name, words, tmp_path):
    bundle = make_bundle(**words)
    written = write_transformers(bundle, tmp_path)
    assert written.kind == name
    assert written.difference < 1e-4
    assert written.texts >= len(SAMPLES) - 1
    tokenizer, model = load(tmp_path, written.details["auto_class"])
    assert type(model).__name__ == name
    texts = ["a plain text", "naïve café 日本 " * 9, "😀"]
    given = tokenizer(texts, padding=True, truncation=True, return_tensors="pt")
    with torch.no_grad():
        theirs = model(**given)
    tokens = given["input_ids"].masked_fill(given["attention_mask"] == 0, bundle.tokenizer.pad_id)
    ours = bundle.outputs(Batch(tokens, given["attention_mask"].bool()))
    for head, field in {"lm": "prediction_logits" if "pair" in ours else "logits", "class": "logits"}.items():
        if head in ours:
            gap = (ours[head] - theirs[field]).abs()
            gap = gap[given["attention_mask"].bool()] if head == "lm" else gap
            assert float(gap.max()) < 1e-4


@pytest.mark.parametrize("kind", ["bpe", "unigram", "wordpiece", "characters"])
@pytest.mark.parametrize("keep", ["start", "end"])
def test_a_classifier_s_tokens_are_the_same_to_the_last_special(kind, keep, tmp_path):
    bundle = replace(make_bundle("classify", kind, length=24), truncation_side=keep)
    write_transformers(bundle, tmp_path)
    tokenizer, _ = load(tmp_path, "AutoModelForSequenceClassification")
    ours = [bundle.tokenizer.add_special_tokens(ids, 24, keep).tolist() for ids in bundle.tokenizer.encode(SAMPLES)]
    assert tokenizer(list(SAMPLES), truncation=True)["input_ids"] == ours
    padded = tokenizer(list(SAMPLES), truncation=True, padding=True, return_tensors="pt")
    tokens, real = pad([torch.tensor(row) for row in ours], bundle.tokenizer.pad_id)
    assert torch.equal(padded["input_ids"], tokens)
    assert torch.equal(padded["attention_mask"].bool(), real)
    assert SPECIALS in SAMPLES  # the names of special tokens are text in a text


def test_a_masked_language_model_reads_its_mask_and_its_pipeline_runs(tmp_path):
    from transformers import pipeline

    bundle = make_bundle("masked-lm")
    write_transformers(bundle, tmp_path)
    tokenizer, _ = load(tmp_path, "AutoModelForMaskedLM")
    assert bundle.tokenizer.mask_id in tokenizer("the [MASK] fox")["input_ids"]
    assert len(pipeline("fill-mask", model=str(tmp_path))("the [MASK] fox")) == 5


def test_a_causal_language_model_continues_a_text_without_an_end_token(tmp_path):
    bundle = make_bundle("causal-lm")
    write_transformers(bundle, tmp_path)
    tokenizer, model = load(tmp_path, "AutoModelForCausalLM")
    given = tokenizer("the quick", return_tensors="pt")
    ids = given["input_ids"][0].tolist()
    assert ids[0] == bundle.tokenizer.bos_id
    assert ids[-1] != bundle.tokenizer.eos_id
    longer = model.generate(**given, max_new_tokens=5, min_new_tokens=5, do_sample=False)[0].tolist()
    row = list(ids)
    for _ in range(5):  # the run itself, choosing the likeliest token again and again, and never the end
        mask = torch.ones(1, len(row), dtype=torch.bool)
        scores = bundle.outputs(Batch(torch.tensor([row]), mask))["lm"][0, -1].clone()
        scores[bundle.tokenizer.eos_id] = -torch.inf
        row.append(int(scores.argmax()))
    assert longer == row


def test_labels_travel_in_their_order(tmp_path):
    from transformers import pipeline

    classes = ("négatif", "positif", "1", "neutre 😐")
    bundle = make_bundle("classify", classes=classes)
    write_transformers(bundle, tmp_path)
    _, model = load(tmp_path, "AutoModelForSequenceClassification")
    assert [model.config.id2label[number] for number in range(4)] == list(classes)
    text = "the quick brown fox"
    found = pipeline("text-classification", model=str(tmp_path))(text)[0]
    tokens = torch.from_numpy(bundle.tokenizer.add_special_tokens(bundle.tokenizer.encode([text])[0], 40)).long()[None]
    said = bundle.outputs(Batch(tokens, torch.ones_like(tokens, dtype=torch.bool)))["class"].softmax(-1)[0]
    assert found["label"] == classes[int(said.argmax())]
    assert abs(found["score"] - float(said.max())) < 1e-4


@pytest.mark.parametrize(
    ("name", "words"), [row for row in VARIANTS if "Sequence" not in row[0] and "Next" not in row[0]]
)
def test_there_and_back_again_gives_the_same_vectors(name, words, tmp_path):
    bundle = make_bundle(**words)
    write_transformers(bundle, tmp_path)
    back = load_transformers(tmp_path)
    before = bundle.model.state_dict()
    if "pooler" in words and name == "BertForMaskedLM":
        before = {key: weight for key, weight in before.items() if "pooler" not in key}
    before = {key: weight for key, weight in before.items() if not key.startswith("heads.pair")}
    assert set(back.weights) == set(before)
    assert all(torch.equal(weight, before[key]) or "position_embedding" in key for key, weight in back.weights.items())
    assert back.tokenizer.size == bundle.tokenizer.size
    assert [ids.tolist() for ids in back.tokenizer.encode(SAMPLES)] == [
        ids.tolist() for ids in bundle.tokenizer.encode(SAMPLES)
    ]
    from headstart.models import BACKBONES

    body = BACKBONES[back.config.architecture](back.config, back.vocab_size).eval()
    body.load_state_dict(
        {key.removeprefix("backbone."): weight for key, weight in back.weights.items() if key.startswith("backbone.")}
    )
    rows = [torch.from_numpy(np.asarray(ids)[:30]).long() for ids in bundle.tokenizer.encode(SAMPLES) if len(ids)]
    batch = Batch(*pad(rows, bundle.tokenizer.pad_id))
    with torch.no_grad():
        gap = (body(batch) - bundle.model.backbone(batch)).abs()[batch.attention_mask]
    assert float(gap.max()) < 1e-4


def test_a_model_that_came_out_otherwise_is_not_left_behind(tmp_path, monkeypatch):
    bundle, real = make_bundle("masked-lm"), exporter.export_weights

    def wrong(rules, ours):
        found = real(rules, ours)
        found["model.layers.1.mlp.down_proj.weight"][0, 0] += 1.0
        return found

    monkeypatch.setattr(exporter, "export_weights", wrong)
    with pytest.raises(RunError, match="other outputs"):
        write_folder(tmp_path / "out", lambda beside: write_transformers(bundle, beside))
    assert list(tmp_path.iterdir()) == []


def test_tokens_that_came_out_otherwise_are_not_left_behind(tmp_path, monkeypatch):
    bundle, real = make_bundle("masked-lm"), exporter.save_tokenizer

    def wrong(bundle, tokenizer, folder, **options):
        number = real(bundle, tokenizer, folder, **options)
        path = folder / "tokenizer.json"
        layout = json.loads(path.read_text("utf-8"))
        layout["normalizer"] = {"type": "Lowercase"}
        path.write_text(json.dumps(layout), "utf-8")
        return number

    monkeypatch.setattr(exporter, "save_tokenizer", wrong)
    with pytest.raises(RunError, match="other tokens"):
        write_folder(tmp_path / "out", lambda beside: write_transformers(bundle, beside))
    assert list(tmp_path.iterdir()) == []


def test_a_weight_that_transformers_cannot_place_is_noticed(tmp_path, monkeypatch):
    bundle, real = make_bundle("masked-lm"), exporter.export_weights
    monkeypatch.setattr(exporter, "export_weights", lambda rules, ours: real(rules[:-1], ours))
    with pytest.raises(RunError, match="could not place"):
        write_transformers(bundle, tmp_path)


def test_truncation_at_both_sides_is_noted(tmp_path):
    written = write_transformers(replace(make_bundle("classify"), truncation_side="both"), tmp_path)
    assert any("both ends" in note for note in written.notes)
