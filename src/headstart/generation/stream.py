"""One text, a token at a time: what `decode` gives, for those who want to see it come and may leave."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext

import numpy as np
import torch
from torch import Tensor

from headstart.batch import Batch
from headstart.generation.decode import Rules, rooms
from headstart.generation.reader import Reader, start
from headstart.generation.sampling import Sampling, choose, stream_of, uniform


def stream(
    reader: Reader,
    batch: Batch,
    rules: Rules,
    sampling: Sampling,
    computing: Callable[[], AbstractContextManager] = nullcontext,
) -> Iterator[int]:
    """The tokens after a batch's only row as they come, `rules.last` included when the text ends by itself.

    Each step runs inside `computing()`; between two steps nothing of how torch computes is left changed, so that
    several streams can take turns.
    """
    batch = batch.to(reader.device)
    room = int(rooms(reader, batch, rules, None)[0])
    if not room:
        return
    own = np.array([stream_of(batch.tokens[0].cpu().numpy())], dtype=np.uint64)
    draws = uniform(sampling.seed, own, 0 if sampling.is_greedy else room).to(reader.device)
    history = batch.tokens if sampling.repetition_penalty != 1 else None
    with torch.inference_mode(), computing():
        memory, vectors = start(reader, batch, room)
    for step in range(room):
        with torch.inference_mode(), computing():
            tokens = _next(reader, vectors, rules, sampling, history, draws, step)
        yield int(tokens)
        if int(tokens) == rules.last or step + 1 == room:
            return
        with torch.inference_mode(), computing():
            history = None if history is None else torch.cat((history, tokens[:, None]), dim=1)
            vectors = reader.read(tokens[:, None], memory)[:, 0]


def _next(
    reader: Reader,
    vectors: Tensor,
    rules: Rules,
    sampling: Sampling,
    history: Tensor | None,
    draws: Tensor,
    step: int,
) -> Tensor:
    scores = rules.bar(reader.score(vectors), step)
    return choose(scores, sampling, history, draws[:, step] if draws.shape[1] else draws)
