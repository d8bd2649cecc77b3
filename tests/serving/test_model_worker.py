"""The cores are shared by the batches that run at the same time."""

import pytest
import torch

from headstart.serving.model_worker import MIN_PARALLEL_OPERATIONS, ThreadPoolShare


@pytest.fixture
def cores():
    before = torch.get_num_threads()
    made = ThreadPoolShare()
    made.num_cores = 4
    yield made
    torch.set_num_threads(before)


def test_large_texts_get_every_core_alone_and_a_part_in_parallel(cores):
    with cores.share(MIN_PARALLEL_OPERATIONS):
        assert torch.get_num_threads() == 4
        with cores.share(MIN_PARALLEL_OPERATIONS):
            assert torch.get_num_threads() == 2
    with cores.share(MIN_PARALLEL_OPERATIONS):
        assert torch.get_num_threads() == 4


def test_small_texts_get_one_core(cores):
    with cores.share(MIN_PARALLEL_OPERATIONS - 1):
        assert torch.get_num_threads() == 1


def test_no_more_batches_run_than_there_are_cores(cores):
    assert cores.max_batches == 2
    cores.num_cores = 1
    assert cores.max_batches == 1
