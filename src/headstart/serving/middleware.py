"""The middleware around every request: access, security headers, metrics, the access log, unexpected errors."""

import asyncio
import time
import traceback

from fastapi import HTTPException
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headstart.serving.limits import http_error
from headstart.serving.routes import TEXTS
from headstart.serving.state import AppState

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
_RAW_HEADERS = {name.lower().encode(): value.encode() for name, value in SECURITY_HEADERS.items()}


class ServerMiddleware:
    """Admits requests, counts and logs them, and answers unexpected errors."""

    def __init__(self, app: ASGIApp, state: AppState, public_paths: frozenset[str]):
        self.app, self.state, self.public_paths = app, state, public_paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return
        state, start, status = self.state, time.perf_counter(), 0

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = list(message.get("headers", []))
                present = {name.lower() for name, _ in headers}
                headers += [(name, value) for name, value in _RAW_HEADERS.items() if name not in present]
                message["headers"] = headers
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
            if (
                status
            ):  # part of a response is sent; the server closes a connection whose response is incomplete
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
            raise http_error(
                403,
                "the request is addressed to another host",
                hint="use the address that the server was started with",
            )
        if state.token is not None and path not in self.public_paths:
            self._check_token(scope, headers)
        if state.is_stopping and path not in OPEN_WHILE_STOPPING:
            raise http_error(503, "the server is stopping", hint="try again in a moment", retry_after=5)
        if state.in_flight > state.limits.max_concurrent_requests:
            raise http_error(
                503, "too many requests are in flight", hint="try again in a moment", retry_after=1
            )

    def _check_token(self, scope: Scope, headers: Headers) -> None:
        scheme, _, token = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and self.state.is_token(token.strip()):
            return
        query = scope.get("query_string", b"").decode("latin-1")
        match scope["path"].split("/"):
            case ["", "v1", "runs", name, "report"] if scope["method"] == "GET":
                key, _, signature = query.partition("=")
                if key == "signature" and self.state.is_signature(name, signature):
                    return
        raise http_error(
            401, "the token is missing or wrong", hint="send Authorization: Bearer TOKEN, as in --token-file"
        )

    def _record(self, scope: Scope, status: int, seconds: float) -> None:
        state, endpoint = self.state, getattr(scope.get("route"), "path", "other")
        state.metrics.requests.labels(endpoint, str(status)).inc()
        state.metrics.seconds.labels(endpoint).observe(seconds)
        if state.logger.isEnabledFor(20):
            method = scope["method"] if scope["method"] in ("GET", "POST", "HEAD") else "OTHER"
            fields = {
                "method": method,
                "endpoint": endpoint,
                "status": status,
                "ms": round(1000 * seconds, 1),
            }
            if texts := scope.get(TEXTS):
                fields["texts"] = texts
            state.logger.info("request", extra={"fields": fields})


def error_response(error: HTTPException) -> JSONResponse:
    """An HTTP error as JSON."""
    return JSONResponse(error.detail, error.status_code, dict(error.headers or {}))


def _host_name(host: str) -> str:
    """The name in a Host header, without its port."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0].lower()
