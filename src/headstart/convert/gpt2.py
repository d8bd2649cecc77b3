"""GPT-2 (Radford et al., 2019)."""

from headstart.config import ModelConfig
from headstart.convert.bert import ACTIVATIONS
from headstart.convert.llama import decoder_classes
from headstart.convert.weight_map import PLAIN, ConfigKey, HFConfig, ModelFamily, Settings, Weights, with_prefix


def read(config: HFConfig, weights: Weights) -> Settings:
    """The size of the feed-forward layer; attention must be scaled in the usual way."""
    config.require("scale_attn_weights", (True,), True)
    config.require("scale_attn_by_inverse_layer_idx", (False,), False)
    config.require("add_cross_attention", (False,), False)
    return {"intermediate_size": config.integer("n_inner", 4 * config.integer("n_embd")), "head_bias": False}


def write(body: ModelConfig) -> Settings:
    """The size of the feed-forward layer."""
    return {"n_inner": body.intermediate_size}


GPT2 = ModelFamily(
    name="GPT-2",
    model_type="gpt2",
    supported={
        **PLAIN,
        "architecture": ("causal",),
        "position_embedding": ("learned",),
        "norm": ("layer",),
        "norm_first": (True,),
        "activation": ("gelu", "relu", "gelu-tanh"),
        "bias": (True,),
        "num_kv_heads": (None,),
    },
    keys={
        "num_layers": ConfigKey("n_layer"),
        "hidden_size": ConfigKey("n_embd"),
        "num_heads": ConfigKey("n_head"),
        "activation": ConfigKey("activation_function", default="gelu_new", values=ACTIVATIONS),
        "tie_embeddings": ConfigKey("tie_word_embeddings", default=True),
        "dropout": ConfigKey("resid_pdrop", "embd_pdrop", default=0.1),
        "attention_dropout": ConfigKey("attn_pdrop", default=0.1),
        "max_position_embeddings": ConfigKey("n_positions", default=1024),
        "norm_eps": ConfigKey("layer_norm_epsilon", default=1e-5),
    },
    other_keys=("intermediate_size",),
    modules={
        "backbone.embedding.token_embedding": "transformer.wte",
        "backbone.embedding.position_embedding": "transformer.wpe",
        "backbone.stack.final_norm": "transformer.ln_f",
        "backbone.stack.blocks.{}.attention_norm": "transformer.h.{}.ln_1",
        "backbone.stack.blocks.{}.attention.qkv_proj": "transformer.h.{}.attn.c_attn",
        "backbone.stack.blocks.{}.attention.out_proj": "transformer.h.{}.attn.c_proj",
        "backbone.stack.blocks.{}.feed_forward_norm": "transformer.h.{}.ln_2",
        "backbone.stack.blocks.{}.feed_forward.up_proj": "transformer.h.{}.mlp.c_fc",
        "backbone.stack.blocks.{}.feed_forward.down_proj": "transformer.h.{}.mlp.c_proj",
    },
    classes=decoder_classes("GPT2Model", "GPT2LMHeadModel", "GPT2ForSequenceClassification"),
    read=read,
    write=write,
    rename=lambda config, weights: with_prefix(weights, "transformer.", ("lm_head.", "score.")),
    transpose=True,
)
