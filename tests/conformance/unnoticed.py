"""Why the suite has tests that pass on every mutant.

A key is a test, or a glob of tests; a reason is a sentence.
"""

from __future__ import annotations

__all__ = ["REASONS"]

REASONS: dict[str, str] = {
    "interop/test_processes.py::test_device_memory_is_kept_for_those_who_use_it_m2": (
        "The reference backend's memory is the host's, which belongs to all who map it; the drivers"
        " in software run it."
    )
}
