"""BERT (Devlin et al., 2018), and RoBERTa and its variants, which equal it once positions are counted from 0."""

from dataclasses import replace

import torch

from headstart.config import ModelConfig
from headstart.convert.weight_map import PLAIN, ConfigKey, HFClass, HFConfig, ModelFamily, Settings, Weights
from headstart.errors import RunError

ACTIVATIONS = {"gelu": "gelu", "relu": "relu", "gelu_new": "gelu-tanh", "gelu_pytorch_tanh": "gelu-tanh"}
POSITIONS = "bert.embeddings.position_embeddings.weight"
TOKEN_TYPES = "bert.embeddings.token_type_embeddings.weight"
HEAD = "cls.predictions.transform.dense.weight"
LM_HEAD = {
    "heads.lm.transform.dense": "cls.predictions.transform.dense",
    "heads.lm.transform.norm": "cls.predictions.transform.LayerNorm",
    "heads.lm": "cls.predictions",
}
PAIR_HEAD = {"heads.pair.classifier": "cls.seq_relationship"}
LM_SUPPORTED = {"mlm_head_transform": (True,), "tie_embeddings": (True,), "has_head_bias": (True,)}


def read(config: HFConfig, weights: Weights) -> Settings:
    """The settings that the weights decide."""
    config.require("position_embedding_type", ("absolute",), "absolute")
    config.require("is_decoder", (False,), False)
    config.require("add_cross_attention", (False,), False)
    if HEAD in weights:
        config.require("tie_word_embeddings", (True,), True)
    token_types = config.integer("type_vocab_size", 2)
    if token_types > 2:
        raise RunError(f"{config.source} has {token_types} token types", hint="headstart supports two")
    return {
        "tie_embeddings": True,
        "mlm_head_transform": HEAD in weights,
        "pooler": "bert.pooler.dense.weight" in weights,
        "token_type_embeddings": token_types == 2,
    }


def write(body: ModelConfig) -> Settings:
    """What config.json says about token types and tied embeddings."""
    return {"type_vocab_size": 2 if body.token_type_embeddings else 1, "tie_word_embeddings": True}


def rename(config: HFConfig, weights: Weights, prefix: str = "bert.") -> Weights:
    """Weights under the present names: with the prefix, and without the names of the first releases."""
    renamed = {}
    for name, weight in weights.items():
        name = name.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")
        if name.startswith(("embeddings.", "encoder.", "pooler.")):
            name = f"bert.{name}"
        renamed[f"bert.{name.removeprefix(prefix)}" if name.startswith(prefix) else name] = weight
    if config.get("type_vocab_size") == 1 and POSITIONS in renamed and TOKEN_TYPES in renamed:
        # one token type adds the same vector to every token: a part of its position
        renamed[POSITIONS] = renamed[POSITIONS] + renamed.pop(TOKEN_TYPES)[:1]
    return renamed


BERT = ModelFamily(
    name="BERT",
    model_type="bert",
    train_flags="--preset bert",
    supported={
        **{name: values for name, values in PLAIN.items() if name not in ("token_type_embeddings", "pooler")},
        "architecture": ("bidirectional",),
        "position_embedding": ("learned",),
        "norm": ("layer",),
        "norm_first": (False,),
        "activation": ("gelu", "relu", "gelu-tanh"),
        "bias": (True,),
        "embedding_norm": (True,),
        "num_kv_heads": (None,),
    },
    keys={
        "num_layers": ConfigKey("num_hidden_layers"),
        "hidden_size": ConfigKey("hidden_size"),
        "num_heads": ConfigKey("num_attention_heads"),
        "intermediate_size": ConfigKey("intermediate_size"),
        "activation": ConfigKey("hidden_act", default="gelu", values=ACTIVATIONS),
        "dropout": ConfigKey("hidden_dropout_prob", default=0.1),
        "attention_dropout": ConfigKey("attention_probs_dropout_prob", default=0.1),
        "max_position_embeddings": ConfigKey("max_position_embeddings", default=512),
        "norm_eps": ConfigKey("layer_norm_eps", default=1e-12),
    },
    other_keys=("token_type_embeddings", "pooler"),
    modules={
        "backbone.embedding.token_embedding": "bert.embeddings.word_embeddings",
        "backbone.embedding.position_embedding": "bert.embeddings.position_embeddings",
        "backbone.embedding.token_type_embedding": "bert.embeddings.token_type_embeddings",
        "backbone.embedding.norm": "bert.embeddings.LayerNorm",
        "backbone.pooler": "bert.pooler.dense",
        "backbone.stack.blocks.{}.attention.qkv_proj": (
            "bert.encoder.layer.{}.attention.self.query",
            "bert.encoder.layer.{}.attention.self.key",
            "bert.encoder.layer.{}.attention.self.value",
        ),
        "backbone.stack.blocks.{}.attention.out_proj": "bert.encoder.layer.{}.attention.output.dense",
        "backbone.stack.blocks.{}.attention_norm": "bert.encoder.layer.{}.attention.output.LayerNorm",
        "backbone.stack.blocks.{}.feed_forward.up_proj": "bert.encoder.layer.{}.intermediate.dense",
        "backbone.stack.blocks.{}.feed_forward.down_proj": "bert.encoder.layer.{}.output.dense",
        "backbone.stack.blocks.{}.feed_forward_norm": "bert.encoder.layer.{}.output.LayerNorm",
    },
    classes={
        (): HFClass("BertModel", "AutoModel"),
        ("lm",): HFClass(
            "BertForMaskedLM",
            "AutoModelForMaskedLM",
            outputs={"lm": "logits"},
            modules=LM_HEAD,
            supported=LM_SUPPORTED,
            unused=("backbone.pooler.weight", "backbone.pooler.bias"),
        ),
        ("pair",): HFClass(
            "BertForNextSentencePrediction",
            "AutoModelForNextSentencePrediction",
            outputs={"pair": "logits"},
            modules=PAIR_HEAD,
            supported={"pooler": (True,)},
        ),
        ("lm", "pair"): HFClass(
            "BertForPreTraining",
            "AutoModelForPreTraining",
            outputs={"lm": "prediction_logits", "pair": "seq_relationship_logits"},
            modules=LM_HEAD | PAIR_HEAD,
            supported={**LM_SUPPORTED, "pooler": (True,)},
        ),
        ("class",): HFClass(
            "BertForSequenceClassification",
            "AutoModelForSequenceClassification",
            outputs={"class": "logits"},
            modules={"heads.class.classifier": "classifier"},
            supported={"has_head_bias": (True,)},
            head_supported={"pooling": ("pooler",), "projection": ("linear",)},
            config=lambda spec: {"classifier_dropout": float(spec.settings.get("dropout", 0.0))},
        ),
    },
    read=read,
    write=write,
    rename=rename,
    extra_weights=lambda body: {} if body.token_type_embeddings else {TOKEN_TYPES: torch.zeros(1, body.hidden_size)},
)


# --- RoBERTa


def _num_reserved(config: HFConfig) -> int:
    """RoBERTa counts positions from the one after the padding token's id."""
    return int(config.number("pad_token_id", 1)) + 1


def read_roberta(config: HFConfig, weights: Weights) -> Settings:
    """The settings that the weights decide, and the number of positions."""
    if HEAD in weights:  # the head of RoBERTa is a GELU, whatever the backbone's activation
        config.require("hidden_act", ("gelu",), "gelu")
    max_length = config.integer("max_position_embeddings", 512) - _num_reserved(config)
    return {**read(config, weights), "max_position_embeddings": max_length}


def rename_roberta(config: HFConfig, weights: Weights) -> Weights:
    """Weights under BERT's names."""
    prefixes = {
        "lm_head.dense.": "cls.predictions.transform.dense.",
        "lm_head.layer_norm.": "cls.predictions.transform.LayerNorm.",
        "lm_head.bias": "cls.predictions.bias",
        "lm_head.decoder.": "cls.predictions.decoder.",
    }
    renamed = {}
    for name, weight in rename(config, weights, "roberta.").items():
        prefix = next((old for old in prefixes if name.startswith(old)), "")
        renamed[prefixes.get(prefix, "") + name.removeprefix(prefix)] = weight
    if "cls.predictions.decoder.bias" in renamed:  # the same weight under two names
        renamed.setdefault("cls.predictions.bias", renamed["cls.predictions.decoder.bias"])
    if POSITIONS in renamed:
        renamed[POSITIONS] = renamed[POSITIONS][_num_reserved(config) :]
    return renamed


ROBERTA = replace(BERT, name="RoBERTa", model_type="roberta", read=read_roberta, rename=rename_roberta)
CAMEMBERT = replace(ROBERTA, name="CamemBERT", model_type="camembert")
XLM_ROBERTA = replace(ROBERTA, name="XLM-RoBERTa", model_type="xlm-roberta")
