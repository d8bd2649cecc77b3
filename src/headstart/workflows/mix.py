"""Prepared corpora as one thing to read: each document once if that is asked, each corpus at its own rate."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from socket import gethostname

import numpy as np
from numpy.typing import NDArray

from headstart.config import DataConfig
from headstart.data.documents import Documents
from headstart.data.nsp_pairs import PairLoader
from headstart.data.samplers import BlockLoader, Loader, MixedLoader
from headstart.data.token_cache import Corpus
from headstart.data.token_stream import TokenStream, join, spare
from headstart.errors import DataError
from headstart.training.callbacks import Event, Note
from headstart.training.distributed import Processes


def without_repeats(
    parts: Sequence[Corpus], config: DataConfig, never: NDArray[np.uint64], on_event: Callable[[Event], None]
) -> list[Corpus]:
    """The corpora without texts that are set apart and, if `data.deduplicate`, without documents that stood before."""
    if not config.deduplicate and not config.exclude_eval_texts_of:
        return list(parts)
    train = spare([part.train for part in parts], never, config.deduplicate)
    valid = spare([part.valid for part in parts], never, config.deduplicate)
    kept = [
        replace(part, train=one, valid=other) for part, one, other in zip(parts, train, valid, strict=True)
    ]
    why = " or ".join(
        ["repeats"] * config.deduplicate
        + ["set apart by data.exclude_eval_texts_of"] * bool(config.exclude_eval_texts_of)
    )
    for before, after in zip(parts, kept, strict=True):
        left = sum(before.documents.values()) - sum(after.documents.values())
        if left:
            on_event(Note(f"{before.name}: {left:,} documents left out ({why})"))
    return kept


def tokens_a_pass(parts: Sequence[Corpus], weights: Sequence[float]) -> int:
    """Tokens that an epoch reads."""
    return round(sum(len(part.train) * weight for part, weight in zip(parts, weights, strict=True)))


def make_mixed_loader(
    parts: Sequence[Corpus],
    weights: Sequence[float],
    make: Callable[[TokenStream], BlockLoader | PairLoader],
) -> Loader:
    """One loader over all that is to be learnt from; corpora of weight 1 alone are read as one long text."""
    if all(weight == 1 for weight in weights):
        return make(join([part.train for part in parts]))
    read = [(part.train, weight) for part, weight in zip(parts, weights, strict=True) if len(part.train) > 2]
    loaders = [make(stream) for stream, _ in read]
    first = loaders[0]
    return MixedLoader(loaders, [weight for _, weight in read], first.rows_per_batch, first.seed)


def same_text(documents: list[Documents], processes: Processes) -> list[str]:
    """The fingerprints of the corpora, read once on each machine, where they must be those of the main process."""
    own: list[str] = []
    with processes.raise_on_all():
        if processes.info.local_rank == 0:
            own = [each.fingerprint for each in documents]
    mains = json.loads(processes.broadcast(lambda: json.dumps(own)))
    with processes.raise_on_all():
        if own and own != mains:
            raise DataError(
                f"the corpus on {gethostname()} is not that of the main process",
                hint="give every machine the same files",
            )
    for each, fingerprint in zip(documents, mains, strict=True):
        each.__dict__["fingerprint"] = fingerprint
    return mains
