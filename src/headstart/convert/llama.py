"""Llama (Touvron et al., 2023) and EuroBERT (Boizard et al., 2025): one block, causal or bidirectional."""

from dataclasses import replace
from typing import Any

from headstart.config import ModelConfig
from headstart.convert.weight_map import (
    PLAIN,
    ConfigKey,
    HFClass,
    HFConfig,
    ModelFamily,
    Settings,
    Weights,
    with_prefix,
)
from headstart.errors import RunError

ACTIVATIONS = {"silu": "swiglu", "gelu": "geglu"}
POOLINGS = {"mean": "mean", "first": "bos"}


def rope_theta(config: HFConfig, content: Any, default: float) -> float:
    """The base of rotary positions, which must not be scaled; `content` is what config.json says about them."""
    rope = HFConfig(content or {}, f"the rotary positions of {config.source}")
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind != "default":
        raise RunError(
            f"{config.source} scales its rotary positions by the rule {kind!r}",
            hint="headstart supports rotary positions without scaling",
        )
    rope.require("partial_rotary_factor", (1, 1.0), 1)
    return float(rope.number("rope_theta", default))


def read(config: HFConfig, weights: Weights) -> Settings:
    """The settings of attention."""
    num_heads = config.integer("num_attention_heads")
    num_kv_heads = config.integer("num_key_value_heads", num_heads)
    head_size = config.integer("hidden_size") // num_heads
    config.require("head_dim", (head_size,), head_size)
    config.require("pretraining_tp", (1,), 1)
    rope = config.get("rope_parameters", config.get("rope_scaling"))
    return {
        "num_kv_heads": None if num_kv_heads == num_heads else num_kv_heads,
        "rope_theta": rope_theta(config, rope, config.number("rope_theta", 10000.0)),
    }


def write(body: ModelConfig) -> Settings:
    """What config.json says about attention."""
    return {
        "num_key_value_heads": body.num_kv_heads or body.num_heads,
        "rope_parameters": {"rope_type": "default", "rope_theta": body.rope_theta},
    }


def decoder_classes(backbone: str, language_model: str, classifier: str) -> dict[tuple[str, ...], HFClass]:
    """The classes of a decoder."""
    return {
        (): HFClass(backbone, "AutoModel"),
        ("lm",): HFClass(
            language_model,
            "AutoModelForCausalLM",
            outputs={"lm": "logits"},
            modules={"heads.lm": "lm_head"},
            supported={"mlm_head_transform": (False,), "has_head_bias": (False,)},
        ),
        ("class",): HFClass(
            classifier,
            "AutoModelForSequenceClassification",
            outputs={"class": "logits"},
            modules={"heads.class.classifier": "score"},
            supported={"has_head_bias": (False,)},
            head_supported={"pooling": ("last",), "projection": ("linear",)},
        ),
    }


LLAMA = ModelFamily(
    name="Llama",
    model_type="llama",
    train_flags="--preset tiny --objective causal-lm",
    supported={
        **PLAIN,
        "architecture": ("causal",),
        "position_embedding": ("rotary",),
        "norm": ("rms",),
        "norm_first": (True,),
        "activation": ("swiglu", "geglu"),
    },
    keys={
        "num_layers": ConfigKey("num_hidden_layers"),
        "hidden_size": ConfigKey("hidden_size"),
        "num_heads": ConfigKey("num_attention_heads"),
        "intermediate_size": ConfigKey("intermediate_size"),
        "activation": ConfigKey("hidden_act", default="silu", values=ACTIVATIONS),
        "bias": ConfigKey("attention_bias", "mlp_bias", default=False),
        "tie_embeddings": ConfigKey("tie_word_embeddings", default=False),
        "attention_dropout": ConfigKey("attention_dropout", default=0.0),
        "max_position_embeddings": ConfigKey("max_position_embeddings", default=2048),
        "norm_eps": ConfigKey("rms_norm_eps", default=1e-6),
    },
    other_keys=("rope_theta", "num_kv_heads"),
    modules={
        "backbone.embedding.token_embedding": "model.embed_tokens",
        "backbone.stack.final_norm": "model.norm",
        "backbone.stack.blocks.{}.attention.qkv_proj": (
            "model.layers.{}.self_attn.q_proj",
            "model.layers.{}.self_attn.k_proj",
            "model.layers.{}.self_attn.v_proj",
        ),
        "backbone.stack.blocks.{}.attention.out_proj": "model.layers.{}.self_attn.o_proj",
        "backbone.stack.blocks.{}.feed_forward.up_proj": (
            "model.layers.{}.mlp.gate_proj",
            "model.layers.{}.mlp.up_proj",
        ),
        "backbone.stack.blocks.{}.feed_forward.down_proj": "model.layers.{}.mlp.down_proj",
        "backbone.stack.blocks.{}.attention_norm": "model.layers.{}.input_layernorm",
        "backbone.stack.blocks.{}.feed_forward_norm": "model.layers.{}.post_attention_layernorm",
    },
    classes=decoder_classes("LlamaModel", "LlamaForCausalLM", "LlamaForSequenceClassification"),
    read=lambda config, weights: {**read(config, weights), "head_bias": False},
    write=write,
    rename=lambda config, weights: with_prefix(weights, "model.", ("lm_head.", "score.", "dense.", "classifier.")),
)

EUROBERT = replace(
    LLAMA,
    name="EuroBERT",
    model_type="eurobert",
    train_flags="--preset tiny --objective masked-lm",
    supported={**LLAMA.supported, "architecture": ("bidirectional",)},
    keys={
        **LLAMA.keys,
        "max_position_embeddings": ConfigKey("max_position_embeddings", default=8192),
        "norm_eps": ConfigKey("rms_norm_eps", default=1e-5),
    },
    read=read,
    classes={
        (): HFClass("EuroBertModel", "AutoModel"),
        ("lm",): HFClass(
            "EuroBertForMaskedLM",
            "AutoModelForMaskedLM",
            outputs={"lm": "logits"},
            modules={"heads.lm": "lm_head"},
            supported={"mlm_head_transform": (False,), "head_bias": (None,)},
        ),
        ("class",): HFClass(
            "EuroBertForSequenceClassification",
            "AutoModelForSequenceClassification",
            outputs={"class": "logits"},
            modules={"heads.class.dense": "dense", "heads.class.classifier": "classifier"},
            head_supported={"pooling": tuple(POOLINGS), "projection": ("dense",)},
            config=lambda spec: {"classifier_pooling": POOLINGS[spec.settings["pooling"]]},
        ),
    },
)
