"""What leaves: a model with all that its answers depend on, and the texts on which the two sides are compared."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headstart.batch import Batch, pad
from headstart.config import BodyConfig
from headstart.convert.tokenizers import leave
from headstart.convert.weight_map import setting, unmet
from headstart.data.tokenizer import Tokenizer
from headstart.errors import ConfigError, RunError
from headstart.models.model import HeadSpec, Model

CLOSE = 1e-4  # the largest difference of two answers that are the same, as a share of the largest one over 1
TARGET = "target"  # the folder of the second tokenizer, where each side has its own
LONGEST = 512  # tokens of the one long text that is compared
TRAINING_ONLY = ("generator",)  # heads that only teach another

SPECIALS = "[CLS] [SEP] [MASK] [PAD] [UNK] <s> </s> <mask> <pad> <unk> <|endoftext|>"
SAMPLES = (
    "",
    " ",
    "A plain sentence, and nothing more.",
    "Élève naïf, coût : 10 € ; l’œuvre déjà lue à Noël…",
    "Straße, Größe, Łódź, İstanbul, ñandú, Ærø, čeština",
    "Cafe\u0301 nai\u0308ve, A\u030angstro\u0308m: accents that stand alone",
    "日本語のテキストと漢字。中文没有空格，但有标点！",
    "한국어 문장입니다. ภาษาไทย हिन्दी में एक वाक्य",
    "😀 👩‍👩‍👧‍👦 🇫🇷 👍🏽 and ♥️ between words",
    "مرحبا بالعالم ١٢٣ — שלום עולם",
    "tabs\tand\nlines\r\n\nand  double   spaces ",
    "control \x00 \x07 \x1b \x7f and \u200b \u202e \ufeff \u00a0 \u00ad characters",
    "UPPER lower MiXeD 12345 3.14 1e-7 x² ½ №",
    "https://example.org/?q=a&b=c#d @user #tag C++ e-mail don't can't",
    SPECIALS,
    "a" * 300,
    "word " * 600,
)


@dataclass(frozen=True)
class Parcel:
    """A trained model that is to leave."""

    model: Model
    specs: Mapping[str, HeadSpec]
    tokenizer: Tokenizer
    classes: list[str]
    length: int  # tokens read of a text at most
    keep: str  # which part of a longer one
    source_tokenizer: Tokenizer | None = None  # of a translator whose sources have a vocabulary of their own

    @property
    def sources(self) -> Tokenizer:
        """What splits the texts that the model reads."""
        return self.source_tokenizer or self.tokenizer

    @property
    def body(self) -> BodyConfig:
        """The shape of the body."""
        return self.model.backbone.config

    @property
    def heads(self) -> dict[str, HeadSpec]:
        """The heads that answer somebody."""
        return {name: spec for name, spec in self.specs.items() if name not in TRAINING_ONLY}

    @torch.inference_mode()
    def answers(self, tokens: Tensor, real: Tensor, segments: Tensor | None = None) -> dict[str, Tensor]:
        """What each head says, or `hidden` (B, T, D) when there is none."""
        batch = Batch(tokens, real, segments=segments)
        hidden = self.model.backbone(batch)
        said = {
            name: self.model.heads[name](hidden, batch, self.model.backbone).float() for name in self.heads
        }
        return said or {"hidden": hidden.float()}


@dataclass(frozen=True)
class Written:
    """What was written, and how near its answers are to those of the model it was made from."""

    kind: str  # what it is there: a class of transformers, or an ONNX graph
    texts: int  # of which the tokens were compared
    difference: float  # the largest between two answers
    answers: int  # numbers compared
    notes: list[str] = field(default_factory=list)
    details: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Reading:
    """One padded batch on which both sides answer."""

    tokens: Tensor  # (B, T)
    real: Tensor
    segments: Tensor | None = None


def need(package: str, extra: str, work: str) -> Any:
    """A package that an extra brings, or an error that says how to get it."""
    try:
        return import_module(package)
    except ImportError as error:
        missing = error.name or package
        raise ConfigError(
            f"{work} needs the package {missing}", hint=f"pip install 'headstart[{extra}]'"
        ) from None


def readings(parcel: Parcel, tokenizer: Tokenizer | None = None) -> list[Reading]:
    """Batches to compare answers on: the samples, a long text, and tokens at random with padding among them."""
    tokenizer, body = tokenizer or parcel.tokenizer, parcel.body
    most = min(parcel.length, body.max_length, LONGEST)
    ids = tokenizer.encode(SAMPLES)
    rows = [tokenizer.frame(row, min(most, 48)) for row in ids]
    long = tokenizer.frame(np.concatenate([*ids, *ids, *ids]), most)
    chance = np.random.default_rng(0)
    lengths = [min(most, length) for length in (2, 5, 17, 33)]
    random = [chance.integers(0, tokenizer.size, length) for length in lengths]
    found = []
    for part in (rows, [long], random):
        tokens, real = pad([torch.from_numpy(np.asarray(row)).long() for row in part], tokenizer.padding)
        segments = torch.from_numpy(chance.integers(0, 2, tokens.shape)) if body.segments else None
        found.append(Reading(tokens, real, segments))
    return found


def largest_difference(ours: Tensor, theirs: Tensor, real: Tensor) -> float:
    """The largest difference of two answers, at real tokens where there is one for each token."""
    if ours.shape != theirs.shape:
        raise RunError(
            f"answers of shape {tuple(theirs.shape)} came back instead of {tuple(ours.shape)}",
            hint="this is a fault of headstart's: please tell its authors",
        )
    if ours.shape[:2] == real.shape and ours.ndim > 2:
        ours, theirs = ours[real], theirs[real]
    gap = (ours - theirs).abs()
    return float("inf") if bool(gap.isnan().any()) else float(gap.max())


def refuse_if_apart(difference: float, ours: Tensor, what: str) -> None:
    """Refuse answers that are not the same."""
    if not difference <= CLOSE * max(1.0, float(ours.abs().max())):
        raise RunError(
            f"{what} answers otherwise than the run: {difference:.2g} apart, where {CLOSE:g} is allowed",
            hint="nothing was written; this is a fault of headstart's: please tell its authors",
        )


def refuse_other_tokens(text: str, ours: list[int], theirs: list[int]) -> None:
    """Refuse a tokenizer that reads a text otherwise."""
    if ours != theirs:
        raise RunError(
            f"{text[:40]!r} becomes other tokens: {theirs[:8]} instead of {ours[:8]}",
            hint="nothing was written; this is a fault of headstart's: please tell its authors",
        )


# --- translators


@dataclass(frozen=True)
class Pair:
    """Sources and texts to be marked beside them, padded."""

    source: Tensor  # (B, S)
    source_real: Tensor
    tokens: Tensor  # (B, T), what the decoder reads
    real: Tensor


def refuse_misfit(parcel: Parcel, wants: Mapping[str, tuple[Any, ...]], name: str) -> None:
    """Refuse a body that has no twin, naming what is in the way."""
    lacking = [setting(key, value) for key, value in unmet(wants, parcel.body)]
    if lacking:
        raise RunError(
            f"{name} has no {', '.join(lacking)}",
            hint="the presets translate-tiny, translate-small and vaswani-base train translators that it has a place for",
        )


def target_folder(parcel: Parcel, folder: Path) -> Path:
    """Where the tokenizer of translations is."""
    return folder if parcel.source_tokenizer is None else folder / TARGET


def leave_tokenizers(parcel: Parcel, folder: Path) -> None:
    """Write the tokenizer of sources, and that of translations beside it where it is another."""
    for place, tokenizer in _tokenizers(parcel, folder).items():
        place.mkdir(exist_ok=True)
        leave(
            tokenizer,
            place,
            length=parcel.length,
            keep="start",
            closes=True,
            has_segments=False,
            reads_specials=False,
            own_padding=False,
        )


def _tokenizers(parcel: Parcel, folder: Path) -> dict[Path, Tokenizer]:
    return {target_folder(parcel, folder): parcel.tokenizer, folder: parcel.sources}


def compare_tokens(parcel: Parcel, folder: Path) -> int:
    """How many samples become the same tokens on both sides and the same text again, which must be all."""
    from transformers import AutoTokenizer

    for place, tokenizer in _tokenizers(parcel, folder).items():
        other = AutoTokenizer.from_pretrained(place, local_files_only=True)
        for text, ids in zip(SAMPLES, tokenizer.encode(SAMPLES), strict=True):
            wanted = tokenizer.frame(ids, parcel.length).tolist()
            refuse_other_tokens(text, wanted, other(text, truncation=True)["input_ids"])
            if tokenizer.decode(wanted) != other.decode(wanted, skip_special_tokens=True):
                raise RunError(
                    f"{text[:40]!r} is spelt otherwise from its tokens",
                    hint="nothing was written; this is a fault of headstart's: please tell its authors",
                )
    return len(SAMPLES)


def pairs(parcel: Parcel) -> list[Pair]:
    """Batches to compare answers on: each source with the tokens of another text."""
    found = []
    for source, target in zip(
        readings(parcel, parcel.sources), readings(parcel, parcel.tokenizer), strict=True
    ):
        back = torch.arange(len(target.tokens)).flip(0)  # so that lengths differ
        found.append(Pair(source.tokens, source.real, target.tokens[back], target.real[back]))
    return found


@torch.inference_mode()
def scores(parcel: Parcel, pair: Pair) -> Tensor:
    """The run's scores (B, T, V) of the token after each one that the decoder reads."""
    batch = Batch(pair.tokens, pair.real, source=pair.source, source_real=pair.source_real)
    hidden = parcel.model.backbone(batch)
    return parcel.model.heads["lm"](hidden, batch, parcel.model.backbone).float()


def pieces(tokenizer: Tokenizer, folder: Path) -> list[str]:
    """Every token as the tokenizer's file in `folder` names it, in the order of the numbers."""
    from tokenizers import Tokenizer as Rust

    rust = Rust.from_file(str(folder / "tokenizer.json"))
    return [rust.id_to_token(number) or f"<unused {number}>" for number in range(tokenizer.size)]
