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

NATIVE = (
    # Name, tests, patches
    (
        "it drops a wait of a stream",
        [OTHER_QUEUE, MODEL],
        (CPU, "if self._completed[word] < count and word != stream << 4:", "if False:"),
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
            (
                '        """Enqueue a copy."""\n'
                "        _pack_three(self._mail, stream << 6, _driver.COPY, target, source, size)"
            ),
            (
                '        """Enqueue a copy."""\n'
                "        _pack_three(self._mail, stream << 6, _driver.COPY, target, source, size - (size > 1))"
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
