"""What a person states about a base for its card; the rest of the card is taken from the run."""

from pydantic import Field

from headstart.config import Section


class DataFact(Section):
    """A text that went in."""

    name: str
    licence: str
    words: str = ""


class ScoreFact(Section):
    """A score with its interval and its provenance."""

    task: str
    value: float
    low: float
    high: float
    labels: int | None = None  # 0 = none was used, None = all there are
    seeds: int = 1
    metric: str = "accuracy"


class Facts(Section):
    """Every key may be left out; the card says so then."""

    title: str = ""
    language: str = ""
    note: str = ""
    compute: str = ""
    data: list[DataFact] = Field(default_factory=list)
    scores: list[ScoreFact] = Field(default_factory=list)
    not_for: list[str] = Field(default_factory=list)
