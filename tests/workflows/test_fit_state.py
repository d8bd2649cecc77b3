"""The state of a fit is taken up by that fit alone, from the newest checkpoint that is whole."""

import pytest
import torch

from headstart.config import merge
from headstart.data.datasets import load_dataset
from headstart.workflows.compare_cells import start_fit, write_request
from headstart.workflows.finetune import choose_tokenizer, make_task
from headstart.workflows.finetune_defaults import finetune_config
from tests.helpers.datasets import QUICK, write_labelled

SAVING = {"training": {"max_steps": 9, "save_steps": 3, "batch_size": 8, "seed": 1}}


@pytest.fixture
def fit(tmp_path):
    """Start one small fit, always with the same settings and texts, under a name."""
    config, objective = finetune_config(None, "tiny", merge(QUICK, SAVING))
    dataset = load_dataset(str(write_labelled(tmp_path / "table.tsv")), config.data)
    task = make_task(dataset, choose_tokenizer(config, dataset, None, lambda event: None), config)

    def start(name="this fit"):
        trainer, _, save = start_fit(config, objective, task, None, tmp_path / "state", {"name": name})
        return trainer, save

    return start


def checkpoints(folder):
    return sorted(path for path in folder.rglob("step-*") if path.is_dir())


def finished(fit, folder):
    """A trainer that ran to its end, and left checkpoints of steps 3 and 6."""
    trainer, save = fit()
    trainer.run(save)
    assert [path.name for path in checkpoints(folder)] == ["step-000000003", "step-000000006"]
    return trainer


def test_a_fit_resumes_from_its_newest_state_to_the_same_bytes(fit, tmp_path):
    whole = finished(fit, tmp_path / "state")
    other, _ = fit()
    assert other.state.step == 6
    steps = []
    other.on_event = lambda event: steps.append(event.step)
    other.run()
    assert min(steps) > 6
    assert other.state.curve == whole.state.curve
    for name, weight in whole.model.state_dict().items():
        assert torch.equal(weight, other.model.state_dict()[name])


def test_another_fit_starts_fresh_and_clears_what_is_there(fit, tmp_path):
    finished(fit, tmp_path / "state")
    other, _ = fit("another fit")
    assert other.state.step == 0
    assert not (tmp_path / "state").exists()
    again, _ = fit()
    assert again.state.step == 0
    for name, weight in again.model.state_dict().items():
        assert torch.equal(weight, other.model.state_dict()[name])


@pytest.mark.parametrize(("torn", "step"), [((0, 6), 3), ((0, 3), 6), ((3, 6), 0)])
def test_a_torn_state_gives_way_to_the_one_before_or_to_a_fresh_start(fit, tmp_path, torn, step):
    finished(fit, tmp_path / "state")
    for path in checkpoints(tmp_path / "state"):
        if int(path.name.removeprefix("step-")) in torn:
            weights = path / "model.safetensors"
            weights.write_bytes(weights.read_bytes()[:-1])
    other, _ = fit()
    assert other.state.step == step


def test_a_continued_request_keeps_its_first_command(tmp_path):
    request = {"inputs": {"data": "a"}, "fingerprints": {"data": "1"}, "command": "first"}
    path = tmp_path / "tune.json"
    assert write_request(path, "search", request)["command"] == "first"
    for again in ("second", "third"):
        assert write_request(path, "search", {**request, "command": again})["command"] == "first"
