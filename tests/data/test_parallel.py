import csv
import gzip
import io
import json
import lzma
import random
from collections import Counter
from itertools import chain, zip_longest

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from headstart.config import DataConfig
from headstart.data.audit import audit_parallel
from headstart.data.datasets import SkippedRow, split_of
from headstart.data.parallel import (
    PairExample,
    available_languages,
    length_ratio,
    load_pairs_for_scoring,
    load_parallel,
    parse_pair,
)
from headstart.data.text_io import text_hash
from headstart.errors import ConfigError, DataError
from tests.helpers.parallel_datasets import TASKS, write_aligned, write_parallel_table

PAIR = ("en", "de")
PLAIN = DataConfig()
ANY_RATIO = DataConfig(max_length_ratio=0)
SEVERAL = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
LINES = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0\n"), max_size=12)


def put(folder, **files):
    """Files by name, dots written as two underscores, from texts, lists of lines or bytes."""
    folder.mkdir(exist_ok=True)
    for name, content in files.items():
        if isinstance(content, list):
            content = "".join(f"{line}\n" for line in content)
        raw = content if isinstance(content, bytes) else content.encode("utf-8")
        (folder / name.replace("__", ".")).write_bytes(raw)
    return str(folder)


def load(data, pair=PAIR, config=PLAIN, with_test=True):
    return load_parallel(data, pair, config, with_test=with_test)


def outcome_of(read):
    """What `read` returns, or the data error that it raises."""
    try:
        return read()
    except DataError as error:
        return error


def load_or_error(*words, **options):
    return outcome_of(lambda: load(*words, **options))


def sides(pairs):
    return [(pair.source, pair.target) for pair in pairs]


def numbered(count, word="line"):
    return [f"{word} {number}" for number in range(count)]


def as_csv(rows):
    buffer = io.StringIO(newline="")
    csv.writer(buffer).writerows(rows)
    return buffer.getvalue()


@pytest.mark.parametrize(("text", "pair"), [("en-de", PAIR), (" fr-pt_BR ", ("fr", "pt_BR")), ("src-trg", ("src", "trg"))])  # fmt: skip
def test_a_pair_is_source_and_target(text, pair):
    assert parse_pair(text) == pair


@pytest.mark.parametrize("text", ["en", "en-", "-de", "en-en", "en-EN", "pt-BR-pt_br", "en-pt-br", "en de", "", "en-de fr"])  # fmt: skip
def test_what_is_no_pair_is_told_how_to_write_one(text):
    with pytest.raises(ConfigError) as caught:
        parse_pair(text)
    assert "en-de" in caught.value.hint


@pytest.mark.parametrize("valid", ["valid", "val", "dev", "validation", "VALID"])
@pytest.mark.parametrize("ending", ["", ".txt", ".gz", ".xz", ".txt.gz"])
def test_a_folder_of_aligned_files_is_read_line_by_line(tmp_path, valid, ending):
    pack = {"gz": gzip.compress, "xz": lzma.compress}.get(ending.rpartition(".")[2], bytes)
    for split in ("train", valid, "test"):
        for language, word in (("en", "line"), ("de", "Zeile")):
            lines = "".join(f"{word} {split} {n}\n" for n in range(3))
            (tmp_path / f"{split}.{language}{ending}").write_bytes(pack(lines.encode()))
    found = load(str(tmp_path))
    assert list(found.splits) == ["train", "valid", "test"]
    assert found.train[1] == PairExample("line train 1", "Zeile train 1", f"train.en{ending}:2")
    assert found.sources("valid") == [f"line {valid} {n}" for n in range(3)]
    assert found.targets("test") == [f"Zeile test {n}" for n in range(3)]
    assert (found.skips, found.notes, found.pair) == ([], [], PAIR)
    assert list(load(str(tmp_path), with_test=False).splits) == ["train", "valid"]


def test_the_pair_may_be_turned_round(tmp_path):
    data = put(tmp_path, train__en=["a"], train__de=["b"], valid__en=["c"], valid__de=["d"])
    assert sides(load(data, ("de", "en")).train) == [("b", "a")]


@pytest.mark.parametrize("spelling", ["pt_BR", "pt-br", "PT_br"])
def test_a_language_is_found_however_its_region_is_spelled(tmp_path, spelling):
    data = put(tmp_path, **{"train__en": ["a", "b"], f"train__{spelling}": ["c", "d"]})
    assert len(load(data, ("en", "pt_br")).splits["train"]) == 1


TABLE_ROWS = [("hello", "hallo", "1"), ("bye, now", 'so "long"', "2"), ("thanks", "danke", "3")]
TABLES = {
    "t.tsv": "en\tde\tid\n" + "".join("\t".join(row) + "\n" for row in TABLE_ROWS),
    "t.csv": as_csv([("en", "de", "id"), *TABLE_ROWS]),
    "t.jsonl": "".join(json.dumps({"en": en, "de": de, "id": n}) + "\n" for en, de, n in TABLE_ROWS),
}


@pytest.mark.parametrize("name", TABLES)
def test_a_table_has_one_column_a_language(tmp_path, name):
    path = tmp_path / name
    path.write_text(TABLES[name], "utf-8")
    found = load(str(path))
    pairs = sorted(chain(*found.splits.values()), key=lambda pair: pair.origin)
    assert sides(pairs) == [row[:2] for row in TABLE_ROWS]
    first = 1 if name.endswith("jsonl") else 2
    assert [pair.origin for pair in pairs] == [f"{name}:{first + n}" for n in range(3)]
    assert available_languages(str(path)) == ["de", "en", "id"]


@pytest.mark.parametrize("name", TABLES)
def test_a_folder_of_tables_is_read_by_split(tmp_path, name):
    for split in ("train", "dev", "test"):
        (tmp_path / name.replace("t.", f"{split}.")).write_text(TABLES[name], "utf-8")
    found = load(str(tmp_path))
    assert [len(part) for part in found.splits.values()] == [3, 3, 3]
    assert available_languages(str(tmp_path)) == ["de", "en", "id"]


def test_a_quoted_csv_field_that_looks_like_a_row_is_a_text(tmp_path):
    rows = [("en", "de"), ("hi", "da"), ("one\nhi,da", "eins"), ("two", "zwei")]
    path = tmp_path / "t.csv"
    path.write_text(as_csv(rows), "utf-8")
    assert ("one\nhi,da", "eins") in sides(chain(*load(str(path)).splits.values()))


def test_a_source_that_repeats_stands_in_one_split(tmp_path):
    rng = random.Random(0)
    rows = [(f"sentence {rng.randrange(300)}", f"Satz {n}") for n in range(2000)]
    data = write_parallel_table(tmp_path / "tatoeba.tsv", PAIR, rows)
    found = load(str(data))
    sources = [set(found.sources(split)) for split in found.splits]
    assert sum(map(len, sources)) == len(set().union(*sources))
    for split, part in found.splits.items():
        assert all(split_of(text_hash(pair.source)) == split for pair in part)
    assert "hash of the source" in found.notes[0]


def test_the_cut_is_the_same_for_ever_and_test_is_never_learnt_from(tmp_path):
    data = put(tmp_path, train__en=numbered(1000), train__de=numbered(1000, "Zeile"))
    shown, hidden = load(data), load(data, with_test=False)
    assert {name: len(part) for name, part in shown.splits.items()} == {"train": 791, "valid": 108, "test": 101}
    assert hidden.splits == {name: shown.splits[name] for name in ("train", "valid")}
    assert [pair.origin for pair in shown.train] == sorted(
        (pair.origin for pair in shown.train), key=lambda origin: int(origin.split(":")[1])
    )


def test_with_a_test_file_only_valid_is_cut_out_of_train(tmp_path):
    files = {"train__en": numbered(200), "train__de": numbered(200, "Zeile")}
    data = put(tmp_path, **files, test__en=["x"], test__de=["y"])
    found = load(data)
    assert sides(found.test) == [("x", "y")]
    assert len(found.train) + len(found.valid) == 200
    assert "no valid given" in found.notes[0]


@SEVERAL
@given(st.lists(st.integers(0, 40), min_size=1, max_size=12))
def test_a_tiny_set_fills_train_and_valid_wherever_two_sources_are_there(tmp_path, numbers):
    data = put(tmp_path, train__en=[f"s {n}" for n in numbers], train__de=[f"t {n}" for n in numbers])
    found = load_or_error(data)
    if len(set(numbers)) < 2:
        assert "too few different sources" in str(found)
        return
    assert found.train
    assert found.valid
    assert bool(found.test) == (len(set(numbers)) > 2)
    assert Counter(sides(chain(*found.splits.values()))) == Counter((f"s {n}", f"t {n}") for n in numbers)


@pytest.mark.parametrize(
    ("de", "counts", "hint"),
    [(["a", "b"], "3 lines and .*2", "train.en"), (["a", "b", "c", "", " "], "3 lines and .*5", "empty lines")],
)
def test_files_of_different_length_are_refused_with_both_counts(tmp_path, de, counts, hint):
    data = put(tmp_path, train__en=["x", "y", "z"], train__de=de)
    with pytest.raises(DataError, match=counts) as caught:
        load(data)
    assert hint in caught.value.hint


def test_pairs_that_cannot_be_used_are_counted_and_named(tmp_path):
    en = ["one", "", "three", " ", "five " * 30]
    de = ["eins", "zwei", "\t", "", "5"]
    data = put(tmp_path, train__en=en, train__de=de, valid__en=["v"], valid__de=["v " * 99])
    found = load(data)
    ratio = "one side has over 9 times the characters of the other (data.max_length_ratio)"
    assert found.skips == [
        SkippedRow("train.en:2", "source is empty"),
        SkippedRow("train.en:3", "target is empty"),
        SkippedRow("train.en:4", "source and target are empty"),
        SkippedRow("train.en:5", ratio),
    ]
    assert sides(found.train) == [("one", "eins")]
    assert len(found.valid) == 1, "evaluation data is complete"
    assert len(load(data, config=ANY_RATIO).train) == 2
    for config, line in (
        (DataConfig(on_bad_row="error"), ":2: source is empty"),
        (DataConfig(on_bad_row="error", max_length_ratio=2), ":2"),
    ):
        with pytest.raises(DataError, match=line):
            load(data, config=config)


def test_strictness_also_holds_for_the_ratio(tmp_path):
    data = put(tmp_path, train__en=["a" * 90, "b"], train__de=["c", "d"], valid__en=["v"], valid__de=["w"])
    with pytest.raises(DataError, match=r"train\.en:1: one side has over 9 times") as caught:
        load(data, config=DataConfig(on_bad_row="error"))
    assert "--strict" in caught.value.hint


@pytest.mark.parametrize(
    ("source", "target", "is_fine"),
    [
        ("OK", "Einverstanden, ja", True),
        ("好", "That is quite all right with me", True),
        ("数据库中的所有记录", "All of the records that are contained in the data base", True),
        ("I", "Ich glaube, dass das niemals gutgehen kann und wird", False),
        ("word " * 50, "Wort", False),
    ],
)
def test_short_lines_and_dense_scripts_pass_and_absurd_lengths_do_not(source, target, is_fine):
    there, back = length_ratio(PairExample(source, target)), length_ratio(PairExample(target, source))
    assert there == back >= 1
    assert (there <= PLAIN.max_length_ratio) == is_fine


def test_a_pair_that_is_its_own_translation_is_kept(tmp_path):
    data = put(tmp_path, train__en=["same", "other"], train__de=["same", "other"])
    assert sum(len(part) for part in load(data).splits.values()) == 2


@pytest.mark.parametrize(
    ("files", "problem", "hint"),
    [
        ({"train__en": "a\n", "train__de": "b\n"}, "no en and fr side by side; it has de, en", "train.fr"),
        ({"train__en": "a\n", "test__en": "a\n", "test__fr": "b\n"}, "only in test", "train.fr"),
        ({}, "it has no file called train.LANGUAGE", "train.en"),
        ({"train__en": "a\n", "train__fr": "b\n", "train__en.gz": gzip.compress(b"a\n", mtime=0)}, "two files for en", "keep one"),
        ({"train__en": "a\n", "train__fr": "b\n", "train__EN": "a\n"}, "has en twice", "keep one"),
        ({"train__en": "a\n", "train__fr": "b\n", "train__tsv": "en\tfr\na\tb\n"}, "has train twice", "keep one"),
        ({"train__tsv": "en\tde\na\tb\n"}, "no column 'fr'; it has 'en', 'de'", "--pair"),
        ({"train__tsv": "en\tfr\tfr\na\tb\tc\n"}, "has fr twice", "keep one"),
        ({"train__tsv": ""}, "no pair of train of .* can be used; it is empty", "both languages"),
        ({"train__jsonl": "[]\n"}, "no pair .* can be used; train.jsonl:1: the line holds no JSON object", "both"),
        ({"train__en": "", "train__fr": ""}, "no pair of train of .* can be used; it is empty", "both languages"),
        ({"train__en": "\n", "train__fr": "x\n"}, "train.en:1: source is empty", "both languages"),
        ({"train__en": "a\n", "train__fr": "b\n"}, "too few different sources", "valid"),
        ({"train__en": "a" * 99 + "\nb\n" + "c" * 99, "train__fr": "a\n" + "b" * 99 + "\nc"}, "in no pair of train", "max_length_ratio"),
        ({"train__en": b"caf\xe9\n", "train__fr": "b\n"}, "train.en:1 is not UTF-8", "iconv"),
        ({"train__en": "a\n", "train__fr": b"b\0\n"}, "train.fr:1 holds a NUL", "iconv"),
        ({"train__en.gz": b"plain", "train__fr": "b\n"}, "corrupt", "again"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_one_sentence_and_a_hint(tmp_path, files, problem, hint):
    with pytest.raises(DataError, match=problem) as caught:
        load(put(tmp_path / "set", **files), ("en", "fr"))
    assert hint in caught.value.hint


def test_a_missing_path_and_a_lone_language_file_are_answered(tmp_path):
    put(tmp_path, train__en=["a"], train__de=["b"])
    with pytest.raises(DataError, match="no file at"):
        load(str(tmp_path / "nowhere"))
    with pytest.raises(DataError, match="is no table") as caught:
        load(str(tmp_path / "train.en"))
    assert "folder" in caught.value.hint


def test_a_side_without_its_twin_is_told(tmp_path):
    files = {"train__en": numbered(50), "train__de": numbered(50), "train__fr": numbered(50)}
    data = put(tmp_path, **files, test__en=["x"])
    assert "test.en has no twin in the other language and is not read" in load(data).notes
    assert available_languages(data) == ["de", "en", "fr"]


def test_a_labelled_reader_points_to_the_pair(tmp_path):
    from headstart.data.datasets import load_dataset

    with pytest.raises(DataError) as caught:
        load_dataset(put(tmp_path, train__en=["a"], train__de=["b"]), PLAIN)
    assert "--pair en-de" in caught.value.hint


def test_json_that_is_no_text_is_skipped(tmp_path):
    rows = [{"en": "a", "de": "b"}, {"en": 3, "de": "x"}, {"en": "x", "de": None}, {"en": "\ud800", "de": "x"}, {"en": "x"}, {"en": "c", "de": "d"}]  # fmt: skip
    path = tmp_path / "t.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = load(str(path))
    assert [skip.reason.split(",")[0] for skip in found.skips] == [
        "the en text is a number",
        "the de text is null",
        "the en text holds half a character (a lone surrogate)",
        "no 'de' in the object",
    ]
    assert Counter(sides(chain(*found.splits.values()))) == {("a", "b"): 1, ("c", "d"): 1}


def test_scoring_reads_test_then_valid_then_a_table_whole(tmp_path):
    data = put(tmp_path / "a", test__en=["x" * 99], test__de=["y"], valid__en=["v"], valid__de=["w"])
    assert load_pairs_for_scoring(data, PAIR, PLAIN) == ("test", [PairExample("x" * 99, "y", "test.en:1")], [])
    (tmp_path / "a" / "test.de").unlink()
    assert load_pairs_for_scoring(data, PAIR, PLAIN)[0] == "valid"
    table = write_parallel_table(tmp_path / "t.tsv", PAIR, [("a", "b"), ("c", "")])
    name, pairs, skips = load_pairs_for_scoring(str(table), PAIR, PLAIN)
    assert (name, sides(pairs), len(skips)) == ("all", [("a", "b")], 1)
    whole = put(tmp_path / "b", train__en=numbered(50), train__de=numbered(50))
    name, pairs, _ = load_pairs_for_scoring(whole, PAIR, PLAIN)
    assert (name, pairs) == ("test", load(whole).test)


@SEVERAL
@given(
    st.lists(st.tuples(LINES, LINES), min_size=1, max_size=8),
    st.sampled_from(["\n", "\r\n"]),
    st.sampled_from(["utf-8", "utf-8-sig", "utf-16"]),
    st.booleans(),
)
@example([("a\tb", "c\u2028d"), ("", "x"), ("﻿", "\x85")], "\r\n", "utf-8-sig", False)
def test_lines_keep_their_order_and_their_twins_exactly(tmp_path, rows, end, encoding, is_ended):
    rows = [tuple(side.rstrip("\r") for side in row) for row in rows]
    rows[-1] = tuple(side or "." for side in rows[-1])  # a file's last line, unended, must not be empty
    for language, column in zip(PAIR, zip(*rows, strict=True), strict=True):
        content = end.join(column) + (end if is_ended else "")
        for split in ("train", "valid"):
            (tmp_path / f"{split}.{language}").write_bytes(content.encode(encoding))
    usable = [(n, row) for n, row in enumerate(rows, start=1) if all(side.strip() for side in row)]
    found = load_or_error(str(tmp_path), config=ANY_RATIO)
    if not usable:
        assert "no pair of train" in str(found)
        return
    assert sides(found.train) == sides(found.valid) == [row for _, row in usable]
    assert [pair.origin for pair in found.train] == [f"train.en:{n}" for n, _ in usable]
    assert len(found.skips) == 2 * (len(rows) - len(usable))


BROKEN = st.lists(
    st.sampled_from([b"en", b"de", b'"', b",", b"\t", b"\n", b"\r\n", b"\r", b"\0", b"\xff", b"\xef\xbb\xbf", b"\xff\xfe", b"{", b'{"en": "a", "de": 1}\n', b'{"en": "a", "de": "b"}\n', b"a b", b"\xf0\x9f\x98\x80", b"\\", b"x" * 70_000]),
    max_size=20,
).map(b"".join)  # fmt: skip


@SEVERAL
@given(st.tuples(BROKEN, BROKEN), st.booleans())
def test_broken_files_raise_nothing_but_data_errors_with_hints(tmp_path, contents, is_strict):
    for language, content in zip(PAIR, contents, strict=True):
        (tmp_path / f"train.{language}").write_bytes(content)
    found = load_or_error(str(tmp_path), config=DataConfig(on_bad_row="error" if is_strict else "skip"))
    if isinstance(found, DataError):
        assert found.hint
        return
    json.dumps(audit_parallel(found).to_dict())
    if any(content.startswith(b"\xff\xfe") for content in contents):  # UTF-16, which has other newlines
        return
    lines = [content.removesuffix(b"\n").count(b"\n") + 1 for content in contents]
    assert lines[0] == lines[1] == sum(map(len, found.splits.values())) + len(found.skips)


@SEVERAL
@given(BROKEN, st.sampled_from([".tsv", ".csv", ".jsonl"]), st.booleans())
def test_broken_tables_raise_nothing_but_data_errors_with_hints(tmp_path, content, kind, has_header):
    header = {".tsv": b"en\tde\n", ".csv": b"en,de\n", ".jsonl": b""}[kind] if has_header else b""
    path = tmp_path / f"t{kind}"
    path.write_bytes(header + content)
    for read in (lambda: load(str(path)), lambda: available_languages(str(path)), lambda: load_pairs_for_scoring(str(path), PAIR, PLAIN)):  # fmt: skip
        outcome = outcome_of(read)
        assert not isinstance(outcome, DataError) or outcome.hint


@SEVERAL
@given(st.lists(LINES, max_size=6), st.lists(LINES, max_size=6))
def test_unequal_counts_are_always_refused(tmp_path, en, de):
    data = put(tmp_path, train__en=en, train__de=de)
    found = load_or_error(data)
    if len(en) != len(de):
        assert isinstance(found, DataError)
        assert f"{len(en)} lines" in str(found)
        assert f"has {len(de)}" in str(found)
    elif not isinstance(found, DataError):
        expected = [row for row in zip_longest(en, de) if all(side.strip() for side in row)]
        assert sum(map(len, found.splits.values())) + len(found.skips) >= len(expected)


@pytest.mark.parametrize("task", TASKS)
def test_the_synthetic_tasks_are_sets_that_load(tmp_path, task):
    data = write_aligned(tmp_path / "set", TASKS[task], count=100, seed=3)
    found = load(str(data), ("src", "trg"))
    assert not found.skips
    again = load(str(write_aligned(tmp_path / "again", TASKS[task], count=100, seed=3)), ("src", "trg"))
    assert found.splits == again.splits
    for split in ("train", "valid", "test"):
        assert all(TASKS[task].target(pair.source) == pair.target for pair in found.splits[split])
    sources = [set(found.sources(split)) for split in found.splits]
    assert sum(map(len, sources)) == len(set().union(*sources)), "no source is in two splits"
