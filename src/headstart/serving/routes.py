"""The endpoints of the server."""

import asyncio
import json
import math
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Annotated, Any
from urllib.parse import quote

from fastapi import APIRouter, HTTPException, Path, Query
from fastapi.routing import APIRoute
from prometheus_client import generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from headstart.errors import ConfigError, HeadstartError, nearest
from headstart.serving import schema
from headstart.serving.batcher import StreamJob, wait_for
from headstart.serving.limits import Limits, as_http_error, http_error
from headstart.serving.state import AppState, state_of

NDJSON = "application/x-ndjson"
TEXTS = "headstart.texts"  # where a request's scope has the texts for the log
MAX_JSON_DEPTH = 8  # a valid request has two levels
MAX_FIELD_CHARS = 60  # of a client's own field name in an error message
MAX_STEP = 2**53
# A report has no scripts; an injected one could neither run nor send requests.
REPORT_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src data:; frame-ancestors 'self'; sandbox"
)


# --- the body of a request


class JSONRoute(APIRoute):
    """A route whose body is read within the server's limits and parsed strictly before pydantic validates it.

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
            query = validate(model, parse_json(await read_body(request, state.limits)))
            if state.log_texts:
                fields = query.model_dump(include={"texts", "text", "prompt"})
                request.scope[TEXTS] = [*fields.pop("texts", []), *fields.values()]
            response: Response = await endpoint(request, query)
            return response

        return handle


async def read_body(request: Request, limits: Limits) -> bytes:
    """The body, if its header says JSON, it is small enough, and it arrives in time."""
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != "application/json":
        await _discard(request, limits)
        raise http_error(415, "the body is not declared as JSON", hint="send Content-Type: application/json")
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        await _discard(request, limits)
        raise http_error(415, "the body is compressed", hint="send it uncompressed")
    body, more_body = bytearray(), True
    try:
        async with asyncio.timeout(limits.client_timeout):
            while more_body and len(body) <= limits.max_body_bytes:
                chunk, more_body = await _receive(request)
                body += chunk
    except TimeoutError:
        raise http_error(408, "the request arrives too slowly", hint="send it faster, or send less") from None
    if len(body) <= limits.max_body_bytes:
        return bytes(body)
    if more_body:
        await _discard(request, limits)
    raise http_error(
        413,
        f"the body is larger than {limits.max_body_bytes:,} bytes",
        hint="send fewer or shorter texts at once",
    )


async def _receive(request: Request) -> tuple[bytes, bool]:
    message = await request.receive()
    if message["type"] == "http.disconnect":
        raise ClientDisconnect
    return message.get("body", b""), message.get("more_body", False)


async def _discard(request: Request, limits: Limits) -> None:
    """Read on for a moment: a client that is still sending does not see the response."""
    remaining, more_body = 8 * limits.max_body_bytes, True
    with suppress(TimeoutError):
        async with asyncio.timeout(min(2.0, limits.client_timeout)):
            while more_body and remaining > 0:
                chunk, more_body = await _receive(request)
                remaining -= len(chunk)


def parse_json(body: bytes) -> Any:
    """The JSON value in `body`; NaN, infinite numbers and deep nesting are errors."""
    try:
        value = json.loads(body.decode("utf-8"), parse_constant=_no_constant, parse_float=_finite_float)
    except UnicodeDecodeError:
        raise http_error(400, "the body is not UTF-8", hint="encode it as UTF-8") from None
    except RecursionError:
        raise _too_deep() from None
    except json.JSONDecodeError as error:
        problem = f"the body is not JSON: {error.msg} at character {error.pos}"
        raise http_error(400, problem, hint="send one JSON object") from None
    except ValueError:  # an integer of thousands of digits
        raise http_error(
            400, "the body holds a number with too many digits", hint="send a smaller one"
        ) from None
    level = [value]
    for _ in range(MAX_JSON_DEPTH + 1):
        level = [
            inner
            for outer in level
            if isinstance(outer, dict | list)
            for inner in (outer.values() if isinstance(outer, dict) else outer)
        ]
        if not level:
            return value
    raise _too_deep()


def _no_constant(name: str) -> float:
    raise http_error(400, f"the body holds {name}, which is not a JSON number", hint="send finite numbers")


def _finite_float(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise http_error(400, "the body holds a number that is too large", hint="send finite numbers")
    return number


def _too_deep() -> HTTPException:
    return http_error(
        400, f"the body is nested more than {MAX_JSON_DEPTH} levels deep", hint="send one flat JSON object"
    )


def validate(model: type[BaseModel], content: Any) -> Any:
    """`content` as a request model."""
    if not isinstance(content, dict):
        raise http_error(422, "the body is not a JSON object", hint='send {"…": …}')
    try:
        return model.model_validate(content)
    except ValidationError as error:
        errors = error.errors(include_url=False, include_context=False, include_input=False)
    raise validation_error(errors[0], model)


def validation_error(error: Mapping[str, Any], model: type[BaseModel] | None = None) -> HTTPException:
    """The first problem that pydantic finds as an HTTP error, which repeats no text of the client."""
    name, hint = ".".join(str(part) for part in error["loc"]), "GET /openapi.json describes every request"
    if len(name) > MAX_FIELD_CHARS:
        name = f"{name[: MAX_FIELD_CHARS - 1]}…"
    if error["type"] == "extra_forbidden" and model is not None:
        return http_error(422, f"no field is called {name!r}", hint=nearest(name, model.model_fields))
    if error["type"] == "missing":
        return http_error(422, f"the field {name!r} is missing", hint=hint)
    return http_error(422, f"{name}: {error['msg'][:200]}" if name else error["msg"][:200], hint=hint)


# --- the description of an endpoint in /openapi.json

_REASONS = {
    400: "The body is not JSON.",
    404: "The named run or part does not exist.",
    408: "The request arrives too slowly.",
    409: "The run cannot do this, or the settings contradict each other.",
    413: "The request is too large.",
    415: "The body is not declared as JSON.",
    422: "The request does not match its description.",
    429: "Too much is waiting; Retry-After says when to try again.",
    503: "The server is stopping or overloaded; Retry-After says when to try again.",
}
ERROR_SCHEMA = {"$ref": "#/components/schemas/ErrorResponse"}
_BODY_STATUSES = (400, 404, 408, 409, 413, 415, 422, 429, 503)


def error_responses(*statuses: int, reasons: Mapping[int, str] = _REASONS) -> dict[int | str, dict[str, Any]]:
    """The OpenAPI description of errors."""
    responses: dict[int | str, dict[str, Any]] = {
        status: {
            "description": reasons[status],
            "content": {"application/json": {"schema": ERROR_SCHEMA}},
        }
        for status in statuses
    }
    retry_after = {"schema": {"type": "integer", "minimum": 1}, "description": "seconds to wait"}
    for status in {429, 503} & responses.keys():
        responses[status]["headers"] = {"Retry-After": retry_after}
    return responses


router = APIRouter(
    route_class=JSONRoute,
    generate_unique_id_function=lambda route: route.name,
    responses=error_responses(503),
)


# --- models


@router.post(
    "/v1/classify", response_model=schema.ClassifyResponse, responses=error_responses(*_BODY_STATUSES)
)
async def classify(request: Request, query: schema.ClassifyRequest) -> Response:
    """Label texts."""
    name, labels = await _run(request, "classify", query.model, query.texts, query.explain)
    return JSONResponse({"model": name, "labels": labels})


@router.post("/v1/embed", response_model=schema.EmbedResponse, responses=error_responses(*_BODY_STATUSES))
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


@router.post(
    "/v1/attention", response_model=schema.AttentionResponse, responses=error_responses(*_BODY_STATUSES)
)
async def attention(request: Request, query: schema.AttentionRequest) -> Response:
    """See where each token of a text attends."""
    options = query.layer, query.attention_head
    name, results = await _run(request, "attention", query.model, [query.text], *options)
    return await asyncio.to_thread(JSONResponse, {"model": name, **results[0]})


@router.post(
    "/v1/translate", response_model=schema.TranslateResponse, responses=error_responses(*_BODY_STATUSES)
)
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
    future = model.batcher.submit((ability, *options), texts, costs, timeout)
    return model.name, await wait_for(future, timeout)


def _check_texts(limits: Limits, texts: Sequence[str]) -> None:
    if len(texts) > limits.max_texts:
        raise http_error(
            422,
            f"{len(texts):,} texts are too many: {limits.max_texts:,} are the most",
            hint="send several requests",
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
    responses={
        200: {"content": {NDJSON: {"schema": {"type": "string"}}}},
        **error_responses(*_BODY_STATUSES),
    },
)
async def generate(request: Request, query: schema.GenerateRequest) -> Response:
    """Continue a text."""
    state = state_of(request)
    limits = state.limits
    _check_texts(limits, [query.prompt])
    max_new_tokens = min(64, limits.max_new_tokens) if query.tokens is None else query.tokens
    if max_new_tokens > limits.max_new_tokens:
        raise http_error(
            422,
            f"{limits.max_new_tokens:,} new tokens are the most",
            hint="ask for fewer, then continue the result",
        )
    model = await _find(state, "generate", query.model)
    pieces = PieceQueue(limits.request_timeout)
    generated = model.worker.generate(query, max_new_tokens, model.name)
    pieces.job = model.batcher.stream(generated, pieces.put, limits.request_timeout)
    try:
        piece = await pieces.get()  # an error before the first piece gets its own status
        if query.stream:
            return PieceResponse(piece, pieces)
        last = piece
        while piece is not None:
            last, piece = piece, await pieces.get()
        return JSONResponse(last)
    except BaseException:
        pieces.job.cancel()
        raise


class PieceQueue:
    """The pieces of a stream job on their way from the worker's thread to the event loop."""

    job: StreamJob

    def __init__(self, timeout: float):
        self._loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[Any] = asyncio.Queue()
        self._deadline = self._loop.time() + timeout

    def put(self, piece: Any) -> None:
        """Add a piece from another thread."""
        try:
            self._loop.call_soon_threadsafe(self._queue.put_nowait, piece)
        except RuntimeError:  # the server has ended
            self.job.cancel()

    async def get(self) -> Any:
        """The next piece; None after the last one."""
        try:
            async with asyncio.timeout_at(self._deadline):
                piece = await self._queue.get()
        except TimeoutError:
            raise http_error(
                503, "the response took too long", hint="ask for fewer tokens", retry_after=1
            ) from None
        if isinstance(piece, BaseException):
            raise piece
        return piece


class PieceResponse(StreamingResponse):
    """A JSON line for each piece; an error on the way is the last line."""

    def __init__(self, first: Any, pieces: PieceQueue):
        super().__init__(self._lines(first, pieces), media_type=NDJSON)
        self._pieces = pieces

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the lines; a client that disconnects stops the job."""
        try:
            await self.stream_response(send)
        finally:
            self._pieces.job.cancel()

    @staticmethod
    async def _lines(first: Any, pieces: PieceQueue) -> AsyncIterator[bytes]:
        piece = first
        while piece is not None:
            yield json.dumps(piece, ensure_ascii=False, allow_nan=False).encode("utf-8") + b"\n"
            try:
                piece = await pieces.get()
            except (HeadstartError, HTTPException) as problem:
                error = as_http_error(problem) if isinstance(problem, HeadstartError) else problem
                yield json.dumps(error.detail, ensure_ascii=False).encode("utf-8") + b"\n"
                return


# --- plans


@router.post("/v1/plan", response_model=schema.PlanResponse, responses=error_responses(*_BODY_STATUSES))
async def plan(request: Request, query: schema.PlanRequest) -> Response:
    """Plan a run before it starts."""
    state = state_of(request)
    if state.queued_plans >= state.limits.max_queued_plans:
        raise http_error(429, "too many plans are waiting", hint="try again in a moment", retry_after=2)
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


@router.get("/v1/runs/{name}", response_model=schema.RunResponse, responses=error_responses(404, 422))
async def run(request: Request, name: Name, after: After = -1) -> Response:
    """Show one run with its learning curves."""
    about, progress = await asyncio.to_thread(_describe, state_of(request), name, after)
    return JSONResponse({**about, **{key: progress[key] for key in ("seconds_left", "steps", "evaluations")}})


def _describe(state: AppState, name: str, after: int = -1) -> tuple[dict[str, Any], dict[str, Any]]:
    run = state.registry.run(name)
    about, progress = state.registry.describe(run), run.progress.read(after)
    path = f"/v1/runs/{quote(name, safe='')}/report"
    if state.token is not None:
        path += f"?signature={state.sign_report(name)}"
    report = path if about.pop("has_report") else None
    is_finished = about["status"] == "finished"
    return {**about, "progress": 1.0 if is_finished else progress["progress"], "report": report}, progress


@router.get("/v1/runs/{name}/report", response_class=HTMLResponse, responses=error_responses(404, 422))
async def report(request: Request, name: Name) -> Response:
    """Show the report of a run or comparison."""
    body = await asyncio.to_thread(state_of(request).registry.run(name).report)
    return HTMLResponse(body, headers={"Content-Security-Policy": REPORT_POLICY})


# --- the server itself


@router.get(
    "/healthz",
    response_model=schema.Health,
    responses={
        503: {
            "content": {
                "application/json": {
                    "schema": {"anyOf": [ERROR_SCHEMA, {"$ref": "#/components/schemas/Health"}]}
                }
            }
        }
    },
)
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
