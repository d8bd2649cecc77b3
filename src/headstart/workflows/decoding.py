"""Translations written by a model: sources of like length together, each as if it were alone."""

import json
from collections.abc import Iterator, Sequence
from itertools import islice

import numpy as np
import torch

from headstart.batch import Batch, Row
from headstart.data.samplers import TextLoader
from headstart.data.tokenizer import Tokenizer
from headstart.generation.beam import Beam, Hypothesis, beam_search
from headstart.generation.decode import Rules, Text, decode
from headstart.generation.reader import ModelReader, Reader, sources
from headstart.models.model import Model
from headstart.training.distributed import Processes
from headstart.training.runtime import Runtime

LONGER = 50  # tokens that a translation may have beyond its source (Vaswani et al., 2017)


def at_once(runtime: Runtime) -> int:
    """Tokens of sources read at once, each counted as often as it has hypotheses: a CPU's caches hold few."""
    return 4096 if runtime.device.type == "cpu" else 16384


def write_translations(
    model: Model,
    rows: Sequence[np.ndarray],
    tokenizer: Tokenizer,
    runtime: Runtime,
    beam: Beam | None = None,
) -> list[Text]:
    """A translation of every framed source, in their order: the likeliest token each time, or the best of a search.

    Special tokens other than the end are never written. Of many processes each writes a part, and all get the whole.
    """
    reader = ModelReader(model)
    if beam is not None:
        found = search_translations(reader, rows, tokenizer, runtime, beam)
        return [Text(best[0].tokens, best[0].is_cut) for best in found]
    written: dict[int, Text] = {}
    batches, processes = _together(rows, tokenizer, runtime, 1, None), runtime.processes
    for numbers, batch, rules, most in islice(batches, processes.rank, None, processes.count):
        with runtime.autocast(), torch.inference_mode():
            texts = decode(reader, batch, rules, most=most)
        written.update(zip(numbers, texts, strict=True))
    if not processes.is_alone:
        written = _from_all(written, processes)
    return [written[number] for number in range(len(rows))]


def _from_all(written: dict[int, Text], processes: Processes) -> dict[int, Text]:
    """What each process has written, put together."""
    own = json.dumps([[number, text.tokens, text.is_cut] for number, text in written.items()])
    said = (row for part in processes.all_gather(own) for row in json.loads(part))
    return {number: Text(tokens, is_cut) for number, tokens, is_cut in said}


def search_translations(
    reader: Reader,
    rows: Sequence[np.ndarray],
    tokenizer: Tokenizer,
    runtime: Runtime,
    beam: Beam,
    longest: int | None = None,
) -> list[list[Hypothesis]]:
    """The best translations of every framed source, in their order; `longest` is a limit to all, in tokens."""
    found: dict[int, list[Hypothesis]] = {}
    for numbers, batch, rules, most in _together(rows, tokenizer, runtime, beam.width, longest):
        with runtime.autocast(), torch.inference_mode():
            best = beam_search(reader, batch, rules, beam, most=most)
        found.update(zip(numbers, best, strict=True))
    return [found[number] for number in range(len(rows))]


def _together(
    rows: Sequence[np.ndarray], tokenizer: Tokenizer, runtime: Runtime, width: int, longest: int | None
) -> Iterator[tuple[list[int], Batch, Rules, list[int]]]:
    """Sources of like length: their numbers, batch and rules, and how many tokens each translation may have."""
    banned = tuple(sorted(tokenizer.special_ids - {tokenizer.last}))
    loader = TextLoader([Row(row) for row in rows], max(1, at_once(runtime) // width), shuffled=False)
    for numbers in loader.batches(0):
        chosen = [rows[number] for number in numbers]
        most = [min(len(row) + LONGER, longest or len(row) + LONGER) for row in chosen]
        batch = sources(chosen, tokenizer.padding, tokenizer.first)
        yield numbers.tolist(), batch, Rules(tokenizer.last, max(most), banned=banned), most
