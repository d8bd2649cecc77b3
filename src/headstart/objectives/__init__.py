"""The objectives by name."""

from headstart.config import ObjectiveConfig
from headstart.errors import pick
from headstart.objectives.base import Objective, make
from headstart.objectives.causal_lm import CausalLM
from headstart.objectives.classification import Classification
from headstart.objectives.electra import Electra
from headstart.objectives.masked_lm import CausalAndMasked, MaskedLM
from headstart.objectives.next_sentence import MaskedAndNextSentence, NextSentence
from headstart.objectives.seq2seq import Seq2Seq

OBJECTIVES: dict[str, type[Objective]] = {
    "causal-lm": CausalLM,
    "masked-lm": MaskedLM,
    "next-sentence": NextSentence,
    "masked-lm+next-sentence": MaskedAndNextSentence,
    "causal+masked": CausalAndMasked,
    "replaced-token": Electra,
    "classify": Classification,
    "translate": Seq2Seq,
}


def make_objective(config: ObjectiveConfig) -> Objective:
    """The objective that the settings name, with its settings checked."""
    return make(pick(OBJECTIVES, config.name, "objective"), config.settings)
