"""What is written to by work that has not ended belongs to nobody else (Q5)."""

from __future__ import annotations

import gc

import numpy as np
import pytest

import hal
from hal_conformance.suite.support import LIMIT, pattern

SIZE = 1 << 14


@pytest.mark.parametrize("how", ["dropped", "closed"])
@pytest.mark.parametrize("kind", ["fill", "update", "copy", "write"])
def test_targets_of_unended_work_are_kept_q5(
    device: hal.Device, queue: hal.Queue, gate: hal.Semaphore, kind: str, how: str
) -> None:
    """Q5: the memory of a target that is dropped or closed goes to nobody before it is written."""
    target, source = device.allocate(SIZE), device.upload(pattern(SIZE))
    arguments = {
        "fill": (target, 0xEE),
        "update": (target, pattern(SIZE)),
        "copy": (source, target),
        "write": (target, pattern(SIZE)),
    }
    written = getattr(queue, kind)(*arguments[kind], wait=gate.at(1))
    if how == "closed":
        target.close()
    del target, arguments
    gc.collect()
    others = [device.upload(np.zeros(SIZE, np.uint8)) for _ in range(4)]
    gate.signal(1)
    written.wait(LIMIT)
    assert not any(other.numpy(timeout=LIMIT).any() for other in others)
