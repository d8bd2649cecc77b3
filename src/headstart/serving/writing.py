"""Text from a run, piece by piece, as `headstart generate` writes it."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from headstart.generation.reader import prompts
from headstart.generation.stream import stream
from headstart.generation.unfold import Unfolding
from headstart.serving.schema import GenerateRequest
from headstart.workflows.generate import Request, Writer


def write(
    writer: Writer, length: int, asked: GenerateRequest, most: int, name: str
) -> Iterator[dict[str, Any]]:
    """Pieces of the text after a prompt, and the whole at the end; prompt and text share `length` positions.

    Of a prompt that is too long the end is read: half of the positions, or what `most` new tokens leave.
    """
    tokenizer = writer.tokenizer
    ids = tokenizer.encode([asked.prompt])[0]
    room = length - 1  # beside the token in front
    most = min(most, room - min(len(ids), room // 2))
    kept = ids[max(0, len(ids) - (room - most)) :]
    row = np.concatenate([[tokenizer.first], kept])
    request = Request(
        tokens=most, temperature=asked.temperature, top_k=asked.top_k, top_p=asked.top_p, seed=asked.seed
    )
    unfolding, pieces, count, has_ended = Unfolding(tokenizer, row), [""], 0, False
    for token in stream(
        writer.reader,
        prompts([row], tokenizer.padding),
        writer.rules(most),
        request.sampling,
        writer.runtime.autocast,
    ):
        has_ended = token == tokenizer.last
        new = unfolding.finish() if has_ended else unfolding.add(token)
        count += not has_ended
        if new:
            pieces.append(new)
            yield {"text": new}
    rest = "" if has_ended else unfolding.finish()
    if rest:
        pieces.append(rest)
        yield {"text": rest}
    yield {
        "model": name,
        "text": "".join(pieces),
        "tokens": count,
        "reason": "end" if has_ended else "length",
        "cut": len(kept) < len(ids),
    }
