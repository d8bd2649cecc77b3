"""Marian (Junczys-Dowmunt et al., 2018): the encoder-decoder of transformers that equals Vaswani et al. (2017).

Its sinusoids are ordered otherwise: all sines, then all cosines, where ours alternate. So the hidden dimensions of
every weight are put in that order; layer norm does not depend on it.
"""

import torch
from torch import Tensor

from headstart.convert.families import ACTIVATION, DENSE_BLOCK, PLAIN
from headstart.convert.parity import ExportBundle
from headstart.convert.weight_map import HFClass, Modules, Settings, Supported, Weights, export_weights, weight_rules

MARIAN = HFClass("MarianMTModel", auto="AutoModelForSeq2SeqLM")
TRANSLATOR: Supported = {  # what CTranslate2 supports too
    **PLAIN, **DENSE_BLOCK, "norm_eps": (1e-5,), "mlm_head_transform": (False,), "scale_embedding": (),
    "position_embedding": ("sinusoidal", "learned"), "norm_first": (),
}  # fmt: skip
SUPPORTED: Supported = {**TRANSLATOR, "position_embedding": ("sinusoidal",), "norm_first": (False,)}


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


MODULES: Modules = {
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
    rules = weight_rules(MODULES, ours, body)
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
        "vocab_size": bundle.sources.size,
        "decoder_vocab_size": bundle.tokenizer.size,
        "d_model": body.hidden_size,
        "encoder_layers": body.num_layers,
        "decoder_layers": body.num_decoder_layers or body.num_layers,
        "encoder_attention_heads": body.num_heads,
        "decoder_attention_heads": body.num_heads,
        "encoder_ffn_dim": body.intermediate_size,
        "decoder_ffn_dim": body.intermediate_size,
        "activation_function": ACTIVATION.write(body.activation)["hidden_act"],
        "dropout": body.dropout,
        "attention_dropout": body.attention_dropout,
        "scale_embedding": body.scale_embedding,
        "max_position_embeddings": body.max_position_embeddings,
        "share_encoder_decoder_embeddings": is_shared,
        "tie_word_embeddings": body.tie_embeddings,
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
