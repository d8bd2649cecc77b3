"""config.json of transformers: every value is checked, and a problem names the setting and the file."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headstart.errors import RunError

MISSING = object()


class HFConfig:
    """The settings in a JSON file of transformers."""

    def __init__(self, content: Mapping[str, Any], source: str):
        self.content, self.source = content, source

    @classmethod
    def load(cls, path: Path) -> "HFConfig":
        """The settings in the file at `path`."""
        hint = "is it a folder of `save_pretrained`?"
        try:
            content = json.loads(path.read_text("utf-8"))
        except (OSError, ValueError) as error:
            raise RunError(f"{path} cannot be read: {error}", hint=hint) from None
        if not isinstance(content, dict):
            raise RunError(f"{path} holds no settings", hint=hint)
        return cls(content, str(path))

    def get(self, name: str, default: Any = None) -> Any:
        """A setting of any type; null counts as absent."""
        value = self.content.get(name)
        return default if value is None else value

    def number(self, name: str, default: Any = MISSING) -> Any:
        """A number of at least zero."""
        value = self.get(name, default)
        if value is MISSING:
            raise RunError(f"{self.source} has no {name}", hint="is it a folder of `save_pretrained`?")
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
