"""List coarse mutants: errors of the wrong class, native calls that do nothing, answers left out.

Each is one mistake that many tests notice: with them `caught.json` says of nearly
every test that it can fail. `mutants.py` makes them, and they are tested as the others.
"""

# ruff: noqa: E501 - patches quote lines as they stand

from __future__ import annotations

__all__ = ["COARSE"]

CPU = "hal_cpu.device"


def raises_another(name, text, other):
    """Return the patch with which one class of errors makes errors of another one."""
    line = f'    """{text}'
    body = f"    def __new__(cls, *given, **named):\n        return {other}(*given)\n"
    return ("hal.errors", f"class {name}{line}", f"class {name}{body}{line}")


COARSE = (
    # Name, tests, patches. Errors:
    (
        "a wrong value is told as a wrong type",
        ["semaphores/test_values.py::test_host_signal_not_above_the_value_is_refused_s1"],
        raises_another(
            "InvalidArgumentError(HalError, ValueError):\n",
            "Report an argument that is out of range or contradicts another.",
            "ArgumentTypeError",
        ),
    ),
    (
        "a wrong type is told as a wrong value",
        ["files/test_files.py::test_bad_files_are_refused_q4[a file of no path]"],
        raises_another(
            "ArgumentTypeError(HalError, TypeError):\n",
            "Report an argument of the wrong type.",
            "InvalidArgumentError",
        ),
    ),
    (
        "what is closed is told as a wrong type",
        ["memory/test_buffers.py::test_a_closed_buffer_refuses_use_m2"],
        raises_another(
            "ClosedError(HalError, ValueError):\n",
            "Report the use of something closed, or of a parent process's object after a fork.",
            "ArgumentTypeError",
        ),
    ),
    (
        "what was cancelled is told as failed",
        ["queues/test_close.py::test_close_cancels_what_is_not_issued_q6[queue-fill]"],
        raises_another(
            "CancelledError(HalError):\n",
            "Report an operation that was cancelled before it was issued.",
            "OperationError",
        ),
    ),
    (
        "a failed operation is told as a lost device",
        ["files/test_files.py::test_what_goes_wrong_fails_the_operation_q4"],
        raises_another(
            "OperationError(HalError):\n",
            "Report that the device refused or failed one operation; others go on.",
            "DeviceLostError",
        ),
    ),
    (
        "a lost device is told as a failed operation",
        ["failure/test_lost.py::test_everything_unretired_fails_s5"],
        raises_another(
            "DeviceLostError(HalError):\n",
            "Report that the native context is gone: every unretired operation on it failed.",
            "OperationError",
        ),
    ),
    (
        "an unknown name is told as a failed operation",
        ["devices/test_devices.py::test_an_unknown_index_is_not_found"],
        raises_another(
            "NotFoundError(HalError, LookupError):\n",
            "Report a name (of a kernel, a global, a device) that does not exist.",
            "OperationError",
        ),
    ),
    (
        "memory that ran out is told as a failed operation",
        ["memory/test_alloca.py::test_out_of_memory_in_order_m3"],
        raises_another(
            "OutOfMemoryError(HalError, MemoryError):\n",
            "Report that memory ran out after finished work and caches gave theirs back.",
            "OperationError",
        ),
    ),
    (
        "a time-out is told as a failed operation",
        ["semaphores/test_waits.py::test_unreached_values_time_out_s6"],
        raises_another(
            "DeadlineExceededError(HalError, TimeoutError):\n",
            "Report that a wait ran out of time; the text lists what it still waits for.",
            "OperationError",
        ),
    ),
    (
        "a foreign failure is told as a failed operation",
        ["semaphores/test_failure.py::test_foreign_errors_become_semaphore_failed_errors_s4"],
        raises_another(
            "SemaphoreFailedError(HalError):\n",
            "Report a semaphore failed with an error that is no HalError; that one is the cause.",
            "OperationError",
        ),
    ),
    (
        "what cannot be handed out is told as a wrong value",
        ["interop/test_dlpack.py::test_types_that_dlpack_does_not_have_m2"],
        raises_another(
            "ExchangeError(HalError, BufferError):\n",
            "Report memory that cannot be handed to another library, or taken from it, as asked.",
            "InvalidArgumentError",
        ),
    ),
    # Native calls
    (
        "a fill does nothing",
        ["queues/test_transfers.py::test_fill_of_a_range_q4"],
        (
            CPU,
            "_driver.FILL, address, pattern, width, count)",
            "_driver.FILL, address, pattern, width, 0)",
        ),
    ),
    (
        "a copy does nothing",
        ["queues/test_transfers.py::test_copy_of_a_whole_buffer_q4"],
        (
            CPU,
            "    copy_from_host = copy_to_host = copy\n",
            (
                "    copy_from_host = copy_to_host = copy\n\n"
                "    def copy(self, stream, target, source, size):\n"
                "        self.copy_to_host(stream, target, source, 0)\n"
            ),
        ),
    ),
    (
        "nothing comes back to the host",
        ["queues/test_transfers.py::test_host_to_device_and_back_q4"],
        (
            CPU,
            "    copy_from_host = copy_to_host = copy\n",
            (
                "    copy_from_host = copy\n\n"
                "    def copy_to_host(self, stream, target, source, size):\n"
                "        self.copy(stream, target, source, 0)\n"
            ),
        ),
    ),
    (
        "a kernel is not launched",
        ["kernels/test_dispatch.py::test_every_block_of_a_grid_runs_c5"],
        (
            CPU,
            "            *grid,\n            *block,\n            shared_memory,\n        )\n        if error := self._enqueue(stream):",
            "            *grid,\n            *block,\n            shared_memory,\n        )\n        if error := 0:",
        ),
    ),
    (
        "a graph is not launched",
        ["command_buffers/test_transfers.py::test_fill_patterns_c1"],
        (
            CPU,
            "        _pack_one(self._mail, stream << 6, _driver.GRAPH, instance)\n        if error := self._enqueue(stream):",
            "        if error := 0:",
        ),
    ),
    # Answers
    (
        "a time-out says nothing of who has promised",
        ["semaphores/test_texts.py::test_a_chain_of_promises_s9"],
        (
            "hal._engine.explain",
            '    return f"{mode} " + "; ".join(_Account().told(entries, ()))',
            "    return mode",
        ),
    ),
    (
        "an ended submission says that it is issued",
        ["queues/test_submission.py::test_a_submission_after_a_failure_is_fine_q1"],
        (
            "hal._engine.submission",
            "        return WORDS[self._state][0]\n",
            "        return WORDS[min(self._state, ISSUED)][0]\n",
        ),
    ),
    (
        "a submission forgets what failed it",
        ["queues/test_submission.py::test_the_state_of_a_failed_submission_q1"],
        (
            "hal._engine.submission",
            "        return fresh(self._error) if self._state > DONE else None",
            "        return None",
        ),
    ),
    (
        "nothing says what it is",
        ["memory/test_buffers.py::test_buffers_say_what_they_are_m2"],
        *(
            (
                module,
                f'        return f"<{what} ',
                f'        return "{what}"\n        return f"<{what} ',
            )
            for module, what in (
                ("hal._buffers.buffer", "Buffer"),
                ("hal._commands.command_buffer", "CommandBuffer"),
                ("hal._devices.device", "Device"),
                ("hal._kernels.executable", "Executable"),
                ("hal._engine.fence", "Fence"),
                ("hal._devices.queue", "Queue"),
                ("hal._engine.semaphore", "Semaphore"),
                ("hal._engine.submission", "Submission"),
            )
        ),
        (
            "hal._engine.timelines",
            '        return f"{self._semaphore.name}@{self._value}"',
            '        return "a timepoint"',
        ),
    ),
    # What devices share:
    (
        "seconds are milliseconds",
        ["queues/test_timestamps.py::test_seconds_are_seconds_q4"],
        (
            "hal._engine.timestamps",
            "return self._native.elapsed(first.handle, second.handle)",
            "return 1000 * self._native.elapsed(first.handle, second.handle)",
        ),
    ),
    (
        "a timer is used again while its time is kept",
        ["queues/test_timestamps.py::test_a_kept_time_does_not_change_q5"],
        (
            "hal._engine.timestamps",
            "        except IndexError:\n            timer =",
            "        except IndexError:\n            if len(self._all) > 1:\n                return self._all[-1]\n            timer =",
        ),
    ),
    (
        "no device is another one's peer",
        ["devices/test_peers.py::test_peers_are_there_or_refused_q4"],
        (
            CPU,
            "all one\n        return True",
            "all one\n        return False",
        ),
    ),
    (
        "a stream has no number",
        ["interop/test_external.py::test_external_streams_are_there_or_refused_q2"],
        (
            CPU,
            'which all devices share."""\n        return stream',
            'which all devices share."""\n        return str(stream)',
        ),
    ),
)
