"""A trained model in memory that computes response items for batches of texts."""

import threading
from collections.abc import Callable, Generator, Hashable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from itertools import chain
from typing import Any

import numpy as np
import torch
from scipy.special import softmax

from headstart import fast
from headstart.batch import EncodedExample
from headstart.data.text_io import Example, text_columns
from headstart.errors import RunError
from headstart.evaluation import attention
from headstart.evaluation.attention import attention_maps, readable, translation_maps
from headstart.generation.beam_search import Beam
from headstart.generation.generate import Unfolding, prompt_batch, stream
from headstart.inference.classify import answer, leave_one_out
from headstart.inference.embed import Encoder, plain_batch, usual_length
from headstart.inference.generate import Request as GenerationSettings
from headstart.inference.generate import Writer, open_writer
from headstart.inference.loaded_model import LoadedModel
from headstart.inference.translate import Translator, open_translator, search_translations
from headstart.models import BACKBONES
from headstart.models.backbones import TransformerBackbone
from headstart.models.model import count_parameters
from headstart.objectives.classification import Classification
from headstart.objectives.masked_lm import CausalAndMasked
from headstart.serving import schema
from headstart.serving.batcher import Batcher, StreamPool
from headstart.serving.schema import Ability, Limits, http_error
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
    """A finished run: its model, its tokenizer, what it can do, and the requests that wait for it."""

    def __init__(
        self,
        trained: LoadedModel,
        limits: Limits,
        precision: str | None = None,
        name: str = "",
        on_batch: Callable[[int, int], None] = lambda num_items, tokens: None,
    ):
        self.name = name
        self.trained, self.limits = trained, limits
        self.config, self.tokenizer = trained.info.config, trained.tokenizer
        changes = {} if precision is None else {"training": {"precision": precision}}
        self.runtime = start_runtime(self.config.with_(changes).training)
        self.model = trained.model().to(self.runtime.device)
        self.num_parameters = count_parameters(self.model)
        self.max_length = usual_length(trained)
        self.eval_tokens = self.runtime.eval_batch_tokens  # in one forward pass
        self.precision = str(self.runtime.precision).removeprefix("torch.")
        self.fast_model = fast.optimize(self.model, "infer", self.runtime.precision)  # classifies and embeds
        if self.runtime.device.type == "cpu" and self.runtime.precision != torch.float32:
            self.eval_tokens *= 2  # half as wide, so a cache holds twice as many
        self.batcher = Batcher(
            self.run_batch,
            max_batch_tokens=limits.max_batch_tokens,
            max_queued_tokens=limits.max_queued_tokens,
            num_threads=THREAD_POOL.max_batches if self.runtime.device.type == "cpu" else 1,
            name=f"run {name}",
            on_batch=on_batch,
        )
        self.streams = StreamPool(limits.max_streams, f"run {name}, streams")
        self._weights_per_token = self.num_parameters - self.model.backbone.table.numel()
        self._lock = threading.Lock()
        self._methods: dict[str, Callable[..., Sequence[Any]]] = {
            "classify": self._classify,
            "embed": self._embed,
            "attention": self._attention,
            "translate": self._translate,
        }
        self.obstacles = find_obstacles(trained)
        self.writer: Writer | None = None if self.obstacles["generate"] else open_writer(trained)
        self.translator: Translator | None = None if self.obstacles["translate"] else open_translator(trained)

    @property
    def abilities(self) -> list[Ability]:
        """What the model can do."""
        return [ability for ability, obstacle in self.obstacles.items() if not obstacle]

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

    def generate(
        self, query: schema.GenerateRequest, max_new_tokens: int
    ) -> Generator[dict[str, str] | schema.GenerateResponse, None, None]:
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
        options = query.model_dump(include={"temperature", "top_k", "top_p", "seed"})
        sampling = GenerationSettings(tokens=max_new_tokens, **options).sampling
        rules, batch = writer.rules(max_new_tokens), prompt_batch([row], tokenizer.pad_id)
        detokenizer, text, num_tokens, reason = Unfolding(tokenizer, row), "", 0, "length"
        tokens: Iterator[int | None] = stream(writer.decoder, batch, rules, sampling, writer.runtime.autocast)
        for token in chain(tokens, [None]):
            if token == tokenizer.eos_id:
                reason = "end"
                continue
            num_tokens += token is not None
            if piece := detokenizer.finish() if token is None else detokenizer.add(token):
                text += piece
                yield {"text": piece}
        is_truncated = len(prompt) < len(ids)
        yield schema.GenerateResponse(model=self.name, text=text, tokens=num_tokens, reason=reason, cut=is_truncated)

    def _encode(self, ability: Ability, texts: Sequence[str]) -> tuple[list[EncodedExample], list[bool]]:
        """The texts as token ids with special tokens, and which of them were truncated."""
        length, encoded = self.length(ability), self.tokenizer.encode(texts)
        side, add_special_tokens = self.config.data.truncation_side, self.tokenizer.add_special_tokens
        rows = [EncodedExample(add_special_tokens(ids, length, side)) for ids in encoded]
        return rows, [len(ids) + 2 > length for ids in encoded]

    def _logits(self, rows: Sequence[EncodedExample]) -> np.ndarray:
        objective = self.trained.objective
        return class_logits(self.fast_model, objective, rows, self.tokenizer, self.runtime, self.eval_tokens)

    def _classify(self, texts: Sequence[str], explain: bool) -> list[schema.Label]:
        rows, truncated = self._encode("classify", texts)
        task = self.trained.task
        if explain and task != "single-label":
            raise http_error(422, f"this run predicts for {task}", hint="explanations are for one class a text")
        if (tfidf := self.trained.tfidf) is not None:
            if explain:
                raise http_error(422, "this run answers with its TF-IDF baseline", hint="explanations are for networks")
            probabilities, truncated = tfidf.predict_probabilities(list(texts)), [False] * len(texts)
        elif task != "single-label":
            return self._classify_task(texts, rows, truncated)
        else:
            probabilities = softmax(self._logits(rows).astype(np.float64), axis=1)  # (N, C)
        classes, best = self.trained.info.classes, probabilities.argmax(axis=1).tolist()
        return [
            schema.Label(
                label=classes[index],
                probability=values[index],
                probabilities=dict(zip(classes, values, strict=True)),
                tokens=len(row.tokens),
                cut=is_truncated,
                explanation=self._explain(row, index) if explain else None,
            )
            for row, is_truncated, index, values in zip(
                rows, truncated, best, np.round(probabilities, 6).tolist(), strict=True
            )
        ]

    def _classify_task(
        self, texts: Sequence[str], rows: Sequence[EncodedExample], truncated: Sequence[bool]
    ) -> list[schema.Label]:
        """Several labels with signs between them, or one of the classes in order."""
        assert isinstance(self.trained.objective, Classification)
        outputs = self.trained.objective.activate(torch.from_numpy(self._logits(rows))).double().numpy()
        answers = answer([self.trained], [Example(text) for text in texts], outputs)
        names = self.trained.info.classes
        return [
            schema.Label(
                label=label,
                probability=round(probability, 6),
                probabilities=dict(zip(names, np.round(values, 6).tolist(), strict=True)),
                tokens=len(row.tokens),
                cut=is_truncated,
            )
            for (label, probability), values, row, is_truncated in zip(answers, outputs, rows, truncated, strict=True)
        ]

    def _explain(self, row: EncodedExample, label: int) -> schema.Explanation:
        most = self.limits.max_explained_tokens
        if len(row.tokens) > most:
            problem = f"the text has {len(row.tokens)} tokens; for an explanation, {most} are the most"
            raise http_error(422, problem, hint="send a shorter text")
        explanation = leave_one_out(row, label, self._logits)
        pieces = [readable(piece) for piece in self.tokenizer.convert_ids_to_tokens(row.tokens[1:-1])]
        parts, whole = np.round(explanation.parts, 6).tolist(), round(explanation.whole, 6)
        return schema.Explanation(pieces=pieces, parts=parts, whole=whole)

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

    def _attention(
        self, texts: Sequence[str], layer: int | None, head: int | None
    ) -> list[tuple[schema.AttentionMaps, bool]]:
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
            results.append((_maps_response(maps, layer, head), is_truncated))
        return results

    def _translate(self, texts: Sequence[str], attention: bool) -> list[schema.Translation]:
        """Translations by the search of `headstart translate`; a blank text stays blank."""
        assert self.translator is not None
        translator, max_length = self.translator, self.translator.longest_source
        indices = [index for index, text in enumerate(texts) if text.strip()]
        encoded = translator.source_tokenizer.encode([texts[index] for index in indices])
        sources = [translator.source_tokenizer.add_special_tokens(ids, max_length) for ids in encoded]
        hypotheses = search_translations(translator.decoder, sources, translator.tokenizer, translator.runtime, Beam())
        results = [schema.Translation(text="", cut=False) for _ in texts]
        for index, ids, source, best in zip(indices, encoded, sources, hypotheses, strict=True):
            tokens = best[0].tokens
            maps = self._cross_attention(translator, source, tokens) if attention else None
            text, is_truncated = translator.tokenizer.decode(tokens), len(ids) + 2 > max_length
            results[index] = schema.Translation(text=text, cut=is_truncated, attention=maps)
        return results

    def _cross_attention(self, translator: Translator, source: np.ndarray, tokens: list[int]) -> schema.AttentionMaps:
        body = self.config.model
        target = translator.tokenizer.add_special_tokens(tokens, len(tokens) + 2)
        num_layers = body.num_decoder_layers or body.num_layers
        self._check_size(num_layers * body.num_heads, len(target) - 1, len(source))
        row = EncodedExample(target, source=source)
        batch = self.trained.objective.collate([row], translator.tokenizer, generator_for(0))
        pieces = (
            translator.source_tokenizer.convert_ids_to_tokens(source),
            translator.tokenizer.convert_ids_to_tokens(target),
        )
        return _maps_response(translation_maps(self.model, batch.to(translator.runtime.device), "cross", *pieces))

    def _check_size(self, num_maps: int, num_queries: int, num_keys: int) -> None:
        if num_maps * num_queries * num_keys > self.limits.max_attention_values:
            problem = f"{num_maps} maps of {num_queries} by {num_keys} tokens are too much for one response"
            raise http_error(422, problem, hint="ask for one layer and attention_head, or send a shorter text")


def _maps_response(
    found: attention.AttentionMaps, layer: int | None = None, head: int | None = None
) -> schema.AttentionMaps:
    """Tokens, mask, and the weights of one or all layers and attention heads."""
    layers, heads = found.chosen(layer, head)
    maps = [
        schema.AttentionMap(
            layer=layer + 1,
            attention_head=head + 1,
            weights=np.round(weights.astype(np.float64), 5).tolist(),
            entropy=round(float(attention.entropy(weights).mean()), 4),
            distance=round(float(attention.mean_distance(weights).mean()), 4),
        )
        for layer in layers
        for head in heads
        for weights in [found.weights[layer, head]]
    ]
    seen = found.seen.astype(int).tolist()
    return schema.AttentionMaps(queries=found.queries, keys=found.keys, seen=seen, maps=maps)


def find_obstacles(trained: LoadedModel) -> dict[Ability, str]:
    """Why a run lacks an ability; empty if it has it."""
    kind, objective = trained.info.config.model.architecture, trained.objective
    can_generate = kind == "causal" or isinstance(objective, CausalAndMasked)
    has_attention = issubclass(BACKBONES[kind], TransformerBackbone)
    is_pair = objective.reads == "texts" and len(text_columns(trained.info.config.data.text_column)) > 1
    other = "pairs of texts" if is_pair else trained.task if trained.task in ("regression", "token") else ""
    table: dict[Ability, tuple[bool, str]] = {
        "classify": (
            objective.reads == "texts" and not other,
            f"predicts for {other}: use `headstart predict`" if other else "is a language model and names no classes",
        ),
        "embed": (kind != "encoder-decoder", "reads two texts at once"),
        "attention": (has_attention, f"has a {kind} body without attention to show"),
        "generate": (
            objective.reads == "blocks" and can_generate,
            f"was trained with {objective.name} and writes no text",
        ),
        "translate": (objective.reads == "translations", "was not trained to translate"),
    }
    return {ability: "" if is_able else reason for ability, (is_able, reason) in table.items()}
