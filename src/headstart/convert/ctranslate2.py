"""Export of a translator to CTranslate2 (Klein et al., 2020).

CTranslate2's own converter for Marian starts every translation from a zero vector and drops the last token of the
vocabulary, as models of the Marian toolkit need it. Ours start from a token, so the model is described layer by layer.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from headstart.batch import Batch, pad
from headstart.convert.families import TRANSLATOR
from headstart.convert.parity import ExportBundle, ParityReport, require_package
from headstart.convert.to_transformers import check_translator
from headstart.convert.tokenizers import save_translator_tokenizers, translator_tokenizers
from headstart.data.tokenizer import FILE
from headstart.errors import RunError
from headstart.models.backbones import EncoderDecoderBackbone
from headstart.models.heads import LanguageHead

ACTIVATIONS = {"relu": "RELU", "gelu": "GELU", "gelu-tanh": "GELUTanh"}


def write_ctranslate2(bundle: ExportBundle, folder: Path) -> ParityReport:
    """Fill `folder` with model and tokenizers, run it, and compare the probabilities of texts."""
    require_package("ctranslate2", "ctranslate2", "an export to ctranslate2")
    require_package("transformers", "transformers", "its tokenizer")
    if not bundle.is_translator:
        problem = f"only translators can be exported to CTranslate2, and this is a {bundle.config.architecture} model"
        raise RunError(problem, hint="use --to transformers, or --to onnx")
    check_translator(bundle, TRANSLATOR, "CTranslate2")
    texts = save_translator_tokenizers(bundle, folder)
    source, target = _vocabularies(bundle, folder)
    spec = _model_spec(bundle)
    spec.register_source_vocabulary(source)
    spec.register_target_vocabulary(target)
    spec.config.bos_token = spec.config.decoder_start_token = target[bundle.tokenizer.bos_id]
    spec.config.eos_token = target[bundle.tokenizer.eos_id]
    spec.config.unk_token = target[bundle.tokenizer.unk_id]
    spec.validate()
    spec.optimize()
    spec.save(str(folder))
    return _compare(bundle, folder, source, target, texts)


def _vocabularies(bundle: ExportBundle, folder: Path) -> tuple[list[str], list[str]]:
    """The tokens of the source and of the target, as the exported tokenizers name them."""
    from tokenizers import Tokenizer

    found = []
    for path, tokenizer in translator_tokenizers(bundle, folder).items():
        engine = Tokenizer.from_file(str(path / FILE))
        found.append([engine.id_to_token(index) or f"<unused {index}>" for index in range(tokenizer.size)])
    return found[0], found[-1]


def _model_spec(bundle: ExportBundle) -> Any:
    """The model as CTranslate2 describes it."""
    from ctranslate2.specs import Activation, TransformerSpec

    body, head = bundle.model.backbone, bundle.model.heads["lm"]
    assert isinstance(body, EncoderDecoderBackbone)
    assert isinstance(head, LanguageHead)
    spec = TransformerSpec.from_config(
        (len(body.encoder.blocks), len(body.decoder.blocks)),
        body.config.num_heads,
        pre_norm=body.config.norm_first,
        activation=getattr(Activation, ACTIVATIONS[body.config.activation]),
    )
    for side, stack, embedding in (
        (spec.encoder, body.encoder, body.source_embedding or body.embedding),
        (spec.decoder, body.decoder, body.embedding),
    ):
        side.scale_embeddings = float(embedding.scale)
        vectors = embedding.position_vectors(slice(0, body.config.max_position_embeddings))
        assert vectors is not None
        side.position_encodings.encodings = _numbers(vectors)
        embeddings = side.embeddings[0] if isinstance(side.embeddings, list) else side.embeddings
        embeddings.weight = _numbers(embedding.token_embedding.weight)
        if body.config.norm_first:
            _set_norm(side.layer_norm, stack.final_norm)
        for layer, block in zip(side.layer, stack.blocks, strict=True):
            _set_block(layer, block)
    weight, bias = head.projection(body.table)
    spec.decoder.projection.weight = _numbers(weight)
    if bias is not None:
        spec.decoder.projection.bias = _numbers(bias)
    return spec


def _numbers(weight: Tensor) -> np.ndarray:
    return weight.detach().float().contiguous().numpy()


def _set_linear(spec: Any, linear: Any) -> None:
    spec.weight, spec.bias = _numbers(linear.weight), _numbers(linear.bias)


def _set_norm(spec: Any, norm: nn.Module) -> None:
    assert isinstance(norm, nn.LayerNorm)
    spec.gamma, spec.beta = _numbers(norm.weight), _numbers(norm.bias)


def _set_block(spec: Any, block: Any) -> None:
    """One layer: queries, keys and values are one linear layer there too, in the same order."""
    _set_linear(spec.self_attention.linear[0], block.attention.qkv_proj)
    _set_linear(spec.self_attention.linear[1], block.attention.out_proj)
    _set_norm(spec.self_attention.layer_norm, block.attention_norm)
    if block.cross_attention is not None:
        for linear, name in zip(spec.attention.linear, ("q_proj", "kv_proj", "out_proj"), strict=True):
            _set_linear(linear, getattr(block.cross_attention, name))
        _set_norm(spec.attention.layer_norm, block.cross_attention_norm)
    _set_linear(spec.ffn.linear_0, block.feed_forward.up_proj)
    _set_linear(spec.ffn.linear_1, block.feed_forward.down_proj)
    _set_norm(spec.ffn.layer_norm, block.feed_forward_norm)


def _compare(bundle: ExportBundle, folder: Path, source: list[str], target: list[str], texts: int) -> ParityReport:
    """Compare the log-probability of each token of target texts."""
    import ctranslate2

    report = ParityReport("CTranslate2 model", texts, details={"auto_class": "ctranslate2.Translator"})
    translator = ctranslate2.Translator(str(folder), device="cpu", compute_type="float32")
    specials = (bundle.tokenizer.bos_id, bundle.tokenizer.eos_id)  # which CTranslate2 adds
    for batch in bundle.batches():
        assert batch.source is not None
        assert batch.source_attention_mask is not None
        rows = [
            [token for token in row[mask].tolist() if token not in specials]
            for row, mask in zip(batch.tokens, batch.attention_mask, strict=True)
        ]
        sources = [
            [source[token] for token in row[mask]]
            for row, mask in zip(batch.source, batch.source_attention_mask, strict=True)
        ]
        targets = [[target[token] for token in row] for row in rows]
        scored = translator.score_batch(sources, targets, max_input_length=0)
        theirs = torch.tensor([value for each in scored for value in each.log_probs])
        report.compare(_log_probabilities(bundle, batch, rows), theirs)
    return report


def _log_probabilities(bundle: ExportBundle, batch: Batch, rows: list[list[int]]) -> Tensor:
    """The run's log-probability (N,) of each token of the rows and of the end after them."""
    first, last, padding = bundle.tokenizer.bos_id, bundle.tokenizer.eos_id, bundle.tokenizer.pad_id
    tokens, mask = pad([np.array([first, *row]) for row in rows], padding)
    labels, _ = pad([np.array([*row, last]) for row in rows], padding)
    logits = bundle.outputs(replace(batch, tokens=tokens, attention_mask=mask))["lm"]  # (B, T, V)
    return logits.log_softmax(dim=-1).gather(2, labels[:, :, None])[:, :, 0][mask]
