"""Text from a run, piece by piece: tokens become text as soon as their characters are whole."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from headstart.data.tokenizer import Tokenizer
from headstart.generation.decode import Rules
from headstart.generation.reader import ModelReader, prompts
from headstart.generation.sampling import Sampling
from headstart.generation.stream import stream
from headstart.models.model import Model
from headstart.serving.schema import GenerateRequest

BROKEN = "\ufffd"  # what a character looks like of which some bytes are still to come


class Speller:
    """New tokens as text, each time what they add to what was given before."""

    def __init__(self, tokenizer: Tokenizer, prompt: np.ndarray):
        self._tokenizer, self._prompt = tokenizer, prompt.tolist()
        self._before = tokenizer.decode(self._prompt)
        self.tokens: list[int] = []
        self.text = ""

    def add(self, token: int) -> str:
        """The text that one more token brings; empty while a character is half there."""
        self.tokens.append(token)
        whole = self._whole()
        if whole.endswith(BROKEN) or not whole.startswith(self.text):
            return ""
        return self._give(whole)

    def rest(self) -> str:
        """What was held back, once nothing more comes."""
        whole = self._whole()
        return self._give(whole) if whole.startswith(self.text) else ""

    def _give(self, whole: str) -> str:
        new, self.text = whole[len(self.text) :], whole
        return new

    def _whole(self) -> str:
        """All new text; read together with the prompt, so that the space between the two is right."""
        both = self._tokenizer.decode([*self._prompt, *self.tokens])
        if both.startswith(self._before):
            return both[len(self._before) :]
        return self._tokenizer.decode(self.tokens)


def write(
    model: Model, tokenizer: Tokenizer, length: int, asked: GenerateRequest, most: int, name: str
) -> Iterator[dict[str, Any]]:
    """Pieces of the text after a prompt, and the whole at the end; prompt and text share `length` positions.

    Of a prompt that is too long the end is read: half of the positions, or what `most` new tokens leave.
    """
    ids = tokenizer.encode([asked.prompt])[0]
    room = length - 1  # beside the token in front
    most = min(most, room - min(len(ids), room // 2))
    kept = ids[max(0, len(ids) - (room - most)) :]
    row = np.concatenate([[tokenizer.first], kept]).astype(np.int32)
    rules = Rules(tokenizer.last, most, banned=tuple(sorted(tokenizer.special_ids - {tokenizer.last})))
    sampling = Sampling(
        temperature=asked.temperature,
        top_k=asked.top_k,
        top_p=1.0 if asked.top_p is None else asked.top_p,
        seed=asked.seed,
    )
    speller = Speller(tokenizer, kept)
    has_ended = False
    for token in stream(ModelReader(model), prompts([row], tokenizer.padding), rules, sampling):
        has_ended = token == tokenizer.last
        new = "" if has_ended else speller.add(token)
        if new:
            yield {"text": new}
    rest = speller.rest()
    if rest:
        yield {"text": rest}
    yield {
        "model": name,
        "text": speller.text,
        "tokens": len(speller.tokens),
        "reason": "end" if has_ended else "length",
        "cut": len(kept) < len(ids),
    }
