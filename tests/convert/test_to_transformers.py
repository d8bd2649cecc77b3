"""A run leaves as a stock model of transformers that reads and answers the same."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from headstart.atomic_io import write_folder
from headstart.batch import Batch, pad
from headstart.convert import to_transformers as exporter
from headstart.convert.from_transformers import open_folder
from headstart.convert.parity import SAMPLES, SPECIALS
from headstart.convert.to_transformers import write_transformers
from headstart.errors import RunError
from tests.convert.hf_models import BERT_LIKE, GPT2_LIKE, MODERN, make_parcel

pytestmark = pytest.mark.slow  # transformers alone takes seconds to load

POOLER = {"pooling": "pooler", "projection": "linear"}
VARIANTS = [
    ("LlamaForCausalLM", {"objective": "causal-lm"}),
    (
        "LlamaForCausalLM",
        {"objective": "causal-lm", "tied": False, "activation": "geglu", "tokenizer": "wordpiece"},
    ),
    ("LlamaForCausalLM", {"objective": "causal-lm", "key_value_heads": 2, "rotary_base": 500.0}),
    ("LlamaForCausalLM", {"objective": "causal-lm", "biases": True, "head_biases": False}),
    ("LlamaForSequenceClassification", {"objective": "classify", "kind": "causal"}),
    (
        "LlamaForSequenceClassification",
        {"objective": "classify", "kind": "causal", "tokenizer": "characters"},
    ),
    ("EuroBertForMaskedLM", {"objective": "masked-lm", "norm_epsilon": 1e-6}),
    (
        "EuroBertForMaskedLM",
        {"objective": "masked-lm", "tied": False, "biases": True, "tokenizer": "unigram"},
    ),
    ("EuroBertForMaskedLM", {"objective": "causal+masked", "attention_dropout": 0.1}),
    ("EuroBertForSequenceClassification", {"objective": "classify", "tokenizer": "unigram"}),
    ("EuroBertForSequenceClassification", {"objective": "classify", "settings": {"pooling": "first"}}),
    ("EuroBertForSequenceClassification", {"objective": "classify", "biases": True, "tied": False}),
    ("BertForMaskedLM", {"objective": "masked-lm", **BERT_LIKE}),
    ("BertForMaskedLM", {"objective": "masked-lm", **BERT_LIKE, "pooler": False, "segments": False}),
    ("BertForPreTraining", {"objective": "masked-lm+next-sentence", "tokenizer": "wordpiece", **BERT_LIKE}),
    ("BertForNextSentencePrediction", {"objective": "next-sentence", **BERT_LIKE}),
    ("BertForSequenceClassification", {"objective": "classify", "settings": POOLER, **BERT_LIKE}),
    ("ModernBertForMaskedLM", {"objective": "masked-lm", **MODERN}),
    ("GPT2LMHeadModel", {"objective": "causal-lm", **GPT2_LIKE}),
    ("GPT2ForSequenceClassification", {"objective": "classify", "kind": "causal", **GPT2_LIKE}),
]


def load(folder, door):
    import transformers

    words = transformers.AutoTokenizer.from_pretrained(folder)
    return words, getattr(transformers, door).from_pretrained(folder).eval()


@pytest.mark.parametrize(("name", "words"), VARIANTS)
def test_the_stock_class_gives_the_same_answers(name, words, tmp_path):
    parcel = make_parcel(**words)
    written = write_transformers(parcel, tmp_path)
    assert written.kind == name
    assert written.difference < 1e-4
    assert written.texts >= len(SAMPLES) - 1
    tokenizer, model = load(tmp_path, written.details["door"])
    assert type(model).__name__ == name
    texts = ["a plain text", "naïve café 日本 " * 9, "😀"]
    given = tokenizer(texts, padding=True, truncation=True, return_tensors="pt")
    with torch.no_grad():
        theirs = model(**given)
    tokens = given["input_ids"].masked_fill(given["attention_mask"] == 0, parcel.tokenizer.padding)
    ours = parcel.answers(tokens, given["attention_mask"].bool())
    for head, field in {"lm": "prediction_logits" if "pair" in ours else "logits", "class": "logits"}.items():
        if head in ours:
            gap = (ours[head] - theirs[field]).abs()
            gap = gap[given["attention_mask"].bool()] if head == "lm" else gap
            assert float(gap.max()) < 1e-4


@pytest.mark.parametrize("kind", ["bpe", "unigram", "wordpiece", "characters"])
@pytest.mark.parametrize("keep", ["start", "end"])
def test_a_classifier_s_tokens_are_the_same_to_the_last_special(kind, keep, tmp_path):
    parcel = replace(make_parcel("classify", kind, length=24), keep=keep)
    write_transformers(parcel, tmp_path)
    tokenizer, _ = load(tmp_path, "AutoModelForSequenceClassification")
    ours = [parcel.tokenizer.frame(ids, 24, keep).tolist() for ids in parcel.tokenizer.encode(SAMPLES)]
    assert tokenizer(list(SAMPLES), truncation=True)["input_ids"] == ours
    padded = tokenizer(list(SAMPLES), truncation=True, padding=True, return_tensors="pt")
    tokens, real = pad([torch.tensor(row) for row in ours], parcel.tokenizer.padding)
    assert torch.equal(padded["input_ids"], tokens)
    assert torch.equal(padded["attention_mask"].bool(), real)
    assert SPECIALS in SAMPLES  # the names of special tokens are text in a text


def test_a_masked_language_model_reads_its_mask_and_its_pipeline_runs(tmp_path):
    from transformers import pipeline

    parcel = make_parcel("masked-lm")
    write_transformers(parcel, tmp_path)
    tokenizer, _ = load(tmp_path, "AutoModelForMaskedLM")
    assert parcel.tokenizer.mask in tokenizer("the [MASK] fox")["input_ids"]
    assert len(pipeline("fill-mask", model=str(tmp_path))("the [MASK] fox")) == 5


def test_a_causal_language_model_goes_on_with_a_text_that_is_not_closed(tmp_path):
    parcel = make_parcel("causal-lm")
    write_transformers(parcel, tmp_path)
    tokenizer, model = load(tmp_path, "AutoModelForCausalLM")
    given = tokenizer("the quick", return_tensors="pt")
    ids = given["input_ids"][0].tolist()
    assert ids[0] == parcel.tokenizer.first
    assert ids[-1] != parcel.tokenizer.last
    longer = model.generate(**given, max_new_tokens=5, min_new_tokens=5, do_sample=False)[0].tolist()
    row = list(ids)
    for _ in range(5):  # the run itself, choosing the likeliest token again and again, and never the end
        scores = parcel.answers(torch.tensor([row]), torch.ones(1, len(row), dtype=torch.bool))["lm"][
            0, -1
        ].clone()
        scores[parcel.tokenizer.last] = -torch.inf
        row.append(int(scores.argmax()))
    assert longer == row


def test_labels_travel_in_their_order(tmp_path):
    from transformers import pipeline

    classes = ("négatif", "positif", "1", "neutre 😐")
    parcel = make_parcel("classify", classes=classes)
    write_transformers(parcel, tmp_path)
    _, model = load(tmp_path, "AutoModelForSequenceClassification")
    assert [model.config.id2label[number] for number in range(4)] == list(classes)
    text = "the quick brown fox"
    found = pipeline("text-classification", model=str(tmp_path))(text)[0]
    tokens = torch.from_numpy(parcel.tokenizer.frame(parcel.tokenizer.encode([text])[0], 40)).long()[None]
    said = parcel.answers(tokens, torch.ones_like(tokens, dtype=torch.bool))["class"].softmax(-1)[0]
    assert found["label"] == classes[int(said.argmax())]
    assert abs(found["score"] - float(said.max())) < 1e-4


@pytest.mark.parametrize(
    ("name", "words"), [row for row in VARIANTS if "Sequence" not in row[0] and "Next" not in row[0]]
)
def test_there_and_back_again_gives_the_same_vectors(name, words, tmp_path):
    parcel = make_parcel(**words)
    write_transformers(parcel, tmp_path)
    back = open_folder(tmp_path)
    before = parcel.model.state_dict()
    if "pooler" in words and name == "BertForMaskedLM":
        before = {key: weight for key, weight in before.items() if "pooler" not in key}
    before = {key: weight for key, weight in before.items() if not key.startswith("heads.pair")}
    assert set(back.weights) == set(before)
    assert all(torch.equal(weight, before[key]) or "places" in key for key, weight in back.weights.items())
    assert back.tokenizer.size == parcel.tokenizer.size
    assert [ids.tolist() for ids in back.tokenizer.encode(SAMPLES)] == [
        ids.tolist() for ids in parcel.tokenizer.encode(SAMPLES)
    ]
    from headstart.models.bodies import BODIES

    body = BODIES[back.body.kind](back.body, back.vocabulary).eval()
    body.load_state_dict(
        {
            key.removeprefix("backbone."): weight
            for key, weight in back.weights.items()
            if key.startswith("backbone.")
        }
    )
    rows = [
        torch.from_numpy(np.asarray(ids)[:30]).long() for ids in parcel.tokenizer.encode(SAMPLES) if len(ids)
    ]
    batch = Batch(*pad(rows, parcel.tokenizer.padding))
    with torch.no_grad():
        gap = (body(batch) - parcel.model.backbone(batch)).abs()[batch.real]
    assert float(gap.max()) < 1e-4


def test_a_model_that_came_out_otherwise_is_not_left_behind(tmp_path, monkeypatch):
    parcel, real = make_parcel("masked-lm"), exporter.scatter

    def wrong(rules, ours):
        found = real(rules, ours)
        found["model.layers.1.mlp.down_proj.weight"][0, 0] += 1.0
        return found

    monkeypatch.setattr(exporter, "scatter", wrong)
    with pytest.raises(RunError, match="answers otherwise"):
        write_folder(tmp_path / "out", lambda beside: write_transformers(parcel, beside))
    assert list(tmp_path.iterdir()) == []


def test_tokens_that_came_out_otherwise_are_not_left_behind(tmp_path, monkeypatch):
    parcel, real = make_parcel("masked-lm"), exporter.leave

    def wrong(tokenizer, folder, **words):
        number = real(tokenizer, folder, **words)
        path = folder / "tokenizer.json"
        layout = json.loads(path.read_text("utf-8"))
        layout["normalizer"] = {"type": "Lowercase"}
        path.write_text(json.dumps(layout), "utf-8")
        return number

    monkeypatch.setattr(exporter, "leave", wrong)
    with pytest.raises(RunError, match="other tokens"):
        write_folder(tmp_path / "out", lambda beside: write_transformers(parcel, beside))
    assert list(tmp_path.iterdir()) == []


def test_a_weight_that_transformers_cannot_place_is_noticed(tmp_path, monkeypatch):
    parcel, real = make_parcel("masked-lm"), exporter.scatter
    monkeypatch.setattr(exporter, "scatter", lambda rules, ours: real(rules[:-1], ours))
    with pytest.raises(RunError, match="could not place"):
        write_transformers(parcel, tmp_path)


def test_what_is_cut_at_both_ends_is_told(tmp_path):
    written = write_transformers(replace(make_parcel("classify"), keep="both"), tmp_path)
    assert any("both ends" in note for note in written.notes)
