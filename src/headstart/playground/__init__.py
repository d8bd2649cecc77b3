"""The playground, a page to try served runs: FILES lists everything that it consists of."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from importlib import resources

HTML = "text/html; charset=utf-8"
STYLE = "text/css; charset=utf-8"
SCRIPT = "text/javascript; charset=utf-8"
ICON = "image/svg+xml"


@dataclass(frozen=True)
class Asset:
    """One file of the page."""

    kind: str
    read: Callable[[], str]

    @cached_property
    def content(self) -> bytes:
        """Its bytes."""
        return self.read().encode("utf-8")

    @cached_property
    def tag(self) -> str:
        """A hash of the content, for the ETag header."""
        return f'"{hashlib.sha256(self.content).hexdigest()[:32]}"'


def _own(name: str) -> str:
    return resources.files("headstart.playground").joinpath(name).read_text("utf-8")


def _report(name: str) -> str:
    from headstart.reports.render import static_file

    return static_file(name)


def _explorer() -> str:
    return f"{_report('attention.js')}\nexport {{ exploreAttention }};\n"


SCRIPTS = ("app", "api", "elements", "classify", "generate", "translate", "attention", "plan", "runs", "chart")

FILES: dict[str, Asset] = {
    "/": Asset(HTML, partial(_own, "index.html")),
    "/icon.svg": Asset(ICON, partial(_own, "icon.svg")),
    "/playground.css": Asset(STYLE, partial(_own, "playground.css")),
    "/page.css": Asset(STYLE, partial(_report, "page.css")),
    "/attention.css": Asset(STYLE, partial(_report, "attention.css")),
    "/explorer.js": Asset(SCRIPT, _explorer),
    **{f"/{name}.js": Asset(SCRIPT, partial(_own, f"{name}.js")) for name in SCRIPTS},
}
