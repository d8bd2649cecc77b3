"""How a model family of transformers maps to ours: the settings in config.json, the names of weights, the classes."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from headstart.config import ModelConfig
from headstart.errors import RunError
from headstart.models.model import HeadSpec
from headstart.objectives.classification import HEAD_SETTINGS

Settings = dict[str, Any]
Weights = dict[str, Tensor]
Modules = Mapping[
    str, str
]  # our module -> theirs; `{}` = a layer, `(q|k|v)_proj` = three modules that hold one of ours
Supported = Mapping[str, tuple[Any, ...]]  # a setting -> the values that can be represented; () = any

HEAD_OUTPUTS = {"lm": "tokens", "class": "classes", "pair": "pairs of texts", "replaced": "replaced tokens"}
_LAYER = re.compile(r"\.(\d+)\.")
MISSING = object()
NO_FOLDER = "is it a folder of `save_pretrained`?"
FOREIGN = "config.json and the weights do not belong together"


class HFConfig:
    """The settings in a JSON file of transformers."""

    def __init__(self, content: Mapping[str, Any], source: str):
        self.content, self.source = content, source

    @classmethod
    def load(cls, path: Path) -> "HFConfig":
        """The settings in the file at `path`."""
        try:
            return cls(dict(json.loads(path.read_text("utf-8"))), str(path))
        except (OSError, ValueError, TypeError) as error:
            raise RunError(f"{path} cannot be read: {error}", hint=NO_FOLDER) from None

    def get(self, name: str, default: Any = None) -> Any:
        """A setting of any type; null counts as absent. MISSING as default: an error if it is absent."""
        value = self.content.get(name)
        if value is None and default is MISSING:
            raise RunError(f"{self.source} has no {name}", hint=NO_FOLDER)
        return default if value is None else value

    def integer(self, name: str, default: Any = MISSING, minimum: int = 1) -> int:
        """An integer of at least `minimum`."""
        value = self.get(name, default)
        if not isinstance(value, int) or isinstance(value, bool) or value < minimum:
            raise RunError(f"{name} in {self.source} cannot be {value!r}", hint=f"it should be {minimum} or more")
        return value

    def require(self, name: str, supported: tuple[Any, ...], default: Any) -> Any:
        """A setting of which only some values are supported."""
        value = self.get(name, default)
        if value not in supported:
            problem = f"headstart does not support {name}={value!r} in {self.source}"
            raise RunError(problem, hint=f"it supports {' and '.join(map(repr, supported))}")
        return value

    def flag(self, *names: str, default: bool = False) -> bool:
        """Settings that must all be true or all be false."""
        found = {name: bool(self.get(name, default)) for name in names}
        if len(set(found.values())) > 1:
            values = ", ".join(f"{name}={value}" for name, value in found.items())
            problem = f"{self.source} has {values}: a headstart model has all of these biases or none"
            raise RunError(problem, hint="this variant cannot be represented exactly")
        return next(iter(found.values()))


class ConfigKey:
    """A setting of the model under its name in config.json; several names hold the same value."""

    def __init__(self, *names: str, default: Any = MISSING, values: Mapping[str, str] | None = None):
        self.names, self.default, self.values = names, default, values  # values: theirs -> ours

    def read(self, config: HFConfig) -> Any:
        """Our value; a float is validated with the other settings of the model."""
        if self.values is not None:
            return self.values[config.require(self.names[0], tuple(self.values), self.default)]
        if isinstance(self.default, bool):
            return config.flag(*self.names, default=self.default)
        return (config.get if isinstance(self.default, float) else config.integer)(self.names[0], self.default)

    def write(self, value: Any) -> Settings:
        """What config.json says."""
        if self.values is not None:
            value = next(theirs for theirs, ours in self.values.items() if ours == value)
        return dict.fromkeys(self.names, value)


@dataclass(frozen=True)
class HFClass:
    """The class of transformers that computes the same outputs as some of our heads."""

    name: str  # "LlamaForCausalLM"
    modules: Modules = field(default_factory=dict)  # of the heads
    supported: Supported = field(default_factory=dict)
    head_supported: Supported = field(default_factory=dict)
    outputs: Mapping[str, str] = field(default_factory=dict)  # our head -> the field of the output, if not logits
    config: Callable[[HeadSpec], Settings] = lambda spec: {}  # what config.json says about the head
    unused: tuple[str, ...] = ()  # our weights that the class does not have
    auto: str = ""  # the class that loads it, where the name does not tell

    @property
    def auto_class(self) -> str:
        """The class that loads it: AutoModelForCausalLM for LlamaForCausalLM."""
        _, sign, task = self.name.partition("For")
        return self.auto or f"AutoModel{sign}{task}"


@dataclass(frozen=True)
class ModelFamily:
    """One model type of transformers."""

    name: str  # "Llama"
    model_type: str  # "llama" in config.json
    supported: Supported
    keys: Mapping[str, ConfigKey]  # our setting -> its key in config.json
    modules: Modules  # of the backbone
    classes: Mapping[tuple[str, ...], HFClass]  # by the names of our heads
    train_flags: str = ""  # of `headstart pretrain`, to train such a model; "" = imported models only
    read: Callable[[HFConfig, Weights], Settings] = lambda config, weights: {}  # settings without a key
    write: Callable[[ModelConfig], Settings] = lambda body: {}
    rename: Callable[[HFConfig, Weights], Weights] = lambda config, weights: weights  # to current names
    extra_weights: Callable[[ModelConfig], Weights] = lambda body: {}  # which only the family has
    transpose: bool = False  # linear layers are stored as (in, out)

    def read_settings(self, config: HFConfig, weights: Weights) -> Settings:
        """Our settings of the model in `config` and `weights`."""
        fixed = {name: values[0] for name, values in self.supported.items() if len(values) == 1}
        return {**fixed, **{name: key.read(config) for name, key in self.keys.items()}, **self.read(config, weights)}

    def write_settings(self, body: ModelConfig) -> Settings:
        """What config.json says about the backbone."""
        found: Settings = {}
        for name, key in self.keys.items():
            found |= key.write(getattr(body, name))
        return found | self.write(body)

    def mismatches(self, body: ModelConfig) -> list[str]:
        """The settings that the family does not support, as `model.name=value`."""
        return [actual for actual, _ in unsupported(self.supported, partial(getattr, body))]


def unsupported(
    supported: Supported,
    get: Callable[[str], Any],
    typed: Callable[[str], str] = lambda name: f"model.{name.removeprefix('has_')}",
) -> list[tuple[str, str]]:
    """The settings with an unsupported value, and the first supported value of each, as they are typed."""

    def text(name: str, value: Any) -> str:
        return f"{typed(name)}={str(value).lower() if isinstance(value, bool) else value}"

    return [
        (text(name, get(name)), text(name, values[0]))
        for name, values in supported.items()
        if values and get(name) not in values
    ]


def find_class(
    families: Sequence[ModelFamily], body: ModelConfig, specs: Mapping[str, HeadSpec]
) -> tuple[ModelFamily, HFClass]:
    """The family and class that compute exactly what this model does, or an error that names what differs."""
    problems: list[tuple[str, str]] = []
    for family in families:
        if family.mismatches(body):
            continue
        target = family.classes.get(tuple(sorted(specs)))
        if target is None:
            outputs = " and ".join(HEAD_OUTPUTS.get(name, name) for name in sorted(specs))
            problems.append((f"no class of {family.name} predicts {outputs}", "fine-tune the run first"))
            continue
        faults = unsupported(target.supported, partial(getattr, body))
        for spec in specs.values():
            faults += unsupported(target.head_supported, spec.settings.get, lambda x: f"objective.{HEAD_SETTINGS[x]}")
        if not faults:
            return family, target
        actual, needed = (", ".join(words) for words in zip(*faults, strict=True))
        problems.append((f"{target.name} has no {actual}", f"train with {needed}"))
    if problems:
        problem, hint = problems[0]
        raise RunError(problem, hint=f"{hint}, or use --to onnx")
    closest = min(
        (family for family in families if family.train_flags),
        key=lambda family: (body.architecture not in family.supported["architecture"], len(family.mismatches(body))),
    )
    raise RunError(
        f"no transformers model is exactly this one: {closest.name}, the closest, has no "
        f"{', '.join(closest.mismatches(body))}",
        hint=f"`headstart pretrain … {closest.train_flags}` trains one that can be exported as {closest.name}"
        + ("" if body.architecture == "bi-lstm" else "; --to onnx takes this one"),
    )


# --- weights


@dataclass(frozen=True)
class WeightRule:
    """One of our weights, and the weights that it is the concatenation of."""

    ours: str
    theirs: list[str]
    sizes: list[int]  # rows of each
    shape: torch.Size  # of ours
    transpose: bool = False


def weight_rules(
    modules: Modules, weights: Mapping[str, Tensor], body: ModelConfig, transpose: bool = False
) -> list[WeightRule]:
    """The rule of each of our `weights` that is in one of the `modules`."""
    rules = []
    for name, weight in weights.items():
        module, _, kind = name.rpartition(".")
        layer = _LAYER.search(module)
        pattern = modules.get(_LAYER.sub(".{}.", module))
        if pattern is None:
            continue
        head, _, rest = pattern.format(layer[1] if layer else "").partition("(")
        parts, _, tail = rest.partition(")")
        theirs = [f"{head}{part}{tail}.{kind}" for part in parts.split("|")]
        # queries are as wide as the model, keys and values may be narrower; other parts are of equal size
        first = body.hidden_size if len(theirs) == 3 else len(weight) // len(theirs)
        sizes = [first, *[(len(weight) - first) // max(1, len(theirs) - 1)] * (len(theirs) - 1)]
        is_transposed = transpose and weight.ndim == 2 and layer is not None
        rules.append(WeightRule(name, theirs, sizes, weight.shape, is_transposed))
    return rules


def with_prefix(weights: Weights, prefix: str, heads: tuple[str, ...]) -> Weights:
    """Weights of a backbone that was saved without its heads, under the names that they have with heads."""
    if any(name.startswith(prefix) for name in weights):
        return weights
    return {name if name.startswith(heads) else prefix + name: weight for name, weight in weights.items()}


def import_weights(rules: Sequence[WeightRule], theirs: Weights) -> Weights:
    """Our weights, from theirs."""
    found = {}
    for rule in rules:
        for name in rule.theirs:
            if name not in theirs:
                raise RunError(f"the weights hold no {name}", hint=FOREIGN)
        parts = [theirs[name].T if rule.transpose else theirs[name] for name in rule.theirs]
        with suppress(RuntimeError):  # no two of their shapes fit
            found[rule.ours] = torch.cat(parts).contiguous()
        if rule.ours not in found or found[rule.ours].shape != rule.shape:
            names, shapes = " and ".join(rule.theirs), ", ".join(str(tuple(part.shape)) for part in parts)
            problem = f"config.json asks for the shape {tuple(rule.shape)}, and {names} has {shapes}"
            raise RunError(problem, hint=FOREIGN)
    return found


def export_weights(rules: Sequence[WeightRule], ours: Weights) -> Weights:
    """Their weights, from ours."""
    found = {}
    for rule in rules:
        for name, part in zip(rule.theirs, ours[rule.ours].split(rule.sizes), strict=True):
            found[name] = (part.T if rule.transpose else part).clone().contiguous()
    return found
