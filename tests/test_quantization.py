"""Weights in few bits and many files come back as they were, or as near as was promised."""

import json

import pytest
import torch

from headstart.checkpoint import read_weights, save_weights
from headstart.errors import ConfigError, RunError
from headstart.quantization import as_stored, compact, quantize, store_weights, stored_bytes


@pytest.fixture
def weights():
    chance = torch.Generator().manual_seed(0)
    return {
        "model.table": torch.randn(1000, 48, generator=chance),
        "model.norm": torch.rand(48, generator=chance),
        "model.cube": torch.randn(4, 6, 5, generator=chance),
        "model.zeros": torch.zeros(3, 4),
        "model.number": torch.tensor(2.5),
        "model.counts": torch.arange(5),
    }


@pytest.mark.parametrize("form", ["float32", "bfloat16", "int8"])
@pytest.mark.parametrize("mib", [0.01, 1.0])
def test_what_is_stored_comes_back_whatever_the_size_of_the_shards(tmp_path, weights, form, mib):
    store_weights(tmp_path, weights, form, mib)
    found = read_weights(tmp_path)
    expected = as_stored(weights, form)
    assert set(found) == set(weights)
    for name in weights:
        assert torch.equal(found[name], expected[name]), name
        assert found[name].shape == weights[name].shape
        assert found[name].dtype == (torch.int64 if name == "model.counts" else torch.float32)
    files = list(tmp_path.glob("*.safetensors"))
    assert all(path.stat().st_size <= mib * 2**20 for path in files)
    assert len(files) == 1 or mib < 1
    assert stored_bytes(tmp_path) == sum(path.stat().st_size for path in files)


def test_eight_bits_are_off_by_half_a_step_of_the_row_at_most(weights):
    found = as_stored(weights, "int8")
    table = weights["model.table"]
    step = table.abs().amax(dim=1, keepdim=True) / 127
    assert ((found["model.table"] - table).abs() <= 0.501 * step).all()  # scales are quantize up to 16 bits
    assert torch.allclose(found["model.norm"], weights["model.norm"], rtol=2**-11, atol=0)  # vectors too
    assert torch.equal(found["model.zeros"], weights["model.zeros"])
    whole, _ = quantize(table)
    assert whole.abs().max() == 127


@pytest.mark.parametrize("size", [1e-9, 1e-5, 1.0, 1e6, 1e30])
def test_rows_of_any_size_are_off_by_half_a_step_at_most(weights, size):
    rows = torch.cat([size * weights["model.table"], torch.zeros(1, 48)])
    found = as_stored({"table": rows, "vector": rows[0]}, "int8")
    step = rows.abs().amax(dim=1, keepdim=True) / 127
    assert ((found["table"] - rows).abs() <= 0.501 * step).all()
    assert torch.allclose(found["vector"], rows[0], rtol=2**-11, atol=2**-25)
    _, scale = quantize(rows)
    assert scale.dtype == (torch.float16 if size in (1.0,) else torch.float32)


def test_what_is_no_number_stays_none_and_what_is_empty_stays_empty():
    weights = {"row": torch.tensor([[1.0, torch.nan, 2.0], [1.0, 2.0, 3.0]]), "none": torch.zeros(0)}
    found = as_stored({**weights, "small": torch.full((4,), 1e-9), "lost": torch.tensor([torch.inf])}, "int8")
    assert found["row"][0].isnan().all()
    assert torch.allclose(found["row"][1], weights["row"][1], atol=0.02)
    assert found["none"].shape == (0,)
    assert torch.allclose(found["small"], torch.full((4,), 1e-9), rtol=1e-6)
    assert found["lost"].isinf().all()


def test_storing_what_was_stored_changes_nothing(weights):
    once = as_stored(weights, "int8")
    twice = as_stored(once, "int8")
    for name in once:
        assert torch.allclose(once[name], twice[name], rtol=1e-6, atol=0)


@pytest.mark.parametrize("harm", ["cut", "changed", "gone", "index"])
def test_damage_is_told(tmp_path, weights, harm):
    store_weights(tmp_path, weights, "int8", 0.01)
    victim = sorted(tmp_path.glob("*.safetensors"))[1]
    if harm == "cut":
        victim.write_bytes(victim.read_bytes()[:-3])
    elif harm == "changed":
        content = bytearray(victim.read_bytes())
        content[-1] ^= 1
        victim.write_bytes(bytes(content))
    elif harm == "gone":
        victim.unlink()
    else:
        (tmp_path / "weights.json").write_text(json.dumps({"format": 1}))
    with pytest.raises(RunError) as caught:
        read_weights(tmp_path)
    assert caught.value.hint


def test_a_run_is_made_compact_once(tmp_path, weights):
    save_weights(tmp_path / "model.safetensors", weights)
    for _ in range(2):  # as after a kill between writing and clearing away
        compact(tmp_path, "bfloat16", 0.02)
        assert not (tmp_path / "model.safetensors").exists()
        assert read_weights(tmp_path).keys() == weights.keys()


def test_what_cannot_be_stored_so_is_answered(tmp_path, weights):
    with pytest.raises(ConfigError, match="int4"):
        store_weights(tmp_path, weights, "int4", 1)
    with pytest.raises(ConfigError, match="a row of"):
        store_weights(tmp_path, weights, "float32", 0.0005)
