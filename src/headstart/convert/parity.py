"""What is exported, and the proof that the exported model computes the same: tokens and outputs are compared."""

import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headstart.batch import Batch, pad
from headstart.config import ModelConfig
from headstart.data.tokenizer import Tokenizer
from headstart.errors import ConfigError, RunError
from headstart.models.model import HeadSpec, Model

TOLERANCE = 1e-4  # the largest difference between equal outputs, as a fraction of the largest output above 1
MAX_LENGTH = 512  # tokens of the one long text that is compared
TRAINING_HEADS = ("generator",)  # which only help to train another head
BUG = "nothing was written; this is a fault of headstart's: please tell its authors"

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
class ExportBundle:
    """A trained model with everything that its outputs depend on."""

    model: Model
    specs: Mapping[str, HeadSpec]
    tokenizer: Tokenizer
    classes: list[str]
    max_length: int  # tokens read of a text
    truncation_side: str  # which part of a longer text is read
    source_tokenizer: Tokenizer | None = None  # of a translator with two vocabularies
    problem_type: str = ""  # of a head that predicts no single class

    @property
    def sources(self) -> Tokenizer:
        """The tokenizer of the texts that the model reads."""
        return self.source_tokenizer or self.tokenizer

    @property
    def config(self) -> ModelConfig:
        """The settings of the backbone."""
        return self.model.backbone.config

    @property
    def is_translator(self) -> bool:
        """Whether the model has an encoder and a decoder."""
        return self.config.architecture == "encoder-decoder"

    @property
    def reads_prompts(self) -> bool:
        """Whether the model continues what it reads."""
        return self.config.architecture == "causal" and "lm" in self.heads

    @property
    def heads(self) -> dict[str, HeadSpec]:
        """The heads that are exported."""
        return {name: spec for name, spec in self.specs.items() if name not in TRAINING_HEADS}

    @torch.inference_mode()
    def outputs(self, batch: Batch) -> dict[str, Tensor]:
        """The logits of each head, or `hidden` (B, T, D) if there is none."""
        hidden = self.model.backbone(batch)
        logits = {name: self.model.heads[name](hidden, batch, self.model.backbone).float() for name in self.heads}
        return logits or {"hidden": hidden.float()}

    def batches(self) -> list[Batch]:
        """Padded batches to compare outputs on: the samples, a long text, and random tokens."""
        if not self.is_translator:
            return self._batches(self.tokenizer)
        found = []
        for source, target in zip(self._batches(self.sources), self._batches(self.tokenizer), strict=True):
            order = torch.arange(len(target.tokens)).flip(0)  # so that the lengths of the two sides differ
            tokens, mask = target.tokens[order], target.attention_mask[order]
            found.append(Batch(tokens, mask, source=source.tokens, source_attention_mask=source.attention_mask))
        return found

    def _batches(self, tokenizer: Tokenizer) -> list[Batch]:
        max_length = min(self.max_length, self.config.max_position_embeddings, MAX_LENGTH)
        ids, generator = tokenizer.encode(SAMPLES), np.random.default_rng(0)
        rows = [tokenizer.add_special_tokens(row, min(max_length, 48)) for row in ids]
        long = tokenizer.add_special_tokens(np.concatenate([*ids, *ids, *ids]), max_length)
        lengths = [min(max_length, length) for length in (2, 5, 17, 33)]
        random = [generator.integers(0, tokenizer.size, length) for length in lengths]
        found = []
        for part in (rows, [long], random):
            tokens, mask = pad(part, tokenizer.pad_id)
            segments = (
                torch.from_numpy(generator.integers(0, 2, tokens.shape)) if self.config.token_type_embeddings else None
            )
            found.append(Batch(tokens, mask, segments=segments))
        return found


@dataclass
class ParityReport:
    """What was exported, and how close its outputs are to those of the run."""

    kind: str  # a class of transformers, an ONNX graph or a CTranslate2 model
    texts: int = 0  # whose tokens were compared
    answers: int = 0  # numbers that were compared
    difference: float = 0.0  # the largest
    notes: list[str] = field(default_factory=list)
    details: dict[str, Any] = field(default_factory=dict)

    def compare(self, ours: Tensor, theirs: Tensor, mask: Tensor | None = None) -> None:
        """Count outputs that are equal, and refuse others; `mask` (B, T) leaves out padding."""
        difference = largest_difference(ours, theirs, mask)
        if not difference <= TOLERANCE * max(1.0, float(ours.abs().max())):
            raise RunError(
                f"{self.kind} computes other outputs than the run: they differ by {difference:.2g}, "
                f"and {TOLERANCE:g} is allowed",
                hint=BUG,
            )
        self.difference, self.answers = max(self.difference, difference), self.answers + theirs.numel()


def require_package(package: str, extra: str, work: str) -> Any:
    """A package that an extra installs, or an error that says how to get it."""
    try:
        return import_module(package)
    except ImportError as error:
        problem = f"{work} needs the package {error.name or package}"
        raise ConfigError(problem, hint=f"pip install 'headstart[{extra}]'") from None


def without_padding(ours: Tensor, theirs: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Two outputs of the same shape; where there is one for each token, those of padding are left out."""
    if ours.shape != theirs.shape:
        raise RunError(f"outputs have the shape {tuple(theirs.shape)} instead of {tuple(ours.shape)}", hint=BUG)
    if mask is not None and ours.shape[:2] == mask.shape and ours.ndim > 2:
        return ours[mask], theirs[mask]
    return ours, theirs


def largest_difference(ours: Tensor, theirs: Tensor, mask: Tensor | None = None) -> float:
    """The largest difference of two outputs, without padding."""
    real, other = without_padding(ours, theirs, mask)
    gap = (real - other).abs()
    return float("inf") if bool(gap.isnan().any()) else float(gap.max())


def check_tokens(text: str, ours: list[int], theirs: list[int]) -> None:
    """Refuse a tokenizer that gives other tokens."""
    if ours != theirs:
        raise RunError(f"{text[:40]!r} becomes other tokens: {theirs[:8]} instead of {ours[:8]}", hint=BUG)


@contextmanager
def quiet() -> Iterator[None]:
    """Turn off the warnings of other libraries."""
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)
