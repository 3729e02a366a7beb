"""Name what must fail for mutants of several tables: a test, and a file whose test is to follow."""

from __future__ import annotations

__all__ = ["MODEL", "RUNNING"]

RUNNING = "kernels/test_running.py::"
MODEL = "model/test_machine.py::test_random_programs_against_a_model_s5"
