"""The description of the server that it gives of itself, made from the same tables that it runs on."""

import re
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from headstart.config import preset_names
from headstart.objectives.table import OBJECTIVES
from headstart.serving.endpoints import JSON, LAST_STEP, Endpoint
from headstart.serving.schema import Problem
from headstart.serving.service import Service

REASONS = {
    400: "The body is no JSON.",
    401: "The token is missing or wrong.",
    403: "The request is addressed to another host.",
    404: "What is named is not there.",
    408: "The request came too slowly.",
    409: "The run cannot do this, or the settings do not fit together.",
    413: "The request is too large.",
    415: "The body is not said to be JSON.",
    422: "The request does not fit its description.",
    429: "Too much is waiting; Retry-After says when to ask again.",
    503: "The server is stopping, or too busy; Retry-After says when to ask again.",
}


def describe(service: Service, endpoints: Sequence[Endpoint]) -> dict[str, Any]:
    """The OpenAPI 3.1 document of a server as it stands."""
    kinds: list[type[BaseModel]] = [Problem]
    for endpoint in endpoints:
        kinds += [endpoint.asked] if endpoint.asked else []
        kinds += [kind for _, kind in endpoint.answers if kind is not None]
    _, defs = models_json_schema(
        [(kind, "validation") for kind in dict.fromkeys(kinds)], ref_template="#/components/schemas/{model}"
    )
    schemas = defs["$defs"]
    for endpoint in endpoints:
        if endpoint.asked is not None:
            _bound(schemas[endpoint.asked.__name__], service, endpoint)
    paths: dict[str, Any] = {}
    for endpoint in endpoints:
        paths.setdefault(endpoint.path, {})[endpoint.method.lower()] = _operation(service, endpoint)
    document: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {
            "title": "headstart",
            "version": version("headstart"),
            "description": "Runs behind HTTP: labels, vectors, text, attention, plans.",
        },
        "paths": paths,
        "components": {"schemas": schemas},
    }
    if service.token is not None:
        document["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        document["security"] = [{"token": []}]
    return document


def _bound(schema: dict[str, Any], service: Service, endpoint: Endpoint) -> None:
    """Write this server's bounds, and the names that it knows, into a request's schema."""
    bounds, fields = service.bounds, schema["properties"]
    if "texts" in fields:
        fields["texts"]["maxItems"] = bounds.texts
        fields["texts"]["items"]["maxLength"] = bounds.characters
    for name in ("text", "prompt"):
        if name in fields:
            fields[name]["maxLength"] = bounds.characters
    if "tokens" in fields and endpoint.ability == "generate":
        fields["tokens"]["anyOf"][0]["maximum"] = bounds.new_tokens
    if "model" in fields and endpoint.ability is not None:
        able = [
            entry.name
            for entry in service.library.entries.values()
            if entry.loaded is not None and endpoint.ability in entry.loaded.can
        ]
        fields["model"] = {
            "description": fields["model"]["description"],
            "default": None,
            "anyOf": [{"type": "string", **({"enum": able} if able else {})}, {"type": "null"}],
        }
    if "preset" in fields:
        fields["preset"]["enum"] = preset_names()
        fields["objective"]["anyOf"][0]["enum"] = list(OBJECTIVES)


def _operation(service: Service, endpoint: Endpoint) -> dict[str, Any]:
    found: dict[str, Any] = {"summary": endpoint.summary, "operationId": _identity(endpoint), "responses": {}}
    if endpoint.asked is not None:
        schema = {"$ref": f"#/components/schemas/{endpoint.asked.__name__}"}
        found["requestBody"] = {"required": True, "content": {JSON: {"schema": schema}}}
    names = re.findall(r"{(\w+)}", endpoint.path)
    found["parameters"] = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
        for name in names
    ]
    if endpoint.path == "/v1/runs/{name}":
        number = {"type": "integer", "minimum": -1, "maximum": LAST_STEP}
        found["parameters"].append(
            {
                "name": "after",
                "in": "query",
                "schema": number,
                "description": "leave out points up to this step",
            }
        )
    content = {
        media: {"schema": {"$ref": f"#/components/schemas/{kind.__name__}"} if kind else _plain(media)}
        for media, kind in endpoint.answers
    }
    found["responses"]["200"] = {"description": endpoint.summary, "content": content}
    for status in sorted({*endpoint.refusals, *_common(service, endpoint)}):
        found["responses"][str(status)] = _refused(status, endpoint)
    if endpoint.is_open:
        found["security"] = []
    return found


def _plain(media: str) -> dict[str, Any]:
    return {"type": "object"} if media == JSON else {"type": "string"}


def _common(service: Service, endpoint: Endpoint) -> list[int]:
    asks_for_token = service.token is not None and not endpoint.is_open
    return [*([401] if asks_for_token else []), *([403] if service.hosts else [])]


def _refused(status: int, endpoint: Endpoint) -> dict[str, Any]:
    schema: dict[str, Any] = {"$ref": "#/components/schemas/Problem"}
    if endpoint.path == "/healthz" and status == 503:
        schema = {"anyOf": [schema, {"$ref": "#/components/schemas/Health"}]}
    found: dict[str, Any] = {"description": REASONS[status], "content": {JSON: {"schema": schema}}}
    if status in (429, 503):
        number = {"schema": {"type": "integer", "minimum": 1}, "description": "seconds to wait"}
        found["headers"] = {"Retry-After": number}
    return found


def _identity(endpoint: Endpoint) -> str:
    words = [word.strip("{}") for word in re.split(r"[/.]", endpoint.path) if word and word != "v1"]
    return "_".join([endpoint.method.lower(), *words])
