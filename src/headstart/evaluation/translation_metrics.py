"""Metrics of translations by sacreBLEU (Post, 2018): scores with signatures and intervals, and tests between two systems."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any

import numpy as np
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.ter import TER
from sacrebleu.significance import PairedTest, Result

from headstart.data.parallel import language_key
from headstart.errors import ConfigError, DataError, pick
from headstart.evaluation.statistics import verdict
from headstart.results import Interval, TranslationScore, TranslationTest

RESAMPLES = 1_000  # for an interval
SHUFFLES = 10_000  # for a p-value
SEED = 0
# Scripts without spaces between words are split into characters, Chinese as sacreBLEU advises; see the signature.
TOKENIZERS = {"zh": "zh", "ja": "char", "th": "char", "km": "char", "lo": "char", "my": "char", "dz": "char"}
TOKENISED = "bleu_lowercased_tokenised"


@dataclass(frozen=True)
class Measure:
    """A metric of sacreBLEU for a language, and the preparation of texts for it."""

    metric: Callable[[str], Any]
    prepare: Callable[[Sequence[str], str], Sequence[str]] = lambda texts, language: texts
    lower_is_better: bool = False
    needs: str = ""  # a package of the extra `translate`
    before: str = ""  # what `prepare` does, for the signature

    def absence(self) -> str:
        """Why the measure cannot be computed here, or ""."""
        if not self.needs or find_spec(self.needs):
            return ""
        return f"the package {self.needs} is not installed: pip install 'headstart[translate]'"

    def signature(self, metric: Any, language: str) -> str:
        """The signature of a score, after the metric has read its references."""
        before = f"|before:{self.before}-{_base(language)},{self.needs}-{version(self.needs)}" if self.before else ""
        return f"{metric.get_signature()}{before}"


def _base(language: str) -> str:
    return language_key(language).split("_")[0]


@lru_cache(maxsize=4)
def _moses_tokenizer(language: str) -> Any:
    from sacremoses import MosesTokenizer

    return MosesTokenizer(lang=language)


def _lowercased_tokenised(texts: Sequence[str], language: str) -> list[str]:
    tokenizer = _moses_tokenizer(_base(language))
    return [tokenizer.tokenize(text.lower(), escape=False, return_str=True) for text in texts]


def _bleu(language: str) -> Any:
    return BLEU(tokenize=TOKENIZERS.get(_base(language), "13a"), force=True)


MEASURES: dict[str, Measure] = {
    "bleu": Measure(_bleu),
    "chrf": Measure(lambda language: CHRF()),
    "ter": Measure(lambda language: TER(), lower_is_better=True),
    TOKENISED: Measure(
        lambda language: BLEU(tokenize="none", lowercase=True, force=True),
        _lowercased_tokenised,
        needs="sacremoses",
        before="lowercase,moses-without-escapes",
    ),
}


def score_translations(
    hypotheses: Sequence[str],
    references: Sequence[str],
    language: str,
    *,
    measures: Sequence[str] = tuple(MEASURES),
    hypotheses_cut: int = 0,
    split: str = "",
    skipped: int = 0,
) -> TranslationScore:
    """The scores of one system's translations into `language`, BLEU always among them.

    TER searches for moved phrases and takes many times as long as the others together.
    """
    _require_same_length(hypotheses, references)
    wanted = {name: pick(MEASURES, name, "measure") for name in dict.fromkeys(["bleu", *measures])}
    left_out = {name: "not requested" for name in MEASURES if name not in wanted}
    left_out |= {name: why for name, measure in wanted.items() if (why := measure.absence())}
    values: dict[str, float] = {}
    intervals, signatures = {}, {}
    for name, measure in wanted.items():
        if name not in left_out:
            metric = measure.metric(language)
            counts = _counts(metric, *(measure.prepare(texts, language) for texts in (hypotheses, references)))
            values[name] = _score(metric, counts.sum(axis=0))
            intervals[name] = _interval(values[name], _bootstrap_scores(metric, [counts])[0], len(hypotheses))
            signatures[name] = measure.signature(metric, language)
    return TranslationScore(
        bleu=values["bleu"],
        chrf=values.get("chrf"),
        ter=values.get("ter"),
        bleu_lowercased_tokenised=values.get(TOKENISED),
        intervals=intervals,
        signatures=signatures,
        left_out=left_out,
        count=len(hypotheses),
        empty=sum(not text.strip() for text in hypotheses),
        hypotheses_cut=hypotheses_cut,
        split=split,
        skipped=skipped,
    )


def compare_translations(
    system: tuple[str, Sequence[str]],
    against: tuple[str, Sequence[str]],
    references: Sequence[str],
    language: str,
    *,
    measure: str = "bleu",
) -> TranslationTest:
    """A comparison of two systems, each a name with its translations of the same sentences.

    The interval comes from the paired bootstrap (Koehn, 2004), the p-value from approximate randomisation (Riezler and
    Maxwell, 2005). As for classifiers, the verdict is "better" only when both agree.
    """
    kind = pick(MEASURES, measure, "measure")
    if why := kind.absence():
        raise ConfigError(f"{measure} cannot be computed: {why}", hint="choose another measure, or install the package")
    for _, hypotheses in (system, against):
        _require_same_length(hypotheses, references)
    metric = kind.metric(language)
    texts, other_texts, truths = (kind.prepare(texts, language) for texts in (system[1], against[1], references))
    sides = [_counts(metric, each, truths) for each in (texts, other_texts)]
    first, second = (_score(metric, counts.sum(axis=0)) for counts in sides)
    draws = _bootstrap_scores(metric, sides)
    difference = _interval(first - second, draws[0] - draws[1], len(references))
    p_value = _p_value(metric, other_texts, texts, truths) if first != second else 1.0
    found = verdict(difference, p_value, lower_is_better=kind.lower_is_better)
    return TranslationTest(measure, system[0], against[0], difference, p_value, found)


def _require_same_length(hypotheses: Sequence[str], references: Sequence[str]) -> None:
    if len(hypotheses) != len(references):
        raise DataError(
            f"there are {len(hypotheses):,} translations and {len(references):,} references",
            hint="line n of one must belong to line n of the other",
        )
    if not references:
        raise DataError("there is nothing to score", hint="give one translation or more with its reference")


def _counts(metric: Any, hypotheses: Sequence[str], references: Sequence[str]) -> np.ndarray:
    """The statistics that sacreBLEU extracts from each sentence, (sentences, numbers)."""
    return np.array(metric._extract_corpus_statistics(hypotheses, [references]), dtype=np.float64)


def _score(metric: Any, counts: np.ndarray) -> float:
    """The score of summed counts; they are whole numbers, as sacreBLEU's arithmetic expects."""
    return float(metric._compute_score_from_stats([int(value) for value in counts]).score)


def _p_value(metric: Any, baseline: Sequence[str], system: Sequence[str], references: Sequence[str]) -> float:
    """The p-value of sacreBLEU's approximate randomisation test."""
    systems = [("baseline", baseline), ("system", system)]
    _, table = PairedTest(systems, {"measure": metric}, [references], "ar", n_samples=SHUFFLES)()
    (result,) = (rows[1] for name, rows in table.items() if name != "System")
    assert isinstance(result, Result)
    assert result.p_value is not None
    return float(result.p_value)


def _bootstrap_scores(metric: Any, sides: Sequence[np.ndarray]) -> np.ndarray:
    """The scores of each side on sentences drawn with replacement, the same ones for all sides; (sides, RESAMPLES).

    sacreBLEU resamples two systems alike too, but returns no interval of their difference.
    """
    rng, sentences = np.random.default_rng(SEED), len(sides[0])
    scores = np.empty((len(sides), RESAMPLES))
    for draw in range(RESAMPLES):
        chosen = rng.integers(sentences, size=sentences)
        scores[:, draw] = [_score(metric, counts[chosen].sum(axis=0)) for counts in sides]
    return scores


def _interval(value: float, draws: np.ndarray, sentences: int) -> Interval:
    """A value with the middle 95 % of its draws; the bounds are unknown for a single sentence."""
    low, high = np.quantile(draws, [0.025, 0.975]) if sentences > 1 else (np.nan, np.nan)
    return Interval(value, float(min(low, value)), float(max(high, value)), 0.0)
