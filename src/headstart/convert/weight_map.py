"""How a model family of transformers maps to ours: the settings in config.json, the names of weights, the classes."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
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
Modules = Mapping[str, str | tuple[str, ...]]  # our module -> the modules that hold its weights, `{}` = a layer
Supported = Mapping[str, tuple[Any, ...]]  # a setting -> the values that can be represented

HEAD_OUTPUTS = {"lm": "tokens", "class": "classes", "pair": "pairs of texts", "replaced": "replaced tokens"}
_LAYER = re.compile(r"\.(\d+)\.")
MISSING = object()
NO_FOLDER = "is it a folder of `save_pretrained`?"
# What most families have in common.
PLAIN: Supported = {
    "norm_first_layer": (True,), "qk_norm": (False,), "scale_embedding": (False,), "token_type_embeddings": (False,),
    "embedding_norm": (False,), "pooler": (False,), "sliding_window": (None,),
}  # fmt: skip


class HFConfig:
    """The settings in a JSON file of transformers."""

    def __init__(self, content: Mapping[str, Any], source: str):
        self.content, self.source = content, source

    @classmethod
    def load(cls, path: Path) -> "HFConfig":
        """The settings in the file at `path`."""
        try:
            content = json.loads(path.read_text("utf-8"))
        except (OSError, ValueError) as error:
            raise RunError(f"{path} cannot be read: {error}", hint=NO_FOLDER) from None
        if not isinstance(content, dict):
            raise RunError(f"{path} holds no settings", hint=NO_FOLDER)
        return cls(content, str(path))

    def get(self, name: str, default: Any = None) -> Any:
        """A setting of any type; null counts as absent."""
        value = self.content.get(name)
        return default if value is None else value

    def number(self, name: str, default: Any = MISSING) -> Any:
        """A number of at least zero."""
        value = self.get(name, default)
        if value is MISSING:
            raise RunError(f"{self.source} has no {name}", hint=NO_FOLDER)
        if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
            raise RunError(f"{name} in {self.source} cannot be {value!r}", hint="it should be a number")
        return value

    def integer(self, name: str, default: Any = MISSING) -> int:
        """An integer of at least one."""
        value = self.number(name, default)
        if int(value) != value or value < 1:
            raise RunError(f"{name} in {self.source} cannot be {value!r}", hint="it should be 1 or more")
        return int(value)

    def require(self, name: str, supported: tuple[Any, ...], default: Any) -> Any:
        """A setting of which only some values are supported."""
        value = self.get(name, default)
        if value not in supported:
            raise RunError(
                f"headstart does not support {name}={value!r} in {self.source}",
                hint=f"it supports {' and '.join(map(repr, supported))}",
            )
        return value

    def flag(self, *names: str, default: bool = False) -> bool:
        """Settings that must all be true or all be false."""
        found = {name: bool(self.get(name, default)) for name in names}
        if len(set(found.values())) > 1:
            values = ", ".join(f"{name}={value}" for name, value in found.items())
            raise RunError(
                f"{self.source} has {values}: a headstart model has all of these biases or none",
                hint="this variant cannot be represented exactly",
            )
        return next(iter(found.values()))


class ConfigKey:
    """A setting of the model under its name in config.json; several names hold the same value."""

    def __init__(self, *names: str, default: Any = MISSING, values: Mapping[str, str] | None = None):
        self.names, self.default, self.values = names, default, values  # values: theirs -> ours

    def read(self, config: HFConfig) -> Any:
        """Our value."""
        if self.values is not None:
            return self.values[config.require(self.names[0], tuple(self.values), self.default)]
        if isinstance(self.default, bool):
            return config.flag(*self.names, default=self.default)
        return (config.number if isinstance(self.default, float) else config.integer)(self.names[0], self.default)

    def write(self, value: Any) -> Settings:
        """What config.json says."""
        if self.values is not None:
            value = next(theirs for theirs, ours in self.values.items() if ours == value)
        return dict.fromkeys(self.names, value)


@dataclass(frozen=True)
class HFClass:
    """The class of transformers that computes the same outputs as some of our heads."""

    name: str  # "LlamaForCausalLM"
    auto_class: str  # "AutoModelForCausalLM"
    outputs: Mapping[str, str] = field(default_factory=dict)  # our head -> the field of the class's output
    modules: Modules = field(default_factory=dict)  # of the heads
    supported: Supported = field(default_factory=dict)
    head_supported: Supported = field(default_factory=dict)
    config: Callable[[HeadSpec], Settings] = lambda spec: {}  # what config.json says about the head
    unused: tuple[str, ...] = ()  # our weights that the class does not have


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
    other_keys: tuple[str, ...] = ()  # settings that `read` and `write` handle
    read: Callable[[HFConfig, Weights], Settings] = lambda config, weights: {}
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
        return unsupported(self.supported, body)


def unsupported(supported: Supported, body: ModelConfig) -> list[str]:
    """The settings with an unsupported value, as `model.name=value`."""
    return [
        setting_text(name, getattr(body, name))
        for name, values in supported.items()
        if getattr(body, name) not in values
    ]


def setting_text(name: str, value: Any) -> str:
    """A setting as it is typed."""
    word = str(value).lower() if isinstance(value, bool) else value
    return f"model.{name.removeprefix('has_')}={word}"


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
        faults = [
            (setting_text(name, getattr(body, name)), setting_text(name, values[0]))
            for name, values in target.supported.items()
            if getattr(body, name) not in values
        ] + [
            (
                f"objective.{HEAD_SETTINGS[name]}={spec.settings.get(name)}",
                f"objective.{HEAD_SETTINGS[name]}={values[0]}",
            )
            for spec in specs.values()
            for name, values in target.head_supported.items()
            if spec.settings.get(name) not in values
        ]
        if not faults:
            return family, target
        actual, needed = (", ".join(words) for words in zip(*faults, strict=True))
        problems.append((f"{target.name} has no {actual}", f"train with {needed}"))
    if not problems:
        raise _no_family(families, body)
    problem, hint = problems[0]
    raise RunError(problem, hint=f"{hint}, or use --to onnx")


def _no_family(families: Sequence[ModelFamily], body: ModelConfig) -> RunError:
    trainable = [family for family in families if family.train_flags]
    alike = [family for family in trainable if body.architecture in family.supported["architecture"]] or trainable
    closest = min(alike, key=lambda family: len(family.mismatches(body)))
    return RunError(
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
    theirs: tuple[str, ...]
    sizes: tuple[int, ...]  # rows of each
    transpose: bool = False


def weight_rules(
    modules: Modules, weights: Mapping[str, Tensor], body: ModelConfig, transpose: bool = False
) -> list[WeightRule]:
    """The rule of each of our `weights` that is in one of the `modules`."""
    rules = []
    for name, weight in weights.items():
        module, _, kind = name.rpartition(".")
        layer = _LAYER.search(module)
        theirs = modules.get(_LAYER.sub(".{}.", module))
        if theirs is None:
            continue
        parts = (theirs,) if isinstance(theirs, str) else theirs
        number = layer[1] if layer else ""
        rows = len(weight)
        queries = body.hidden_size if len(parts) == 3 else rows // len(parts)
        sizes = (queries, *[(rows - queries) // (len(parts) - 1)] * (len(parts) - 1)) if parts[1:] else (rows,)
        rules.append(
            WeightRule(
                name,
                tuple(f"{part.format(number)}.{kind}" for part in parts),
                sizes,
                transpose and weight.ndim == 2 and layer is not None,
            )
        )
    return rules


def with_prefix(weights: Weights, prefix: str, heads: tuple[str, ...]) -> Weights:
    """Weights of a backbone that was saved without its heads, under the names that they have with heads."""
    if any(name.startswith(prefix) for name in weights):
        return weights
    return {name if name.startswith(heads) else prefix + name: weight for name, weight in weights.items()}


def import_weights(rules: Sequence[WeightRule], theirs: Weights) -> Weights:
    """Our weights, from theirs."""
    found = {}
    hint = "config.json and the weights do not belong together"
    for rule in rules:
        for name in rule.theirs:
            if name not in theirs:
                raise RunError(f"the weights hold no {name}", hint=hint)
        parts = [theirs[name].T if rule.transpose else theirs[name] for name in rule.theirs]
        try:
            found[rule.ours] = torch.cat(parts) if len(parts) > 1 else parts[0].contiguous()
        except RuntimeError:
            shapes = ", ".join(str(tuple(part.shape)) for part in parts)
            raise RunError(f"the shapes of {', '.join(rule.theirs)} do not match: {shapes}", hint=hint) from None
    return found


def export_weights(rules: Sequence[WeightRule], ours: Weights) -> Weights:
    """Their weights, from ours."""
    found = {}
    for rule in rules:
        for name, part in zip(rule.theirs, ours[rule.ours].split(rule.sizes), strict=True):
            found[name] = (part.T if rule.transpose else part).clone().contiguous()
    return found
