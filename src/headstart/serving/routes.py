"""The endpoints of the server."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from functools import lru_cache
from typing import Annotated, Any
from urllib.parse import quote

from fastapi import APIRouter, HTTPException, Path, Query
from fastapi.routing import APIRoute
from prometheus_client import generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from pydantic import BaseModel, ValidationError
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response, StreamingResponse

from headstart.errors import ConfigError, HeadstartError, nearest
from headstart.serving import schema
from headstart.serving.registry import AppState
from headstart.serving.schema import Limits, as_http_error, busy_error, http_error

NDJSON = "application/x-ndjson"
TEXTS = "headstart.texts"  # where a request's scope has the texts for the log
DISCARD_SECONDS = 2.0  # to read what a client still sends after an error
MAX_FIELD_CHARS = 60  # of a client's own field name in an error message
MAX_STEP = 2**53
# A report has no scripts; an injected one could neither run nor send requests.
REPORT_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; frame-ancestors 'self'; sandbox"


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
            state = state_of(request)
            query = parse_body(model, await read_body(request, state.limits))
            if state.log_texts:
                fields = query.model_dump(include={"texts", "text", "prompt"})
                request.scope[TEXTS] = [*fields.pop("texts", []), *fields.values()]
            response: Response = await endpoint(request, query)
            return response

        return handle


async def read_body(request: Request, limits: Limits) -> bytes:
    """The body, if its header says JSON, it is small enough, and it arrives in time.

    The server reads on for a moment after an error: a client that is still sending does not see the response.
    """
    body, num_bytes, error = bytearray(), 0, _header_error(request)
    seconds = limits.client_timeout if error is None else min(DISCARD_SECONDS, limits.client_timeout)
    try:
        async with asyncio.timeout(seconds) as timeout:
            async for chunk in request.stream():
                num_bytes += len(chunk)
                if error is None:
                    body += chunk
                    if num_bytes > limits.max_body_bytes:
                        problem = f"the body is larger than {limits.max_body_bytes:,} bytes"
                        error = http_error(413, problem, hint="send fewer or shorter texts at once")
                        seconds = min(DISCARD_SECONDS, limits.client_timeout)
                        timeout.reschedule(asyncio.get_running_loop().time() + seconds)
                elif num_bytes > 8 * limits.max_body_bytes:
                    break
    except TimeoutError:
        if error is None:
            hint = "send it faster, or send less"
            raise http_error(408, "the request arrives too slowly", hint=hint) from None
    if error is not None:
        raise error
    return bytes(body)


def _header_error(request: Request) -> HTTPException | None:
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != "application/json":
        hint = "send Content-Type: application/json"
        return http_error(415, "the body is not declared as JSON", hint=hint)
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        return http_error(415, "the body is compressed", hint="send it uncompressed")
    return None


def parse_body(model: type[BaseModel], body: bytes) -> Any:
    """A body as a request model. What is no JSON is refused with 400, what does not fit the model with 422."""
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        errors = error.errors(include_url=False, include_context=False, include_input=False)
    if errors[0]["type"] == "json_invalid":
        problem = errors[0]["msg"].removeprefix("Invalid JSON: ")
        raise http_error(400, f"the body is not JSON: {problem}", hint="send one JSON object in UTF-8")
    raise validation_error(errors[0], model)


def validation_error(error: Mapping[str, Any], model: type[BaseModel] | None = None) -> HTTPException:
    """The first problem that pydantic finds as an HTTP error, which repeats no text of the client."""
    name, hint = ".".join(str(part) for part in error["loc"]), "GET /openapi.json describes every request"
    if len(name) > MAX_FIELD_CHARS:
        name = f"{name[: MAX_FIELD_CHARS - 1]}…"
    if error["type"] == "extra_forbidden" and model is not None:
        return http_error(422, f"no field is called {name!r}", hint=nearest(name, model.model_fields))
    problem = f"{name}: {error['msg'][:200]}" if name else error["msg"][:200]
    return http_error(422, problem, hint=hint)


router = APIRouter(route_class=JSONRoute, generate_unique_id_function=lambda route: route.name)


def state_of(request: Request) -> AppState:
    """The state of the server that handles a request."""
    state: AppState = request.app.state.server
    return state


# --- models


@router.post("/v1/classify", response_model=schema.ClassifyResponse)
async def classify(request: Request, query: schema.ClassifyRequest) -> Response:
    """Label texts."""
    name, labels = await _run(request, "classify", query.model, query.texts, query.explain)
    return JSONResponse({"model": name, "labels": labels})


@router.post("/v1/embed", response_model=schema.EmbedResponse)
async def embed(request: Request, query: schema.EmbedRequest) -> Response:
    """Turn texts into vectors."""
    name, results = await _run(request, "embed", query.model, query.texts, query.pool)
    content = {
        "model": name,
        "width": len(results[0][0]),
        "vectors": [vector for vector, _ in results],
        "cut": [is_truncated for _, is_truncated in results],
    }
    return await asyncio.to_thread(JSONResponse, content)


@router.post("/v1/attention", response_model=schema.AttentionResponse)
async def attention(request: Request, query: schema.AttentionRequest) -> Response:
    """See where each token of a text attends."""
    options = query.layer, query.attention_head
    name, results = await _run(request, "attention", query.model, [query.text], *options)
    return await asyncio.to_thread(JSONResponse, {"model": name, **results[0]})


@router.post("/v1/translate", response_model=schema.TranslateResponse)
async def translate(request: Request, query: schema.TranslateRequest) -> Response:
    """Translate texts."""
    name, results = await _run(request, "translate", query.model, query.texts, query.attention)
    return await asyncio.to_thread(JSONResponse, {"model": name, "translations": results})


async def _run(
    request: Request, ability: schema.Ability, name: str | None, texts: list[str], *options: Any
) -> tuple[str, list[Any]]:
    """The model's name and its result for each text, computed in batches with those of other requests."""
    state = state_of(request)
    _check_texts(state.limits, texts)
    model = await _find(state, ability, name)
    explain = ability == "classify" and options[0]
    costs = [model.worker.cost(ability, text, explain) for text in texts]
    timeout = state.limits.request_timeout
    return model.name, await model.batcher.submit((ability, *options), texts, costs, timeout)


def _check_texts(limits: Limits, texts: Sequence[str]) -> None:
    if len(texts) > limits.max_texts:
        raise http_error(
            422, f"{len(texts):,} texts are too many: {limits.max_texts:,} are the most", hint="send several requests"
        )
    longest = max(map(len, texts), default=0)
    if longest > limits.max_chars:
        raise http_error(
            422,
            f"a text has {longest:,} characters, and {limits.max_chars:,} are the most",
            hint="send a shorter one; the model truncates it anyway",
        )


async def _find(state: AppState, ability: schema.Ability, name: str | None) -> Any:
    """The model for a request; a run that has finished in the meantime is loaded in a thread."""
    if state.registry.is_complete:
        return state.registry.find(ability, name)
    return await asyncio.to_thread(state.registry.find, ability, name)


@router.post(
    "/v1/generate",
    response_model=schema.GenerateResponse,
    responses={200: {"content": {NDJSON: {"schema": {"type": "string"}}}}},
)
async def generate(request: Request, query: schema.GenerateRequest) -> Response:
    """Continue a text."""
    state = state_of(request)
    limits = state.limits
    _check_texts(limits, [query.prompt])
    max_new_tokens = min(64, limits.max_new_tokens) if query.tokens is None else query.tokens
    if max_new_tokens > limits.max_new_tokens:
        raise http_error(
            422, f"{limits.max_new_tokens:,} new tokens are the most", hint="ask for fewer, then continue the result"
        )
    model = await _find(state, "generate", query.model)
    generated = model.worker.generate(query, max_new_tokens, model.name)
    pieces = model.streams.stream(generated, limits.request_timeout)
    first = await anext(pieces)  # an error before the first piece gets its own status
    if query.stream:
        return StreamingResponse(_json_lines(first, pieces), media_type=NDJSON)
    return JSONResponse([first, *[piece async for piece in pieces]][-1])


async def _json_lines(first: Any, pieces: AsyncIterator[Any]) -> AsyncIterator[bytes]:
    """A line for each piece; an error on the way is the last line."""
    yield _json_line(first)
    try:
        async for piece in pieces:
            yield _json_line(piece)
    except (HeadstartError, HTTPException) as problem:
        error = as_http_error(problem) if isinstance(problem, HeadstartError) else problem
        yield _json_line(error.detail)


def _json_line(content: Any) -> bytes:
    return json.dumps(content, ensure_ascii=False, allow_nan=False).encode("utf-8") + b"\n"


# --- plans


@router.post("/v1/plan", response_model=schema.PlanResponse)
async def plan(request: Request, query: schema.PlanRequest) -> Response:
    """Plan a run before it starts."""
    state = state_of(request)
    if state.queued_plans >= state.limits.max_queued_plans:
        raise busy_error("too many plans are waiting", status=429, retry_after=2)
    state.queued_plans += 1
    try:
        content = await asyncio.get_running_loop().run_in_executor(state.plan_executor, make_plan, query)
    finally:
        state.queued_plans -= 1
    return JSONResponse(content)


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
def make_plan(query: schema.PlanRequest) -> dict[str, Any]:
    """What `headstart plan --json` prints for a request."""
    from headstart.atomic_io import finite
    from headstart.planning.devices import find_device
    from headstart.workflows.plan import plan

    fields = query.model_dump(exclude_none=True)
    settings: dict[str, dict[str, Any]] = {}
    for name, (section, key) in _SETTINGS.items():
        if name in fields:
            settings.setdefault(section, {})[key] = fields.pop(name)
    if "classes" in fields:
        settings.setdefault("objective", {"name": "classify"})
    if "gpu" in fields:
        try:
            find_device(fields["gpu"])
        except ConfigError as error:
            raise http_error(404, str(error), hint=error.hint) from None
    try:
        return finite(plan(fields.pop("preset"), settings=settings, **fields).to_dict())
    except HeadstartError as error:  # each setting is valid by itself, so they contradict each other
        raise http_error(409, str(error), hint=error.hint) from None


# --- what is served


@router.get("/v1/models", response_model=schema.ModelsResponse)
async def models(request: Request) -> Response:
    """List the models that are ready."""
    registry = state_of(request).registry
    if not registry.is_complete:
        await asyncio.to_thread(lambda: [registry.try_load(run) for run in registry.runs.values()])
    content = []
    for model in registry.models:
        worker, body = model.worker, model.worker.config.model
        content.append(
            {
                "name": model.name,
                "can": worker.abilities,
                "objective": worker.trained.objective.name,
                "body": body.architecture,
                "classes": worker.trained.info.classes,
                "parameters": worker.num_parameters,
                "layers": body.num_layers,
                "attention_heads": body.num_heads,
                "width": body.hidden_size,
                "length": worker.length("classify" if "classify" in worker.abilities else "embed"),
                "precision": worker.precision,
            }
        )
    return JSONResponse({"models": content})


@router.get("/v1/runs", response_model=schema.RunsResponse)
async def runs(request: Request) -> Response:
    """List every run and comparison."""
    state = state_of(request)
    content = await asyncio.to_thread(lambda: [_describe(state, name)[0] for name in state.registry.runs])
    return JSONResponse({"runs": content})


Name = Annotated[str, Path(min_length=1)]
After = Annotated[int, Query(ge=-1, le=MAX_STEP, description="leave out points up to this step")]


@router.get("/v1/runs/{name}", response_model=schema.RunResponse)
async def run(request: Request, name: Name, after: After = -1) -> Response:
    """Show one run with its learning curves."""
    about, progress = await asyncio.to_thread(_describe, state_of(request), name, after)
    return JSONResponse({**about, **{key: progress[key] for key in ("seconds_left", "steps", "evaluations")}})


def _describe(state: AppState, name: str, after: int = -1) -> tuple[dict[str, Any], dict[str, Any]]:
    run = state.registry.run(name)
    about, progress = run.describe(), run.progress.read(after)
    path = f"/v1/runs/{quote(name, safe='')}/report"
    if state.token is not None:
        path += f"?signature={state.sign_report(name)}"
    report = path if about.pop("has_report") else None
    is_finished = about["status"] == "finished"
    return {**about, "progress": 1.0 if is_finished else progress["progress"], "report": report}, progress


@router.get("/v1/runs/{name}/report", response_class=HTMLResponse)
async def report(request: Request, name: Name) -> Response:
    """Show the report of a run or comparison."""
    body = await asyncio.to_thread(state_of(request).registry.run(name).report)
    return HTMLResponse(body, headers={"Content-Security-Policy": REPORT_POLICY})


# --- the server itself


@router.get("/healthz", response_model=schema.Health, responses={503: {"model": schema.Health | schema.ErrorResponse}})
async def health(request: Request) -> Response:
    """Tell whether the server accepts requests."""
    if state_of(request).is_stopping:
        return JSONResponse({"status": "stopping"}, 503, {"Retry-After": "5"})
    return JSONResponse({"status": "ready"})


@router.get("/metrics", response_class=PlainTextResponse)
async def metrics(request: Request) -> Response:
    """Report metrics for Prometheus."""
    content = generate_latest(state_of(request).metrics.registry)
    return Response(content, headers={"Content-Type": CONTENT_TYPE_PLAIN_0_0_4})


@router.get("/openapi.json", response_model=dict[str, Any])
async def openapi(request: Request) -> Response:
    """Describe this server."""
    return JSONResponse(await asyncio.to_thread(request.app.openapi))
