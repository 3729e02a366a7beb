"""List mutants of memory in the order of queues: what is reserved, given back, counted, waited for.

Each is one mistake; `mutants.py` makes them, and says what they are for.
"""

# ruff: noqa: E501 - patches quote lines as they stand

from __future__ import annotations

__all__ = ["MEMORY"]

ORDER = "memory/test_stream_order.py::"
STARVING = "memory/test_starving.py::"
STARVED = "memory/test_starved_queues.py::"
SHORT = "model/test_shortage.py::test_random_programs_short_of_memory_m3"
RECORDED = "memory/test_recorded_memory.py::"
COUNTS = "memory/test_memory_counts.py::"
BAD = "memory/test_bad_input.py::"

MEMORY = (
    # Name, tests, patches
    # What a dealloca gives back, and to whom
    (
        "rows begin at the first",
        ["memory/test_arrays.py::test_rows_of_an_array_m2"],
        ("hal._buffers.buffer", "offset = first * row if length else 0", "offset = 0"),
    ),
    (
        "an array of a value holds zeros",
        ["memory/test_arrays.py::test_arrays_of_a_value_m1"],
        ("hal._transfers.arrays", "pattern_of(value, as_dtype", "pattern_of(0, as_dtype"),
    ),
    (
        "a shape may be negative",
        ["memory/test_arrays.py::test_odd_shapes_are_refused_m1"],
        ("hal._transfers.arrays", 'check_index(each, "the shape")', "abs(int(each or 0))"),
    ),
    (
        "a step of rows is left out",
        ["memory/test_arrays.py::test_other_subscripts_are_refused_m2"],
        ("hal._buffers.buffer", "        if rows.step is not None:\n", "        if False:\n"),
    ),
    (
        "memory comes back before the other queue's use has ended",
        [
            f"{ORDER}test_a_use_on_another_queue_outlasts_the_dealloca_m3",
            f"{ORDER}test_a_pending_use_on_another_queue_outlasts_the_dealloca_m3",
        ],
        (
            "hal._memory.storage",
            " and all(map(is_past, self.uses or ()))\n",
            "\n",
        ),
    ),
    (
        "memory comes back under a view of it",
        [f"{ORDER}test_what_the_host_sees_outlasts_the_dealloca_m2"],
        (
            "hal._memory.blocks",
            "        return self.view is not None and self.view() is not None\n",
            "        return False\n",
        ),
    ),
    (
        "a block goes to a queue that has not waited",
        [f"{ORDER}test_a_queue_that_does_not_wait_has_other_memory_m3"],
        ("hal._memory.segment_pool", "            if seen:\n", "            if key >= 0:\n"),
        (
            "hal._memory.segment_pool",
            "                    if is_behind(piece.points[0], queue):\n",
            "                    if True:\n",
        ),
        (
            "hal._memory.segment_pool",
            "        own, settled = self._free",
            "        if (late := self._find_waited(queue, need)) is not None:\n            return late\n        own, settled = self._free",
        ),
    ),
    (
        "a block that was just given back goes to any queue",
        [f"{ORDER}test_a_queue_that_does_not_wait_has_other_memory_m3"],
        ("hal._memory.segment_pool", "queue._id << RECENT | need", "need"),
        ("hal._memory.segment_pool", "points[0]._queue._id << RECENT | piece.size", "piece.size"),
    ),
    (
        "a queue that has waited finds nothing",
        [f"{ORDER}test_a_queue_that_waits_for_the_dealloca_has_the_memory_m3"],
        (
            "hal._memory.segment_pool",
            "        return best or self._find_waited(queue, need)\n",
            "        return best\n",
        ),
    ),
    (
        "pieces overlap",
        [
            f"{ORDER}test_blocks_are_split_and_merged_m3",
            f"{ORDER}test_contents_are_never_mixed_m3",
        ],
        (
            "hal._memory.segment_pool",
            "Piece(piece.segment, start + size, piece.size - size)",
            "Piece(piece.segment, start, piece.size - size)",
        ),
    ),
    # When memory is reserved, and who has it
    (
        "memory is reserved when an alloca is submitted",
        [
            f"{STARVING}test_the_one_that_runs_first_has_the_memory_m3",
            f"{STARVING}test_a_pending_alloca_holds_nothing_m3",
        ],
        (
            "hal._buffers.alloca",
            "    buffer = Buffer(device, storage, 0, length, element, shape)\n",
            (
                "    buffer = Buffer(device, storage, 0, length, element, shape)\n"
                "    device._heap.order.provide(queue, (storage,))\n"
                "    device._heap.order.take(type('', (), {'_queue': queue})(), (storage,))\n"
            ),
        ),
        (
            "hal._memory.stream_order",
            "        if storages[0].is_async:\n            return self._allocate",
            "        if storages[0]._ticket is not None:\n            return True\n        if storages[0].is_async:\n            return self._allocate",
        ),
    ),
    (
        "an alloca that finds no memory fails at once",
        [
            f"{STARVING}test_several_starve_and_each_has_its_turn_m3",
            SHORT,
        ],
        ("hal._buffers.alloca", "        is_any = False\n", "        return False\n"),
    ),
    (
        "an alloca that finds no memory waits for ever",
        [
            f"{STARVING}test_it_fails_when_nothing_will_give_back_m3",
            f"{STARVING}test_two_that_wait_for_each_other_m3",
        ],
        ("hal._buffers.alloca", "        is_any = False\n", "        return True\n"),
    ),
    (
        "whoever stands behind a starved alloca overtakes it",
        [f"{STARVING}test_nobody_takes_the_memory_from_before_it_m3"],
        ("hal._engine.context", "            if not queue._ordered:\n", "            if True:\n"),
        (
            "hal._engine.issuing",
            "    if queue._ordered or state == PARTLY:\n",
            "    if state == PARTLY:\n",
        ),
    ),
    (
        "a starved alloca in an unordered queue holds it up",
        [f"{STARVED}test_a_starved_alloca_in_an_unordered_queue_holds_up_nobody_m3"],
        (
            "hal._engine.backlog",
            "            if queue._ordered:\n                return None\n            backlog.popleft()",
            "            return None\n            backlog.popleft()",
        ),
        (
            "hal._engine.issuing",
            "    if queue._ordered or state == PARTLY:\n",
            "    if True:\n",
        ),
    ),
    (
        "a starved alloca is told of nothing that comes back",
        [f"{STARVED}test_it_holds_up_its_queue_until_memory_is_back_m3"],
        ("hal._engine.context", "        if self.starved:\n", "        if False:\n"),
        (
            "hal._engine.progress",
            "                if context.starved:\n",
            "                if False:\n",
        ),
    ),
    # Recordings
    (
        "temporaries share bytes without a barrier",
        [f"{RECORDED}test_lives_that_overlap_share_nothing_m3"],
        (
            "hal._commands.temporaries",
            "        places[each] = gaps[fits[0] if fits.size else -1]\n",
            "",
        ),
    ),
    (
        "temporaries never share bytes",
        [f"{RECORDED}test_lives_that_do_not_overlap_share_bytes_m3"],
        (
            "hal._commands.slots",
            "        life.last = last\n",
            "",
        ),
    ),
    (
        "temporaries are placed as they come",
        [f"{RECORDED}test_places_follow_from_all_lives_m3"],
        (
            "hal._commands.temporaries",
            "    for order in (sizes, sizes * spans, -first):\n",
            "    for order in (-first,):\n",
        ),
    ),
    (
        "an execution gives its temporaries back once the host has seen its end",
        [
            f"{RECORDED}test_executions_behind_a_kernel_are_issued_m3",
        ],
        (
            "hal._memory.replay",
            "                order.give(storage, operation)\n",
            "                pass\n",
        ),
    ),
    (
        "a temporary has no type",
        [f"{RECORDED}test_a_temporary_says_what_it_is_m3"],
        (
            "hal._commands.slots",
            "        return Slot(self, self._count, life.start, size, dtype, life)\n",
            "        return Slot(self, self._count, life.start, size, np.dtype(np.uint8), life)\n",
        ),
    ),
    (
        "a temporary of nothing is a mistake",
        [f"{RECORDED}test_a_temporary_of_nothing_m3"],
        (
            "hal._commands.slots",
            "        life = arena.take(size or 1)\n",
            "        life = arena.take(size // bool(size))\n",
        ),
    ),
    (
        "a recording holds what is bound",
        [f"{RECORDED}test_a_recording_by_slot_holds_nothing_m3"],
        (
            "hal._buffers.alloca",
            "    if storage.recordings and any(each() is not None for each in storage.recordings):\n",
            "    if storage.uses:\n",
        ),
    ),
    # What is counted
    (
        "memory of one kind counts as another",
        [f"{COUNTS}test_the_kinds_have_statistics_of_their_own_m1"],
        (
            "hal._memory.books",
            "            sums = kinds[block.index]\n",
            "            sums = kinds[block.index and 2]\n",
        ),
    ),
    (
        "what was given back counts until the host has seen its end",
        [f"{COUNTS}test_statistics_wait_for_no_work_m1"],
        (
            "hal._memory.stream_order",
            "                books.give_piece(ticket, (operation,))\n",
            "                return\n",
        ),
    ),
    (
        "trim leaves the events",
        [f"{COUNTS}test_trim_frees_the_events_of_a_burst_m1"],
        (
            "hal._devices.device",
            "        context.trim_events(sync.monotonic() + _TRIM_SECONDS, self._heap.reaper.while_open)\n",
            "",
        ),
    ),
    (
        "trim leaves instances of graphs",
        [f"{COUNTS}test_trim_frees_idle_graph_instances_m1"],
        ("hal._devices.device", "                pool.trim()\n", "                pass\n"),
    ),
    # What is refused
    (
        "an alloca may wait for its own dealloca",
        [f"{BAD}test_an_alloca_that_waits_for_its_own_dealloca_m3"],
        ("hal._buffers.alloca", "        _check_reachable(storage.source, signal)\n", ""),
    ),
    (
        "no dealloca may signal what comes after its alloca's wait",
        [f"{BAD}test_an_alloca_in_a_chain_of_one_semaphore_m3"],
        (
            "hal._buffers.alloca",
            "        _check_reachable(storage.source, signal)\n",
            "        _check_reachable(storage.source, signal)\n        if any(a._semaphore is b._semaphore for a in signal for b in storage.source._waits):\n            raise InvalidArgumentError('circle')\n",
        ),
    ),
    (
        "a dealloca takes memory from a recording",
        [f"{RECORDED}test_what_a_recording_holds_is_not_given_back_m3"],
        (
            "hal._buffers.alloca",
            "    if storage.recordings and any(each() is not None for each in storage.recordings):\n",
            "    if False:\n",
        ),
    ),
    (
        "more than there can be is waited for",
        [f"{BAD}test_more_than_there_can_be_is_refused_at_once_m3"],
        (
            "hal._memory.heap",
            "        if limit is not None and size > limit:\n",
            "        if False:\n",
        ),
    ),
    (
        "a dealloca on another queue needs no alloca",
        [f"{BAD}test_a_dealloca_that_comes_before_the_alloca_fails_m3"],
        (
            "hal._memory.replay",
            "            if storage.address is None and source is not None and source._state <= DONE:\n",
            "            if False:\n",
        ),
    ),
)
