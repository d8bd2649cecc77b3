"""An encoder-decoder trained on texts and their translations: fine-tuning with another head."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import TypeAdapter

from headstart.batch import Row
from headstart.config import RunConfig
from headstart.data.augmentation import translation_loader
from headstart.data.dataset import hashes
from headstart.data.decontamination import seen_before
from headstart.data.parallel import load_parallel, parse_pair
from headstart.data.samplers import TextLoader, padding_share
from headstart.data.tokenizer import Tokenizer
from headstart.errors import RunError
from headstart.evaluation.translation_metrics import MEASURES, score_translations
from headstart.generation.beam import Beam
from headstart.inference.loaded_model import SOURCE_TOKENIZER, LoadedModel, RunInfo, load_model
from headstart.inference.translate import batch_tokens, write_translations
from headstart.models.model import Model, build_model, count_parameters
from headstart.objectives import make_objective
from headstart.objectives.base import Objective
from headstart.objectives.seq2seq import Seq2Seq
from headstart.results import Transfer, TranslationScore, plain
from headstart.training.callbacks import Event, Note
from headstart.training.distributed import Processes, init_processes
from headstart.training.evaluate import loss_sums, marked_places
from headstart.training.runtime import Runtime, StopSignal, graceful_shutdown, seed_everything, start_runtime
from headstart.training.trainer import Evaluation, Trainer
from headstart.workflows.plan import announce, no_parts
from headstart.workflows.run_dir import (
    SCRATCH,
    RunDir,
    absolute_paths,
    base_of,
    broadcast_tokenizer,
    collect_provenance,
    main_only,
    start_run,
)
from headstart.workflows.translation_task import (
    TranslationTask,
    choose_tokenizers,
    load_pairs,
    make_translation_task,
    pairs_fingerprint,
)
from headstart.workflows.warm_start import PairFacts, translator_config, warm_start


@dataclass(frozen=True)
class FinishedTranslator:
    """A finished translator and its marks on the validation part."""

    path: Path
    pair: str
    score: TranslationScore
    curve: list[dict[str, float]]
    best_epoch: float
    transfer: Transfer | None
    parameters: int
    seconds: float


def train_translator(
    base: str,
    data: str,
    pair: str,
    out: str | Path,
    *,
    preset: str | None = None,
    settings: Mapping[str, Any] | None = None,
    on_event: Callable[[Event], None] = lambda event: None,
) -> FinishedTranslator:
    """Train a translator on DATA, around the layers of BASE (a run folder or a shipped base's name) or from `scratch`.

    Under torchrun all its processes train one translator together.
    """
    with init_processes() as processes:
        with processes.raise_on_all():
            trained = None if base == SCRATCH else load_model(base)
            config, _ = translator_config(trained, preset, settings or {})
            languages = parse_pair(pair)
            if trained is not None and preset is None:
                facts = PairFacts.of(load_parallel(data, languages, config.data), trained)
                config, _ = translator_config(trained, preset, settings or {}, facts)
            runtime = start_runtime(config.training, processes)
        inputs = dict(zip(("data", "base"), absolute_paths([data, base]), strict=True))
        inputs["pair"] = "-".join(languages)
        listen = main_only(processes, on_event)
        with start_run(Path(out), config, inputs, runtime, trained) as (folder, known):
            if known is not None:
                return resume_translator(folder, known, runtime, listen)
            return _run(folder, config, data, pair, base, trained, runtime, None, listen)


def resume_translator(
    folder: RunDir, info: RunInfo, runtime: Runtime, on_event: Callable[[Event], None]
) -> FinishedTranslator:
    """Go on with an unfinished run; the folder is held by the caller."""
    if info.status == "finished":
        return read_translator(folder)
    trained = base_of(folder, info)
    base, pair = info.inputs["base"], "-".join(info.pair)
    return _run(folder, info.config, info.inputs["data"], pair, base, trained, runtime, info, on_event)


def read_translator(folder: RunDir) -> FinishedTranslator:
    """What a finished run found."""
    result = folder.result()
    names = [name for name in FinishedTranslator.__dataclass_fields__ if name in result]
    return TypeAdapter(FinishedTranslator).validate_python(
        {name: result[name] for name in names} | {"path": folder.path}
    )


def _run(
    folder: RunDir,
    config: RunConfig,
    data: str,
    pair: str,
    base: str,
    trained: LoadedModel | None,
    runtime: Runtime,
    known: RunInfo | None,
    on_event: Callable[[Event], None],
) -> FinishedTranslator:
    started = time.time()
    _need_whole_copies(runtime)
    task, fingerprint = _prepare(folder, config, data, pair, trained, runtime.processes, known, on_event)
    config = config.with_(
        {"model": {"source_vocab_size": None if task.is_shared else task.source_tokenizer.size}}
    )
    with runtime.processes.raise_on_all():
        announce(config, runtime, task.tokenizer.size, 0, task.tokens, on_event)
    objective = make_objective(config.objective)
    assert isinstance(objective, Seq2Seq)
    model, moved = _build(config, objective, task, trained)
    inputs = dict(zip(("data", "base"), absolute_paths([data, base]), strict=True))
    inputs |= {"pair": "-".join(task.text.pair), "fingerprint": fingerprint}
    info = known or _begin(folder, config, inputs, task, trained, moved, runtime)
    runtime.processes.start(runtime.device, config.training.ddp_timeout_minutes)
    if moved is not None:
        on_event(Note(f"from {base}: {moved.summary()}"))
    with graceful_shutdown() as stop:
        trainer = make_translation_trainer(model, objective, task, config, runtime, on_event, stop)
        share = padding_share(trainer.loader)
        on_event(
            Note(
                f"{count_parameters(model):,} parameters; {len(task.rows['train']):,} pairs to learn from, "
                f"{task.tokens:,} tokens on both sides, {share:.0%} padding beside them"
            )
        )
        folder.train(trainer, known is not None, on_event)
    seen = folder.fingerprints()
    score, _ = trainer.strategy.read(
        lambda model: mark_translations(
            model, objective, task, "valid", runtime, seen, measures=("bleu", "chrf")
        )
    )
    curve, best = trainer.state.curve, trainer.state.best_step
    epoch = next((point["epoch"] for point in curve if point["step"] == best), trainer.epochs_done)
    finished = FinishedTranslator(
        path=folder.path,
        pair=pair,
        score=score,
        curve=curve,
        best_epoch=epoch if config.training.checkpoint_selection == "best" else trainer.epochs_done,
        transfer=Transfer(**info.transfer) if info.transfer else None,
        parameters=count_parameters(model),
        seconds=trainer.state.seconds,
    )
    provenance = plain(
        collect_provenance(runtime, [config.training.seed], started, info.provenance["command"])
    )
    folder.finish(
        info, trainer, {**plain(finished), "path": "", "steps": trainer.state.step, "provenance": provenance}
    )
    return finished


def _need_whole_copies(runtime: Runtime) -> None:
    if runtime.is_sharded:
        error = no_parts()
        error.is_shared = True  # every process finds the same
        raise error


def _prepare(
    folder: RunDir,
    config: RunConfig,
    data: str,
    pair: str,
    trained: LoadedModel | None,
    processes: Processes,
    known: RunInfo | None,
    on_event: Callable[[Event], None],
) -> tuple[TranslationTask, str]:
    """The pairs as tokens, the same on every process, and the fingerprint of the pairs as they were read."""
    with processes.raise_on_all():
        text = load_pairs(data, pair, config, on_event)
    fingerprint = pairs_fingerprint(text)
    processes.assert_equal({"pairs": fingerprint}, "data")
    if known is None:
        tokenizers = _same_tokenizers(processes, lambda: choose_tokenizers(config, text, trained, on_event))
    else:
        own = folder.tokenizer(known)
        tokenizers = own, folder.source_tokenizer(known) or own
        with processes.raise_on_all():
            if known.inputs["fingerprint"] != fingerprint:
                raise RunError(
                    f"the data of {folder.path} has changed since the run began",
                    hint="put the old pairs back",
                )
    with processes.raise_on_all():
        task = make_translation_task(text, tokenizers, config, on_event)
    return task, fingerprint


def _same_tokenizers(
    processes: Processes, choose: Callable[[], tuple[Tokenizer, Tokenizer]]
) -> tuple[Tokenizer, Tokenizer]:
    """The two tokenizers that `choose` gives on the main process, on every process; they may be one."""
    chosen: list[Tokenizer] = []

    def first() -> Tokenizer:
        chosen.extend(choose())
        return chosen[0]

    own = broadcast_tokenizer(processes, first)
    if processes.broadcast(lambda: str(chosen[0] is chosen[1])) == "True":
        return own, own
    return own, broadcast_tokenizer(processes, lambda: chosen[1])


def _build(
    config: RunConfig, objective: Seq2Seq, task: TranslationTask, trained: LoadedModel | None
) -> tuple[Model, Transfer | None]:
    """A translator with the base's layers in it, and the account of what crossed; all fresh without a base."""
    seed_everything(config.training.seed, 0, 3)
    specs = objective.heads(config.model, task.tokenizer.size, 0)
    model = build_model(config.model, task.tokenizer.size, specs)
    return model, None if trained is None else warm_start(trained, model)


def _begin(
    folder: RunDir,
    config: RunConfig,
    inputs: dict[str, str],
    task: TranslationTask,
    trained: LoadedModel | None,
    moved: Transfer | None,
    runtime: Runtime,
) -> RunInfo:
    """Write all that a resume needs, run.json last: from then on the run can be taken up."""
    info = RunInfo(
        config=config,
        status="running",
        vocab_size=task.tokenizer.size,
        classes=[],
        tokenizer_fingerprint=task.tokenizer.fingerprint,
        inputs=inputs,
        provenance=plain(collect_provenance(runtime, [config.training.seed])),
        transfer=plain(moved) if moved is not None else None,
        pair=list(task.text.pair),
        source_tokenizer_fingerprint="" if task.is_shared else task.source_tokenizer.fingerprint,
    )
    seen = hashes(task.text.sources("train"))
    with runtime.processes.raise_on_all():
        if runtime.processes.is_main:
            task.tokenizer.save(folder.path)
            if not task.is_shared:
                task.source_tokenizer.save(folder.path, SOURCE_TOKENIZER)
            folder.write_fingerprints([seen] if trained is None else [seen, trained.train_fingerprints])
            folder.write_info(info)
    return info


def make_translation_trainer(
    model: Model,
    objective: Seq2Seq,
    task: TranslationTask,
    config: RunConfig,
    runtime: Runtime,
    on_event: Callable[[Event], None] = lambda event: None,
    stop: StopSignal | None = None,
) -> Trainer:
    """A trainer over the pairs to learn from that marks itself on those to tune on, by loss and by real decoding."""
    training = config.training
    tokenizers = task.tokenizer, task.source_tokenizer
    loader = translation_loader(task.rows["train"], task.text.train, tokenizers, training)
    chosen = marked_places(len(task.rows["valid"]), training.eval_subset_size)
    rows, sources = task.rows["valid"], task.sources("valid")
    rows, sources = [rows[place] for place in chosen], [sources[place] for place in chosen]
    references = [task.text.valid[place].target for place in chosen]

    def marks(model: Model) -> Evaluation:
        loss, accuracy = mark_losses(model, objective, rows, task.tokenizer, runtime)
        values = {"loss": loss, "perplexity": math.exp(min(loss, 50)), "accuracy": accuracy}
        if objective.metric_for_best_model == "loss":
            return Evaluation(values, rank=-loss)
        written = write_translations(model, sources, task.tokenizer, runtime)
        found = [task.tokenizer.decode(each.tokens) for each in written]
        language = task.text.pair[1]
        values["bleu"] = score_translations(found, references, language, measures=("bleu",)).bleu
        return Evaluation(values, rank=values["bleu"] - 1e-6 * min(loss, 100.0))

    return Trainer(model, objective, loader, task.tokenizer, config, runtime, marks, on_event, stop)


def mark_losses(
    model: Model, objective: Objective, rows: Sequence[Row], vocabulary: Tokenizer, runtime: Runtime
) -> tuple[float, float]:
    """The loss (nats a token, without smoothing) and the share of right tokens, each with the true ones before it."""
    loader = TextLoader(rows, batch_tokens(runtime), shuffled=False)
    total, count, correct = loss_sums(model, objective, loader, vocabulary, runtime)["lm"]
    return total / max(1, count), correct / max(1, count)


def mark_translations(
    model: Model,
    objective: Objective,
    task: TranslationTask,
    split: str,
    runtime: Runtime,
    seen: np.ndarray,
    *,
    beam: int = 1,
    measures: Sequence[str] = tuple(MEASURES),
) -> tuple[TranslationScore, list[str]]:
    """All marks on one split, with their leak-free twin, and the translations; greedy with a beam of 1."""
    rows, language = task.rows[split], task.text.pair[1]
    loss, accuracy = mark_losses(model, objective, rows, task.tokenizer, runtime)
    search = None if beam == 1 else Beam(width=beam)
    written = write_translations(model, task.sources(split), task.tokenizer, runtime, search)
    texts = [task.tokenizer.decode(each.tokens) for each in written]
    references = task.text.targets(split)
    cut = sum(each.is_cut for each in written)
    found = score_translations(
        texts, references, language, measures=measures, hypotheses_cut=cut, split=split
    )
    unseen = np.flatnonzero(~seen_before(hashes(task.text.sources(split)), seen))
    fair = None
    if len(unseen):
        sides = [texts[place] for place in unseen], [references[place] for place in unseen]
        fair = score_translations(*sides, language, measures=("bleu",)).bleu
    marked = replace(
        found,
        loss=loss,
        perplexity=math.exp(min(loss, 50)),
        accuracy=accuracy,
        beam=beam,
        leaked=len(rows) - len(unseen),
        leak_free_bleu=fair,
        leak_free_count=len(unseen),
    )
    return marked, texts
