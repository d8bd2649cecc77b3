"""Marian (Junczys-Dowmunt et al., 2018): the encoder-decoder of transformers that is Vaswani et al.'s (2017).

Its sinusoids are the same waves in another order: all sines, then all cosines, where ours take turns. So every weight that
reads the stream or adds to it is put in that order too; a norm does not mind.
"""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from headstart.atomic_io import write_json
from headstart.checkpoint import save_weights
from headstart.config import BodyConfig
from headstart.convert.bert import NAMES
from headstart.convert.parity import (
    TARGET,
    Parcel,
    Written,
    compare_tokens,
    largest_difference,
    leave_tokenizers,
    pairs,
    refuse_if_apart,
    refuse_misfit,
    scores,
)
from headstart.convert.weight_map import Rule, Settings, Weights, layer, scatter
from headstart.errors import RunError

KIND, DOOR = "MarianMTModel", "AutoModelForSeq2SeqLM"
WANTS: dict[str, tuple[Any, ...]] = {
    "positions": ("sinusoidal",),
    "norm": ("layer",),
    "norm_first": (False,),
    "norm_epsilon": (1e-5,),
    "activation": tuple(NAMES),
    "biases": (True,),
    "qk_norm": (False,),
    "segments": (False,),
    "embedding_norm": (False,),
    "lm_transform": (False,),
    "window": (None,),
    "key_value_heads": (None,),
}


def rules(body: BodyConfig) -> list[Rule]:
    """The weights of both stacks."""
    found = []
    for side, layers in (("encoder", body.layers), ("decoder", body.decoder_layers or body.layers)):
        for number in range(layers):
            found += _block(
                body, f"backbone.{side}.blocks.{number}", f"model.{side}.layers.{number}", side == "decoder"
            )
    return found


def _block(body: BodyConfig, ours: str, theirs: str, crosses: bool) -> list[Rule]:
    def projections(part: str, letters: str) -> tuple[str, ...]:
        return tuple(f"{theirs}.{part}.{letter}_proj" for letter in letters)

    own, width = projections("self_attn", "qkv"), body.width
    found = [
        *layer(f"{ours}.attention.qkv_proj", *own, bias=True, rows=3 * (width,)),
        *layer(f"{ours}.attention.out_proj", f"{theirs}.self_attn.out_proj", bias=True),
        *layer(f"{ours}.attention_norm", f"{theirs}.self_attn_layer_norm", bias=True),
        *layer(f"{ours}.feed_forward.up_proj", f"{theirs}.fc1", bias=True),
        *layer(f"{ours}.feed_forward.down_proj", f"{theirs}.fc2", bias=True),
        *layer(f"{ours}.feed_forward_norm", f"{theirs}.final_layer_norm", bias=True),
    ]
    if crosses:
        across = projections("encoder_attn", "kv")
        found += [
            *layer(f"{ours}.cross_attention.q_proj", *projections("encoder_attn", "q"), bias=True),
            *layer(f"{ours}.cross_attention.kv_proj", *across, bias=True, rows=2 * (width,)),
            *layer(f"{ours}.cross_attention.out_proj", f"{theirs}.encoder_attn.out_proj", bias=True),
            *layer(f"{ours}.cross_attention_norm", f"{theirs}.encoder_attn_layer_norm", bias=True),
        ]
    return found


def turned(name: str, weight: Tensor, order: Tensor) -> Tensor:
    """A weight with the numbers of the stream in the order of Marian's waves."""
    if name.endswith((".out_proj.weight", ".fc2.weight")) or weight.ndim == 1:
        adds = "norm" in name or ".out_proj." in name or ".fc2." in name
        return weight[order] if adds else weight
    return weight[:, order]


def weights(parcel: Parcel) -> tuple[Weights, bool]:
    """Every weight under Marian's name and in its order, and whether both sides share one table."""
    body, ours = parcel.body, parcel.model.state_dict()
    order = torch.cat((torch.arange(0, body.width, 2), torch.arange(1, body.width, 2)))
    blocks = rules(body)
    theirs = scatter(blocks, ours)
    table = ours["backbone.embedding.token_embedding.weight"]
    source = ours.get("backbone.source_embedding.token_embedding.weight", table)
    is_shared = body.tied and source is table
    if is_shared:
        theirs["model.shared.weight"] = table
    else:
        theirs |= {"model.encoder.embed_tokens.weight": source, "model.decoder.embed_tokens.weight": table}
        theirs |= {} if body.tied else {"lm_head.weight": ours["heads.lm.weight"]}
    waves = parcel.model.backbone.embedding.waves[: body.max_length]
    theirs |= {f"model.{side}.embed_positions.weight": waves for side in ("encoder", "decoder")}
    theirs = {name: turned(name, weight, order).contiguous().clone() for name, weight in theirs.items()}
    bias = ours.get("heads.lm.bias", torch.zeros(len(table)))
    theirs["final_logits_bias"] = bias[None].clone()
    known = {rule.ours for rule in blocks} | {"heads.lm.weight", "heads.lm.bias"}
    unused = {name for name in ours if "token_embedding" not in name} - known
    assert not unused, f"Marian has no place for {sorted(unused)}"
    return theirs, is_shared


def config(parcel: Parcel, is_shared: bool) -> Settings:
    """What config.json says."""
    body, tokenizer = parcel.body, parcel.tokenizer
    return {
        "vocab_size": parcel.sources.size,
        "decoder_vocab_size": tokenizer.size,
        "d_model": body.width,
        "encoder_layers": body.layers,
        "decoder_layers": body.decoder_layers or body.layers,
        "encoder_attention_heads": body.attention_heads,
        "decoder_attention_heads": body.attention_heads,
        "encoder_ffn_dim": body.feed_forward,
        "decoder_ffn_dim": body.feed_forward,
        "activation_function": NAMES[body.activation],
        "dropout": body.dropout,
        "attention_dropout": body.attention_dropout,
        "scale_embedding": body.scale_embedding,
        "max_position_embeddings": body.max_length,
        "share_encoder_decoder_embeddings": is_shared,
        "tie_word_embeddings": body.tied,
        "architectures": [KIND],
        "dtype": "float32",
        **_numbers(parcel),
    }


def _numbers(parcel: Parcel) -> Settings:
    """The special tokens: a translation begins with `first`, and ends with `last`."""
    tokenizer = parcel.tokenizer
    return {
        "pad_token_id": tokenizer.padding,
        "bos_token_id": tokenizer.first,
        "eos_token_id": tokenizer.last,
        "decoder_start_token_id": tokenizer.first,
        "forced_eos_token_id": None,
    }


def write_marian(parcel: Parcel, folder: Path) -> Written:
    """Fill `folder` with config, weights and tokenizer, load them as a stranger would, and compare."""
    from transformers import MarianConfig

    refuse_misfit(parcel, WANTS, KIND)
    leave_tokenizers(parcel, folder)
    theirs, is_shared = weights(parcel)
    MarianConfig(**config(parcel, is_shared)).save_pretrained(folder)
    banned = sorted(parcel.tokenizer.special_ids - {parcel.tokenizer.last})
    write_json(
        folder / "generation_config.json",
        {
            **_numbers(parcel),
            "bad_words_ids": [[number] for number in banned],
            "max_length": parcel.body.max_length,
        },
    )
    save_weights(folder / "model.safetensors", theirs, {"format": "pt"})
    texts = compare_tokens(parcel, folder)
    largest, numbers = _compare(parcel, folder)
    return Written(KIND, texts, largest, numbers, notes(parcel), {"door": DOOR})


@torch.inference_mode()
def _compare(parcel: Parcel, folder: Path) -> tuple[float, int]:
    """The largest difference of any score, and how many were compared."""
    import transformers

    model, report = getattr(transformers, DOOR).from_pretrained(
        folder, local_files_only=True, output_loading_info=True, dtype=torch.float32
    )
    faults = [*report["missing_keys"], *report["unexpected_keys"], *report["mismatched_keys"]]
    if faults or type(model).__name__ != KIND:
        raise RunError(
            f"transformers read {type(model).__name__} and could not place {', '.join(map(str, faults)) or 'nothing'}",
            hint="this is a fault of headstart's: please tell its authors",
        )
    largest, numbers = 0.0, 0
    for pair in pairs(parcel):
        ours = scores(parcel, pair)
        theirs = model.eval()(
            input_ids=pair.source, attention_mask=pair.source_real.long(), decoder_input_ids=pair.tokens
        )
        gap = largest_difference(ours, theirs.logits.float(), pair.real)
        refuse_if_apart(gap, ours, KIND)
        largest, numbers = max(largest, gap), numbers + ours.numel()
    return largest, numbers


def notes(parcel: Parcel) -> list[str]:
    """What a user should know that is not in the folder's own words."""
    found = [
        "a search of transformers divides by length ** length_penalty, which is another penalty than headstart's"
    ]
    if parcel.source_tokenizer is not None:
        found.append(f"the tokenizer reads sources; the one that spells translations is in {TARGET}/")
    return found
