"""Texts held out for evaluation stay out of training; the hashes of what was read, whole and in their short form."""

import lzma

import numpy as np
import pytest

from headstart.config import DataConfig
from headstart.data.dataset import hashes
from headstart.data.datasets import load_dataset
from headstart.data.decontamination import (
    exclude_evaluation_texts,
    is_contaminated,
    pack_fingerprints,
    unpack_fingerprints,
)
from headstart.data.splits import stratified_folds
from headstart.errors import DataError

READ = hashes(f"text number {number}" for number in range(20_000))
OTHERS = hashes(f"another text, number {number}" for number in range(20_000))


def test_every_text_that_was_read_is_known_by_its_short_form():
    short = unpack_fingerprints(pack_fingerprints(READ))
    assert is_contaminated(READ, short).all()
    assert is_contaminated(OTHERS, short).sum() <= 2  # by chance one in 50,000 is
    assert is_contaminated(READ, READ).all()
    assert not is_contaminated(OTHERS, READ).any()


def test_whole_and_short_forms_go_together():
    both = np.unique(np.concatenate([unpack_fingerprints(pack_fingerprints(READ[:9000])), READ[9000:]]))
    assert is_contaminated(READ, both).all()
    assert np.array_equal(
        unpack_fingerprints(pack_fingerprints(unpack_fingerprints(pack_fingerprints(READ)))),
        unpack_fingerprints(pack_fingerprints(READ)),
    )


def test_a_short_form_of_32_bits_is_read_as_one_of_30():
    halves = np.unique((READ >> np.uint64(32)).astype(np.uint32))  # as bases were packed before
    gaps = np.diff(halves, prepend=np.uint32(0)).astype("<u4")
    content = lzma.compress(gaps.view(np.uint8).reshape(-1, 4).T.tobytes(), preset=9)
    assert np.array_equal(np.unique(unpack_fingerprints(content)), unpack_fingerprints(pack_fingerprints(READ)))
    assert is_contaminated(READ, unpack_fingerprints(content)).all()


def test_the_short_form_is_short():
    assert len(pack_fingerprints(READ)) < 2.4 * len(READ)
    assert len(unpack_fingerprints(pack_fingerprints(np.zeros(0, np.uint64)))) == 0


@pytest.fixture
def judged(tmp_path):
    """Lines 0 to 399, and a set whose valid and test tables hold those of even number."""
    lines = [f"text number {n} is here" for n in range(400)]
    rows = {"train": ["a", "b"], "valid": lines[::4], "test": [f"{line}  " for line in lines[2::4]]}
    for split, texts in rows.items():
        table = "".join(f"{text}\t{'yes' if n % 2 else 'no'}\n" for n, text in enumerate(texts))
        (tmp_path / f"{split}.tsv").write_text("text\tlabel\n" + table)
    table = "".join(f"{line}\t{n % 3}\n" for n, line in enumerate(lines))
    (tmp_path / "all.tsv").write_text("text\tlabel\n" + table)
    return tmp_path


def test_held_out_texts_are_in_no_split_and_in_no_fold(judged):
    dataset = exclude_evaluation_texts(load_dataset(str(judged / "all.tsv"), DataConfig()), [str(judged)])
    odd = {f"text number {n} is here" for n in range(1, 400, 2)}
    assert {row.text for rows in dataset.splits.values() for row in rows} == odd
    assert dataset.notes[-1] == "200 rows left out by data.exclude_eval_texts_of"
    for fold in stratified_folds(dataset, 2):
        assert {row.text for row in fold.train + fold.valid} == odd


def test_a_set_that_is_all_held_out_is_told(judged):
    lines = (judged / "test.tsv").read_text().splitlines()
    (judged / "copy.tsv").write_text("\n".join(lines) + "\n")
    with pytest.raises(DataError, match=r"data\.exclude_eval_texts_of leaves"):
        exclude_evaluation_texts(load_dataset(str(judged / "copy.tsv"), DataConfig()), [str(judged)])
