"""Views of memory that the host sees (M2)."""

from __future__ import annotations

import gc

import numpy as np
import pytest

import hal
from hal_conformance.suite.support import pattern

SIZE = 1 << 14


@pytest.mark.parametrize("part", ["whole", "subspan"])
@pytest.mark.parametrize("how", ["dropped", "closed"])
@pytest.mark.parametrize("memory", ["host", "shared"])
def test_a_view_keeps_its_memory_m2(device: hal.Device, memory: str, how: str, part: str) -> None:
    """M2: what a view shows is given to nobody else, whatever becomes of the buffer."""
    buffer = device.allocate(SIZE, memory=memory)
    shown = buffer if part == "whole" else buffer.subspan(64, SIZE - 64)
    view = shown.map()
    view[:] = pattern(view.size)
    if how == "closed":
        buffer.close()
    del buffer, shown
    gc.collect()
    others = [device.allocate(SIZE, memory=memory) for _ in range(4)]
    for other in others:
        other.map()[:] = 0
    assert np.array_equal(view, pattern(view.size))
