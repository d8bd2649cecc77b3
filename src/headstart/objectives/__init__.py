"""The objectives by name."""

import dataclasses
import math

from pydantic import TypeAdapter, ValidationError

from headstart.config import ObjectiveConfig
from headstart.errors import ConfigError, nearest, pick
from headstart.objectives.base import Objective
from headstart.objectives.causal_lm import CausalLM
from headstart.objectives.classification import Classification
from headstart.objectives.electra import Electra
from headstart.objectives.masked_lm import CausalAndMasked, MaskedLM
from headstart.objectives.multi_label import MultiLabel
from headstart.objectives.next_sentence import MaskedAndNextSentence, NextSentence
from headstart.objectives.ordinal import Ordinal
from headstart.objectives.regression import Regression
from headstart.objectives.seq2seq import Seq2Seq
from headstart.objectives.token_classification import TokenClassification

OBJECTIVES: dict[str, type[Objective]] = {
    "causal-lm": CausalLM,
    "masked-lm": MaskedLM,
    "next-sentence": NextSentence,
    "masked-lm+next-sentence": MaskedAndNextSentence,
    "causal+masked": CausalAndMasked,
    "replaced-token": Electra,
    "classify": Classification,
    "multi-label": MultiLabel,
    "regression": Regression,
    "ordinal": Ordinal,
    "token-classification": TokenClassification,
    "translate": Seq2Seq,
}


def make_objective(config: ObjectiveConfig) -> Objective:
    """The objective with its settings, or an error that names the wrong one."""
    kind = pick(OBJECTIVES, config.name, "objective")
    fields = [field.name for field in dataclasses.fields(kind)]
    for name, value in config.settings.items():
        if name not in fields:
            hint = nearest(name, fields) if fields else f"{kind.name} has no settings"
            raise ConfigError(f"{kind.name} has no setting called {name!r}", hint=hint)
        if isinstance(value, float) and not math.isfinite(value):
            raise ConfigError(f"setting objective.{name} cannot be {value}", hint="write a number")
    try:
        return TypeAdapter(kind).validate_python(config.settings)
    except ValidationError as error:
        fault = error.errors()[0]
        setting = ".".join(str(part) for part in fault["loc"])
        raise ConfigError(
            f"setting objective.{setting} cannot be {fault['input']!r}: {fault['msg'].lower()}",
            hint="docs/reference/settings.md lists every setting with its values",
        ) from None
