"""Every request and answer: one schema that checks what comes in and describes itself in /openapi.json."""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field


def _whole(text: str) -> str:
    """A text of whole characters: JSON can spell half of one."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise ValueError("holds half a character (a lone surrogate)") from None
    return text


def _number(value: Any) -> Any:
    """A whole number, also when it is written 3.0: to JSON they are the same."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


WHOLE = BeforeValidator(_number)
Text = Annotated[str, AfterValidator(_whole)]
Name = Annotated[str, Field(max_length=200), AfterValidator(_whole)]
Ability = Literal["classify", "embed", "generate", "translate", "attention"]


class Asked(BaseModel):
    """A request."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, protected_namespaces=())


class Answer(BaseModel):
    """An answer."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())


class ForModel(Asked):
    """A request to one of the runs."""

    model: Name | None = Field(None, description="the run that answers; the first that can unless told")


class ClassifyRequest(ForModel):
    """Texts to label."""

    texts: list[Text] = Field(min_length=1, description="the texts, each labelled by itself")
    explain: bool = Field(False, description="also tell each token's part in the label")


class Explanation(Answer):
    """Each token's part in the label: what its log-odds lose when the token is left out."""

    method: Literal["leave-one-out"]
    pieces: list[str] = Field(description="the tokens; ▁ is a space")
    parts: list[float] = Field(
        description="by how much the label's log-odds would fall without the token (nats); negative: would rise"
    )
    whole: float = Field(description="the label's log-odds for this text, less those for an empty one")


class Label(Answer):
    """A text's label."""

    label: str
    probability: float
    probabilities: dict[str, float] = Field(description="of every label")
    tokens: int = Field(description="tokens read, both ends marked")
    cut: bool = Field(description="whether the text was longer than the run reads")
    explanation: Explanation | None = None


class ClassifyAnswer(Answer):
    """Labels in the order of the texts."""

    model: str
    labels: list[Label]


class EmbedRequest(ForModel):
    """Texts to turn into vectors."""

    texts: list[Text] = Field(min_length=1)
    pool: Literal["mean", "cls", "last"] = Field(
        "mean", description="the mean over tokens, the first token's vector, or the last's"
    )


class EmbedAnswer(Answer):
    """Vectors in the order of the texts."""

    model: str
    width: int
    vectors: list[list[float]]
    cut: list[bool] = Field(description="whether each text was longer than the run reads")


class AttentionRequest(ForModel):
    """A text whose attention to look at; layers and attention heads are counted from 1."""

    text: Text
    layer: Annotated[int, Field(ge=1, le=1000), WHOLE] | None = None
    attention_head: Annotated[int, Field(ge=1, le=1000), WHOLE] | None = None


class AttentionMap(Answer):
    """One attention head's weights: a row for each token that looks, a column for each it looks at."""

    layer: int
    attention_head: int
    weights: list[list[float]]
    entropy: float = Field(description="mean over rows, in bits")
    distance: float = Field(description="mean distance of a look, in tokens")


class AttentionMaps(Answer):
    """The weights of several attention heads over the same tokens."""

    queries: list[str] = Field(description="tokens that look; ▁ is a space")
    keys: list[str] = Field(description="tokens that are looked at")
    seen: list[list[int]] = Field(description="1 where a query may read a key")
    maps: list[AttentionMap]


class AttentionAnswer(AttentionMaps):
    """Where each token looks."""

    model: str
    cut: bool


class GenerateRequest(ForModel):
    """A text to go on with."""

    prompt: Text = ""
    tokens: Annotated[int, Field(ge=1), WHOLE] | None = Field(
        None, description="new tokens at most; 64 unless told, or the server's bound where that is less"
    )
    temperature: float = Field(0.8, ge=0, le=10, description="0 = the likeliest token each time")
    top_k: Annotated[int, Field(ge=1, le=1_000_000), WHOLE] | None = Field(
        None, description="choose among this many tokens"
    )
    top_p: float | None = Field(
        None, gt=0, le=1, description="choose among tokens that hold this much probability; 0.95 unless told"
    )
    seed: Annotated[int, Field(ge=0, le=2**31 - 1), WHOLE] = Field(
        0, description="the same seed gives the same text"
    )
    stream: bool = Field(True, description="a line for each piece as it comes, or one answer at the end")


class GenerateAnswer(Answer):
    """The new text; the last line of a stream, after lines {"text": …} that each hold what came next."""

    model: str
    text: str = Field(description="the new text, without the prompt")
    tokens: int = Field(description="new tokens")
    reason: Literal["end", "length"] = Field(description="the text came to its end, or to the bound")
    cut: bool = Field(description="whether only the end of the prompt was read")


class TranslateRequest(ForModel):
    """Texts to translate."""

    texts: list[Text] = Field(min_length=1)
    attention: bool = Field(False, description="also tell where each new token looks in the source")


class Translation(Answer):
    """One text in the other language."""

    text: str
    cut: bool
    attention: AttentionMaps | None = None


class TranslateAnswer(Answer):
    """Translations in the order of the texts."""

    model: str
    translations: list[Translation]


class PlanRequest(Asked):
    """A run to plan; what is not given is the preset's own."""

    preset: str = Field("tiny", max_length=40)
    objective: str | None = Field(None, max_length=40)
    gpu: str | None = Field(None, max_length=80, description="a device by name; without it, all of them")
    classes: Annotated[int, Field(ge=2, le=100_000), WHOLE] | None = None
    vocabulary: Annotated[int, Field(ge=8, le=10_000_000), WHOLE] | None = None
    batch: Annotated[int, Field(ge=1, le=1_000_000), WHOLE] | None = None
    length: Annotated[int, Field(ge=2, le=1_000_000), WHOLE] | None = None
    tokens: Annotated[int, Field(ge=1, le=10**15), WHOLE] | None = Field(
        None, description="tokens of the text to be read"
    )
    epochs: float | None = Field(None, gt=0, le=10**6)
    price: float | None = Field(None, ge=0, le=10**6, description="of the device for an hour")
    precision: Literal["auto", "float32", "bfloat16"] | None = None
    optimizer: Literal["adamw", "adam", "muon"] | None = None
    layers: Annotated[int, Field(ge=1, le=1000), WHOLE] | None = None
    width: Annotated[int, Field(ge=2, le=100_000), WHOLE] | None = None
    attention_heads: Annotated[int, Field(ge=1, le=1000), WHOLE] | None = None
    feed_forward: Annotated[int, Field(ge=1, le=1_000_000), WHOLE] | None = None


class PlanAnswer(BaseModel):
    """What `headstart plan --json` prints."""

    model_config = ConfigDict(extra="allow")
    parameters: dict[str, Any]
    flops: dict[str, Any]
    memory: dict[str, Any]
    time: dict[str, Any]
    verdict: dict[str, Any]
    devices: list[dict[str, Any]]


class Model(Answer):
    """A run that answers."""

    name: str
    can: list[Ability]
    objective: str
    body: str
    classes: list[str]
    parameters: int
    layers: int
    attention_heads: int
    width: int
    length: int = Field(description="tokens read of a text at most")
    precision: str = Field(description="in what its matrices are multiplied when texts are read")


class ModelsAnswer(Answer):
    """The runs that answer, in the order in which they were given."""

    models: list[Model]


class Run(Answer):
    """A run or a comparison by its folder, finished or not."""

    name: str
    kind: Literal["pretrain", "finetune", "compare"]
    status: Literal["running", "finished"]
    objective: str | None
    progress: float | None = Field(description="of the budget, from 0 to 1")
    report: str | None = Field(description="where its report is, once there is one")


class RunsAnswer(Answer):
    """All runs, in the order in which they were given."""

    runs: list[Run]


class StepPoint(Answer):
    """Training at one step, a mean over the few before it."""

    step: int
    epoch: float | None
    progress: float | None
    loss: float | None
    accuracy: float | None
    learning_rate: float | None
    tokens_per_second: float | None


class EvaluationPoint(Answer):
    """The marks on held-out data at one step."""

    step: int
    epoch: float | None
    values: dict[str, float]


class RunAnswer(Run):
    """One run with its curves."""

    seconds_left: float | None
    steps: list[StepPoint]
    evaluations: list[EvaluationPoint]


class Health(Answer):
    """Whether requests are welcome."""

    status: Literal["ready", "stopping"]


class Problem(Answer):
    """Why a request was refused, and what to do."""

    error: str
    hint: str
