"""Pretraining a language model on raw text, from random weights or from a base."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from socket import gethostname
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headstart import fast
from headstart.atomic_io import content_hash
from headstart.config import BUDGETS, DataConfig, ModelConfig, RunConfig, load_preset, resolve
from headstart.data.corpus_loaders import BlockLoader, MixedLoader, PairLoader
from headstart.data.datasets import evaluation_hashes
from headstart.data.documents import Corpora, Documents, MixtureComponent, parse_mixture
from headstart.data.samplers import Loader
from headstart.data.token_cache import Corpus, TokenStream, exclude_documents, join
from headstart.data.tokenizer import Tokenizer
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
from headstart.objectives.base import Objective
from headstart.objectives.masked_lm import MaskedLM
from headstart.results import LanguageScore, TransferReport
from headstart.training.callbacks import Note, OnEvent, ignore_event
from headstart.training.evaluate import loss_sums
from headstart.training.runtime import Processes, init_processes, start_runtime
from headstart.training.trainer import Evaluation, Trainer
from headstart.workflows.distill import DistillationSetup
from headstart.workflows.finetune_defaults import describe, fit_length, with_backbone
from headstart.workflows.tokenize_corpus import learn_tokenizer, prepare_documents, prepare_documents_share
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
LEARNING_RATE = 5e-4  # of a model 256 wide; falls with the square of the width


@dataclass(frozen=True, kw_only=True)
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
            distillation = DistillationSetup.load(teacher)
            given = with_absolute_paths(settings)
            config, _ = pretrain_config(preset, given, loaded, distillation)
            tokens = None
            if adapts and loaded is not None and preset is None:
                tokens = count_tokens(mix, config.data, loaded.tokenizer)
            if tokens is not None:
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
    if objective.reads == "texts":
        raise ConfigError(
            f"{objective.name} needs labels, so it cannot pretrain", hint="--objective causal-lm or masked-lm can"
        )
    if objective.reads == "translations":
        raise ConfigError(
            f"{objective.name} needs translations, so it cannot pretrain",
            hint="`headstart finetune scratch DATA --pair en-de` learns from them",
        )
    for key in ("freeze_backbone", "gradual_unfreezing_epochs", "reinit_top_layers", "bpe_dropout", "token_cutoff"):
        if getattr(config.training, key):
            raise ConfigError(f"training.{key} is for fine-tuning", hint="leave it out when you pretrain")
    return fit_length(with_backbone(config, objective), settings), objective


def _base_model_settings(base: LoadedModel, preset: str | None, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The body of a base, with the dropout that the user sets."""
    own = base.info.config
    raw = load_preset(preset or own.preset)
    wanted = {
        **(raw.get("model", {}) if preset else {}),
        **raw.get("pretrain", {}).get("model", {}),
        **settings.get("model", {}),
    }
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


def without_repeats(
    corpora: Sequence[Corpus], config: DataConfig, excluded: NDArray[np.uint64], on_event: OnEvent
) -> list[Corpus]:
    """The corpora without texts of excluded evaluation sets and, if `data.deduplicate`, without repeated documents."""
    if not config.deduplicate and not config.exclude_eval_texts_of:
        return list(corpora)
    train = exclude_documents([corpus.train for corpus in corpora], excluded, config.deduplicate)
    valid = exclude_documents([corpus.valid for corpus in corpora], excluded, config.deduplicate)
    found = [replace(corpus, train=t, valid=v) for corpus, t, v in zip(corpora, train, valid, strict=True)]
    why = " or ".join(
        ["repeats"] * config.deduplicate
        + ["excluded by data.exclude_eval_texts_of"] * bool(config.exclude_eval_texts_of)
    )
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


def shared_fingerprints(documents: list[Documents], processes: Processes) -> list[str]:
    """The fingerprints of the corpora, read once on each machine, where they must be those of the main process."""
    if processes.is_alone:
        return [each.fingerprint for each in documents]
    own: list[str] = []
    with processes.raise_on_all():
        if processes.info.local_rank == 0:
            own = [each.fingerprint for each in documents]
    mains = processes.broadcast(lambda: own)
    with processes.raise_on_all():
        if own and own != mains:
            raise DataError(
                f"the corpus on {gethostname()} differs from that of the main process",
                hint="give every machine the same files",
            )
    for each, fingerprint in zip(documents, mains, strict=True):
        each.fingerprint = fingerprint
    return mains


# --- The job --------------------------------------------------------------------------------------------------------


@dataclass
class PretrainJob(TrainingJob[HeldOut, Pretrained]):
    """Pretraining a base."""

    documents: list[Documents] = field(default_factory=list)
    result_type = Pretrained

    def read_data(self) -> str:
        """Open the corpora; their text is the same on every machine."""
        with self.processes.raise_on_all():
            self.documents = [each.open(self.config.data) for each in self.inputs.mix]
            self.excluded = evaluation_hashes(self.config.data.exclude_eval_texts_of)
        for note in (note for each in self.documents for note in each.notes):
            self.on_event(Note(note))
        return content_hash(shared_fingerprints(self.documents, self.processes))

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
                raise ConfigError(
                    f"this tokenizer has no mask token, so {objective.name} cannot hide anything", hint="use causal-lm"
                )
        if not processes.is_alone:
            with processes.raise_on_all():
                for each in self.documents:
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
        size = data.tokenizer.size
        model = fast.optimize(build_model(self.config.model, size, self.objective.heads(self.config.model, size, 0)))
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
