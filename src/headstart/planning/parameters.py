"""Exact parameters by block, each with its formula in symbols and in numbers.

Symbols: V vocabulary, U the source's own vocabulary, P longest text, D width, H = D / attention heads, G attention heads
of keys and values where they are shared, F feed-forward, K kernel, C classes.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from headstart.config import ModelConfig

if TYPE_CHECKING:
    from torch.nn import Module

    from headstart.models.model import HeadSpec

GATED = ("swiglu", "geglu")


@dataclass(frozen=True)
class Block:
    """Parameters of one kind: how many, by which formula, and how many of them multiply as a matrix."""

    name: str
    symbols: str  # "3D² + 3D"
    numbers: str  # "3·200² + 3·200 = 120,600"
    each: int
    times: int = 1  # how often the block occurs
    matrix: int = 0  # of `each`, those that every token is multiplied by
    reads: str = ""  # of an encoder-decoder: whether those tokens are the "source" or the "target"

    @property
    def total(self) -> int:
        """Parameters of all such blocks together."""
        return self.each * self.times


@dataclass(frozen=True)
class Account:
    """All parameters of a model, block by block."""

    kind: str
    blocks: list[Block]

    @property
    def total(self) -> int:
        """What the built model counts."""
        return sum(block.total for block in self.blocks)

    @property
    def body(self) -> list[Block]:
        """The blocks below the heads."""
        return [block for block in self.blocks if not block.name.startswith("head")]

    @property
    def heads(self) -> list[Block]:
        """The blocks of the heads."""
        return [block for block in self.blocks if block.name.startswith("head")]

    @property
    def matrices(self) -> int:
        """Parameters of the body that every token is multiplied by."""
        return sum(block.matrix * block.times for block in self.body)

    def matrices_of(self, side: str) -> int:
        """Those of them that every token of one side of an encoder-decoder is multiplied by."""
        return sum(block.matrix * block.times for block in self.body if block.reads == side)


def account(body: ModelConfig, vocabulary: int, heads: "Mapping[str, HeadSpec]") -> Account:
    """The exact parameters of a body under these heads; what has no formulas is built without data and counted."""
    blocks = ACCOUNTS.get(body.architecture, _built_body)(body, vocabulary)
    for name, spec in heads.items():
        blocks += HEAD_ACCOUNTS.get(spec.kind, _built_head)(name, body, spec)
    return Account(body.architecture, [block for block in blocks if block.total])


def formula(name: str, terms: list[str], values: Mapping[str, int], times: int = 1, matrix: int = 0) -> Block:
    """A block from terms such as "3D²" or "VD"; a term's numbers are its symbols replaced by their values."""
    each, numbers = 0, []
    for term in terms:
        product = 1
        parts = []
        for factor, power in re.findall(r"(\d+|[A-Z])(²?)", term):
            value = int(factor) if factor.isdigit() else values[factor]
            product *= value ** (2 if power else 1)
            parts.append(f"{value:,}{power}")
        each += product
        numbers.append("·".join(parts))
    words = " + ".join(numbers)
    shown = f"{each:,}" if words == f"{each:,}" else f"{words} = {each:,}"
    return Block(name, " + ".join(terms), shown, each, times, matrix)


def _norm_terms(body: ModelConfig, letter: str) -> list[str]:
    return [f"2{letter}"] if body.norm == "layer" and body.bias else [letter]


def _values(body: ModelConfig, vocabulary: int) -> dict[str, int]:
    return {
        "V": vocabulary, "P": body.max_position_embeddings, "D": body.hidden_size, "F": body.intermediate_size,
        "H": body.hidden_size // body.num_heads, "K": body.kernel_size, "U": body.source_vocab_size or vocabulary,
        "G": body.num_kv_heads or body.num_heads,
    }  # fmt: skip


def _embedding(
    body: ModelConfig, vocabulary: int, table: tuple[str, str] = ("token table", "VD")
) -> list[Block]:
    """What every body has below its layers."""
    values = _values(body, vocabulary)
    blocks = [formula(table[0], [table[1]], values)]
    if body.position_embedding == "learned":
        blocks.append(formula("positions", ["PD"], values))
    if body.token_type_embeddings:
        blocks.append(formula("segments", ["2D"], values))
    if body.embedding_norm:
        blocks.append(formula("embedding norm", _norm_terms(body, "D"), values))
    return blocks


def _top(body: ModelConfig, vocabulary: int, has_norm: bool) -> list[Block]:
    """What stands above the layers."""
    values = _values(body, vocabulary)
    blocks = [formula("final norm", _norm_terms(body, "D"), values)] if has_norm else []
    if body.pooler:  # multiplies one token of a text, not every one
        blocks.append(formula("pooler", ["D²", "D"], values))
    return blocks


def _biased(body: ModelConfig, term: str, bias: str) -> list[str]:
    return [term, bias] if body.bias else [term]


def _layers(body: ModelConfig, vocabulary: int, layers: int, crosses: bool = False) -> list[Block]:
    """Layers of attention and feed-forward; those that cross read another text between the two."""
    values = _values(body, vocabulary)
    width, inner = body.hidden_size, body.intermediate_size
    gates = 2 if body.activation in GATED else 1
    wide, wide_bias = ("2DF", "2F") if gates == 2 else ("DF", "F")
    norms = 2 * _norm_terms(body, "H")
    blocks = [
        _attention_in(body, values, layers),
        formula("attention out", _biased(body, "D²", "D"), values, layers, width**2),
    ]
    if body.qk_norm:
        blocks.append(formula("query and key norms", norms, values, layers))
    if crosses:
        both = formula("cross keys, values", _biased(body, "2D²", "2D"), values, layers, 2 * width**2)
        blocks += [
            formula("cross queries", _biased(body, "D²", "D"), values, layers, width**2),
            replace(both, reads="source"),
            formula("cross out", _biased(body, "D²", "D"), values, layers, width**2),
        ]
    if crosses and body.qk_norm:
        blocks.append(formula("cross norms", norms, values, layers))
    return [
        *blocks,
        formula("feed-forward in", _biased(body, wide, wide_bias), values, layers, gates * width * inner),
        formula("feed-forward out", _biased(body, "FD", "D"), values, layers, width * inner),
        *_block_norms(body, values, layers, crosses),
    ]


def _transformer(body: ModelConfig, vocabulary: int) -> list[Block]:
    """L layers of attention and feed-forward."""
    blocks = _layers(body, vocabulary, body.num_layers)
    return [*_embedding(body, vocabulary), *blocks, *_top(body, vocabulary, body.norm_first)]


def _encoder_decoder(body: ModelConfig, vocabulary: int) -> list[Block]:
    """Layers that read the source, layers that read the target and across, one table for both or one for each."""
    norm = (
        [formula("final norm", _norm_terms(body, "D"), _values(body, vocabulary))] if body.norm_first else []
    )
    sides = {
        "source": ("encoder", [*_layers(body, vocabulary, body.num_layers), *norm]),
        "target": (
            "decoder",
            [*_layers(body, vocabulary, body.num_decoder_layers or body.num_layers, crosses=True), *norm],
        ),
    }
    blocks = _embedding(body, vocabulary)
    if body.source_vocab_size is not None:
        own = _embedding(body, vocabulary, ("token table", "UD"))
        blocks += [replace(block, name=f"source {block.name}") for block in own]
    for side, (name, stack) in sides.items():
        blocks += [replace(block, name=f"{name} {block.name}", reads=block.reads or side) for block in stack]
    return [*blocks, *_top(body, vocabulary, has_norm=False)]


def _attention_in(body: ModelConfig, values: Mapping[str, int], layers: int) -> Block:
    """Queries, keys and values; G of the last two where several queries share them."""
    if body.num_kv_heads is None:
        terms, matrix = ["3D²", *(["3D"] if body.bias else [])], 3 * body.hidden_size**2
    else:
        terms = ["D²", "2GHD", *(["D", "2GH"] if body.bias else [])]
        matrix = body.hidden_size**2 + 2 * values["G"] * values["H"] * body.hidden_size
    return formula("attention in", terms, values, layers, matrix)


def _block_norms(body: ModelConfig, values: Mapping[str, int], layers: int, crosses: bool) -> list[Block]:
    """Two norms a layer, three where it crosses; perhaps one less in the first."""
    terms, count = _norm_terms(body, "D"), 3 if crosses else 2
    names = {1: "one norm", 2: "two norms", 3: "three norms"}
    if body.norm_first_layer:
        return [formula(names[count], count * terms, values, layers)]
    return [
        formula(f"{names[count - 1]} in the first layer", (count - 1) * terms, values),
        formula(names[count], count * terms, values, layers - 1),
    ]


def _recurrent(body: ModelConfig, vocabulary: int) -> list[Block]:
    """L layers of LSTM both ways, D / 2 wide each: four gates that read D + D / 2 numbers, and two biases each."""
    values = _values(body, vocabulary)
    blocks = [
        formula("recurrence", ["6D²", "8D"], values, body.num_layers, 6 * body.hidden_size**2),
        formula("norm", _norm_terms(body, "D"), values, body.num_layers),
    ]
    return [*_embedding(body, vocabulary), *blocks, *_top(body, vocabulary, True)]


def _convolutional(body: ModelConfig, vocabulary: int) -> list[Block]:
    """L layers of convolution over K tokens, twice as wide for the gate."""
    values = _values(body, vocabulary)
    blocks = [
        formula(
            "convolution", ["2KD²", "2D"], values, body.num_layers, 2 * body.kernel_size * body.hidden_size**2
        ),
        formula("norm", _norm_terms(body, "D"), values, body.num_layers),
    ]
    return [*_embedding(body, vocabulary), *blocks, *_top(body, vocabulary, True)]


def _language_head(name: str, body: ModelConfig, spec: "HeadSpec") -> list[Block]:
    values = {"V": spec.size, "D": body.hidden_size}
    blocks = []
    if body.mlm_head_transform:
        dense = ["D²", *(["D"] if body.bias else [])]
        inner = [*dense, *_norm_terms(body, "D")]
        blocks.append(formula(f"head {name}, transform", inner, values, matrix=body.hidden_size**2))
    has_bias = body.has_head_bias and spec.settings.get("bias", True)
    terms = [*([] if body.tie_embeddings else ["VD"]), *(["V"] if has_bias else [])]
    if terms:
        matrix = 0 if body.tie_embeddings else spec.size * body.hidden_size
        blocks.append(formula(f"head {name}", terms, values, matrix=matrix))
    return blocks


def _class_head(name: str, body: ModelConfig, spec: "HeadSpec") -> list[Block]:
    pooled = body.hidden_size * (2 if spec.settings.get("pooling") == "mean+max" else 1)
    is_dense = spec.settings.get("projection") == "dense"
    values = {"D": pooled, "C": spec.size}
    terms = ["DC", *(["C"] if body.has_head_bias or is_dense else [])]
    blocks = [formula(f"head {name}, dense", ["D²", "D"], values, matrix=pooled**2)] if is_dense else []
    return [*blocks, formula(f"head {name}", terms, values, matrix=pooled * spec.size)]


def _built_body(body: ModelConfig, vocabulary: int) -> list[Block]:
    """The parts of a body built on no device: shapes alone, no memory."""
    import torch

    from headstart.errors import pick
    from headstart.models.bodies import BODIES

    with torch.device("meta"):
        built = pick(BODIES, body.architecture, "body")(body, vocabulary)
    return [_counted(name.replace("_", " "), part) for name, part in built.named_children()]


def _built_head(name: str, body: ModelConfig, spec: "HeadSpec") -> list[Block]:
    import torch

    from headstart.models.model import build_heads

    with torch.device("meta"):
        built = build_heads(body, {name: spec})[name]
    return [_counted(f"head {name}", built)]


def _counted(name: str, part: "Module") -> Block:
    """A block without a formula; a table that tokens look up is no matrix that they are multiplied by."""
    sizes = [(weight.numel(), weight.ndim) for weight in part.parameters()]
    each = sum(size for size, _ in sizes)
    matrix = 0 if "embedding" in name else sum(size for size, dimensions in sizes if dimensions >= 2)
    return Block(name, "counted", f"{each:,}", each, matrix=matrix)


ACCOUNTS: dict[str, Callable[[ModelConfig, int], list[Block]]] = {
    "causal": _transformer,
    "bidirectional": _transformer,
    "encoder-decoder": _encoder_decoder,
    "bi-lstm": _recurrent,
    "cnn": _convolutional,
}
HEAD_ACCOUNTS: "dict[str, Callable[[str, ModelConfig, HeadSpec], list[Block]]]" = {
    "lm": _language_head,
    "class": _class_head,
}
