"""List mutants of what queues do with operations: order, failure, lifetimes.

Each is one mistake; `mutants.py` makes them, and says what they are for.
"""

# ruff: noqa: E501 - patches quote lines as they stand

from __future__ import annotations

from named_tests import MODEL, RUNNING

__all__ = ["QUEUES"]

UNENDED = "queues/test_lifetimes.py::test_buffers_of_unended_work_are_kept_q5"

QUEUES = (
    # Name, tests, patches
    # Submission and order
    (
        "a signal wakes its own queue only",
        ["queues/test_batches.py::test_a_diamond_s2"],
        (
            "hal._engine.progress",
            "            release(operation, index, work)",
            (
                "            if operation._queue is batch.some[0][0]._queue:\n"
                "                release(operation, index, work)"
            ),
        ),
    ),
    (
        "a signal wakes no callback",
        ["semaphores/test_callbacks.py::test_callbacks_come_in_order_s8"],
        (
            "hal._engine.timelines",
            "        if self._reached:\n            self._reached.take(value, work)",
            "        pass",
        ),
    ),
    # Cancelling
    (
        "a cancelled operation keeps a signal's waiters waiting",
        [
            "queues/test_cancel.py::test_what_is_not_issued_is_cancelled_q7[ordered-fill]",
            "queues/test_cancel.py::test_what_waits_for_a_cancelled_operation_fails_q7",
        ],
        (
            "hal._engine.ending",
            "        end(operation, CANCELLED, error, work)\n        queue._cancelled",
            "        operation._signals = ()\n        end(operation, CANCELLED, error, work)\n        queue._cancelled",
        ),
    ),
    (
        "cancelling recalls what was issued",
        ["queues/test_cancel.py::test_what_runs_is_not_recalled_q7"],
        (
            "hal._engine.ending",
            "    elif state in {PENDING, PARTLY, STARVED, SENT}:\n",
            "    elif state < DONE:\n",
        ),
    ),
    (
        "cancelling what has ended is said to have been in time",
        ["queues/test_cancel.py::test_what_has_ended_is_not_cancelled_q7[fill]"],
        (
            "hal._engine.submission",
            "            return self._state == CANCELLED\n        try:",
            "            return True\n        try:",
        ),
    ),
    (
        "a cancelled task leaves its submission in line",
        ["queues/test_cancel.py::test_a_cancelled_task_cancels_if_asked_q7"],
        (
            "hal._engine.submission",
            "            if not submission.cancel() and submission._state < DONE:",
            "            if submission._state < DONE:",
        ),
    ),
    (
        "a submission blocks on its waits",
        ["queues/test_submission.py::test_every_operation_returns_while_its_wait_is_open_q1[fill]"],
        (
            "hal._engine.submitting",
            "    operation = make(queue, kind, payload, signals, is_host)\n",
            (
                "    import hal\n"
                "    hal.wait_all(waits)\n"
                "    operation = make(queue, kind, payload, signals, is_host)\n"
            ),
        ),
    ),
    (
        "a transfer waits for its stream",
        [
            "queues/test_held.py::test_a_copy_returns_while_its_stream_is_held_q1",
            "queues/test_held.py::test_host_arrays_are_copied_while_their_stream_is_held_q1",
            "queues/test_held.py::test_recorded_copies_return_while_their_stream_is_held_q1",
        ],
        (
            "hal_cpu.device",
            "def copy(self, stream: int, target: int, source: int, size: int) -> None:\n",
            (
                "def copy(self, stream: int, target: int, source: int, size: int) -> None:\n"
                "        self.synchronize_stream(stream)\n"
            ),
        ),
        # The kernel gives up sooner.
        ("hal_conformance.suite.queues.test_held", "TURNS = 1 << 28", "TURNS = 1 << 21"),
    ),
    (
        "an ordered queue keeps no order",
        ["queues/test_order.py::test_an_open_wait_holds_up_what_is_behind_q2", MODEL],
        (
            "hal._devices.queue",
            "super().__init__(context, name, ordered=ordered",
            "super().__init__(context, name, ordered=False",
        ),
        ("hal._engine.stream", "        return self._ordered\n", "        return True\n"),
    ),
    (
        "device work overtakes a call",
        ["queues/test_submission.py::test_every_operation_returns_while_its_queue_is_held_q1"],
        (
            "hal._engine.submitting",
            "            and not (queue._ordered and queue._hosts)\n",
            "",
        ),
    ),
    (
        "an unordered queue keeps an order",
        ["queues/test_order.py::test_an_unordered_queue_overtakes_q2[fill]"],
        (
            "hal._devices.queue",
            "super().__init__(context, name, ordered=ordered",
            "super().__init__(context, name, ordered=True",
        ),
    ),
    (
        "an ordered queue hands a failure on",
        ["queues/test_order.py::test_order_inherits_no_failure_q2"],
        (
            "hal._engine.backlog",
            "            backlog.popleft()\n            continue\n        if operation._unresolved:",
            (
                "            backlog.popleft()\n"
                "            if queue._ordered and operation._state == FAILED and backlog:\n"
                "                end(backlog[0], FAILED, operation._error, step.work)\n"
                "            continue\n        if operation._unresolved:"
            ),
        ),
    ),
    (
        "a limit of operations in flight is ignored",
        [f"{RUNNING}test_no_more_is_in_flight_than_allowed_q1"],
        (
            "hal._engine.backlog",
            "    in_flight = queue._launched - queue._retired\n    function",
            "    in_flight = 0\n    function",
        ),
    ),
    # Failure
    (
        "it fails too much: what an operation has waited for",
        ["failure/test_propagation.py::test_one_failed_wait_of_many_is_enough_s5", MODEL],
        (
            "hal._engine.ending",
            (
                "        for timepoint in operation._signals:\n"
                "            semaphore = timepoint._semaphore\n"
                "            semaphore._fail"
            ),
            (
                "        for timepoint in (*operation._signals, *operation._waits):\n"
                "            semaphore = timepoint._semaphore\n"
                "            semaphore._fail"
            ),
        ),
    ),
    (
        "it fails too much: everything that waits in an unordered queue",
        [
            "failure/test_propagation.py::test_failures_of_many_threads_s5",
            "failure/test_propagation.py::test_a_failure_runs_down_a_chain_s5",
        ],
        (
            "hal._engine.ending",
            ("    finish(operation, state, error, work)\n\n\ndef end_pending"),
            (
                "    finish(operation, state, error, work)\n"
                "    for other in list(queue._pending) if error else ():\n"
                "        end(other, state, error, work)\n"
                "\n\ndef end_pending"
            ),
        ),
    ),
    (
        "it fails too little: the first signal alone",
        ["queues/test_host_calls.py::test_a_raising_call_fails_its_signals_q4[no wait-OSError]"],
        (
            "hal._engine.ending",
            (
                "        for timepoint in operation._signals:\n"
                "            semaphore = timepoint._semaphore\n"
                "            semaphore._fail"
            ),
            (
                "        for timepoint in operation._signals[:1]:\n"
                "            semaphore = timepoint._semaphore\n"
                "            semaphore._fail"
            ),
        ),
    ),
    (
        "it fails too little: a failed wait lets an operation run",
        ["failure/test_propagation.py::test_a_failed_wait_fails_the_operation_s5"],
        (
            "hal._engine.backlog",
            (
                "    if timeline._failure is not None:\n"
                "        end(operation, FAILED, timeline._failure, work)\n"
                "    elif _resolve"
            ),
            (
                "    if timeline._failure is not None:\n"
                "        operation._waits = ()\n"
                "        operation._unresolved = 0\n"
                "        work.append((ISSUE, queue))\n"
                "    elif _resolve"
            ),
        ),
    ),
    (
        "a close fails no signal",
        ["queues/test_close.py::test_close_cancels_what_is_not_issued_q6[queue-fill]"],
        (
            "hal._engine.ending",
            "        end(operation, CANCELLED, error, work)\n    else:\n",
            "        operation._signals = ()\n        end(operation, CANCELLED, error, work)\n    else:\n",
        ),
    ),
    (
        "a deferred call ends at the first of its waits",
        ["queues/test_host_calls.py::test_a_call_ends_with_all_that_it_returns_q4"],
        (
            "hal._engine.backlog",
            "        if operation._unresolved == bit:\n            if operation._state",
            "        if True:\n            if operation._state",
        ),
    ),
    # Lifetimes
    (
        "memory is freed early",
        ["queues/test_lifetimes.py::test_targets_of_unended_work_are_kept_q5"],
        (
            "hal._transfers.transfers",
            "width, length // width), storage\n",
            "width, length // width), None\n",
        ),
    ),
    (
        "a copy does not keep its source",
        [UNENDED],
        (
            "hal._transfers.transfers",
            "resources = (target_storage, source_storage, host)",
            "resources = (target_storage, host)",
        ),
    ),
    (
        "a host array is not kept",
        ["queues/test_lifetimes.py::test_host_arrays_of_unended_work_are_kept_q5"],
        (
            "hal._transfers.transfers",
            "resources = (target_storage, source_storage, host)",
            "resources = (target_storage, source_storage)",
        ),
    ),
    (
        "an update is taken when it runs",
        ["queues/test_transfers.py::test_update_takes_its_bytes_during_the_call_q4", MODEL],
        (
            "hal._transfers.transfers",
            "    return _from_host(device, storage, start, np.array(host, copy=True))\n\n\ndef _pinned",
            "    return _from_host(device, storage, start, host)\n\n\ndef _pinned",
        ),
    ),
    (
        "ended work keeps its buffers",
        ["queues/test_lifetimes.py::test_ended_work_keeps_nothing_q5"],
        (
            "hal._engine.operation",
            (
                "        self._function = self._resources = None\n"
                "        self._arguments = ()\n"
                "        self._waits"
            ),
            ("        self._function = None\n        self._arguments = ()\n        self._waits"),
        ),
    ),
    (
        "a view does not keep its memory",
        ["memory/test_buffers.py::test_a_view_keeps_its_memory_m2"],
        (
            "hal._memory.views",
            "        self.owner = owner\n        self.__array_interface__",
            "        self.owner = None\n        self.__array_interface__",
        ),
    ),
)
