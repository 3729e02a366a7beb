"""Executions with bindings that wait for what is not signalled yet (C3, S5, Q5, Q7).

The recordings have run before, so that whatever an implementation prepares for them is there.
"""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest

import hal
from hal.errors import InvalidArgumentError, SemaphoreFailedError
from hal_conformance.suite.support import LIMIT

pytestmark = [pytest.mark.feature("kernels"), pytest.mark.ordering]

INPUT = np.array([1, 2, 3, 4], np.int32)


class Scaled:
    """A recording of target = input * number + offset, steps times over, and its executions."""

    def __init__(
        self, queue: hal.Queue, program: hal.Executable, lowering: str, steps: int
    ) -> None:
        self.queue = queue
        device = queue.device
        with device.record(
            slots=["<i4", ("<i4", 16), "scalar", "scalar", "grid"], command_buffer=lowering
        ) as self.recording:
            source, target, factor, offset, grid = self.recording.slots
            kernel = program["scale_and_offset"]
            for _ in range(steps):
                arguments = (source, target, factor, offset, 4)
                self.recording.dispatch(kernel, grid=grid, block=4, args=arguments)
                self.recording.barrier()
        self.source = device.upload(INPUT)
        for number in range(3):
            self.execute(self.target(), number).wait(LIMIT)

    def target(self) -> hal.Buffer:
        """Return a buffer of zeros."""
        return self.queue.device.upload(np.zeros(4, np.int32))

    def execute(
        self,
        target: hal.Buffer,
        number: int,
        grid: object = 1,
        **lists: Any,  # noqa: ANN401
    ) -> hal.Submission:
        """Submit an execution into a target."""
        table = [self.source, target, number, 10 * number, grid]
        return self.queue.execute(self.recording, bindings=table, **lists)


@pytest.fixture(params=[1, 3], ids=["one command", "three"])
def scaled(request, queue, program, lowering):
    """A recording of one command, or of several."""
    made = Scaled(queue, program, lowering, request.param)
    yield made
    made.source.close()


def test_pending_tables_do_not_mix_c3(scaled, gate):
    """C3: each of twelve executions that wait at once has its own buffers, numbers and grid."""
    targets = [scaled.target() for _ in range(12)]
    pending = []
    for number, target in enumerate(targets):
        grid = 0 if number == 5 else (1, 1)
        pending.append(scaled.execute(target, number, grid, wait=gate.at(1)))
    assert {each.state for each in pending} == {"pending"}
    gate.signal(1)
    pending[-1].wait(LIMIT)
    for number, target in enumerate(targets):
        expected = [0] * 4 if number == 5 else (INPUT * number + 10 * number).tolist()
        assert target.numpy(timeout=LIMIT).tolist() == expected


def test_pending_tables_take_turns_c3(scaled, gate):
    """C3: two tables in turn, with executions that wait and with others that do not."""
    targets = [scaled.target() for _ in range(2)]
    for value in range(1, 7):
        for number, target in enumerate(targets, 1):
            last = scaled.execute(target, number * value, wait=gate.at(value))
        gate.signal(value)
        last.wait(LIMIT)
        last = scaled.execute(targets[0], value)
        assert (
            targets[0].numpy(wait=last, timeout=LIMIT).tolist()
            == (INPUT * value + 10 * value).tolist()
        )
        assert targets[1].numpy(timeout=LIMIT).tolist() == (2 * value * (INPUT + 10)).tolist()


def test_a_pending_table_keeps_its_buffers_q5(scaled, gate):
    """C3, Q5: buffers that were closed and dropped are used, and free once it has ended."""
    target, source = scaled.target(), scaled.source
    before = scaled.queue.device.statistics().allocations
    scaled.source = scaled.queue.device.upload(INPUT + 1)
    last = scaled.execute(target, 3, wait=gate.at(1))
    scaled.source.close()
    scaled.source = source
    gc.collect()
    others = [scaled.target() for _ in range(3)]
    gate.signal(1)
    last.wait(LIMIT)
    assert target.numpy(timeout=LIMIT).tolist() == ((INPUT + 1) * 3 + 30).tolist()
    del others
    gc.collect()
    scaled.queue.barrier().wait(LIMIT)
    assert scaled.queue.device.statistics().allocations <= before


def test_a_bad_table_is_refused_before_its_wait_c3(scaled, gate):
    """C3: bindings are checked at the submission, which leaves nothing behind."""
    target = scaled.target()
    for table in ([scaled.source, target.subspan(0, 8), 1, 1, 1], [scaled.source, target, 1, 1]):
        with pytest.raises(InvalidArgumentError, match="slot"):
            scaled.queue.execute(scaled.recording, bindings=table, wait=gate.at(1))
    scaled.queue.fill(target, 1).wait(LIMIT)
    gate.signal(1)


def test_a_pending_execution_is_called_off_with_its_wait_s5(scaled, make_semaphore):
    """S5: if the semaphore fails nothing runs, and what the execution was to signal fails."""
    gate, done = make_semaphore(), make_semaphore()
    target = scaled.target()
    pending = scaled.execute(target, 3, wait=gate.at(1), signal=done.at(1))
    gate.fail(ValueError("on purpose"))
    with pytest.raises(SemaphoreFailedError, match="on purpose"):
        pending.wait(LIMIT)
    with pytest.raises(SemaphoreFailedError, match="on purpose"):
        done.wait(1, LIMIT)
    scaled.execute(target, 0).wait(LIMIT)
    assert target.numpy(timeout=LIMIT).tolist() == [0] * 4


def test_a_pending_execution_is_cancelled_until_it_is_issued_q7(scaled, gate):
    """Q7: of three that wait the cancelled one does not run; one that has ended stays as it is."""
    targets = [scaled.target() for _ in range(3)]
    pending = [
        scaled.execute(target, number, wait=gate.at(1)) for number, target in enumerate(targets, 1)
    ]
    assert pending[1].cancel()
    gate.signal(1)
    pending[2].wait(LIMIT)
    assert not pending[0].cancel()
    seen = [target.numpy(timeout=LIMIT).tolist() for target in targets]
    assert seen == [(INPUT + 10).tolist(), [0] * 4, (3 * INPUT + 30).tolist()]
    assert [each.state for each in pending] == ["done", "cancelled", "done"]
