"""List mutants of memory, kernels, recordings, allocation in the order of a queue, and files.

Each is one mistake; `mutants.py` makes them, and says what they are for.
"""

# ruff: noqa: E501 - patches quote lines as they stand

from __future__ import annotations

from named_tests import MODEL

__all__ = ["RESOURCES"]

RESOURCES = (
    # Name, tests, patches
    # Memory
    (
        "a read ignores its offset",
        ["queues/test_transfers.py::test_read_from_an_offset_q4"],
        (
            "hal._transfers.transfers",
            'start, length = check_range(buffer._size, offset, host.size, "read")',
            'start, length = check_range(buffer._size, 0, host.size, "read")',
        ),
    ),
    (
        "a subspan's offset counts twice",
        ["memory/test_buffers.py::test_a_subspan_of_a_subspan_m2"],
        (
            "hal._buffers.buffer",
            "        offset += self._offset\n",
            "        offset += 2 * self._offset\n",
        ),
    ),
    (
        "numpy() loses the type",
        ["memory/test_buffers.py::test_upload_keeps_type_and_shape_m1"],
        (
            "hal._buffers.buffer",
            "self._offset, array)\n        return array",
            "self._offset, array)\n        return array.view(np.uint8)",
        ),
    ),
    (
        "statistics forget a free",
        ["memory/test_buffers.py::test_statistics_count_allocations_m1"],
        (
            "hal._memory.books",
            "            if ticket is None:\n                sums.cached += block.size",
            "            if ticket is None:\n                sums.now += block.size",
        ),
    ),
    # Kernels
    (
        "an empty grid is launched",
        ["kernels/test_dispatch.py::test_an_empty_grid_does_nothing_and_signals_c5"],
        (
            "hal._kernels.dispatch",
            "    elif not all(blocks):\n        return NOTHING, False\n",
            "    else:\n        where = tuple(max(each, 1) for each in blocks)\n",
        ),
    ),
    (
        "two dispatches share their arguments",
        ["kernels/test_dispatch.py::test_pending_dispatches_have_arguments_of_their_own_c5"],
        (
            "hal._programs.signature",
            "        storage = self._storage_type()\n",
            "        storage = self._plans.setdefault((), self._storage_type())\n",
        ),
    ),
    (
        "arguments are swapped",
        ["kernels/test_dispatch.py::test_constants_arrive_in_their_order_c5"],
        (
            "hal._programs.signature",
            "        values: list[Any] = [*arguments]\n",
            "        values: list[Any] = [*arguments]\n        if len(values) > 3:\n            values[-1], values[-2] = values[-2], values[-1]\n",
        ),
    ),
    # Command buffers
    (
        "a barrier is lost",
        # Two commands that nothing orders may still run in order; of many, some do not.
        ["command_buffers/test_order.py::test_a_barrier_orders_all_with_all_c2"],
        (
            "hal._commands.lowering",
            "        self.wait(self.join())\n        self._last = None",
            "        self.join()",
        ),
    ),
    (
        "a wait for an event is lost",
        [
            "command_buffers/test_order.py::test_an_event_is_a_barrier_in_two_halves_c2",
            "command_buffers/test_order.py::test_a_wait_for_several_events_c2",
        ],
        (
            "hal._commands.command_buffer",
            "            self._order.wait(event._join)",
            "            pass",
        ),
    ),
    (
        "a write does not wait for readers",
        ["command_buffers/test_order.py::test_hazards_order_what_touches_the_same_bytes_c2"],
        ("hal._commands.hazards", "if writes and segment.readers:", "if False:"),
    ),
    (
        "a recorded copy between devices is a byte short",
        [
            "command_buffers/test_devices.py::test_copies_between_devices_are_recorded_c1",
            "command_buffers/test_devices.py::test_copies_to_another_device_take_bindings_c3",
        ],
        ("hal._commands.nodes", "to, begin + part, of, count)", "to, begin + part, of, count - 1)"),
    ),
    (
        "an execution visits no other device",
        [
            "command_buffers/test_devices.py::test_closing_the_other_device_cancels_what_was_not_issued_q6"
        ],
        (
            "hal._commands.executions",
            "    if device._access or playback.hosts:\n",
            "    if device._access:\n",
        ),
    ),
    (
        "a recording copies between any devices",
        ["command_buffers/test_devices.py::test_a_third_devices_recording_does_not_copy_c1"],
        ("hal._commands.nodes", "    if device not in owners:\n", "    if not owners:\n"),
    ),
    (
        "a part waits for no other queue",
        [
            "command_buffers/test_parts.py::test_a_part_waits_for_another_queues_c2",
            "command_buffers/test_parts.py::test_executions_in_flight_run_one_after_the_other_c1",
        ],
        (
            "hal._commands.executions",
            "tuple([parts[each] for each in after]) or (first,)\n",
            "(first,)\n",
        ),
    ),
    (
        "an execution ends with its first part",
        ["command_buffers/test_parts.py::test_an_execution_ends_with_its_last_part_c1"],
        (
            "hal._commands.executions",
            "    lists.append(tuple([parts[each] for each in stages.last]))\n",
            "    lists.append((parts[0],))\n",
        ),
    ),
    (
        "parts begin before the executing queue gets there",
        [
            "command_buffers/test_parts.py::test_a_failed_wait_runs_no_part_s5",
            "command_buffers/test_parts.py::test_closing_a_parts_device_fails_the_execution_q6",
        ],
        (
            "hal._commands.executions",
            "tuple([parts[each] for each in after]) or (first,)\n",
            "tuple([parts[each] for each in after])\n",
        ),
    ),
    (
        "an execution is cancelled without its parts",
        ["command_buffers/test_parts.py::test_cancelling_takes_all_parts_back_q7"],
        (
            "hal._commands.executions",
            "                for each in (self, self._first):\n                    recall(",
            "                for each in (self,):\n                    recall(",
        ),
        (
            "hal._commands.executions",
            "                for each in (self, self._first):\n                    step.work",
            "                for each in (self,):\n                    step.work",
        ),
    ),
    (
        "commands of other places are lost",
        [
            "command_buffers/test_parts.py::test_each_queue_of_a_device_runs_its_part_c2",
            "command_buffers/test_parts.py::test_two_devices_take_turns_c2",
            "command_buffers/test_parts.py::test_slots_stand_for_one_devices_memory_c3",
            "command_buffers/test_parts.py::test_temporaries_serve_all_parts_m3",
        ],
        (
            "hal._commands.command_buffer",
            " in cut(self._order, self._places, self._launches):\n",
            " in cut(self._order, self._places, self._launches)[:1]:\n",
        ),
    ),
    (
        "a place is not looked at",
        ["command_buffers/test_parts.py::test_what_is_no_place_for_a_part_is_refused_c1"],
        (
            "hal._commands.command_buffer",
            " else _queue_at(self._device, where)\n",
            " else where\n",
        ),
    ),
    (
        "two commands are swapped",
        [
            "command_buffers/test_order.py::test_a_barrier_orders_a_write_before_a_read_c2",
            "command_buffers/test_order.py::test_a_chain_of_copies_c2",
        ],
        (
            "hal._commands.playback",
            (
                "                node = nodes[position]\n"
                "                functions[position](stream, *node)\n"
            ),
            (
                "                place = 1 - position if position < 2 <= end else position\n"
                "                node = nodes[place]\n"
                "                functions[place](stream, *node)\n"
            ),
        ),
    ),
    (
        "only the first binding is updated",
        ["command_buffers/test_slots.py::test_each_execution_binds_its_own_c3"],
        (
            "hal._commands.instances",
            "            if old == address:\n                continue\n",
            "            if old == address or (changed and old is not None):\n                continue\n",
        ),
    ),
    (
        "a graph keeps its old table",
        [
            "command_buffers/test_slots.py::test_each_execution_binds_its_own_c3",
            "command_buffers/test_slots.py::test_one_slot_of_several_is_bound_anew_c3",
        ],
        ("hal._commands.playback", "elif instance.replica.table != addresses:", "elif False:"),
    ),
    (
        "a scalar stays what it was",
        [
            "command_buffers/test_numbers.py::test_each_execution_gives_its_scalars_c3",
            "command_buffers/test_numbers.py::test_one_slot_serves_several_parameters_c3",
            "command_buffers/test_numbers.py::test_executions_in_flight_keep_their_numbers_c3",
        ],
        (
            "hal._commands.instances",
            "                pack(storage, place, address[part])\n",
            "                old or pack(storage, place, address[part])\n",
        ),
    ),
    (
        "a grid stays what it was",
        [
            "command_buffers/test_numbers.py::test_each_execution_gives_its_grid_c3",
            "command_buffers/test_numbers.py::test_executions_in_flight_keep_their_numbers_c3",
        ],
        (
            "hal._commands.instances",
            "for command in self._uses.grids[slot]:",
            "for command in self._uses.grids[slot] if old is None else ():",
        ),
    ),
    (
        "a recorded launch of nothing is one of a block",
        [
            "command_buffers/test_numbers.py::test_empty_grids_by_slot_order_and_signal_c4",
            "command_buffers/test_numbers.py::test_an_empty_grid_between_others_orders_them_c4",
        ],
        (
            "hal._commands.values",
            "            return check_grid(self._kernel, value)\n",
            "            x, y, z = check_grid(self._kernel, value)\n            return x or 1, y or 1, z or 1\n",
        ),
    ),
    (
        "a scalar is not checked",
        ["command_buffers/test_numbers.py::test_numbers_that_do_not_fit_are_refused_c3"],
        (
            "hal._commands.values",
            "                packed += kernel._signature._layout.pack_one(kernel._name, index, value)\n",
            '                packed += int(value).to_bytes(8, "little", signed=True)[:4]\n',
        ),
    ),
    (
        "a slot is of any kind",
        ["command_buffers/test_numbers.py::test_a_slot_is_of_one_kind_c3"],
        (
            "hal._commands.slots",
            "        if known is not None and known != kind:\n",
            "        if False:\n",
        ),
    ),
    (
        "every slot is for a buffer",
        ["command_buffers/test_numbers.py::test_slots_say_that_they_are_numbers_c3"],
        (
            "hal._commands.slots",
            '        return self._slots._rules[self._index].kind or "buffer"\n',
            '        return "buffer"\n',
        ),
    ),
    (
        "a binding's offset is ignored",
        ["command_buffers/test_slots.py::test_subspans_are_bound_c3", MODEL],
        (
            "hal._commands.instances",
            "(*node[:field], address + offset, *node[field + 1 :])",
            "(*node[:field], address, *node[field + 1 :])",
        ),
    ),
    (
        "a one-shot recording is executed twice",
        ["command_buffers/test_one_shot.py::test_one_shot_runs_once_c1"],
        (
            "hal._commands.executions",
            "        runs.pop()  #",
            "        runs[-1]  #",
        ),
    ),
    (
        "a refused execution uses up a one-shot recording",
        ["command_buffers/test_one_shot.py::test_a_one_shot_outlives_a_refused_submission_c1"],
        ("hal._commands.executions", "        runs.append(None)  #", "        pass  #"),
    ),
    (
        "a recording takes an update when it runs",
        ["command_buffers/test_transfers.py::test_update_takes_its_bytes_while_recording_c1"],
        (
            "hal._transfers.transfers",
            "        copied = np.array(host, copy=True)\n        return array_address(copied), copied\n",
            "        return array_address(host), host\n",
        ),
    ),
    (
        "a recording does not keep its buffers",
        ["command_buffers/test_recording.py::test_what_is_recorded_is_kept_c1"],
        (
            "hal._commands.playback",
            "self._resources = [each.resources for each in commands]\n",
            "self._resources = [() for _ in commands]\n",
        ),
    ),
    (
        "an execution does not keep its table",
        ["command_buffers/test_slots.py::test_the_table_is_kept_until_it_has_run_c3"],
        ("hal._commands.playback", "            resources = (self, self._direct, storages)\n", ""),
    ),
    (
        "a recorded copy ignores its offset",
        ["command_buffers/test_transfers.py::test_copy_classes_of_size_and_alignment_c1"],
        (
            "hal._commands.nodes",
            "offsets = source_offset, target_offset",
            "offsets = 0, target_offset",
        ),
    ),
    # Allocation in the order of a queue, and files
    (
        "an alloca knows no order",
        ["memory/test_alloca.py::test_a_use_that_is_issued_before_fails_alone_m3"],
        (
            "hal._buffers.alloca",
            "    buffer = Buffer(device, storage, 0, length, element, shape)\n",
            "    buffer = Buffer(device, storage, 0, length, element, shape)\n    device._heap.order.provide(queue, (storage,))\n    device._heap.order.take(type('', (), {'_queue': queue})(), (storage,))\n",
        ),
        (
            "hal._memory.stream_order",
            "        if books.lock._is_owned():\n            return False  #",
            "        if storages[0]._ticket is not None:\n            return True\n        if books.lock._is_owned():\n            return False  #",
        ),
    ),
    (
        "a dealloca frees at once",
        ["memory/test_dealloca.py::test_a_dealloca_keeps_the_memory_until_it_has_run_m3"],
        (
            "hal._buffers.alloca",
            "    payload = _payload(Give((storage,)), storage)\n",
            "    payload = _payload(Give((storage,)), storage)\n    storage.uses = []\n    storage.source and storage._heap.order.give(storage, storage.source)\n",
        ),
    ),
    (
        "a deallocated buffer stays usable",
        ["memory/test_dealloca.py::test_a_dealloca_keeps_the_memory_until_it_has_run_m3"],
        ("hal._buffers.alloca", "    buffer._end()\n", ""),
    ),
    (
        "a short file passes",
        ["files/test_files.py::test_what_goes_wrong_fails_the_operation_q4[a short file]"],
        (
            "hal._transfers.files",
            '            raise self._failure(f"the file has {status.st_size} bytes")',
            "            return",
        ),
        (
            "hal._transfers.files",
            '                raise self._failure(f"the file ends at {at + done}")',
            "                return",
        ),
    ),
    (
        "a file's offset is ignored",
        ["files/test_files.py::test_a_range_of_a_file_into_a_range_of_a_buffer_q4"],
        (
            "hal._transfers.files",
            "at, done = self._file._offset + position, 0\n        while done < len(memory):\n            try:\n                count = os.preadv",
            "at, done = position, 0\n        while done < len(memory):\n            try:\n                count = os.preadv",
        ),
    ),
    (
        "a file is cut off before it is written",
        ["files/test_files.py::test_a_range_of_a_buffer_into_a_range_of_a_file_q4"],
        ("hal._transfers.files", "os.O_CREAT", "os.O_CREAT | os.O_TRUNC"),
    ),
)
