"""List mutants of the native device of the reference backend.

Each is one mistake; `mutants.py` makes them, and says what they are for.
"""

# ruff: noqa: E501 - patches quote lines as they stand

from __future__ import annotations

from named_tests import MODEL, RUNNING

__all__ = ["NATIVE"]

CPU = "hal_cpu.device"
OTHER_QUEUE = (
    "semaphores/test_visibility.py::test_a_seen_value_means_that_other_queues_work_is_done_s7"
)
LAUNCHES = '        """Enqueue a launch; the arguments are copied now."""\n'
SHARED = """
        state = globals().setdefault("_of_functions", {{}})
        state[function] = {name}
        __import__("time").sleep(0)  # a call of the vendor's library
        {name} = state[function]
"""
"""What a launch does whose API sets the state of a kernel before it launches it."""

TABLE = "        return self._runtime.calls\n"
OF_TABLES = "devices/test_call_table.py::test_"
NOTHING = "__import__('ctypes').cast(__import__('ctypes').CDLL(None).sched_yield, __import__('ctypes').c_void_p).value"
"""The address of a C function that returns 0, whatever it is given."""


def tabled(**fields):
    """Return the patch that gives other entries to the call table."""
    changes = ", ".join(f"{name}={value}" for name, value in fields.items())
    return (CPU, TABLE, f"        return self._runtime.calls._replace({changes})\n")


NATIVE = (
    # Name, tests, patches
    (
        "a table does nothing",
        [
            f"{OF_TABLES}a_table_copies_as_the_primitive_q4",
            f"{OF_TABLES}a_table_fills_as_the_primitive_q4",
            f"{OF_TABLES}a_table_launches_as_the_primitive_c5",
            f"{OF_TABLES}a_table_launches_graphs_c4",
            f"{OF_TABLES}a_table_updates_launches_c4",
        ],
        tabled(
            **dict.fromkeys(
                ("copy", "fill_8", "fill_16", "fill_32", "launch", "launch_graph", "update_launch"),
                NOTHING,
            )
        ),
    ),
    (
        "a table records no event",
        [f"{OF_TABLES}events_of_a_table_order_streams_s7"],
        tabled(record_event=NOTHING),
    ),
    (
        "a table's waits are lost",
        [f"{OF_TABLES}events_of_a_table_order_streams_s7"],
        tabled(wait_event=NOTHING),
    ),
    (
        "a table's query runs ahead of the work",
        [f"{OF_TABLES}events_of_a_table_order_streams_s7"],
        tabled(query_event=NOTHING),
    ),
    (
        "a table fills in another width",
        [f"{OF_TABLES}a_table_fills_as_the_primitive_q4[2]"],
        tabled(fill_16="self._runtime.calls.fill_8"),
    ),
    (
        "a table is another context's",
        [f"{OF_TABLES}a_table_knows_the_current_context_q1"],
        tabled(current=NOTHING, context="7"),
    ),
    (
        "it drops a wait of a stream",
        [OTHER_QUEUE, MODEL],
        (CPU, "if self._completed[word] < count and word != stream << 4 & _COUNTER:", "if False:"),
    ),
    (
        "a query runs ahead of the work",
        [f"{RUNNING}test_values_of_running_work_are_not_seen_s7"],
        (
            CPU,
            "        if self._completed[found & _COUNTER] < found >> 16:\n",
            "        if False:\n",
        ),
    ),
    (
        "a fill is rounded down",
        ["queues/test_transfers.py::test_fill_of_a_range_q4"],
        (
            CPU,
            "_driver.FILL, address, pattern, width, count)",
            "_driver.FILL, address, pattern, width, count & ~3 or count)",
        ),
    ),
    (
        "a fill knows bytes only",
        ["queues/test_transfers.py::test_fill_of_a_whole_buffer_q4"],
        (
            CPU,
            "_driver.FILL, address, pattern, width, count)",
            "_driver.FILL, address, pattern & 0xFF, 1, width * count)",
        ),
    ),
    (
        "a copy is a byte short",
        ["queues/test_transfers.py::test_copy_of_a_whole_buffer_q4", MODEL],
        (
            CPU,
            "    copy_from_host = copy_to_host = copy\n",
            (
                "    copy_from_host = copy_to_host = copy\n\n"
                "    def copy(self, stream, target, source, size):\n"
                "        self.copy_to_host(stream, target, source, size - (size > 1))\n"
            ),
        ),
    ),
    (
        "a grid runs in one dimension",
        ["kernels/test_dispatch.py::test_every_block_of_a_grid_runs_c5"],
        (CPU, "            *grid,\n", "            grid[0],\n            1,\n            1,\n"),
    ),
    (
        "dynamic shared memory is left out",
        ["kernels/test_dispatch.py::test_dynamic_shared_memory_c5"],
        (
            CPU,
            "            *block,\n            shared_memory,\n        )\n        if error := self._enqueue(stream):\n            self._check(error)\n\n    def launch_indirect",
            "            *block,\n            0,\n        )\n        if error := self._enqueue(stream):\n            self._check(error)\n\n    def launch_indirect",
        ),
    ),
    (
        "a kernel's arguments are set and launched in two steps",
        ["kernels/test_dispatch.py::test_threads_dispatch_one_kernel_c5"],
        (CPU, LAUNCHES, LAUNCHES + SHARED.format(name="parameters")),
    ),
    (
        "a kernel's grid is set and launched in two steps",
        ["kernels/test_dispatch.py::test_threads_dispatch_one_kernel_over_several_grids_c5"],
        (CPU, LAUNCHES, LAUNCHES + SHARED.format(name="grid")),
    ),
)
