"""The conformance suite of hal: what a backend proves itself with.

A backend's vendor needs `Profile` alone. ``plugin`` is the pytest plugin,
``runner`` runs the suite from a program, ``report`` says what came of it.
"""

from __future__ import annotations

from hal_conformance.profile import Profile as Profile

__all__ = ["Profile"]
