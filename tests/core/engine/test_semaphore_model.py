"""Anything is done to one semaphore, by hypothesis, and a model says what comes of it."""

from __future__ import annotations

import contextlib
import threading

import pytest
from core_harness import LIMIT
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

import hal
from hal.errors import DeadlineExceededError, HalError, InvalidArgumentError, OperationError

VALUES = st.integers(0, 12)


class OneSemaphore(RuleBasedStateMachine):
    """Do anything to one semaphore: a value and a failure say what comes of it (S1 to S8).

    Operations wait for one value of it on an unordered queue and signal
    another. One is pending at a time: which of two that become ready together
    runs first is the queue's own business.
    """

    device = None  # opened once for all programs

    @initialize(initial=st.integers(0, 3))
    def start(self, initial):
        self.queue = self.device.create_queue(ordered=False)
        self.semaphore = hal.create_semaphore(initial)
        self.value = initial
        self.failure = None
        self.submitted = []  # [wait, signal, submission, state]
        self.callbacks = []  # [value, handle, whether it was cancelled]
        self.called = {}
        self.lock = threading.Lock()

    def expect(self, function, *arguments):
        """Return what a call returns, which raises the failure if there is one."""
        if self.failure is None:
            return function(*arguments)
        with pytest.raises(HalError, match=self.failure):
            function(*arguments)
        return None

    @rule(value=VALUES)
    def signal(self, value):
        if self.failure is None and value <= self.value:
            with pytest.raises(InvalidArgumentError):
                self.semaphore.signal(value)
            return
        self.expect(self.semaphore.signal, value)
        if self.failure is None:
            self.value = value

    @rule(number=st.integers(0, 9))
    def fail(self, number):
        self.semaphore.fail(OperationError(f"failure {number}"))
        self.failure = self.failure or f"failure {number}"

    @rule(value=VALUES)
    def poll(self, value):
        expected = None if self.failure else value <= self.value
        assert self.expect(self.semaphore.poll, value) == expected

    @rule()
    def query(self):
        assert self.expect(self.semaphore.query) == (None if self.failure else self.value)

    @rule(value=VALUES)
    def wait(self, value):
        if self.failure is None and value > self.value:
            with pytest.raises(DeadlineExceededError):
                self.semaphore.wait(value, 0)
        else:
            self.expect(self.semaphore.wait, value, LIMIT)

    @rule(value=VALUES)
    def call_back(self, value):
        number = len(self.callbacks)

        def note(error):
            with self.lock:
                assert number not in self.called, "called twice"
                self.called[number] = error

        self.callbacks.append([value, self.semaphore.on_reached(value, note), False])

    @precondition(lambda self: self.callbacks)
    @rule(data=st.data())
    def cancel(self, data):
        entry = data.draw(st.sampled_from(self.callbacks))
        value, handle, cancelled = entry
        sent_off = self.failure is not None or value <= self.value
        assert handle.cancel() == (not sent_off and not cancelled)
        entry[2] = cancelled or not sent_off

    @precondition(lambda self: all(entry[3] != "pending" for entry in self.submitted))
    @rule(wait=VALUES, signal=VALUES)
    def submit(self, wait, signal):
        lists = {"wait": self.semaphore.at(wait), "signal": self.semaphore.at(signal)}
        if signal <= wait or (self.failure is None and signal <= self.value):
            with pytest.raises(InvalidArgumentError):
                self.queue.barrier(**lists)
        else:
            self.submitted.append([wait, signal, self.queue.barrier(**lists), "pending"])

    @invariant()
    def operations_run(self):
        """Let the model's operation run if it is ready, and compare the states."""
        for entry in self.submitted:
            wait, signal, submission, state = entry
            if state == "pending":
                if self.failure is not None:
                    entry[3] = "failed"
                elif wait <= self.value < signal:
                    entry[3], self.value = "done", signal
                elif wait <= self.value:
                    entry[3], self.failure = "failed", "cannot"
            if entry[3] != "pending":
                device_wait(submission)
            assert submission.state == entry[3]

    def teardown(self):
        if not hasattr(self, "queue"):
            return
        flushed = threading.Event()  # a last callback comes after all others
        hal.create_semaphore().on_reached(0, lambda _: flushed.set())
        assert flushed.wait(LIMIT)
        with self.lock:
            for number, (value, _, cancelled) in enumerate(self.callbacks):
                reached = self.failure is not None or value <= self.value
                assert (number in self.called) == (reached and not cancelled)
                if self.failure is None and number in self.called:
                    assert self.called[number] is None
        self.queue.close(LIMIT)


def device_wait(submission):
    """Wait for a submission's end, whatever it is."""
    with contextlib.suppress(HalError):
        submission.wait(LIMIT)


def test_one_semaphore_against_a_model():
    with hal.create_device("cpu") as device:
        machine = type("Machine", (OneSemaphore,), {"device": device})
        run_state_machine_as_test(
            machine,
            settings=settings(
                max_examples=100,
                stateful_step_count=25,
                deadline=None,
                derandomize=True,
                database=None,
            ),
        )
