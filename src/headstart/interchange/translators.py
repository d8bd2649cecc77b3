"""What the exports of translators share: two texts to compare on, and the files of two tokenizers."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from headstart.batch import Batch
from headstart.data.tokenizer import Tokenizer
from headstart.errors import RunError
from headstart.interchange.layout import setting, unmet
from headstart.interchange.parcel import SAMPLES, Parcel, readings, refuse_other_tokens
from headstart.interchange.tokenizer_files import leave

TARGET = "target"  # the folder of the second tokenizer, where each side has its own


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
