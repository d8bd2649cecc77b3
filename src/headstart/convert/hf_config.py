"""config.json, read with care: what is missing, of the wrong kind or without a twin here is named."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headstart.errors import RunError

MISSING = object()


class Reader:
    """The settings of a model elsewhere."""

    def __init__(self, content: Mapping[str, Any], where: str):
        self.content, self.where = content, where

    @staticmethod
    def open(path: Path) -> "Reader":
        """What the file at `path` says."""
        try:
            content = json.loads(path.read_text("utf-8"))
        except (OSError, ValueError) as error:
            raise RunError(
                f"{path} cannot be read: {error}", hint="is it a folder of `save_pretrained`?"
            ) from None
        if not isinstance(content, dict):
            raise RunError(f"{path} holds no settings", hint="is it a folder of `save_pretrained`?")
        return Reader(content, str(path))

    def get(self, name: str, default: Any = None) -> Any:
        """A setting of any kind; one that is null counts as left out."""
        value = self.content.get(name)
        return default if value is None else value

    def number(self, name: str, default: Any = MISSING) -> Any:
        """A setting that is a number above or equal to zero."""
        value = self.get(name, default)
        if value is MISSING:
            raise RunError(f"{self.where} has no {name}", hint="is it a folder of `save_pretrained`?")
        if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
            raise RunError(f"{name} in {self.where} cannot be {value!r}", hint="it should be a number")
        return value

    def whole(self, name: str, default: Any = MISSING) -> int:
        """A setting that is a whole number of at least one."""
        value = self.number(name, default)
        if int(value) != value or value < 1:
            raise RunError(f"{name} in {self.where} cannot be {value!r}", hint="it should be 1 or more")
        return int(value)

    def must(self, name: str, good: tuple[Any, ...], default: Any) -> Any:
        """A setting of which only some values have a twin here."""
        value = self.get(name, default)
        if value not in good:
            words = " or ".join(repr(each) for each in good)
            raise RunError(
                f"{name}={value!r} in {self.where} has no twin in headstart", hint=f"only {words} has one"
            )
        return value

    def choice(self, name: str, table: Mapping[str, str], default: str) -> str:
        """A setting that is called otherwise here."""
        return table[self.must(name, tuple(table), default)]

    def alike(self, *names: str, default: bool = False) -> bool:
        """Settings that must all be true or all be false."""
        found = {name: bool(self.get(name, default)) for name in names}
        if len(set(found.values())) > 1:
            words = ", ".join(f"{name}={value}" for name, value in found.items())
            raise RunError(
                f"{words} in {self.where}: here a body has all of these biases or none",
                hint="this variant cannot be represented exactly",
            )
        return next(iter(found.values()))
