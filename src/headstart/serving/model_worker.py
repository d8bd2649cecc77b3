"""A trained model in memory that computes response items for batches of texts."""

import threading
from collections.abc import Callable, Generator, Hashable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np
import torch

from headstart.batch import EncodedExample
from headstart.errors import RunError
from headstart.evaluation.attention import (
    AttentionMaps,
    attention_maps,
    entropy,
    mean_distance,
    readable,
    translation_maps,
)
from headstart.generation.beam_search import Beam
from headstart.generation.generate import Unfolding, stream
from headstart.generation.reader import prompts
from headstart.inference.classify import leave_one_out
from headstart.inference.embed import Encoder, plain_batch, usual_length
from headstart.inference.generate import Request as GenerationSettings
from headstart.inference.generate import Writer, open_writer
from headstart.inference.loaded_model import LoadedModel
from headstart.inference.translate import Translator, open_translator, search_translations
from headstart.models import BACKBONES
from headstart.models.backbones import TransformerBackbone
from headstart.models.model import count_parameters
from headstart.models.packed import cast_linears, packed
from headstart.objectives.masked_lm import CausalAndMasked
from headstart.serving.schema import Ability, GenerateRequest, Limits, http_error
from headstart.training.evaluate import class_logits
from headstart.training.runtime import generator_for, start_runtime

THREAD_SAFE = ("classify", "embed")  # what two threads of one model may run at the same time
CHARS_PER_TOKEN = 3  # an estimate, good enough to size batches
BEAM_SEARCH_COST = 20  # forward passes for each source token: hypotheses, step by step
MIN_PARALLEL_OPERATIONS = 2e8  # operations for a text from which several cores pay
MAX_PARALLEL_BATCHES = 2  # of one model: while one thread runs Python, the other multiplies


class ThreadPoolShare:
    """Divides torch's intra-op threads among the batches that run at the same time.

    A large text that runs alone gets every core, parallel batches equal parts, and small texts one core.
    """

    def __init__(self) -> None:
        self.num_cores = torch.get_num_threads()
        self._num_running, self._lock = 0, threading.Lock()

    @property
    def max_batches(self) -> int:
        """How many batches of one model may run at the same time."""
        return min(MAX_PARALLEL_BATCHES, self.num_cores)

    @contextmanager
    def share(self, operations: float) -> Iterator[None]:
        """Run texts of `operations` each on this batch's part of the cores."""
        with self._lock:
            self._num_running += 1
            is_large = operations >= MIN_PARALLEL_OPERATIONS
            num_threads = max(1, self.num_cores // self._num_running) if is_large else 1
        torch.set_num_threads(num_threads)  # of this thread
        try:
            yield
        finally:
            with self._lock:
                self._num_running -= 1


THREAD_POOL = ThreadPoolShare()


class ModelWorker:
    """A finished run: its model, its tokenizer, and what it can do."""

    def __init__(self, trained: LoadedModel, limits: Limits, precision: str | None = None):
        self.trained, self.limits = trained, limits
        self.config, self.tokenizer = trained.info.config, trained.tokenizer
        changes = {} if precision is None else {"training": {"precision": precision}}
        self.runtime = start_runtime(self.config.with_(changes).training)
        self.model = trained.model().to(self.runtime.device)
        self.num_parameters = count_parameters(self.model)
        self.max_length = usual_length(trained)
        self.eval_tokens = self.runtime.eval_batch_tokens  # in one forward pass
        self.precision = str(self.runtime.precision).removeprefix("torch.")
        self.fast_model = self.model.eval()  # classifies and embeds
        if self.runtime.device.type == "cpu":
            if self.runtime.precision == torch.float32:
                self.fast_model = packed(self.model)
            else:
                self.fast_model = cast_linears(self.model, self.runtime.precision)
                self.eval_tokens *= 2  # half as wide, so a cache holds twice as many
            self.fast_model.backbone.is_flat = isinstance(self.fast_model.backbone, TransformerBackbone)
        self.num_threads = THREAD_POOL.max_batches if self.runtime.device.type == "cpu" else 1
        self._weights_per_token = self.num_parameters - self.model.backbone.table.numel()
        self._lock = threading.Lock()
        self._methods: dict[str, Callable[..., Sequence[Any]]] = {
            "classify": self._classify,
            "embed": self._embed,
            "attention": self._attention,
            "translate": self._translate,
        }
        self.writer: Writer | None = None if self.why_not("generate") else open_writer(trained)
        self.translator: Translator | None = None if self.why_not("translate") else open_translator(trained)

    def why_not(self, ability: Ability) -> str:
        """Why the model cannot do this; empty if it can."""
        return _OBSTACLES[ability](self.trained)

    @property
    def abilities(self) -> list[Ability]:
        """What the model can do."""
        return [ability for ability in _OBSTACLES if not self.why_not(ability)]

    def length(self, ability: Ability) -> int:
        """Maximum number of input tokens."""
        return self.config.training.max_length if ability == "classify" else self.max_length

    def cost(self, ability: Ability, text: str, explain: bool = False) -> int:
        """An estimate of the tokens of work for a text."""
        tokens = min(len(text) // CHARS_PER_TOKEN + 2, self.length(ability))
        if ability == "translate":
            return BEAM_SEARCH_COST * tokens + len(text) // 64
        return tokens * (min(tokens, self.limits.max_explained_tokens) if explain else 1) + len(text) // 64

    def run_batch(self, kind: Hashable, texts: Sequence[str]) -> Sequence[Any]:
        """A response item for each text; `kind` is an ability and its options."""
        assert isinstance(kind, tuple)
        ability, *options = kind
        tokens = sum(self.cost(ability, text) for text in texts) / len(texts)
        lock = nullcontext() if ability in THREAD_SAFE else self._lock
        with THREAD_POOL.share(2 * self._weights_per_token * tokens), lock:
            return self._methods[ability](texts, *options)

    def generate(self, query: GenerateRequest, max_new_tokens: int, name: str) -> Generator[dict[str, Any], None, None]:
        """Pieces of the continuation of a prompt, and the whole at the end.

        Prompt and continuation share the positions of the model: a prompt that is too long loses its beginning,
        and keeps half of the positions, or what `max_new_tokens` leaves.
        """
        assert self.writer is not None
        writer, tokenizer = self.writer, self.writer.tokenizer
        ids = tokenizer.encode([query.prompt])[0]
        max_tokens = self.config.model.max_position_embeddings - 1  # besides the first token
        max_new_tokens = min(max_new_tokens, max_tokens - min(len(ids), max_tokens // 2))
        prompt = ids[max(0, len(ids) - (max_tokens - max_new_tokens)) :]
        row = np.concatenate([[tokenizer.bos_id], prompt])
        settings = GenerationSettings(
            tokens=max_new_tokens, temperature=query.temperature, top_k=query.top_k, top_p=query.top_p, seed=query.seed
        )
        tokens = stream(
            writer.reader,
            prompts([row], tokenizer.pad_id),
            writer.rules(max_new_tokens),
            settings.sampling,
            writer.runtime.autocast,
        )
        detokenizer, text, num_tokens, has_ended = Unfolding(tokenizer, row), "", 0, False
        for token in tokens:
            has_ended = token == tokenizer.eos_id
            piece = detokenizer.finish() if has_ended else detokenizer.add(token)
            num_tokens += not has_ended
            text += piece
            if piece:
                yield {"text": piece}
        if not has_ended and (piece := detokenizer.finish()):
            text += piece
            yield {"text": piece}
        yield {
            "model": name,
            "text": text,
            "tokens": num_tokens,
            "reason": "end" if has_ended else "length",
            "cut": len(prompt) < len(ids),
        }

    def _encode(self, ability: Ability, texts: Sequence[str]) -> tuple[list[EncodedExample], list[bool]]:
        """The texts as token ids with special tokens, and which of them were truncated."""
        length, encoded = self.length(ability), self.tokenizer.encode(texts)
        rows = [
            EncodedExample(self.tokenizer.add_special_tokens(ids, length, self.config.data.truncation_side))
            for ids in encoded
        ]
        return rows, [len(ids) + 2 > length for ids in encoded]

    def _logits(self, rows: Sequence[EncodedExample]) -> np.ndarray:
        objective = self.trained.objective
        return class_logits(self.fast_model, objective, rows, self.tokenizer, self.runtime, self.eval_tokens)

    def _classify(self, texts: Sequence[str], explain: bool) -> list[dict[str, Any]]:
        rows, truncated = self._encode("classify", texts)
        if (tfidf := self.trained.tfidf) is not None:
            if explain:
                raise http_error(422, "this run answers with its TF-IDF baseline", hint="explanations are for networks")
            probabilities, truncated = tfidf.predict_probabilities(list(texts)), [False] * len(texts)
        else:
            logits = self._logits(rows).astype(np.float64)  # (N, C)
            probabilities = np.exp(logits - logits.max(axis=1, keepdims=True))
            probabilities /= probabilities.sum(axis=1, keepdims=True)
        classes, labels = self.trained.info.classes, []
        best, rounded = probabilities.argmax(axis=1).tolist(), np.round(probabilities, 6).tolist()
        for row, is_truncated, index, values in zip(rows, truncated, best, rounded, strict=True):
            label = {
                "label": classes[index],
                "probability": values[index],
                "probabilities": dict(zip(classes, values, strict=True)),
                "tokens": len(row.tokens),
                "cut": is_truncated,
            }
            labels.append({**label, "explanation": self._explain(row, index)} if explain else label)
        return labels

    def _explain(self, row: EncodedExample, label: int) -> dict[str, Any]:
        if len(row.tokens) > self.limits.max_explained_tokens:
            raise http_error(
                422,
                f"the text has {len(row.tokens)} tokens; for an explanation, "
                f"{self.limits.max_explained_tokens} are the most",
                hint="send a shorter text",
            )
        explanation = leave_one_out(row, label, self._logits)
        return {
            "method": "leave-one-out",
            "pieces": [readable(piece) for piece in self.tokenizer.convert_ids_to_tokens(row.tokens[1:-1])],
            "parts": np.round(explanation.parts, 6).tolist(),
            "whole": round(explanation.whole, 6),
        }

    def _embed(self, texts: Sequence[str], pooling: str) -> list[tuple[list[float], bool]]:
        if pooling == "cls" and self.config.model.architecture == "causal":
            raise RunError(
                f"the first token of {self.trained.name} sees only itself, so its vector is the same for every text",
                hint="use the pool mean, or last: the last token of a causal model has seen the whole text",
            )
        rows, truncated = self._encode("embed", texts)
        encoder = Encoder(self.fast_model, self.tokenizer, self.config, self.runtime, pooling, self.eval_tokens)
        vectors = np.stack(encoder.vectors(rows)).astype(np.float64)  # (N, D)
        return list(zip(np.round(vectors, 6).tolist(), truncated, strict=True))

    def _attention(self, texts: Sequence[str], layer: int | None, head: int | None) -> list[dict[str, Any]]:
        body = self.config.model
        for name, number, most in (("layer", layer, body.num_layers), ("attention head", head, body.num_heads)):
            if number is not None and number > most:
                raise http_error(404, f"there is no {name} {number} in this run", hint=f"it has {most}")
        num_maps = (1 if layer else body.num_layers) * (1 if head else body.num_heads)
        results = []
        for row, is_truncated in zip(*self._encode("attention", texts), strict=True):
            self._check_size(num_maps, len(row.tokens), len(row.tokens))
            batch = plain_batch([row], self.tokenizer.pad_id).to(self.runtime.device)
            maps = attention_maps(self.model, batch, self.tokenizer.convert_ids_to_tokens(row.tokens))
            results.append({**_maps_json(maps, layer, head), "cut": is_truncated})
        return results

    def _translate(self, texts: Sequence[str], attention: bool) -> list[dict[str, Any]]:
        """Translations by the search of `headstart translate`; a blank text stays blank."""
        assert self.translator is not None
        translator, max_length = self.translator, self.translator.longest_source
        indices = [index for index, text in enumerate(texts) if text.strip()]
        encoded = translator.source_tokenizer.encode([texts[index] for index in indices])
        sources = [translator.source_tokenizer.add_special_tokens(ids, max_length) for ids in encoded]
        hypotheses = search_translations(translator.reader, sources, translator.tokenizer, translator.runtime, Beam())
        results: list[dict[str, Any]] = [{"text": "", "cut": False} for _ in texts]
        for index, ids, source, best in zip(indices, encoded, sources, hypotheses, strict=True):
            tokens = best[0].tokens
            text = translator.tokenizer.decode(tokens)
            results[index] = {"text": text, "cut": len(ids) + 2 > max_length}
            if attention:
                results[index]["attention"] = self._cross_attention(translator, source, tokens)
        return results

    def _cross_attention(self, translator: Translator, source: np.ndarray, tokens: list[int]) -> Any:
        body = self.config.model
        target = translator.tokenizer.add_special_tokens(tokens, len(tokens) + 2)
        num_layers = body.num_decoder_layers or body.num_layers
        self._check_size(num_layers * body.num_heads, len(target) - 1, len(source))
        batch = self.trained.objective.collate(
            [EncodedExample(target, source=source)], translator.tokenizer, generator_for(0)
        )
        pieces = (
            translator.source_tokenizer.convert_ids_to_tokens(source),
            translator.tokenizer.convert_ids_to_tokens(target),
        )
        batch = batch.to(translator.runtime.device)
        return _maps_json(translation_maps(self.model, batch, "cross", *pieces), None, None)

    def _check_size(self, num_maps: int, num_queries: int, num_keys: int) -> None:
        if num_maps * num_queries * num_keys > self.limits.max_attention_values:
            raise http_error(
                422,
                f"{num_maps} maps of {num_queries} by {num_keys} tokens are too much for one response",
                hint="ask for one layer and attention_head, or send a shorter text",
            )


def _maps_json(found: AttentionMaps, layer: int | None, head: int | None) -> dict[str, Any]:
    """Tokens, mask, and the weights of one or all layers and attention heads."""
    layers, heads = found.chosen(layer, head)
    maps = [
        {
            "layer": layer + 1,
            "attention_head": head + 1,
            "weights": np.round(found.weights[layer, head].astype(np.float64), 5).tolist(),
            "entropy": round(float(entropy(found.weights[layer, head]).mean()), 4),
            "distance": round(float(mean_distance(found.weights[layer, head]).mean()), 4),
        }
        for layer in layers
        for head in heads
    ]
    return {"queries": found.queries, "keys": found.keys, "seen": found.seen.astype(int).tolist(), "maps": maps}


def _no_classifier(trained: LoadedModel) -> str:
    return "" if trained.objective.reads == "texts" else "is a language model and names no classes"


def _no_embedder(trained: LoadedModel) -> str:
    return "" if trained.info.config.model.architecture != "encoder-decoder" else "reads two texts at once"


def _no_attention(trained: LoadedModel) -> str:
    kind = trained.info.config.model.architecture
    return "" if issubclass(BACKBONES[kind], TransformerBackbone) else f"has a {kind} body without attention to show"


def _no_generator(trained: LoadedModel) -> str:
    kind, reads = trained.info.config.model.architecture, trained.objective.reads
    can = reads == "blocks" and (kind == "causal" or isinstance(trained.objective, CausalAndMasked))
    return "" if can else f"was trained with {trained.objective.name} and writes no text"


def _no_translator(trained: LoadedModel) -> str:
    return "" if trained.objective.reads == "translations" else "was not trained to translate"


_OBSTACLES: dict[Ability, Callable[[LoadedModel], str]] = {
    "classify": _no_classifier,
    "embed": _no_embedder,
    "attention": _no_attention,
    "generate": _no_generator,
    "translate": _no_translator,
}
