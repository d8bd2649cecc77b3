"""Raw text to a base: tokenizer, shards, language-model training."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from headstart.config import RunConfig, resolve
from headstart.data.decontamination import apart_hashes
from headstart.data.documents import Corpora, MixtureComponent, parse_mixture
from headstart.data.nsp_pairs import PairLoader
from headstart.data.samplers import BlockLoader
from headstart.data.token_cache import Corpus
from headstart.data.token_stream import TokenStream, join
from headstart.data.tokenizer import Tokenizer
from headstart.errors import ConfigError, DataError, RunError
from headstart.inference.loaded_model import LoadedModel, RunInfo, load_model
from headstart.models.model import Model, build_model, count_parameters, transfer
from headstart.objectives import make_objective
from headstart.objectives.base import Objective
from headstart.objectives.masked_lm import MaskedLM
from headstart.results import LanguageScore, Transfer, plain
from headstart.training.callbacks import Event, Note
from headstart.training.distributed import init_processes
from headstart.training.evaluate import loss_sums
from headstart.training.runtime import Runtime, graceful_shutdown, seed_everything, start_runtime
from headstart.training.trainer import Evaluation, Trainer
from headstart.workflows.continued import (
    adaptation_defaults,
    continued_settings,
    count_tokens,
    taught_settings,
)
from headstart.workflows.finetune_defaults import describe
from headstart.workflows.mix import make_mixed_loader, same_text, tokens_a_pass, without_repeats
from headstart.workflows.plan import announce
from headstart.workflows.prepare import learn_tokenizer, prepare_documents, prepare_documents_share
from headstart.workflows.run_dir import (
    RunDir,
    absolute_paths,
    base_of,
    broadcast_tokenizer,
    collect_provenance,
    main_only,
    start_run,
    with_absolute_paths,
)
from headstart.workflows.teaching import Teaching, make_teaching, teaching_of

MARKED_BATCHES = 50  # of the held-out part, at each look during training


@dataclass(frozen=True)
class Pretrained:
    """A finished base and how well it predicts held-out text (None when the corpus is too small to hold any out)."""

    path: Path
    score: LanguageScore | None
    parameters: int
    tokens: int
    seconds: float


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
    on_event: Callable[[Event], None] = lambda event: None,
) -> Pretrained:
    """Train a base on raw text; `settings` are nested by section and go over the preset's (`tiny` by default).

    Corpora are names, "NAME=WEIGHT", or names with their weights: how many times a text is read for each pass over
    one of weight 1. A new tokenizer is learnt from them, or from the `tokenizer_corpora`. From a `base` (a run, or a
    shipped base's name) training goes on with its tokenizer, weights and shape. A `teacher` is another base, with the
    same tokenizer, whose answers count beside the true ones. From a base, with no preset named, the settings for a small
    corpus follow its size unless `adapts` is False. Under torchrun all processes train one base together.
    """
    with init_processes() as processes:
        with processes.raise_on_all():
            mix = parse_mixture(corpora)
            trained = None if base is None else load_model(base)
            teaching = make_teaching(teacher)
            given = with_absolute_paths(settings)
            config, objective = pretrain_config(preset, given, trained, teaching)
            tokens = None
            if adapts and trained is not None and preset is None:
                tokens = count_tokens(mix, config.data, trained.tokenizer)
            if tokens is not None:
                config, objective = pretrain_config(preset, given, trained, teaching, tokens)
            runtime = start_runtime(config.training, processes)
        inputs = pretrain_inputs(mix, base, parse_mixture(tokenizer_corpora or []))
        inputs |= {} if teaching is None else teaching.inputs()
        with start_run(Path(out), config, inputs, runtime, trained) as (folder, known):
            if known is not None and known.status == "finished":
                return read_pretrained(folder)
            listen = main_only(processes, on_event)
            if known is None and tokens is not None and (words := describe(config, given)):
                listen(Note(f"settings to adapt {base} to about {tokens:,} tokens: {words}"))
            return _run(folder, config, inputs, objective, trained, teaching, runtime, known, listen)


def pretrain_inputs(
    mix: Sequence[MixtureComponent], base: str | None, split_by: Sequence[MixtureComponent]
) -> dict[str, Any]:
    """What run.json keeps of what a run is given; `split_by` is what a new tokenizer is learnt from, if not the mix."""
    given: dict[str, Any] = {
        "corpora": [each.absolute().corpus for each in mix],
        "mix": [each.absolute().to_dict() for each in mix],
    }
    if split_by:
        given["tokenizer_corpora"] = [each.absolute().to_dict() for each in split_by]
    return given if base is None else {**given, "base": absolute_paths([base])[0]}


def pretrain_config(
    preset: str | None,
    settings: Mapping[str, Any],
    trained: LoadedModel | None = None,
    teaching: Teaching | None = None,
    adapts_to: int | None = None,
) -> tuple[RunConfig, Objective]:
    """The run's settings and its objective, which must be able to train a base.

    A base that adapts to a small corpus of `adapts_to` tokens gets settings for that instead of the preset's.
    """
    defaults: Mapping[str, Any] = {}
    if trained is not None:
        if adapts_to is not None:
            defaults = adaptation_defaults(adapts_to, trained.info.config.model)
        preset, settings = continued_settings(trained, preset, settings)
    elif teaching is not None:
        settings = taught_settings(teaching.teachers[0], settings)
    config = resolve("pretrain", preset or "tiny", defaults, settings)
    objective = make_objective(config.objective)
    if objective.reads == "texts":
        raise ConfigError(
            f"{objective.name} needs labels, so it cannot pretrain",
            hint="--objective causal-lm or masked-lm can",
        )
    if objective.reads == "translations":
        raise ConfigError(
            f"{objective.name} needs translations, so it cannot pretrain",
            hint="`headstart finetune scratch DATA --pair en-de` learns from them",
        )
    if config.training.freeze_backbone or config.training.gradual_unfreezing_epochs is not None:
        raise ConfigError(
            "a base has nothing to freeze before it is trained", hint="leave training.freeze_backbone out"
        )
    for name in ("reinit_top_layers", "bpe_dropout", "token_cutoff"):
        if getattr(config.training, name):
            raise ConfigError(f"training.{name} is for fine-tuning", hint="leave it out when you pretrain")
    return fit_length(
        config.with_({"model": objective.resolve_backbone(config.model).model_dump()}), settings
    ), objective


def resume_pretrain(
    folder: RunDir, info: RunInfo, runtime: Runtime, on_event: Callable[[Event], None]
) -> Pretrained:
    """Go on with an unfinished run; the folder is held by the caller."""
    trained = base_of(folder, info)
    with runtime.processes.raise_on_all():
        teaching = teaching_of(info.inputs)
    objective = make_objective(info.config.objective)
    return _run(folder, info.config, info.inputs, objective, trained, teaching, runtime, info, on_event)


def read_pretrained(folder: RunDir) -> Pretrained:
    """What a finished run found."""
    result = folder.result()
    score = None if result["score"] is None else LanguageScore(**result["score"])
    return Pretrained(folder.path, score, result["parameters"], result["tokens"], result["seconds"])


def fit_length(config: RunConfig, settings: Mapping[str, Any]) -> RunConfig:
    """The settings with a text length that the body has positions for; one that was asked for is not cut silently."""
    most = config.model.max_position_embeddings
    if config.training.max_length <= most:
        return config
    if "max_length" in settings.get("training", {}):
        raise ConfigError(
            f"training.max_length {config.training.max_length} is over model.max_position_embeddings {most}",
            hint=f"set training.max_length={most}, or a larger model.max_position_embeddings when training from scratch",
        )
    return config.with_({"training": {"max_length": most}})


def _run(
    folder: RunDir,
    config: RunConfig,
    inputs: dict[str, Any],
    objective: Objective,
    trained: LoadedModel | None,
    teaching: Teaching | None,
    runtime: Runtime,
    known: RunInfo | None,
    on_event: Callable[[Event], None],
) -> Pretrained:
    started, processes = time.time(), runtime.processes
    mix = [
        MixtureComponent(**each)
        for each in inputs.get("mix", [{"corpus": name} for name in inputs["corpora"]])
    ]
    with processes.raise_on_all():
        documents = [each.open(config.data) for each in mix]
        never = apart_hashes(config.data.exclude_eval_texts_of)
    for note in (note for each in documents for note in each.notes):
        on_event(Note(note))
    fingerprints = same_text(documents, processes)
    with processes.raise_on_all():
        if known is not None and known.inputs["fingerprints"] != fingerprints:
            raise RunError(
                f"the corpus of {folder.path} has changed since the run began", hint="put the old text back"
            )
    if known is not None:
        tokenizer = folder.tokenizer(known)
    elif whose := trained or teaching:
        tokenizer = whose.tokenizer
    else:
        others = [MixtureComponent(**each).open(config.data) for each in inputs.get("tokenizer_corpora", [])]
        tokenizer = broadcast_tokenizer(
            processes, lambda: learn_tokenizer(config.tokenizer, others or documents, on_event, never)
        )
    with processes.raise_on_all():
        if teaching is not None:
            teaching.check(objective, config)
            teaching.check_student(tokenizer)
        if isinstance(objective, MaskedLM) and tokenizer.mask is None:
            raise ConfigError(
                f"this tokenizer has no mask token, so {objective.name} cannot hide anything",
                hint="use causal-lm",
            )
    if not processes.is_alone:
        with processes.raise_on_all():
            for each in documents:
                prepare_documents_share(each, tokenizer, processes.rank, processes.count, on_event)
    parts = processes.main_first(lambda: [prepare_documents(each, tokenizer, on_event) for each in documents])
    parts = without_repeats(parts, config.data, never, on_event)
    weights = [each.weight for each in mix]
    train = join([part.train for part in parts])
    valid = join([part.valid for part in parts])
    with processes.raise_on_all():
        _check_size(train, config)
        announce(config, runtime, tokenizer.size, 0, tokens_a_pass(parts, weights), on_event)
        loader = make_mixed_loader(
            parts, weights, lambda stream: make_loader(stream, config, objective, tokenizer)
        )
    seed_everything(config.training.seed, 0, 3)
    model = build_model(config.model, tokenizer.size, objective.heads(config.model, tokenizer.size, 0))
    moved = None if trained is None else transfer(trained.weights, model, with_base_heads=True)
    inputs = {**inputs, "fingerprints": fingerprints}
    info = known or _begin(folder, config, inputs, tokenizer, parts, trained, teaching, moved, runtime)
    processes.start(runtime.device, config.training.ddp_timeout_minutes)
    if moved is not None:
        on_event(Note(f"from {inputs['base']}: {moved.summary()}"))
    marks = valid_marks(valid, config, objective, tokenizer, runtime)
    on_event(
        Note(
            f"{count_parameters(model):,} parameters; {tokens_a_pass(parts, weights):,} tokens to read,"
            f" {len(valid):,} held out"
        )
    )
    asked = objective if teaching is None else teaching.objective(objective, config, runtime)
    with graceful_shutdown() as stop:
        trainer = Trainer(model, asked, loader, tokenizer, config, runtime, marks, on_event, stop)
        folder.train(trainer, known is not None, on_event)
    score = None
    if marks is not None:
        score = trainer.strategy.read(
            lambda model: score_language(model, objective, valid, config, tokenizer, runtime, leaked=0)
        )
    finished = Pretrained(
        folder.path, score, count_parameters(model), trainer.state.tokens, trainer.state.seconds
    )
    provenance = plain(
        collect_provenance(runtime, [config.training.seed], started, info.provenance["command"])
    )
    result = {
        **asdict(finished),
        "path": "",
        "steps": trainer.state.step,
        "curve": trainer.state.curve,
        "provenance": provenance,
    }
    folder.finish(info, trainer, result)
    return finished


def _begin(
    folder: RunDir,
    config: RunConfig,
    inputs: dict[str, Any],
    tokenizer: Tokenizer,
    parts: list[Corpus],
    trained: LoadedModel | None,
    teaching: Teaching | None,
    moved: Transfer | None,
    runtime: Runtime,
) -> RunInfo:
    """Write all that a resume needs, run.json last: from then on the run can be taken up."""
    info = RunInfo(
        config=config,
        status="running",
        vocab_size=tokenizer.size,
        classes=[],
        tokenizer_fingerprint=tokenizer.fingerprint,
        inputs=inputs,
        provenance=plain(collect_provenance(runtime, [config.training.seed])),
        transfer=None if moved is None else plain(moved),
    )
    seen = [part.hashes() for part in parts] + [
        each.train_fingerprints for each in (trained, teaching) if each
    ]
    with runtime.processes.raise_on_all():
        if runtime.processes.is_main:
            tokenizer.save(folder.path)
            folder.write_fingerprints(seen)
            folder.write_info(info)
    return info


def _check_size(train: TokenStream, config: RunConfig) -> None:
    if len(train) < 3:
        raise DataError("the corpus holds almost no text", hint="give more or longer documents")
    if config.training.max_epochs is None and not any(
        getattr(config.training, name) for name in ("max_steps", "max_tokens", "max_minutes")
    ):
        raise ConfigError("no budget is given", hint="add --minutes, --steps, --tokens or --epochs")


def make_loader(
    stream: TokenStream, config: RunConfig, objective: Objective, tokenizer: Tokenizer, shuffled: bool = True
) -> BlockLoader | PairLoader:
    """Blocks of a stream, or pairs of its sentences, as the objective reads them."""
    training = config.training
    if objective.reads == "pairs":
        unit = getattr(objective, "nsp_unit", "sentence")
        return PairLoader(
            stream,
            unit,
            tokenizer,
            training.max_length,
            training.tokens_per_batch,
            training.seed,
            shuffled=shuffled,
        )
    return BlockLoader(
        stream,
        training.max_length,
        training.tokens_per_batch,
        training.seed,
        objective.lookahead,
        shuffled=shuffled,
    )


def valid_marks(
    valid: TokenStream, config: RunConfig, objective: Objective, vocabulary: Tokenizer, runtime: Runtime
) -> Callable[[Model], Evaluation] | None:
    """How to mark a model on held-out text; None when there is none."""
    if len(valid) <= objective.lookahead:
        return None
    try:
        loader = make_loader(valid, config, objective, vocabulary, shuffled=False)
    except DataError:  # the held-out part is too small to make pairs of
        return None

    def marks(model: Model) -> Evaluation:
        sums = loss_sums(model, objective, loader, vocabulary, runtime, MARKED_BATCHES)
        loss = sum(total / max(1, count) for total, count, _ in sums.values())
        values = {"loss": loss}
        for name, (total, count, correct) in sums.items():
            own = {
                "perplexity": math.exp(min(total / max(1, count), 50)),
                "accuracy": correct / max(1, count),
            }
            values |= own if len(sums) == 1 else {f"{name}_{mark}": value for mark, value in own.items()}
        return Evaluation(values, rank=-loss)

    return marks


def score_language(
    model: Model,
    objective: Objective,
    stream: TokenStream,
    config: RunConfig,
    vocabulary: Tokenizer,
    runtime: Runtime,
    leaked: int,
) -> LanguageScore:
    """How well a language model predicts a whole stream of text."""
    loader = make_loader(stream, config, objective, vocabulary, shuffled=False)
    sums = loss_sums(model, objective, loader, vocabulary, runtime)
    total, count, correct = sums.get("lm") or next(iter(sums.values()))
    loss = total / max(1, count)
    predicts_all = objective.name == "causal-lm"
    return LanguageScore(
        loss=loss,
        perplexity=math.exp(min(loss, 50)),
        bits_per_byte=total / math.log(2) / max(1, stream.text_bytes) if predicts_all else None,
        accuracy=correct / max(1, count),
        count=count,
        documents=stream.documents,
        leaked=leaked,
    )
