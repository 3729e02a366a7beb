"""The conformance suite of hal: tests that every backend passes.

A backend's vendor needs only `Profile`. ``plugin`` is the pytest plugin,
``runner`` runs the suite from a program, ``report`` describes the result.
"""

from hal_conformance.profile import Profile as Profile

__all__ = ["Profile"]
