"""The endpoints of the server."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from functools import lru_cache
from typing import Annotated, Any
from urllib.parse import quote

from fastapi import APIRouter, Depends, HTTPException, Path, Query
from fastapi.routing import APIRoute
from prometheus_client import generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from pydantic import BaseModel, ValidationError
from pydantic_core import to_json
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response, StreamingResponse

from headstart.errors import ConfigError, HeadstartError, nearest
from headstart.serving import schema
from headstart.serving.model_worker import ModelWorker
from headstart.serving.registry import AppState, ServedRun, hide_folder, read_progress
from headstart.serving.schema import Limits, as_http_error, http_error

NDJSON = "application/x-ndjson"
TEXTS = "headstart.texts"  # where a request's scope has the texts for the log
DISCARD_SECONDS = 2.0  # to read what a client still sends after an error
MAX_FIELD_CHARS = 60  # of a client's own field name in an error message
# A report has no scripts; an injected one could neither run nor send requests.
REPORT_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; frame-ancestors 'self'; sandbox"
ERRORS: dict[int, str] = {
    400: "The body is not JSON.",
    401: "The token is missing or wrong.",
    403: "The request is addressed to another host.",
    404: "The named run or part does not exist.",
    408: "The request arrives too slowly.",
    409: "The run cannot do this, or the settings contradict each other.",
    413: "The request is too large.",
    415: "The body is not declared as JSON.",
    422: "The request does not match its description.",
    429: "Too much is waiting; Retry-After says when to try again.",
    503: "The server is stopping or overloaded; Retry-After says when to try again.",
}


RETRY_AFTER = {"Retry-After": {"schema": {"type": "integer", "minimum": 1}, "description": "seconds to wait"}}


def describe_errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """These errors as responses in the OpenAPI document; always JSON, whatever else the endpoint sends."""
    content = {"application/json": {"schema": {"$ref": "#/components/schemas/ErrorResponse"}}}
    return {
        status: {
            "description": ERRORS[status],
            "content": content,
            "headers": RETRY_AFTER if status in (429, 503) else {},
        }
        for status in statuses
    }


BODY_ERRORS = describe_errors(400, 404, 408, 409, 413, 415, 422, 429)


async def get_state(request: Request) -> AppState:  # async, so that FastAPI calls it without a thread
    """The state of the server that handles a request."""
    state: AppState = request.app.state.server
    return state


State = Annotated[AppState, Depends(get_state)]


# --- the body of a request


class JSONRoute(APIRoute):
    """A route whose body is read within the server's limits, and validated by pydantic at once.

    FastAPI's own handler would read a body of any size, for any time.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The handler of this route."""
        endpoint = self.endpoint
        model: type[BaseModel] | None = endpoint.__annotations__.get("query")
        if model is None:
            return super().get_route_handler()

        async def handle(request: Request) -> Response:
            state = await get_state(request)
            query = parse_body(model, await read_body(request, state.limits))
            if state.log_texts:
                fields = query.model_dump(include={"texts", "text", "prompt"})
                request.scope[TEXTS] = [*fields.pop("texts", []), *fields.values()]
            result = await endpoint(state, query)
            if isinstance(result, Response):
                return result
            return Response(result.model_dump_json(exclude_none=True), media_type="application/json")

        return handle


async def read_body(request: Request, limits: Limits) -> bytes:
    """The body, if its header says JSON, it is small enough, and it arrives in time.

    The server reads on for a moment after an error: a client that is still sending does not see the response.
    """
    body, num_bytes, error = bytearray(), 0, _header_error(request)
    discard_seconds = min(DISCARD_SECONDS, limits.client_timeout)
    try:
        async with asyncio.timeout(discard_seconds if error else limits.client_timeout) as timeout:
            async for chunk in request.stream():
                num_bytes += len(chunk)
                if error is None:
                    body += chunk
                    if num_bytes > limits.max_body_bytes:
                        problem = f"the body is larger than {limits.max_body_bytes:,} bytes"
                        error = http_error(413, problem, hint="send fewer or shorter texts at once")
                        timeout.reschedule(asyncio.get_running_loop().time() + discard_seconds)
                elif num_bytes > 8 * limits.max_body_bytes:
                    break
    except TimeoutError:
        error = error or http_error(408, "the request arrives too slowly", hint="send it faster, or send less")
    if error is not None:
        raise error
    return bytes(body)


def _header_error(request: Request) -> HTTPException | None:
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != "application/json":
        return http_error(415, "the body is not declared as JSON", hint="send Content-Type: application/json")
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        return http_error(415, "the body is compressed", hint="send it uncompressed")
    return None


def parse_body(model: type[BaseModel], body: bytes) -> Any:
    """A body as a request model. What is no JSON is refused with 400, what does not fit the model with 422."""
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        problem = error.errors(include_url=False, include_context=False, include_input=False)[0]
    raise validation_error(problem, model)


def validation_error(error: Mapping[str, Any], model: type[BaseModel] | None = None) -> HTTPException:
    """The first problem that pydantic finds as an HTTP error, which repeats no text of the client."""
    if error["type"] == "json_invalid":
        problem = error["msg"].removeprefix("Invalid JSON: ")
        return http_error(400, f"the body is not JSON: {problem}", hint="send one JSON object in UTF-8")
    name = ".".join(str(part) for part in error["loc"])
    if len(name) > MAX_FIELD_CHARS:
        name = f"{name[: MAX_FIELD_CHARS - 1]}…"
    if error["type"] == "extra_forbidden" and model is not None:
        return http_error(422, f"no field is called {name!r}", hint=nearest(name, model.model_fields))
    problem = f"{name}: {error['msg'][:200]}" if name else error["msg"][:200]
    return http_error(422, problem, hint="GET /openapi.json describes every request")


router = APIRouter(
    route_class=JSONRoute,
    responses=describe_errors(401, 403, 503),
    generate_unique_id_function=lambda route: route.name,
)


# --- models


@router.post("/v1/classify", responses=BODY_ERRORS)
async def classify(state: State, query: schema.ClassifyRequest) -> schema.ClassifyResponse:
    """Label texts."""
    name, labels = await _run(state, "classify", query.model, query.texts, query.explain)
    return schema.ClassifyResponse(model=name, labels=labels)


@router.post("/v1/embed", responses=BODY_ERRORS)
async def embed(state: State, query: schema.EmbedRequest) -> schema.EmbedResponse:
    """Turn texts into vectors."""
    name, results = await _run(state, "embed", query.model, query.texts, query.pool)
    vectors, truncated = zip(*results, strict=True)
    return schema.EmbedResponse(model=name, width=len(vectors[0]), vectors=list(vectors), cut=list(truncated))


@router.post("/v1/attention", responses=BODY_ERRORS)
async def attention(state: State, query: schema.AttentionRequest) -> schema.AttentionResponse:
    """See where each token of a text attends."""
    options = query.layer, query.attention_head
    name, [(maps, is_truncated)] = await _run(state, "attention", query.model, [query.text], *options)
    return schema.AttentionResponse(model=name, cut=is_truncated, **vars(maps))


@router.post("/v1/translate", responses=BODY_ERRORS)
async def translate(state: State, query: schema.TranslateRequest) -> schema.TranslateResponse:
    """Translate texts."""
    name, translations = await _run(state, "translate", query.model, query.texts, query.attention)
    return schema.TranslateResponse(model=name, translations=translations)


async def _run(
    state: AppState, ability: schema.Ability, name: str | None, texts: list[str], *options: Any
) -> tuple[str, list[Any]]:
    """The model's name and its result for each text, computed in batches with those of other requests."""
    _check_texts(state.limits, texts)
    model = await _find(state, ability, name)
    explain = ability == "classify" and options[0]
    costs = [model.cost(ability, text, explain) for text in texts]
    return model.name, await model.batcher.submit((ability, *options), texts, costs, state.limits.request_timeout)


def _check_texts(limits: Limits, texts: list[str]) -> None:
    if len(texts) > limits.max_texts:
        problem = f"{len(texts):,} texts are too many: {limits.max_texts:,} are the most"
        raise http_error(422, problem, hint="send several requests")
    longest = max(map(len, texts), default=0)
    if longest > limits.max_chars:
        problem = f"a text has {longest:,} characters, and {limits.max_chars:,} are the most"
        raise http_error(422, problem, hint="send a shorter one; the model truncates it anyway")


async def _find(state: AppState, ability: schema.Ability, name: str | None) -> ModelWorker:
    """The model for a request; a run that has finished in the meantime is loaded in a thread."""
    if all(run.model is not None or run.is_comparison for run in state.runs.values()):
        return state.find(ability, name)
    return await asyncio.to_thread(state.find, ability, name)


@router.post(
    "/v1/generate",
    response_model=schema.GenerateResponse,
    responses={**BODY_ERRORS, 200: {"content": {NDJSON: {"schema": {"type": "string"}}}}},
)
async def generate(state: State, query: schema.GenerateRequest) -> schema.GenerateResponse | StreamingResponse:
    """Continue a text."""
    limits = state.limits
    _check_texts(limits, [query.prompt])
    max_new_tokens = min(64, limits.max_new_tokens) if query.tokens is None else query.tokens
    if max_new_tokens > limits.max_new_tokens:
        hint = "ask for fewer, then continue the result"
        raise http_error(422, f"{limits.max_new_tokens:,} new tokens are the most", hint=hint)
    model = await _find(state, "generate", query.model)
    pieces = model.streams.stream(model.generate(query, max_new_tokens), limits.request_timeout)
    first = await anext(pieces)  # an error before the first piece gets its own status
    if query.stream:
        return StreamingResponse(_json_lines(first, pieces), media_type=NDJSON)
    response: schema.GenerateResponse = [first, *[piece async for piece in pieces]][-1]
    return response


async def _json_lines(first: Any, pieces: AsyncIterator[Any]) -> AsyncIterator[bytes]:
    """A line for each piece; an error on the way is the last line."""
    yield to_json(first) + b"\n"
    try:
        async for piece in pieces:
            yield to_json(piece) + b"\n"
    except (HeadstartError, HTTPException) as problem:
        error = as_http_error(problem) if isinstance(problem, HeadstartError) else problem
        yield to_json(error.detail) + b"\n"


# --- plans


@router.post("/v1/plan", responses=BODY_ERRORS)
async def plan(state: State, query: schema.PlanRequest) -> schema.PlanResponse:
    """Plan a run before it starts."""
    if state.queued_plans >= state.limits.max_queued_plans:
        raise http_error(429, "too many plans are waiting", retry_after=2)
    state.queued_plans += 1
    try:
        return await asyncio.get_running_loop().run_in_executor(state.plan_executor, make_plan, query)
    finally:
        state.queued_plans -= 1


_SETTINGS = {  # the setting that a field of the request changes
    "layers": ("model", "num_layers"),
    "width": ("model", "hidden_size"),
    "attention_heads": ("model", "num_heads"),
    "feed_forward": ("model", "intermediate_size"),
    "precision": ("training", "precision"),
    "optimizer": ("optimizer", "name"),
    "objective": ("objective", "name"),
}


@lru_cache(maxsize=128)
def make_plan(query: schema.PlanRequest) -> schema.PlanResponse:
    """What `headstart plan --json` prints for a request."""
    from headstart.atomic_io import finite
    from headstart.planning.devices import find_device
    from headstart.planning.summary import plan_to_dict
    from headstart.workflows.plan import plan

    fields = query.model_dump(exclude_none=True)
    settings: dict[str, dict[str, Any]] = {}
    for name, (section, key) in _SETTINGS.items():
        if name in fields:
            settings.setdefault(section, {})[key] = fields.pop(name)
    if "classes" in fields:
        settings.setdefault("objective", {"name": "classify"})
    try:
        if query.gpu is not None:
            find_device(query.gpu)
    except ConfigError as error:
        raise http_error(404, error.problem, hint=error.hint) from None
    try:
        return schema.PlanResponse(**finite(plan_to_dict(plan(fields.pop("preset"), settings=settings, **fields))))
    except HeadstartError as error:  # each setting is valid by itself, so they contradict each other
        raise http_error(409, error.problem, hint=error.hint) from None


# --- what is served; FastAPI calls these functions in threads, because they read files


@router.get("/v1/models")
def models(state: State) -> schema.ModelsResponse:
    """List the models that are ready."""
    found = []
    for run in state.runs.values():
        with hide_folder(f"{run.name} cannot be loaded"):
            model = state.load(run)
        if model is None:
            continue
        body = model.config.model
        found.append(
            schema.Model(
                name=model.name,
                can=model.abilities,
                objective=model.trained.objective.name,
                body=body.architecture,
                classes=model.trained.info.classes,
                parameters=model.num_parameters,
                layers=body.num_layers,
                attention_heads=body.num_heads,
                width=body.hidden_size,
                length=model.length("classify" if "classify" in model.abilities else "embed"),
                precision=model.precision,
            )
        )
    return schema.ModelsResponse(models=found)


@router.get("/v1/runs")
def runs(state: State) -> schema.RunsResponse:
    """List every run and comparison."""
    found = [_describe(state, run, read_progress(run.log_path)["progress"]) for run in state.runs.values()]
    return schema.RunsResponse(runs=[schema.Run(**run) for run in found])


Name = Annotated[str, Path(min_length=1)]
After = Annotated[int, Query(ge=-1, le=2**53, description="leave out points up to this step")]


@router.get("/v1/runs/{name}", responses=describe_errors(404, 422))
def run(state: State, name: Name, after: After = -1) -> schema.RunResponse:
    """Show one run with its learning curves."""
    served = state.run(name)
    progress = read_progress(served.log_path, after)
    return schema.RunResponse(**progress | _describe(state, served, progress["progress"]))


def _describe(state: AppState, run: ServedRun, progress: float | None) -> dict[str, Any]:
    """The fields of `schema.Run`."""
    with hide_folder(f"the folder of {run.name} cannot be read"):
        about = run.read()
    path = f"/v1/runs/{quote(run.name, safe='')}/report"
    if state.token is not None:
        path += f"?signature={state.sign_report(run.name)}"
    report = path if run.report_path.is_file() else None
    return {**about, "progress": 1.0 if about["status"] == "finished" else progress, "report": report}


@router.get("/v1/runs/{name}/report", response_class=HTMLResponse, responses=describe_errors(404, 422))
def report(state: State, name: Name) -> HTMLResponse:
    """Show the report of a run or comparison."""
    try:
        content = state.run(name).report_path.read_bytes()
    except OSError:
        hint = "it is written when the run is finished"
        raise http_error(404, f"{name} has no report yet", hint=hint) from None
    return HTMLResponse(content, headers={"Content-Security-Policy": REPORT_POLICY})


# --- the server itself


@router.get(
    "/healthz",
    responses={
        503: {"description": ERRORS[503], "model": schema.Health | schema.ErrorResponse, "headers": RETRY_AFTER}
    },
    openapi_extra={"security": []},
)
async def health(state: State, response: Response) -> schema.Health:
    """Tell whether the server accepts requests."""
    if not state.is_stopping:
        return schema.Health(status="ready")
    response.status_code, response.headers["Retry-After"] = 503, "5"
    return schema.Health(status="stopping")


@router.get("/metrics", response_class=PlainTextResponse)
def metrics(state: State) -> Response:
    """Report metrics for Prometheus."""
    return Response(generate_latest(state.metrics.registry), headers={"Content-Type": CONTENT_TYPE_PLAIN_0_0_4})


@router.get("/openapi.json")
def openapi(request: Request) -> dict[str, Any]:
    """Describe this server."""
    document: dict[str, Any] = request.app.openapi()
    return document
