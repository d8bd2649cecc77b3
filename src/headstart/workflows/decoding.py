"""Translations written by a model: sources of like length together, each as if it were alone."""

from collections.abc import Sequence

import numpy as np
import torch

from headstart.batch import Row
from headstart.data.loader import TextLoader
from headstart.data.tokenizer import Tokenizer
from headstart.generation.beam import Beam, beam_search
from headstart.generation.decode import Rules, Text, decode
from headstart.generation.reader import ModelReader, sources
from headstart.models.model import Model
from headstart.training.runtime import Runtime

LONGER = 50  # tokens that a translation may have beyond its source (Vaswani et al., 2017)
TOKENS = 16384  # of sources read at once, each counted as often as it has hypotheses


def write_translations(
    model: Model,
    rows: Sequence[np.ndarray],
    tokenizer: Tokenizer,
    runtime: Runtime,
    beam: Beam | None = None,
) -> list[Text]:
    """A translation of every framed source, in their order: the likeliest token each time, or the best of a search.

    Special tokens other than the end are never written.
    """
    model.eval()
    reader, width = ModelReader(model), 1 if beam is None else beam.width
    banned = tuple(sorted(tokenizer.special_ids - {tokenizer.last}))
    loader = TextLoader([Row(row) for row in rows], max(1, TOKENS // width), shuffled=False)
    found: list[Text] = [Text([], is_cut=True)] * len(rows)
    for numbers in loader.batches(0):
        chosen = [rows[number] for number in numbers]
        batch = sources(chosen, tokenizer.padding, tokenizer.first)
        most = [len(row) + LONGER for row in chosen]
        rules = Rules(tokenizer.last, max(most), banned=banned)
        with runtime.autocast(), torch.inference_mode():
            if beam is None:
                written = decode(reader, batch, rules, most=most)
            else:
                best = beam_search(reader, batch, rules, beam, most=most)
                written = [Text(each[0].tokens, each[0].is_cut) for each in best]
        for number, text in zip(numbers, written, strict=True):
            found[number] = text
    return found
