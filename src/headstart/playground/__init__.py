"""The playground: a page to try a served run on; its files are in this table and nowhere else."""

import hashlib
from dataclasses import dataclass
from functools import cached_property
from importlib import resources


@dataclass(frozen=True)
class Asset:
    """One file of the page."""

    name: str
    kind: str

    @cached_property
    def content(self) -> bytes:
        """Its bytes."""
        return resources.files("headstart.playground").joinpath(self.name).read_bytes()

    @cached_property
    def tag(self) -> str:
        """What tells this content from any other."""
        return f'"{hashlib.sha256(self.content).hexdigest()[:32]}"'


FILES: dict[str, Asset] = {
    "/": Asset("index.html", "text/html; charset=utf-8"),
}
