"""Translations as answers, with where each new token looks in the source."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from headstart.batch import Row
from headstart.evaluation.attention import translation_maps
from headstart.generation.beam import Beam
from headstart.models.model import Model
from headstart.serving.maps import check_size, shown_maps
from headstart.training.runtime import generator_for
from headstart.workflows.decoding import search_translations
from headstart.workflows.run import Trained
from headstart.workflows.translating import Translator


def translations(
    translator: Translator, trained: Trained, model: Model, texts: Sequence[str], attention: bool, most: int
) -> list[dict[str, Any]]:
    """Each text in the other language, found by the search that `headstart translate` uses; a blank one stays blank."""
    asked = [place for place, text in enumerate(texts) if text.strip()]
    encoded = translator.source_tokenizer.encode([texts[place] for place in asked])
    rows = [translator.source_tokenizer.frame(ids, translator.longest_source) for ids in encoded]
    best = search_translations(translator.reader, rows, translator.tokenizer, translator.runtime, Beam())
    answers: list[dict[str, Any]] = [{"text": "", "cut": False} for _ in texts]
    for place, ids, row, found in zip(asked, encoded, rows, best, strict=True):
        tokens = found[0].tokens
        answers[place] = {
            "text": translator.tokenizer.decode(tokens),
            "cut": len(ids) + 2 > translator.longest_source,
        }
        if attention:
            answers[place]["attention"] = _crossing(translator, trained, model, row, tokens, most)
    return answers


def _crossing(
    translator: Translator, trained: Trained, model: Model, source: np.ndarray, written: list[int], most: int
) -> dict[str, Any]:
    body = trained.info.config.body
    target = translator.tokenizer.frame(written, len(written) + 2)
    layers = body.decoder_layers or body.layers
    check_size(layers * body.attention_heads, len(target) - 1, len(source), most)
    batch = trained.objective.collate([Row(target, source=source)], translator.tokenizer, generator_for(0))
    pieces = translator.source_tokenizer.pieces(source), translator.tokenizer.pieces(target)
    return shown_maps(translation_maps(model, batch.to(translator.runtime.device), "cross", *pieces))
