"""A run directory is locked by one process at a time, and only what is ours is ever removed."""

import threading
import time

import pytest

from headstart.errors import HeadstartError, RunError
from headstart.workflows.finetune import finetune
from headstart.workflows.pretrain import pretrain
from headstart.workflows.run_dir import RunLock


def locked(path):
    lock = RunLock(path)
    lock.create()
    lock.acquire()
    return lock


def test_a_refused_second_leaves_the_first_as_it_is(tmp_path, monkeypatch):
    monkeypatch.setattr("headstart.workflows.run_dir.LOCK_TIMEOUT", 0.1)
    first = locked(tmp_path / "run")
    (tmp_path / "run" / "tokenizer.json").write_text("{}")  # so far it has this alone
    with pytest.raises(RunError, match="another process"):
        pretrain(["corpus.txt"], tmp_path / "run")
    assert {item.name for item in (tmp_path / "run").iterdir()} == {".lock", "tokenizer.json"}
    (tmp_path / "run" / "run.json").write_text("{}")
    first.release()
    assert (tmp_path / "run" / "run.json").exists()


def test_what_another_finished_while_we_waited_is_not_written_over(tmp_path):
    first, faults = locked(tmp_path / "run"), []

    def wait():
        second = RunLock(tmp_path / "run")
        second.create()
        try:
            second.acquire()
        except RunError as error:
            faults.append(str(error))

    waiting = threading.Thread(target=wait)
    waiting.start()
    time.sleep(0.2)
    (tmp_path / "run" / "run.json").write_text("{}")
    first.release()
    waiting.join()
    assert len(faults) == 1
    assert "already holds a run" in faults[0]
    assert (tmp_path / "run" / "run.json").exists()


def test_one_that_waits_takes_the_place_of_one_that_came_to_nothing(tmp_path):
    first, others = locked(tmp_path / "run"), []
    waiting = threading.Thread(target=lambda: others.append(locked(tmp_path / "run")))
    waiting.start()
    time.sleep(0.2)
    first.release()  # with its folder
    waiting.join()
    assert (tmp_path / "run" / ".lock").exists()
    with pytest.raises(RunError, match="another process"):
        RunLock(tmp_path / "run").acquire()
    others[0].release()
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "names", [["tokenizer.json"], ["sentencepiece.model", "dict.txt"], ["train_fingerprints.npy"], [".own.part"]]
)
def test_files_of_ones_own_are_in_the_way_and_stay(tmp_path, names):
    own = tmp_path / "own"
    own.mkdir()
    for name in names:
        (own / name).write_text("mine")
    for call in (
        lambda: pretrain([str(tmp_path / "none.txt")], own),
        lambda: finetune("scratch", str(tmp_path / "none.tsv"), own),
    ):
        with pytest.raises(HeadstartError):
            call()
        assert {item.name: item.read_text() for item in own.iterdir()} == dict.fromkeys(names, "mine")
    with pytest.raises(RunError, match="not empty"):
        RunLock(own).create()


def test_an_empty_folder_of_ones_own_stays_and_a_new_one_goes(tmp_path):
    (tmp_path / "empty").mkdir()
    for name in ("empty", "new"):
        lock = locked(tmp_path / name)
        (tmp_path / name / "checkpoints").mkdir()
        lock.release()
    assert [item.name for item in tmp_path.iterdir()] == ["empty"]
    assert not any((tmp_path / "empty").iterdir())


def test_what_a_killed_run_left_beside_its_lock_is_taken_over(tmp_path):
    (tmp_path / "run").mkdir()
    for name in (".lock", "tokenizer.json", ".train_fingerprints.npy.part"):
        (tmp_path / "run" / name).write_text("")
    locked(tmp_path / "run").release()
    assert not (tmp_path / "run").exists()
