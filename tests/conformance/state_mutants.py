"""List mutants of memory, of what things say of themselves, and of their ends.

Each is one mistake, as in `coarse.py`; `mutants.py` makes them, and they are tested as
the others.
"""

# ruff: noqa: E501 - patches quote lines as they stand

from __future__ import annotations

__all__ = ["STATE"]

CPU = "hal_cpu.device"

STATE = (
    # Name, tests, patches
    # Memory
    (
        "an upload is flat",
        ["memory/test_buffers.py::test_upload_keeps_type_and_shape_m1"],
        (
            "hal._devices.device",
            "host.nbytes, host.dtype, given.shape)",
            "host.nbytes, host.dtype, (given.size,))",
        ),
    ),
    (
        "a type that numpy() is given is ignored",
        ["memory/test_buffers.py::test_numpy_as_another_type_m1"],
        (
            "hal._buffers.buffer",
            '        kind = self._dtype if dtype is None else as_dtype(dtype)\n        shape = self._shape if dtype is None else shape_of(self._size, kind, "numpy")',
            "        kind, shape = self._dtype, self._shape",
        ),
    ),
    (
        "numpy() does not wait for what it is told to",
        ["memory/test_buffers.py::test_numpy_waits_m1"],
        (
            "hal._buffers.buffer",
            "            wait_all(wait, timeout)\n        if self._size:",
            "            pass\n        if self._size:",
        ),
    ),
    (
        "a limit of memory is ignored",
        ["memory/test_usage.py::test_the_memory_limit_holds_m1"],
        (
            "hal._memory.books",
            "            if held + need > limit:\n",
            "            if False:\n",
        ),
    ),
    (
        "nothing is given back for an allocation that finds no memory",
        ["memory/test_usage.py::test_memory_of_unended_work_is_waited_for_m1"],
        (
            "hal._memory.heap",
            "            self._context.harvest()\n            if way == CACHED:\n                self.reaper.absorb()\n",
            "            if way == CACHED:\n",
        ),
        (
            "hal._memory.heap",
            "                self.trim(0)\n                try:",
            "                try:",
        ),
    ),
    (
        "the peak of memory is never reset",
        ["memory/test_usage.py::test_the_peak_starts_again_m1"],
        ("hal._memory.heap", "            if reset_peak:\n", "            if False:\n"),
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
            "hal._memory.storage",
            "        if ticket is not None:\n            self._heap.reaper.doom(ticket)",
            "        return",
        ),
    ),
    (
        "an allocation begins where it should not",
        ["memory/test_buffers.py::test_allocations_are_aligned_and_apart_m1"],
        (
            "hal._memory.extent",
            "    return address + buffer._offset\n",
            "    return address + buffer._offset + 1\n",
        ),
    ),
    (
        "a query promises nothing",
        ["memory/test_usage.py::test_queries_are_right_m1"],
        ("hal._memory.report", "allocatable=not reason", "allocatable=False"),
    ),
    (
        "only arrays are host memory",
        ["queues/test_transfers.py::test_host_memory_of_any_kind_q4"],
        (
            "hal._transfers.transfers",
            "        view = memoryview(data)  #",
            "        view = memoryview(len(data))  #",
        ),
    ),
    # What things say of themselves
    (
        "an event is never signalled",
        ["command_buffers/test_order.py::test_an_event_is_created_signalled_and_reset_c1"],
        ("hal._commands.recorder", "        return self._signalled\n", "        return False\n"),
    ),
    (
        "every slot begins at zero",
        ["command_buffers/test_slots.py::test_slots_say_what_they_take_c3"],
        (
            "hal._commands.slots",
            "return Slot(self._slots, self._index, self._offset + start, length, kind, self._life)",
            "return Slot(self._slots, self._index, 0, length, kind, self._life)",
        ),
    ),
    (
        "a file has no path",
        ["files/test_files.py::test_a_file_says_what_it_is_q4"],
        ("hal._transfers.files", "        return self._path\n", '        return ""\n'),
    ),
    (
        "a buffer has no allocation",
        ["memory/test_alloca.py::test_alloca_and_dealloca_twice_m3"],
        ("hal._buffers.buffer", "        return self._allocation\n", "        return None\n"),
    ),
    (
        "every queue says that it is ordered",
        ["queues/test_order.py::test_both_kinds_of_queue_say_what_they_are_q2"],
        (
            "hal._engine.stream",
            '        """Whether the queue is first-in first-out (Q2)."""\n        return self._ordered',
            '        """Whether the queue is first-in first-out (Q2)."""\n        return True',
        ),
    ),
    (
        "every queue is the compute queue",
        ["queues/test_several.py::test_a_device_has_three_queues_q3"],
        (
            "hal._devices.queue",
            "self.upload: Final = made[1]",
            "self.upload: Final = made[0]",
        ),
        (
            "hal._devices.queue",
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
            "hal._backends.registry",
            "        return tuple(found)\n",
            '        grown = self.__dict__.setdefault("grown", [])\n        grown += found\n        return (*found, *grown)\n',
        ),
    ),
    (
        "a backend is never available",
        ["devices/test_devices.py::test_the_backend_is_listed_as_available"],
        (
            "hal._backends.plugins",
            '                state = "available"',
            '                state = "installed"',
        ),
    ),
    (
        "a device is opened once",
        ["devices/test_devices.py::test_each_open_makes_a_device_of_its_own"],
        (
            "hal._devices.create",
            "        device = Device(backend.name, native, limit, settings, own, memory_events)\n",
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
            "hal._kernels.executable",
            "    module = device._heap.load(image)\n",
            "    try:\n        module = device._heap.load(image)\n    except BaseException as error:\n        device._context.lose(error, [])\n        raise\n",
        ),
    ),
    # Ends
    (
        "what is closed again says that something was left",
        ["queues/test_close.py::test_close_may_be_called_twice_q6"],
        (
            "hal._engine.context",
            "            abandoned += ours[0]._context._close_ours(ours, deadline)\n",
            (
                "            abandoned += ours[0]._context._close_ours(ours, deadline)\n"
                "        elif queues:\n"
                '            abandoned += ("again",)\n'
            ),
        ),
    ),
    (
        "a device that was closed says that something was left",
        ["queues/test_close.py::test_close_from_several_threads_q6"],
        (
            "hal._devices.lifecycle",
            ("not in devices:\n            return (), ()\n"),
            ("not in devices:\n            return (device._name,), ()\n"),
        ),
    ),
    (
        "leaving a block closes nothing",
        ["queues/test_close.py::test_with_closes_q6"],
        (
            "hal._devices.queue",
            "    def __exit__(self, *_: object) -> None:\n        self.close()",
            "    def __exit__(self, *_: object) -> None:\n        pass",
        ),
        (
            "hal._devices.device",
            "    def __exit__(self, *_: object) -> None:\n        self.close()",
            "    def __exit__(self, *_: object) -> None:\n        pass",
        ),
    ),
    (
        "what is closed at exit is told",
        ["queues/test_close.py::test_the_interpreter_exits_with_work_in_flight_q6"],
        (
            "hal._devices.lifecycle",
            "device._end(deadline)[0]:\n",
            "(*device._end(deadline)[0], device.name):\n",
        ),
    ),
    (
        "a wait for nothing is a mistake",
        [
            "semaphores/test_waits.py::test_any_of_nothing_is_none_s6",
            "semaphores/test_waits.py::test_waiting_for_nothing_s6",
        ],
        (
            "hal._engine.fence",
            "    groups = [wait_entries((entry,)) for entry in as_items(timepoints, _RULE)]\n",
            "    groups = [wait_entries((entry,)) for entry in as_items(timepoints, _RULE)] or [()]\n",
        ),
        (
            "hal._engine.fence",
            "    waiting.wait_all(wait_entries(timepoints), timeout)\n",
            "    waiting.wait_all(wait_entries(timepoints) or 0, timeout)\n",
        ),
    ),
    (
        "an execution of no commands fails",
        ["command_buffers/test_order.py::test_signal_and_reset_in_an_execution_c1"],
        (
            "hal._commands.playback",
            "            return (None, (), resources), False\n",
            '            raise OperationError("no commands")\n',
        ),
    ),
    (
        "a table is kept for good",
        ["command_buffers/test_slots.py::test_ended_executions_keep_no_table_c3"],
        (
            "hal._commands.playback",
            "            resources = (self, self._direct, storages)\n",
            '            resources = (self, self._direct, storages)\n            globals().setdefault("kept", []).append(storages)\n',
        ),
    ),
    (
        "a recording runs as it is recorded",
        ["command_buffers/test_recording.py::test_recording_runs_nothing_c1"],
        (
            "hal._devices.device",
            "        self._live()\n        return CommandBuffer(\n            self,\n            slots,\n",
            "        self._live()\n        return _Eager(\n            self,\n            slots,\n",
        ),
        (
            "hal._devices.device",
            "_TRIM_SECONDS: Final = ",
            "class _Eager(CommandBuffer):\n    def fill(self, buffer, *given, **named):\n        super().fill(buffer, *given, **named)\n        if isinstance(buffer, Buffer):\n            self.device.queue.fill(buffer, *given, **named)\n\n\n_TRIM_SECONDS: Final = ",
        ),
    ),
)
