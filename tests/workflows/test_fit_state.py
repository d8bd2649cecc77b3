"""The state of a fit is taken up by that fit alone, from the newest checkpoint that is whole."""

import pytest
import torch

from headstart.config import merge
from headstart.data.datasets import load_dataset
from headstart.training.runtime import start_runtime
from headstart.workflows.compare_cells import FitState
from headstart.workflows.finetune import FinetuneJob, choose_tokenizer, make_task
from headstart.workflows.finetune_defaults import finetune_config
from tests.helpers.datasets import QUICK, write_labelled

SAVING = {"training": {"max_steps": 9, "save_steps": 3, "batch_size": 8, "seed": 1}}


@pytest.fixture
def trainer(tmp_path):
    """A maker of trainers of one small fit, all alike."""
    config, _ = finetune_config(None, "tiny", merge(QUICK, SAVING))
    dataset = load_dataset(str(write_labelled(tmp_path / "table.tsv")), config.data)
    task = make_task(dataset, choose_tokenizer(config, dataset, None, lambda event: None), config)

    def make():
        job = FinetuneJob(config, start_runtime(config.training))
        model, transfer = job.build_model(task)
        return job.make_trainer(model, job.objective, job.training_data(task), transfer)

    return make


def started(trainer, folder, identity="this fit"):
    """A trainer that ran to its end, and left checkpoints of steps 3 and 6."""
    state, own = FitState(folder, lambda: identity), trainer()
    own.run(lambda: state.save(own))
    assert [path.name for path in sorted(folder.iterdir())] == ["step-000000003", "step-000000006"]
    return own


def tear(folder, step):
    weights = folder / f"step-{step:09d}" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])


def test_a_fit_resumes_from_its_newest_state_to_the_same_bytes(trainer, tmp_path):
    whole = started(trainer, tmp_path / "state")
    other, steps = trainer(), []
    FitState(tmp_path / "state", lambda: "this fit").load(other)
    assert other.state.step == 6
    other.on_event = lambda event: steps.append(event.step)
    other.run()
    assert min(steps) > 6
    assert other.state.curve == whole.state.curve
    for name, weight in whole.model.state_dict().items():
        assert torch.equal(weight, other.model.state_dict()[name])


def test_another_fit_starts_fresh_and_clears_what_is_there(trainer, tmp_path):
    started(trainer, tmp_path / "state")
    other = trainer()
    before = {name: weight.clone() for name, weight in other.model.state_dict().items()}
    FitState(tmp_path / "state", lambda: "another fit").load(other)
    assert other.state.step == 0
    assert all(torch.equal(weight, before[name]) for name, weight in other.model.state_dict().items())
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize(("torn", "step"), [((6,), 3), ((3,), 6), ((3, 6), 0)])
def test_a_torn_state_gives_way_to_the_one_before_or_to_a_fresh_start(trainer, tmp_path, torn, step):
    started(trainer, tmp_path / "state")
    for each in torn:
        tear(tmp_path / "state", each)
    other = trainer()
    FitState(tmp_path / "state", lambda: "this fit").load(other)
    assert other.state.step == step


def test_what_a_fit_depends_on_is_computed_only_when_there_is_state_to_save(trainer, tmp_path):
    def identity():
        raise AssertionError("nothing was saved")

    own = trainer()
    FitState(tmp_path / "state", identity).load(own)
    assert own.state.step == 0
