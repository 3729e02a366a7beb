"""List mutants of the core that the suite cannot notice on the reference backend, by design.

What they do shows on a driver that runs graphs in an awkward order, refuses calls, or
runs out of memory at a bad moment: tests of the core, on the probe that it wraps around
the reference backend, must fail for them.
"""

from __future__ import annotations

__all__ = ["CORE"]

CORE = (
    # Name, tests of the core, patches
    (
        "an allocation does not wait for what others are freeing",
        [
            "memory/test_memory_limits.py::test_an_allocation_waits_for_memory_that_a_thread_gives_back_m1"
        ],
        (
            "hal._memory.reaper",
            "                what = waste[0]\n",
            "                what = waste.popleft()\n",
        ),
        (
            "hal._memory.reaper",
            "                with books.lock:\n                    waste.popleft()\n",
            "",
        ),
        (
            "hal._memory.reaper",
            "        with self.reaping:\n            if not self._driver.is_closed:\n",
            "        if True:\n            if not self._driver.is_closed:\n",
        ),
    ),
    (
        "free neighbours stay apart",
        ["memory/test_memory_limits.py::test_free_neighbours_become_one_piece_m3"],
        ("hal._memory.segment_pool", "        if key != _MIXED:\n", "        if False:\n"),
        (
            "hal._memory.segment_pool",
            "            best = self._gather(own, queue._id, need)\n",
            "            pass\n",
        ),
    ),
    (
        "recent pieces serve their queue and size only",
        ["memory/test_memory_limits.py::test_free_neighbours_become_one_piece_m3"],
        (
            "hal._memory.segment_pool",
            "        if not self.recent:\n            return\n",
            "        return\n",
        ),
    ),
    (
        "temporaries of commands that nothing orders share bytes",
        [
            "commands/test_temporaries.py::test_many_that_nothing_separates_m3[manual]",
            "commands/test_temporaries.py::test_an_event_separates_what_it_orders_m3",
        ],
        ("hal._commands.recorder", "number if self._hazards else self._order.stop", "number"),
    ),
    (
        "memory of others is let go of under abandoned work",
        ["memory/test_imported_memory.py::test_an_import_stays_while_abandoned_work_may_use_it_q6"],
        ("hal._memory.reaper", "elif block.way != FOREIGN or release_context:", "else:"),
    ),
    (
        "an import is found beyond its end",
        [
            "memory/test_imported_memory.py::test_an_array_that_is_imported_in_part_is_copied_as_any_other_m1"
        ],
        (
            "hal._memory.heap",
            "start <= host_address <= start + block.size - size:",
            "start <= host_address <= start + block.size:",
        ),
    ),
    (
        "a grid is read at the beginning of late memory",
        [
            "kernels/test_grids_in_memory.py::test_a_part_of_memory_without_an_address_is_a_grid_m3[host]"
        ],
        (
            "hal._kernels.dispatch",
            "            arguments = (function, address, *rest)",
            "            arguments = (function, address - offset, *rest)",
        ),
    ),
    (
        "an event forgets what was waited for before its signal",
        ["commands/test_graph_order.py::test_an_event_covers_what_an_earlier_event_covers_i8"],
        (
            "hal._commands.lowering",
            "if self._covered and earlier is self._base:",
            "if earlier is self._base:",
        ),
    ),
    (
        "any conflict of bytes stands for a wait for an event",
        ["commands/test_graph_order.py::test_an_event_orders_beside_the_bytes_c1"],
        (
            "hal._commands.lowering",
            "implied = any(order.bases[each] is base for each in predecessors)",
            "implied = bool(predecessors)",
        ),
    ),
    (
        "the last of a queue's operations is asked",
        ["engine/test_waits.py::test_a_waiter_asks_for_what_ends_first_on_each_queue_s6"],
        (
            "hal._engine.waiting",
            "operation._sequence < known._sequence:",
            "operation._sequence > known._sequence:",
        ),
    ),
    (
        "a failure while a waiter asks is overlooked",
        ["engine/test_waits.py::test_a_failure_while_a_waiter_asks_ends_the_wait_s6"],
        (
            "hal._engine.waiting",
            "            to_check = True\n            is_late",
            "            is_late",
        ),
    ),
    (
        "a notification that comes too late is waited for",
        [
            "engine/test_threads.py::test_the_progress_thread_asks_soon_for_what_no_driver_will_tell_in_time"
        ],
        (
            "hal._engine.progress",
            "            elif state == Notifier.BEHIND:\n                pause = _SHORT_SECONDS\n",
            "",
        ),
    ),
    (
        "the contexts of a call that was broken off stay",
        ["engine/test_steps.py::test_an_interrupted_wait_holds_up_no_close_q6"],
        (
            "hal._engine.progress",
            "            step.contexts = ()\n            if step.is_left",
            "            if step.is_left",
        ),
    ),
)
