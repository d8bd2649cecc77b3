"""A folder of `transformers` as a model of ours: config, weights and tokenizer, each refused by name if it has no twin."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from headstart.config import BodyConfig, parse
from headstart.convert import tokenizers
from headstart.convert.bert import BERT, CAMEMBERT, ROBERTA, XLM_ROBERTA
from headstart.convert.gpt2 import GPT2
from headstart.convert.hf_config import Reader
from headstart.convert.llama import EUROBERT, LLAMA
from headstart.convert.modernbert import MODERNBERT
from headstart.convert.weight_map import Layout, Rule, Weights, gather, unmet
from headstart.data.tokenizer import Tokenizer
from headstart.errors import RunError, nearest
from headstart.models.model import HeadSpec, build_model

LAYOUTS: dict[str, Layout] = {
    layout.model_type: layout
    for layout in (BERT, ROBERTA, CAMEMBERT, XLM_ROBERTA, MODERNBERT, EUROBERT, GPT2, LLAMA)
}
WEIGHTS = "model.safetensors"
CONSTANTS = ("position_ids", ".attn.bias", ".attn.masked_bias", "rotary_emb.inv_freq")  # kept by old versions
TABLES = ("lm_head.weight", "cls.predictions.decoder.weight", "decoder.weight")  # of a language-model head
TWICE = (*TABLES, "cls.predictions.decoder.bias")  # weights that old versions saved under two names
SCORING = ("ForCausalLM", "LMHeadModel", "ForMaskedLM", "ForPreTraining")  # classes with such a head


@dataclass(frozen=True)
class Arrival:
    """A model that came in."""

    layout: str  # "BERT"
    body: BodyConfig
    vocabulary: int
    weights: Weights  # under our names
    has_scores: bool  # whether its language-model head came along
    tokenizer: Tokenizer
    left: dict[str, int]  # weights that stay behind: the heads of other tasks


def open_folder(folder: Path) -> Arrival:
    """The model in a folder of `save_pretrained`."""
    if not folder.is_dir():
        beside = (
            [item.name for item in folder.parent.iterdir() if item.is_dir()] if folder.parent.is_dir() else []
        )
        near = nearest(folder.name, beside) if beside else "name a folder of `save_pretrained`"
        raise RunError(f"there is no folder {folder}", hint=near)
    if (folder / "run.json").is_file():
        raise RunError(f"{folder} is a run of headstart already", hint="use it as it is")
    if not (folder / "config.json").is_file():
        raise RunError(f"{folder} holds no config.json", hint="name a folder of `save_pretrained`")
    reader = Reader.open(folder / "config.json")
    layout = _layout(reader)
    if reader.get("quantization_config"):
        raise RunError(
            f"{reader.where} says that the weights are quantised", hint="take the model in its full precision"
        )
    settings, theirs = layout.arrive(reader, _read_weights(folder))
    body = parse(BodyConfig, settings, reader.where)
    vocabulary = reader.whole("vocab_size")
    scores = _scores(layout, body, theirs, reader)
    rules = [*layout.rules(body), *(scores or [])]
    ours = gather(rules, theirs)
    _check_shapes(ours, rules, body, vocabulary, scores is not None)
    if scores is not None and body.tied:
        _check_tied(ours["backbone.embedding.token_embedding.weight"], theirs)
    return Arrival(
        layout=layout.name,
        body=body,
        vocabulary=vocabulary,
        weights=ours,
        has_scores=scores is not None,
        tokenizer=tokenizers.arrive(folder, reader, vocabulary),
        left=_left(rules, theirs, reader),
    )


def _layout(reader: Reader) -> Layout:
    kind = str(reader.get("model_type", ""))
    if kind in LAYOUTS:
        return LAYOUTS[kind]
    raise RunError(
        f"{reader.where} is of the layout {kind!r}, which headstart cannot take in"
        if kind
        else f"{reader.where} names no model_type",
        hint=nearest(kind, LAYOUTS),
    )


def _read_weights(folder: Path) -> Weights:
    """All weights of a folder in float32, whether in one file or in several; pickles are never opened."""
    index = folder / f"{WEIGHTS}.index.json"
    if (folder / WEIGHTS).is_file():
        names = [WEIGHTS]
    elif index.is_file():
        names = sorted({str(name) for name in Reader.open(index).get("weight_map", {}).values()})
    else:
        pickled = sorted(
            path.name for pattern in ("*.bin", "*.pt", "*.pth", "*.ckpt") for path in folder.glob(pattern)
        )
        if pickled:
            raise RunError(
                f"{folder} holds its weights as {pickled[0]}, a pickle, which could run any code when it is opened",
                hint=f"if you trust it, turn it into safetensors: `AutoModel.from_pretrained({str(folder)!r})"
                f".save_pretrained(NEW)` of transformers",
            )
        raise RunError(f"{folder} holds no {WEIGHTS}", hint="name a folder of `save_pretrained`")
    found: Weights = {}
    for name in names:
        try:
            found |= load_file(str(folder / Path(name).name))
        except (SafetensorError, OSError) as error:
            raise RunError(
                f"the weights at {folder / name} cannot be read: {error}",
                hint="the file is torn: copy it again",
            ) from None
    return {
        name: weight.float()
        for name, weight in found.items()
        if weight.is_floating_point() and not name.endswith(CONSTANTS)
    }


def _scores(layout: Layout, body: BodyConfig, theirs: Weights, reader: Reader) -> list[Rule] | None:
    """The rules of the language-model head, or None when the folder has none."""
    twin = layout.twins[("lm",)]
    rules = twin.rules(body)
    if unmet(twin.body, body) or any(name not in theirs for rule in rules for name in rule.theirs):
        return None
    classes: list[Any] = reader.get("architectures", [])  # a tied head without a bias has no weights to go by
    return rules if rules or any(str(name).endswith(SCORING) for name in classes) else None


def _check_shapes(
    ours: Weights, rules: list[Rule], body: BodyConfig, vocabulary: int, has_scores: bool
) -> None:
    with torch.device("meta"):
        model = build_model(body, vocabulary, {"lm": HeadSpec("lm", vocabulary)} if has_scores else {})
    wanted = model.state_dict()
    assert set(wanted) == set(ours), set(wanted) ^ set(ours)
    for rule in rules:
        if wanted[rule.ours].shape != ours[rule.ours].shape:
            raise RunError(
                f"config.json asks for {tuple(wanted[rule.ours].shape)} numbers and {', '.join(rule.theirs)} "
                f"{'hold' if len(rule.theirs) > 1 else 'holds'} {tuple(ours[rule.ours].shape)}",
                hint="config.json and the weights do not belong together",
            )


def _check_tied(table: Tensor, theirs: Weights) -> None:
    for name in TABLES:
        if name in theirs and not torch.equal(theirs[name], table):
            raise RunError(
                f"config.json ties the token scores to the token table, and {name} holds other numbers",
                hint="set tie_word_embeddings to false in config.json if the scores have their own table",
            )


def _left(rules: list[Rule], theirs: Weights, reader: Reader) -> dict[str, int]:
    """The weights that nothing here is made of; a layer that config.json does not count is refused."""
    used = {name for rule in rules for name in rule.theirs}
    shapes = {re.sub(r"\.\d+\.", ".#.", name) for name in used if re.search(r"\.\d+\.", name)}
    left = {name: weight.numel() for name, weight in theirs.items() if name not in used and name not in TWICE}
    for name in left:
        if re.sub(r"\.\d+\.", ".#.", name) in shapes:
            raise RunError(
                f"the weights hold {name}, a layer more than {reader.where} counts",
                hint="config.json and the weights do not belong together",
            )
    return left
