"""A translator for CTranslate2 (Klein et al., 2020), described in that library's own words.

Its converter for Marian starts every translation from a vector of zeros and drops the last token of the vocabulary, as the
Marian toolkit's models want it; ours start from a token. So the model is described here, layer by layer.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from headstart.batch import pad
from headstart.convert.parity import (
    Pair,
    Parcel,
    Written,
    compare_tokens,
    largest_difference,
    leave_tokenizers,
    need,
    pairs,
    pieces,
    refuse_if_apart,
    refuse_misfit,
    scores,
    target_folder,
)
from headstart.errors import RunError
from headstart.models.bodies import EncoderDecoderBody
from headstart.models.heads import LanguageHead

KIND = "CTranslate2 model"
BENDS = {"relu": "RELU", "gelu": "GELU", "gelu-tanh": "GELUTanh"}
WANTS: dict[str, tuple[Any, ...]] = {
    "positions": ("sinusoidal", "learned"),
    "norm": ("layer",),
    "norm_epsilon": (1e-5,),
    "activation": tuple(BENDS),
    "biases": (True,),
    "qk_norm": (False,),
    "segments": (False,),
    "embedding_norm": (False,),
    "lm_transform": (False,),
    "window": (None,),
    "key_value_heads": (None,),
}


def write_ctranslate2(parcel: Parcel, folder: Path) -> Written:
    """Fill `folder` with model and tokenizer, run it, and compare the probabilities of texts."""
    need("ctranslate2", "ctranslate2", "an export to ctranslate2")
    need("transformers", "transformers", "its tokenizer")
    if parcel.body.kind != "encoder-decoder":
        raise RunError(
            f"translators leave for CTranslate2, and this is a {parcel.body.kind} model",
            hint="use --to transformers, or --to onnx",
        )
    refuse_misfit(parcel, WANTS, "CTranslate2")
    leave_tokenizers(parcel, folder)
    _describe(parcel, folder).save(str(folder))
    texts = compare_tokens(parcel, folder)
    largest, numbers = _compare(parcel, folder)
    return Written(KIND, texts, largest, numbers, [], {"door": "ctranslate2.Translator"})


def _describe(parcel: Parcel, folder: Path) -> Any:
    """The model as CTranslate2's specification."""
    from ctranslate2.specs import Activation, TransformerSpec

    body, head = parcel.model.backbone, parcel.model.heads["lm"]
    assert isinstance(body, EncoderDecoderBody)
    assert isinstance(head, LanguageHead)
    spec = TransformerSpec.from_config(
        (len(body.encoder.blocks), len(body.decoder.blocks)),
        body.config.attention_heads,
        pre_norm=body.config.norm_first,
        activation=getattr(Activation, BENDS[body.config.activation]),
    )
    source = body.source_embedding or body.embedding
    for side, stack, table in (
        (spec.encoder, body.encoder, source),
        (spec.decoder, body.decoder, body.embedding),
    ):
        side.scale_embeddings = float(table.scale)
        side.position_encodings.encodings = _numbers(
            table.waves[: body.config.max_length]
            if table.position_embedding is None
            else table.position_embedding.weight
        )
        embeddings = side.embeddings[0] if isinstance(side.embeddings, list) else side.embeddings
        embeddings.weight = _numbers(table.token_embedding.weight)
        if body.config.norm_first:
            _norm(side.layer_norm, stack.final_norm)
        for part, block in zip(side.layer, stack.blocks, strict=True):
            _block(part, block)
    weight, bias = head.projection(body.table)
    spec.decoder.projection.weight = _numbers(weight)
    if bias is not None:
        spec.decoder.projection.bias = _numbers(bias)
    _words(spec, parcel, folder)
    spec.validate()
    spec.optimize()
    return spec


def _words(spec: Any, parcel: Parcel, folder: Path) -> None:
    """Vocabularies and special tokens; a source is framed by its tokenizer, not by CTranslate2."""
    target = pieces(parcel.tokenizer, target_folder(parcel, folder))
    spec.register_source_vocabulary(pieces(parcel.sources, folder))
    spec.register_target_vocabulary(target)
    spec.config.bos_token = spec.config.decoder_start_token = target[parcel.tokenizer.first]
    spec.config.eos_token = target[parcel.tokenizer.last]
    spec.config.unk_token = target[parcel.tokenizer.unknown]


def _numbers(weight: Tensor) -> np.ndarray:
    return weight.detach().float().contiguous().numpy()


def _linear(spec: Any, map_: Any) -> None:
    spec.weight, spec.bias = _numbers(map_.weight), _numbers(map_.bias)


def _norm(spec: Any, norm: nn.Module) -> None:
    assert isinstance(norm, nn.LayerNorm)
    spec.gamma, spec.beta = _numbers(norm.weight), _numbers(norm.bias)


def _block(spec: Any, block: Any) -> None:
    """One layer: queries, keys and values are one map there too, in the same order."""
    _linear(spec.self_attention.linear[0], block.attention.qkv_proj)
    _linear(spec.self_attention.linear[1], block.attention.out_proj)
    _norm(spec.self_attention.layer_norm, block.attention_norm)
    if block.cross_attention is not None:
        _linear(spec.attention.linear[0], block.cross_attention.q_proj)
        _linear(spec.attention.linear[1], block.cross_attention.kv_proj)
        _linear(spec.attention.linear[2], block.cross_attention.out_proj)
        _norm(spec.attention.layer_norm, block.cross_attention_norm)
    _linear(spec.ffn.linear_0, block.feed_forward.up_proj)
    _linear(spec.ffn.linear_1, block.feed_forward.down_proj)
    _norm(spec.ffn.layer_norm, block.feed_forward_norm)


def _compare(parcel: Parcel, folder: Path) -> tuple[float, int]:
    """The largest difference of a token's log-probability, and how many were compared."""
    import ctranslate2

    translator = ctranslate2.Translator(str(folder), device="cpu", compute_type="float32")
    read, written = pieces(parcel.sources, folder), pieces(parcel.tokenizer, target_folder(parcel, folder))
    largest, numbers = 0.0, 0
    for pair in pairs(parcel):
        rows = [_inner(parcel, row[real]) for row, real in zip(pair.tokens, pair.real, strict=True)]
        sources = [
            [read[token] for token in row[real]]
            for row, real in zip(pair.source, pair.source_real, strict=True)
        ]
        found = translator.score_batch(
            sources, [[written[token] for token in row] for row in rows], max_input_length=0
        )
        ours = _log_probabilities(parcel, pair, rows)
        theirs = torch.tensor([mark for each in found for mark in each.log_probs])
        gap = largest_difference(ours, theirs, torch.ones(1))
        refuse_if_apart(gap, ours, KIND)
        largest, numbers = max(largest, gap), numbers + ours.numel()
    return largest, numbers


def _inner(parcel: Parcel, row: Tensor) -> list[int]:
    """A sample without the tokens that frame it, which CTranslate2 adds by itself."""
    frame = (parcel.tokenizer.first, parcel.tokenizer.last)
    return [token for token in row.tolist() if token not in frame]


def _log_probabilities(parcel: Parcel, pair: Pair, rows: list[list[int]]) -> Tensor:
    """The run's log-probabilities (N,) of each text's tokens and of its end, one text after the other."""
    first, last = parcel.tokenizer.first, parcel.tokenizer.last
    tokens, real = pad([torch.tensor([first, *row]) for row in rows], parcel.tokenizer.padding)
    labels, _ = pad([torch.tensor([*row, last]) for row in rows], parcel.tokenizer.padding)
    said = scores(parcel, replace(pair, tokens=tokens, real=real)).log_softmax(dim=-1)  # (B, T, V)
    return said.gather(2, labels[:, :, None])[:, :, 0][real]
