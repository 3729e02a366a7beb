"""A merge buffer brings one buffer at a time, and is written again when it was read."""

from typing import Literal

import numpy as np
import pytest

from hal.errors import ClosedError, InvalidArgumentError
from hal.flow import Flow
from hal_conformance.suite.support import LIMIT, pattern

MODES = pytest.mark.parametrize("mode", ["copy", "streaming"])
Mode = Literal["copy", "streaming"]


@MODES
def test_it_holds_what_was_expected_q4(open_device, mode):
    """Q4: what is merged is on the device, or in reach of it."""
    # Not those that all tests share: reading in place enables access for good.
    device, second_device = open_device(), open_device()
    with Flow(device, second_device) as flow:
        source = flow.from_host(pattern(5000), second_device)
        other = flow.from_host(pattern(300, 1), second_device)
        merge, target = flow.merge_buffer(device), flow.allocate(5000)
        for each, size in ((source, 5000), (other, 300), (source, 5000)):
            merge.load(each, mode)
            found = merge.expect(each)
            assert device.can_access(found.device)
            flow.copy(found, target)
            assert np.array_equal(target.numpy(timeout=LIMIT)[:size], each.numpy(timeout=LIMIT))
        assert flow.merge_buffer(device) is merge
        assert merge.capacity <= 5000


@MODES
def test_another_buffer_is_refused_where_work_is_scheduled_q4(relay, mode):
    """Q4: a merge buffer that holds something else raises, and so does what it gave before."""
    far = relay.devices[1]
    first, second = (relay.from_host(pattern(64, seed), far) for seed in (1, 2))
    merge = relay.merge_buffer()
    with pytest.raises(InvalidArgumentError, match="holds nothing"):
        merge.expect(first)
    merge.load(first, mode)
    found = merge.expect(first)
    merge.load(second, mode)
    with pytest.raises(InvalidArgumentError, match="was expected to hold"):
        merge.expect(first)
    with pytest.raises(ClosedError):
        relay.to_host(found)
    assert np.array_equal(merge.expect(second).numpy(timeout=LIMIT), pattern(64, 2))


def test_it_is_not_written_before_it_was_read_q5(relay, gate):
    """Q5: the next load of a merge buffer comes after the work that uses the last one."""
    far = relay.devices[1]
    first, second = (relay.from_host(pattern(64, seed), far) for seed in (1, 2))
    merge, target = relay.merge_buffer(), relay.allocate(64)
    merge.load(first)
    reader = relay.copy(merge.expect(first), target, wait=gate.at(1))
    loaded = merge.load(second)
    assert loaded is not None
    assert (reader.state, loaded.state) == ("pending", "pending")
    gate.signal(1)
    loaded.wait(LIMIT)
    assert np.array_equal(target.numpy(timeout=LIMIT), pattern(64, 1))
    assert np.array_equal(merge.expect(second).numpy(timeout=LIMIT), pattern(64, 2))
