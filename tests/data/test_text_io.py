import gzip
import io
import lzma
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headstart.data.text_io import decode_lines, kind_of, open_text, read_lines
from headstart.errors import DataError

PACKERS = {"": lambda raw: raw, ".gz": gzip.compress, ".xz": lzma.compress}


def decoded(raw):
    return list(decode_lines(io.BytesIO(raw), "here"))


def decoded_or_error(raw):
    try:
        return decoded(raw)
    except DataError as error:
        return error


@pytest.mark.parametrize("ending", PACKERS)
def test_a_file_is_read_plain_or_packed(tmp_path, ending):
    path = tmp_path / f"texts.txt{ending}"
    path.write_bytes(PACKERS[ending]("één\r\n\r\ntwo\u2028still two\x0b\x85\nlast".encode()))
    assert list(open_text(path)) == [(1, "één"), (2, ""), (3, "two\u2028still two\x0b\x85"), (4, "last")]
    assert len(list(read_lines(path))) == 4


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_a_byte_order_mark_is_obeyed_and_dropped(encoding):
    assert decoded("a\u0a0a\nb 😀\r\n".encode(encoding)) == [(1, "a\u0a0a"), (2, "b 😀")]


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")), st.sampled_from("lb"))
def test_utf_16_breaks_lines_where_utf_8_does(text, order):
    mark = b"\xff\xfe" if order == "l" else b"\xfe\xff"
    assert decoded(mark + text.encode(f"utf-16-{order}e")) == decoded(b"\xef\xbb\xbf" + text.encode())


@given(st.binary(max_size=200))
def test_any_bytes_are_lines_or_a_data_error(raw):
    outcome = decoded_or_error(raw)
    if isinstance(outcome, DataError):
        assert "here:" in str(outcome)
        assert outcome.hint
    else:
        assert [number for number, _ in outcome] == list(range(1, len(outcome) + 1))


@pytest.mark.parametrize(
    ("raw", "problem", "hint"),
    [
        (b"fine\ncaf\xe9\n", "here:2 is not UTF-8: byte 0xe9 at character 4", "iconv"),
        (b"fine\nfine\nbad\0\n", "here:3 holds a NUL", "iconv"),
        (gzip.compress(b"text", mtime=0), "here:1", ".gz"),
        (lzma.compress(b"text"), "here:1", ".xz"),
        (b"\xff\xfea\0\n\0\x00\xd8\n\0", "here:2 is not UTF-16", "iconv"),
    ],
    ids=["latin-1", "nul", "gzip", "xz", "utf-16"],
)
def test_bytes_that_are_no_text_are_named_by_line(raw, problem, hint):
    with pytest.raises(DataError, match=problem) as caught:
        decoded(raw)
    assert hint in caught.value.hint


@pytest.mark.parametrize("ending", [".gz", ".xz"])
@pytest.mark.parametrize(
    "damage", [lambda raw: raw[:-9], lambda raw: b"no" + raw, lambda raw: raw[:20] + b"~~~" + raw[23:]]
)
def test_a_corrupt_archive_is_named(tmp_path, ending, damage):
    path = tmp_path / f"texts.txt{ending}"
    path.write_bytes(damage(PACKERS[ending](bytes(range(1, 10)) * 99)))
    with pytest.raises(DataError, match="corrupt") as caught:
        list(open_text(path))
    assert caught.value.hint


def test_a_missing_file_is_answered_with_the_nearest_one(tmp_path):
    (tmp_path / "reviews.tsv").write_text("x")
    with pytest.raises(DataError, match="no file") as caught:
        list(open_text(tmp_path / "review.tsv"))
    assert "reviews.tsv" in caught.value.hint


def test_a_folder_is_no_file(tmp_path):
    with pytest.raises(DataError, match="is a folder"):
        list(open_text(tmp_path))


@pytest.mark.parametrize("path", [Path("no/such/folder/a.txt"), Path("a" * 300), Path("nul\0.txt")])
def test_an_impossible_path_is_a_data_error(path):
    with pytest.raises(DataError):
        list(open_text(path))


def test_a_forbidden_file_says_how_to_allow_it(tmp_path, monkeypatch):
    def forbid(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("headstart.data.text_io.open", forbid, raising=False)
    with pytest.raises(DataError, match="may not be read") as caught:
        list(open_text(tmp_path / "a.txt"))
    assert "chmod" in caught.value.hint


@pytest.mark.parametrize(
    ("name", "kind"),
    [("a.TSV", ".tsv"), ("a.csv.gz", ".csv"), ("a.b.jsonl.XZ", ".jsonl"), ("a.txt", ".txt"), ("a.json", ""), ("a", "")],
)
def test_the_ending_says_the_kind(name, kind):
    assert kind_of(Path(name)) == kind
