"""Conversion to and from other libraries."""

from headstart.convert.bert import BERT, CAMEMBERT, ROBERTA, XLM_ROBERTA
from headstart.convert.gpt2 import GPT2
from headstart.convert.llama import EUROBERT, LLAMA
from headstart.convert.modernbert import MODERNBERT
from headstart.convert.weight_map import ModelFamily

# By the model_type in config.json. A model is exported as the first family that represents it exactly.
FAMILIES: dict[str, ModelFamily] = {
    family.model_type: family for family in (LLAMA, EUROBERT, BERT, MODERNBERT, GPT2, ROBERTA, CAMEMBERT, XLM_ROBERTA)
}
