"""Why the suite has tests that pass on every mutant.

A key is a test, or a glob of tests; a reason is a sentence.
"""

from __future__ import annotations

__all__ = ["REASONS"]

REASONS: dict[str, str] = {}
