"""Llama (Touvron et al., 2023) and EuroBERT (Boizard et al., 2025): one block, read one way or both."""

from functools import partial
from typing import Any

from headstart.config import BodyConfig
from headstart.convert.hf_config import Reader
from headstart.convert.weight_map import Layout, Rule, Settings, Twin, Weights, layer, prefixed
from headstart.errors import RunError

GATES = {"silu": "swiglu", "gelu": "geglu"}
WANTS: dict[str, tuple[Any, ...]] = {
    "positions": ("rotary",),
    "norm": ("rms",),
    "norm_first": (True,),
    "first_norm": (True,),
    "activation": tuple(GATES.values()),
    "qk_norm": (False,),
    "scale_embedding": (False,),
    "segments": (False,),
    "embedding_norm": (False,),
    "pooler": (False,),
    "window": (None,),
}
CARRIES = (
    "layers", "width", "attention_heads", "feed_forward", "biases", "tied", "max_length", "norm_epsilon",
    "rotary_base", "key_value_heads",
)  # fmt: skip
PLAIN_SCORES = {"lm_transform": (False,), "has_head_biases": (False,)}


def rules(body: BodyConfig) -> list[Rule]:
    """The weights of a body."""
    wide = body.width // body.attention_heads
    shared = wide * (body.key_value_heads or body.attention_heads)
    found = [
        Rule("backbone.embedding.token_embedding.weight", ("model.embed_tokens.weight",)),
        Rule("backbone.stack.final_norm.weight", ("model.norm.weight",)),
    ]
    for number in range(body.layers):
        ours, theirs = f"backbone.stack.blocks.{number}", f"model.layers.{number}"
        projections = [f"{theirs}.self_attn.{letter}_proj" for letter in "qkv"]
        gates = [f"{theirs}.mlp.gate_proj", f"{theirs}.mlp.up_proj"]
        found += [
            *layer(
                f"{ours}.attention.qkv_proj",
                *projections,
                bias=body.biases,
                rows=(body.width, shared, shared),
            ),
            *layer(f"{ours}.attention.out_proj", f"{theirs}.self_attn.o_proj", bias=body.biases),
            *layer(f"{ours}.feed_forward.up_proj", *gates, bias=body.biases, rows=2 * (body.feed_forward,)),
            *layer(f"{ours}.feed_forward.down_proj", f"{theirs}.mlp.down_proj", bias=body.biases),
            *layer(f"{ours}.attention_norm", f"{theirs}.input_layernorm", bias=False),
            *layer(f"{ours}.feed_forward_norm", f"{theirs}.post_attention_layernorm", bias=False),
        ]
    return found


def scores(body: BodyConfig) -> list[Rule]:
    """The weights of the language-model head; a tied one has none."""
    found = [] if body.tied else [Rule("heads.lm.weight", ("lm_head.weight",))]
    return [*found, *([Rule("heads.lm.bias", ("lm_head.bias",))] if body.has_head_biases else [])]


def config(body: BodyConfig) -> Settings:
    """What config.json says of a body."""
    return {
        "hidden_size": body.width,
        "num_hidden_layers": body.layers,
        "num_attention_heads": body.attention_heads,
        "num_key_value_heads": body.key_value_heads or body.attention_heads,
        "intermediate_size": body.feed_forward,
        "hidden_act": {ours: theirs for theirs, ours in GATES.items()}[body.activation],
        "max_position_embeddings": body.max_length,
        "rms_norm_eps": body.norm_epsilon,
        "rope_parameters": {"rope_type": "default", "rope_theta": body.rotary_base},
        "attention_bias": body.biases,
        "mlp_bias": body.biases,
        "attention_dropout": body.attention_dropout,
        "tie_word_embeddings": body.tied,
    }


def rotary_base(reader: Reader, content: Any, default: float) -> float:
    """The base of rotary positions, which must not be scaled; `content` is what config.json says of them."""
    told = Reader(content or {}, f"the rotary positions of {reader.where}")
    kind = told.get("rope_type", told.get("type", "default"))
    if kind != "default":
        raise RunError(
            f"{reader.where} scales its rotary positions by the rule {kind!r}, which has no twin in headstart",
            hint="only plain rotary positions have one",
        )
    told.must("partial_rotary_factor", (1, 1.0), 1)
    return float(told.number("rope_theta", default))


def arrive(reader: Reader, weights: Weights, kind: str) -> tuple[Settings, Weights]:
    """A body in our words."""
    width, attention_heads = reader.whole("hidden_size"), reader.whole("num_attention_heads")
    shared = reader.whole("num_key_value_heads", attention_heads)
    reader.must("head_dim", (width // attention_heads,), width // attention_heads)
    reader.must("pretraining_tp", (1,), 1)
    scaled = reader.get("rope_parameters", reader.get("rope_scaling"))
    settings: Settings = {
        "kind": kind,
        "layers": reader.whole("num_hidden_layers"),
        "width": width,
        "attention_heads": attention_heads,
        "key_value_heads": None if shared == attention_heads else shared,
        "feed_forward": reader.whole("intermediate_size"),
        "activation": reader.choice("hidden_act", GATES, "silu"),
        "max_length": reader.whole("max_position_embeddings", 2048 if kind == "causal" else 8192),
        "norm_epsilon": reader.number("rms_norm_eps", 1e-6 if kind == "causal" else 1e-5),
        "rotary_base": rotary_base(reader, scaled, reader.number("rope_theta", 10000.0)),
        "biases": reader.alike("attention_bias", "mlp_bias"),
        "attention_dropout": reader.number("attention_dropout", 0.0),
        "tied": bool(reader.get("tie_word_embeddings", False)),
        "positions": "rotary",
        "norm": "rms",
        "norm_first": True,
    }
    if kind == "causal":
        settings["head_biases"] = False
    return settings, prefixed(weights, "model.", ("lm_head.", "score.", "dense.", "classifier."))


LLAMA = Layout(
    name="Llama",
    model_type="llama",
    trained_by="--preset tiny --objective causal-lm",
    wants={"kind": ("causal",), **WANTS},
    carries=CARRIES,
    twins={
        (): Twin("LlamaModel", "AutoModel", {}),
        ("lm",): Twin("LlamaForCausalLM", "AutoModelForCausalLM", {"lm": "logits"}, scores, PLAIN_SCORES),
        ("class",): Twin(
            "LlamaForSequenceClassification",
            "AutoModelForSequenceClassification",
            {"class": "logits"},
            lambda body: [Rule("heads.class.classifier.weight", ("score.weight",))],
            {"has_head_biases": (False,)},
            {"pooling": ("last",), "projection": ("linear",)},
        ),
    },
    rules=rules,
    config=config,
    arrive=partial(arrive, kind="causal"),
)

POOLINGS = {"mean": "mean", "first": "bos"}

EUROBERT = Layout(
    name="EuroBERT",
    model_type="eurobert",
    trained_by="--preset tiny --objective masked-lm",
    wants={"kind": ("bidirectional",), **WANTS},
    carries=CARRIES,
    twins={
        (): Twin("EuroBertModel", "AutoModel", {}),
        ("lm",): Twin(
            "EuroBertForMaskedLM",
            "AutoModelForMaskedLM",
            {"lm": "logits"},
            scores,
            {"lm_transform": (False,), "head_biases": (None,)},
        ),
        ("class",): Twin(
            "EuroBertForSequenceClassification",
            "AutoModelForSequenceClassification",
            {"class": "logits"},
            lambda body: [
                *layer("heads.class.dense", "dense", bias=True),
                *layer("heads.class.classifier", "classifier", bias=True),
            ],
            {},
            {"pooling": tuple(POOLINGS), "projection": ("dense",)},
            lambda spec: {"classifier_pooling": POOLINGS[spec.settings["pooling"]]},
        ),
    },
    rules=rules,
    config=config,
    arrive=partial(arrive, kind="bidirectional"),
)
