"""One text, a token at a time: what `decode` gives, for those who want to see it come and may leave."""

from collections.abc import Iterator

import numpy as np
import torch

from headstart.batch import Batch
from headstart.generation.decode import Rules, rooms
from headstart.generation.reader import Reader, start
from headstart.generation.sampling import Sampling, choose, stream_of, uniform


@torch.inference_mode()
def stream(reader: Reader, batch: Batch, rules: Rules, sampling: Sampling) -> Iterator[int]:
    """The tokens after a batch's only row as they come, `rules.last` included when the text ends by itself."""
    batch = batch.to(reader.device)
    room = int(rooms(reader, batch, rules, None)[0])
    if not room:
        return
    own = np.array([stream_of(batch.tokens[0].cpu().numpy())], dtype=np.uint64)
    draws = uniform(sampling.seed, own, 0 if sampling.is_greedy else room).to(reader.device)
    history = batch.tokens if sampling.repetition_penalty != 1 else None
    memory, vectors = start(reader, batch, room)
    for step in range(room):
        scores = rules.bar(reader.score(vectors), step)
        tokens = choose(scores, sampling, history, draws[:, step] if draws.shape[1] else draws)
        yield int(tokens)
        if int(tokens) == rules.last or step + 1 == room:
            return
        history = None if history is None else torch.cat((history, tokens[:, None]), dim=1)
        vectors = reader.read(tokens[:, None], memory)[:, 0]
