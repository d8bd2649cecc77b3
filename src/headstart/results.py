"""Result dataclasses: frozen and JSON-able. A number comes with its count, its seeds and its interval."""

import math
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, TypeAdapter

# A number that is read from JSON, which writes NaN as null.
Number = Annotated[float | int, BeforeValidator(lambda value: math.nan if value is None else value)]


@dataclass(frozen=True)
class Interval:
    """A mean with its spread and its 95 % interval."""

    mean: Number
    low: Number
    high: Number
    spread: Number  # standard deviation over seeds; 0 for one seed


@dataclass(frozen=True)
class CurvePoint:
    """Validation scores after `epoch` epochs; epoch 0 is before any step."""

    epoch: float
    step: int
    accuracy: float
    macro_f1: float
    loss: float


@dataclass(frozen=True)
class TransferReport:
    """Weights taken from the base, weights that are new, weights of the base that are not used (name -> size)."""

    reused: dict[str, int]
    initialized: dict[str, int]
    dropped: dict[str, int]


@dataclass(frozen=True)
class Score:
    """How well a classifier predicts; `leak_free_accuracy` leaves out texts that any training stage has seen."""

    accuracy: Number
    macro_f1: Number
    loss: Number
    calibration_error: Number  # expected calibration error, 15 equal-width bins
    count: int
    correct: int
    leaked: int
    leak_free_accuracy: Number  # NaN where every text was seen
    leak_free_count: int
    per_class: dict[str, dict[str, float]]  # label -> precision, recall, f1, count
    split: str = ""
    skipped: int = 0  # rows that could not be used


@dataclass(frozen=True, kw_only=True)
class TaskScore(Score):
    """How well a model does another task than one class a text; a metric that the task has not is None.

    `accuracy` is over texts whose labels are all correct, or over tokens, whose number is then `count`; NaN for numbers.
    """

    task: str
    metric: str  # that decides between models
    intervals: dict[str, Interval]  # by metric: 95 % over new texts
    texts: int
    micro_f1: float | None = None
    map: float | None = None  # mean average precision over the labels
    subset_accuracy: float | None = None
    mae: float | None = None
    rmse: float | None = None
    r2: float | None = None
    spearman: float | None = None
    pearson: float | None = None
    quadratic_kappa: float | None = None
    span_f1: float | None = None
    span_precision: float | None = None
    span_recall: float | None = None
    token_accuracy: float | None = None

    @property
    def value(self) -> float:
        """The metric that decides between models; an unknown one is the worst."""
        found = getattr(self, self.metric)
        return float("-inf") if found is None or found != found else float(found)


@dataclass(frozen=True)
class LanguageScore:
    """How well a language model predicts text."""

    loss: float  # nats per label
    perplexity: float
    bits_per_byte: float | None  # None for objectives that do not predict every token
    accuracy: float
    count: int
    documents: int
    leaked: int
    skipped: int = 0  # rows that could not be used


@dataclass(frozen=True)
class TranslationScore:
    """How close translations come to their references, counted over all of them at once; from 0 to 100."""

    bleu: float  # cased, detokenised text
    chrf: float | None
    ter: float | None  # an error rate: lower is better, and it may pass 100
    bleu_lowercased_tokenised: float | None  # comparable with tables that score lower-cased, Moses-tokenised text
    intervals: dict[str, Interval]  # by measure: 95 % over new sentences
    signatures: dict[str, str]  # by measure: how it was counted, as sacreBLEU writes it
    left_out: dict[str, str]  # measure -> why it has no number
    count: int
    empty: int  # translations without a word
    hypotheses_cut: int = 0  # translations that were stopped at the length limit
    beam: int | None = None  # hypotheses that the search holds at once; 1 = greedy
    loss: float | None = None  # nats a token of the references, each with the true ones before it
    perplexity: float | None = None
    accuracy: float | None = None
    leaked: int = 0  # sources that any training stage has seen
    leak_free_bleu: float | None = None  # over the others
    leak_free_count: int = 0
    split: str = ""
    skipped: int = 0  # rows that could not be used


@dataclass(frozen=True)
class TranslationTest:
    """One system's translations set against another's, of the same sentences."""

    measure: str
    system: str
    against: str
    difference: Interval  # in points of the measure
    p_value: float
    verdict: Literal["better", "worse", "no difference shown"]


@dataclass(frozen=True)
class SeedResult:
    """One trained model of an arm and what it answered on the scored split."""

    seed: int
    accuracy: float
    macro_f1: float
    loss: float
    calibration_error: float
    leak_free_accuracy: float
    seconds: float
    predictions: list[int]  # one class index a scored text
    confidences: list[float]  # probability of the predicted class
    curve: list[CurvePoint] = field(default_factory=list)


ArmKind = Literal["classical", "scratch", "frozen", "fine-tuned", "ensemble"]


@dataclass(frozen=True)
class VariantResult:
    """One way to train, over all seeds, at one label budget."""

    name: str
    kind: ArmKind
    labels: int
    results: list[SeedResult]
    accuracy: Interval
    macro_f1: Interval
    leak_free_accuracy: Interval
    calibration_error: Interval
    base: str = ""
    control: str = ""  # the arm that differs in one thing only: from scratch, or for an ensemble its members
    transfer: TransferReport | None = None
    epochs_to_target: list[float | None] = field(default_factory=list)  # per seed; None = never


@dataclass(frozen=True)
class PairedTest:
    """One arm set against another on the same texts and seeds."""

    arm: str
    against: str
    labels: int
    difference: Interval
    p_value: float
    verdict: Literal["better", "worse", "no difference shown"]


@dataclass(frozen=True)
class Mistake:
    """A scored text that the best neural arm gets most confidently wrong."""

    arm: str
    text: str
    label: str
    predicted: str
    confidence: float
    origin: str


@dataclass(frozen=True)
class Provenance:
    """Where a number comes from."""

    command: str
    commit: str
    versions: dict[str, str]
    machine: str
    started: str
    seconds: float
    seeds: list[int]


@dataclass(frozen=True)
class Comparison:
    """Everything a comparison found, enough to draw and to judge it."""

    data: str
    scored_split: str
    scored_count: int
    classes: list[str]
    truth: list[int]
    label_budgets: list[int]
    epochs: float
    target_accuracy: float
    arms: list[VariantResult]
    tests: list[PairedTest]
    mistakes: list[Mistake]
    audit: dict[str, Any]
    settings: dict[str, Any]
    notes: list[str]
    provenance: Provenance

    def arm(self, name: str, labels: int | None = None) -> VariantResult:
        """The arm called `name` at a label budget, the largest by default."""
        budget = max(self.label_budgets) if labels is None else labels
        return next(arm for arm in self.arms if arm.name == name and arm.labels == budget)


def plain(result: Any) -> Any:
    """A result as JSON-able values."""
    return asdict(result)


def comparison_from(content: dict[str, Any]) -> Comparison:
    """The comparison that was written as JSON, in which NaN is null."""
    return TypeAdapter(Comparison).validate_python(with_nan(content))


def with_nan(value: Any, name: str = "") -> Any:
    """A result as it was before JSON, which writes NaN as null."""
    if name in ("audit", "settings", "epochs_to_target"):  # there None means none
        return value
    if isinstance(value, dict):
        return {key: with_nan(inner, key) for key, inner in value.items()}
    if isinstance(value, list):
        return [with_nan(inner, name) for inner in value]
    return float("nan") if value is None and name != "transfer" else value
