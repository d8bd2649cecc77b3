"""Fine-tuning a translator: an encoder-decoder around the layers of a base, or from scratch."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import compress
from pathlib import Path
from typing import Any

import numpy as np

from headstart.atomic_io import content_hash
from headstart.batch import EncodedExample, TextLoader, sides
from headstart.config import ModelConfig, RunConfig, fit_length, load_preset, merge, resolve
from headstart.data.augmentation import AugmentedPairLoader, check_bpe_dropout
from headstart.data.parallel import PairExample, ParallelText, load_parallel, parse_pair
from headstart.data.text_io import hashes, is_contaminated
from headstart.data.tokenizer import Tokenizer
from headstart.data.tokenizer_training import TOKENIZERS, resolve_tokenizer
from headstart.errors import ConfigError, DataError
from headstart.evaluation.translation_metrics import MEASURES, score_translations
from headstart.generation.beam_search import Beam
from headstart.inference.loaded_model import SCRATCH, LoadedModel, RunInputs, Tokenizers, absolute_paths, load_model
from headstart.inference.translate import batch_tokens, write_translations
from headstart.models.model import Model, build_model, transfer
from headstart.objectives import make_objective
from headstart.objectives.base import with_backbone
from headstart.objectives.seq2seq import Seq2Seq
from headstart.results import TransferReport, TranslationScore
from headstart.training.callbacks import Note, OnEvent, Stage, ignore_event
from headstart.training.evaluate import eval_subset
from headstart.training.runtime import init_processes, start_runtime
from headstart.training.trainer import Evaluation, Trainer, loss_sums
from headstart.workflows.plan import sharded_translator_error
from headstart.workflows.training_job import FinishedRun, TrainingData, TrainingJob

PRESET = "translate-tiny"  # the default
# The stack that a base of each kind initializes, and the settings of the depths of the two stacks.
STACKS = {"bidirectional": "encoder", "causal": "decoder"}
DEPTHS = {"encoder": ("num_layers", "num_decoder_layers"), "decoder": ("num_decoder_layers", "num_layers")}
WARM_LEARNING_RATE = 1e-3  # around pretrained layers 256 wide; falls with the square of the width
WARM_EPOCHS, MIN_STEPS = 30, 200  # at least
STEPS_PER_EPOCH = 20  # that a small set gets by smaller batches
SAMPLE = 2_000  # pairs that are tokenized to estimate the mean length
LABELLED_ONLY = {
    "data": ("train_size", "text_column", "label_column"),
    "training": ("token_cutoff", "reinit_top_layers"),
}
# Settings of the model in which a translator may differ from its base.
FREE = ("dropout", "attention_dropout", "architecture", "pooler", "tie_embeddings")


@dataclass(frozen=True)
class FinishedTranslator(FinishedRun):
    """A finished translator and its validation score."""

    pair: str
    score: TranslationScore


def finetune_seq2seq(
    base: str,
    data: str,
    pair: str,
    out: str | Path,
    *,
    preset: str | None = None,
    settings: Mapping[str, Any] | None = None,
    on_event: OnEvent = ignore_event,
) -> FinishedTranslator:
    """Train a translator on DATA, around the layers of BASE (a run directory or a shipped base's name) or from `scratch`.

    Under torchrun all processes train one translator together.
    """
    with init_processes() as processes:
        with processes.raise_on_all():
            loaded = None if base == SCRATCH else load_model(base)
            config = translator_config(loaded, preset, settings or {})
            languages = parse_pair(pair)
            if loaded is not None and preset is None:
                facts = PairFacts.of(load_parallel(data, languages, config.data), loaded)
                config = translator_config(loaded, preset, settings or {}, facts)
            runtime = start_runtime(config.training, processes)
        data, base = absolute_paths([data, base])
        inputs = RunInputs(base=base, data=data, pair="-".join(languages))
        job = TranslationJob(config, runtime, inputs, on_event, loaded)
        return job.start(Path(out))


# --- The settings ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PairFacts:
    """What the rule for a warm start knows about parallel training text."""

    pairs: int
    mean_tokens: float  # of a pair, both sides together

    @staticmethod
    def of(text: ParallelText, base: LoadedModel) -> "PairFacts":
        """The facts of parallel text, as the base's tokenizers split it."""
        rows = text.splits["train"]
        sample = rows[:: max(1, len(rows) // SAMPLE)]
        sources = base.source_tokenizer.encode([row.source for row in sample])
        targets = base.tokenizer.encode([row.target for row in sample])
        return PairFacts(len(rows), sum(map(len, [*sources, *targets])) / max(1, len(sample)) + 4)


def warm_start_defaults(data: PairFacts, model: ModelConfig) -> dict[str, dict[str, Any]]:
    """Settings by section for a translator around pretrained layers of this width.

    The preset's learning rate is for random weights 128 wide; pretrained weights need a lower one, and wide ones the
    lowest. A small set gets smaller batches and more epochs, for a minimum number of optimizer steps.
    """
    rate = WARM_LEARNING_RATE * (256 / model.hidden_size) ** 2
    tokens = data.pairs * data.mean_tokens
    batch_tokens = int(min(8192, max(1024, tokens / STEPS_PER_EPOCH)))
    epochs = max(WARM_EPOCHS, math.ceil(MIN_STEPS * batch_tokens / max(1.0, tokens)))
    return {
        "optimizer": {"learning_rate": float(f"{min(max(rate, 1e-5), 5e-3):.2g}")},
        "training": {"max_epochs": float(epochs), "tokens_per_batch": batch_tokens},
    }


def translator_config(
    base: LoadedModel | None, preset: str | None, settings: Mapping[str, Any], data: PairFacts | None = None
) -> RunConfig:
    """The settings of a run. A base brings the shape of its body and its tokenizer.

    Around a base, with no preset named, the budget and the learning rate follow the `data` once it is read.
    """
    for section, keys in LABELLED_ONLY.items():
        given = settings.get(section, {})
        for key in keys:
            if isinstance(given, Mapping) and given.get(key):
                name = f"{section}.{key}"
                raise ConfigError(f"{name} is for labelled texts, not for --pair", hint=f"leave {name} out")
    wanted = merge({"objective": {"name": settings.get("objective", {}).get("name", Seq2Seq.name)}}, settings)
    defaults: dict[str, dict[str, Any]] = {}
    if base is not None:
        wanted = merge(wanted, _settings_from_base(base, preset, settings))
        if preset is None and data is not None:
            defaults = warm_start_defaults(data, base.info.config.model)
    config = resolve("finetune", preset or PRESET, defaults, wanted)
    objective = make_objective(config.objective)
    if not isinstance(objective, Seq2Seq):
        hint = "leave --pair out, or set objective.name=translate"
        raise ConfigError(f"{objective.name} reads no translations", hint=hint)
    if base is None and config.model.source_vocab_size is not None:
        raise ConfigError(
            "model.source_vocab_size follows from the tokenizer that is trained",
            hint="set tokenizer.shared_vocab=false, and tokenizer.vocab_size for both sides",
        )
    is_frozen = config.training.freeze_backbone or config.training.gradual_unfreezing_epochs is not None
    if config.model.tie_embeddings and is_frozen:
        raise ConfigError(
            "the head of this translator is its embedding table, so with a frozen body nothing could learn",
            hint="leave training.freeze_backbone and training.gradual_unfreezing_epochs out, or set model.tie_embeddings=false",
        )
    return fit_length(with_backbone(config, objective), settings)


def _settings_from_base(base: LoadedModel, preset: str | None, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The body and tokenizer of a translator around a base's layers."""
    own, tokenizer = base.info.config, settings.get("tokenizer", {})
    base.check_tokenizer(tokenizer.get("type"))
    is_shared = base.own_source_tokenizer is None
    if tokenizer.get("shared_vocab", is_shared) != is_shared:
        words = "one vocabulary for both sides" if is_shared else "a vocabulary for each side"
        raise ConfigError(f"{base.name} has {words}", hint="leave tokenizer.shared_vocab out")
    body, free = own.model.model_dump(), {*FREE}
    if own.model.architecture in STACKS:
        warm, new = DEPTHS[STACKS[own.model.architecture]]
        body |= {"architecture": "auto", "pooler": False, warm: own.model.num_layers, new: own.model.num_layers}
        free.add(new)
    elif own.model.architecture != "encoder-decoder":
        raise ConfigError(
            f"a {own.model.architecture} body cannot initialize a translator",
            hint="choose a bidirectional base (for the encoder), a causal one (for the decoder), or scratch",
        )
    raw = load_preset(preset or PRESET)
    shape = raw.get("model", {}) if preset else {}  # the default preset names no shape
    wanted = {**shape, **raw.get("finetune", {}).get("model", {}), **settings.get("model", {})}
    return {
        "model": base.change_model(wanted, lambda key, value: key in free, body),
        "tokenizer": {**own.tokenizer.model_dump(), "shared_vocab": is_shared},
    }


def warm_start(base: LoadedModel, model: Model) -> TransferReport:
    """Copy a base's weights into one stack of a translator, or those of another translator into both."""
    kind = base.info.config.model.architecture
    if kind not in STACKS:
        return transfer(base.weights, model, with_base_heads=True)
    stack = f"backbone.{STACKS[kind]}."
    return transfer({re.sub(r"^backbone\.stack\.", stack, name): w for name, w in base.weights.items()}, model)


# --- The data -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TranslationTask:
    """Pairs of texts as tokens, split by split; training pairs that are too long are left out."""

    tokenizer: Tokenizer
    source_tokenizer: Tokenizer
    text: ParallelText
    rows: dict[str, list[EncodedExample]]

    def sources(self, split: str) -> list[np.ndarray]:
        """The encoded sources of one split, in order."""
        return [row.source for row in self.rows[split] if row.source is not None]


def encode_pairs(
    examples: Sequence[PairExample], tokenizers: tuple[Tokenizer, Tokenizer], length: int | None, keep: str = "start"
) -> list[EncodedExample]:
    """Pairs as token ids with special tokens on both sides, truncated to `length` where it is given."""
    tokenizer, source_tokenizer = tokenizers
    targets = tokenizer.encode([example.target for example in examples])
    sources = source_tokenizer.encode([example.source for example in examples])

    def frame(own: Tokenizer, ids: np.ndarray) -> np.ndarray:
        return own.add_special_tokens(ids, length or len(ids) + 2, keep)

    return [
        EncodedExample(frame(tokenizer, target), source=frame(source_tokenizer, source))
        for target, source in zip(targets, sources, strict=True)
    ]


# --- The job --------------------------------------------------------------------------------------------------------


@dataclass
class TranslationJob(TrainingJob[TranslationTask, FinishedTranslator]):
    """Training a translator."""

    result_type = FinishedTranslator

    @cached_property
    def text(self) -> ParallelText:
        """The training and validation pairs."""
        return load_parallel(self.inputs.data, parse_pair(self.inputs.pair), self.config.data)

    def read_data(self) -> str:
        """A hash of all pairs; skipped ones are reported."""
        with self.processes.raise_on_all():
            if self.runtime.is_sharded:
                raise sharded_translator_error()
            text = self.text
        if text.skips:
            first = text.skips[0]
            self.on_event(Note(f"{len(text.skips)} pairs skipped; the first is {first.origin}: {first.reason}"))
        for note in text.notes:
            self.on_event(Note(note))
        return content_hash({name: [[row.source, row.target] for row in rows] for name, rows in text.splits.items()})

    def train_tokenizers(self) -> Tokenizers:
        """One tokenizer trained on both sides, or one on each."""
        settings = self.config.tokenizer
        self.on_event(Stage(f"tokenizer: {settings.type}"))
        sources, targets = self.text.sources("train"), self.text.targets("train")
        if settings.shared_vocab:
            return resolve_tokenizer(settings, lambda: [*sources, *targets]), None
        if settings.type not in TOKENIZERS:
            raise ConfigError(
                f"{settings.type} is one tokenizer, and tokenizer.shared_vocab=false needs two",
                hint="leave tokenizer.shared_vocab out, or name a kind to train: --tokenizer bpe",
            )
        return resolve_tokenizer(settings, lambda: targets), resolve_tokenizer(settings, lambda: sources)

    def encode_data(self, tokenizers: Tokenizers) -> TrainingData[TranslationTask]:
        """The pairs as tokens, without training pairs that are too long.

        The model gets a source vocabulary of its tokenizer's size.
        """
        tokenizer, source = tokenizers
        self.config = self.config.with_({"model": {"source_vocab_size": source and source.size}})
        text, both, training = self.text, (tokenizer, source or tokenizer), self.config.training
        length, keep = training.max_length, self.config.data.truncation_side
        self.on_event(Stage("tokenising the pairs"))
        with self.processes.raise_on_all():
            if training.bpe_dropout:
                check_bpe_dropout(both[0], text.targets("train"))
                check_bpe_dropout(both[1], text.sources("train"))
            rows = {
                name: encode_pairs(pairs, both, length, keep) for name, pairs in text.splits.items() if name != "train"
            }
            train = encode_pairs(text.train, both, None)
            fits = [max(sides(row)) <= length for row in train]
            if not any(fits):
                hint = "set a larger training.max_length"
                raise DataError(f"no training pair fits into {length} tokens per side", hint=hint)
        if not all(fits):
            left_out = f"{fits.count(False):,} of {len(train):,} training pairs are left out"
            why = f"one side is over {length} tokens (training.max_length), and a part of a text has no translation"
            self.on_event(Note(f"{left_out}: {why}"))
        train, pairs = list(compress(train, fits)), list(compress(text.train, fits))
        loader = TextLoader(train, training.tokens_per_batch, training.batch_size, training.seed)
        if training.bpe_dropout:
            loader = AugmentedPairLoader(train, pairs, both, training)
        tokens = sum(sum(sides(row)) for row in train)
        text = replace(text, splits={**text.splits, "train": pairs})
        return TrainingData(
            content=TranslationTask(*both, text, {"train": train, **rows}),
            loader=loader,
            tokenizer=tokenizer,
            tokens=tokens,
            train_hashes=[hashes(text.sources("train"))],
            summary=f"{len(train):,} pairs to learn from, {tokens:,} tokens on both sides",
            own_source_tokenizer=source,
        )

    def build_model(self, data: TranslationTask) -> tuple[Model, TransferReport | None]:
        """An encoder-decoder, with the base's weights where they fit."""
        config, size = self.config.model, data.tokenizer.size
        model = build_model(config, size, self.objective.heads(config, size, 0))
        return model, None if self.base is None else warm_start(self.base, model)

    def evaluate(self, model: Model, data: TranslationTask) -> Evaluation:
        """Loss on the validation pairs and, by default, BLEU of their greedy translations."""
        assert isinstance(self.objective, Seq2Seq)
        chosen = eval_subset(len(data.rows["valid"]), self.config.training.eval_subset_size)
        values = self._losses(model, [data.rows["valid"][index] for index in chosen], data.tokenizer)
        if self.objective.metric_for_best_model == "loss":
            return Evaluation(values, objective_value=-values["loss"])
        sources, pairs = data.sources("valid"), data.text.valid
        written = write_translations(model, [sources[index] for index in chosen], data.tokenizer, self.runtime)
        found = [data.tokenizer.decode(each.tokens) for each in written]
        references, language = [pairs[index].target for index in chosen], data.text.pair[1]
        values["bleu"] = score_translations(found, references, language, measures=("bleu",)).bleu
        return Evaluation(values, objective_value=values["bleu"] - 1e-6 * min(values["loss"], 100.0))

    def _losses(self, model: Model, rows: Sequence[EncodedExample], tokenizer: Tokenizer) -> dict[str, Any]:
        """Loss (nats per token, without smoothing) and accuracy of the next token, given the true ones before it."""
        loader = TextLoader(rows, batch_tokens(self.runtime), shuffled=False)
        total, count, correct = loss_sums(model, self.objective, loader, tokenizer, self.runtime)["lm"]
        loss = total / max(1, count)
        return {"loss": loss, "perplexity": math.exp(min(loss, 50)), "accuracy": correct / max(1, count)}

    def score(
        self,
        model: Model,
        data: TranslationTask,
        split: str,
        seen: np.ndarray,
        *,
        beam: int = 1,
        measures: Sequence[str] = tuple(MEASURES),
    ) -> tuple[TranslationScore, list[str]]:
        """The score on one split, with its leak-free part, and the translations; a beam of 1 is greedy."""
        rows, language, references = data.rows[split], data.text.pair[1], data.text.targets(split)
        search = None if beam == 1 else Beam(width=beam)
        written = write_translations(model, data.sources(split), data.tokenizer, self.runtime, search)
        texts = [data.tokenizer.decode(each.tokens) for each in written]
        cut = sum(each.is_cut for each in written)
        found = score_translations(texts, references, language, measures=measures, hypotheses_cut=cut, split=split)
        unseen, leak_free = np.flatnonzero(~is_contaminated(hashes(data.text.sources(split)), seen)), None
        if len(unseen):
            both = [texts[index] for index in unseen], [references[index] for index in unseen]
            leak_free = score_translations(*both, language, measures=("bleu",)).bleu
        leaks: dict[str, Any] = {
            "leaked": len(rows) - len(unseen),
            "leak_free_bleu": leak_free,
            "leak_free_count": len(unseen),
        }
        return replace(found, **self._losses(model, rows, data.tokenizer), beam=beam, **leaks), texts

    def summarize(
        self, run: FinishedRun, trainer: Trainer, data: TranslationTask, seen: np.ndarray
    ) -> FinishedTranslator:
        """The score of greedy translations of the validation split."""
        measures = ("bleu", "chrf")
        score, _ = trainer.strategy.read(lambda model: self.score(model, data, "valid", seen, measures=measures))
        return FinishedTranslator(**vars(run), pair=self.inputs.pair, score=score)
