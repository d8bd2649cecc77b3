"""Tokens as characters, as soon as they are whole."""

from collections.abc import Iterable, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

BROKEN = "\ufffd"  # what a decoder gives for bytes that are not yet a character


class Decoder(Protocol):
    """What turns tokens back into text."""

    def decode(self, ids: Sequence[int]) -> str:
        """The text of the tokens, specials dropped."""
        ...


class Unfolding:
    """One text that grows token by token after a prompt; what it has given is never taken back.

    A token's characters depend on the one before it (a space, a byte of the same character), so a little of the past
    is always decoded with the new.
    """

    def __init__(self, decoder: Decoder, prompt: Iterable[int] = ()):
        self.decoder, self.tokens = decoder, [int(token) for token in prompt]
        self.start, self.given = 0, len(self.tokens)  # tokens decoded again, and tokens whose text was given

    def add(self, token: int) -> str:
        """The characters that are whole now that this token has come; perhaps none."""
        self.tokens.append(int(token))
        return self._new(is_last=False)

    def finish(self) -> str:
        """What is left; bytes that never became a character show as such."""
        return self._new(is_last=True)

    def _new(self, is_last: bool) -> str:
        before = self.decoder.decode(self.tokens[self.start : self.given])
        text = self.decoder.decode(self.tokens[self.start :])
        if text.endswith(BROKEN) and not is_last:
            return ""
        if len(text) > len(before):
            self.start, self.given = self.given, len(self.tokens)
        return text[len(before) :]


def continuation(decoder: Decoder, prompt: Sequence[int] | NDArray[np.integer], tokens: Sequence[int]) -> str:
    """The text of `tokens` where they stand after `prompt`."""
    unfolding = Unfolding(decoder, [*prompt, *tokens])
    unfolding.given = len(prompt)
    return unfolding.finish()
