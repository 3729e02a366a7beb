"""How many blocks of a kernel a compute unit holds (C5): the feature ``occupancy``."""

import pytest

from hal.errors import ArgumentTypeError, InvalidArgumentError, UnimplementedError

pytestmark = pytest.mark.feature("kernels")


def test_occupancy_is_there_or_refused_c5(device, program):
    """C5: without the feature the question raises; with it, at least one small block fits."""
    if "occupancy" in device.features:
        assert program["saxpy"].occupancy(1) >= 1
        return
    with pytest.raises(UnimplementedError, match="occupancy"):
        program["saxpy"].occupancy(1)


@pytest.mark.feature("occupancy")
def test_larger_blocks_fit_no_more_often_c5(program):
    """C5: as threads and shared memory grow, the number falls or stays."""
    kernel = program["sum_dynamic"]
    counts = [kernel.occupancy(threads) for threads in (32, 64, 128, kernel.max_threads_per_block)]
    assert counts == sorted(counts, reverse=True)
    assert counts[-1] >= 1
    shared = [kernel.occupancy(32, shared_memory=size) for size in (0, 4096, 16384, 32768)]
    assert shared == sorted(shared, reverse=True)
    assert kernel.occupancy((8, 4)) == kernel.occupancy(32) == kernel.occupancy([2, 4, 4])


def test_what_could_not_be_dispatched_is_refused_c5(program):
    """C5: no block, none that a dispatch would take, more shared memory than there is."""
    kernel = program["saxpy"]
    with pytest.raises(ArgumentTypeError, match="block"):
        kernel.occupancy()
    for block in (0, kernel.max_threads_per_block + 1, (1, 2, 3, 4)):
        with pytest.raises(InvalidArgumentError):
            kernel.occupancy(block)
    with pytest.raises(InvalidArgumentError, match="shared memory"):
        kernel.occupancy(32, shared_memory=1 << 40)
