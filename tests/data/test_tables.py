import csv
import gzip
import io
import json
import lzma

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headstart.data import text_io as records
from headstart.data.datasets import Example, SkippedRow
from headstart.data.text_io import iterate_table, iterate_texts, read_table
from headstart.errors import DataError

LABELS = ["positive", "very bad", "😀", "0", 'quote "', "naïve"]
TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=30)
BROKEN = st.lists(
    st.sampled_from([b"text", b"label", b'"', b'""', b",", b"\t", b"\n", b"\r\n", b"\r", b"\0", b"\xff", b"\xef\xbb\xbf", b"{", b'{"text": "a", "label": 1}\n', b"a b", b"\xf0\x9f\x98\x80", b"\\"]),
    max_size=25,
).map(b"".join)  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("tables")


def table(folder, name, content):
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8"))
    return path


def read(folder, name, content, strict=False):
    return read_table(table(folder, name, content), "text", "label", strict)


def read_or_error(folder, name, content):
    try:
        return read(folder, name, content)
    except DataError as error:
        return error


def as_csv(rows, **options):
    buffer = io.StringIO(newline="")
    csv.writer(buffer, **options).writerows([("text", "label"), *rows])
    return buffer.getvalue()


def as_jsonl(rows):
    return "".join(json.dumps({"text": text, "label": label}) + "\n" for text, label in rows)


@pytest.mark.parametrize("pack", [("", bytes), (".gz", gzip.compress), (".xz", lzma.compress)])
@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("t.tsv", "text\tlabel\ngood\tpos\nbad, sad\tvery neg 😀\n"),
        ("t.csv", 'text,label\ngood,pos\n"bad, sad",very neg 😀\n'),
        ("t.jsonl", as_jsonl([("good", "pos"), ("bad, sad", "very neg 😀")])),
    ],
)
def test_each_kind_is_read_plain_and_packed(tmp_path, name, content, pack):
    ending, packed = pack
    examples, skips = read(tmp_path, name + ending, packed(content.encode()))
    first = 1 if name.endswith("jsonl") else 2
    assert [(found.text, found.label) for found in examples] == [("good", "pos"), ("bad, sad", "very neg 😀")]
    assert examples[0].origin == f"{name}{ending}:{first}"
    assert skips == []


def test_a_stray_quote_in_a_tsv_neither_hides_nor_merges_rows(tmp_path):
    content = 'text\tlabel\n"never closed\tpos\nfine\tneg\n"quoted"\tpos\n5" disc\t"\n'
    examples, skips = read(tmp_path, "t.tsv", content)
    assert [found.text for found in examples] == ['"never closed', "fine", '"quoted"', '5" disc']
    assert examples[-1].label == '"'
    assert not skips


def test_a_tsv_whose_header_is_quoted_was_written_with_quotes(tmp_path):
    examples, _ = read(tmp_path, "t.tsv", '"text"\t"label"\n"he said ""hi""\nand left"\t"pos"\n')
    assert examples == [Example('he said "hi"\nand left', "pos", "t.tsv:2")]


def test_a_csv_field_may_hold_newlines_and_quotes_and_origins_name_its_first_line(tmp_path):
    content = 'text,label\r\n"one\r\ntwo, ""three""",a\r\n5" disc,b\r\n'
    examples, _ = read(tmp_path, "t.csv", content)
    assert examples == [Example('one\ntwo, "three"', "a", "t.csv:2"), Example('5" disc', "b", "t.csv:4")]


@pytest.mark.parametrize(
    ("content", "line"),
    [
        ("text,label\nfine,a\n" + '"open,a\n' + "row,b\n" * 5000, 3),
        ('text,label\n"closed\nhere","open\nrow,b\n', 2),
        ('text,label\nfine,a\n"swallows,a\nnext 5",b\n', 3),
        ('text,label\nfine,a\n"swallows,a\n"next",b\n', 3),
        ('text,label\n"shut" up,a\n', 2),
        ("text,label\nold\rmac,a\n", 2),
    ],
)
def test_a_stray_quote_in_a_csv_is_an_error_that_names_its_row(tmp_path, content, line):
    with pytest.raises(DataError, match=f"t.csv:{line} ") as caught:
        read(tmp_path, "t.csv", content)
    assert caught.value.hint


def test_a_quote_that_stays_open_for_long_is_given_up(tmp_path, monkeypatch):
    monkeypatch.setattr(records, "LONGEST_FIELD", 1000)
    with pytest.raises(DataError, match=r"t.csv:2 opens a quote"):
        read(tmp_path, "t.csv", 'text,label\n"open,a\n' + "x\n" * 1000)


def test_rows_that_cannot_be_used_are_counted_and_named(tmp_path):
    content = "text\tlabel\ngood\tpos\n \tpos\n\nbad\t \none field\na\tb\tc\n"
    examples, skips = read(tmp_path, "t.tsv", content)
    assert len(examples) == 1
    assert skips == [
        SkippedRow("t.tsv:3", "the text is empty"),
        SkippedRow("t.tsv:5", "the label is empty"),
        SkippedRow("t.tsv:6", "1 field where the header has 2"),
        SkippedRow("t.tsv:7", "3 fields where the header has 2"),
    ]


def test_strict_turns_the_first_skip_into_an_error(tmp_path):
    with pytest.raises(DataError, match=r"t.tsv:3: the text is empty") as caught:
        read(tmp_path, "t.tsv", "text\tlabel\ngood\tpos\n\tpos\n", strict=True)
    assert "--strict" in caught.value.hint


@pytest.mark.parametrize(
    ("label", "expected"), [("a b ", "a b"), (1, "1"), (True, "True"), (2.0, "2"), (4.5, "4.5"), (-0.0, "0")]
)
def test_a_json_label_becomes_a_word(tmp_path, label, expected):
    assert read(tmp_path, "t.jsonl", as_jsonl([("x", label)]))[0][0].label == expected


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"text": "x", "label": None}, "the label is null"),
        ({"text": "x", "label": ["a"]}, "the label is a list"),
        ({"text": "x", "label": float("nan")}, "the label is a number"),
        ({"text": {"en": "x"}, "label": 1}, "the text is an object"),
        ({"text": 3, "label": 1}, "the text is a number"),
        ({"text": "\ud800", "label": 1}, "half a character"),
        ({"text": "x", "label": "\ud800"}, "half a character"),
        ({"text": "a\0b", "label": 1}, "NUL"),
        ({"text": "x"}, "no 'label'"),
        ([1], "no JSON object"),
    ],
)
def test_a_json_row_that_cannot_be_used_is_skipped(tmp_path, row, reason):
    examples, skips = read(tmp_path, "t.jsonl", as_jsonl([("x", "a")]) + "\n" + json.dumps(row))
    assert len(examples) == 1
    assert skips[0].origin == "t.jsonl:3"
    assert reason in skips[0].reason


@pytest.mark.parametrize("line", ["{", "nonsense", "[" * 100_000, "9" * 5000])
def test_bad_json_names_its_line(tmp_path, line):
    with pytest.raises(DataError, match=r"t.jsonl:2 is no JSON"):
        read(tmp_path, "t.jsonl", '{"text": "a", "label": "b"}\n' + line)


@pytest.mark.parametrize(
    ("name", "content"),
    [("t.tsv", "Text\tlabel\na\tb\n"), ("t.csv", "Text,label\na,b\n"), ("t.jsonl", '{"Text": "a", "label": "b"}\n')],
)
def test_a_missing_column_is_answered_with_the_nearest_one(tmp_path, name, content):
    with pytest.raises(DataError, match=f"{name} has no column 'text'; it has 'Text', 'label'") as caught:
        read(tmp_path, name, content)
    assert "did you mean 'Text'? (--text-column NAME)" in caught.value.hint


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("t.tsv", "", "holds no rows"),
        ("t.csv", "", "holds no rows"),
        ("t.jsonl", "\n\n", "holds no rows"),
        ("t.tsv", "text\tlabel\n", "holds no rows"),
        ("t.csv", "text,label\n\n\n", "holds no rows"),
        ("t.tsv", "text\tlabel\na\t\n", "no row of .* can be used"),
        ("t.tsv", "\n", "no column"),
        ("t.csv", "\n", "no column"),
        ("t.jsonl", "{}", "it has none"),
        ("t.tsv", "text\tlabel\rgood\tpos\r", "no column"),
        ("t.csv", "text,text,label\na,b,c\n", "2 columns called 'text'"),
        ("t.json", "{}", "is no table"),
    ],
)
def test_a_table_without_usable_rows_is_an_error_with_a_hint(tmp_path, name, content, problem):
    with pytest.raises(DataError, match=problem) as caught:
        read(tmp_path, name, content)
    assert caught.value.hint


def test_text_and_label_come_from_different_columns(tmp_path):
    with pytest.raises(DataError, match="both"):
        read_table(table(tmp_path, "t.tsv", "text\na\n"), "text", "text", False)


def test_a_table_is_read_one_row_at_a_time_and_without_labels(tmp_path):
    path = table(tmp_path, "t.tsv", b"n\ttext\n1\tfirst\n2\t\n3\tthird\n4\t\xff\n")
    skips = []
    rows = iterate_table(path, "text", None, skips.append)
    assert next(rows) == Example("first", None, "t.tsv:2")
    assert next(rows).text == "third"
    assert skips == [SkippedRow("t.tsv:3", "the text is empty")]
    with pytest.raises(DataError, match=":5 is not UTF-8"):
        next(rows)


def test_texts_to_predict_keep_their_places(tmp_path):
    assert list(iterate_texts(table(tmp_path, "t.tsv", "text\tid\na\t1\n\t2\nb\t3\n"), "text")) == ["a", "", "b"]
    assert list(iterate_texts(table(tmp_path, "one.tsv", "text\na\n\nb\n"), "text")) == ["a", "", "b"]
    with pytest.raises(DataError, match=r"t.tsv:3"):
        list(iterate_texts(table(tmp_path, "t.tsv", "text\tid\na\t1\nbroken\n"), "text"))


@pytest.mark.parametrize("length", [1, 100_000, 3_000_000])
@pytest.mark.parametrize("name", ["t.tsv", "t.csv", "t.jsonl"])
def test_a_text_may_be_of_any_length(tmp_path, name, length):
    rows = [("é" * length, "a"), ("x", "b")]
    content = {
        "t.tsv": "text\tlabel\n" + "".join(f"{text}\t{label}\n" for text, label in rows),
        "t.csv": as_csv(rows, quoting=csv.QUOTE_ALL),
        "t.jsonl": as_jsonl(rows),
    }[name]
    assert [len(found.text) for found in read(tmp_path, name, content)[0]] == [length, 1]


@settings(max_examples=80, deadline=None)
@given(
    st.lists(st.tuples(TEXTS, st.one_of(st.sampled_from(LABELS), TEXTS)), min_size=1, max_size=8),
    st.sampled_from(["\n", "\r\n"]),
    st.sampled_from(["utf-8", "utf-8-sig", "utf-16"]),
)
@example([('"', '"'), ("\n", "a"), ("", "")], "\r\n", "utf-8-sig")
def test_every_row_of_a_table_that_loads_is_an_example_or_a_skip(folder, rows, newline, encoding):
    flat = [tuple(" ".join(lines_of(field)) for field in row) for row in rows]
    tables = {
        "t.csv": as_csv(rows, lineterminator=newline, quoting=csv.QUOTE_ALL),
        "t.jsonl": as_jsonl(rows).replace("\n", newline),
        "t.tsv": newline.join(["text\tlabel", *("\t".join(row) for row in flat)]),
    }
    for name, content in tables.items():
        outcome = read_or_error(folder, name, content.encode(encoding))
        if isinstance(outcome, DataError):
            assert outcome.hint
            continue
        examples, skips = outcome
        assert len(examples) + len(skips) == len(rows)
        usable = [row for row in (flat if name == "t.tsv" else rows) if row[0].strip() and row[1].strip()]
        labels = [str(found.label).replace("\r\n", "\n") for found in examples]  # CRLF inside quotes reads as LF
        assert labels == [label.strip().replace("\r\n", "\n") for _, label in usable]


def lines_of(field):
    return field.replace("\t", " ").replace("\r", " ").split("\n")


@settings(max_examples=150, deadline=None)
@given(BROKEN, st.sampled_from(["t.tsv", "t.csv", "t.jsonl"]), st.booleans())
def test_broken_files_raise_nothing_but_data_errors(folder, content, name, has_header):
    header = {"t.tsv": b"text\tlabel\n", "t.csv": b"text,label\n", "t.jsonl": b""}[name]
    outcome = read_or_error(folder, name, header + content if has_header else content)
    if isinstance(outcome, DataError):
        assert outcome.hint
        return
    examples, skips = outcome
    assert examples
    if name == "t.tsv" and has_header:
        lines = [line.removesuffix(b"\r") for line in content.split(b"\n")]
        assert len(examples) + len(skips) == sum(line != b"" for line in lines)
