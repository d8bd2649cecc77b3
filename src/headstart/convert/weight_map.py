"""What a model is called elsewhere: settings against config.json, weights against weights, heads against classes."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from headstart.config import BodyConfig
from headstart.convert.hf_config import Reader
from headstart.errors import RunError
from headstart.models.model import HeadSpec

Settings = dict[str, Any]
Weights = dict[str, Tensor]

ANSWERS = {"lm": "tokens", "class": "classes", "pair": "pairs of texts", "replaced": "replaced tokens"}


@dataclass(frozen=True)
class Rule:
    """One weight of ours, and the weights that make it up elsewhere, one below the other."""

    ours: str
    theirs: tuple[str, ...]
    rows: tuple[int, ...] = ()  # of each of theirs, when there are several
    is_turned: bool = False  # theirs holds rows where ours holds columns


def layer(
    ours: str, *theirs: str, bias: bool, rows: tuple[int, ...] = (), is_turned: bool = False
) -> list[Rule]:
    """The rules of a linear map or a norm: its weight, and its bias where it has one."""
    rules = [Rule(f"{ours}.weight", tuple(f"{name}.weight" for name in theirs), rows, is_turned)]
    if bias:
        rules.append(Rule(f"{ours}.bias", tuple(f"{name}.bias" for name in theirs), rows))
    return rules


@dataclass(frozen=True)
class Twin:
    """The stock class that answers as a set of our heads does."""

    name: str  # "LlamaForCausalLM"
    door: str  # "AutoModelForCausalLM"
    answers: Mapping[str, str]  # our head -> the field of its output
    rules: Callable[[BodyConfig], list[Rule]] = lambda body: []
    body: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)  # settings of the body that it needs
    head: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)  # settings of the head that it needs
    config: Callable[[HeadSpec], Settings] = lambda spec: {}  # what config.json says of the head
    leaves: tuple[str, ...] = ()  # weights of ours that the class has no use for


@dataclass(frozen=True)
class Layout:
    """One family of models: which bodies it is the twin of, and how to go there and back."""

    name: str  # "Llama"
    model_type: str  # "llama" in config.json
    trained_by: str  # the words that train such a model here; "" when only models that came in are such
    wants: Mapping[str, tuple[Any, ...]]  # settings of the body, and the values that have a twin
    carries: tuple[str, ...]  # settings of the body that config.json holds, whatever their value
    twins: Mapping[tuple[str, ...], Twin]  # by the names of our heads
    rules: Callable[[BodyConfig], list[Rule]]
    config: Callable[[BodyConfig], Settings]
    arrive: Callable[[Reader, Weights], tuple[Settings, Weights]]  # config.json and weights, in our words
    extra: Callable[[BodyConfig], Weights] = lambda body: {}  # weights that only the layout has

    def mismatches(self, body: BodyConfig) -> list[str]:
        """The settings of `body` that have no twin here, as `body.name=value`."""
        return [setting(name, value) for name, value in unmet(self.wants, body)]


def unmet(wants: Mapping[str, tuple[Any, ...]], body: BodyConfig) -> list[tuple[str, Any]]:
    """The settings of `body` that are not as wanted, with their values."""
    return [(name, getattr(body, name)) for name, good in wants.items() if getattr(body, name) not in good]


def setting(name: str, value: Any) -> str:
    """A setting of the body as it is typed; `has_head_biases` is what `head_biases` comes to."""
    word = str(value).lower() if isinstance(value, bool) else value
    return f"body.{name.removeprefix('has_')}={word}"


def find_home(
    layouts: Sequence[Layout], body: BodyConfig, specs: Mapping[str, HeadSpec]
) -> tuple[Layout, Twin]:
    """The layout and the class that answer exactly as this model does, or an error that names what has no twin."""
    fitting = [layout for layout in layouts if not layout.mismatches(body)]
    if not fitting:
        raise _no_home(layouts, body)
    names = tuple(sorted(specs))
    problems: list[tuple[str, str]] = []
    for layout in fitting:
        twin = layout.twins.get(names)
        if twin is None:
            words = " and ".join(ANSWERS.get(name, name) for name in names)
            problems.append((f"no class of {layout.name} answers for {words}", ""))
            continue
        lacking = [setting(name, value) for name, value in unmet(twin.body, body)]
        wanted = [setting(name, twin.body[name][0]) for name, _ in unmet(twin.body, body)]
        for spec in specs.values():
            for name, good in twin.head.items():
                if spec.settings.get(name) not in good:
                    lacking.append(f"objective.{name}={spec.settings.get(name)}")
                    wanted.append(f"objective.{name}={good[0]}")
        if not lacking:
            return layout, twin
        problems.append((f"{twin.name} has no {', '.join(lacking)}", f"train with {', '.join(wanted)}"))
    problem, hint = problems[0]
    raise RunError(
        problem, hint=f"{hint}, or use --to onnx" if hint else "use --to onnx, or fine-tune the run first"
    )


def _no_home(layouts: Sequence[Layout], body: BodyConfig) -> RunError:
    """What is said of a body that is nobody's twin."""
    known = [layout for layout in layouts if layout.trained_by]
    alike = [layout for layout in known if body.kind in layout.wants["kind"]] or known
    nearest = min(alike, key=lambda layout: len(layout.mismatches(body)))
    return RunError(
        f"no transformers model is exactly this one: {nearest.name}, the nearest, has no "
        f"{', '.join(nearest.mismatches(body))}",
        hint=f"`headstart pretrain … {nearest.trained_by}` trains one that leaves as {nearest.name}"
        + ("" if body.kind == "bi-lstm" else "; --to onnx takes this one"),
    )


def prefixed(weights: Weights, prefix: str, heads: tuple[str, ...] = ()) -> Weights:
    """Weights of a body that was saved without its heads, under the names that it has below them."""
    if any(name.startswith(prefix) for name in weights):
        return weights
    return {name if name.startswith(heads) else prefix + name: weight for name, weight in weights.items()}


def gather(rules: Sequence[Rule], theirs: Weights) -> Weights:
    """Our weights, from theirs; a weight that is missing is named."""
    found = {}
    for rule in rules:
        missing = next((name for name in rule.theirs if name not in theirs), None)
        if missing is not None:
            raise RunError(
                f"the weights hold no {missing}", hint="config.json and the weights do not belong together"
            )
        parts = [theirs[name].T if rule.is_turned else theirs[name] for name in rule.theirs]
        try:
            found[rule.ours] = torch.cat(parts).contiguous() if len(parts) > 1 else parts[0].contiguous()
        except RuntimeError:
            raise RunError(
                f"{', '.join(rule.theirs)} do not fit together: "
                f"{', '.join(str(tuple(part.shape)) for part in parts)}",
                hint="config.json and the weights do not belong together",
            ) from None
    return found


def scatter(rules: Sequence[Rule], ours: Weights) -> Weights:
    """Their weights, from ours."""
    found = {}
    for rule in rules:
        whole = ours[rule.ours]
        parts = whole.split(rule.rows) if len(rule.theirs) > 1 else (whole,)
        for name, part in zip(rule.theirs, parts, strict=True):
            found[name] = (part.T if rule.is_turned else part).clone().contiguous()
    return found
