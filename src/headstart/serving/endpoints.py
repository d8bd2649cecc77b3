"""The endpoints: what each is asked, what it answers, and how; the table that routes and /openapi.json are made of."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

from headstart.serving import schema
from headstart.serving.call import answered
from headstart.serving.library import Entry
from headstart.serving.lines import LINES, LinesResponse, Listener
from headstart.serving.plans import make_plan
from headstart.serving.refusal import Refusal
from headstart.serving.service import Service

JSON = "application/json"
HTML = "text/html; charset=utf-8"
PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"
LAST_STEP = 2**53
_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))

Handler = Callable[[Service, Request, Any], Awaitable[Response]]


@dataclass(frozen=True)
class Endpoint:
    """One method at one path."""

    method: str
    path: str
    summary: str
    handle: Handler
    asked: type[BaseModel] | None = None
    answers: tuple[tuple[str, type[BaseModel] | None], ...] = ()  # media type and schema, of status 200
    refusals: tuple[int, ...] = ()
    ability: schema.Ability | None = None
    is_open: bool = False  # needs no token


def reply(content: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """A JSON answer."""
    return Response(_ENCODER.encode(content).encode("utf-8"), status, headers, media_type=JSON)


async def find(service: Service, ability: schema.Ability, name: str | None) -> Entry:
    """The run to ask; one that has finished in the meantime is loaded on a thread."""
    if all(entry.loaded or entry.is_comparison for entry in service.library.entries.values()):
        return service.library.find(ability, name)
    return await asyncio.to_thread(service.library.find, ability, name)


def check_texts(service: Service, texts: Iterable[str]) -> None:
    """Refuse texts that are too many or too long."""
    bounds, known = service.bounds, list(texts)
    if len(known) > bounds.texts:
        raise Refusal(
            422,
            f"{len(known):,} texts are too many: {bounds.texts:,} are the most",
            hint="send them in parts",
        )
    longest = max((len(text) for text in known), default=0)
    if longest > bounds.characters:
        raise Refusal(
            422,
            f"a text has {longest:,} characters, and {bounds.characters:,} are the most",
            hint="send a shorter one; what a run reads is shorter still",
        )


async def classify(service: Service, request: Request, asked: schema.ClassifyRequest) -> Response:
    """The label of each text."""
    check_texts(service, asked.texts)
    entry = await find(service, "classify", asked.model)
    assert entry.loaded is not None
    assert entry.batcher is not None
    costs = [entry.loaded.cost("classify", text, asked.explain) for text in asked.texts]
    future = entry.batcher.submit(("classify", asked.explain), asked.texts, costs, service.bounds.seconds)
    labels = await answered(future, request, service.bounds.seconds)
    return reply({"model": entry.name, "labels": labels})


async def embed(service: Service, request: Request, asked: schema.EmbedRequest) -> Response:
    """The vector of each text."""
    check_texts(service, asked.texts)
    entry = await find(service, "embed", asked.model)
    assert entry.loaded is not None
    assert entry.batcher is not None
    costs = [entry.loaded.cost("embed", text) for text in asked.texts]
    future = entry.batcher.submit(("embed", asked.pool), asked.texts, costs, service.bounds.seconds)
    found = await answered(future, request, service.bounds.seconds)
    content = {
        "model": entry.name,
        "width": len(found[0][0]),
        "vectors": [vector for vector, _ in found],
        "cut": [was_cut for _, was_cut in found],
    }
    return await asyncio.to_thread(reply, content)


async def attention(service: Service, request: Request, asked: schema.AttentionRequest) -> Response:
    """Where each token of a text looks."""
    check_texts(service, [asked.text])
    entry = await find(service, "attention", asked.model)
    assert entry.loaded is not None
    assert entry.batcher is not None
    kind = ("attention", asked.layer, asked.attention_head)
    cost = entry.loaded.cost("attention", asked.text)
    future = entry.batcher.submit(kind, [asked.text], [cost], service.bounds.seconds)
    found = await answered(future, request, service.bounds.seconds)
    return await asyncio.to_thread(reply, {"model": entry.name, **found[0]})


async def generate(service: Service, request: Request, asked: schema.GenerateRequest) -> Response:
    """A text that goes on where the prompt ends."""
    check_texts(service, [asked.prompt])
    most = min(64, service.bounds.new_tokens) if asked.tokens is None else asked.tokens
    if most > service.bounds.new_tokens:
        raise Refusal(
            422, f"{service.bounds.new_tokens:,} new tokens are the most", hint="ask for fewer, then go on"
        )
    entry = await find(service, "generate", asked.model)
    assert entry.loaded is not None
    assert entry.batcher is not None
    listener = Listener(request, service.bounds.seconds)
    listener.begin(entry.batcher, entry.loaded.write(asked, most, entry.name), service.bounds.seconds)
    try:
        piece = await listener.next()  # what goes wrong before the first piece has a status of its own
        if asked.stream:
            return LinesResponse(piece, listener)
        last = piece
        while piece is not None:
            last, piece = piece, await listener.next()
        listener.close()
        return reply(last)
    except BaseException:
        listener.close()
        raise


async def translate(service: Service, request: Request, asked: schema.TranslateRequest) -> Response:
    """Each text in the other language."""
    check_texts(service, asked.texts)
    entry = await find(service, "translate", asked.model)
    assert entry.loaded is not None
    assert entry.batcher is not None
    costs = [entry.loaded.cost("translate", text) for text in asked.texts]
    future = entry.batcher.submit(("translate", asked.attention), asked.texts, costs, service.bounds.seconds)
    found = await answered(future, request, service.bounds.seconds)
    return await asyncio.to_thread(reply, {"model": entry.name, "translations": found})


async def plan(service: Service, request: Request, asked: schema.PlanRequest) -> Response:
    """What a run will need."""
    if service.planning.waiting >= service.bounds.plans:
        raise Refusal(429, "too many plans are asked for", hint="ask again in a moment", retry_after=2)
    found = await service.planning.run(make_plan, asked)
    return reply(found)


async def models(service: Service, request: Request, asked: None) -> Response:
    """The runs that answer."""
    await asyncio.to_thread(_load_all, service)
    shown = []
    for entry in service.library.entries.values():
        loaded = entry.loaded
        if loaded is None:
            continue
        body = loaded.config.body
        shown.append(
            {
                "name": entry.name,
                "can": loaded.can,
                "objective": loaded.trained.objective.name,
                "body": body.kind,
                "classes": loaded.trained.info.classes,
                "parameters": loaded.parameters,
                "layers": body.layers,
                "attention_heads": body.attention_heads,
                "width": body.width,
                "length": loaded.length("classify" if "classify" in loaded.can else "embed"),
                "precision": loaded.precision,
            }
        )
    return reply({"models": shown})


def _load_all(service: Service) -> None:
    for entry in service.library.entries.values():
        service.library.try_load(entry)


async def runs(service: Service, request: Request, asked: None) -> Response:
    """Every run and comparison, finished or not."""
    entries = service.library.entries.values()
    shown = await asyncio.to_thread(lambda: [_shown(service, entry)[0] for entry in entries])
    return reply({"runs": shown})


async def run(service: Service, request: Request, asked: None) -> Response:
    """One run with its curves."""
    entry = service.library.entry(request.path_params["name"])
    after = _step(request.query_params.get("after", "-1"))
    about, curves = await asyncio.to_thread(_shown, service, entry, after)
    return reply({**about, **{key: curves[key] for key in ("seconds_left", "steps", "evaluations")}})


def _step(text: str) -> int:
    """The step in a query; -1 stands before the first one."""
    try:
        if len(text) <= 16 and text.isascii() and -1 <= int(text) <= LAST_STEP:
            return int(text)
    except ValueError:
        pass
    raise Refusal(422, "after is no step", hint="for example ?after=100")


def _shown(service: Service, entry: Entry, after: int = -1) -> tuple[dict[str, Any], dict[str, Any]]:
    about, curves = service.library.look(entry), entry.progress.look(after)
    address = f"/v1/runs/{quote(entry.name, safe='')}/report"
    if service.token is not None:
        address += f"?ticket={service.ticket(entry.name)}"
    report = address if about.pop("has_report") else None
    is_done = about["status"] == "finished"
    return {**about, "progress": 1.0 if is_done else curves["progress"], "report": report}, curves


async def report(service: Service, request: Request, asked: None) -> Response:
    """The report of a run or comparison, to be shown in a frame."""
    entry = service.library.entry(request.path_params["name"])
    body = await asyncio.to_thread(entry.report)
    return Response(body, headers={"Content-Security-Policy": _REPORT_POLICY}, media_type=HTML)


# A report holds no script; were one smuggled in, it could neither run nor call.
_REPORT_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src data:; frame-ancestors 'self'; sandbox"
)


async def health(service: Service, request: Request, asked: None) -> Response:
    """Whether requests are welcome."""
    if service.gate.is_stopping:
        return reply({"status": "stopping"}, 503, {"Retry-After": "5"})
    return reply({"status": "ready"})


async def metrics(service: Service, request: Request, asked: None) -> Response:
    """What the server counts."""
    return Response(service.counters.text(), headers={"Content-Type": PROMETHEUS})


async def openapi(service: Service, request: Request, asked: None) -> Response:
    """This description."""
    from headstart.serving.openapi import describe

    return reply(await asyncio.to_thread(describe, service, ENDPOINTS))


_ASKING = (400, 404, 408, 409, 413, 415, 422, 429, 503)

ENDPOINTS: tuple[Endpoint, ...] = (
    Endpoint("POST", "/v1/classify", "Label texts", classify, schema.ClassifyRequest,
             ((JSON, schema.ClassifyAnswer),), _ASKING, "classify"),
    Endpoint("POST", "/v1/embed", "Turn texts into vectors", embed, schema.EmbedRequest,
             ((JSON, schema.EmbedAnswer),), _ASKING, "embed"),
    Endpoint("POST", "/v1/generate", "Go on with a text", generate, schema.GenerateRequest,
             ((JSON, schema.GenerateAnswer), (LINES, None)), _ASKING, "generate"),
    Endpoint("POST", "/v1/translate", "Translate texts", translate, schema.TranslateRequest,
             ((JSON, schema.TranslateAnswer),), _ASKING, "translate"),
    Endpoint("POST", "/v1/attention", "See where each token looks", attention, schema.AttentionRequest,
             ((JSON, schema.AttentionAnswer),), _ASKING, "attention"),
    Endpoint("POST", "/v1/plan", "Plan a run before it starts", plan, schema.PlanRequest,
             ((JSON, schema.PlanAnswer),), _ASKING),
    Endpoint("GET", "/v1/models", "The runs that answer", models, None, ((JSON, schema.ModelsAnswer),), (503,)),
    Endpoint("GET", "/v1/runs", "Every run and comparison", runs, None, ((JSON, schema.RunsAnswer),), (503,)),
    Endpoint("GET", "/v1/runs/{name}", "One run with its curves", run, None,
             ((JSON, schema.RunAnswer),), (404, 422, 503)),
    Endpoint("GET", "/v1/runs/{name}/report", "A run's report", report, None, ((HTML, None),), (404, 503)),
    Endpoint("GET", "/healthz", "Whether requests are welcome", health, None,
             ((JSON, schema.Health),), (503,), is_open=True),
    Endpoint("GET", "/metrics", "Counts for Prometheus", metrics, None, ((PROMETHEUS, None),), (503,)),
    Endpoint("GET", "/openapi.json", "This description", openapi, None, ((JSON, None),), (503,)),
)  # fmt: skip
