"""Import of a folder of transformers: config, weights and tokenizer. What is not supported is named."""

import re
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from headstart.config import ModelConfig, parse
from headstart.convert.families import FAMILIES
from headstart.convert.tokenizers import load_tokenizer
from headstart.convert.weight_map import FOREIGN, HFConfig, Weights, import_weights, unsupported, weight_rules
from headstart.data.tokenizer import Tokenizer
from headstart.errors import RunError, nearest, pick
from headstart.models.model import HeadSpec, build_model

WEIGHTS = "model.safetensors"
PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")
CONSTANTS = ("position_ids", ".attn.bias", ".attn.masked_bias", "rotary_emb.inv_freq")  # saved by old versions
TIED = ("lm_head.weight", "cls.predictions.decoder.weight", "decoder.weight")  # copies of the embedding
DUPLICATES = (*TIED, "cls.predictions.decoder.bias")  # which old versions save under two names
LM_CLASSES = ("ForCausalLM", "LMHeadModel", "ForMaskedLM", "ForPreTraining")
NO_MODEL = "name a folder of `save_pretrained`"


@dataclass(frozen=True)
class ImportedModel:
    """A model of transformers as ours."""

    family: str  # "BERT"
    config: ModelConfig
    vocab_size: int
    weights: Weights  # under our names
    has_lm_head: bool
    tokenizer: Tokenizer
    dropped: dict[str, int]  # weights of other heads, and their sizes


def load_transformers(folder: Path) -> ImportedModel:
    """The model in a folder of `save_pretrained`."""
    _check_folder(folder)
    config = HFConfig.load(folder / "config.json")
    if not config.get("model_type"):
        raise RunError(f"{config.source} names no model_type", hint=f"headstart imports {', '.join(FAMILIES)}")
    if config.get("quantization_config"):
        raise RunError(f"{config.source} says that the weights are quantised", hint="use the original model")
    family = pick(FAMILIES, str(config.get("model_type")), "model_type that can be imported")
    theirs = family.rename(config, _read_weights(folder))
    body = parse(ModelConfig, family.read_settings(config, theirs), config.source)
    vocab_size = config.integer("vocab_size")
    with torch.device("meta"):
        model = build_model(body, vocab_size, {"lm": HeadSpec("lm", vocab_size)}).state_dict()
    lm_class = family.classes["lm",]
    rules = weight_rules(family.modules, model, body, family.transpose)
    head_rules = weight_rules(lm_class.modules, model, body)
    has_lm_head = (
        not unsupported(lm_class.supported, partial(getattr, body))
        and all(name in theirs for rule in head_rules for name in rule.theirs)
        # a tied head without a bias has no weights of its own
        and (bool(head_rules) or any(str(name).endswith(LM_CLASSES) for name in config.get("architectures", [])))
    )
    rules += head_rules if has_lm_head else []
    weights = import_weights(rules, theirs)
    expected = {name for name in model if has_lm_head or not name.startswith("heads.")}
    assert expected == set(weights), expected ^ set(weights)
    if has_lm_head and body.tie_embeddings:
        _check_tied(weights["backbone.embedding.token_embedding.weight"], theirs)
    return ImportedModel(
        family=family.name,
        config=body,
        vocab_size=vocab_size,
        weights=weights,
        has_lm_head=has_lm_head,
        tokenizer=load_tokenizer(folder, config, vocab_size),
        dropped=_dropped({name for rule in rules for name in rule.theirs}, theirs),
    )


def _check_folder(folder: Path) -> None:
    if not folder.is_dir():
        parent = folder.parent
        others = [item.name for item in parent.iterdir() if item.is_dir()] if parent.is_dir() else []
        raise RunError(f"there is no folder {folder}", hint=nearest(folder.name, others) if others else NO_MODEL)
    if (folder / "run.json").is_file():
        raise RunError(f"{folder} is a run of headstart already", hint="use it as it is")
    if not (folder / "config.json").is_file():
        raise RunError(f"{folder} holds no config.json", hint=NO_MODEL)


def _read_weights(folder: Path) -> Weights:
    """All weights of a folder in float32, from one file or several; pickles are never opened."""
    index = folder / f"{WEIGHTS}.index.json"
    if (folder / WEIGHTS).is_file():
        names = [WEIGHTS]
    elif index.is_file():
        names = sorted({str(name) for name in HFConfig.load(index).get("weight_map", {}).values()})
    else:
        pickles = sorted(path.name for pattern in PICKLES for path in folder.glob(pattern))
        if pickles:
            raise RunError(
                f"{folder} holds its weights as {pickles[0]}, a pickle, which can run any code when it is opened",
                hint=f"if you trust it, convert it to safetensors: `AutoModel.from_pretrained({str(folder)!r})"
                f".save_pretrained(NEW)` of transformers",
            )
        raise RunError(f"{folder} holds no {WEIGHTS}", hint=NO_MODEL)
    found: Weights = {}
    for name in names:
        try:
            found |= load_file(str(folder / Path(name).name))
        except (SafetensorError, OSError) as error:
            problem = f"the weights at {folder / name} cannot be read: {error}"
            raise RunError(problem, hint="the file is torn: copy it again") from None
    return {
        name: weight.float()
        for name, weight in found.items()
        if weight.is_floating_point() and not name.endswith(CONSTANTS)
    }


def _check_tied(embedding: torch.Tensor, theirs: Weights) -> None:
    for name in TIED:
        if name in theirs and not torch.equal(theirs[name], embedding):
            raise RunError(
                f"config.json ties the language-model head to the embedding, and {name} differs from it",
                hint="set tie_word_embeddings to false in config.json if the head has weights of its own",
            )


def _dropped(used: set[str], theirs: Weights) -> dict[str, int]:
    """The weights that are not imported; a layer that config.json does not count is an error."""
    dropped = {name: weight.numel() for name, weight in theirs.items() if name not in used | set(DUPLICATES)}
    for name in dropped:
        if (first := re.sub(r"\.\d+\.", ".0.", name)) != name and first in used:
            raise RunError(f"the weights hold {name}, a layer more than config.json counts", hint=FOREIGN)
    return dropped
