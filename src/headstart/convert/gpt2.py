"""GPT-2 (Radford et al., 2019)."""

from headstart.config import BodyConfig
from headstart.convert.bert import ACTIVATIONS
from headstart.convert.hf_config import HFConfig
from headstart.convert.weight_map import ConfigKey, HFClass, ModelFamily, Settings, Weights, with_prefix


def read(config: HFConfig, weights: Weights) -> Settings:
    """The size of the feed-forward layer; attention must be scaled in the usual way."""
    config.require("scale_attn_weights", (True,), True)
    config.require("scale_attn_by_inverse_layer_idx", (False,), False)
    config.require("add_cross_attention", (False,), False)
    return {"feed_forward": config.integer("n_inner", 4 * config.integer("n_embd")), "head_biases": False}


def write(body: BodyConfig) -> Settings:
    """The size of the feed-forward layer."""
    return {"n_inner": body.feed_forward}


GPT2 = ModelFamily(
    name="GPT-2",
    model_type="gpt2",
    supported={
        "kind": ("causal",),
        "positions": ("learned",),
        "norm": ("layer",),
        "norm_first": (True,),
        "first_norm": (True,),
        "activation": ("gelu", "relu", "gelu-tanh"),
        "biases": (True,),
        "qk_norm": (False,),
        "scale_embedding": (False,),
        "segments": (False,),
        "embedding_norm": (False,),
        "pooler": (False,),
        "key_value_heads": (None,),
        "window": (None,),
    },
    keys={
        "layers": ConfigKey("n_layer"),
        "width": ConfigKey("n_embd"),
        "attention_heads": ConfigKey("n_head"),
        "activation": ConfigKey("activation_function", default="gelu_new", values=ACTIVATIONS),
        "tied": ConfigKey("tie_word_embeddings", default=True),
        "dropout": ConfigKey("resid_pdrop", "embd_pdrop", default=0.1),
        "attention_dropout": ConfigKey("attn_pdrop", default=0.1),
        "max_length": ConfigKey("n_positions", default=1024),
        "norm_epsilon": ConfigKey("layer_norm_epsilon", default=1e-5),
    },
    other_keys=("feed_forward",),
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
    classes={
        (): HFClass("GPT2Model", "AutoModel"),
        ("lm",): HFClass(
            "GPT2LMHeadModel",
            "AutoModelForCausalLM",
            outputs={"lm": "logits"},
            modules={"heads.lm": "lm_head"},
            supported={"lm_transform": (False,), "has_head_biases": (False,)},
        ),
        ("class",): HFClass(
            "GPT2ForSequenceClassification",
            "AutoModelForSequenceClassification",
            outputs={"class": "logits"},
            modules={"heads.class.classifier": "score"},
            supported={"has_head_biases": (False,)},
            head_supported={"pooling": ("last",), "projection": ("linear",)},
        ),
    },
    read=read,
    write=write,
    rename=lambda config, weights: with_prefix(weights, "transformer.", ("lm_head.", "score.")),
    transpose=True,
)
