"""List mutants of the flow layer (memory, transfers, virtual devices, merge buffers), and output.

Each is one mistake, as in `coarse.py`; `mutants.py` makes them, and they are tested as
the others.
"""

# ruff: noqa: E501 - patches quote lines as they stand

from __future__ import annotations

__all__ = ["FLOW"]

TRACKING = "hal.flow.tracking"
DISPATCH = "hal.flow.flow"

FLOW = (
    # Name, tests, patches
    # What is remembered
    (
        "a flow forgets who has written",
        [
            "flow/test_hazards.py::test_a_read_comes_after_the_write_q2",
            "flow/test_hazards.py::test_a_write_comes_after_the_write_q2",
            "flow/test_transfers.py::test_devices_wait_for_each_other_s3",
        ],
        (
            TRACKING,
            "            elif writer is not None and writer not in found:\n",
            "            elif False:\n",
        ),
    ),
    (
        "a flow forgets who has read",
        [
            "flow/test_hazards.py::test_a_write_comes_after_every_reader_q2",
            "flow/test_merging.py::test_it_is_not_written_before_it_was_read_q5",
        ],
        (
            TRACKING,
            "            if writes and readers:\n",
            "            if False:\n",
        ),
    ),
    (
        "a flow knows one reader only",
        ["flow/test_hazards.py::test_a_write_comes_after_every_reader_q2"],
        (
            TRACKING,
            "    readers[queue] = operation\n    return readers\n",
            "    return readers\n",
        ),
    ),
    (
        "a flow forgets who has used a part",
        [
            "flow/test_hazards.py::test_any_program_ends_as_if_done_in_turn_q2",
            "flow/test_hazards.py::test_what_shares_no_byte_is_not_waited_for_q2",
        ],
        (
            TRACKING,
            "        for span in history.spans(part):\n",
            "        for span in (history,):\n",
        ),
    ),
    (
        "a flow waits for the whole buffer",
        ["flow/test_hazards.py::test_what_shares_no_byte_is_not_waited_for_q2"],
        (
            TRACKING,
            "        return self.intervals[first : bisect_left(self._starts, stop)]\n",
            "        return self.intervals[first and 0 :]\n",
        ),
    ),
    (
        "readers wait for each other",
        [
            "flow/test_hazards.py::test_readers_do_not_wait_for_each_other_q2",
            "flow/test_hazards.py::test_a_kernel_waits_for_what_its_parameters_say_c5",
            "flow/test_hazards.py::test_a_recording_waits_for_what_it_uses_c3",
        ],
        (
            TRACKING,
            "        if stop - start == self.size:\n            if writes:\n",
            "        if stop - start == self.size:\n            if True:\n",
        ),
    ),
    (
        "a kernel is taken to read only",
        ["flow/test_hazards.py::test_a_kernel_waits_for_what_its_parameters_say_c5"],
        (
            DISPATCH,
            "accesses.append(value.writing if is_written else value.reading)",
            "accesses.append(value.reading)",
        ),
    ),
    (
        "raw work before a buffer was tracked is forgotten",
        ["flow/test_hazards.py::test_memory_changes_hands_with_its_work_q2"],
        ("hal.flow.flow", "        origin = hal.Fence(after)\n", "        origin = hal.Fence()\n"),
    ),
    (
        "a flow takes any memory twice",
        ["flow/test_hazards.py::test_memory_changes_hands_with_its_work_q2"],
        (
            "hal.flow.flow",
            "        lanes.places.adopt(history)\n",
            "        pass\n",
        ),
    ),
    (
        "a flow takes any device's memory",
        ["flow/test_hazards.py::test_raw_and_tracked_buffers_are_not_mixed_q4"],
        (
            "hal.flow.scheduler",
            "        lanes = self._lanes.get(opened)\n",
            "        lanes = self._lanes.get(opened, self._first)\n",
        ),
    ),
    (
        "nothing is recovered",
        ["flow/test_hazards.py::test_a_failure_stays_with_the_bytes_s5"],
        (
            "hal.flow.scheduler",
            "            buffer.history.doubt()\n            self._settle(buffer.history)\n",
            "            self._settle(buffer.history)\n",
        ),
    ),
    # Transfers
    (
        "every array is held, and none is taken",
        ["flow/test_transfers.py::test_a_taken_array_may_change_at_once_q4"],
        (
            "hal.flow.transfers",
            "        hold = size > self._snapshot if hold is None",
            "        hold = True if hold is None",
        ),
    ),
    (
        "every array is taken, and none is held",
        ["flow/test_transfers.py::test_a_held_array_cannot_change_until_it_was_read_m1"],
        (
            "hal.flow.transfers",
            "        if not is_ours and hold:\n",
            "        if not is_ours and hold > 1:\n",
        ),
    ),
    (
        "an array comes back flat",
        ["flow/test_transfers.py::test_an_array_comes_back_as_it_went_q4"],
        (
            "hal.flow.transfers",
            "        array = np.empty(buffer.shape, buffer.dtype)\n",
            "        array = np.empty(buffer.size, np.uint8)\n",
        ),
    ),
    (
        "a copy through the host drops its last piece",
        ["flow/test_transfers.py::test_devices_copy_through_the_host_in_pieces_q4"],
        (
            "hal.flow.copies",
            "        for index, begin in enumerate(range(0, size, step)):\n",
            "        for index, begin in enumerate(range(0, size - step, step)):\n",
        ),
    ),
    (
        "no devices copy directly",
        ["flow/test_transfers.py::test_peers_copy_directly_q4"],
        ("hal.flow.copies", "        if not self._peers:\n", "        if True:\n"),
    ),
    # Virtual devices
    (
        "virtual devices are one device",
        [
            "flow/test_virtual.py::test_held_work_of_one_holds_up_no_other_q3",
            "flow/test_virtual.py::test_each_has_a_limit_of_its_own_m1",
            "flow/test_virtual.py::test_closing_one_leaves_the_other_q6",
        ],
        (
            "hal.flow.virtual",
            '        device = hal.create_device(self._spec, **given, name=f"virtual {number}")\n',
            "        open_ = [each.device for each in self.devices]\n        device = (open_ or [None])[0] or hal.create_device(self._spec, **given)\n",
        ),
    ),
    # Merge buffers
    (
        "a merge buffer gives what it holds to anybody",
        ["flow/test_merging.py::test_another_buffer_is_refused_where_work_is_scheduled_q4"],
        (
            "hal.flow.merging",
            "                or not _is_same(held.source, source)\n",
            "",
        ),
    ),
    (
        "what a merge buffer gave before is good for ever",
        ["flow/test_merging.py::test_another_buffer_is_refused_where_work_is_scheduled_q4"],
        (
            "hal.flow.merging",
            "            whole = self._flow.renew(whole)\n            held.part.close()\n",
            "            pass\n",
        ),
    ),
    (
        "a merge buffer is not loaded again",
        ["flow/test_merging.py::test_it_holds_what_was_expected_q4"],
        (
            "hal.flow.merging",
            "                    copied = self._flow.copy(source, part)\n",
            "                    copied = self._flow.fill(part, 0)\n",
        ),
    ),
    (
        "a routine merges whatever there is",
        ["flow/test_contexts.py::test_a_routine_merges_what_it_expects_q4"],
        ("hal.flow.merging", "        return held.name == source\n", "        return True\n"),
    ),
    (
        "what a merge buffer brings can be written",
        ["flow/test_contexts.py::test_a_routine_merges_what_it_expects_q4"],
        (
            "hal.flow.buffers",
            "        if is_read_only(mode):\n            history =",
            "        if False:\n            history =",
        ),
    ),
    # Contexts
    (
        "a constant is no constant",
        ["flow/test_contexts.py::test_a_mode_says_who_may_do_what_m2"],
        ("hal.flow.modes", '(_KERNELS_WRITE, "write", "fill", "copy to"),', '("fill",),'),
    ),
    (
        "names take elements of any type",
        ["flow/test_contexts.py::test_a_mode_says_who_may_do_what_m2"],
        ("hal.flow.buffers", "        if dtype != self.dtype:\n", "        if False:\n"),
    ),
    (
        "a recording stands for all numbers",
        ["flow/test_contexts.py::test_a_call_gives_pointers_and_numbers_c5"],
        (
            "hal.flow.contexts.routine",
            "        return known, [*table, *map(values.__getitem__, self._scalars)], accesses\n",
            "        first = [*map(values.__getitem__, self._scalars)]\n        return known, [*table, *self.__dict__.setdefault('first', first)], accesses\n",
        ),
    ),
    (
        "a closed context keeps its memory",
        ["flow/test_contexts.py::test_a_closed_context_frees_its_memory_m1"],
        (
            "hal.flow.contexts.context",
            "        for each in memory:\n            each.close()\n",
            "        self._memory = memory\n",
        ),
    ),
    # What kernels print
    (
        "who has printed is forgotten",
        [
            "kernels/test_output.py::test_each_run_has_what_it_printed_c5",
            "kernels/test_output.py::test_chosen_threads_trace_c5",
        ],
        ("hal._kernels.output", "_PLACE.unpack_from(record)", "6 * (0,)"),
    ),
    (
        "what had no room is not counted",
        ["kernels/test_output.py::test_what_is_printed_is_bounded_c5"],
        ("hal._programs.printing", "    atomicAdd(&hal_to->hal_cut, 1ull);\n", ""),
    ),
    (
        "every thread traces",
        ["kernels/test_output.py::test_chosen_threads_trace_c5"],
        ("hal._programs.printing", "(...) ((({condition})) ?", "(...) (((true)) ?"),
    ),
    (
        "no trace is indented",
        ["kernels/test_output.py::test_traces_show_how_the_source_is_nested_c5[argument]"],
        (
            "hal._programs.printing",
            "map(_trace, _TRACES, repeat(trace), count())",
            "map(_trace, _TRACES, repeat(trace), repeat(0))",
        ),
    ),
    (
        "no variable switches traces on",
        ["kernels/test_output.py::test_traces_show_how_the_source_is_nested_c5[variable]"],
        (
            "hal._programs.requests",
            'trace = {"": False, "0": False, "1": True}.get(given, given)',
            "trace = False",
        ),
    ),
    (
        "omitted output is printed",
        ["kernels/test_output.py::test_omitted_output_can_be_discarded_c5"],
        ("hal._programs.printing", '"((void)0)" if how.discards else', '"((void)0)" if False else'),
    ),
)
