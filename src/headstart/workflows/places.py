"""Where what a run is given lies, written down so that it is found from any folder."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from headstart.config import PATH_SETTINGS, merge
from headstart.data.datasets import SOURCES
from headstart.pretrained import shipped_bases
from headstart.workflows.begin import SCRATCH


def absolute(names: Sequence[str]) -> list[str]:
    """Paths made absolute, so that a resume finds them from any folder; names of bases and others as they are."""
    known = (*shipped_bases(), SCRATCH)
    return [str(Path(n).resolve()) if Path(n).exists() and n not in known else n for n in names]


def placed(settings: Mapping[str, Any] | None) -> dict[str, Any]:
    """Settings in which the other sets that they name are found from any folder."""
    given = dict(settings or {})
    data = given.get("data")
    if not isinstance(data, Mapping):  # what is wrong with it is told where settings are read
        return given
    named = {
        key: [name if name in SOURCES else absolute([name])[0] for name in data[key]]
        for key in PATH_SETTINGS
        if isinstance(data.get(key), list | tuple) and all(isinstance(name, str) for name in data[key])
    }
    return merge(given, {"data": named}) if named else given
