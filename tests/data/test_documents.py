import gzip
import json
import lzma

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headstart.config import DataConfig
from headstart.data import documents as module
from headstart.data.datasets import Dataset, Example
from headstart.data.documents import open_documents, separator_of
from headstart.errors import DataError

CONFIG = DataConfig()
ROWS = ["first text", "second text"]

WRITERS = {
    "a.txt": lambda rows: "\n".join(rows) + "\n",
    "a.tsv": lambda rows: "text\tlabel\n" + "".join(f"{row}\t1\n" for row in rows),
    "a.csv": lambda rows: "label,text\n" + "".join(f"1,{row}\n" for row in rows),
    "a.jsonl": lambda rows: "".join(json.dumps({"text": row}) + "\n" for row in rows),
}
SQUEEZE = {"": lambda raw: raw, ".gz": gzip.compress, ".xz": lzma.compress}

lines = st.lists(st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1), max_size=20)


@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize("ending", SQUEEZE)
def test_each_kind_of_file_is_read_plain_and_compressed(tmp_path, name, ending):
    path = tmp_path / (name + ending)
    path.write_bytes(SQUEEZE[ending](WRITERS[name](ROWS).encode()))
    documents = open_documents(str(path), CONFIG)
    assert list(documents) == ROWS
    assert list(documents) == ROWS  # and again
    assert documents.name == "a"
    assert documents.expected_bytes > 0


@given(lines)
def test_each_line_that_is_not_blank_is_a_document(tmp_path_factory, rows):
    path = tmp_path_factory.mktemp("lines") / "a.txt"
    path.write_bytes("\n".join(rows).encode())
    documents = open_documents(str(path), DataConfig(document_separator="line"))
    assert [row.removesuffix("\r") for row in rows if row.strip()] == [*documents]


def test_paragraphs_keep_their_inner_line_ends(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("\none\ntwo\n\n \n\nthree\n")
    assert list(open_documents(str(path), DataConfig(document_separator="paragraph"))) == ["one\ntwo", "three"]


def test_an_endless_paragraph_is_cut_at_a_line_end(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "LONGEST_DOCUMENT", 8)
    path = tmp_path / "a.txt"
    path.write_text("12345\n12345\n12345\n")
    assert list(open_documents(str(path), DataConfig(document_separator="paragraph"))) == ["12345\n12345", "12345"]


@given(st.integers(1, 400), st.data())
def test_stray_blank_lines_leave_lines_to_be_documents(count, data):
    rows = ["a review"] * count
    for place in data.draw(st.lists(st.integers(0, count), max_size=count // 20)):
        rows.insert(place, "")
    assert separator_of(rows) == "line"


@given(st.lists(st.integers(2, 12), min_size=5, max_size=30))
def test_blank_lines_between_runs_of_lines_part_paragraphs(lengths):
    rows = [line for length in lengths for line in [*["a wrapped line"] * length, ""]]
    assert separator_of(rows) == "paragraph"


def test_single_lines_between_blank_lines_are_documents_either_way():
    assert separator_of(["a review", ""] * 50) == "line"


def test_the_choice_of_separator_is_told_and_can_be_made(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("one\ntwo\n\n" * 9)
    chosen = open_documents(str(path), CONFIG)
    assert "data.document_separator=paragraph" in chosen.notes[0]
    assert len(list(chosen)) == 9
    forced = open_documents(str(path), DataConfig(document_separator="line"))
    assert (forced.notes, len(list(forced))) == ([], 18)
    assert forced.fingerprint != chosen.fingerprint


def write_folder(folder):
    for name in ("b.txt", "a.tsv", "deep/c.jsonl", "valid.tsv", "deep/test.txt.gz", "test/d.txt", "dev.csv", ".e.txt"):
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        kind = name.removesuffix(".gz").rpartition(".")[2]
        raw = WRITERS[f"a.{kind}"]([f"text of {name}"]).encode()
        path.write_bytes(gzip.compress(raw) if name.endswith(".gz") else raw)
    (folder / "scores.csv").write_text("name,score\nx,1\n")
    (folder / "picture.png").write_bytes(b"\x89PNG")


def test_a_folder_gives_all_its_texts_but_those_held_out(tmp_path):
    write_folder(tmp_path)
    documents = open_documents(str(tmp_path), CONFIG)
    assert list(documents) == ["text of a.tsv", "text of b.txt", "text of deep/c.jsonl"]
    left = [note.split()[0] for note in documents.notes if "left out" in note]
    assert sorted(left) == ["deep/test.txt.gz", "dev.csv", "scores.csv", "test/d.txt", "valid.tsv"]
    assert any("no column 'text'" in note for note in documents.notes)


def test_a_tokenizer_dictionary_is_no_document(tmp_path):
    write_folder(tmp_path)
    (tmp_path / "dict.txt").write_text("piece 1\n")
    (tmp_path / "pieces.model").write_bytes(b"")
    assert "piece 1" not in list(open_documents(str(tmp_path), CONFIG))


def test_the_fingerprint_follows_content_and_reading_alone(tmp_path):
    for place in ("one", "two"):
        (tmp_path / place).mkdir()
        (tmp_path / place / f"{place}.txt").write_text("a\nb\n")
    one, two = (open_documents(str(tmp_path / place), CONFIG) for place in ("one", "two"))
    assert one.fingerprint == two.fingerprint
    (tmp_path / "two" / "two.txt").write_text("a\nc\n")
    assert open_documents(str(tmp_path / "two"), CONFIG).fingerprint != one.fingerprint


def test_rows_that_cannot_be_used_are_counted_by_reason(tmp_path):
    path = tmp_path / "a.tsv"
    path.write_text("text\tlabel\ngood\t1\n \t1\n\t1\nbroken\n")
    documents = open_documents(str(path), CONFIG)
    for _ in range(2):
        assert list(documents) == ["good"]
        assert sorted(documents.skips.values()) == [1, 2]
        assert documents.skips["the text is empty"] == 2
    with pytest.raises(DataError, match=r"a\.tsv:3"):
        list(open_documents(str(path), DataConfig(on_bad_row="error")))


def test_broken_utf8_names_file_and_line(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes("été\n".encode() + b"\xe9t\xe9\n")
    with pytest.raises(DataError, match=r"a\.txt:2"):
        list(open_documents(str(path), CONFIG))


def test_a_missing_text_column_is_told_at_once(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("review,label\nx,1\n")
    with pytest.raises(DataError, match="no column 'text'"):
        open_documents(str(path), CONFIG)
    assert list(open_documents(str(path), DataConfig(text_column="review"))) == ["x"]


def test_a_mistyped_name_is_answered_with_the_nearest_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "reviews.txt").write_text("x\n")
    for typed, meant in (("imbd", "imdb"), ("rotten_tomatoes", "rotten-tomatoes"), ("reviews.tx", "reviews.txt")):
        with pytest.raises(DataError) as caught:
            open_documents(typed, CONFIG)
        assert meant in caught.value.hint


@pytest.mark.parametrize("name", ["picture.png", "empty"])
def test_what_holds_no_text_says_what_is_read(tmp_path, name):
    path = tmp_path / name
    path.write_bytes(b"\x89PNG") if "." in name else path.mkdir()
    with pytest.raises(DataError, match=r"\.txt"):
        open_documents(str(path), CONFIG)


def test_a_built_in_name_gives_its_train_split_alone(monkeypatch):
    splits = {"train": [Example("one", "a"), Example("two", "b")], "valid": [Example("three", "a")]}
    monkeypatch.setattr(module, "load_dataset", lambda name, config, with_test: Dataset(name, splits, ["a", "b"]))
    documents = open_documents("imdb", CONFIG)
    assert list(documents) == ["one", "two"]
    assert documents.expected_bytes == 6
    assert documents.fingerprint == open_documents("imdb", CONFIG).fingerprint
    assert "train" in documents.notes[0]
