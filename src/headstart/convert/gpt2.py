"""GPT-2 (Radford et al., 2019)."""

from typing import Any

from headstart.config import BodyConfig
from headstart.convert.bert import BENDS, NAMES
from headstart.convert.hf_config import Reader
from headstart.convert.weight_map import Layout, Rule, Settings, Twin, Weights, layer, prefixed

WANTS: dict[str, tuple[Any, ...]] = {
    "kind": ("causal",),
    "positions": ("learned",),
    "norm": ("layer",),
    "norm_first": (True,),
    "first_norm": (True,),
    "activation": tuple(NAMES),
    "biases": (True,),
    "qk_norm": (False,),
    "scale_embedding": (False,),
    "segments": (False,),
    "embedding_norm": (False,),
    "pooler": (False,),
    "key_value_heads": (None,),
    "window": (None,),
}
CARRIES = ("layers", "width", "attention_heads", "feed_forward", "tied", "max_length", "norm_epsilon")


def rules(body: BodyConfig) -> list[Rule]:
    """The weights of a body; its linear maps are stored the other way round."""
    found = [
        Rule("backbone.embedding.token_embedding.weight", ("transformer.wte.weight",)),
        Rule("backbone.embedding.position_embedding.weight", ("transformer.wpe.weight",)),
        *layer("backbone.stack.final_norm", "transformer.ln_f", bias=True),
    ]
    for number in range(body.layers):
        ours, theirs = f"backbone.stack.blocks.{number}", f"transformer.h.{number}"
        found += [
            *layer(f"{ours}.attention_norm", f"{theirs}.ln_1", bias=True),
            *layer(f"{ours}.attention.qkv_proj", f"{theirs}.attn.c_attn", bias=True, is_turned=True),
            *layer(f"{ours}.attention.out_proj", f"{theirs}.attn.c_proj", bias=True, is_turned=True),
            *layer(f"{ours}.feed_forward_norm", f"{theirs}.ln_2", bias=True),
            *layer(f"{ours}.feed_forward.up_proj", f"{theirs}.mlp.c_fc", bias=True, is_turned=True),
            *layer(f"{ours}.feed_forward.down_proj", f"{theirs}.mlp.c_proj", bias=True, is_turned=True),
        ]
    return found


def config(body: BodyConfig) -> Settings:
    """What config.json says of a body."""
    return {
        "n_embd": body.width,
        "n_layer": body.layers,
        "n_head": body.attention_heads,
        "n_inner": body.feed_forward,
        "n_positions": body.max_length,
        "activation_function": NAMES[body.activation],
        "layer_norm_epsilon": body.norm_epsilon,
        "resid_pdrop": body.dropout,
        "embd_pdrop": body.dropout,
        "attn_pdrop": body.attention_dropout,
        "tie_word_embeddings": body.tied,
    }


def arrive(reader: Reader, weights: Weights) -> tuple[Settings, Weights]:
    """A body in our words."""
    reader.must("scale_attn_weights", (True,), True)
    reader.must("scale_attn_by_inverse_layer_idx", (False,), False)
    reader.must("add_cross_attention", (False,), False)
    width = reader.whole("n_embd")
    settings = {
        "kind": "causal",
        "layers": reader.whole("n_layer"),
        "width": width,
        "attention_heads": reader.whole("n_head"),
        "feed_forward": reader.whole("n_inner", 4 * width),
        "positions": "learned",
        "norm": "layer",
        "norm_first": True,
        "norm_epsilon": reader.number("layer_norm_epsilon", 1e-5),
        "activation": reader.choice("activation_function", BENDS, "gelu_new"),
        "biases": True,
        "head_biases": False,
        "tied": bool(reader.get("tie_word_embeddings", True)),
        "dropout": reader.number("resid_pdrop", 0.1),
        "attention_dropout": reader.number("attn_pdrop", 0.1),
        "max_length": reader.whole("n_positions", 1024),
    }
    return settings, prefixed(weights, "transformer.", ("lm_head.", "score."))


GPT2 = Layout(
    name="GPT-2",
    model_type="gpt2",
    trained_by="",
    wants=WANTS,
    carries=CARRIES,
    twins={
        (): Twin("GPT2Model", "AutoModel", {}),
        ("lm",): Twin(
            "GPT2LMHeadModel",
            "AutoModelForCausalLM",
            {"lm": "logits"},
            lambda body: [] if body.tied else [Rule("heads.lm.weight", ("lm_head.weight",))],
            {"lm_transform": (False,), "has_head_biases": (False,)},
        ),
        ("class",): Twin(
            "GPT2ForSequenceClassification",
            "AutoModelForSequenceClassification",
            {"class": "logits"},
            lambda body: [Rule("heads.class.classifier.weight", ("score.weight",))],
            {"has_head_biases": (False,)},
            {"pooling": ("last",), "projection": ("linear",)},
        ),
    },
    rules=rules,
    config=config,
    arrive=arrive,
)
