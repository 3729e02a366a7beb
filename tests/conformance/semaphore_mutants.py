"""List mutants of semaphores and of waits for them.

Each is one mistake; `mutants.py` makes them, and says what they are for.
"""

from __future__ import annotations

from named_tests import RUNNING

__all__ = ["SEMAPHORES"]

WRITTEN = "semaphores/test_visibility.py::test_a_seen_value_means_that_memory_is_written_s7"

PROCESSES = "interop/test_processes.py::"

SEMAPHORES = (
    # Name, tests, patches
    # Processes
    (
        "a failure stays in its process",
        [f"{PROCESSES}test_values_and_failures_cross_s4"],
        (
            "hal._engine.shared_semaphore",
            "if is_news := region.failure() is None:",
            "if is_news := False:",
        ),
    ),
    (
        "the dead are waited for",
        [f"{PROCESSES}test_work_that_waits_for_a_dead_process_fails_s4"],
        ("hal._base.regions", "if not member.is_alive()]", "if False]"),
    ),
    (
        "a part of a buffer is shared from the beginning",
        [f"{PROCESSES}test_two_processes_take_turns_with_one_buffer_m2"],
        ("hal._buffers.sharing", "offset=buffer._offset,", "offset=0,"),
    ),
    # Semaphores
    (
        "a value goes back",
        ["semaphores/test_reserve.py::test_host_signal_above_a_running_calls_value_stands_s1"],
        (
            "hal._engine.timelines",
            "if value < self._value or self._failure is not None:",
            "if self._failure is not None:",
        ),
    ),
    (
        "it signals twice",
        ["semaphores/test_values.py::test_polling_reaches_each_value_and_not_more_s1"],
        (
            "hal._engine.ending",
            "            semaphore._advance(value, work)\n",
            (
                "            semaphore._advance(value, work)\n"
                "            semaphore._advance(value + 1, work)\n"
            ),
        ),
    ),
    (
        "a signal comes when the work is issued",
        [WRITTEN, f"{RUNNING}test_values_of_running_work_are_not_seen_s7"],
        (
            "hal._engine.issuing",
            "semaphore._publish(value, operation, step.work)",
            "semaphore._advance(value, step.work)",
        ),
    ),
    (
        "a value is reserved at retirement",
        [f"{RUNNING}test_running_work_has_reserved_its_value_s1"],
        (
            "hal._engine.backlog",
            "            semaphore._reserved = value\n",
            "            pass\n",
        ),
    ),
    (
        "a used-up value is taken again",
        ["semaphores/test_values.py::test_host_signal_not_above_the_value_is_refused_s1"],
        (
            "hal._engine.semaphore",
            "        if value <= semaphore._reserved:",
            "        if value < semaphore._reserved:",
        ),
    ),
    (
        "a failure spares reached values",
        ["semaphores/test_failure.py::test_failure_is_retroactive_s4"],
        (
            "hal._engine.semaphore",
            "if self._failure is None and self._value >= value:\n            return\n        wait",
            "if self._value >= value:\n            return\n        wait",
        ),
    ),
    (
        "the first failure is replaced",
        ["semaphores/test_failure.py::test_the_first_failure_wins_s4"],
        (
            "hal._engine.timelines",
            ("        if self._failure is None:\n            self._failure = error\n"),
            "        self._failure = error\n",
        ),
    ),
    (
        "one exception is raised for all",
        ["semaphores/test_failure.py::test_what_is_raised_is_fresh_s4"],
        (
            "hal._base.failures",
            "    copy.__cause__ = error\n    return copy",
            "    return error if isinstance(error, HalError) else copy",
        ),
    ),
    (
        "a kept failure keeps its frames",
        ["semaphores/test_failure.py::test_a_kept_failure_keeps_no_frames_s4"],
        ("hal._base.failures", "        _traceback.__set__(link, None)\n", "        pass\n"),
    ),
    (
        "a callback is called inline",
        ["semaphores/test_callbacks.py::test_a_callback_is_never_inline_s8[before]"],
        (
            "hal._engine.semaphore",
            (
                "        progress.dispatcher.append(self._run, self._semaphore._failure)\n"
                "        work.append((timelines.CALLBACK, None))"
            ),
            (
                "        run, failure = self._run, self._semaphore._failure\n"
                "        inline = type('Inline', (), {'open': lambda _: run(failure)})\n"
                "        work.append((timelines.WAKE, inline()))"
            ),
        ),
    ),
    (
        "a callback comes twice",
        ["semaphores/test_callbacks.py::test_a_callback_comes_once_s8"],
        (
            "hal._engine.semaphore",
            "            function, self._function = self._function, None\n",
            "            function = self._function\n",
        ),
        (
            "hal._engine.semaphore",
            "        progress.dispatcher.append(self._run, self._semaphore._failure)\n",
            (
                "        progress.dispatcher.append(self._run, self._semaphore._failure)\n"
                "        progress.dispatcher.append(self._run, self._semaphore._failure)\n"
            ),
        ),
    ),
    (
        "a cancelled callback comes",
        ["semaphores/test_callbacks.py::test_cancelling_takes_a_callback_back_s8"],
        (
            "hal._engine.semaphore",
            (
                "            found = self._semaphore._forget(self._value, self)\n"
                "            if found:\n"
            ),
            ("            found = True\n            if False:\n"),
        ),
    ),
    # Waits
    (
        "a time-out is ignored",
        ["semaphores/test_waits.py::test_unreached_values_time_out_s6[0.02]"],
        (
            "hal._engine.waiting",
            "            self._deadline = sync.monotonic() + timeout\n",
            "            pass\n",
        ),
    ),
    (
        "a time-out comes early",
        ["semaphores/test_waits.py::test_the_time_limit_is_kept_s6"],
        (
            "hal._engine.waiting",
            "            self._deadline = sync.monotonic() + timeout\n",
            "            self._deadline = sync.monotonic() + timeout / 2\n",
        ),
    ),
    (
        "wait_any returns the wrong index",
        ["semaphores/test_waits.py::test_wait_any_says_which_s6"],
        (
            "hal._engine.waiting",
            "                self._index = index\n",
            "                self._index = len(self._groups) - 1 - index\n",
        ),
    ),
    (
        "wait_any overlooks a failure",
        ["semaphores/test_waits.py::test_a_failure_in_the_set_ends_every_wait_s6[wait_any-1]"],
        (
            "hal._engine.waiting",
            "        for entries in self._groups:\n            if self._failure is None:\n",
            "        for entries in ():\n            if self._failure is None:\n",
        ),
    ),
    (
        "a wait for all ends with the first",
        ["semaphores/test_waits.py::test_wait_all_needs_all_s6"],
        (
            "hal._engine.waiting",
            "                entries.pop()\n",
            "                entries.clear()\n",
        ),
    ),
    (
        "a fence keeps the lowest value",
        ["semaphores/test_fences.py::test_the_highest_value_of_a_semaphore_counts_s6"],
        (
            "hal._engine.fence",
            "each._value > known._value",
            "each._value < known._value",
        ),
    ),
    (
        "nobody retires for a poller",
        ["semaphores/test_values.py::test_polling_reaches_each_value_and_not_more_s1"],
        (
            "hal._engine.semaphore",
            (
                "        if is_open and not steps.is_inside():\n"
                "            progress.act(_harvest, self, None)\n"
            ),
            "",
        ),
    ),
)
