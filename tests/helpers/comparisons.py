"""A made-up comparison that looks like a real one: four arms, three budgets, leaks, hostile texts."""

import numpy as np

from headstart.evaluation.statistics import adjust, first_epoch_reaching, interval, paired_test
from headstart.results import (
    Comparison,
    CurvePoint,
    Interval,
    Mistake,
    PairedTest,
    Provenance,
    SeedResult,
    TransferReport,
    VariantResult,
)

HOSTILE = "<script>alert('boo')</script> & \"quoted\" $x_1$"
CLASSES = ["negative", "positive"]
SKILL = {  # accuracy at 200, 800 and 1,600 labels, epochs to get most of the way, noise of the seed
    "classical": (0.76, 0.83, 0.855, 0, 0.0),
    "scratch": (0.66, 0.75, 0.80, 4.0, 0.012),
    "frozen": (0.74, 0.79, 0.81, 1.2, 0.006),
    "fine-tuned": (0.80, 0.86, 0.885, 1.4, 0.008),
}
BUDGETS = [200, 800, 1600]


def example_comparison(budgets=BUDGETS, seeds=(0, 1, 2), texts=400, leaks=True, hostile=HOSTILE) -> Comparison:
    rng = np.random.default_rng(7)
    truth = rng.integers(0, 2, texts)
    difficulty = rng.normal(0, 1, texts)
    arms, tests = [], []
    for budget in budgets:
        correct = {}
        for kind in SKILL:
            arm, correct[kind] = _arm(kind, budget, seeds, truth, difficulty, leaks, rng)
            arms.append(arm)
        for kind, against in (("fine-tuned", "scratch"), ("fine-tuned", "classical"), ("frozen", "scratch")):
            tests.append(paired_test(kind, against, budget, correct[kind], correct[against]))
    return Comparison(
        data="cls-books-fr",
        scored_split="test",
        scored_count=texts,
        classes=CLASSES,
        truth=truth.tolist(),
        label_budgets=list(budgets),
        epochs=8,
        target_accuracy=0.83,
        arms=arms,
        tests=adjust(tests),
        mistakes=_mistakes(hostile),
        audit=_audit(hostile),
        settings={"model": {"num_layers": 4, "hidden_size": 256}, "training": {"max_epochs": 8, "note": hostile}},
        notes=["12 rows of test are also in train; leak-free accuracy leaves them out", f"a note with {hostile}"],
        provenance=Provenance(
            command="headstart compare --base fr-small --data cls-books-fr --train-size 200,800,1600 --seeds 3",
            commit="4f1c2ab9",
            versions={"headstart": "0.1.0", "torch": "2.11.0", "python": "3.11.9"},
            machine="2 cores of Intel Xeon, 8 GB, no GPU",
            started="2026-11-15T11:36:20+00:00",
            seconds=1925.0,
            seeds=list(seeds),
        ),
    )


def _arm(kind, budget, seeds, truth, difficulty, leaks, rng):
    skill = np.interp(np.log(budget), np.log(BUDGETS), SKILL[kind][:3])
    pace, noise = SKILL[kind][3:]
    results, correct = [], []
    for seed in seeds:
        goal = skill + rng.normal(0, noise)
        own = difficulty + rng.normal(0, 0.6, len(truth)) * (kind != "classical")
        right = own > np.quantile(own, 1 - goal)
        sure = 1.4 if kind in ("scratch", "fine-tuned") else 0.9
        confidence = 1 / (1 + np.exp(-np.abs(rng.normal(1.5 * right, 1.0)) * sure))
        correct.append(right)
        curve = (
            [_point(epoch, 0.5 + (goal - 0.5) * (1 - np.exp(-epoch / pace)), rng) for epoch in range(9)] if pace else []
        )
        accuracy = float(right.mean())
        error = float(abs(confidence.mean() - accuracy)) + 0.02
        fair = float(right[12:].mean()) if leaks else accuracy
        answers = np.where(right, truth, 1 - truth).tolist()
        seconds = 4.6 if kind == "classical" else 61.0 + 70 * (kind != "frozen")
        results.append(
            SeedResult(
                seed, accuracy, accuracy - 0.003, 0.41, error, fair, seconds, answers, confidence.tolist(), curve
            )
        )
    table = np.array(correct)
    spans = {
        name: interval([getattr(result, name) for result in results]) for name in ("macro_f1", "calibration_error")
    }
    arm = VariantResult(
        name=kind,
        kind=kind,
        labels=budget,
        results=results,
        accuracy=interval([result.accuracy for result in results], table),
        macro_f1=spans["macro_f1"],
        leak_free_accuracy=interval([r.leak_free_accuracy for r in results], table[:, 12:] if leaks else table),
        calibration_error=spans["calibration_error"],
        base="fr-small" if kind in ("frozen", "fine-tuned") else "",
        control="scratch" if kind in ("frozen", "fine-tuned") else "",
        transfer=_transfer() if kind in ("frozen", "fine-tuned") else None,
        epochs_to_target=[first_epoch_reaching(result.curve, 0.83) for result in results] if pace else [],
    )
    return arm, table


def _point(epoch, accuracy, rng):
    accuracy = float(np.clip(accuracy + rng.normal(0, 0.007), 0, 1))
    return CurvePoint(float(epoch), epoch * 50, accuracy, accuracy - 0.004, 1.0 - accuracy)


def _transfer():
    body = {
        f"backbone.stack.blocks.{i}.{part}": 65536 for i in range(4) for part in ("attention.query", "feed_forward.up")
    }
    return TransferReport(
        {"backbone.embedding.table": 2048000, **body}, {"heads.class.weight": 512}, {"heads.lm.bias": 8000}
    )


def _mistakes(hostile):
    long = f"Un livre {hostile} que j'ai lu d'une traite. " + "La suite est plus longue que prévu. " * 12
    return [
        Mistake("fine-tuned", long, "negative", "positive", 0.993, "test.tsv:41"),
        Mistake("fine-tuned", "Bof.", f"positive {hostile}", "negative", 0.981, "test.tsv:8"),
        Mistake(
            "fine-tuned", "Je m'attendais à mieux, mais quel plaisir !", "positive", "negative", 0.942, "test.tsv:99"
        ),
    ]


def _audit(hostile):
    spread = {"mean": 587.2, "p5": 92.0, "p50": 431.0, "p95": 1630.0, "p99": 2944.0, "max": 6120}
    tokens = {"mean": 141.0, "p5": 22.0, "p50": 104.0, "p95": 390.0, "p99": 702.0, "max": 1466}
    splits = {
        name: {
            "count": count,
            "classes": {"negative": count // 2, f"positive {hostile}": count - count // 2},
            "characters": spread,
            "tokens": tokens,
            "truncated": 0.126,
            "unknown": 0.0,
            "duplicates": 3,
            "conflicts": 0,
            "in_train": leaked,
            "near_in_train": 1,
        }
        for name, count, leaked in (("train", 1600, 0), ("valid", 400, 2), ("test", 400, 12))
    }
    leak = {"excerpt": f"Un {hostile}", "hash": "0" * 16, "origins": {"train": ["train.tsv:3"], "test": ["test.tsv:9"]}}
    warnings = ["12 of the 400 rows of test are also in train", "13% of the texts of train are cut at 256 tokens"]
    return {
        "name": "cls-books-fr", "limit": 256, "splits": splits, "leaks": [leak] * 12, "near": [leak],
        "skips": [{"origin": "train.tsv:77", "reason": "no label"}], "notes": [], "warnings": warnings,
    }  # fmt: skip


def difference(mean, low, high, p_value, verdict, against="scratch") -> PairedTest:
    return PairedTest("fine-tuned", against, 1600, Interval(mean, low, high, 0.0), p_value, verdict)
