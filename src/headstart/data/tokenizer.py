"""Tokenizers: text to token ids and back; every kind has one interface."""

import json
import lzma
from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from headstart.atomic_io import content_hash, write_bytes
from headstart.data import pretoken_cache
from headstart.errors import ConfigError, DataError, HeadstartError, pick

__all__ = ["TRUNCATION", "Tokenizer"]

FILE = "tokenizer.json"
DICTIONARY = "dict.txt"
MODEL = "sentencepiece.model"
ROLES = "roles.json"  # beside an imported tokenizer: the special tokens, and the size of the vocabulary
CACHED_FROM = 50_000  # characters; encoding fewer at once costs less than looking their words up

Ids = Sequence[int] | NDArray[np.integer]

TRUNCATION: dict[str, Callable[[NDArray[np.int32], int], NDArray[np.int32]]] = {  # by the side that remains
    "start": lambda ids, room: ids[:room],
    "end": lambda ids, room: ids[len(ids) - room :],
    "both": lambda ids, room: np.concatenate([ids[: room - room // 2], ids[len(ids) - room // 2 :]]),
}

NAMES = {  # of each special token, in our own files and in imported ones
    "padding": ("[PAD]", "<pad>"),
    "unknown": ("[UNK]", "<unk>"),
    "first": ("[CLS]", "<s>"),
    "last": ("[SEP]", "</s>"),
    "mask": ("[MASK]", "<mask>"),
}

# The byte behind each character of a byte-level token: printable bytes are their own characters.
PRINTABLE = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
OTHER_BYTES = sorted(set(range(256)) - set(PRINTABLE))
BYTES = {chr(byte): byte for byte in PRINTABLE} | {chr(256 + index): byte for index, byte in enumerate(OTHER_BYTES)}

KINDS = {"BPE": "bpe", "Unigram": "unigram", "WordPiece": "wordpiece", "WordLevel": "characters"}


class Engine(Protocol):
    """A tokenizer of another package, without special tokens."""

    kind: str
    size: int
    specials: dict[str, int | None]  # padding, unknown, first, last, mask
    unused: frozenset[int]  # ids below `size` without a token

    def encode(self, texts: list[str]) -> list[list[int]]: ...
    def decode(self, ids: list[int]) -> str: ...
    def id_to_token(self, number: int) -> str: ...
    def files(self) -> dict[str, bytes]: ...  # the content to save, by file name
    def fingerprint(self) -> str: ...  # the hash of all that decides the ids of a text


class Tokenizer:
    """Text to token ids and back."""

    def __init__(self, engine: Engine):
        self.engine = engine
        self.kind, self.size, self.fingerprint = engine.kind, engine.size, engine.fingerprint()
        ids = engine.specials
        lacking = [role for role in ("padding", "unknown", "first", "last") if ids[role] is None]
        if lacking:
            names = ", ".join(f"{role} ({' or '.join(NAMES[role])})" for role in lacking)
            raise ConfigError(f"the tokenizer has no token for {names}", hint="add it, or train one: --tokenizer bpe")
        self.pad_id, self.unk_id = int(ids["padding"] or 0), int(ids["unknown"] or 0)
        self.bos_id, self.eos_id = int(ids["first"] or 0), int(ids["last"] or 0)
        self.mask_id = ids["mask"]
        self.special_ids = engine.unused | {number for number in ids.values() if number is not None}

    @cached_property
    def _cache(self) -> pretoken_cache.PretokenCache | None:
        engine = self.engine
        if isinstance(engine, _RustEngine) and pretoken_cache.encodes_by_words(engine.content):
            return pretoken_cache.PretokenCache(engine.encode)
        return None

    def encode(self, texts: Sequence[str]) -> list[NDArray[np.int32]]:
        """The ids of each text, without special tokens and not truncated; only unknown characters become a special."""
        ids, counts = self.encode_flat(texts)
        return np.split(ids, np.cumsum(counts)[:-1]) if len(counts) else []

    def encode_flat(self, texts: Sequence[str]) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """The ids of `encode`, of all texts one after the other, and how many each text has."""
        if sum(map(len, texts)) >= CACHED_FROM and pretoken_cache.is_enabled() and self._cache:
            return self._cache.encode(texts)
        rows = self.engine.encode(list(texts))
        counts = np.fromiter(map(len, rows), np.int64, len(rows))
        return np.fromiter(chain.from_iterable(rows), np.int32, int(counts.sum())), counts

    def add_special_tokens_flat(
        self, ids: NDArray[np.int32], counts: NDArray[np.int64]
    ) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """The ids and counts of `encode_flat` with `bos_id` before and `eos_id` after each text."""
        ends = np.cumsum(counts)
        borders = np.ravel([ends - counts, ends], order="F")  # the start and end of each text
        return np.insert(ids, borders, np.tile([self.bos_id, self.eos_id], len(counts))), counts + 2

    def add_special_tokens(self, ids: Ids, max_length: int, truncation_side: str = "start") -> NDArray[np.int32]:
        """`bos_id`, the ids and `eos_id`; of a text longer than `max_length` its `truncation_side` remains."""
        assert max_length >= 2, max_length
        array = np.asarray(ids, dtype=np.int32)
        if len(array) > max_length - 2:
            array = pick(TRUNCATION, truncation_side, "side to truncate")(array, max_length - 2)
        return np.concatenate([[self.bos_id], array, [self.eos_id]], dtype=np.int32)

    def add_special_tokens_to_pair(
        self, first: Ids, second: Ids, max_length: int, truncation_side: str = "start"
    ) -> tuple[NDArray[np.int32], NDArray[np.int8]]:
        """`bos_id`, both texts with `eos_id` after each, and which text each token belongs to.

        Where they are longer than `max_length`, the longer one is truncated, and both in the end.
        """
        room = max(0, max_length - 3)
        part = min(len(first), max(room - len(second), room - room // 2))
        one = self.add_special_tokens(first, part + 2, truncation_side)
        two = self.add_special_tokens(second, min(len(second), room - part) + 2, truncation_side)[1:]
        return np.concatenate([one, two]), np.repeat(np.array([0, 1], np.int8), [len(one), len(two)])

    def decode(self, ids: Ids) -> str:
        """The text of the ids, without special tokens."""
        return self.engine.decode([int(number) for number in ids if int(number) not in self.special_ids])

    def convert_ids_to_tokens(self, ids: Ids) -> list[str]:
        """Each token for a reader: ▁ is a space, ↵ a line end, \\xc3 a byte of a character."""
        return [self.engine.id_to_token(int(number)).replace(" ", "▁").replace("\n", "↵") for number in ids]

    @cached_property
    def word_starts(self) -> NDArray[np.bool_]:
        """Which tokens begin a word (V,): all but those that continue one with letters or digits."""
        tokens = map(self.engine.id_to_token, range(self.size))
        if self.kind == "wordpiece":
            return np.array([not token.startswith("##") for token in tokens])
        return np.array([not token[:1].isalnum() for token in tokens])

    def ends(self, unit: str) -> NDArray[np.bool_]:
        """Which tokens end a `sentence` or a `line` (V,); specials end nothing."""
        signs = {"sentence": (*".!?…。！？", "\n"), "line": ("\n",)}[unit]
        is_end = [self.engine.id_to_token(number).rstrip(" ▁").endswith(signs) for number in range(self.size)]
        return np.array([end and number not in self.special_ids for number, end in enumerate(is_end)])

    def save(self, folder: Path, name: str = FILE) -> None:
        """Write the tokenizer into `folder`, with its main file, called `name`, last."""
        for part, content in self.engine.files().items():
            write_bytes(folder / (name if part == FILE else part), content)

    @classmethod
    def load(cls, folder: Path, name: str = FILE) -> "Tokenizer":
        """The tokenizer saved in `folder` under that name."""
        return read_json(folder / name)

    def __reduce__(self) -> tuple[Any, ...]:
        return Tokenizer, (self.engine,)


class _RustEngine:
    """A tokenizer of the `tokenizers` package, from its JSON text.

    `roles` is the JSON text of the special tokens (`specials`, by id) and of the vocabulary's `size`, for a tokenizer
    whose special tokens have other names, or whose model has more embeddings than tokens.
    """

    def __init__(self, content: str, roles: str = ""):
        from tokenizers import Tokenizer as RustTokenizer

        self.content, self.roles = content, roles
        self.rust = RustTokenizer.from_str(content)
        self.rust.encode_special_tokens = True  # "[MASK]" in a text is text, not the mask
        self.rust.no_truncation()
        self.rust.no_padding()
        layout = json.loads(content)
        self.kind = KINDS[type(self.rust.model).__name__]
        self.is_byte_level = (layout.get("decoder") or {}).get("type") == "ByteLevel"
        vocabulary = self.rust.get_vocab(with_added_tokens=True)
        self.size = max(vocabulary.values()) + 1
        ids = {role: [vocabulary[name] for name in names if name in vocabulary] for role, names in NAMES.items()}
        self.specials: dict[str, int | None] = {role: found[0] if found else None for role, found in ids.items()}
        if roles:
            given = json.loads(roles)
            self.size, self.specials = max(self.size, given["size"]), dict.fromkeys(NAMES) | given["specials"]
        self.unused = frozenset(range(self.size)) - set(vocabulary.values())

    def encode(self, texts: list[str]) -> list[list[int]]:
        return [encoded.ids for encoded in self.rust.encode_batch_fast(texts, add_special_tokens=False)]

    def decode(self, ids: list[int]) -> str:
        return self.rust.decode(ids)

    def id_to_token(self, number: int) -> str:
        token = self.rust.id_to_token(number) or ""
        if not self.is_byte_level or number in self.specials.values() or not set(token) <= set(BYTES):
            return token
        return bytes(BYTES[character] for character in token).decode("utf-8", errors="backslashreplace")

    def files(self) -> dict[str, bytes]:
        roles = {ROLES: self.roles.encode("utf-8")} if self.roles else {}
        return {**roles, FILE: self.content.encode("utf-8")}

    def fingerprint(self) -> str:
        layout = json.loads(self.content)
        return content_hash([layout, json.loads(self.roles)] if self.roles else layout)

    def __reduce__(self) -> tuple[Any, ...]:
        return _RustEngine, (self.content, self.roles)


def make_tokenizer(content: str, roles: str = "") -> Tokenizer:
    """A tokenizer from the text of its `tokenizer.json`, and of its `roles.json` where it has one."""
    return Tokenizer(_RustEngine(content, roles))


def read_file(path: Path) -> bytes:
    """A tokenizer's file, which may be compressed."""
    compressed = path.with_name(f"{path.name}.xz")
    try:
        if compressed.is_file() and not path.exists():
            return lzma.decompress(compressed.read_bytes())
        return path.read_bytes()
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}", hint="check the path given to --tokenizer") from None


def read_json(path: Path) -> Tokenizer:
    """The tokenizer in a tokenizer.json."""
    content = read_file(path)
    try:
        layout = json.loads(content)
        if layout.get("kind") == "lab":
            from headstart.data.tokenizer_training import _LabEngine

            files = (path.with_name(layout[name]) for name in ("model", "dictionary"))
            return Tokenizer(_LabEngine(*map(read_file, files)))
        roles = path.with_name(ROLES)
        return make_tokenizer(content.decode("utf-8"), roles.read_text("utf-8") if roles.is_file() else "")
    except HeadstartError:
        raise
    except Exception as error:  # the package raises plain Exceptions
        hint = "it should be a tokenizer.json of headstart or `tokenizers`"
        raise DataError(f"{path} is no readable tokenizer: {error}", hint=hint) from None
