"""The model families of transformers that are imported and exported, each with its settings, weights and classes."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from headstart.convert.parity import ExportBundle
from headstart.convert.weight_map import (
    ConfigKey,
    HFClass,
    HFConfig,
    ModelFamily,
    Modules,
    Settings,
    Supported,
    Weights,
    export_weights,
    weight_rules,
    with_prefix,
)
from headstart.errors import RunError

ACTIVATIONS = {"gelu": "gelu", "relu": "relu", "gelu_new": "gelu-tanh", "gelu_pytorch_tanh": "gelu-tanh"}
ACTIVATION = ConfigKey("hidden_act", default="gelu", values=ACTIVATIONS)
# What most families have in common; the settings that only some have are named there.
PLAIN: Supported = {
    "norm": ("layer",), "norm_first": (True,), "norm_first_layer": (True,), "qk_norm": (False,),
    "scale_embedding": (False,), "token_type_embeddings": (False,), "embedding_norm": (False,), "pooler": (False,),
    "sliding_window": (None,), "num_kv_heads": (None,),
}  # fmt: skip
KEYS = {
    "num_layers": ConfigKey("num_hidden_layers"), "hidden_size": ConfigKey("hidden_size"),
    "num_heads": ConfigKey("num_attention_heads"), "intermediate_size": ConfigKey("intermediate_size"),
}  # fmt: skip
DENSE_BLOCK = {"bias": (True,), "activation": ("gelu", "relu", "gelu-tanh")}
POSITIONS = "bert.embeddings.position_embeddings.weight"
TOKEN_TYPES = "bert.embeddings.token_type_embeddings.weight"
POOLINGS = {"mean": "mean", "first": "bos"}
GLOBAL, LOCAL = "full_attention", "sliding_attention"


# --- BERT (Devlin et al., 2018), and RoBERTa and its variants, which equal it once positions are counted from 0

MLM_HEAD: Modules = {
    "heads.lm.transform.dense": "cls.predictions.transform.dense",
    "heads.lm.transform.norm": "cls.predictions.transform.LayerNorm",
    "heads.lm": "cls.predictions",
}
PAIR_HEAD: Modules = {"heads.pair.classifier": "cls.seq_relationship"}
MLM_SUPPORTED: Supported = {"mlm_head_transform": (True,), "tie_embeddings": (True,), "has_head_bias": (True,)}


def _read_bert(config: HFConfig, weights: Weights) -> Settings:
    config.require("position_embedding_type", ("absolute",), "absolute")
    config.require("is_decoder", (False,), False)
    config.require("add_cross_attention", (False,), False)
    has_head = "cls.predictions.transform.dense.weight" in weights
    if has_head:
        config.require("tie_word_embeddings", (True,), True)
    return {
        "tie_embeddings": True,
        "mlm_head_transform": has_head,
        "pooler": "bert.pooler.dense.weight" in weights,
        "token_type_embeddings": config.require("type_vocab_size", (1, 2), 2) == 2,
    }


def _rename_bert(config: HFConfig, weights: Weights, prefix: str = "bert.") -> Weights:
    """Weights under the present names: with the prefix, and without the names of the first releases."""
    renamed = {}
    for name, weight in weights.items():
        name = name.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")
        if name.startswith((prefix, "embeddings.", "encoder.", "pooler.")):
            name = f"bert.{name.removeprefix(prefix)}"
        renamed[name] = weight
    if config.get("type_vocab_size") == 1 and POSITIONS in renamed and TOKEN_TYPES in renamed:
        # one token type adds the same vector to every token: a part of its position
        renamed[POSITIONS] = renamed[POSITIONS] + renamed.pop(TOKEN_TYPES)[:1]
    return renamed


BERT_KEYS = {
    **KEYS, "activation": ACTIVATION, "dropout": ConfigKey("hidden_dropout_prob", default=0.1),
    "attention_dropout": ConfigKey("attention_probs_dropout_prob", default=0.1),
    "max_position_embeddings": ConfigKey("max_position_embeddings", default=512),
    "norm_eps": ConfigKey("layer_norm_eps", default=1e-12),
}  # fmt: skip
BERT_SUPPORTED: Supported = {
    **PLAIN, **DENSE_BLOCK, "architecture": ("bidirectional",), "position_embedding": ("learned",),
    "norm_first": (False,), "embedding_norm": (True,), "token_type_embeddings": (), "pooler": (),
}  # fmt: skip
BERT = ModelFamily(
    name="BERT",
    model_type="bert",
    train_flags="--preset bert",
    supported=BERT_SUPPORTED,
    keys=BERT_KEYS,
    modules={
        "backbone.embedding.token_embedding": "bert.embeddings.word_embeddings",
        "backbone.embedding.position_embedding": "bert.embeddings.position_embeddings",
        "backbone.embedding.token_type_embedding": "bert.embeddings.token_type_embeddings",
        "backbone.embedding.norm": "bert.embeddings.LayerNorm",
        "backbone.pooler": "bert.pooler.dense",
        "backbone.stack.blocks.{}.attention.qkv_proj": "bert.encoder.layer.{}.attention.self.(query|key|value)",
        "backbone.stack.blocks.{}.attention.out_proj": "bert.encoder.layer.{}.attention.output.dense",
        "backbone.stack.blocks.{}.attention_norm": "bert.encoder.layer.{}.attention.output.LayerNorm",
        "backbone.stack.blocks.{}.feed_forward.up_proj": "bert.encoder.layer.{}.intermediate.dense",
        "backbone.stack.blocks.{}.feed_forward.down_proj": "bert.encoder.layer.{}.output.dense",
        "backbone.stack.blocks.{}.feed_forward_norm": "bert.encoder.layer.{}.output.LayerNorm",
    },
    classes={
        (): HFClass("BertModel"),
        ("lm",): HFClass(
            "BertForMaskedLM", MLM_HEAD, MLM_SUPPORTED, unused=("backbone.pooler.weight", "backbone.pooler.bias")
        ),
        ("pair",): HFClass("BertForNextSentencePrediction", PAIR_HEAD, {"pooler": (True,)}),
        ("lm", "pair"): HFClass(
            "BertForPreTraining",
            {**MLM_HEAD, **PAIR_HEAD},
            {**MLM_SUPPORTED, "pooler": (True,)},
            outputs={"lm": "prediction_logits", "pair": "seq_relationship_logits"},
        ),
        ("class",): HFClass(
            "BertForSequenceClassification",
            {"heads.class.classifier": "classifier"},
            {"has_head_bias": (True,)},
            {"pooling": ("pooler",), "projection": ("linear",)},
            config=lambda spec: {"classifier_dropout": float(spec.settings.get("dropout", 0.0))},
        ),
    },
    read=_read_bert,
    write=lambda body: {"type_vocab_size": 2 if body.token_type_embeddings else 1, "tie_word_embeddings": True},
    rename=_rename_bert,
    extra_weights=lambda body: {} if body.token_type_embeddings else {TOKEN_TYPES: torch.zeros(1, body.hidden_size)},
)


def _num_reserved(config: HFConfig) -> int:
    """RoBERTa counts positions from the one after the padding token's id."""
    return config.integer("pad_token_id", 1, minimum=0) + 1


def _read_roberta(config: HFConfig, weights: Weights) -> Settings:
    settings = _read_bert(config, weights)
    if settings["mlm_head_transform"]:  # the head of RoBERTa is a GELU, whatever the backbone's activation
        config.require("hidden_act", ("gelu",), "gelu")
    max_length = config.integer("max_position_embeddings", 512) - _num_reserved(config)
    return {**settings, "max_position_embeddings": max_length}


def _rename_roberta(config: HFConfig, weights: Weights) -> Weights:
    """Weights under BERT's names."""
    renamed = {}
    for name, weight in _rename_bert(config, weights, "roberta.").items():
        if name.startswith("lm_head."):
            name = name.replace("layer_norm", "LayerNorm").replace("lm_head.", "cls.predictions.")
            for layer in ("dense.", "LayerNorm."):
                name = name.replace(f"cls.predictions.{layer}", f"cls.predictions.transform.{layer}")
        renamed[name] = weight
    if "cls.predictions.decoder.bias" in renamed:  # the same weight under two names
        renamed.setdefault("cls.predictions.bias", renamed["cls.predictions.decoder.bias"])
    if POSITIONS in renamed:
        renamed[POSITIONS] = renamed[POSITIONS][_num_reserved(config) :]
    return renamed


ROBERTA = replace(BERT, name="RoBERTa", model_type="roberta", read=_read_roberta, rename=_rename_roberta)


# --- GPT-2 (Radford et al., 2019)


DECODER_LM: Supported = {"mlm_head_transform": (False,), "has_head_bias": (False,)}


def _last_token_classifier(name: str) -> HFClass:
    """A classifier of the last token."""
    pooling: Supported = {"pooling": ("last",), "projection": ("linear",)}
    return HFClass(name, {"heads.class.classifier": "score"}, {"has_head_bias": (False,)}, pooling)


def _read_gpt2(config: HFConfig, weights: Weights) -> Settings:
    config.require("scale_attn_weights", (True,), True)
    config.require("scale_attn_by_inverse_layer_idx", (False,), False)
    config.require("add_cross_attention", (False,), False)
    return {"intermediate_size": config.integer("n_inner", 4 * config.integer("n_embd")), "head_bias": False}


GPT2_KEYS = {
    "num_layers": ConfigKey("n_layer"),
    "hidden_size": ConfigKey("n_embd"),
    "num_heads": ConfigKey("n_head"),
    "activation": ConfigKey("activation_function", default="gelu_new", values=ACTIVATIONS),
    "tie_embeddings": ConfigKey("tie_word_embeddings", default=True),
    "dropout": ConfigKey("resid_pdrop", "embd_pdrop", default=0.1),
    "attention_dropout": ConfigKey("attn_pdrop", default=0.1),
    "max_position_embeddings": ConfigKey("n_positions", default=1024),
    "norm_eps": ConfigKey("layer_norm_epsilon", default=1e-5),
}
GPT2_SUPPORTED: Supported = {
    **PLAIN, **DENSE_BLOCK, "architecture": ("causal",), "position_embedding": ("learned",), "intermediate_size": (),
}  # fmt: skip
GPT2 = ModelFamily(
    name="GPT-2",
    model_type="gpt2",
    supported=GPT2_SUPPORTED,
    keys=GPT2_KEYS,
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
        (): HFClass("GPT2Model"),
        ("lm",): HFClass("GPT2LMHeadModel", {"heads.lm": "lm_head"}, DECODER_LM, auto="AutoModelForCausalLM"),
        ("class",): _last_token_classifier("GPT2ForSequenceClassification"),
    },
    read=_read_gpt2,
    write=lambda body: {"n_inner": body.intermediate_size},
    rename=lambda config, weights: with_prefix(weights, "transformer.", ("lm_head.", "score.")),
    transpose=True,
)


# --- Llama (Touvron et al., 2023) and EuroBERT (Boizard et al., 2025): one block, causal or bidirectional


def _rope_theta(config: HFConfig, content: Any, default: Any) -> Any:
    """The base of rotary positions, which must not be scaled; `content` is what config.json says about them."""
    rope = HFConfig(content or {}, f"the rotary positions of {config.source}")
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind != "default":
        problem = f"{config.source} scales its rotary positions by the rule {kind!r}"
        raise RunError(problem, hint="headstart supports rotary positions without scaling")
    rope.require("partial_rotary_factor", (1,), 1)
    return rope.get("rope_theta", default)


def _plain_rope(theta: float) -> Settings:
    return {"rope_type": "default", "rope_theta": theta}


def _read_eurobert(config: HFConfig, weights: Weights) -> Settings:
    num_heads = config.integer("num_attention_heads")
    num_kv_heads = config.integer("num_key_value_heads", num_heads)
    head_size = config.integer("hidden_size") // num_heads
    config.require("head_dim", (head_size,), head_size)
    config.require("pretraining_tp", (1,), 1)
    rope = config.get("rope_parameters", config.get("rope_scaling"))
    return {
        "num_kv_heads": None if num_kv_heads == num_heads else num_kv_heads,
        "rope_theta": _rope_theta(config, rope, config.get("rope_theta", 10000.0)),
    }


LLAMA_SUPPORTED: Supported = {
    **PLAIN, "architecture": ("causal",), "position_embedding": ("rotary",), "norm": ("rms",),
    "activation": ("swiglu", "geglu"), "num_kv_heads": (), "rope_theta": (),
}  # fmt: skip
LLAMA = ModelFamily(
    name="Llama",
    model_type="llama",
    train_flags="--preset tiny --objective causal-lm",
    supported=LLAMA_SUPPORTED,
    keys={
        **KEYS,
        "activation": ConfigKey("hidden_act", default="silu", values={"silu": "swiglu", "gelu": "geglu"}),
        "bias": ConfigKey("attention_bias", "mlp_bias", default=False),
        "tie_embeddings": ConfigKey("tie_word_embeddings", default=False),
        "attention_dropout": ConfigKey("attention_dropout", default=0.0),
        "max_position_embeddings": ConfigKey("max_position_embeddings", default=2048),
        "norm_eps": ConfigKey("rms_norm_eps", default=1e-6),
    },
    modules={
        "backbone.embedding.token_embedding": "model.embed_tokens",
        "backbone.stack.final_norm": "model.norm",
        "backbone.stack.blocks.{}.attention.qkv_proj": "model.layers.{}.self_attn.(q|k|v)_proj",
        "backbone.stack.blocks.{}.attention.out_proj": "model.layers.{}.self_attn.o_proj",
        "backbone.stack.blocks.{}.feed_forward.up_proj": "model.layers.{}.mlp.(gate|up)_proj",
        "backbone.stack.blocks.{}.feed_forward.down_proj": "model.layers.{}.mlp.down_proj",
        "backbone.stack.blocks.{}.attention_norm": "model.layers.{}.input_layernorm",
        "backbone.stack.blocks.{}.feed_forward_norm": "model.layers.{}.post_attention_layernorm",
    },
    classes={
        (): HFClass("LlamaModel"),
        ("lm",): HFClass("LlamaForCausalLM", {"heads.lm": "lm_head"}, DECODER_LM),
        ("class",): _last_token_classifier("LlamaForSequenceClassification"),
    },
    read=lambda config, weights: {**_read_eurobert(config, weights), "head_bias": False},
    write=lambda body: {
        "num_key_value_heads": body.num_kv_heads or body.num_heads,
        "rope_parameters": _plain_rope(body.rope_theta),
    },
    rename=lambda config, weights: with_prefix(weights, "model.", ("lm_head.", "score.", "dense.", "classifier.")),
)
EUROBERT = replace(
    LLAMA,
    name="EuroBERT",
    model_type="eurobert",
    train_flags="--preset tiny --objective masked-lm",
    supported={**LLAMA_SUPPORTED, "architecture": ("bidirectional",)},
    keys={
        **LLAMA.keys,
        "max_position_embeddings": ConfigKey("max_position_embeddings", default=8192),
        "norm_eps": ConfigKey("rms_norm_eps", default=1e-5),
    },
    read=_read_eurobert,
    classes={
        (): HFClass("EuroBertModel"),
        ("lm",): HFClass(
            "EuroBertForMaskedLM", {"heads.lm": "lm_head"}, {"mlm_head_transform": (False,), "head_bias": (None,)}
        ),
        ("class",): HFClass(
            "EuroBertForSequenceClassification",
            {"heads.class.dense": "dense", "heads.class.classifier": "classifier"},
            head_supported={"pooling": tuple(POOLINGS), "projection": ("dense",)},
            config=lambda spec: {"classifier_pooling": POOLINGS[spec.settings["pooling"]]},
        ),
    },
)


# --- ModernBERT (Warner et al., 2024): most layers use sliding-window attention with a rotary base of their own


def _global_every(config: HFConfig) -> int:
    """The distance between global layers; the first layer must be one, and the distances equal."""
    types, num_layers = config.get("layer_types"), config.integer("num_hidden_layers")
    if types is None:
        return config.integer("global_attn_every_n_layers", 3)
    every = next((number for number, name in enumerate(types) if number and name == GLOBAL), num_layers)
    if [LOCAL if number % every else GLOBAL for number in range(num_layers)] != types:
        raise RunError(
            f"layer_types in {config.source} is irregular, which headstart does not support",
            hint=f"the first of {num_layers} layers and every n-th one after it must have full attention",
        )
    return every


def _read_modernbert(config: HFConfig, weights: Weights) -> Settings:
    every, rope = _global_every(config), config.get("rope_parameters", {})
    has_head = "head.dense.weight" in weights and "classifier.weight" not in weights
    if has_head:
        config.require("tie_word_embeddings", (True,), True)
        config.require("classifier_activation", (config.get("hidden_activation", "gelu"),), "gelu")
        config.require("classifier_bias", (bool(config.get("norm_bias", False)),), False)
    return {
        "tie_embeddings": True,
        "mlm_head_transform": has_head,
        "head_bias": config.flag("decoder_bias", default=True),
        "sliding_window": None if every == 1 else config.integer("local_attention", 128) // 2,
        "global_attn_every_n_layers": every,
        "rope_theta": _rope_theta(config, rope.get(GLOBAL), config.get("global_rope_theta", 160000.0)),
        "local_rope_theta": _rope_theta(config, rope.get(LOCAL), config.get("local_rope_theta", 10000.0)),
    }


MODERNBERT_SUPPORTED: Supported = {
    **PLAIN, "architecture": ("bidirectional",), "position_embedding": ("rotary",), "norm_first_layer": (False,),
    "activation": ("geglu", "swiglu"), "embedding_norm": (True,), "head_bias": (), "sliding_window": (),
    "global_attn_every_n_layers": (), "rope_theta": (), "local_rope_theta": (),
}  # fmt: skip
MODERNBERT = ModelFamily(
    name="ModernBERT",
    model_type="modernbert",
    supported=MODERNBERT_SUPPORTED,
    keys={
        **KEYS,
        "activation": ConfigKey(
            "hidden_activation", "classifier_activation", default="gelu", values={"gelu": "geglu", "silu": "swiglu"}
        ),
        "bias": ConfigKey("norm_bias", "attention_bias", "mlp_bias", default=False),
        "dropout": ConfigKey("mlp_dropout", "embedding_dropout", default=0.0),
        "attention_dropout": ConfigKey("attention_dropout", default=0.0),
        "max_position_embeddings": ConfigKey("max_position_embeddings", default=8192),
        "norm_eps": ConfigKey("norm_eps", default=1e-5),
    },
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
        (): HFClass("ModernBertModel"),
        ("lm",): HFClass(
            "ModernBertForMaskedLM",
            {"heads.lm.transform.dense": "head.dense", "heads.lm.transform.norm": "head.norm", "heads.lm": "decoder"},
            {"mlm_head_transform": (True,), "tie_embeddings": (True,)},
        ),
    },
    read=_read_modernbert,
    write=lambda body: {
        "classifier_bias": body.bias,
        "decoder_bias": body.has_head_bias,
        "layer_types": [LOCAL if body.is_local(number) else GLOBAL for number in range(body.num_layers)],
        "rope_parameters": {GLOBAL: _plain_rope(body.rope_theta), LOCAL: _plain_rope(body.local_rope_theta)},
        "local_attention": 2 * (body.sliding_window or body.max_position_embeddings),
        "tie_word_embeddings": True,
    },
    rename=lambda config, weights: with_prefix(weights, "model.", ("head.", "decoder.", "classifier.")),
)

# By the model_type in config.json. A model is exported as the first family that represents it exactly.
FAMILIES = {
    "llama": LLAMA,
    "eurobert": EUROBERT,
    "bert": BERT,
    "modernbert": MODERNBERT,
    "gpt2": GPT2,
    "roberta": ROBERTA,
    "camembert": replace(ROBERTA, name="CamemBERT", model_type="camembert"),
    "xlm-roberta": replace(ROBERTA, name="XLM-RoBERTa", model_type="xlm-roberta"),
}


# --- Marian (Junczys-Dowmunt et al., 2018): the encoder-decoder that equals Vaswani et al. (2017)
#
# Its sinusoids are ordered otherwise: all sines, then all cosines, where ours alternate. So the hidden dimensions of
# every weight are put in that order; layer norm does not depend on it.

MARIAN = HFClass("MarianMTModel", auto="AutoModelForSeq2SeqLM")
TRANSLATOR: Supported = {  # what CTranslate2 supports too
    **PLAIN, **DENSE_BLOCK, "norm_eps": (1e-5,), "mlm_head_transform": (False,), "scale_embedding": (),
    "position_embedding": ("sinusoidal", "learned"), "norm_first": (),
}  # fmt: skip
MARIAN_SUPPORTED: Supported = {**TRANSLATOR, "position_embedding": ("sinusoidal",), "norm_first": (False,)}


MARIAN_KEYS = {  # their setting -> ours
    "d_model": "hidden_size", "encoder_layers": "num_layers", "encoder_attention_heads": "num_heads",
    "decoder_attention_heads": "num_heads", "encoder_ffn_dim": "intermediate_size",
    "decoder_ffn_dim": "intermediate_size", "dropout": "dropout", "attention_dropout": "attention_dropout",
    "scale_embedding": "scale_embedding", "max_position_embeddings": "max_position_embeddings",
    "tie_word_embeddings": "tie_embeddings",
}  # fmt: skip


def _block(ours: str, theirs: str) -> Modules:
    """The modules of a layer, as far as it has them."""
    return {
        f"{ours}.attention.qkv_proj": f"{theirs}.self_attn.(q|k|v)_proj",
        f"{ours}.attention.out_proj": f"{theirs}.self_attn.out_proj",
        f"{ours}.attention_norm": f"{theirs}.self_attn_layer_norm",
        f"{ours}.cross_attention.q_proj": f"{theirs}.encoder_attn.q_proj",
        f"{ours}.cross_attention.kv_proj": f"{theirs}.encoder_attn.(k|v)_proj",
        f"{ours}.cross_attention.out_proj": f"{theirs}.encoder_attn.out_proj",
        f"{ours}.cross_attention_norm": f"{theirs}.encoder_attn_layer_norm",
        f"{ours}.feed_forward.up_proj": f"{theirs}.fc1",
        f"{ours}.feed_forward.down_proj": f"{theirs}.fc2",
        f"{ours}.feed_forward_norm": f"{theirs}.final_layer_norm",
    }


MARIAN_MODULES: Modules = {
    **_block("backbone.encoder.blocks.{}", "model.encoder.layers.{}"),
    **_block("backbone.decoder.blocks.{}", "model.decoder.layers.{}"),
}


def reorder(name: str, weight: Tensor, order: Tensor) -> Tensor:
    """A weight with its hidden dimensions in the order of Marian's sinusoids."""
    if name.endswith((".out_proj.weight", ".fc2.weight")) or weight.ndim == 1:
        is_output = "norm" in name or ".out_proj." in name or ".fc2." in name
        return weight[order] if is_output else weight
    return weight[:, order]


def marian_weights(bundle: ExportBundle) -> tuple[Weights, bool]:
    """Every weight under Marian's name and in its order, and whether both sides share one embedding."""
    body, ours = bundle.config, bundle.model.state_dict()
    order = torch.cat((torch.arange(0, body.hidden_size, 2), torch.arange(1, body.hidden_size, 2)))
    rules = weight_rules(MARIAN_MODULES, ours, body)
    theirs = export_weights(rules, ours)
    target = ours["backbone.embedding.token_embedding.weight"]
    source = ours.get("backbone.source_embedding.token_embedding.weight", target)
    is_shared = body.tie_embeddings and source is target
    if is_shared:
        theirs["model.shared.weight"] = target
    else:
        theirs |= {"model.encoder.embed_tokens.weight": source, "model.decoder.embed_tokens.weight": target}
        theirs |= {} if body.tie_embeddings else {"lm_head.weight": ours["heads.lm.weight"]}
    waves = bundle.model.backbone.embedding.position_vectors(slice(0, body.max_position_embeddings))
    assert waves is not None
    theirs |= {f"model.{side}.embed_positions.weight": waves for side in ("encoder", "decoder")}
    theirs = {name: reorder(name, weight, order).contiguous().clone() for name, weight in theirs.items()}
    theirs["final_logits_bias"] = ours.get("heads.lm.bias", torch.zeros(len(target)))[None].clone()
    known = {rule.ours for rule in rules} | {"heads.lm.weight", "heads.lm.bias"}
    unused = {name for name in ours if "token_embedding" not in name} - known
    assert not unused, f"Marian has no place for {sorted(unused)}"
    return theirs, is_shared


def marian_config(bundle: ExportBundle, is_shared: bool) -> Settings:
    """What config.json says, besides the special tokens."""
    body = bundle.config
    return {
        **{theirs: getattr(body, ours) for theirs, ours in MARIAN_KEYS.items()},
        "vocab_size": bundle.sources.size,
        "decoder_vocab_size": bundle.tokenizer.size,
        "decoder_layers": body.num_decoder_layers or body.num_layers,
        "activation_function": ACTIVATION.write(body.activation)["hidden_act"],
        "share_encoder_decoder_embeddings": is_shared,
        "dtype": "float32",
    }


def special_token_ids(bundle: ExportBundle) -> Settings:
    """The special tokens: a translation begins with `first` and ends with `last`."""
    tokenizer = bundle.tokenizer
    return {
        "pad_token_id": tokenizer.pad_id,
        "bos_token_id": tokenizer.bos_id,
        "eos_token_id": tokenizer.eos_id,
        "decoder_start_token_id": tokenizer.bos_id,
        "forced_eos_token_id": None,
    }


def generation_config(bundle: ExportBundle) -> Settings:
    """What generation_config.json says: special tokens are not generated."""
    forbidden = [[number] for number in sorted(bundle.tokenizer.special_ids - {bundle.tokenizer.eos_id})]
    ids, max_length = special_token_ids(bundle), bundle.config.max_position_embeddings
    return {**ids, "bad_words_ids": forbidden, "max_length": max_length}
