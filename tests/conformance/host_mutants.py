"""List mutants of what the host does: calls, semaphores, fences, queues, files, kernels.

Each is one mistake, as in `coarse.py`; `mutants.py` makes them, and they are tested as
the others.
"""

# ruff: noqa: E501 - patches quote lines as they stand

from __future__ import annotations

__all__ = ["HOST"]

CPU = "hal_cpu.device"

HOST = (
    # Name, tests, patches
    # What the host is called for
    (
        "a host call is not made",
        ["queues/test_host_calls.py::test_a_call_runs_once_with_its_arguments_q4"],
        (
            "hal._engine.submission",
            "outcome = function(*arguments) or ()",
            "outcome = ()",
        ),
    ),
    (
        "what a call raises is forgotten",
        ["queues/test_host_calls.py::test_a_raising_call_fails_its_signals_q4"],
        (
            "hal._engine.submission",
            "            outcome = of_function(raised, culprit, self._describe())\n",
            "            outcome = ()\n",
        ),
    ),
    (
        "a call is made on the thread that submits it",
        ["queues/test_host_calls.py::test_a_call_runs_on_another_thread_q4"],
        (
            "hal._base.workers",
            '        """Have `function` called on a thread of the pool. Any thread, no lock held."""\n',
            "        return function(*arguments)\n",
        ),
    ),
    (
        "a callback never comes",
        ["semaphores/test_callbacks.py::test_callbacks_come_in_order_s8"],
        ("hal._engine.semaphore", "        if function is not None:\n", "        if False:\n"),
    ),
    (
        "an await ends at once",
        ["semaphores/test_await.py::test_awaiting_a_value_that_comes_later_s8"],
        ("hal._engine.awaiting", "            yield from future\n", ""),
    ),
    (
        "an awaited failure is forgotten",
        ["semaphores/test_await.py::test_awaiting_a_failure_s8"],
        (
            "hal._engine.awaiting",
            "            raise fresh(semaphore._failure)\n",
            "            return\n",
        ),
    ),
    (
        "an await never ends",
        ["semaphores/test_await.py::test_awaiting_a_value_that_comes_later_s8"],
        ("hal._engine.awaiting", "            future.set_result(None)\n", "            pass\n"),
    ),
    (
        "a cancelled await leaves its callback",
        ["semaphores/test_await.py::test_a_cancelled_await_leaves_nothing_behind_s8"],
        (
            "hal._engine.awaiting",
            "            progress.act(waiter._cancel, None, None)\n            raise\n",
            "            raise\n",
        ),
    ),
    # Semaphores, fences, queues
    (
        "every semaphore begins at zero",
        ["semaphores/test_values.py::test_initial_value_s1"],
        (
            "hal._engine.shared_semaphore",
            "return Semaphore(value,",
            "return Semaphore(0 * value,",
        ),
    ),
    (
        "every semaphore begins at one",
        ["semaphores/test_values.py::test_default_value_is_zero_s1"],
        (
            "hal._engine.shared_semaphore",
            "return Semaphore(value,",
            "return Semaphore(value or 1,",
        ),
    ),
    (
        "a fence is never reached",
        ["semaphores/test_fences.py::test_an_empty_fence_is_reached_s6"],
        ("hal._engine.fence", "return waiting.poll_all(self._entries)", "return False"),
    ),
    (
        "the union of two fences is the first",
        ["semaphores/test_fences.py::test_fences_join_s6"],
        ("hal._engine.fence", "return Fence((*self._entries, *other._entries))", "return self"),
    ),
    (
        "a fence fails one of its semaphores",
        ["semaphores/test_fences.py::test_failing_a_fence_fails_its_semaphores_s6"],
        (
            "hal._engine.fence",
            "        for timepoint in self._entries:\n",
            "        for timepoint in self._entries[:1]:\n",
        ),
    ),
    (
        "a queue is idle at once",
        ["semaphores/test_waits.py::test_wait_idle_ends_with_everything_s6"],
        (
            "hal._engine.submitted",
            "    error = _wait_for(_unended(queues), deadline)\n",
            "    error = None\n",
        ),
    ),
    (
        "a close does not wait for what runs",
        ["queues/test_close.py::test_close_that_runs_out_of_time_q6"],
        (
            "hal._engine.context",
            ("            if not running:\n                break\n"),
            "            break\n",
        ),
    ),
    (
        "a device stays open",
        ["queues/test_close.py::test_a_closed_device_refuses_everything_q6"],
        (
            "hal._memory.core",
            '"""Raise unless the device is open."""\n',
            '"""Raise never."""\n        return\n',
        ),
    ),
    # Files, kernels, devices
    (
        "a file is not written",
        ["files/test_files.py::test_a_range_of_a_buffer_into_a_range_of_a_file_q4"],
        (
            "hal._transfers.files",
            "                count = os.pwritev(",
            "                count = len(memory) - done or os.pwritev(",
        ),
    ),
    (
        "a file is not read",
        ["files/test_files.py::test_a_range_of_a_file_into_a_range_of_a_buffer_q4"],
        (
            "hal._transfers.files",
            "                count = os.preadv(",
            "                count = len(memory) - done or os.preadv(",
        ),
    ),
    (
        "a grid in memory is not looked at",
        ["command_buffers/test_indirect.py::test_a_grid_in_memory_q4"],
        (
            CPU,
            "            counts,\n            *block,\n            shared_memory,\n        )\n        if error := self._enqueue(stream):",
            "            counts,\n            *block,\n            shared_memory,\n        )\n        if error := 0:",
        ),
    ),
    (
        "macros do not reach the compiler",
        ["kernels/test_compile.py::test_defines_reach_the_source_c5"],
        ("hal._programs.requests", "macros = {\n", "macros = {} and {\n"),
    ),
    (
        "folders of headers do not reach the compiler",
        ["executables/test_executables.py::test_headers_are_found_c5"],
        ("hal._programs.requests", "include_directories=includes", "include_directories=()"),
    ),
    (
        "the compiler is told another file name",
        ["kernels/test_compile.py::test_an_error_has_the_users_file_and_line_c5"],
        ("hal._programs.requests", "filename=name,\n", 'filename="other.cpp",\n'),
    ),
    (
        "an image has no variables",
        ["executables/test_executables.py::test_loads_have_variables_of_their_own_c5"],
        (
            "hal._kernels.executable",
            "        return _global_variable(self._device, self._module, name, dtype)",
            "        return self._device.upload(np.zeros(4096, dtype))",
        ),
    ),
    (
        "a program lists no kernels",
        ["kernels/test_compile.py::test_a_program_is_a_mapping_of_its_kernels_c5"],
        ("hal._kernels.executable", "return iter(self._kernels)", "return iter(())"),
    ),
    (
        "a device is called by the next index",
        ["devices/test_devices.py::test_the_name_says_backend_and_index"],
        (
            "hal._devices.device",
            'f"{backend}:{native.info.index}"',
            'f"{backend}:{native.info.index + 1}"',
        ),
    ),
    (
        "a device has a feature that nobody knows",
        ["devices/test_devices.py::test_features_are_known_ones"],
        (
            "hal._memory.core",
            "        return self._native.features\n",
            '        return self._native.features | {"speed"}\n',
        ),
    ),
    (
        "a device has no warps",
        ["devices/test_devices.py::test_the_description_makes_sense"],
        ("hal_cpu.driver", "warp_size=32", "warp_size=0"),
    ),
    (
        "nothing is compiled",
        ["executables/test_without_a_compiler.py::test_compile_is_there_or_refused_c5"],
        ("hal._programs.compile", 'if "compile" not in', 'if "compile" in'),
    ),
    (
        "host memory is not imported",
        ["memory/test_import.py::test_import_is_there_or_refused_m1"],
        ("hal._devices.device", 'if "host_import" not in', 'if "host_import" in'),
    ),
    (
        "no memory is mapped",
        ["memory/test_buffers.py::test_device_memory_is_mapped_or_refused_m2"],
        ("hal._buffers.buffer", "        if storage.host_address is None:\n", "        if True:\n"),
    ),
)
