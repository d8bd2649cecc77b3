"""Every preset is a complete set of settings for every job."""

import pytest

from headstart.config import RunConfig, load_preset, parse, preset_names, resolve


@pytest.mark.parametrize("name", preset_names())
@pytest.mark.parametrize("job", ["pretrain", "finetune"])
def test_every_preset_resolves_for_every_job_and_survives_saving(name, job):
    config = resolve(job, name)
    assert parse(RunConfig, config.model_dump()) == config
    assert load_preset(name)["title"]
