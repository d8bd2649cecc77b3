"""ModernBERT (Warner et al., 2024): most layers use sliding-window attention with a rotary base of their own."""

from headstart.config import ModelConfig
from headstart.convert.llama import rope_theta
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

GLOBAL, LOCAL = "full_attention", "sliding_attention"


def _global_every(config: HFConfig) -> int:
    """The distance between global layers; the first layer must be one, and the distances equal."""
    types, num_layers = config.get("layer_types"), config.integer("num_hidden_layers")
    if types is None:
        return config.integer("global_attn_every_n_layers", 3)
    if not isinstance(types, list) or len(types) != num_layers:
        raise RunError(
            f"layer_types in {config.source} is {types!r}, which does not fit {num_layers} layers",
            hint="correct config.json",
        )
    every = next((number for number, name in enumerate(types) if number and name == GLOBAL), num_layers)
    if [LOCAL if number % every else GLOBAL for number in range(num_layers)] != types:
        raise RunError(
            f"layer_types in {config.source} is irregular, which headstart does not support",
            hint="the first layer and every n-th one after it must have full attention",
        )
    return every


def read(config: HFConfig, weights: Weights) -> Settings:
    """The settings of attention and of the language-model head."""
    every, rope = _global_every(config), config.get("rope_parameters", {})
    has_head = "head.dense.weight" in weights and "classifier.weight" not in weights
    if has_head:
        bias = bool(config.get("norm_bias", False))
        config.require("tie_word_embeddings", (True,), True)
        config.require("classifier_activation", (config.get("hidden_activation", "gelu"),), "gelu")
        config.require("classifier_bias", (bias,), False)
    return {
        "tie_embeddings": True,
        "mlm_head_transform": has_head,
        "head_bias": config.flag("decoder_bias", default=True),
        "sliding_window": None if every == 1 else config.integer("local_attention", 128) // 2,
        "global_attn_every_n_layers": every,
        "rope_theta": rope_theta(config, rope.get(GLOBAL), config.number("global_rope_theta", 160000.0)),
        "local_rope_theta": rope_theta(config, rope.get(LOCAL), config.number("local_rope_theta", 10000.0)),
    }


def write(body: ModelConfig) -> Settings:
    """What config.json says about attention and the language-model head."""
    return {
        "classifier_bias": body.bias,
        "decoder_bias": body.has_head_bias,
        "layer_types": [LOCAL if body.is_local(number) else GLOBAL for number in range(body.num_layers)],
        "rope_parameters": {
            GLOBAL: {"rope_type": "default", "rope_theta": body.rope_theta},
            LOCAL: {"rope_type": "default", "rope_theta": body.local_rope_theta},
        },
        "local_attention": 2 * (body.sliding_window or body.max_position_embeddings),
        "tie_word_embeddings": True,
    }


MODERNBERT = ModelFamily(
    name="ModernBERT",
    model_type="modernbert",
    supported={
        **{name: values for name, values in PLAIN.items() if name != "sliding_window"},
        "architecture": ("bidirectional",),
        "position_embedding": ("rotary",),
        "norm": ("layer",),
        "norm_first": (True,),
        "norm_first_layer": (False,),
        "activation": ("geglu", "swiglu"),
        "embedding_norm": (True,),
        "num_kv_heads": (None,),
    },
    keys={
        "num_layers": ConfigKey("num_hidden_layers"),
        "hidden_size": ConfigKey("hidden_size"),
        "num_heads": ConfigKey("num_attention_heads"),
        "intermediate_size": ConfigKey("intermediate_size"),
        "activation": ConfigKey(
            "hidden_activation", "classifier_activation", default="gelu", values={"gelu": "geglu", "silu": "swiglu"}
        ),
        "bias": ConfigKey("norm_bias", "attention_bias", "mlp_bias", default=False),
        "dropout": ConfigKey("mlp_dropout", "embedding_dropout", default=0.0),
        "attention_dropout": ConfigKey("attention_dropout", default=0.0),
        "max_position_embeddings": ConfigKey("max_position_embeddings", default=8192),
        "norm_eps": ConfigKey("norm_eps", default=1e-5),
    },
    other_keys=("head_bias", "sliding_window", "global_attn_every_n_layers", "rope_theta", "local_rope_theta"),
    modules={
        "backbone.embedding.token_embedding": "model.embeddings.tok_embeddings",
        "backbone.embedding.norm": "model.embeddings.norm",
        "backbone.stack.final_norm": "model.final_norm",
        "backbone.stack.blocks.{}.attention_norm": "model.layers.{}.attn_norm",
        "backbone.stack.blocks.{}.attention.qkv_proj": "model.layers.{}.attn.Wqkv",
        "backbone.stack.blocks.{}.attention.out_proj": "model.layers.{}.attn.Wo",
        "backbone.stack.blocks.{}.feed_forward_norm": "model.layers.{}.mlp_norm",
        "backbone.stack.blocks.{}.feed_forward.up_proj": "model.layers.{}.mlp.Wi",
        "backbone.stack.blocks.{}.feed_forward.down_proj": "model.layers.{}.mlp.Wo",
    },
    classes={
        (): HFClass("ModernBertModel", "AutoModel"),
        ("lm",): HFClass(
            "ModernBertForMaskedLM",
            "AutoModelForMaskedLM",
            outputs={"lm": "logits"},
            modules={
                "heads.lm.transform.dense": "head.dense",
                "heads.lm.transform.norm": "head.norm",
                "heads.lm": "decoder",
            },
            supported={"mlm_head_transform": (True,), "tie_embeddings": (True,)},
        ),
    },
    read=read,
    write=write,
    rename=lambda config, weights: with_prefix(weights, "model.", ("head.", "decoder.", "classifier.")),
)
