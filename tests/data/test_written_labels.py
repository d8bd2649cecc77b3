"""Labels that stand in the texts themselves: found, cut out, and the texts still known by what stood there."""

import lzma

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headstart.config import DataConfig
from headstart.data.apart import without_apart
from headstart.data.example import SPLITS, Example, hashes
from headstart.data.sources import SOURCES, load_dataset, load_for_scoring
from headstart.data.splits import cut
from headstart.data.written_labels import read_written
from headstart.errors import ConfigError, DataError

TENTHS = r"(?<![\d.])(\d+(?:\.\d)?)\s?/\s?10\b"
OPINION = {"negative": ["0", "1", "2", "3", "4"], "positive": ["7", "8", "8.5", "9", "10"]}
WRITTEN = DataConfig(label_pattern=TENTHS, classes=OPINION)


def written(tmp_path, *lines, name="reviews.txt", **more):
    path = tmp_path / name
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return read_written(path, "text", TENTHS, OPINION, **more)


def test_a_label_is_found_wherever_it_stands_and_cut_out(tmp_path):
    found, skips = written(
        tmp_path, "A joy. 8/10", "10.0 / 10 for the music alone", "Dull, so  3/10, and   I was kind."
    )
    assert [(row.text, row.label) for row in found] == [
        ("A joy.", "positive"),
        ("for the music alone", "positive"),
        ("Dull, so , and I was kind.", "negative"),
    ]
    assert found[0].origin == "reviews.txt:1"
    assert skips == []


def test_each_text_that_is_left_out_is_told_with_its_reason(tmp_path):
    found, skips = written(
        tmp_path,
        "First 8/10, on reflection 9/10",
        "No number here",
        "Was 8/10, is 2/10 today",
        "A clear 5/10",
        "Was 5/10, is 9/10 today",
        "",
        "7/10",
    )
    assert [row.text for row in found] == ["First , on reflection"]
    assert [(skip.origin.split(":")[1], skip.reason) for skip in skips] == [
        ("2", "no label is written in it"),
        ("3", "it names labels of more than one class"),
        ("4", "its label is of no class"),
        ("5", "it names labels of more than one class"),
        ("7", "nothing is left beside its label"),
    ]


def test_a_group_called_like_a_class_stands_for_it(tmp_path):
    path = tmp_path / "reviews.txt"
    path.write_text(
        "A (true) masterpiece, 9/10\nTrash. 9/10\nTotal trash\nMasterpiece!\n5/10\n", encoding="utf-8"
    )
    pattern = r"(?i)(\d+)/10|(?P<positive>(?:\((true|real)\) )?masterpiece)|(?P<negative>trash)"
    found, skips = read_written(path, "text", pattern, OPINION)
    assert [(row.text, row.label) for row in found] == [
        ("A ,", "positive"),
        ("Total", "negative"),
        ("!", "positive"),
    ]
    assert [skip.reason for skip in skips] == [
        "it names labels of more than one class",
        "its label is of no class",
    ]


@pytest.mark.parametrize(
    "pattern",
    [
        r"(\d+)/10|(?P<positive>must) (see|watch)|(?P<negative>skip) (it|this)",
        r"(\d+)/10|((?P<positive>must see)|(?P<negative>skip it))",
        r"((?P<positive>must see)|(?P<negative>skip it))",
        r"(?P<positive>must( see)?)|(?P<negative>skip( it)?)",
        r"must see(?P<positive>\b.*)|skip it(?P<negative>\b.*)|(?P<none>x)",
    ],
)
def test_groups_stand_for_classes_wherever_they_are_in_the_pattern(tmp_path, pattern):
    path = tmp_path / "reviews.txt"
    path.write_text("A must see today\nWell, skip it today\n", encoding="utf-8")
    found, skips = read_written(path, "text", pattern, OPINION)
    assert [row.label for row in found] == ["positive", "negative"]
    assert skips == []


def test_a_group_that_matches_nothing_stands_for_nothing(tmp_path):
    path = tmp_path / "reviews.txt"
    path.write_text("Fine 8/10\nPoor 2/10 stars\nneither\n", encoding="utf-8")
    found, _ = read_written(path, "text", r"(\d+)/10(?P<positive>)|(?P<negative>x*)", OPINION)
    assert [row.label for row in found] == ["positive", "negative"]


def test_a_group_with_another_name_is_the_label_itself(tmp_path):
    path = tmp_path / "reviews.txt"
    path.write_text("Fine 8/10\nPoor 2/10\n", encoding="utf-8")
    found, _ = read_written(path, "text", r"(?P<rating>\d+)(/10)", OPINION)
    assert [row.label for row in found] == ["positive", "negative"]


def test_damage_is_an_error_when_strict_and_a_text_without_a_label_is_not(tmp_path):
    rows = ['{"text": "Good 8/10"}', '{"text": "plain"}', '{"text": 3}']
    found, skips = written(tmp_path, *rows[:2], name="reviews.jsonl", strict=True)
    assert len(found) == len(skips) == 1
    with pytest.raises(DataError, match="the text is a number"):
        written(tmp_path, *rows, name="reviews.jsonl", strict=True)
    assert len(written(tmp_path, *rows, name="reviews.jsonl")[1]) == 2


def test_without_classes_what_is_written_is_the_label_and_without_a_group_the_whole_match(tmp_path):
    (tmp_path / "tagged.txt").write_text("so glad #happy\nso sad #gloomy\nboth #happy #gloomy\n")
    for pattern, marks in ((r"#(\w+)", ["happy", "gloomy"]), (r"#\w+", ["#happy", "#gloomy"])):
        found, skips = read_written(tmp_path / "tagged.txt", "text", pattern, {})
        assert [row.label for row in found] == marks
        assert len(skips) == 1


def test_tables_and_compressed_texts_are_read_and_cut_into_splits(tmp_path):
    lines = [f"text number {n} is here, {n % 10}/10" for n in range(400)]
    with lzma.open(tmp_path / "all.txt.xz", "wt") as file:
        file.write("\n".join(lines))
    (tmp_path / "all.tsv").write_text("text\tlabel\n" + "".join(f"{line}\twrong\n" for line in lines))
    read = [load_dataset(str(tmp_path / name), WRITTEN) for name in ("all.txt.xz", "all.tsv")]
    assert [row.text for row in read[0].train] == [row.text for row in read[1].train]
    assert read[0].classes == ["negative", "positive"]
    assert len(read[0].train) + len(read[0].valid) == 320
    assert len(read[0].skips) == 80


def test_a_text_is_known_by_what_stood_there(tmp_path):
    """What is set apart stays apart, and what was read counts as seen, though the label is cut out."""
    lines = [f"text number {n} is here, {n % 10}/10" for n in range(400)]
    (tmp_path / "all.txt").write_text("\n".join(lines))
    judged = tmp_path / "judged"
    judged.mkdir()
    rows = {"train": ["a\tyes", "b\tno"], "valid": [f"{line}\tyes" for line in lines[::2]], "test": ["c\tno"]}
    for split, content in rows.items():
        (judged / f"{split}.tsv").write_text("text\tlabel\n" + "\n".join(content))
    dataset = load_dataset(str(tmp_path / "all.txt"), WRITTEN)
    spared = without_apart(dataset, [str(judged)])
    numbers = {int(row.text.split()[2]) for rows in spared.splits.values() for row in rows}
    assert numbers == {n for n in range(1, 400, 2) if n % 10 not in (5, 6)}
    assert np.isin(spared.hashes("train"), hashes(lines)).all()


def test_a_table_with_labels_is_judged_by_them_and_one_without_by_the_pattern(tmp_path):
    (tmp_path / "labels.tsv").write_text("text\tlabel\nfine, 2/10\tpositive\nbad\tnegative\n")
    (tmp_path / "none.tsv").write_text("text\tother\nfine, 9/10\tx\nbad, 1/10\tx\n")
    _, examples, _ = load_for_scoring(str(tmp_path / "labels.tsv"), WRITTEN)
    assert [(row.text, row.label) for row in examples] == [("fine, 2/10", "positive"), ("bad", "negative")]
    _, examples, _ = load_for_scoring(str(tmp_path / "none.tsv"), WRITTEN)
    assert [(row.text, row.label) for row in examples] == [("fine,", "positive"), ("bad,", "negative")]


def test_texts_of_a_built_in_set_are_learnt_by_what_stands_in_them_and_never_by_its_labels(
    monkeypatch, tmp_path
):
    (tmp_path / "all.txt").write_text("\n".join(f"text number {n} is here, {n % 10}/10" for n in range(400)))
    rows = [Example(f"film {n}, 9/10", "negative", f"{n}") for n in range(300)]
    monkeypatch.setitem(SOURCES, "films", lambda: rows)
    dataset = load_dataset(str(tmp_path / "all.txt"), WRITTEN.model_copy(update={"also": ["films"]}))
    films = [row for rows in dataset.splits.values() for row in rows if row.text.startswith("film")]
    held = {row.text for split in ("valid", "test") for row in cut(rows, SPLITS)[0][split]}
    assert {row.label for row in films} == {"positive"}
    assert 200 < len(films) < 300
    assert not held & {row.known_as for row in films}
    assert any("films (data.also) are learnt from too" in note for note in dataset.notes)


def test_bad_patterns_are_told(tmp_path):
    with pytest.raises(ConfigError, match="no regular expression"):
        DataConfig(label_pattern="(8/10")
    with pytest.raises(ConfigError, match="labels of its own"):
        load_dataset("imdb", WRITTEN)
    with pytest.raises(DataError, match=r"in no text of .*the first, reviews.txt:1: no label"):
        written(tmp_path, "plain", "plainer")
    with pytest.raises(DataError, match="in no text of"):
        written(tmp_path)


WORDS = st.lists(st.text("abcd,.!", min_size=1, max_size=5), min_size=1, max_size=8)


@given(before=WORDS, after=WORDS, mark=st.sampled_from(["2", "3", "8", "9"]))
def test_what_is_learnt_never_holds_its_label(tmp_path_factory, before, after, mark):
    text = " ".join([*before, f"{mark}/10", *after])
    (found,), _ = written(tmp_path_factory.mktemp("one"), text)
    assert found.text.split() == [*before, *after]
    assert found.label == ("positive" if mark in "89" else "negative")
    assert found.known_as == text
