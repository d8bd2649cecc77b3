"""The web application: the table of endpoints and the playground's files behind the guard."""

from collections.abc import Awaitable, Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from headstart.playground import FILES, Asset
from headstart.serving.call import read_body
from headstart.serving.endpoints import ENDPOINTS, Endpoint
from headstart.serving.guard import ENDPOINT, TEXTS, Guard
from headstart.serving.reading import parse_request, read_json
from headstart.serving.service import Service

# Scripts and styles from this server alone, none of them inline; nobody may frame the page.
PLAYGROUND_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "frame-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


Answer = Callable[[Request], Awaitable[Response]]


def make_app(service: Service) -> ASGIApp:
    """The application that a server runs."""
    answers = {(each.method, each.path): _endpoint(service, each) for each in ENDPOINTS}
    answers |= {("GET", path): _asset(path, asset) for path, asset in FILES.items()}
    is_open = frozenset([*FILES, *(each.path for each in ENDPOINTS if each.is_open)])
    return Guard(Switch(answers), service, is_open)


class Switch:
    """Finds the answer by method and path; what is not a plain path goes through starlette's router."""

    def __init__(self, answers: "dict[tuple[str, str], Answer]"):
        routes = [Route(path, answer, methods=[method]) for (method, path), answer in answers.items()]
        self._router = Router(routes, redirect_slashes=False)
        self._plain = {key: answer for key, answer in answers.items() if "{" not in key[1]}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        answer = self._plain.get((scope["method"], scope["path"])) if scope["type"] == "http" else None
        if answer is None:
            await self._router(scope, receive, send)
        else:
            response = await answer(Request(scope, receive))
            await response(scope, receive, send)


def _endpoint(service: Service, endpoint: Endpoint) -> Answer:
    async def answer(request: Request) -> Response:
        request.scope[ENDPOINT] = endpoint.path
        asked: Any = None
        if endpoint.asked is not None:
            asked = parse_request(endpoint.asked, read_json(await read_body(request, service.bounds)))
            if service.log.with_texts:
                request.scope[TEXTS] = _texts(asked)
        return await endpoint.handle(service, request, asked)

    return answer


def _texts(asked: Any) -> list[str]:
    single = [getattr(asked, name) for name in ("text", "prompt") if hasattr(asked, name)]
    return [*getattr(asked, "texts", []), *single]


def _asset(path: str, asset: Asset) -> Answer:
    """A file of the playground; which ones there are is fixed, so no client names a file."""
    headers = {
        "Content-Type": asset.kind,
        "ETag": asset.tag,
        "Cache-Control": "no-cache",
        "Content-Security-Policy": PLAYGROUND_POLICY,
    }

    async def answer(request: Request) -> Response:
        request.scope[ENDPOINT] = path
        if request.headers.get("if-none-match") == asset.tag:
            return Response(status_code=304, headers=headers)
        return Response(asset.content, headers=headers)

    return answer
