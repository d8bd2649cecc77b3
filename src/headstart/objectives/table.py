"""The objectives by name."""

from headstart.config import ObjectiveConfig
from headstart.errors import pick
from headstart.objectives.base import Objective, make
from headstart.objectives.causal_lm import CausalLM
from headstart.objectives.classify import Classify
from headstart.objectives.masked_lm import MaskedLM

OBJECTIVES: dict[str, type[Objective]] = {kind.name: kind for kind in (CausalLM, MaskedLM, Classify)}


def make_objective(config: ObjectiveConfig) -> Objective:
    """The objective that the settings name, with its settings checked."""
    return make(pick(OBJECTIVES, config.name, "objective"), config.settings)
