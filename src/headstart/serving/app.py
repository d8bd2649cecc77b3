"""The FastAPI application: middleware, playground files, error handlers and the OpenAPI document."""

import asyncio
import hmac
import json
import time
import traceback
from importlib.metadata import version
from importlib.resources import files
from typing import Any

from fastapi import FastAPI, HTTPException
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headstart.config import preset_names
from headstart.errors import HeadstartError
from headstart.objectives import OBJECTIVES
from headstart.serving.registry import AppState
from headstart.serving.routes import TEXTS, router, validation_error
from headstart.serving.schema import as_http_error, http_error

SCRIPTS = ("app", "api", "elements", "classify", "generate", "translate", "attention", "plan", "runs", "chart")
FILES = {  # of the playground, by their path on the server
    "/": "playground/index.html",
    "/icon.svg": "playground/icon.svg",
    "/playground.css": "playground/playground.css",
    "/page.css": "reports/static/page.css",
    "/attention.css": "reports/static/attention.css",
    "/explorer.js": "reports/static/attention.js",
    **{f"/{name}.js": f"playground/{name}.js" for name in SCRIPTS},
}
PUBLIC_PATHS = frozenset([*FILES, "/healthz"])  # need no token
OPEN_WHILE_STOPPING = ("/healthz", "/metrics")
SECURITY_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Cache-Control": "no-store",
}
# Scripts and styles only from this server, none inline; no page may frame this one.
PLAYGROUND_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "frame-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


class App(FastAPI):
    """The application of one server."""

    def __init__(self, state: AppState):
        super().__init__(
            title="headstart",
            version=version("headstart"),
            description="Trained models behind HTTP: labels, vectors, text, attention, plans.",
            routes=[*router.routes, *(_file_route(path, file) for path, file in FILES.items())],
            redirect_slashes=False,
            openapi_url=None,  # a route of ours serves the document, which depends on the models that are ready
            exception_handlers=dict.fromkeys(
                (StarletteHTTPException, RequestValidationError, HeadstartError), _handle_error
            ),
        )
        self.state.server = state
        self.add_middleware(ServerMiddleware, state=state)

    def openapi(self) -> dict[str, Any]:
        """The OpenAPI document of this server: FastAPI's, with the limits, models and token of this server."""
        state: AppState = self.state.server
        document = get_openapi(
            title=self.title,
            version=self.version,
            description=self.description,
            routes=self.routes,
            separate_input_output_schemas=False,
        )
        schemas = document["components"]["schemas"]
        for operations in document["paths"].values():
            if "requestBody" in (operation := operations.get("post", {})):
                reference = operation["requestBody"]["content"]["application/json"]["schema"]["$ref"]
                _add_limits(schemas[reference.rpartition("/")[2]]["properties"], state, operation["operationId"])
        if state.token is not None:
            document["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
            document["security"] = [{"token": []}]
        return document


def _add_limits(fields: dict[str, Any], state: AppState, ability: Any) -> None:
    """Write the limits of this server and the names that it knows into the schema of a request."""
    limits = state.limits
    if "texts" in fields:
        fields["texts"]["maxItems"] = limits.max_texts
        fields["texts"]["items"]["maxLength"] = limits.max_chars
    for name in {"text", "prompt"} & fields.keys():
        fields[name]["maxLength"] = limits.max_chars
    if ability == "generate":
        fields["tokens"]["anyOf"][0]["maximum"] = limits.max_new_tokens
    if names := [model.name for model in state.models if ability in model.abilities]:
        fields["model"]["anyOf"][0] = {"type": "string", "enum": names}
    if ability == "plan":
        fields["preset"]["enum"] = preset_names()
        fields["objective"]["anyOf"][0]["enum"] = list(OBJECTIVES)


def error_response(error: StarletteHTTPException) -> JSONResponse:
    """An HTTP error as JSON."""
    return JSONResponse(error.detail, error.status_code, dict(error.headers or {}))


async def _handle_error(request: Request, error: Any) -> Response:
    if isinstance(error, HeadstartError):
        error = as_http_error(error)
    elif isinstance(error, RequestValidationError):
        problem = error.errors()[0]
        error = validation_error({**problem, "loc": problem["loc"][1:]})
    elif not isinstance(error.detail, dict):  # raised by the router
        problem = "this path has no such method" if error.status_code == 405 else "there is nothing here"
        content = {"error": problem, "hint": "GET /openapi.json lists every endpoint"}
        error = HTTPException(error.status_code, content, error.headers)
    elif error.status_code >= 500 and error.__cause__ is not None:
        request.app.state.server.logger.error("%s: %s", error.detail["error"], error.__cause__)
    return error_response(error)


def _file_route(path: str, file: str) -> Route:
    """A file of the playground; the files are fixed, so that no client can name one."""
    place, headers = str(files("headstart") / file), {"Content-Security-Policy": PLAYGROUND_POLICY}
    return Route(path, lambda request: FileResponse(place, headers=headers))


class ServerMiddleware:
    """Admits requests, counts and logs them, adds security headers, and answers unexpected errors."""

    def __init__(self, app: ASGIApp, state: AppState):
        self.app, self.state = app, state

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        state, start, status = self.state, time.perf_counter(), 0

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                for name, value in SECURITY_HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        state.in_flight += 1
        try:
            self._check_access(scope)
            await self.app(scope, receive, send_with_headers)
        except (asyncio.CancelledError, ClientDisconnect) as error:  # the client has disconnected
            state.metrics.clients_gone.inc()
            status = status or 499
            if isinstance(error, asyncio.CancelledError):
                raise
        except HTTPException as error:
            await error_response(error)(scope, receive, send_with_headers)
        except Exception as error:
            # The message of the error could hold a client's text; the place where it happened does not.
            where = "".join(traceback.format_tb(error.__traceback__)).rstrip()
            state.logger.error("%s in the server:\n%s", type(error).__name__, where)
            if status:  # part of a response is sent: the server closes the connection
                status = 500
            else:
                failure = http_error(500, "an error occurred in the server", hint="its log has the details")
                await error_response(failure)(scope, receive, send_with_headers)
        finally:
            state.in_flight -= 1
            self._record(scope, status, time.perf_counter() - start)

    def _check_access(self, scope: Scope) -> None:
        state, headers, path = self.state, Headers(scope=scope), scope["path"]
        if state.hosts and _host_name(headers.get("host", "")) not in state.hosts:
            hint = "use the address that the server was started with"
            raise http_error(403, "the request is addressed to another host", hint=hint)
        if state.token is not None and path not in PUBLIC_PATHS and not self._has_token(scope, headers):
            hint = "send Authorization: Bearer TOKEN, as in --token-file"
            raise http_error(401, "the token is missing or wrong", hint=hint)
        if state.is_stopping and path not in OPEN_WHILE_STOPPING:
            raise http_error(503, "the server is stopping", retry_after=5)
        if state.in_flight > state.limits.max_concurrent_requests:
            raise http_error(503, "too many requests are in flight")

    def _has_token(self, scope: Scope, headers: Headers) -> bool:
        """Whether the request carries the token, or the signature of the report that it asks for."""
        scheme, _, token = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and hmac.compare_digest(
            token.strip().encode(), (self.state.token or "").encode()
        ):
            return True
        key, _, signature = scope.get("query_string", b"").decode("latin-1").partition("=")
        match scope["path"].split("/"):
            case ["", "v1", "runs", name, "report"] if scope["method"] == "GET" and key == "signature":
                return self.state.is_signature(name, signature)
        return False

    def _record(self, scope: Scope, status: int, seconds: float) -> None:
        metrics, endpoint = self.state.metrics, getattr(scope.get("route"), "path", "other")
        metrics.requests.labels(endpoint, str(status)).inc()
        metrics.seconds.labels(endpoint).observe(seconds)
        method = scope["method"] if scope["method"] in ("GET", "POST", "HEAD") else "OTHER"
        fields = {"method": method, "endpoint": endpoint, "status": status, "ms": round(1000 * seconds, 1)}
        texts = {"texts": scope[TEXTS]} if scope.get(TEXTS) else {}
        line = f"{method} {endpoint} {status} {fields['ms']} ms" + (f" {json.dumps(scope[TEXTS])}" if texts else "")
        self.state.logger.info("%s", line, extra={"fields": fields | texts})


def _host_name(host: str) -> str:
    """The name in a Host header, without its port."""
    return host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0].lower()
