import subprocess
import sys

import pytest
import torch

from headstart.config import TrainingConfig, merge
from headstart.training.runtime import cudnn_attention, peak_memory, seed_everything, seed_for, start_runtime
from headstart.workflows.finetune import finetune
from headstart.workflows.pretrain import pretrain
from tests.helpers.datasets import QUICK, write_corpus, write_labelled


@pytest.mark.parametrize("is_native", [True, False])
def test_only_fast_uses_the_half_wide_numbers_of_a_processor_that_multiplies_them(monkeypatch, is_native):
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: is_native)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: False)

    def chosen(precision):
        return start_runtime(TrainingConfig(device="cpu", precision=precision)).precision

    assert chosen("auto") == chosen("float32") == torch.float32
    assert chosen("bf16") == (torch.bfloat16 if is_native else torch.float32)
    assert chosen("bfloat16") == torch.bfloat16


@pytest.mark.slow
def test_peak_memory_is_that_of_the_program_and_not_of_its_parent():
    ballast = bytearray(400 * 2**20)
    ballast[::4096] = b"x" * len(ballast[::4096])  # touched, so that it is held
    assert peak_memory() >= 400 * 2**20
    code = "from headstart.training.runtime import peak_memory; print(peak_memory())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert 50 * 2**20 < int(done.stdout) < peak_memory() - 100 * 2**20
    del ballast


def test_chance_is_that_of_torch_s_own_seed():
    seed_everything(3, 1, 4)
    found = torch.rand(5)
    torch.manual_seed(seed_for(3, 1, 4))
    assert torch.equal(found, torch.rand(5))


@pytest.fixture
def without_cudnn():
    """As on a GPU, where a runtime switches cuDNN's attention off."""
    before = torch.backends.cuda.cudnn_sdp_enabled()
    torch.backends.cuda.enable_cudnn_sdp(False)
    yield
    torch.backends.cuda.enable_cudnn_sdp(before)


@pytest.mark.slow
@pytest.mark.usefixtures("without_cudnn")
def test_cudnn_plans_attention_only_where_all_batches_have_one_shape(tmp_path):
    seen = []

    def look(event):
        seen.append(torch.backends.cuda.cudnn_sdp_enabled())

    steps = merge(QUICK, {"training": {"max_steps": 3}})
    blocks = merge(steps, {"objective": {"name": "masked-lm"}})
    pairs = merge(steps, {"objective": {"name": "next-sentence", "nsp_unit": "document"}})
    corpus, table = write_corpus(tmp_path / "corpus.txt"), write_labelled(tmp_path / "table.tsv")
    pretrain([str(corpus)], tmp_path / "blocks", settings=blocks, on_event=look)
    assert any(seen)
    assert not torch.backends.cuda.cudnn_sdp_enabled()
    seen.clear()
    pretrain([str(corpus)], tmp_path / "pairs", settings=pairs, on_event=look)
    finetune("scratch", str(table), tmp_path / "texts", settings=steps, on_event=look)
    assert seen
    assert not any(seen)


@pytest.mark.usefixtures("without_cudnn")
def test_cudnn_does_not_plan_attention_where_bits_must_repeat(monkeypatch):
    with cudnn_attention():
        assert torch.backends.cuda.cudnn_sdp_enabled()
    monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: True)
    with cudnn_attention():
        assert not torch.backends.cuda.cudnn_sdp_enabled()
