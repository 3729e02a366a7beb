"""List mutants of what buffers and pointers are checked for, and of what reading waits for.

Each is one mistake; `mutants.py` makes them, and says what they are for.
"""

from __future__ import annotations

__all__ = ["BUFFERS"]

BUFFERS = (
    # Name, tests, patches
    (
        "numpy() does not wait for what was submitted",
        [
            "memory/test_buffers.py::test_reading_waits_for_what_was_submitted_m2",
            "memory/test_buffers.py::test_a_read_that_waits_for_nothing_m2",
        ],
        (
            "hal._buffers.buffer",
            'wait_before(self._device._context, timeout, "numpy()")',
            "pass",
        ),
    ),
    (
        "a buffer of any elements is taken for a pointer",
        [
            "kernels/test_dispatch.py::test_elements_that_are_not_the_pointers_are_refused_c5",
        ],
        ("hal._programs.signature", "if not fits(parameter.element, dtype):", "if False:"),
    ),
    (
        "an integer's sign counts for a pointer",
        ["kernels/test_dispatch.py::test_elements_that_a_pointer_takes_c5"],
        ("hal.arguments", 'kinds == {"i", "u"}', "False"),
    ),
    (
        "a pointer takes memory at any address",
        [
            "kernels/test_dispatch.py::test_memory_that_is_not_aligned_for_a_pointer_is_refused_c5",
        ],
        ("hal._programs.signature", "        if address % alignment:", "        if False:"),
    ),
    (
        "an array of any elements is transferred",
        ["memory/test_buffers.py::test_arrays_of_other_elements_are_refused_m1"],
        ("hal.arguments", "not same_elements(dtype, given)", "False"),
    ),
    (
        "a view of other elements is flat",
        ["memory/test_buffers.py::test_views_of_other_types_m2"],
        (
            "hal._buffers.buffer",
            'shape = (*shape[:-1], *shape_of(row, kind, "view"))',
            'shape = shape_of(self._size, kind, "view")',
        ),
    ),
    (
        "a copy of a range onto itself is refused",
        ["queues/test_transfers.py::test_copy_of_a_range_onto_itself_q4"],
        ("hal._base.checks", "    if not distance:\n", "    if distance is None:\n"),
    ),
    (
        "a long pattern is filled once",
        [
            "queues/test_transfers.py::test_fill_of_a_range_q4",
            "queues/test_transfers.py::test_fill_of_a_whole_buffer_q4",
        ],
        ("hal._transfers.transfers", "        while done < size:\n", "        while False:\n"),
    ),
    (
        "a recorded long pattern begins with its end",
        ["command_buffers/test_transfers.py::test_fill_patterns_c1"],
        (
            "hal._commands.nodes",
            'np.frombuffer(pattern.to_bytes(width, "little"), np.uint8)',
            'np.frombuffer(pattern.to_bytes(width, "big"), np.uint8)',
        ),
    ),
)
