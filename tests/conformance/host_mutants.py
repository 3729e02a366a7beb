"""List mutants of what the host does: calls, waits, files, kernels, memory, answers, ends.

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
            "hal._host_operations",
            "entries = _awaited(operation._function(*operation._arguments))",
            "entries = ()",
        ),
    ),
    (
        "what a call raises is forgotten",
        ["queues/test_host_calls.py::test_a_raising_call_fails_its_signals_q4"],
        ("hal._host_operations", "            error = raised\n", "            raised.args = ()\n"),
    ),
    (
        "a call is made on the thread that submits it",
        ["queues/test_host_calls.py::test_a_call_runs_on_another_thread_q4"],
        (
            "hal._helpers",
            '        """Have `function` called on a thread of the pool. Any thread, no lock held."""\n',
            "        return function(*arguments)\n",
        ),
    ),
    (
        "a callback never comes",
        ["semaphores/test_callbacks.py::test_callbacks_come_in_order_s8"],
        ("hal._semaphore", "        if function is not None:\n", "        if False:\n"),
    ),
    (
        "an await ends at once",
        ["semaphores/test_await.py::test_awaiting_a_value_that_comes_later_s8"],
        ("hal._awaiting", "        await future\n", "        pass\n"),
    ),
    (
        "an awaited failure is forgotten",
        ["semaphores/test_await.py::test_awaiting_a_failure_s8"],
        ("hal._awaiting", "future.set_exception(error)", "future.set_result(None)"),
    ),
    (
        "an await never ends",
        ["semaphores/test_await.py::test_awaiting_a_value_that_comes_later_s8"],
        ("hal._awaiting", "            future.set_result(None)\n", "            pass\n"),
    ),
    (
        "a cancelled await leaves its callback",
        ["semaphores/test_await.py::test_a_cancelled_await_leaves_nothing_behind_s8"],
        (
            "hal._awaiting",
            "    finally:\n        callback.cancel()\n",
            "    finally:\n        pass\n",
        ),
    ),
    # Semaphores, fences, queues
    (
        "every semaphore begins at zero",
        ["semaphores/test_values.py::test_initial_value_s1"],
        (
            "hal._semaphore",
            "return Semaphore(check_value(initial), name)",
            "return Semaphore(0 * check_value(initial), name)",
        ),
    ),
    (
        "every semaphore begins at one",
        ["semaphores/test_values.py::test_default_value_is_zero_s1"],
        (
            "hal._semaphore",
            "return Semaphore(check_value(initial), name)",
            "return Semaphore(check_value(initial) or 1, name)",
        ),
    ),
    (
        "a fence is never reached",
        ["semaphores/test_fences.py::test_an_empty_fence_is_reached_s6"],
        ("hal._fence", "return _wait.poll_all(self._entries)", "return False"),
    ),
    (
        "the union of two fences is the first",
        ["semaphores/test_fences.py::test_fences_join_s6"],
        ("hal._fence", "return Fence((*self._entries, *other._entries))", "return self"),
    ),
    (
        "a fence fails one of its semaphores",
        ["semaphores/test_fences.py::test_failing_a_fence_fails_its_semaphores_s6"],
        (
            "hal._fence",
            "        for timepoint in self._entries:\n",
            "        for timepoint in self._entries[:1]:\n",
        ),
    ),
    (
        "a queue is idle at once",
        ["semaphores/test_waits.py::test_wait_idle_ends_with_everything_s6"],
        (
            "hal._context",
            "operations = [operation for queue in queues for operation in queue._unended()]",
            "operations = []",
        ),
    ),
    (
        "a close does not wait for what runs",
        ["queues/test_close.py::test_close_that_runs_out_of_time_q6"],
        (
            "hal._context",
            "            if not issuing and not running:\n                break\n",
            "            if not issuing or not running:\n                break\n",
        ),
    ),
    (
        "a device stays open",
        ["queues/test_close.py::test_a_closed_device_refuses_everything_q6"],
        (
            "hal._device",
            '"""Raise unless the device is open."""\n',
            '"""Raise never."""\n        return\n',
        ),
    ),
    # Files, kernels, devices
    (
        "a file is not written",
        ["files/test_files.py::test_a_range_of_a_buffer_into_a_range_of_a_file_q4"],
        (
            "hal._files",
            "                count = os.pwritev(",
            "                count = len(memory) - done or os.pwritev(",
        ),
    ),
    (
        "a file is not read",
        ["files/test_files.py::test_a_range_of_a_file_into_a_range_of_a_buffer_q4"],
        (
            "hal._files",
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
        ("hal._compiling", "defines={str(key)", "defines={} and {str(key)"),
    ),
    (
        "folders of headers do not reach the compiler",
        ["executables/test_executables.py::test_headers_are_found_c5"],
        ("hal._compiling", "include_directories=tuple(", "include_directories=() and tuple("),
    ),
    (
        "the compiler is told another file name",
        ["kernels/test_compile.py::test_an_error_has_the_users_file_and_line_c5"],
        ("hal._compiling", "filename=name,\n", 'filename="other.cpp",\n'),
    ),
    (
        "an image has no variables",
        ["executables/test_executables.py::test_loads_have_variables_of_their_own_c5"],
        (
            "hal._executable",
            "        return _global_variable(self._device, self._module, name, dtype)",
            "        return self._device.upload(np.zeros(4096, dtype))",
        ),
    ),
    (
        "a program lists no kernels",
        ["kernels/test_compile.py::test_a_program_is_a_mapping_of_its_kernels_c5"],
        ("hal._executable", "return iter(self._kernels)", "return iter(())"),
    ),
    (
        "a device is called by the next index",
        ["devices/test_devices.py::test_the_name_says_backend_and_index"],
        ("hal._device", 'f"{backend}:{native.info.index}"', 'f"{backend}:{native.info.index + 1}"'),
    ),
    (
        "a device has a feature that nobody knows",
        ["devices/test_devices.py::test_features_are_known_ones"],
        (
            "hal._device",
            "        return self._native.features\n",
            '        return self._native.features | {"speed"}\n',
        ),
    ),
    (
        "a device has no warps",
        ["devices/test_devices.py::test_the_description_makes_sense"],
        ("hal_cpu.driver", "warp_size=1", "warp_size=0"),
    ),
    (
        "nothing is compiled",
        ["executables/test_without_a_compiler.py::test_compile_is_there_or_refused_c5"],
        ("hal._device", 'if "compile" not in', 'if "compile" in'),
    ),
    (
        "host memory is not imported",
        ["memory/test_import.py::test_import_is_there_or_refused_m1"],
        ("hal._device", 'if "host_import" not in', 'if "host_import" in'),
    ),
    (
        "no memory is mapped",
        ["memory/test_buffers.py::test_device_memory_is_mapped_or_refused_m2"],
        ("hal._buffer", "        if storage.host_address is None:\n", "        if True:\n"),
    ),
    # Memory
    (
        "an upload is flat",
        ["memory/test_buffers.py::test_upload_keeps_type_and_shape_m1"],
        (
            "hal._device",
            "host.nbytes, host.dtype, given.shape)",
            "host.nbytes, host.dtype, (given.size,))",
        ),
    ),
    (
        "a type that numpy() is given is ignored",
        ["memory/test_buffers.py::test_numpy_as_another_type_m1"],
        (
            "hal._buffer",
            '        kind = self._dtype if dtype is None else check_dtype(dtype)\n        shape = self._shape if dtype is None else shape_of(self._size, kind, "numpy")',
            "        kind, shape = self._dtype, self._shape",
        ),
    ),
    (
        "numpy() does not wait for what it is told to",
        ["memory/test_buffers.py::test_numpy_waits_m1"],
        ("hal._buffer", "read(self, array, wait=wait)", "read(self, array)"),
    ),
    (
        "a limit of memory is ignored",
        ["memory/test_usage.py::test_the_memory_limit_holds_m1"],
        (
            "hal._allocator",
            "            if self._memory_limit is not None:\n",
            "            if False:\n",
        ),
    ),
    (
        "nothing is given back for an allocation that finds no memory",
        ["memory/test_usage.py::test_memory_of_unended_work_is_waited_for_m1"],
        (
            "hal._memory",
            "            self._context.harvest()\n            self.absorb()\n            need",
            "            need",
        ),
        (
            "hal._memory",
            "                self.trim(0)\n                try:",
            "                try:",
        ),
    ),
    (
        "the peak of memory is never reset",
        ["memory/test_usage.py::test_the_peak_starts_again_m1"],
        ("hal._reaper", "            if reset_peak:\n", "            if False:\n"),
    ),
    (
        "memory is handed out as no device's",
        ["interop/test_dlpack.py::test_a_buffer_says_where_it_is_m2"],
        (CPU, "        return (1, 0)\n", "        return (0, 0)\n"),
    ),
    (
        "dropped memory is not given back",
        ["queues/test_lifetimes.py::test_a_thousand_buffers_come_and_go_q5"],
        (
            "hal._storage",
            "        if self._ticket is not None:\n            self._heap.doom(self._ticket)",
            "        return",
        ),
    ),
    (
        "an allocation begins where it should not",
        ["memory/test_buffers.py::test_allocations_are_aligned_and_apart_m1"],
        (
            "hal._extent",
            "    return address + buffer._offset\n",
            "    return address + buffer._offset + 1\n",
        ),
    ),
    (
        "a query promises nothing",
        ["memory/test_usage.py::test_queries_are_right_m1"],
        ("hal._heaps", "allocatable=not reason", "allocatable=False"),
    ),
    (
        "only arrays are host memory",
        ["queues/test_transfers.py::test_host_memory_of_any_kind_q4"],
        (
            "hal._transfers",
            "        view = memoryview(data)  #",
            "        view = memoryview(len(data))  #",
        ),
    ),
    # What things say of themselves
    (
        "an event is never signalled",
        ["command_buffers/test_order.py::test_an_event_is_created_signalled_and_reset_c1"],
        ("hal._command_events", "        return self._signalled\n", "        return False\n"),
    ),
    (
        "every slot begins at zero",
        ["command_buffers/test_slots.py::test_slots_say_what_they_take_c3"],
        (
            "hal._slots",
            "return Slot(self._slots, self._index, self._offset + start, length, kind)",
            "return Slot(self._slots, self._index, 0, length, kind)",
        ),
    ),
    (
        "a file has no path",
        ["files/test_files.py::test_a_file_says_what_it_is_q4"],
        ("hal._files", "        return self._path\n", '        return ""\n'),
    ),
    (
        "a buffer has no allocation",
        ["memory/test_alloca.py::test_alloca_and_dealloca_twice_m3"],
        ("hal._buffer", "        return self._allocation\n", "        return None\n"),
    ),
    (
        "every queue says that it is ordered",
        ["queues/test_order.py::test_both_kinds_of_queue_say_what_they_are_q2"],
        (
            "hal._stream",
            '        """Return whether the queue is first-in first-out (Q2)."""\n        return self._ordered',
            '        """Return whether the queue is first-in first-out (Q2)."""\n        return True',
        ),
    ),
    (
        "every queue is the compute queue",
        ["queues/test_several.py::test_a_device_has_three_queues_q3"],
        (
            "hal._device",
            "self.upload: Final = made[1]",
            "self.upload: Final = made[0]",
        ),
        (
            "hal._device",
            "self.download: Final = made[2]",
            "self.download: Final = made[0]",
        ),
    ),
    (
        "the list of devices grows",
        [
            "devices/test_devices.py::test_devices_are_listed_by_index",
            "devices/test_devices.py::test_the_list_is_stable",
        ],
        (
            "hal._registry",
            "        return tuple(found)\n",
            '        grown = self.__dict__.setdefault("grown", [])\n        grown += found\n        return (*found, *grown)\n',
        ),
    ),
    (
        "a backend is never available",
        ["devices/test_devices.py::test_the_backend_is_listed_as_available"],
        (
            "hal._plugins",
            '                state = "available"',
            '                state = "installed"',
        ),
    ),
    (
        "a device is opened once",
        ["devices/test_devices.py::test_each_open_makes_a_device_of_its_own"],
        (
            "hal._device",
            "        device = Device(backend.name, native, limit, settings)\n",
            '        known = globals().setdefault("known", {})\n        device = known.get(spec) or known.setdefault(spec, Device(backend.name, native, limit, settings))\n',
        ),
    ),
    (
        "bytes that are no image lose the device",
        [
            "executables/test_without_a_compiler.py::test_what_is_no_image_c5",
            "kernels/test_compile.py::test_what_is_no_image_is_refused_c5",
        ],
        (
            "hal._executable",
            "    module = device._heap.load(image)\n",
            "    try:\n        module = device._heap.load(image)\n    except BaseException as error:\n        device._context.lose(error, [])\n        raise\n",
        ),
    ),
    # Ends
    (
        "what is closed again says that something was left",
        ["queues/test_close.py::test_close_may_be_called_twice_q6"],
        (
            "hal._context",
            "            abandoned = self._close_ours(ours, deadline)\n",
            '            abandoned = self._close_ours(ours, deadline) if ours else ("again",)\n',
        ),
    ),
    (
        "a device that was closed says that something was left",
        ["queues/test_close.py::test_close_from_several_threads_q6"],
        (
            "hal._device",
            "not in _lifecycle.devices:\n                return ()\n",
            "not in _lifecycle.devices:\n                return (self._name,)\n",
        ),
    ),
    (
        "leaving a block closes nothing",
        ["queues/test_close.py::test_with_closes_q6"],
        (
            "hal._queue",
            "    def __exit__(self, *_: object) -> None:\n        self.close()",
            "    def __exit__(self, *_: object) -> None:\n        pass",
        ),
        (
            "hal._device",
            "        traceback: TracebackType | None,\n    ) -> None:\n        self.close()",
            "        traceback: TracebackType | None,\n    ) -> None:\n        pass",
        ),
    ),
    (
        "what is closed at exit is told",
        ["queues/test_close.py::test_the_interpreter_exits_with_work_in_flight_q6"],
        (
            "hal._lifecycle",
            "        device.close(_EXIT_SECONDS)\n",
            "        print(device, device.close(_EXIT_SECONDS), file=__import__('sys').stderr)\n",
        ),
    ),
    (
        "a wait for nothing is a mistake",
        [
            "semaphores/test_waits.py::test_any_of_nothing_is_none_s6",
            "semaphores/test_waits.py::test_waiting_for_nothing_s6",
        ],
        (
            "hal._fence",
            "    groups = [wait_entries(entry) for entry in _as_list(timepoints)]\n",
            "    groups = [wait_entries(entry) for entry in _as_list(timepoints)] or [()]\n",
        ),
        (
            "hal._fence",
            "    _wait.wait_all(wait_entries(timepoints), timeout)\n",
            "    _wait.wait_all(wait_entries(timepoints) or 0, timeout)\n",
        ),
    ),
    (
        "an execution of no commands fails",
        ["command_buffers/test_order.py::test_signal_and_reset_in_an_execution_c1"],
        (
            "hal._program",
            "            return (None, (), resources), False\n",
            '            raise OperationError("no commands")\n',
        ),
    ),
    (
        "a table is kept for good",
        ["command_buffers/test_slots.py::test_ended_executions_keep_no_table_c3"],
        (
            "hal._program",
            "            resources = (self, storages)\n",
            '            resources = (self, storages)\n            globals().setdefault("kept", []).append(storages)\n',
        ),
    ),
    (
        "a recording runs as it is recorded",
        ["command_buffers/test_recording.py::test_recording_runs_nothing_c1"],
        (
            "hal._device",
            "        self._live()\n        return CommandBuffer(\n            self,\n            slots,\n",
            "        self._live()\n        return _Eager(\n            self,\n            slots,\n",
        ),
        (
            "hal._device",
            "def create_device(spec: str",
            "class _Eager(CommandBuffer):\n    def fill(self, buffer, *given, **named):\n        super().fill(buffer, *given, **named)\n        if isinstance(buffer, Buffer):\n            self.device.queue.fill(buffer, *given, **named)\n\n\ndef create_device(spec: str",
        ),
    ),
)
