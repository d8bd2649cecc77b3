import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from headstart.reports.comparison import headline, render_comparison
from headstart.reports.tables import render_audit
from headstart.results import Interval
from tests.helpers.comparisons import HOSTILE, difference, example_comparison

VOID = {"meta", "br", "img", "link", "hr", "input", "use", "path"}


class Reader(HTMLParser):
    def __init__(self, page):
        super().__init__()
        self.open, self.seen, self.ids, self.attributes, self.faults = [], [], [], [], []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.seen.append(tag)
        self.attributes += attrs
        self.ids += [value for name, value in attrs if name == "id"]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        if tag not in VOID and (not self.open or self.open.pop() != tag):
            self.faults.append(tag)


@pytest.fixture(scope="module")
def comparison():
    return example_comparison()


@pytest.fixture(scope="module")
def page(comparison):
    return render_comparison(comparison)


def test_every_tag_is_closed_and_every_id_is_unique(page):
    reader = Reader(page)
    assert not reader.faults
    assert not reader.open
    assert len(reader.ids) == len(set(reader.ids)) > 50


def test_references_inside_pictures_find_their_ids(page):
    ids = set(Reader(page).ids)
    wanted = re.findall(r'url\(#([^)]+)\)|href="#([^"]+)"', page)
    assert wanted
    assert {a or b for a, b in wanted} <= ids


def test_hostile_texts_are_shown_as_text(page):
    assert "script" not in Reader(page).seen
    assert "&lt;script&gt;alert(" in page


def test_hostile_names_of_arms_and_classes_are_shown_as_text(comparison):
    arms = [replace(arm, name=f"{HOSTILE} {arm.name}", base=HOSTILE) for arm in comparison.arms]
    tests = [
        replace(test, arm=f"{HOSTILE} {test.arm}", against=f"{HOSTILE} {test.against}") for test in comparison.tests
    ]
    reader = Reader(render_comparison(replace(comparison, arms=arms, tests=tests, data=HOSTILE, scored_split=HOSTILE)))
    assert "script" not in reader.seen
    assert not reader.faults
    assert not [name for name, _ in reader.attributes if name.startswith("on")]


def test_nothing_is_fetched_from_outside(page):
    outside = [v for n, v in Reader(page).attributes if n in ("src", "href", "xlink:href") and not v.startswith("#")]
    assert not outside
    assert "@import" not in page
    assert not re.search(r"url\((?!#)", page)


def test_the_page_is_the_same_each_time(comparison, page):
    assert render_comparison(comparison) == page


def test_pictures_are_read_aloud_and_tables_have_scopes(page):
    assert page.count('role="img" aria-label="') == 3
    assert page.count("<th ") == page.count("<th scope=")


@pytest.mark.parametrize(
    ("test", "words"),
    [
        (difference(0.062, 0.041, 0.083, 0.0004, "better"), "Pretraining is worth +6.2 points of accuracy"),
        (difference(-0.02, -0.03, -0.01, 0.01, "worse"), "Pretraining costs 2.0 points of accuracy"),
        (difference(0.01, -0.01, 0.03, 0.4, "no difference shown"), "No difference shown with and without pretraining"),
        (difference(0.05, 0.01, 0.09, 0.02, "better", "classical"), "“fine-tuned” over “classical” is worth +5.0"),
    ],
)
def test_the_headline_says_no_more_than_the_test(comparison, test, words):
    page = render_comparison(replace(comparison, tests=[test]))
    assert words in page[page.index("<h1>") : page.index("</h1>")]


def test_the_headline_speaks_of_pretraining_only_where_nothing_else_differs(comparison):
    """A base without a twin is far ahead of scratch; the one with a twin is what the headline is about."""
    budget = max(comparison.label_budgets)
    other = replace(comparison.arm("fine-tuned", budget), name="other", control="")
    far = replace(difference(0.2, 0.19, 0.21, 0.0001, "better"), arm="other", labels=budget)
    near = replace(difference(0.06, 0.04, 0.08, 0.0001, "better"), labels=budget)
    both = replace(comparison, arms=[*comparison.arms, other], tests=[far, near])
    assert "Pretraining is worth +6.0" in headline(both)
    alone = replace(both, tests=[far])
    assert "“other” over “scratch” is worth +20.0" in headline(alone)


def test_without_tests_nothing_is_claimed(comparison):
    assert "nothing is claimed" in render_comparison(replace(comparison, tests=[]))


@pytest.mark.slow
def test_leak_free_accuracy_is_shown_where_there_are_leaks_only():
    assert "leak-free accuracy" in render_comparison(example_comparison(budgets=[1600]))
    assert "leak-free accuracy</th>" not in render_comparison(example_comparison(budgets=[1600], leaks=False))


def test_unknown_numbers_are_dashes_and_one_seed_is_said():
    comparison = example_comparison(budgets=[1600], seeds=(0,))
    unknown = Interval(float("nan"), float("nan"), float("nan"), 0.0)
    page = render_comparison(
        replace(comparison, arms=[replace(arm, leak_free_accuracy=unknown) for arm in comparison.arms])
    )
    assert not re.search(r"\bnan\b", re.sub(r"<svg.*?</svg>", "", page, flags=re.DOTALL), re.IGNORECASE)
    assert "One seed:" in page


def test_long_texts_are_folded_and_short_ones_are_not(page):
    part = page[page.index("Worst errors") : page.index("Transferred weights")]
    assert part.count("<details>") == 1
    assert part.count('class="row"') == 2


def test_the_provenance_is_shown(comparison, page):
    for fact in (comparison.provenance.commit, comparison.provenance.machine, "torch 2.11.0", "headstart compare"):
        assert fact in page


def test_an_audit_shows_its_texts_as_text():
    section = render_audit({"splits": {"<b>": {"count": 2}}, "warnings": ["<b>"]})
    assert "<b>" not in section
    assert "<td" in section
