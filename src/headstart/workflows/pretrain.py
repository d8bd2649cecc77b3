"""Pretraining a language model on raw text, from random weights or from a base."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from headstart.atomic_io import content_hash, write_folder_once
from headstart.batch import Loader
from headstart.config import (
    BUDGETS,
    DataConfig,
    ModelConfig,
    RunConfig,
    TokenizerConfig,
    fit_length,
    load_preset,
    resolve,
)
from headstart.data.corpus_loaders import BlockLoader, MixedLoader, PairLoader
from headstart.data.documents import Corpora, Documents, MixtureComponent, open_documents, parse_mixture
from headstart.data.subsets import evaluation_hashes
from headstart.data.text_io import Hashes, text_hash
from headstart.data.token_cache import (
    Corpus,
    TokenStream,
    default_cache,
    exclude_documents,
    find_prepared,
    join,
    prepare,
    prepare_share,
)
from headstart.data.tokenizer import Tokenizer
from headstart.data.tokenizer_training import TOKENIZERS, resolve_tokenizer
from headstart.errors import ConfigError, DataError
from headstart.inference.loaded_model import (
    LoadedModel,
    RunInputs,
    Tokenizers,
    absolute_paths,
    load_model,
    with_absolute_paths,
)
from headstart.models.model import Model, build_model, transfer
from headstart.objectives import make_objective
from headstart.objectives.base import Objective, with_backbone
from headstart.objectives.masked_lm import MaskedLM
from headstart.results import LanguageScore, TransferReport
from headstart.training.callbacks import Note, OnEvent, Stage, ignore_event
from headstart.training.runtime import init_processes, start_runtime
from headstart.training.trainer import Evaluation, Trainer, loss_sums
from headstart.workflows.distill import DistillationSetup
from headstart.workflows.finetune_defaults import describe
from headstart.workflows.training_job import FinishedRun, TrainingData, TrainingJob

EVALUATION_BATCHES = 50  # of the held-out part, at each evaluation during training

# Continued pretraining: a preset's settings are made for corpora of many millions of tokens; on a small one they are a
# handful of steps. Evidence: benchmarks/results/finetune-defaults.md.
SMALL_CORPUS = 5_000_000  # tokens of a corpus that counts as small, at most
COUNTED = 30_000_000  # characters from which a corpus counts as large without counting the rest
SAMPLE = 500  # documents that are tokenized to estimate tokens per character
TOKENS_READ = 2_000_000  # of an adaptation, repeats counted
MIN_EPOCHS, MAX_EPOCHS = 3, 40
BLOCK_SIZE, BATCH_TOKENS = 128, 4096
MIN_STEPS = 100
NO_HASHES: Hashes = np.zeros(0, np.uint64)
NOT_RAW_TEXT = {  # what an objective reads that cannot pretrain, and what to do instead
    "texts": ("labels", "--objective causal-lm or masked-lm can"),
    "translations": ("translations", "`headstart finetune scratch DATA --pair en-de` learns from them"),
}
LEARNING_RATE = 5e-4  # of a model 256 wide; falls with the square of the width


@dataclass(frozen=True)
class Pretrained(FinishedRun):
    """A finished base and its score on held-out text (None when the corpus is too small to hold any out)."""

    score: LanguageScore | None


def pretrain(
    corpora: Corpora,
    out: str | Path,
    *,
    base: str | None = None,
    teacher: str | Sequence[str] | None = None,
    tokenizer_corpora: Corpora | None = None,
    preset: str | None = None,
    settings: Mapping[str, Any] | None = None,
    adapts: bool = True,
    on_event: OnEvent = ignore_event,
) -> Pretrained:
    """Train a base on raw text; `settings` are nested by section and override the preset's (`tiny` by default).

    Corpora are names, "NAME=WEIGHT", or names with their weights: how many times a text is read for each pass over
    one of weight 1. A new tokenizer is trained on them, or on the `tokenizer_corpora`. From a `base` (a run, or a
    shipped base's name) training continues with its tokenizer, weights and shape. A `teacher` is another base with the
    same tokenizer to distil from. From a base, with no preset named, the settings for a small corpus follow its size
    unless `adapts` is False. Under torchrun all processes train one base together.
    """
    with init_processes() as processes:
        with processes.raise_on_all():
            mix = parse_mixture(corpora)
            loaded = None if base is None else load_model(base)
            distillation = None if teacher is None else DistillationSetup.load(teacher)
            given = with_absolute_paths(settings)
            config, _ = pretrain_config(preset, given, loaded, distillation)
            tokens = None
            if adapts and loaded is not None and preset is None:
                tokens = count_tokens(mix, config.data, loaded.tokenizer)
                config, _ = pretrain_config(preset, given, loaded, distillation, tokens)
            runtime = start_runtime(config.training, processes)
        inputs = pretrain_inputs(mix, base, parse_mixture(tokenizer_corpora or []))
        if distillation is not None:
            inputs = distillation.add_to(inputs)
        words = "" if tokens is None else describe(config, given)
        notes = [f"settings to adapt {base} to about {tokens:,} tokens: {words}"] if words else []
        return PretrainJob(config, runtime, inputs, on_event, loaded, distillation).start(Path(out), notes)


def pretrain_inputs(
    mix: Sequence[MixtureComponent], base: str | None, tokenizer_corpora: Sequence[MixtureComponent]
) -> RunInputs:
    """The inputs in run.json; `tokenizer_corpora` are what a new tokenizer is trained on, if not the mix."""
    found = [each.absolute() for each in mix]
    return RunInputs(
        base="" if base is None else absolute_paths([base])[0],
        corpora=[each.corpus for each in found],
        mix=found,
        tokenizer_corpora=[each.absolute() for each in tokenizer_corpora],
    )


# --- The settings ---------------------------------------------------------------------------------------------------


def pretrain_config(
    preset: str | None,
    settings: Mapping[str, Any],
    base: LoadedModel | None = None,
    distillation: DistillationSetup | None = None,
    adapts_to: int | None = None,
) -> tuple[RunConfig, Objective]:
    """The settings of a run and its objective, which must be able to train a base.

    A base that adapts to a small corpus of `adapts_to` tokens gets settings for that instead of the preset's.
    """
    defaults: Mapping[str, Any] = {}
    name = preset or ("tiny" if base is None else base.info.config.preset)
    if base is not None:
        if adapts_to is not None:
            defaults = adaptation_defaults(adapts_to, base.info.config.model)
        settings = {**settings, "model": _base_model_settings(base, preset, settings)}
    owner = base or (distillation.teachers[0] if distillation is not None else None)
    if owner is not None:
        settings = {**settings, "tokenizer": _fixed_tokenizer(owner, settings.get("tokenizer", {}))}
    config = resolve("pretrain", name, defaults, settings)
    objective = make_objective(config.objective)
    if objective.reads in NOT_RAW_TEXT:
        needs, hint = NOT_RAW_TEXT[objective.reads]
        raise ConfigError(f"{objective.name} needs {needs}, so it cannot pretrain", hint=hint)
    for key in ("freeze_backbone", "gradual_unfreezing_epochs", "reinit_top_layers", "bpe_dropout", "token_cutoff"):
        if getattr(config.training, key):
            raise ConfigError(f"training.{key} is for fine-tuning", hint="leave it out when you pretrain")
    return fit_length(with_backbone(config, objective), settings), objective


def _base_model_settings(base: LoadedModel, preset: str | None, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The body of a base, with the dropout that the user sets."""
    own = base.info.config
    raw = load_preset(preset or own.preset)
    shape = raw.get("model", {}) if preset else {}
    wanted = {**shape, **raw.get("pretrain", {}).get("model", {}), **settings.get("model", {})}
    is_tuned = own.job == "finetune"  # the dropout of fine-tuning does not continue into pretraining
    model = {key: value for key, value in own.model if not (is_tuned and "dropout" in key)}
    return base.change_model(wanted, lambda key, value: "dropout" in key, model)


def _fixed_tokenizer(owner: LoadedModel, wanted: Mapping[str, Any]) -> dict[str, Any]:
    """The tokenizer settings of a base or a teacher, which a run cannot change."""
    owner.check_tokenizer(wanted.get("type"))
    own = owner.info.config.tokenizer
    for key, value in wanted.items():
        if key != "type" and getattr(own, key, value) != value:
            raise ConfigError(
                f"tokenizer.{key} of {owner.name} is {getattr(own, key)}, not {value}",
                hint="a base or a teacher brings its own tokenizer; pretrain from scratch to change it",
            )
    return {**wanted, **own.model_dump()}


def count_tokens(mix: Sequence[MixtureComponent], config: DataConfig, tokenizer: Tokenizer) -> int | None:
    """An estimate of the tokens in the corpora; None for a large or an unreadable mix, which gets the preset's settings."""
    characters = 0.0
    sample: list[str] = []
    try:
        for component in mix:
            documents = component.open(config)
            sample += islice(iter(documents), SAMPLE)
            for text in documents:
                characters += component.weight * len(text)
                if characters > COUNTED:
                    return None
    except DataError:
        return None  # the error is raised where the corpus is read
    ratio = sum(map(len, tokenizer.encode(sample))) / max(1, sum(map(len, sample)))
    tokens = round(ratio * characters)
    return tokens if 0 < tokens <= SMALL_CORPUS else None


def adaptation_defaults(tokens: int, model: ModelConfig) -> dict[str, dict[str, Any]]:
    """Settings by section for continued pretraining on a small corpus of so many tokens.

    The run selects the weights with the lowest held-out loss, so an overlong run does no harm.
    """
    batch_tokens = min(BATCH_TOKENS, max(512, tokens // 8))  # smaller batches give a small corpus more steps
    wanted = min(MAX_EPOCHS, max(MIN_EPOCHS, TOKENS_READ / tokens))
    floor = math.ceil(MIN_STEPS * batch_tokens / tokens)
    rate = min(1e-3, LEARNING_RATE * (256 / model.hidden_size) ** 2)
    return {
        "optimizer": {"name": "adamw", "learning_rate": float(f"{rate:.2g}"), "weight_decay": 0.01},
        "lr_schedule": {"name": "linear", "warmup_ratio": 0.1},
        "training": {
            "max_epochs": float(min(max(math.ceil(wanted), floor), 10 * MAX_EPOCHS)),
            "max_length": min(BLOCK_SIZE, model.max_position_embeddings),
            "tokens_per_batch": batch_tokens,
            "checkpoint_selection": "best",
        },
    }


# --- The data -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class HeldOut:
    """Text that is held out, as the tokens of a tokenizer; `loader` is None where there is too little to evaluate on."""

    stream: TokenStream
    tokenizer: Tokenizer
    loader: Loader | None


def without_repeats(corpora: Sequence[Corpus], config: DataConfig, excluded: Hashes, on_event: OnEvent) -> list[Corpus]:
    """The corpora without texts of excluded evaluation sets and, if `data.deduplicate`, without repeated documents."""
    if not config.deduplicate and not config.exclude_eval_texts_of:
        return list(corpora)
    train = exclude_documents([corpus.train for corpus in corpora], excluded, config.deduplicate)
    valid = exclude_documents([corpus.valid for corpus in corpora], excluded, config.deduplicate)
    found = [replace(corpus, train=t, valid=v) for corpus, t, v in zip(corpora, train, valid, strict=True)]
    reasons = {"repeats": config.deduplicate, "excluded by data.exclude_eval_texts_of": config.exclude_eval_texts_of}
    why = " or ".join(reason for reason, applies in reasons.items() if applies)
    for before, after in zip(corpora, found, strict=True):
        left_out = sum(before.documents.values()) - sum(after.documents.values())
        if left_out:
            on_event(Note(f"{before.name}: {left_out:,} documents left out ({why})"))
    return found


def make_mixed_loader(
    corpora: Sequence[Corpus], weights: Sequence[float], make: Callable[[TokenStream], BlockLoader | PairLoader]
) -> Loader:
    """One loader for all corpora; corpora that all have weight 1 are read as one long text."""
    if all(weight == 1 for weight in weights):
        return make(join([corpus.train for corpus in corpora]))
    read = [(corpus.train, weight) for corpus, weight in zip(corpora, weights, strict=True) if len(corpus.train) > 2]
    loaders = [make(stream) for stream, _ in read]
    first = loaders[0]
    return MixedLoader(loaders, [weight for _, weight in read], first.rows_per_batch, first.seed)


# --- Tokenizing corpora ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Prepared:
    """The progress of one corpus; its tokens are known when all pieces are there."""

    name: str
    pieces: int  # of the whole corpus
    own_pieces: int  # of this job
    tokens: int | None
    documents: int | None
    tokenizer: str  # a path that `--tokenizer` takes


def prepare_corpora(
    corpora: Sequence[str],
    *,
    share: tuple[int, int] = (0, 1),
    preset: str = "tiny",
    settings: Mapping[str, Any] | None = None,
    on_event: OnEvent = ignore_event,
) -> list[Prepared]:
    """Tokenize CORPORA for `pretrain` with the same preset and settings: all of them, or share (i, n) of each."""
    number, count = share
    if not 0 <= number < count:
        raise ConfigError(
            f"there is no share {number} of {count}",
            hint=f"shares are 0/{count} to {count - 1}/{count}" if count else "for example --shard 0/4",
        )
    config = resolve("pretrain", preset, settings or {})
    documents = [open_documents(corpus, config.data) for corpus in corpora]
    for note in (note for each in documents for note in each.notes):
        on_event(Note(note))
    excluded = evaluation_hashes(config.data.exclude_eval_texts_of)
    tokenizer = learn_tokenizer(config.tokenizer, documents, on_event, excluded)
    path = str(_tokenizer_path(config.tokenizer, documents, excluded))
    found = []
    for each in documents:
        own, pieces = prepare_documents_share(each, tokenizer, number, count, on_event)
        ready = find_prepared(each, tokenizer, default_cache())
        tokens = None if ready is None else len(ready.train) + len(ready.valid)
        total = None if ready is None else sum(ready.documents.values())
        found.append(Prepared(each.name, pieces, own, tokens, total, path))
    return found


def learn_tokenizer(
    config: TokenizerConfig, documents: list[Documents], on_event: OnEvent, excluded: Hashes = NO_HASHES
) -> Tokenizer:
    """The tokenizer that the settings name: opened, or trained on the documents without the `excluded` hashes.

    Trained tokenizers are cached: the same text and settings train only once.
    """
    never = frozenset(excluded.tolist())

    def texts() -> Iterator[str]:
        on_event(Stage(f"training a {config.type} tokenizer"))
        for each in documents:
            yield from (text for text in each if not never or text_hash(text) not in never)

    if config.type not in TOKENIZERS:
        return resolve_tokenizer(config, texts)
    path = _tokenizer_path(config, documents, excluded)
    if path.is_dir():
        on_event(Stage(f"using the cached {config.type} tokenizer of this text"))
    else:
        write_folder_once(path, resolve_tokenizer(config, texts).save)
    return Tokenizer.load(path)  # parallel jobs all use the first one's


def _tokenizer_path(config: TokenizerConfig, documents: list[Documents], excluded: Hashes) -> Path:
    """Where the tokenizer of the settings is, or will be once it has been trained on the documents."""
    if config.type not in TOKENIZERS:
        return Path(config.type)
    words = [version("tokenizers"), config.model_dump(), [each.fingerprint for each in documents]]
    words += [excluded.tolist()] if len(excluded) else []
    return default_cache() / "tokenizers" / content_hash(words)[:32]


def prepare_documents(documents: Documents, tokenizer: Tokenizer, on_event: OnEvent) -> Corpus:
    """The documents as cached shards; skipped rows are reported."""
    corpus = prepare(documents, tokenizer, default_cache(), _report_progress(documents, on_event))
    for reason, count in corpus.skips.items():
        on_event(Note(f"{documents.name}: {count:,} rows skipped: {reason}"))
    return corpus


def prepare_documents_share(
    documents: Documents, tokenizer: Tokenizer, number: int, count: int, on_event: OnEvent
) -> tuple[int, int]:
    """Tokenize one share of the documents into the cache; its number of pieces, and that of all shares."""
    return prepare_share(documents, tokenizer, default_cache(), number, count, _report_progress(documents, on_event))


def _report_progress(documents: Documents, on_event: OnEvent) -> Callable[[int, int], None]:
    return lambda done, total: on_event(Stage(f"tokenising {documents.name}", done, total))


# --- The job --------------------------------------------------------------------------------------------------------


@dataclass
class PretrainJob(TrainingJob[HeldOut, Pretrained]):
    """Pretraining a base."""

    documents: list[Documents] = field(default_factory=list)
    result_type = Pretrained

    def read_data(self) -> str:
        """Open the corpora."""
        with self.processes.raise_on_all():
            self.documents = [each.open(self.config.data) for each in self.inputs.mix]
            self.excluded = evaluation_hashes(self.config.data.exclude_eval_texts_of)
            fingerprint = content_hash([each.fingerprint for each in self.documents])
        for note in (note for each in self.documents for note in each.notes):
            self.on_event(Note(note))
        return fingerprint

    def train_tokenizers(self) -> Tokenizers:
        """One tokenizer, trained on the mix or on the corpora that are named for it."""
        others = [each.open(self.config.data) for each in self.inputs.tokenizer_corpora]
        documents = others or self.documents
        return learn_tokenizer(self.config.tokenizer, documents, self.on_event, self.excluded), None

    def encode_data(self, tokenizers: Tokenizers) -> TrainingData[HeldOut]:
        """The corpora as token streams in the cache; each process tokenizes a part of them."""
        tokenizer, config, processes, on_event = tokenizers[0], self.config, self.processes, self.on_event
        objective = self.objective
        with processes.raise_on_all():
            if self.distillation is not None:
                self.distillation.check(objective, config)
            if isinstance(objective, MaskedLM) and tokenizer.mask_id is None:
                problem = f"this tokenizer has no mask token, so {objective.name} cannot hide anything"
                raise ConfigError(problem, hint="use causal-lm")
            for each in [] if processes.is_alone else self.documents:
                prepare_documents_share(each, tokenizer, processes.rank, processes.count, on_event)
        corpora = processes.main_first(
            lambda: [prepare_documents(each, tokenizer, on_event) for each in self.documents]
        )
        corpora = without_repeats(corpora, config.data, self.excluded, on_event)
        weights = [each.weight for each in self.inputs.mix]
        with processes.raise_on_all():
            if sum(len(corpus.train) for corpus in corpora) < 3:
                raise DataError("the corpus holds almost no text", hint="give more or longer documents")
            if not any(getattr(config.training, name) for name in BUDGETS):
                raise ConfigError("no budget is given", hint="add --minutes, --steps, --tokens or --epochs")
            loader = make_mixed_loader(corpora, weights, lambda stream: self.make_loader(stream, tokenizer))
        valid = join(corpus.valid for corpus in corpora)
        sizes = [len(corpus.train) * weight for corpus, weight in zip(corpora, weights, strict=True)]
        try:
            has_enough = len(valid) > objective.lookahead
            valid_loader = self.make_loader(valid, tokenizer, shuffled=False) if has_enough else None
        except DataError:  # the held-out part is too small to make pairs of
            valid_loader = None
        return TrainingData(
            content=HeldOut(valid, tokenizer, valid_loader),
            loader=loader,
            tokenizer=tokenizer,
            tokens=round(sum(sizes)),
            train_hashes=[corpus.hashes() for corpus in corpora],
            summary=f"{round(sum(sizes)):,} tokens to read, {len(valid):,} held out",
            has_validation=valid_loader is not None,
        )

    def make_loader(self, stream: TokenStream, tokenizer: Tokenizer, shuffled: bool = True) -> BlockLoader | PairLoader:
        """Blocks of a stream, or pairs of its sentences, as the objective reads them."""
        training, objective = self.config.training, self.objective
        length, size, seed = training.max_length, training.tokens_per_batch, training.seed
        if objective.reads == "pairs":
            unit = getattr(objective, "nsp_unit", "sentence")
            return PairLoader(stream, unit, tokenizer, length, size, seed, shuffled=shuffled)
        return BlockLoader(stream, length, size, seed, objective.lookahead, shuffled=shuffled)

    def build_model(self, data: HeldOut) -> tuple[Model, TransferReport | None]:
        """A language model, with the base's weights where they fit."""
        config, size = self.config.model, data.tokenizer.size
        model = build_model(config, size, self.objective.heads(config, size, 0))
        return model, None if self.base is None else transfer(self.base.weights, model, with_base_heads=True)

    def evaluate(self, model: Model, data: HeldOut) -> Evaluation:
        """Loss, perplexity and accuracy of each head on some held-out batches."""
        assert data.loader is not None
        sums = loss_sums(model, self.objective, data.loader, data.tokenizer, self.runtime, EVALUATION_BATCHES)
        means = {name: total / max(1, count) for name, (total, count, _) in sums.items()}
        values = {"loss": sum(means.values())}
        for name, (_, count, correct) in sums.items():
            prefix = "" if len(sums) == 1 else f"{name}_"
            values[f"{prefix}perplexity"] = math.exp(min(means[name], 50))
            values[f"{prefix}accuracy"] = correct / max(1, count)
        return Evaluation(values, objective_value=-values["loss"])

    def score(self, model: Model, stream: TokenStream, tokenizer: Tokenizer, leaked: int = 0) -> LanguageScore:
        """How well a language model predicts a whole stream of text, of which so many documents `leaked`."""
        loader = self.make_loader(stream, tokenizer, shuffled=False)
        sums = loss_sums(model, self.objective, loader, tokenizer, self.runtime)
        total, count, correct = sums.get("lm") or next(iter(sums.values()))
        loss = total / max(1, count)
        predicts_all = self.objective.name == "causal-lm"
        return LanguageScore(
            loss=loss,
            perplexity=math.exp(min(loss, 50)),
            bits_per_byte=total / math.log(2) / max(1, stream.text_bytes) if predicts_all else None,
            accuracy=correct / max(1, count),
            count=count,
            documents=stream.documents,
            leaked=leaked,
        )

    def summarize(self, run: FinishedRun, trainer: Trainer, data: HeldOut, seen: np.ndarray) -> Pretrained:
        """The score on held-out text."""
        if data.loader is None:
            return Pretrained(**vars(run), score=None)
        score = trainer.strategy.read(lambda model: self.score(model, data.stream, data.tokenizer))
        return Pretrained(**vars(run), score=score)
