"""Our scores are sacreBLEU's, and tests between systems hold what they say."""

import json
import math
import random
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sacrebleu.significance import PairedTest, estimate_ci

from headstart.errors import ConfigError, DataError
from headstart.evaluation import translation_metrics
from headstart.evaluation.translation_metrics import (
    MEASURES,
    TOKENISED,
    _bootstrap_scores,
    _counts,
    compare_translations,
    score_translations,
)
from headstart.results import plain

WORDS = ["the", "a", "dog", "cat", "sees", "bites", "don't", "house", "(big)", "small", "1,000", "never", "Mr."]
CHEAP = ("bleu", "chrf")


def sentences(count, seed=0, words=WORDS):
    rng = random.Random(seed)
    return [" ".join(rng.choices(words, k=rng.randint(4, 14))).capitalize() + "." for _ in range(count)]


def damaged(texts, share, seed):
    """The texts with a share of their words replaced."""
    rng = random.Random(seed)
    return [" ".join(rng.choice(WORDS) if rng.random() < share else word for word in text.split()) for text in texts]


@pytest.fixture(autouse=True)
def _few_draws(monkeypatch):
    monkeypatch.setattr(translation_metrics, "RESAMPLES", 100)
    monkeypatch.setattr(translation_metrics, "SHUFFLES", 500)


REFERENCES = sentences(120)
GOOD, BAD = damaged(REFERENCES, 0.2, 1), damaged(REFERENCES, 0.35, 2)


def test_a_score_worked_out_by_hand():
    found = score_translations(["a b c d e"], ["a b c d f"], "en")
    assert found.bleu == pytest.approx(100 * (4 / 5 * 3 / 4 * 2 / 3 * 1 / 2) ** 0.25)
    assert found.ter == pytest.approx(20.0)
    assert found.bleu_lowercased_tokenised == pytest.approx(found.bleu)
    # of n letters each n-gram order loses the one at the end; F is their mean precision, which equals recall here
    assert found.chrf == pytest.approx(100 * np.mean([4 / 5, 3 / 4, 2 / 3, 1 / 2, 0 / 1]))
    assert math.isnan(found.intervals["bleu"].low), "one sentence tells nothing of others"


def test_a_short_translation_pays_for_its_brevity():
    found = score_translations(["a b c d"], ["a b c d e"], "en", measures=())
    assert found.bleu == pytest.approx(100 * math.exp(1 - 5 / 4))


def test_scores_and_signatures_are_those_of_the_sacrebleu_command(tmp_path):
    for name, texts in (("hypotheses", GOOD), ("references", REFERENCES)):
        (tmp_path / name).write_text("".join(f"{text}\n" for text in texts))
    words = [str(tmp_path / "references"), "-i", str(tmp_path / "hypotheses"), "-m", "bleu", "chrf", "ter"]
    done = subprocess.run(
        [sys.executable, "-m", "sacrebleu", *words, "-w", "6"], capture_output=True, text=True, check=True
    )
    found = score_translations(GOOD, REFERENCES, "en")
    for ours, theirs in zip(("bleu", "chrf", "ter"), json.loads(done.stdout), strict=True):
        assert getattr(found, ours) == pytest.approx(theirs["score"], abs=1e-6)
        assert found.signatures[ours] == theirs["signature"]


def test_lower_cased_tokenised_bleu_is_that_of_text_prepared_by_hand():
    import sacrebleu
    from sacremoses import MosesTokenizer

    def prepared(texts):
        tokenizer = MosesTokenizer(lang="en")
        return [tokenizer.tokenize(text.lower(), escape=False, return_str=True) for text in texts]

    found = score_translations([text.upper() for text in GOOD], REFERENCES, "en", measures=[TOKENISED])
    theirs = sacrebleu.corpus_bleu(prepared(GOOD), [prepared(REFERENCES)], tokenize="none", force=True)
    assert found.bleu_lowercased_tokenised == pytest.approx(theirs.score)
    assert found.bleu < found.bleu_lowercased_tokenised
    assert "case:lc" in found.signatures[TOKENISED]
    assert "tok:none" in found.signatures[TOKENISED]
    assert "before:lowercase,moses-without-escapes-en,sacremoses-" in found.signatures[TOKENISED]


def test_what_is_left_out_is_named_with_its_reason(monkeypatch):
    found = score_translations(GOOD, REFERENCES, "en", measures=())
    assert found.left_out == {"chrf": "not requested", "ter": "not requested", TOKENISED: "not requested"}
    assert found.chrf is found.ter is found.bleu_lowercased_tokenised is None
    monkeypatch.setattr(translation_metrics, "find_spec", lambda name: None)
    found = score_translations(GOOD, REFERENCES, "en", measures=[*CHEAP, TOKENISED])
    assert "headstart[translate]" in found.left_out[TOKENISED]
    assert found.bleu_lowercased_tokenised is None
    with pytest.raises(ConfigError, match="not installed"):
        compare_translations(("a", GOOD), ("b", BAD), REFERENCES, "en", measure=TOKENISED)


@pytest.mark.parametrize(("language", "tokenizer"), [("en", "13a"), ("zh_cn", "zh"), ("ZH-tw", "zh"), ("ja", "char"), ("trg", "13a")])  # fmt: skip
def test_the_tokenizer_fits_the_script_and_is_told(language, tokenizer):
    text = "数据库中的记录"
    found = score_translations([text], [text], language, measures=())
    assert f"tok:{tokenizer}|" in found.signatures["bleu"]
    assert (found.bleu == pytest.approx(100.0)) == (tokenizer != "13a"), "one word has no four-grams"


@pytest.mark.parametrize(("hypotheses", "references"), [(["a"], ["a", "b"]), ([], [])])
def test_what_cannot_be_scored_is_a_data_error(hypotheses, references):
    with pytest.raises(DataError) as caught:
        score_translations(hypotheses, references, "en")
    assert caught.value.hint


def test_a_mistyped_measure_is_answered():
    with pytest.raises(ConfigError, match="no measure is called 'blue'") as caught:
        compare_translations(("a", GOOD), ("b", BAD), REFERENCES, "en", measure="blue")
    assert "bleu" in caught.value.hint


LINES = st.lists(st.lists(st.sampled_from(WORDS), max_size=9).map(" ".join), min_size=1, max_size=6)
TEXTS = st.lists(st.tuples(st.text(max_size=12), st.text(max_size=12)), min_size=1, max_size=4)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.lists(st.sampled_from(WORDS), min_size=4, max_size=9).map(" ".join), min_size=1, max_size=6))
def test_a_perfect_translation_has_the_highest_score(lines):
    found = score_translations(lines, lines, "en")
    assert (found.bleu, found.chrf, found.ter) == (pytest.approx(100), pytest.approx(100), 0)
    assert found.bleu_lowercased_tokenised == pytest.approx(100)


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 1000), st.integers(2, 12))
def test_the_order_of_sentences_does_not_matter(seed, count):
    order = random.Random(seed).sample(range(count), count)
    straight = score_translations(BAD[:count], REFERENCES[:count], "en")
    mixed = score_translations([BAD[n] for n in order], [REFERENCES[n] for n in order], "en")
    for name in MEASURES:
        assert getattr(straight, name) == pytest.approx(getattr(mixed, name))


@settings(max_examples=40, deadline=None)
@given(TEXTS)
def test_any_texts_have_scores_in_range_and_plain_json(rows):
    hypotheses, references = zip(*rows, strict=True)
    found = score_translations(hypotheses, references, "en")
    assert 0 <= found.bleu <= 100.0001
    assert 0 <= found.chrf <= 100.0001
    assert found.ter >= 0
    assert found.empty == sum(not text.strip() for text in hypotheses)
    json.dumps(plain(found))


@settings(max_examples=10, deadline=None)
@given(LINES)
def test_a_tested_score_lies_in_its_interval(lines):
    found = score_translations(damaged(lines, 0.3, 0), lines, "en", measures=CHEAP)
    for name, interval in found.intervals.items():
        assert interval.mean == getattr(found, name)
        assert len(lines) == 1 or interval.low <= interval.mean <= interval.high


@pytest.mark.parametrize("name", ["bleu", "chrf", "ter"])
def test_the_bootstrap_is_that_of_sacrebleu(name, monkeypatch):
    monkeypatch.setenv("SACREBLEU_SEED", "12345")
    monkeypatch.setattr(translation_metrics, "SEED", 12345)
    monkeypatch.setattr(translation_metrics, "RESAMPLES", 400)
    monkeypatch.setattr(translation_metrics, "SHUFFLES", 300)
    measure, systems = MEASURES[name], [("base", BAD[:60] + GOOD[60:]), ("new", damaged(REFERENCES, 0.21, 7))]
    metric = measure.metric("en")
    counts = [_counts(metric, *(measure.prepare(each, "en") for each in (texts, REFERENCES))) for _, texts in systems]

    def reference(kind, samples):
        _, table = PairedTest(systems, {name: measure.metric("en")}, [REFERENCES], kind, n_samples=samples)()
        return next(rows for title, rows in table.items() if title != "System")[1]

    expected = reference("bs", 400)
    found = estimate_ci(_bootstrap_scores(metric, counts)[1])
    assert found == pytest.approx((expected.mean, expected.ci), rel=1e-4)
    test = compare_translations(systems[1], systems[0], REFERENCES, "en", measure=name)
    assert test.p_value == reference("ar", 300).p_value


@pytest.mark.parametrize("measure", CHEAP)
def test_a_better_system_is_called_better_and_seen_from_the_other_side_worse(measure):
    there = compare_translations(("good", GOOD), ("bad", BAD), REFERENCES, "en", measure=measure)
    back = compare_translations(("bad", BAD), ("good", GOOD), REFERENCES, "en", measure=measure)
    assert (there.verdict, back.verdict) == ("better", "worse")
    assert there.difference.mean == pytest.approx(-back.difference.mean)
    assert there.difference.low == pytest.approx(-back.difference.high)
    assert there.p_value == back.p_value < 0.01
    assert there == compare_translations(("good", GOOD), ("bad", BAD), REFERENCES, "en", measure=measure)


def test_fewer_errors_are_better():
    found = compare_translations(("good", GOOD), ("bad", BAD), REFERENCES, "en", measure="ter")
    assert found.difference.high < 0
    assert found.verdict == "better"


@pytest.mark.parametrize("measure", CHEAP)
def test_a_system_shows_no_difference_to_itself(measure):
    found = compare_translations(("a", GOOD), ("b", GOOD), REFERENCES, "en", measure=measure)
    assert (found.difference.mean, found.p_value, found.verdict) == (0.0, 1.0, "no difference shown")


@pytest.mark.slow
def test_luck_is_seldom_called_a_difference(monkeypatch):
    monkeypatch.setattr(translation_metrics, "RESAMPLES", 300)
    verdicts = []
    for seed in range(100):
        references = sentences(40, seed)
        pair = [("a", damaged(references, 0.3, 1000 + seed)), ("b", damaged(references, 0.3, 2000 + seed))]
        verdicts.append(compare_translations(*pair, references, "en").verdict)
    assert sum(verdict != "no difference shown" for verdict in verdicts) <= 10  # 5 expected, 10 is two deviations more
