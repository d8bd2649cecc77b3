"""BERT (Devlin et al., 2018), and what reads as it does once its positions are counted from 0: RoBERTa and its like."""

from dataclasses import replace
from typing import Any

import torch

from headstart.config import BodyConfig
from headstart.convert.hf_config import Reader
from headstart.convert.weight_map import Layout, Rule, Settings, Twin, Weights, layer
from headstart.errors import RunError

BENDS = {"gelu": "gelu", "relu": "relu", "gelu_new": "gelu-tanh", "gelu_pytorch_tanh": "gelu-tanh"}
NAMES = {"gelu": "gelu", "relu": "relu", "gelu-tanh": "gelu_new"}
PLACES, KINDS = "bert.embeddings.position_embeddings.weight", "bert.embeddings.token_type_embeddings.weight"
POOLER = ("backbone.pooler.weight", "backbone.pooler.bias")

WANTS: dict[str, tuple[Any, ...]] = {
    "kind": ("bidirectional",),
    "positions": ("learned",),
    "norm": ("layer",),
    "norm_first": (False,),
    "first_norm": (True,),
    "activation": tuple(NAMES),
    "biases": (True,),
    "qk_norm": (False,),
    "scale_embedding": (False,),
    "embedding_norm": (True,),
    "key_value_heads": (None,),
    "window": (None,),
}
CARRIES = (
    "layers", "width", "attention_heads", "feed_forward", "max_length", "segments", "pooler", "norm_epsilon",
)  # fmt: skip


def rules(body: BodyConfig) -> list[Rule]:
    """The weights of a body."""
    found = [
        Rule("backbone.embedding.token_embedding.weight", ("bert.embeddings.word_embeddings.weight",)),
        Rule("backbone.embedding.position_embedding.weight", (PLACES,)),
        *([Rule("backbone.embedding.token_type_embedding.weight", (KINDS,))] if body.segments else []),
        *layer("backbone.embedding.norm", "bert.embeddings.LayerNorm", bias=True),
        *(layer("backbone.pooler", "bert.pooler.dense", bias=True) if body.pooler else []),
    ]
    for number in range(body.layers):
        ours, theirs = f"backbone.stack.blocks.{number}", f"bert.encoder.layer.{number}"
        projections = [f"{theirs}.attention.self.{name}" for name in ("query", "key", "value")]
        found += [
            *layer(f"{ours}.attention.qkv_proj", *projections, bias=True, rows=3 * (body.width,)),
            *layer(f"{ours}.attention.out_proj", f"{theirs}.attention.output.dense", bias=True),
            *layer(f"{ours}.attention_norm", f"{theirs}.attention.output.LayerNorm", bias=True),
            *layer(f"{ours}.feed_forward.up_proj", f"{theirs}.intermediate.dense", bias=True),
            *layer(f"{ours}.feed_forward.down_proj", f"{theirs}.output.dense", bias=True),
            *layer(f"{ours}.feed_forward_norm", f"{theirs}.output.LayerNorm", bias=True),
        ]
    return found


def scores(body: BodyConfig) -> list[Rule]:
    """The weights of the language-model head, which reads the token table."""
    return [
        *layer("heads.lm.transform.dense", "cls.predictions.transform.dense", bias=True),
        *layer("heads.lm.transform.norm", "cls.predictions.transform.LayerNorm", bias=True),
        Rule("heads.lm.bias", ("cls.predictions.bias",)),
    ]


def follows(body: BodyConfig) -> list[Rule]:
    """The weights of the pair head."""
    return layer("heads.pair.classifier", "cls.seq_relationship", bias=True)


def config(body: BodyConfig) -> Settings:
    """What config.json says of a body."""
    return {
        "hidden_size": body.width,
        "num_hidden_layers": body.layers,
        "num_attention_heads": body.attention_heads,
        "intermediate_size": body.feed_forward,
        "hidden_act": NAMES[body.activation],
        "hidden_dropout_prob": body.dropout,
        "attention_probs_dropout_prob": body.attention_dropout,
        "max_position_embeddings": body.max_length,
        "type_vocab_size": 2 if body.segments else 1,
        "layer_norm_eps": body.norm_epsilon,
        "tie_word_embeddings": True,
    }


def extra(body: BodyConfig) -> Weights:
    """A body that tells no segments apart adds nothing for them."""
    return {} if body.segments else {KINDS: torch.zeros(1, body.width)}


def _tidy(weights: Weights, prefix: str) -> Weights:
    """Weights under BERT's present names: with its prefix, and without the names of its first days."""
    renamed = {}
    for name, weight in weights.items():
        name = name.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")
        if name.startswith(("embeddings.", "encoder.", "pooler.")):
            name = f"bert.{name}"
        renamed[f"bert.{name.removeprefix(prefix)}" if name.startswith(prefix) else name] = weight
    return renamed


def arrive(reader: Reader, weights: Weights) -> tuple[Settings, Weights]:
    """A body in our words."""
    reader.must("position_embedding_type", ("absolute",), "absolute")
    reader.must("is_decoder", (False,), False)
    reader.must("add_cross_attention", (False,), False)
    weights = _tidy(weights, "bert.")
    has_scores = "cls.predictions.transform.dense.weight" in weights
    if has_scores:
        reader.must("tie_word_embeddings", (True,), True)
    kinds = reader.whole("type_vocab_size", 2)
    if kinds > 2:
        raise RunError(
            f"{reader.where} tells {kinds} kinds of segments apart", hint="a body here knows two at most"
        )
    if (
        kinds == 1 and PLACES in weights and KINDS in weights
    ):  # the same vector for every token: part of its place
        weights[PLACES] = weights[PLACES] + weights.pop(KINDS)[:1]
    settings = {
        "kind": "bidirectional",
        "layers": reader.whole("num_hidden_layers"),
        "width": reader.whole("hidden_size"),
        "attention_heads": reader.whole("num_attention_heads"),
        "feed_forward": reader.whole("intermediate_size"),
        "positions": "learned",
        "norm": "layer",
        "norm_first": False,
        "norm_epsilon": reader.number("layer_norm_eps", 1e-12),
        "activation": reader.choice("hidden_act", BENDS, "gelu"),
        "biases": True,
        "tied": True,
        "segments": kinds == 2,
        "embedding_norm": True,
        "pooler": "bert.pooler.dense.weight" in weights,
        "dropout": reader.number("hidden_dropout_prob", 0.1),
        "attention_dropout": reader.number("attention_probs_dropout_prob", 0.1),
        "max_length": reader.whole("max_position_embeddings", 512),
        "lm_transform": has_scores,
    }
    return settings, weights


def arrive_roberta(reader: Reader, weights: Weights) -> tuple[Settings, Weights]:
    """A RoBERTa in BERT's words: its positions start after the padding token's number."""
    names = {
        "lm_head.dense.": "cls.predictions.transform.dense.",
        "lm_head.layer_norm.": "cls.predictions.transform.LayerNorm.",
        "lm_head.bias": "cls.predictions.bias",
        "lm_head.decoder.": "cls.predictions.decoder.",
    }
    renamed = {}
    for name, weight in _tidy(weights, "roberta.").items():
        begin = next((old for old in names if name.startswith(old)), "")
        renamed[names[begin] + name.removeprefix(begin) if begin else name] = weight
    if "cls.predictions.decoder.bias" in renamed:  # the same weight under two names
        renamed.setdefault("cls.predictions.bias", renamed["cls.predictions.decoder.bias"])
    first = int(reader.number("pad_token_id", 1)) + 1
    if PLACES in renamed:
        renamed[PLACES] = renamed[PLACES][first:]
    if (
        "cls.predictions.transform.dense.weight" in renamed
    ):  # its head is GELU's, whatever the body's activation
        reader.must("hidden_act", ("gelu",), "gelu")
    settings, renamed = arrive(reader, renamed)
    return {**settings, "max_length": settings["max_length"] - first}, renamed


BERT = Layout(
    name="BERT",
    model_type="bert",
    trained_by="--preset bert",
    wants=WANTS,
    carries=CARRIES,
    twins={
        (): Twin("BertModel", "AutoModel", {}),
        ("lm",): Twin(
            "BertForMaskedLM",
            "AutoModelForMaskedLM",
            {"lm": "logits"},
            scores,
            {"lm_transform": (True,), "tied": (True,), "has_head_biases": (True,)},
            leaves=POOLER,
        ),
        ("pair",): Twin(
            "BertForNextSentencePrediction",
            "AutoModelForNextSentencePrediction",
            {"pair": "logits"},
            follows,
            {"pooler": (True,)},
        ),
        ("lm", "pair"): Twin(
            "BertForPreTraining",
            "AutoModelForPreTraining",
            {"lm": "prediction_logits", "pair": "seq_relationship_logits"},
            lambda body: [*scores(body), *follows(body)],
            {"lm_transform": (True,), "tied": (True,), "has_head_biases": (True,), "pooler": (True,)},
        ),
        ("class",): Twin(
            "BertForSequenceClassification",
            "AutoModelForSequenceClassification",
            {"class": "logits"},
            lambda body: layer("heads.class.classifier", "classifier", bias=True),
            {"has_head_biases": (True,)},
            {"pooling": ("pooler",), "projection": ("linear",)},
            lambda spec: {"classifier_dropout": float(spec.settings.get("dropout", 0.0))},
        ),
    },
    rules=rules,
    config=config,
    arrive=arrive,
    extra=extra,
)
ROBERTA = replace(BERT, name="RoBERTa", model_type="roberta", arrive=arrive_roberta)
CAMEMBERT = replace(ROBERTA, name="CamemBERT", model_type="camembert")
XLM_ROBERTA = replace(ROBERTA, name="XLM-RoBERTa", model_type="xlm-roberta")
