"""The door in front of every endpoint: who may come in, for how long, and what every answer carries."""

import time
import traceback

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headstart.errors import HeadstartError
from headstart.serving.endpoints import reply
from headstart.serving.link import LINK, ClientGone, Link
from headstart.serving.refusal import Refusal, refusal_of
from headstart.serving.service import Service

ENDPOINT = "headstart.endpoint"  # where a route leaves its name in the scope
TEXTS = "headstart.texts"  # where it leaves the texts, should they be logged
WHILE_STOPPING = ("/healthz", "/metrics")

HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Cache-Control": "no-store",
}
_RAW = {name.lower().encode(): value.encode() for name, value in HEADERS.items()}


class Guard:
    """Lets requests through to `app`, counts them, and turns problems into answers."""

    def __init__(self, app: ASGIApp, service: Service, is_open: "frozenset[str]"):
        self.app, self.service, self.is_open = app, service, is_open

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return
        gate, start, status = self.service.gate, time.perf_counter(), 0
        link: Link | None = scope.get("state", {}).get(LINK)

        async def tell(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = _with_ours(message.get("headers", []))
            await send(message)  # a connection cuts off whoever takes in nothing
            if link is not None and link.is_gone:
                raise ClientGone

        gate.under_way += 1
        try:
            try:
                self._check(scope)
                scope["app"] = self.app  # lets a router raise what it would answer in plain text
                await self.app(scope, receive, tell)
            except ClientGone:
                raise
            except Exception as error:
                if status:  # half an answer is out: all that is left is to hang up
                    self._note(error)
                    raise ClientGone from None
                await self._refused(error)(scope, receive, tell)
        except ClientGone:
            self.service.counters.gone.add()
            if (
                status and link is not None
            ):  # half an answer must not look whole, and must not wait to be taken in
                link.abort()
        finally:
            gate.under_way -= 1
            self._count(scope, status, time.perf_counter() - start)

    def _check(self, scope: Scope) -> None:
        service, headers = self.service, Headers(scope=scope)
        if service.hosts and _host(headers.get("host", "")) not in service.hosts:
            raise Refusal(
                403,
                "the request is addressed to another host",
                hint="call the server by the address it was started with",
            )
        if service.token is not None and scope["path"] not in self.is_open:
            self._check_token(scope, headers)
        if service.gate.is_stopping and scope["path"] not in WHILE_STOPPING:
            raise Refusal(503, "the server is stopping", hint="ask again in a moment", retry_after=5)
        if service.gate.under_way > service.bounds.requests:
            raise Refusal(503, "too many requests are under way", hint="ask again in a moment", retry_after=1)

    def _check_token(self, scope: Scope, headers: Headers) -> None:
        kind, _, given = headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer" and self.service.is_token(given.strip().encode("latin-1")):
            return
        parts = scope["path"].split("/")  # /v1/runs/NAME/report may be opened by its ticket
        query = scope.get("query_string", b"").decode("latin-1")
        if (
            scope["method"] == "GET"
            and len(parts) == 5
            and parts[:3] == ["", "v1", "runs"]
            and parts[4] == "report"
            and query.startswith("ticket=")
            and self.service.is_ticket(parts[3], query.removeprefix("ticket="))
        ):
            return
        raise Refusal(
            401, "the token is missing or wrong", hint="send Authorization: Bearer TOKEN, as in --token-file"
        )

    def _refused(self, error: Exception) -> Response:
        if isinstance(error, HTTPException):
            words = "this path has no such method" if error.status_code == 405 else "there is nothing here"
            content = {"error": words, "hint": "GET /openapi.json lists every endpoint"}
            return reply(content, error.status_code, dict(error.headers or {}))
        if isinstance(error, HeadstartError):
            refusal = refusal_of(error)
            if refusal.status >= 500 and refusal.__cause__ is not None:
                self.service.log.say(f"{refusal}: {refusal.__cause__}")
        else:
            self._note(error)
            refusal = Refusal(500, "something went wrong in the server", hint="its log says where")
        headers = dict(refusal.headers)
        if refusal.status in (408, 413, 415):  # what is left of the body is not worth waiting for
            headers["Connection"] = "close"
        return reply(refusal.to_dict(), refusal.status, headers)

    def _note(self, error: Exception) -> None:
        """Say where it broke; what the problem says of itself could hold somebody's text."""
        where = "".join(traceback.format_tb(error.__traceback__)).rstrip()
        self.service.log.say(f"{type(error).__name__} in the server:\n{where}")

    def _count(self, scope: Scope, status: int, seconds: float) -> None:
        endpoint, texts = scope.get(ENDPOINT, "other"), scope.get(TEXTS)
        method = scope["method"] if scope["method"] in ("GET", "POST", "HEAD") else "OTHER"
        self.service.counters.requests.add(endpoint=endpoint, status=str(status or 499))
        self.service.counters.seconds.add(seconds, endpoint=endpoint)
        self.service.log.request(method, endpoint, status or 499, seconds, texts)


def _with_ours(headers: "list[tuple[bytes, bytes]]") -> "list[tuple[bytes, bytes]]":
    known = {name.lower() for name, _ in headers}
    return [*headers, *((name, value) for name, value in _RAW.items() if name not in known)]


def _host(text: str) -> str:
    """A Host header's name without its port."""
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return text.partition(":")[0].lower()
