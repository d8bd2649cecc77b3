import numpy as np
import pytest

from headstart.errors import RunError
from headstart.workflows.embed import GrowingArray, write_together


@pytest.mark.parametrize("parts", [[], [0], [1], [3, 0, 7], [250] * 41])
def test_a_grown_array_is_the_rows_that_were_added(tmp_path, parts):
    rows = [
        np.random.default_rng(at).normal(size=(count, 3)).astype(np.float32) for at, count in enumerate(parts)
    ]
    with GrowingArray(tmp_path / "grown.npy", (3,), np.float32) as grown:
        for part in rows:
            grown.append(part)
    found = np.load(tmp_path / "grown.npy", allow_pickle=False)
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, np.concatenate([np.zeros((0, 3), np.float32), *rows]))


def test_numbers_without_width_grow_too(tmp_path):
    with GrowingArray(tmp_path / "grown.npy", (), np.int64) as grown:
        grown.append(np.arange(5))
    np.testing.assert_array_equal(np.load(tmp_path / "grown.npy"), np.arange(5))


def test_a_grown_array_can_be_mapped_without_reading_it(tmp_path):
    with GrowingArray(tmp_path / "grown.npy", (2,), np.float32) as grown:
        grown.append(np.ones((4, 2)))
    assert np.load(tmp_path / "grown.npy", mmap_mode="r").shape == (4, 2)


def test_when_writing_fails_nothing_is_left_and_old_files_stay(tmp_path):
    paths = [tmp_path / "a", tmp_path / "b"]
    paths[0].write_text("old")

    def write(parts):
        for part in parts:
            part.write_text("new")
        raise ValueError

    with pytest.raises(ValueError):
        write_together(paths, write)
    assert paths[0].read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_a_full_disk_is_a_sentence_with_a_hint(tmp_path):
    def write(parts):
        raise OSError(28, "No space left on device")

    with pytest.raises(RunError) as caught:
        write_together([tmp_path / "a", tmp_path / "b"], write)
    assert caught.value.hint
