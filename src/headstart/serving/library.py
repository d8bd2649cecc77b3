"""The runs that are served, by name; one that is still training answers once it is finished."""

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from headstart.errors import HeadstartError, RunError, nearest
from headstart.serving.batcher import BatchDone, Batcher
from headstart.serving.bounds import Bounds
from headstart.serving.loaded import Loaded
from headstart.serving.progress import Progress
from headstart.serving.refusal import Refusal
from headstart.serving.schema import Ability
from headstart.workflows.compare import is_comparison
from headstart.workflows.run import RunFolder, load_trained, shipped_bases

LONGEST_NAME = 200


class Entry:
    """One folder that is served: a run, finished or not, or a comparison."""

    def __init__(
        self,
        name: str,
        path: Path,
        bounds: Bounds,
        on_batch: Callable[[str, BatchDone], None],
        precision: str | None = None,
    ):
        self.name, self.path, self.bounds, self._on_batch = name, path, bounds, on_batch
        self.precision = precision
        self.is_comparison = is_comparison(path)
        self.progress = Progress(path / "log.jsonl")
        self.loaded: Loaded | None = None
        self.batcher: Batcher | None = None
        self._lock = threading.Lock()
        self.look()

    def look(self) -> dict[str, Any]:
        """What the folder says of itself now."""
        report = self.path / "report.html"
        if self.is_comparison:
            is_done = report.is_file()
            return {
                "name": self.name,
                "kind": "compare",
                "status": "finished" if is_done else "running",
                "objective": None,
                "has_report": is_done,
            }
        info = RunFolder.open(self.path).info()
        return {
            "name": self.name,
            "kind": info.config.job,
            "status": info.status,
            "objective": info.config.objective.name,
            "has_report": report.is_file(),
        }

    def load(self) -> bool:
        """Bring a finished run into memory; False while there is nothing to bring."""
        with self._lock:
            if self.loaded is not None:
                return True
            if self.is_comparison or self.look()["status"] != "finished":
                return False
            loaded = Loaded(load_trained(str(self.path)), self.bounds, self.precision)
            self.batcher = Batcher(
                loaded.work,
                budget=self.bounds.batch_tokens,
                room=self.bounds.queued,
                flows=self.bounds.streams,
                workers=loaded.workers,
                name=f"run {self.name}",
                on_batch=lambda done: self._on_batch(self.name, done),
            ).start()
            self.loaded = loaded
            return True

    def report(self) -> bytes:
        """The run's or comparison's own page."""
        try:
            return (self.path / "report.html").read_bytes()
        except OSError:
            raise Refusal(
                404, f"{self.name} has no report yet", hint="it is written when the run is finished"
            ) from None


class Library:
    """All that is served, in the order in which it was given."""

    def __init__(
        self,
        runs: Sequence[str],
        bounds: Bounds,
        on_batch: Callable[[str, BatchDone], None] = lambda name, done: None,
        precision: str | None = None,
    ):
        self.bounds = bounds
        self.entries: dict[str, Entry] = {}
        for word in runs:
            name, path = _named(word)
            if name in self.entries:
                raise RunError(f"two runs are called {name!r}", hint=f"give one another name: OTHER={path}")
            self.entries[name] = Entry(name, path, bounds, on_batch, precision)

    def load(self, on_loaded: Callable[[str], None] = lambda name: None) -> None:
        """Bring every finished run into memory."""
        for entry in self.entries.values():
            if entry.load():
                on_loaded(entry.name)

    def entry(self, name: str) -> Entry:
        """The entry called `name`."""
        if name not in self.entries:
            raise Refusal(
                404, "no run of that name is served", hint=nearest(name[:LONGEST_NAME], self.entries)
            )
        return self.entries[name]

    def look(self, entry: Entry) -> dict[str, Any]:
        """What a folder says of itself now; a client is not told where it is."""
        try:
            return entry.look()
        except HeadstartError as error:
            raise Refusal(
                503, f"the folder of {entry.name} cannot be read", hint="try again later"
            ) from error

    def try_load(self, entry: Entry) -> bool:
        """Whether a run is in memory now; a client is not told where it is."""
        try:
            return entry.load()
        except HeadstartError as error:
            raise Refusal(503, f"{entry.name} cannot be loaded", hint="try again later") from error

    def find(self, ability: Ability, name: str | None) -> Entry:
        """The run to ask: the one called `name`, or the first that can."""
        if name is None:
            able = [
                entry
                for entry in self.entries.values()
                if self.try_load(entry) and not _why_not(entry, ability)
            ]
            if not able:
                raise Refusal(409, f"no run that is served can {ability}", hint=_HINTS[ability])
            return able[0]
        entry = self.entry(name)
        if entry.is_comparison:
            raise Refusal(409, f"{name} is a comparison and answers nothing", hint="name a run")
        if not self.try_load(entry):
            raise Refusal(409, f"{name} is still training", hint="GET /v1/runs says how far it is")
        reason = _why_not(entry, ability)
        if reason:
            raise Refusal(409, f"{name} cannot {ability}: it {reason}", hint=_HINTS[ability])
        return entry

    def close(self) -> None:
        """Stop every batcher."""
        for entry in self.entries.values():
            if entry.batcher is not None:
                entry.batcher.close()


def _why_not(entry: Entry, ability: Ability) -> str:
    assert entry.loaded is not None
    return entry.loaded.why_not(ability)


def _named(word: str) -> tuple[str, Path]:
    """NAME=PATH, a path named by its last part, or a shipped base."""
    shipped = shipped_bases()
    if word in shipped:
        return word, shipped[word]
    name, sign, path = word.partition("=")
    if sign and not Path(word).exists():
        chosen, folder = name, shipped.get(path, Path(path))
    else:
        folder = Path(word)
        chosen = folder.resolve().name
    if not is_comparison(folder):
        RunFolder.open(folder)
    if not chosen or len(chosen) > LONGEST_NAME or "/" in chosen or not chosen.isprintable():
        raise RunError(f"{chosen!r} is no name to serve a run by", hint="give it one: NAME=PATH")
    return chosen, folder


_HINTS: dict[Ability, str] = {
    "classify": "serve a run made by `headstart finetune`",
    "embed": "serve a base or a classifier",
    "attention": "serve a run with a causal or bidirectional body",
    "generate": "serve a base pretrained with --objective causal-lm",
    "translate": "serve a run that was trained to translate",
}
