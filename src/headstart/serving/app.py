"""The FastAPI application: routes, playground files, error handlers and the OpenAPI document."""

from importlib.metadata import version
from typing import Any

from fastapi import FastAPI, HTTPException
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from headstart.config import preset_names
from headstart.errors import HeadstartError
from headstart.objectives import OBJECTIVES
from headstart.playground import FILES, Asset
from headstart.serving.limits import as_http_error
from headstart.serving.middleware import ServerMiddleware, error_response
from headstart.serving.routes import error_responses, router, validation_error
from headstart.serving.schema import ErrorResponse
from headstart.serving.state import AppState, state_of

PUBLIC_PATHS = frozenset([*FILES, "/healthz"])  # need no token
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
            routes=[*router.routes, *(_asset_route(path, asset) for path, asset in FILES.items())],
            redirect_slashes=False,
            openapi_url=None,  # a route of our own: its answer depends on the models that are ready
            exception_handlers={
                StarletteHTTPException: _handle_http_error,
                RequestValidationError: _handle_validation_error,
                HeadstartError: _handle_headstart_error,
            },
        )
        self.state.server = state
        self.add_middleware(ServerMiddleware, state=state, public_paths=PUBLIC_PATHS)

    def openapi(self) -> dict[str, Any]:
        """The OpenAPI document of this server: FastAPI's, with its limits, its models and its token."""
        state: AppState = self.state.server
        document = get_openapi(
            title=self.title,
            version=self.version,
            description=self.description,
            routes=self.routes,
            separate_input_output_schemas=False,
        )
        schemas = document["components"]["schemas"]
        schemas["ErrorResponse"] = ErrorResponse.model_json_schema()
        for path, operations in document["paths"].items():
            for operation in operations.values():
                _add_access_errors(operation, state, path)
                if "requestBody" in operation:
                    reference = operation["requestBody"]["content"]["application/json"]["schema"]["$ref"]
                    _add_limits(schemas[reference.rpartition("/")[2]]["properties"], state, operation)
        if state.token is not None:
            document["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
            document["security"] = [{"token": []}]
        return document


def _add_access_errors(operation: dict[str, Any], state: AppState, path: str) -> None:
    statuses = {401: "The token is missing or wrong."} if state.token and path not in PUBLIC_PATHS else {}
    if state.hosts:
        statuses[403] = "The request is addressed to another host."
    for status, response in error_responses(*statuses, reasons=statuses).items():
        operation["responses"][str(status)] = response
    if path in PUBLIC_PATHS:
        operation["security"] = []


def _add_limits(fields: dict[str, Any], state: AppState, operation: dict[str, Any]) -> None:
    """Write the limits of this server and the names that it knows into the schema of a request."""
    limits, ability = state.limits, operation["operationId"]
    if "texts" in fields:
        fields["texts"]["maxItems"] = limits.max_texts
        fields["texts"]["items"]["maxLength"] = limits.max_chars
    for name in {"text", "prompt"} & fields.keys():
        fields[name]["maxLength"] = limits.max_chars
    if ability == "generate":
        fields["tokens"]["anyOf"][0]["maximum"] = limits.max_new_tokens
    if "model" in fields:
        names = [model.name for model in state.registry.models if ability in model.worker.abilities]
        string = {"type": "string", **({"enum": names} if names else {})}
        fields["model"] |= {"anyOf": [string, {"type": "null"}], "default": None}
    if "preset" in fields:
        fields["preset"]["enum"] = preset_names()
        fields["objective"]["anyOf"][0]["enum"] = list(OBJECTIVES)


async def _handle_http_error(request: Request, error: StarletteHTTPException) -> Response:
    if not isinstance(error.detail, dict):  # raised by the router
        problem = "this path has no such method" if error.status_code == 405 else "there is nothing here"
        content = {"error": problem, "hint": "GET /openapi.json lists every endpoint"}
        error = HTTPException(error.status_code, content, dict(error.headers or {}))
    if error.status_code >= 500 and error.__cause__ is not None:
        detail: Any = error.detail
        state_of(request).logger.error("%s: %s", detail["error"], error.__cause__)
    return error_response(error)


async def _handle_validation_error(request: Request, error: RequestValidationError) -> Response:
    problem = error.errors()[0]
    return error_response(validation_error({**problem, "loc": problem["loc"][1:]}))


async def _handle_headstart_error(request: Request, error: HeadstartError) -> Response:
    return error_response(as_http_error(error))


def _asset_route(path: str, asset: Asset) -> Route:
    """A file of the playground; the files are fixed, so that no client can name one."""
    headers = {
        "Content-Type": asset.kind,
        "ETag": asset.tag,
        "Cache-Control": "no-cache",
        "Content-Security-Policy": PLAYGROUND_POLICY,
    }

    async def send_asset(request: Request) -> Response:
        if request.headers.get("if-none-match") == asset.tag:
            return Response(status_code=304, headers=headers)
        return Response(asset.content, headers=headers)

    return Route(path, send_asset, methods=["GET"])
