"""Random graphs of operations, against a model of dictionaries and bytes (S2, S5, Q2, Q5)."""

from __future__ import annotations

import contextlib
from typing import Any, ClassVar, Final

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

import hal
from hal.errors import HalError, InvalidArgumentError, OperationError
from hal_conformance.suite.support import LIMIT

GATES: Final = 4
SLOTS: Final = 64
QUEUES: Final = 3


class Step:
    """One operation in the model.

    Attributes
    ----------
    gates, steps
        The gates and the earlier steps that it waits for.
    value
        What it puts into its slot, or the step whose slot it copies.
    """

    def __init__(
        self, number: int, queue: int, gates: set[int], steps: set[int], value: int | None
    ) -> None:
        self.number = number
        self.queue = queue
        self.gates = gates
        self.steps = steps
        self.value = value
        self.submission: hal.Submission
        self.semaphore = hal.create_semaphore()


class Graphs(RuleBasedStateMachine):
    """Submit steps that wait for gates and for each other; open and fail the gates.

    A gate is opened or failed once, so that a step's end does not depend on
    when things happen: it fails if a wait of it fails, and is done once all
    are met and, on an ordered queue, all before it have ended.
    """

    device: ClassVar[hal.Device]

    def __init__(self) -> None:
        super().__init__()
        self.queues = [
            self.device.create_queue(),
            self.device.create_queue(),
            self.device.create_queue(ordered=False),
        ]
        self.memory = self.device.upload(np.zeros(SLOTS, np.uint8))
        self.gates = [hal.create_semaphore() for _ in range(GATES)]
        self.states = ["shut"] * GATES
        self.steps: list[Step] = []

    # What is done

    @rule(
        queue=st.integers(0, QUEUES - 1),
        gates=st.sets(st.integers(0, GATES - 1), max_size=2),
        back=st.sets(st.integers(1, 6), max_size=2),
        copies=st.booleans(),
        how=st.sampled_from(["submission", "semaphore", "fence"]),
    )
    def submit(self, queue: int, gates: set[int], back: set[int], copies: bool, how: str) -> None:  # noqa: FBT001
        """Submit a step that waits for gates and for the steps so many places back."""
        number = len(self.steps)
        if number == SLOTS:
            return
        steps = {number - each for each in back if each <= number}
        source = min(steps) if copies and steps else None
        step = Step(number, queue, gates, steps, None if source is not None else number + 1)
        wait: list[Any] = [self.gates[gate].at(1) for gate in sorted(gates)]
        for each in sorted(steps):
            other = self.steps[each]
            ways = {"submission": other.submission, "semaphore": other.semaphore.at(1)}
            wait.append(ways.get(how) or hal.Fence([other.submission, other.semaphore.at(1)]))
        target, signal = self.memory.subspan(number, 1), step.semaphore.at(1)
        if source is None:
            step.submission = self.queues[queue].fill(target, number + 1, wait=wait, signal=signal)
        else:
            step.submission = self.queues[queue].copy(
                self.memory.subspan(source, 1), target, wait=wait, signal=signal
            )
        self.steps.append(step)

    @rule(gate=st.integers(0, GATES - 1))
    def open(self, gate: int) -> None:
        """Open a gate; again, or after it failed, the signal is refused."""
        if self.states[gate] == "shut":
            self.gates[gate].signal(1)
            self.states[gate] = "open"
            return
        kind = InvalidArgumentError if self.states[gate] == "open" else OperationError
        with contextlib.suppress(kind):
            self.gates[gate].signal(1)
            message = f"gate {gate} was {self.states[gate]} and took another signal"
            raise AssertionError(message)

    @rule(gate=st.integers(0, GATES - 1))
    def fail(self, gate: int) -> None:
        """Fail a gate that is shut."""
        if self.states[gate] == "shut":
            self.gates[gate].fail(OperationError(f"gate {gate}"))
            self.states[gate] = "failed"

    # What must be

    def model(self) -> tuple[set[int], set[int], dict[int, set[int]]]:
        """Return the steps that fail, those that have ended, and the gates that each fails of."""
        failed: set[int] = set()
        ended: set[int] = set()
        reasons: dict[int, set[int]] = {}
        for step in self.steps:
            number = step.number
            reasons[number] = {gate for gate in step.gates if self.states[gate] == "failed"}
            for each in step.steps:
                reasons[number] |= reasons[each]
            before = {
                other.number
                for other in self.steps[:number]
                if other.queue == step.queue and step.queue != QUEUES - 1
            }
            if reasons[number]:
                failed.add(number)
            met = all(self.states[gate] == "open" for gate in step.gates) and step.steps <= ended
            if (reasons[number] or met) and before <= ended:
                ended.add(number)
        return failed, ended, reasons

    @invariant()
    def every_step_is_where_the_model_says(self) -> None:
        """Wait for what must end, and see that nothing else has run."""
        failed, ended, reasons = self.model()
        for step in self.steps:
            submission = step.submission
            if step.number not in ended:
                assert submission.state == "pending" or step.number in failed
                continue
            if step.number not in failed:
                submission.wait(LIMIT)
                assert submission.state == "done"
                assert step.semaphore.query() == 1
                continue
            for waitable in (submission, step.semaphore.at(1)):
                with contextlib.suppress(OperationError):
                    hal.wait_all([waitable], LIMIT)
                    message = f"step {step.number} did not fail"
                    raise AssertionError(message)
            assert submission.state == "failed"
            assert str(submission.error) in {f"gate {gate}" for gate in reasons[step.number]}

    def teardown(self) -> None:
        """Open what is shut: everything ends, and the memory is the model's."""
        try:
            for gate in range(GATES):
                if self.states[gate] == "shut":
                    self.open(gate)
            self.every_step_is_where_the_model_says()
            failed, ended, _ = self.model()
            assert len(ended) == len(self.steps)
            expected = bytearray(SLOTS)
            for step in self.steps:
                if step.number not in failed:
                    value = step.value
                    expected[step.number] = expected[min(step.steps)] if value is None else value
            assert self.memory.numpy(timeout=LIMIT).tobytes() == bytes(expected)
        finally:
            for semaphore in self.gates:
                with contextlib.suppress(HalError):
                    semaphore.fail(OperationError("the program is over"))
            left = [queue.close(LIMIT) for queue in self.queues]
            self.memory.close()
            self.steps.clear()
        assert not any(left)


@pytest.mark.parametrize("options", [{}, {"max_in_flight": 2}], ids=["all", "two in flight"])
def test_random_graphs_against_a_model_s2_s5(open_device, options):
    """S2, S5, Q2: 100 random programs of up to 40 steps end as a plain model says.

    Once more on a device that lets two operations be in flight, so that they stand in backlogs.
    """
    machine = type("Machine", (Graphs,), {"device": open_device(**options)})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=100,
            stateful_step_count=40,
            deadline=None,
            derandomize=True,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
