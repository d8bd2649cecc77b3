"""What a search may change: ranges and choices for settings, written as `section.key=low:high:log` or `=a,b,c`."""

import json
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headstart.config import RunConfig
from headstart.errors import ConfigError

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

# What matters most when a base meets few labels; rates of 0 leave a method out.
SEARCH = (
    "optimizer.learning_rate=3e-5:3e-3:log",
    "optimizer.weight_decay=1e-3:0.3:log",
    "optimizer.layerwise_lr_decay=0.6:1.0",
    "optimizer.head_lr_multiplier=1.0:20.0:log",
    "lr_schedule.warmup_ratio=0.0:0.3",
    "training.max_epochs=3:20:int",
    "training.batch_size=8,16,32,64",
    "training.token_cutoff=0.0:0.3",
    "model.dropout=0.05:0.4",
    "objective.label_smoothing=0.0:0.2",
    "objective.r_drop_alpha=0.0,0.5,1.0,3.0",
)
FORM = "write section.key=low:high, with :log or :int behind it, or section.key=a,b,c"


@dataclass(frozen=True)
class Row:
    """One setting to search: between `low` and `high`, or one of `choices`."""

    name: str
    low: float = 0.0
    high: float = 0.0
    is_log: bool = False
    is_whole: bool = False
    choices: tuple[Any, ...] = ()

    @property
    def words(self) -> str:
        """The row as one would type it."""
        if self.choices:
            return f"{self.name}={','.join(str(value) for value in self.choices)}"
        return f"{self.name}={self.low:g}:{self.high:g}{':int' * self.is_whole}{':log' * self.is_log}"

    @property
    def samples(self) -> list[Any]:
        """Values to try the settings with before the search begins."""
        return list(self.choices) if self.choices else [self._kind(self.low), self._kind(self.high)]

    def nearest(self, value: Any) -> Any:
        """The value of the row that is nearest to the one that stands in the settings."""
        if self.choices:
            is_number = isinstance(value, int | float) and all(isinstance(c, int | float) for c in self.choices)
            if value in self.choices or not is_number:
                return value if value in self.choices else self.choices[0]
            return min(self.choices, key=lambda choice: abs(choice - value))
        if not isinstance(value, int | float):
            return self._kind(self.low)
        return self._kind(min(max(value, self.low), self.high))

    def _kind(self, value: float) -> float | int:
        return round(value) if self.is_whole else float(value)

    def distribution(self) -> "BaseDistribution":
        """The row as optuna knows it."""
        from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

        if self.choices:
            return CategoricalDistribution(self.choices)
        if self.is_whole:
            return IntDistribution(round(self.low), round(self.high), log=self.is_log)
        return FloatDistribution(self.low, self.high, log=self.is_log)


def parse_row(text: str) -> Row:
    """The row that `text` describes."""
    name, sign, content = (part.strip() for part in text.partition("="))
    if not sign or name.count(".") != 1:
        raise ConfigError(f"--search {text!r} names no setting to search", hint=FORM)
    if ":" not in content:
        choices = tuple(_value(part.strip()) for part in content.split(","))
        if len(set(choices)) < 2:
            raise ConfigError(f"--search {text!r} leaves nothing to choose", hint=f"{FORM}; --set fixes a value")
        return Row(name, choices=choices)
    low_text, high_text, *flags = content.split(":")
    low, high = _value(low_text), _value(high_text)
    numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in (low, high))
    if not numbers or any(flag not in ("log", "int") for flag in flags):
        raise ConfigError(f"--search {text!r} is no range of numbers", hint=FORM)
    row = Row(name, float(low), float(high), "log" in flags, "int" in flags)
    if not low < high or (row.is_log and low <= 0):
        raise ConfigError(
            f"--search {text!r} is an empty range" if not low < high else f"--search {text!r} has no logarithm at 0",
            hint="the lower end comes first, and lies above 0 for :log",
        )
    return row


def _value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def make_space(search: Iterable[str], only: bool, fixed: Mapping[str, Any]) -> list[Row]:
    """The rows to search: the ones asked for, and unless `only`, the usual ones; what is set by hand is not searched."""
    asked = {row.name: row for row in map(parse_row, search)}
    usual = {} if only else {row.name: row for row in map(parse_row, SEARCH)}
    given = {f"{section}.{key}" for section, content in fixed.items() for key in content}
    both = next((name for name in asked if name in given), None)
    if both is not None:
        raise ConfigError(f"{both} is both set and searched", hint="leave out --set or --search for it")
    budgets = {"training.max_steps", "training.max_tokens", "training.max_minutes"}
    if given & budgets:
        usual.pop("training.max_epochs", None)
    rows = [row for name, row in {**usual, **asked}.items() if name not in given]
    if not rows:
        raise ConfigError("there is nothing to search", hint=f"add --search: {FORM}")
    return rows


def as_settings(values: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Values by `section.key` as nested settings."""
    nested: dict[str, dict[str, Any]] = {}
    for name, value in values.items():
        section, key = name.split(".")
        nested.setdefault(section, {})[key] = value
    return nested


def standing(config: RunConfig, rows: Iterable[Row]) -> dict[str, Any]:
    """The settings as they stand, as near as the rows hold them."""
    found = {}
    for row in rows:
        section, key = row.name.split(".")
        found[row.name] = row.nearest(getattr(getattr(config, section), key, 0.0))
    return found


def to_toml(settings: Mapping[str, Mapping[str, Any]]) -> str:
    """Settings as a TOML file that `--config` takes."""

    def word(value: Any) -> str:
        if isinstance(value, bool):
            return str(value).lower()
        if isinstance(value, str):  # TOML's strings are JSON's but for one character
            return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
        if isinstance(value, Mapping):
            return "{" + ", ".join(f"{word(str(name))} = {word(each)}" for name, each in value.items()) + "}"
        if isinstance(value, list | tuple):
            return "[" + ", ".join(map(word, value)) + "]"
        return repr(value)

    lines = []
    for section, content in settings.items():
        lines += [f"[{section}]", *(f"{key} = {word(value)}" for key, value in content.items()), ""]
    text = "\n".join(lines)
    assert tomllib.loads(text) == {name: dict(content) for name, content in settings.items()}, text
    return text
