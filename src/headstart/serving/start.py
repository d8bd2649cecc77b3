"""From the words of the command line to a server that listens."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headstart.config import TrainingConfig, parse
from headstart.errors import ConfigError
from headstart.serving.bounds import Bounds

LOOPBACK = ("127.0.0.1", "localhost", "::1")
SHORTEST_TOKEN = 16


@dataclass(frozen=True)
class Address:
    """Where a server listens."""

    host: str
    port: int

    @property
    def url(self) -> str:
        """What to type into a browser."""
        return f"http://{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"


def serve(
    runs: Sequence[str],
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    token_file: Path | None = None,
    settings: Mapping[str, Any] | None = None,
    precision: str | None = None,
    log_texts: bool = False,
    as_json: bool = False,
    quiet: bool = False,
    on_ready: Callable[[Address], None] = lambda address: None,
) -> None:
    """Serve runs until a signal comes; gives back when all that was under way is answered."""
    bounds = make_bounds(settings or {})
    if precision is not None:
        parse(TrainingConfig, {"precision": precision}, "training")
    token = read_token(token_file) if token_file is not None else None
    if token is None and host not in LOOPBACK:
        raise ConfigError(
            f"at {host} anybody on the network could ask this server",
            hint="give a secret with --token-file FILE, or leave --host out",
        )
    try:
        import httptools  # noqa: F401
        import starlette  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError:
        raise ConfigError(
            "serving needs the starlette, uvicorn and httptools packages",
            hint="pip install 'headstart[serve]'",
        ) from None
    from headstart.serving.log import Log
    from headstart.serving.server import listen, run_server
    from headstart.serving.service import make_service

    log = Log(as_json=as_json, quiet=quiet, with_texts=log_texts)
    hosts = frozenset() if token is not None else frozenset([*LOOPBACK, host])
    service = make_service(runs, bounds, log, token=token, hosts=hosts, precision=precision)
    listener = listen(host, port)  # a port that is taken is told before models are loaded
    service.library.load()
    address = Address(host, listener.getsockname()[1])
    run_server(service, listener, lambda: on_ready(address))


def make_bounds(settings: Mapping[str, Any]) -> Bounds:
    """The bounds, with those changed that the settings name."""
    for section in settings:
        if section != "bounds":
            raise ConfigError(f"a server has no setting {section!r}", hint="only bounds.* count here")
    return parse(Bounds, settings.get("bounds", {}), "bounds")


def read_token(path: Path) -> str:
    """The secret in a file's first line."""
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the token file {path} cannot be read: {error}", hint="give a text file") from None
    token = lines[0].strip() if lines else ""
    if len(token) < SHORTEST_TOKEN or not token.isascii() or not token.isprintable() or " " in token:
        raise ConfigError(
            f"the first line of {path} is no token of {SHORTEST_TOKEN} or more letters, digits and signs",
            hint="make one: python3 -c 'import secrets; print(secrets.token_urlsafe(32))'",
        )
    return token
