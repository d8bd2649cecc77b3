import pytest
import torch

from headstart.config import TrainingConfig
from headstart.training.runtime import start_runtime


@pytest.mark.parametrize("is_native", [True, False])
def test_only_fast_uses_the_half_wide_numbers_of_a_processor_that_multiplies_them(monkeypatch, is_native):
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: is_native)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: False)

    def chosen(precision):
        return start_runtime(TrainingConfig(device="cpu", precision=precision)).precision

    assert chosen("auto") == chosen("float32") == torch.float32
    assert chosen("fast") == (torch.bfloat16 if is_native else torch.float32)
    assert chosen("bfloat16") == torch.bfloat16
