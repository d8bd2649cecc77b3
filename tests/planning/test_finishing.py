from dataclasses import replace

import pytest

from headstart.config import resolve
from headstart.models.model import build_model
from headstart.planning.workload import count_flops, make_workload, weights_above_attention


@pytest.mark.parametrize("job", ["pretrain", "finetune"])
@pytest.mark.parametrize("preset", ["lab", "tiny"])
def test_what_the_last_block_leaves_out_is_its_part_above_attention(preset, job):
    config = resolve(job, preset, {"tokenizer": {"vocab_size": 300}})
    load = make_workload(config, "cpu", "float32")
    block = build_model(load.model, 300, load.heads).backbone.stack.blocks[-1]
    above = [block.attention.out_proj, block.feed_forward.up_proj, block.feed_forward.down_proj]
    assert weights_above_attention(load) == sum(part.weight.numel() for part in above)
    whole = count_flops(replace(load, last_layer_fraction=1.0))
    assert whole.body - count_flops(load).body == pytest.approx(
        2 * (1 - load.last_layer_fraction) * weights_above_attention(load)
    )


@pytest.mark.parametrize(
    ("job", "preset", "objective", "share"),
    [
        ("pretrain", "lab", {}, 1.0),  # every token has a label
        ("pretrain", "tiny", {}, 0.2),
        ("pretrain", "tiny", {"name": "masked-lm+next-sentence"}, 1.0),
        ("pretrain", "tiny", {"name": "replaced-token"}, 1.0),
        ("finetune", "lab", {}, 1 / 256),
        ("finetune", "tiny", {}, 1.0),  # the mean of all
    ],
)
def test_the_share_that_is_finished_follows_from_what_the_heads_read(job, preset, objective, share):
    config = resolve(job, preset, {"objective": objective})
    assert make_workload(config, "cpu", "float32").last_layer_fraction == pytest.approx(share)
