import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from typer.testing import CliRunner

from headstart.cli.app import app
from headstart.data.audit import TokenCounts, audit_parallel
from headstart.data.datasets import SkippedRow
from headstart.data.parallel import PairExample, ParallelText
from headstart.data.text_io import text_hash
from headstart.errors import HeadstartError
from headstart.reports.tables import audit_tables, render_audit, terminal_table
from tests.helpers.parallel_datasets import TASKS, write_aligned

PAIR = ("en", "de")


def texts_of(skips=(), **splits):
    parts = {
        name: [PairExample(*row, f"{name}.en:{line}") for line, row in enumerate(rows, start=1)]
        for name, rows in splits.items()
    }
    return ParallelText("toy", PAIR, parts, list(skips), ["a note"])


LEAKY = texts_of(
    train=[("Good day", "Guten Tag"), ("good day!", "Guten Tag"), ("Good  day", "Tag"), ("OK", "OK"), ("Good day", "Guten Tag")],
    valid=[("Good day", "Moin"), ("Hi", "guten tag"), ("new", "neu")],
    test=[("OK", "OK"), ("Hallo", "Tag"), ("new", "neu")],
)  # fmt: skip


def sides(found, split, name):
    return tuple(getattr(side, name) for side in found.splits[split].sides.values())


def test_repeats_copies_and_leaks_are_counted_on_each_side():
    found = audit_parallel(LEAKY)
    assert [(part.count, part.duplicates, part.copies, part.in_train) for part in found.splits.values()] == [
        (5, 1, 1, 0),
        (3, 0, 0, 0),
        (3, 0, 1, 1),
    ]
    assert sides(found, "train", "duplicates") == (2, 2)
    assert sides(found, "train", "conflicts") == (1, 1)
    assert sides(found, "valid", "in_train") == (1, 0)
    assert sides(found, "test", "in_train") == (1, 2)
    assert sides(found, "valid", "near_in_train") == (0, 1)


def test_a_leak_names_its_language_and_its_rows():
    leaks = {(leak.side, leak.excerpt): leak.origins for leak in audit_parallel(LEAKY).leaks}
    assert set(leaks) == {("en", "Good day"), ("en", "OK"), ("en", "new"), ("de", "Tag"), ("de", "OK"), ("de", "neu")}  # fmt: skip
    assert leaks["de", "Tag"] == {"train": ["train.en:3"], "test": ["test.en:2"]}


def test_lengths_are_told_in_words_characters_and_tokens_and_the_ratio_by_side():
    texts = texts_of(train=[("a b c", "x" * 10), ("abcd", "yy zz")])
    tokens = {"en": {"train": TokenCounts([5, 4], 0.1)}, "de": {"train": TokenCounts([12, 7], 0.0)}}
    found = audit_parallel(texts, tokens, limit=8)
    part = found.splits["train"]
    assert (part.sides["en"].words.max, part.sides["en"].characters.max, part.sides["en"].tokens.max) == (3, 5, 5)
    assert (part.ratio.mean, part.ratio.max) == (pytest.approx((2 + 1.25) / 2), 2.0)
    assert [side.truncated for side in part.sides.values()] == [0.0, 0.5]
    assert [side.unknown for side in part.sides.values()] == [0.1, 0.0]
    assert "50% of the de texts of train are cut at 8 tokens" in found.warnings


@pytest.mark.parametrize(
    ("texts", "warning"),
    [
        (LEAKY, "1 of the 3 en texts of valid are also in train"),
        (LEAKY, "2 of the 3 de texts of test are also in train"),
        (LEAKY, "1 de texts of valid are in train but for case, space or punctuation"),
        (LEAKY, "1 of the 5 pairs of train have the same text on both sides"),
        (
            texts_of(
                [SkippedRow("t:2", "odd"), SkippedRow("t:3", "empty"), SkippedRow("t:4", "empty")], train=[("x", "y")]
            ),
            "2 rows were skipped, the first at t:3: empty",
        ),
    ],
)
def test_what_deserves_a_second_look_is_said_in_words(texts, warning):
    assert warning in audit_parallel(texts).warnings


def test_clean_pairs_earn_no_warning():
    found = audit_parallel(texts_of(train=[("w", "a")], valid=[("y", "b")]))
    assert (found.warnings, found.leaks, found.near, found.notes) == ([], [], [], ["a note"])


@settings(max_examples=50, deadline=None)
@given(
    st.fixed_dictionaries(
        {
            name: st.lists(st.tuples(*[st.text("aA !é好", min_size=1, max_size=4)] * 2), max_size=8)
            for name in ("train", "valid", "test")
        }
    )
)
def test_any_pairs_have_an_audit_that_is_plain_json_and_can_be_shown(splits):
    found = audit_parallel(texts_of(**splits))
    content = json.loads(json.dumps(found.to_dict()))
    for name, part in found.splits.items():
        for side, language in enumerate(PAIR):
            known = {text_hash(row[side]) for row in splits["train"]}
            in_train = sum(text_hash(row[side]) in known for row in splits[name])
            assert part.sides[language].in_train == (0 if name == "train" else in_train)
            assert part.sides[language].duplicates == part.count - len({text_hash(row[side]) for row in splits[name]})  # fmt: skip
    assert len(audit_tables(content)) == 3
    assert "Lengths" in render_audit(content)


def test_the_tables_are_narrow_and_say_what_was_found():
    console = Console(width=80, record=True, file=None, force_terminal=False)
    with console.capture() as capture:
        for table in audit_tables(audit_parallel(LEAKY).to_dict()):
            console.print(terminal_table(table))
    shown = capture.get()
    assert "Characters of de for one of en" in shown
    assert "…" not in shown
    row = next(line for line in shown.splitlines() if line.split()[:2] == ["train", "5"])
    assert row.split()[1:6] == ["5", "1", "–", "1", "0"]


def test_the_page_shows_both_sides_and_their_leaks():
    page = render_audit(audit_parallel(LEAKY).to_dict())
    assert "train, de" in page
    assert "de: Tag" in page
    assert "same on both sides" in page


def call(*words):
    result = CliRunner().invoke(app, [str(word) for word in words])
    if isinstance(result.exception, HeadstartError):
        return 2, str(result.exception), result.exception.hint
    return result.exit_code, result.output, ""


@pytest.fixture
def folder(tmp_path):
    return write_aligned(tmp_path / "set", TASKS["reverse"], PAIR, count=100)


def test_the_command_audits_parallel_text(folder):
    code, said, _ = call("audit", folder, "--pair", "en-de")
    assert code == 0
    assert "Characters of de for one of en" in said
    assert "tokens" not in said


def test_tokens_are_counted_where_a_tokenizer_is_given(folder):
    code, said, _ = call("audit", folder, "--pair", "en-de", "--tokenizer", "characters", "--max-length", "9", "--json")  # fmt: skip
    found = json.loads(said)
    assert code == 0
    side = found["splits"]["train"]["sides"]["de"]
    assert side["tokens"]["max"] == side["characters"]["max"] + 2
    assert 0 < side["truncated"] < 1
    assert found["limit"] == 9


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--pair", "en"], "no pair of languages"),
        (["--pair", "en-fr"], "no en and fr side by side; it has de, en"),
        (["--pair", "en-de", "--train-size", "5"], "--train-size goes with labelled data"),
        (["--pair", "en-de", "--text-column", "x"], "--text-column goes with labelled data"),
        (["--pair", "en-de", "--set", "model.hidden_size=2"], "an audit has no setting 'model'"),
        (["--pair", "en-de", "--set", "data.max_length_ratio=-1"], "max_length_ratio in data"),
        (["--pair", "en-de", "--tokenizer", "bep"], "bep"),
        ([], "no table called train"),
    ],
)
def test_a_wrong_word_is_answered_with_a_sentence_and_a_hint(folder, words, said):
    code, problem, hint = call("audit", folder, *words)
    assert code == 2
    assert said in problem
    assert hint
