"""ModernBERT (Warner et al., 2024): most layers see a window, and turn by a base of their own."""

from typing import Any

from headstart.config import BodyConfig
from headstart.convert.hf_config import Reader
from headstart.convert.llama import rotary_base
from headstart.convert.weight_map import Layout, Rule, Settings, Twin, Weights, layer, prefixed
from headstart.errors import RunError

FAR, NEAR = "full_attention", "sliding_attention"
GATES = {"gelu": "geglu", "silu": "swiglu"}
WANTS: dict[str, tuple[Any, ...]] = {
    "kind": ("bidirectional",),
    "positions": ("rotary",),
    "norm": ("layer",),
    "norm_first": (True,),
    "first_norm": (False,),
    "activation": tuple(GATES.values()),
    "qk_norm": (False,),
    "scale_embedding": (False,),
    "segments": (False,),
    "embedding_norm": (True,),
    "pooler": (False,),
    "key_value_heads": (None,),
}
CARRIES = (
    "layers", "width", "attention_heads", "feed_forward", "biases", "max_length", "norm_epsilon", "rotary_base",
    "window", "global_every", "window_rotary_base", "head_biases",
)  # fmt: skip


def rules(body: BodyConfig) -> list[Rule]:
    """The weights of a body."""
    found = [
        Rule("backbone.embedding.token_embedding.weight", ("model.embeddings.tok_embeddings.weight",)),
        *layer("backbone.embedding.norm", "model.embeddings.norm", bias=body.biases),
        *layer("backbone.stack.final_norm", "model.final_norm", bias=body.biases),
    ]
    for number in range(body.layers):
        ours, theirs = f"backbone.stack.blocks.{number}", f"model.layers.{number}"
        if number:
            found += layer(f"{ours}.attention_norm", f"{theirs}.attn_norm", bias=body.biases)
        found += [
            *layer(f"{ours}.attention.qkv_proj", f"{theirs}.attn.Wqkv", bias=body.biases),
            *layer(f"{ours}.attention.out_proj", f"{theirs}.attn.Wo", bias=body.biases),
            *layer(f"{ours}.feed_forward_norm", f"{theirs}.mlp_norm", bias=body.biases),
            *layer(f"{ours}.feed_forward.up_proj", f"{theirs}.mlp.Wi", bias=body.biases),
            *layer(f"{ours}.feed_forward.down_proj", f"{theirs}.mlp.Wo", bias=body.biases),
        ]
    return found


def scores(body: BodyConfig) -> list[Rule]:
    """The weights of the language-model head, which reads the token table."""
    return [
        *layer("heads.lm.transform.dense", "head.dense", bias=body.biases),
        *layer("heads.lm.transform.norm", "head.norm", bias=body.biases),
        *([Rule("heads.lm.bias", ("decoder.bias",))] if body.has_head_biases else []),
    ]


def config(body: BodyConfig) -> Settings:
    """What config.json says of a body."""
    bend = {ours: theirs for theirs, ours in GATES.items()}[body.activation]
    return {
        "hidden_size": body.width,
        "num_hidden_layers": body.layers,
        "num_attention_heads": body.attention_heads,
        "intermediate_size": body.feed_forward,
        "hidden_activation": bend,
        "classifier_activation": bend,
        "max_position_embeddings": body.max_length,
        "norm_eps": body.norm_epsilon,
        **dict.fromkeys(("norm_bias", "attention_bias", "mlp_bias", "classifier_bias"), body.biases),
        "decoder_bias": body.has_head_biases,
        "layer_types": [NEAR if body.is_local(number) else FAR for number in range(body.layers)],
        "rope_parameters": {
            FAR: {"rope_type": "default", "rope_theta": body.rotary_base},
            NEAR: {"rope_type": "default", "rope_theta": body.window_rotary_base},
        },
        "local_attention": 2 * (body.window or body.max_length),
        "embedding_dropout": body.dropout,
        "mlp_dropout": body.dropout,
        "attention_dropout": body.attention_dropout,
        "tie_word_embeddings": True,
    }


def _every(reader: Reader, layers: int) -> int:
    """After how many layers one sees all; only an even rhythm that begins with such a one has a twin here."""
    types = reader.get("layer_types")
    if types is None:
        return reader.whole("global_attn_every_n_layers", 3)
    if not isinstance(types, list) or len(types) != layers:
        raise RunError(
            f"layer_types in {reader.where} names {types!r}, not {layers} layers", hint="mend config.json"
        )
    far = [number for number, name in enumerate(types) if name == FAR]
    every = far[1] if len(far) > 1 else layers
    if [NEAR if number % every else FAR for number in range(layers)] != types:
        raise RunError(
            f"layer_types in {reader.where} has no even rhythm, which has no twin in headstart",
            hint="the first layer and every n-th after it must see all",
        )
    return every


def arrive(reader: Reader, weights: Weights) -> tuple[Settings, Weights]:
    """A body in our words."""
    layers = reader.whole("num_hidden_layers")
    every = _every(reader, layers)
    told = reader.get("rope_parameters", {})
    has_scores = "head.dense.weight" in weights and "classifier.weight" not in weights
    activation = reader.choice("hidden_activation", GATES, "gelu")
    if has_scores:
        reader.must("tie_word_embeddings", (True,), True)
        reader.must("classifier_activation", (reader.get("hidden_activation", "gelu"),), "gelu")
    own = ("norm_bias", "attention_bias", "mlp_bias", *(("classifier_bias",) if has_scores else ()))
    settings = {
        "kind": "bidirectional",
        "layers": layers,
        "width": reader.whole("hidden_size"),
        "attention_heads": reader.whole("num_attention_heads"),
        "feed_forward": reader.whole("intermediate_size"),
        "positions": "rotary",
        "norm": "layer",
        "norm_first": True,
        "first_norm": False,
        "norm_epsilon": reader.number("norm_eps", 1e-5),
        "activation": activation,
        "biases": reader.alike(*own),
        "head_biases": bool(reader.get("decoder_bias", True)),
        "lm_transform": has_scores,
        "tied": True,
        "embedding_norm": True,
        "dropout": reader.number("mlp_dropout", 0.0),
        "attention_dropout": reader.number("attention_dropout", 0.0),
        "max_length": reader.whole("max_position_embeddings", 8192),
        "rotary_base": rotary_base(reader, told.get(FAR), reader.number("global_rope_theta", 160000.0)),
        "window": None if every == 1 else reader.whole("local_attention", 128) // 2,
        "global_every": every,
        "window_rotary_base": rotary_base(reader, told.get(NEAR), reader.number("local_rope_theta", 10000.0)),
    }
    return settings, prefixed(weights, "model.", ("head.", "decoder.", "classifier."))


MODERNBERT = Layout(
    name="ModernBERT",
    model_type="modernbert",
    trained_by="",
    wants=WANTS,
    carries=CARRIES,
    twins={
        (): Twin("ModernBertModel", "AutoModel", {}),
        ("lm",): Twin(
            "ModernBertForMaskedLM",
            "AutoModelForMaskedLM",
            {"lm": "logits"},
            scores,
            {"lm_transform": (True,), "tied": (True,)},
        ),
    },
    rules=rules,
    config=config,
    arrive=arrive,
)
