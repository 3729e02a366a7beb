"""Several dispatches of one kernel that have not begun (C5)."""

from __future__ import annotations

import numpy as np
import pytest

import hal
from hal_conformance.suite.support import LIMIT

pytestmark = pytest.mark.feature("kernels")


def test_pending_dispatches_have_arguments_of_their_own_c5(
    device: hal.Device, queue: hal.Queue, gate: hal.Semaphore, program: hal.Executable
) -> None:
    """C5: dispatches of one kernel that wait side by side run with what each of them was given."""
    outputs = [device.upload(np.zeros(4, np.int32)) for _ in range(5)]
    for number, output in enumerate(outputs):
        constants = (number, 10 + number, 20 + number, 30 + number)
        queue.dispatch(
            program["write_constants"], grid=1, block=1, args=(output, *constants), wait=gate.at(1)
        )
    gate.signal(1)
    queue.wait_idle(LIMIT)
    for number, output in enumerate(outputs):
        expected = [number, 10 + number, 20 + number, 30 + number]
        assert output.numpy(timeout=LIMIT).tolist() == expected
