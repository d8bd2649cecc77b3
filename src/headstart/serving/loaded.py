"""A finished run in memory, answering batches."""

import threading
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch

from headstart.batch import Row
from headstart.errors import RunError
from headstart.evaluation.attention import attention_maps, readable
from headstart.models.bodies import BODIES, TransformerBody
from headstart.models.model import count_parameters
from headstart.models.packed import cast_linears, packed
from headstart.objectives.hybrid import CausalAndMasked
from headstart.serving.bounds import Bounds
from headstart.serving.cores import CORES
from headstart.serving.maps import check_size, shown_maps
from headstart.serving.refusal import Refusal
from headstart.serving.schema import Ability, GenerateRequest
from headstart.serving.translation import translations
from headstart.serving.writing import write
from headstart.training.evaluate import class_scores
from headstart.training.runtime import start_runtime
from headstart.workflows.embed import Encoder, plain_batch, usual_length
from headstart.workflows.explain import leave_one_out
from headstart.workflows.generate import Writer, open_writer
from headstart.workflows.run import Trained
from headstart.workflows.translating import Translator, open_translator

SIDE_BY_SIDE = ("classify", "embed")  # what two threads may do at a time
CHARACTERS_A_TOKEN = 3  # a guess that is good enough to share out work by
SEARCHED = (
    20  # readings that a token of a source costs: as many hypotheses as a search is wide, each step by step
)


class Loaded:
    """A run that answers: its model, its tokenizer, and what it can do."""

    def __init__(self, trained: Trained, bounds: Bounds, precision: str | None = None):
        self.trained, self.bounds = trained, bounds
        self.config, self.tokenizer = trained.info.config, trained.tokenizer
        asked = {} if precision is None else {"training": {"precision": precision}}
        self.runtime = start_runtime(self.config.with_(asked).training)
        self.model = trained.model().to(self.runtime.device)
        self.parameters = count_parameters(self.model)
        self.reach = usual_length(trained)
        self.together = self.runtime.mark_tokens
        self.precision = str(self.runtime.precision).removeprefix("torch.")  # in which `quick` multiplies
        self.quick = self.model.eval()  # what answers read with
        if self.runtime.device.type == "cpu":
            if self.runtime.precision == torch.float32:
                self.quick = packed(self.model)
            else:
                self.quick = cast_linears(self.model, self.runtime.precision)
                self.together *= 2  # half as wide, so a cache holds twice as many
            self.quick.body.is_flat = isinstance(self.quick.body, TransformerBody)
        self.workers = CORES.workers if self.runtime.device.type == "cpu" else 1
        self._weights = self.parameters - self.model.body.table.numel()  # that multiply each token
        self._turn = threading.Lock()
        self._ways: dict[str, Callable[..., Sequence[Any]]] = {
            "classify": self._classify,
            "embed": self._embed,
            "attention": self._attention,
            "translate": self._translate,
        }
        self.writer: Writer | None = None if self.why_not("generate") else open_writer(trained)
        self.translator: Translator | None = None if self.why_not("translate") else open_translator(trained)

    def why_not(self, ability: Ability) -> str:
        """Why the run cannot do this; empty when it can."""
        return _REASONS[ability](self.trained)

    @property
    def can(self) -> list[Ability]:
        """All that the run can do."""
        return [ability for ability in _REASONS if not self.why_not(ability)]

    def length(self, ability: Ability) -> int:
        """Tokens read of a text at most."""
        return self.config.training.length if ability == "classify" else self.reach

    def cost(self, ability: Ability, text: str, explained: bool = False) -> int:
        """About how many tokens of work a text is."""
        tokens = min(len(text) // CHARACTERS_A_TOKEN + 2, self.length(ability))
        if ability == "translate":
            return SEARCHED * tokens + len(text) // 64
        return tokens * (min(tokens, self.bounds.explained) if explained else 1) + len(text) // 64

    def work(self, kind: Hashable, items: Sequence[Any]) -> Sequence[Any]:
        """The answers to items of one kind; a kind is an ability and its settings."""
        assert isinstance(kind, tuple)
        ability, *settings = kind
        tokens = sum(self.cost(ability, text) for text in items) / len(items)
        turn = nullcontext() if ability in SIDE_BY_SIDE else self._turn
        with CORES.share(2 * self._weights * tokens), turn:
            return self._ways[ability](items, *settings)

    def write(self, asked: GenerateRequest, most: int, name: str) -> Iterator[dict[str, Any]]:
        """At most `most` tokens after a prompt, piece by piece."""
        assert self.writer is not None
        return write(self.writer, self.config.body.max_length, asked, most, name)

    def _rows(self, ability: Ability, texts: Sequence[str]) -> tuple[list[Row], list[bool]]:
        """The texts as framed tokens, and which of them were cut."""
        length, encoded = self.length(ability), self.tokenizer.encode(texts)
        rows = [Row(self.tokenizer.frame(ids, length, self.config.data.keep)) for ids in encoded]
        return rows, [len(ids) + 2 > length for ids in encoded]

    def _scores(self, rows: Sequence[Row]) -> np.ndarray:
        objective = self.trained.objective
        return class_scores(self.quick, objective, rows, self.tokenizer, self.runtime, self.together)

    def _classify(self, texts: Sequence[str], explained: bool) -> list[dict[str, Any]]:
        rows, cut = self._rows("classify", texts)
        if (tfidf := self.trained.tfidf) is not None:
            if explained:
                raise Refusal(
                    422, "this run answers with its TF-IDF baseline", hint="explanations are for networks"
                )
            shares, cut = tfidf.predict_probabilities(list(texts)), [False] * len(texts)
        else:
            scores = self._scores(rows).astype(np.float64)  # (N, C)
            shares = np.exp(scores - scores.max(axis=1, keepdims=True))
            shares /= shares.sum(axis=1, keepdims=True)
        classes, answers = self.trained.info.classes, []
        each = zip(rows, cut, shares.argmax(axis=1).tolist(), np.round(shares, 6).tolist(), strict=True)
        for row, was_cut, best, found in each:
            answer = {
                "label": classes[best],
                "probability": found[best],
                "probabilities": dict(zip(classes, found, strict=True)),
                "tokens": len(row.tokens),
                "cut": was_cut,
            }
            answers.append({**answer, "explanation": self._parts(row, best)} if explained else answer)
        return answers

    def _parts(self, row: Row, label: int) -> dict[str, Any]:
        if len(row.tokens) > self.bounds.explained:
            raise Refusal(
                422,
                f"the text has {len(row.tokens)} tokens, and {self.bounds.explained} are the most that are explained",
                hint="send a shorter text",
            )
        found = leave_one_out(row, label, self._scores)
        return {
            "method": "leave-one-out",
            "pieces": self._pieces(row.tokens[1:-1]),
            "parts": np.round(found.parts, 6).tolist(),
            "whole": round(found.whole, 6),
        }

    def _pieces(self, tokens: np.ndarray) -> list[str]:
        return [readable(piece) for piece in self.tokenizer.pieces(tokens)]

    def _embed(self, texts: Sequence[str], pool: str) -> list[tuple[list[float], bool]]:
        if pool == "cls" and self.config.body.kind == "causal":
            raise RunError(
                f"the first token of {self.trained.name} sees only itself, so its vector is the same for every text",
                hint="use the pool mean, or last: the last token of a causal model has seen the whole text",
            )
        rows, cut = self._rows("embed", texts)
        encoder = Encoder(self.quick, self.tokenizer, self.config, self.runtime, pool, self.together)
        vectors = np.stack(encoder.vectors(rows)).astype(np.float64)  # (N, D)
        return list(zip(np.round(vectors, 6).tolist(), cut, strict=True))

    def _attention(
        self, texts: Sequence[str], layer: int | None, attention_head: int | None
    ) -> list[dict[str, Any]]:
        rows, cut = self._rows("attention", texts)
        return [
            self._maps(row, was_cut, layer, attention_head) for row, was_cut in zip(rows, cut, strict=True)
        ]

    def _maps(self, row: Row, cut: bool, layer: int | None, attention_head: int | None) -> dict[str, Any]:
        asked = (
            ("layer", layer, self.config.body.layers),
            ("attention head", attention_head, self.config.body.attention_heads),
        )
        for name, number, most in asked:
            if number is not None and number > most:
                raise Refusal(404, f"there is no {name} {number} in this run", hint=f"it has {most}")
        count = (1 if layer else asked[0][2]) * (1 if attention_head else asked[1][2])
        check_size(count, len(row.tokens), len(row.tokens), self.bounds.attention)
        batch = plain_batch([row], self.tokenizer.padding).to(self.runtime.device)
        maps = attention_maps(self.model, batch, self.tokenizer.pieces(row.tokens))
        return {**shown_maps(maps, layer, attention_head), "cut": cut}

    def _translate(self, texts: Sequence[str], attention: bool) -> list[dict[str, Any]]:
        assert self.translator is not None
        return translations(
            self.translator, self.trained, self.model, texts, attention, self.bounds.attention
        )


def _classifies(trained: Trained) -> str:
    return "" if trained.objective.reads == "texts" else "is a language model and names no classes"


def _embeds(trained: Trained) -> str:
    return "" if trained.info.config.body.kind != "encoder-decoder" else "reads two texts at once"


def _attends(trained: Trained) -> str:
    kind = trained.info.config.body.kind
    return "" if issubclass(BODIES[kind], TransformerBody) else f"has a {kind} body without attention to show"


def _writes(trained: Trained) -> str:
    kind, reads = trained.info.config.body.kind, trained.objective.reads
    can = reads == "blocks" and (kind == "causal" or isinstance(trained.objective, CausalAndMasked))
    return "" if can else f"was trained with {trained.objective.name} and writes no text"


def _translates(trained: Trained) -> str:
    return "" if trained.objective.reads == "translations" else "was not trained to translate"


_REASONS: dict[Ability, Callable[[Trained], str]] = {
    "classify": _classifies,
    "embed": _embeds,
    "attention": _attends,
    "generate": _writes,
    "translate": _translates,
}
