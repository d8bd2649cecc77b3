"""The limits of a server, its requests and responses (described in /openapi.json), and its HTTP errors."""

import math
from typing import Annotated, Any, Literal

from fastapi import HTTPException
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from headstart.config import Section
from headstart.errors import HeadstartError, RunError


class Limits(Section):
    """The limits of one server."""

    max_body_bytes: int = Field(2**20, ge=1024, description="bytes in the body of a request")
    max_texts: int = Field(256, ge=1, description="texts in a request")
    max_chars: int = Field(50_000, ge=16, description="characters in a text")
    max_explained_tokens: int = Field(256, ge=4, description="tokens in a text that is explained")
    max_attention_values: int = Field(1_000_000, ge=16, description="attention weights in a response")
    max_new_tokens: int = Field(512, ge=1, description="tokens generated for a prompt")
    max_streams: int = Field(8, ge=1, description="texts that one model generates at the same time")
    max_queued_plans: int = Field(8, ge=1, description="plans that wait to be computed")
    max_batch_tokens: int = Field(8192, ge=1, description="tokens in a batch")
    max_queued_tokens: int = Field(262_144, ge=1024, description="tokens that wait for one model")
    max_concurrent_requests: int = Field(512, ge=1, description="requests in flight")
    max_connections: int = Field(768, ge=1, description="open connections")
    request_timeout: float = Field(30.0, gt=0, description="seconds until a request is answered or refused")
    client_timeout: float = Field(
        10.0, gt=0, description="seconds for a client to send its request, or to accept part of a response"
    )
    shutdown_timeout: float = Field(
        30.0, gt=0, description="seconds for requests in flight to finish when the server stops"
    )


class ServerConfig(Section):
    """The settings of one server."""

    limits: Limits = Limits()


# --- errors


def http_error(status: int, problem: str, *, hint: str = "", retry_after: float = 1) -> HTTPException:
    """An HTTP error whose body is `{"error": problem, "hint": hint}`."""
    headers = {}
    if status in (429, 503):
        headers["Retry-After"], hint = str(max(1, math.ceil(retry_after))), hint or "try again in a moment"
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    if status in (408, 413, 415):  # the rest of the body is not worth waiting for
        headers["Connection"] = "close"
    return HTTPException(status, {"error": problem, "hint": hint}, headers)


def as_http_error(error: HeadstartError) -> HTTPException:
    """A problem with a run (409) or with a text or setting (422) as an HTTP error."""
    return http_error(409 if isinstance(error, RunError) else 422, error.problem, hint=error.hint)


# --- requests


def _integral(value: Any) -> Any:
    """An integer, also when it is written 3.0: JSON does not distinguish them."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


INTEGRAL = BeforeValidator(_integral)
Ability = Literal["classify", "embed", "generate", "translate", "attention"]
Texts = Annotated[list[str], Field(min_length=1, description="the texts; each is processed by itself")]
Size = Annotated[int, Field(ge=1, le=1_000_000), INTEGRAL]
Layers = Annotated[int, Field(ge=1, le=1000), INTEGRAL]


STRICT = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False, protected_namespaces=())


class ModelRequest(BaseModel):
    """A request to one of the served models: strict types, no unknown fields."""

    model_config = STRICT
    model: Annotated[str, Field(max_length=200)] | None = Field(
        None, description="the model to use; default: the first that can"
    )


class ClassifyRequest(ModelRequest):
    """Texts to classify."""

    texts: Texts
    explain: bool = Field(False, description="also attribute the label to the tokens")


class EmbedRequest(ModelRequest):
    """Texts to embed."""

    texts: Texts
    pool: Literal["mean", "cls", "last"] = Field("mean", description="mean over tokens, first token, or last token")


class AttentionRequest(ModelRequest):
    """A text whose attention to return; layers and attention heads are counted from 1."""

    text: str
    layer: Layers | None = None
    attention_head: Layers | None = None


class GenerateRequest(ModelRequest):
    """A prompt to continue."""

    prompt: str = ""
    tokens: Annotated[int, Field(ge=1), INTEGRAL] | None = Field(
        None, description="maximum number of new tokens; default: 64, or the server's limit if that is lower"
    )
    temperature: float = Field(0.8, ge=0, le=10, description="0 = greedy decoding")
    top_k: Size | None = Field(None, description="sample from the k most probable tokens")
    top_p: float | None = Field(
        None, gt=0, le=1, description="sample from the most probable tokens of this total probability; default: 0.95"
    )
    seed: Annotated[int, Field(ge=0, le=2**31 - 1), INTEGRAL] = Field(0, description="random seed")
    stream: bool = Field(True, description="stream one JSON line for each new piece, or send one response at the end")


class TranslateRequest(ModelRequest):
    """Texts to translate."""

    texts: Texts
    attention: bool = Field(False, description="also return the cross-attention of each new token")


class PlanRequest(BaseModel):
    """A run to plan; omitted fields take the value of the preset."""

    model_config = STRICT
    preset: str = Field("tiny", max_length=40)
    objective: str | None = Field(None, max_length=40)
    gpu: str | None = Field(None, max_length=80, description="name of a device; default: all devices")
    classes: Annotated[int, Field(ge=2, le=100_000), INTEGRAL] | None = None
    vocabulary: Annotated[int, Field(ge=8, le=10_000_000), INTEGRAL] | None = None
    batch: Size | None = None
    length: Annotated[int, Field(ge=2, le=1_000_000), INTEGRAL] | None = None
    tokens: Annotated[int, Field(ge=1, le=10**15), INTEGRAL] | None = Field(None, description="training tokens")
    epochs: float | None = Field(None, gt=0, le=10**6)
    price: float | None = Field(None, ge=0, le=10**6, description="price of one hour on the device")
    precision: Literal["auto", "float32", "bfloat16"] | None = None
    optimizer: Literal["adamw", "adam", "muon"] | None = None
    layers: Layers | None = None
    width: Annotated[int, Field(ge=2, le=100_000), INTEGRAL] | None = None
    attention_heads: Layers | None = None
    feed_forward: Size | None = None


# --- responses


class ResponseModel(BaseModel):
    """A response."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())


class Explanation(ResponseModel):
    """Leave-one-out attribution: how much the log-odds of the label change without each token."""

    method: Literal["leave-one-out"] = "leave-one-out"
    pieces: list[str] = Field(description="the tokens; ▁ is a space")
    parts: list[float] = Field(
        description="decrease of the log-odds (nats) when the token is left out; negative: an increase"
    )
    whole: float = Field(description="log-odds of the label for this text minus those for an empty text")


class Label(ResponseModel):
    """A text's label."""

    label: str
    probability: float
    probabilities: dict[str, float] = Field(description="of every label")
    tokens: int = Field(description="number of input tokens, special tokens included")
    cut: bool = Field(description="whether the text was truncated")
    explanation: Explanation | None = None


class ClassifyResponse(ResponseModel):
    """Labels in the order of the texts."""

    model: str
    labels: list[Label]


class EmbedResponse(ResponseModel):
    """Vectors in the order of the texts."""

    model: str
    width: int
    vectors: list[list[float]]
    cut: list[bool] = Field(description="whether each text was truncated")


class AttentionMap(ResponseModel):
    """The weights of one attention head: a row for each query, a column for each key."""

    layer: int
    attention_head: int
    weights: list[list[float]]
    entropy: float = Field(description="mean over rows, in bits")
    distance: float = Field(description="mean attention distance, in tokens")


class AttentionMaps(ResponseModel):
    """The weights of several attention heads over the same tokens."""

    queries: list[str] = Field(description="query tokens; ▁ is a space")
    keys: list[str] = Field(description="key tokens")
    seen: list[list[int]] = Field(description="attention mask: 1 where a query may attend to a key")
    maps: list[AttentionMap]


class AttentionResponse(AttentionMaps):
    """Attention weights of a text."""

    model: str
    cut: bool


class GenerateResponse(ResponseModel):
    """The generated text; in a stream, the last line, after one line {"text": …} for each new piece."""

    model: str
    text: str = Field(description="the generated text, without the prompt")
    tokens: int = Field(description="number of new tokens")
    reason: Literal["end", "length"] = Field(description="stopped at the end-of-text token, or at the maximum length")
    cut: bool = Field(description="whether the beginning of the prompt was truncated")


class Translation(ResponseModel):
    """The translation of one text."""

    text: str
    cut: bool
    attention: AttentionMaps | None = None


class TranslateResponse(ResponseModel):
    """Translations in the order of the texts."""

    model: str
    translations: list[Translation]


class PlanResponse(BaseModel):
    """What `headstart plan --json` prints."""

    model_config = ConfigDict(extra="allow")
    parameters: dict[str, Any]
    flops: dict[str, Any]
    memory: dict[str, Any]
    time: dict[str, Any]
    verdict: dict[str, Any]
    devices: list[dict[str, Any]]


class Model(ResponseModel):
    """A model that is ready."""

    name: str
    can: list[Ability]
    objective: str
    body: str
    classes: list[str]
    parameters: int
    layers: int
    attention_heads: int
    width: int
    length: int = Field(description="maximum number of input tokens")
    precision: str = Field(description="precision of the matrix products")


class ModelsResponse(ResponseModel):
    """The models that are ready, in the order of the command line."""

    models: list[Model]


class Run(ResponseModel):
    """A run or a comparison, finished or not."""

    name: str
    kind: Literal["pretrain", "finetune", "compare"]
    status: Literal["running", "finished"]
    objective: str | None
    progress: float | None = Field(description="fraction of the training budget, 0 to 1")
    report: str | None = Field(description="path of its report, once it is written")


class RunsResponse(ResponseModel):
    """All runs, in the order of the command line."""

    runs: list[Run]


class StepPoint(ResponseModel):
    """Training metrics at one step, averaged over the steps since the last log entry."""

    step: int
    epoch: float | None
    progress: float | None
    loss: float | None
    accuracy: float | None
    learning_rate: float | None
    tokens_per_second: float | None


class EvaluationPoint(ResponseModel):
    """Metrics on the evaluation data at one step."""

    step: int
    epoch: float | None
    values: dict[str, float]


class RunResponse(Run):
    """One run with its learning curves."""

    seconds_left: float | None
    steps: list[StepPoint]
    evaluations: list[EvaluationPoint]


class Health(ResponseModel):
    """Whether the server accepts requests."""

    status: Literal["ready", "stopping"]


class ErrorResponse(ResponseModel):
    """Why a request failed, and what to do."""

    error: str
    hint: str
