import os

import pytest

from headstart.atomic_io import write_folder_once, write_json, write_text, write_with
from headstart.checkpoint import load_checkpoint, load_weights, save_checkpoint, save_weights
from headstart.errors import RunError


def test_a_failed_write_leaves_the_old_file_and_nothing_beside(tmp_path, monkeypatch):
    path = tmp_path / "a.txt"
    write_text(path, "old")

    def fail(*args):
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(RunError, match="No space left"):
        write_text(path, "new")
    assert path.read_text() == "old"
    assert [item.name for item in tmp_path.iterdir()] == ["a.txt"]


def test_writers_with_one_process_number_on_two_machines_do_not_meet(tmp_path):
    path = tmp_path / "a.txt"

    def slow(beside):
        beside.write_text("slow")
        write_text(path, "quick")  # as a process of another container, whose number may be the same
        assert beside.read_text() == "slow"

    write_with(path, slow)
    assert path.read_text() == "slow"
    assert [item.name for item in tmp_path.iterdir()] == ["a.txt"]


def test_a_folder_that_several_write_at_once_is_the_first_ones(tmp_path):
    fill = lambda text: lambda folder: (folder / "a.txt").write_text(text)

    def slow(folder):
        fill("slow")(folder)
        write_folder_once(tmp_path / "b", fill("quick"))

    write_folder_once(tmp_path / "b", slow)
    assert (tmp_path / "b" / "a.txt").read_text() == "quick"
    assert [item.name for item in tmp_path.iterdir()] == ["b"]
    with pytest.raises(RunError, match="cannot write"):
        write_folder_once(tmp_path / "b" / "a.txt" / "c", fill("never"))


def test_json_never_holds_what_strict_readers_refuse(tmp_path):
    write_json(tmp_path / "a.json", {"a": float("nan"), "b": [float("inf"), 1.5]})
    assert (tmp_path / "a.json").read_text().split() == ["{", '"a":', "null,", '"b":', "[", "null,", "1.5", "]", "}"]


def test_weights_come_back_bit_for_bit(tmp_path):
    import torch

    weights = {"a": torch.randn(3, 4), "b": torch.randn(2).to(torch.bfloat16), "c": torch.tensor(3)}
    save_weights(tmp_path / "w.safetensors", weights)
    for name, weight in load_weights(tmp_path / "w.safetensors").items():
        assert torch.equal(weight, weights[name])


def test_only_the_two_newest_checkpoints_stay(tmp_path):
    import torch

    for step in range(5):
        save_checkpoint(tmp_path, step, {"model": {"a": torch.tensor(step)}}, {"step": step})
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["step-000000003", "step-000000004"]
    parts, state = load_checkpoint(tmp_path)
    assert (int(parts["model"]["a"]), state["step"]) == (4, 4)


@pytest.mark.parametrize("name", ["model.safetensors", "state.json", "checksums.json"])
def test_a_checkpoint_torn_in_any_file_is_passed_over(tmp_path, name):
    import torch

    for step in (1, 2):
        save_checkpoint(tmp_path, step, {"model": {"a": torch.tensor(step)}}, {"step": step})
    torn = tmp_path / "step-000000002" / name
    torn.write_bytes(torn.read_bytes()[:-3])
    assert load_checkpoint(tmp_path)[1]["step"] == 1
