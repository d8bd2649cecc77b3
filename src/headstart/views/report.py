"""A comparison as one page: no script, nothing from outside, and every text shown as text."""

import json
import math
from html import escape
from typing import Any

from headstart.results import Arm, Comparison, Mistake, Transfer
from headstart.views import wording
from headstart.views.audit_page import audit_html
from headstart.views.curves import (
    accuracy_curves,
    draw_curves,
    draw_label_efficiency,
    draw_reliability,
    label_efficiency,
    reliability,
)
from headstart.views.figure import PALETTE, arm_colours, inline_svg
from headstart.views.page import bullets, details, page, pairs, section, table

EXCERPT = 160  # characters of a mistaken text that show before it is unfolded


def render_report(comparison: Comparison) -> str:
    """The comparison as one self-contained HTML file."""
    parts = [
        _header(comparison),
        section("Results", _results(comparison)),
        section("Is the difference more than luck?", _tests(comparison)),
        section("Learning curves", _curves(comparison)),
        section("How many labels does it take?", _efficiency(comparison)),
        section("Can its confidence be trusted?", _reliability(comparison)),
        section("Worst mistakes", _mistakes(comparison.mistakes)),
        section("What was carried over", _transfers(comparison)),
        section("The data", audit_html(comparison.audit)),
        section("Notes", bullets(comparison.notes)),
        section("Where these numbers come from", _story(comparison)),
    ]
    return page(f"headstart: {comparison.data}", "\n".join(part for part in parts if part))


def _header(comparison: Comparison) -> str:
    seeds = len(comparison.story.seeds)
    budget = max(comparison.label_budgets)
    about = (
        f"{comparison.data}: {budget:,} labels, {len(comparison.classes)} classes, {seeds} seed{'s' * (seeds != 1)}, "
        f"scored on {comparison.scored_count:,} texts of {comparison.scored_split}"
    )
    others = [
        wording.test_line(test)
        for test in comparison.tests
        if test.labels == budget and test is not wording.main_test(comparison)
    ]
    return (
        f"<header>\n<p>{escape(about)}</p>\n<h1>{escape(wording.headline(comparison))}</h1>\n"
        f"{bullets(others)}\n</header>"
    )


def _results(comparison: Comparison) -> str:
    leaks = wording.has_leaks(comparison)
    head = ["arm", "accuracy", "macro-F1", *(["leak-free accuracy"] if leaks else [])]
    head += ["calibration error", "mark passed at epoch", "time for a seed"]
    budgets = sorted(set(comparison.label_budgets), reverse=True)
    rows: list[list[str]] = []
    for budget in budgets:
        if len(budgets) > 1:
            rows.append([f"{budget:,} labels"])
        rows += [_result_row(comparison, arm, leaks) for arm in comparison.arms if arm.labels == budget]
    caption = (
        f"Mean ± standard deviation over seeds, with the 95 % interval over seeds and texts; scored on "
        f"{comparison.scored_split}. The mark is a validation accuracy of {comparison.mark:g}."
    )
    return table(head, rows, caption=caption)


def _result_row(comparison: Comparison, arm: Arm, leaks: bool) -> list[str]:
    colours = arm_colours((arm.name, arm.kind) for arm in comparison.arms)
    base = f"<br><small>from {escape(arm.base)}</small>" if arm.base else ""
    accuracy = wording.share(arm.accuracy.mean)
    if len(arm.results) > 1:
        accuracy += f" ± {wording.share(arm.accuracy.spread)}"
    fair = f"{wording.share(arm.leak_free_accuracy.mean)} {_small_range(arm.leak_free_accuracy)}"
    return [
        f'<span class="name">{_dot(colours[arm.name])}{escape(arm.name)}</span>{base}',
        f"{accuracy} {_small_range(arm.accuracy)}",
        wording.share(arm.macro_f1.mean),
        *([fair] if leaks else []),
        wording.share(arm.calibration_error.mean),
        escape(wording.mark_words(arm.passes_mark)),
        wording.duration(wording.seconds_of(arm)),
    ]


def _small_range(interval: Any) -> str:
    words = wording.range_words(interval)
    return f"<br><small>{words}</small>" if words else ""


def _tests(comparison: Comparison) -> str:
    if not comparison.tests:
        return ""
    rows = [
        [
            f'<span class="name">{escape(test.arm)}</span> <small>against {escape(test.against)}</small>',
            f"{test.labels:,}",
            wording.points(test.difference.mean),
            wording.points_range(test.difference),
            wording.p_words(test.p_value).removeprefix("p ").removeprefix("= "),
            f'<span class="name {escape(test.verdict.split()[0])}">{escape(test.verdict)}</span>',
        ]
        for test in sorted(comparison.tests, key=lambda test: -test.labels)
    ]
    head = ["arms", "labels", "points of accuracy", "95 % interval", "p, adjusted", "verdict"]
    how = (
        "Each pair answers the same texts. The interval resamples seeds and texts; p is the chance of a difference "
        "this large if the signs of the texts were thrown by coin, raised for the number of tests (Holm). "
        "“Better” or “worse” is said only when p is below 0.05 and the interval leaves out zero."
    )
    alone = len(comparison.story.seeds) == 1
    warning = (
        "<p><strong>One seed:</strong> the luck of the seed is not in these intervals.</p>" if alone else ""
    )
    return f'{table(head, rows, words=[5])}\n{warning}<p class="soft">{escape(how)}</p>'


def _curves(comparison: Comparison) -> str:
    data = accuracy_curves(comparison)
    if not data.lines:
        return ""
    ends = [f"{line.name} ends at {line.mean[-1]:.3f}" for line in data.lines]
    ends += [f"{level.name} is level at {level.mean[0]:.3f}" for level in data.levels]
    svg = inline_svg(draw_curves(data), "curves", f"Validation accuracy by epoch: {'; '.join(ends)}.")
    words = (
        f"Validation accuracy with {data.labels:,} labels: mean over seeds, the band from lowest to highest."
        + (" Where a line is dotted, its training has ended." if data.shorter else "")
    )
    return _figure(svg, words, {line.name: line.colour for line in [*data.lines, *data.levels]})


def _efficiency(comparison: Comparison) -> str:
    data = label_efficiency(comparison)
    if data is None:
        return ""
    ends = [f"{line.name} from {line.mean[0]:.3f} to {line.mean[-1]:.3f}" for line in data.lines]
    svg = inline_svg(
        draw_label_efficiency(data), "labels", f"Accuracy by number of labels: {'; '.join(ends)}."
    )
    words = "Accuracy by number of labels, each with its 95 % interval."
    return _figure(svg, words, {line.name: line.colour for line in data.lines})


def _reliability(comparison: Comparison) -> str:
    data = reliability(comparison)
    if not data.panels:
        return ""
    errors = "; ".join(f"{panel.name} {wording.share(panel.error)}" for panel in data.panels)
    svg = inline_svg(
        draw_reliability(data), "reliability", f"Accuracy by confidence; calibration error: {errors}."
    )
    words = "On the dashed line confidence is honest; below it the model is too sure. Large points hold many answers."
    return _figure(svg, words, {})


def _figure(svg: str, words: str, legend: dict[str, str]) -> str:
    """A picture with its caption; the legend shows where the screen is too narrow for the names in the picture."""
    names = "".join(
        f'<span class="name">{_dot(colour)}{escape(name)}</span> ' for name, colour in legend.items()
    )
    below = f'<p class="legend" aria-hidden="true">{names}</p>' if names else ""
    return f'<figure><div class="wide" tabindex="0">{svg}</div>{below}<figcaption>{escape(words)}</figcaption></figure>'


def _dot(colour: str) -> str:
    return f'<span class="dot" style="background: var(--arm-{PALETTE.index(colour)})"></span>'


def _mistakes(mistakes: list[Mistake]) -> str:
    if not mistakes:
        return ""
    parts = [
        '<p class="soft">What the best neural arm gets most confidently wrong, unless the label itself is.</p>'
    ]
    for mistake in mistakes:
        said = f"{mistake.predicted} ({mistake.confidence:.0%} sure), labelled {mistake.label}"
        source = f'<p class="soft">{escape(mistake.arm)}, {escape(mistake.origin)}</p>'
        text, excerpt = escape(mistake.text), " ".join(mistake.text.split())
        if len(excerpt) > EXCERPT:
            short = f"<strong>{escape(said)}</strong><br>{escape(excerpt[:EXCERPT])}…"
            parts.append(details(short, f'<p class="text">{text}</p>{source}'))
        else:
            parts.append(
                f'<div class="row"><strong>{escape(said)}</strong><p class="text">{text}</p>{source}</div>'
            )
    return "\n".join(parts)


def _transfers(comparison: Comparison) -> str:
    shown, seen = [], []
    for arm in sorted(comparison.arms, key=lambda arm: -arm.labels):
        if arm.transfer is not None and arm.name not in seen:
            seen.append(arm.name)
            shown.append(
                f"<h3>{escape(arm.name)}</h3><p>{escape(arm.transfer.summary())}.</p>{_tensors(arm.transfer)}"
            )
    return "\n".join(shown)


def _tensors(account: Transfer) -> str:
    kinds = (("reused", account.reused), ("fresh", account.fresh), ("left behind", account.left))
    rows = [
        [f"<code>{escape(n)}</code>", word, f"{size:,}"] for word, kept in kinds for n, size in kept.items()
    ]
    return details("by tensor", table(["tensor", "", "weights"], rows, words=[1]))


def _story(comparison: Comparison) -> str:
    story = comparison.story
    facts = {
        "command": story.command,
        "started": story.started,
        "took": wording.duration(story.seconds),
        "seeds": ", ".join(str(seed) for seed in story.seeds),
        "machine": story.machine,
        "commit": story.commit or wording.UNKNOWN,
        "versions": ", ".join(f"{name} {version}" for name, version in story.versions.items()),
        "epochs": f"{comparison.epochs:g}",
    }
    settings = json.dumps(_finite(comparison.settings), ensure_ascii=False, indent=2, default=str)
    return pairs(facts) + details("settings", f"<pre>{escape(settings)}</pre>")


def _finite(value: Any) -> Any:
    """The value with NaN as null, which JSON has."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and math.isnan(value) else value
