"""Errors that the user can fix: what is wrong, and what to do."""

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import TypeVar

T = TypeVar("T")


class HeadstartError(Exception):
    """An error that the user can fix; `hint` says how. One that every process has met `is_shared`: one of them tells it."""

    def __init__(self, problem: str, *, hint: str = "", is_shared: bool = False):
        super().__init__(problem)
        self.problem, self.hint, self.is_shared = problem, hint, is_shared

    def __str__(self) -> str:
        return f"{self.problem}; {self.hint}" if self.hint else self.problem


class InputTypeError(HeadstartError, TypeError):
    """An argument of a type that cannot be used."""


class InputValueError(HeadstartError, ValueError):
    """An argument of the right type whose content cannot be used."""


class ConfigError(HeadstartError):
    """A setting that cannot be used."""


class DataError(HeadstartError):
    """A text, table or corpus that cannot be read as it is."""


class RunError(HeadstartError):
    """A run directory that is missing, damaged, already used, or of the wrong kind."""


class Diverged(RunError):
    """A training whose loss is no number any more."""


class LostError(HeadstartError):
    """Another process of the run has died or fallen silent."""


class Stopped(Exception):
    """A signal stopped a run, which has saved everything; `again` is the command that continues it."""

    def __init__(self, signal: int):
        super().__init__(f"stopped by signal {signal}")
        self.signal = signal
        self.again = ""


def nearest(name: str, choices: Iterable[str]) -> str:
    """A hint that offers the nearest of `choices`, or all of them when none is near."""
    known = sorted(choices)
    near = get_close_matches(name, known, n=1, cutoff=0.5)
    return f"did you mean {near[0]!r}?" if near else f"choose from {', '.join(known)}"


def pick(table: Mapping[str, T], name: str, kind: str) -> T:
    """The entry called `name`, or an error that offers the nearest one."""
    if name in table:
        return table[name]
    raise ConfigError(f"no {kind} is called {name!r}", hint=nearest(name, table))
