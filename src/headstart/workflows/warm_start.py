"""From a base to a translator: which settings it brings, and which of its weights go where."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from headstart.config import ModelConfig, RunConfig, load_preset, merge, resolve
from headstart.data.parallel import ParallelText
from headstart.errors import ConfigError
from headstart.inference.loaded_model import LoadedModel
from headstart.models.model import Model, transfer
from headstart.objectives import make_objective
from headstart.objectives.seq2seq import Seq2Seq
from headstart.results import Transfer
from headstart.workflows.pretrain import fit_length
from headstart.workflows.tokenizers import check_tokenizer

PRESET = "translate-tiny"  # whose recipe is followed when none is named
# The stack that a base of each kind can warm up, and the settings that say how deep the two stacks are.
STACKS = {"bidirectional": "encoder", "causal": "decoder"}
DEPTHS = {"encoder": ("num_layers", "num_decoder_layers"), "decoder": ("num_decoder_layers", "num_layers")}
WARM_LEARNING_RATE = 1e-3  # around pretrained layers 256 wide; falls with the square of the width
WARM_EPOCHS, MIN_STEPS = 30, 200  # at least
STEPS_PER_EPOCH = 20  # that a small set gets by smaller batches
SAMPLE = 2_000  # pairs that are tokenized to estimate the mean length
LABELLED = {
    "data": ("train_size", "text_column", "label_column"),
    "training": ("token_cutoff", "reinit_top_layers"),
}
FREE = (
    "dropout",
    "attention_dropout",
    "architecture",
    "pooler",
    "tie_embeddings",
)  # settings in which a translator may differ


@dataclass(frozen=True)
class PairFacts:
    """What the rule for a warm start knows of parallel training text."""

    pairs: int
    mean_tokens: float  # of a pair, both sides together

    @staticmethod
    def of(text: ParallelText, trained: LoadedModel) -> "PairFacts":
        """The facts of parallel text, as the base's tokenizers split it."""
        rows = text.splits["train"]
        sample = rows[:: max(1, len(rows) // SAMPLE)]
        sources = trained.source_tokenizer.encode([row.source for row in sample])
        targets = trained.tokenizer.encode([row.target for row in sample])
        return PairFacts(len(rows), sum(map(len, [*sources, *targets])) / max(1, len(sample)) + 4)


def warm_start_defaults(data: PairFacts, model: ModelConfig) -> dict[str, dict[str, Any]]:
    """Settings by section for a translator around pretrained layers of this width.

    The preset's learning rate is for random weights 128 wide; pretrained ones bear less, and the less the wider they
    are. A small set gets smaller batches and more epochs, down to a floor of optimizer steps.
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
    trained: LoadedModel | None,
    preset: str | None,
    settings: Mapping[str, Any],
    data: PairFacts | None = None,
) -> tuple[RunConfig, Seq2Seq]:
    """The run's settings; a base brings the shape of its body, and its tokenizer.

    Around a base, with no preset named, the budget and the learning rate follow the `data` once it is read.
    """
    _refuse_label_settings(settings)
    asked = {"objective": {"name": settings.get("objective", {}).get("name", Seq2Seq.name)}}
    wanted = merge(asked, settings)
    if trained is not None:
        wanted = merge(wanted, _from_base(trained, preset, settings))
    defaults: dict[str, dict[str, Any]] = {}
    if trained is not None and preset is None and data is not None:
        defaults = warm_start_defaults(data, trained.info.config.model)
    config = resolve("finetune", preset or PRESET, defaults, wanted)
    objective = make_objective(config.objective)
    if not isinstance(objective, Seq2Seq):
        raise ConfigError(
            f"{objective.name} reads no translations",
            hint="leave --pair out, or set objective.name=translate",
        )
    if trained is None and config.model.source_vocab_size is not None:
        raise ConfigError(
            "model.source_vocab_size follows from the tokenizer that is learnt",
            hint="set tokenizer.shared_vocab=false, and tokenizer.vocab_size for both sides",
        )
    if config.model.tie_embeddings and (
        config.training.freeze_backbone or config.training.gradual_unfreezing_epochs is not None
    ):
        raise ConfigError(
            "the head of this translator is its token table, so with a frozen body nothing could learn",
            hint="leave training.freeze_backbone and training.gradual_unfreezing_epochs out, or set model.tie_embeddings=false",
        )
    config = config.with_({"model": objective.resolve_backbone(config.model).model_dump()})
    return fit_length(config, settings), objective


def _refuse_label_settings(settings: Mapping[str, Any]) -> None:
    """Refuse settings that only labelled texts have a use for."""
    for section, keys in LABELLED.items():
        given = settings.get(section, {})
        for key in keys:
            if isinstance(given, Mapping) and given.get(key):
                raise ConfigError(
                    f"{section}.{key} is for labelled texts, not for --pair",
                    hint=f"leave {section}.{key} out",
                )


def _from_base(trained: LoadedModel, preset: str | None, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The body and tokenizer of a base, once all that is asked of them fits."""
    own, tokenizer = trained.info.config, settings.get("tokenizer", {})
    if tokenizer.get("type") is not None:
        check_tokenizer(trained, tokenizer["type"])
    is_shared = trained.own_source_tokenizer is None
    if tokenizer.get("shared", is_shared) != is_shared:
        words = "one vocabulary for both sides" if is_shared else "a vocabulary for each side"
        raise ConfigError(f"{trained.name} has {words}", hint="leave tokenizer.shared_vocab out")
    raw = load_preset(preset or PRESET)
    shape = raw.get("model", {}) if preset else {}  # a recipe alone asks for no shape
    wanted = {**shape, **raw.get("finetune", {}).get("model", {}), **settings.get("model", {})}
    body = _fitted(trained, wanted)
    return {"model": body, "tokenizer": {**own.tokenizer.model_dump(), "shared_vocab": is_shared}}


def _fitted(trained: LoadedModel, wanted: Mapping[str, Any]) -> dict[str, Any]:
    """The body of a translator around the base's layers."""
    own = trained.info.config.model
    kept = own.model_dump()
    free: set[str] = set(FREE)
    if own.architecture in STACKS:
        warm, fresh = DEPTHS[STACKS[own.architecture]]
        kept |= {"architecture": "auto", "pooler": False, warm: own.num_layers, fresh: own.num_layers}
        free.add(fresh)
    elif own.architecture != "encoder-decoder":
        raise ConfigError(
            f"a {own.architecture} body has nothing that a translator could start from",
            hint="choose a bidirectional base (for the encoder), a causal one (for the decoder), or scratch",
        )
    for key, value in wanted.items():
        if key not in free and kept.get(key, value) != value:
            raise ConfigError(
                f"model.{key} of {trained.name} is {kept[key]}, not {value}",
                hint="a base's shape is fixed: leave that setting and --preset out, or start from scratch",
            )
    return {**kept, **wanted}


def warm_start(trained: LoadedModel, model: Model) -> Transfer:
    """Copy a base into a translator, and account for every weight; another translator crosses whole."""
    kind = trained.info.config.model.architecture
    return transfer(renamed(trained.weights, kind), model, with_base_heads=kind not in STACKS)


def renamed(weights: Mapping[str, Tensor], kind: str) -> dict[str, Tensor]:
    """A base's weights by the names that they have in an encoder-decoder."""
    if kind not in STACKS:
        return dict(weights)
    stack = f"backbone.{STACKS[kind]}."
    return {re.sub(r"^backbone\.stack\.", stack, name): weight for name, weight in weights.items()}
