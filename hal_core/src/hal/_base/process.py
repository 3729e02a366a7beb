"""Refuse to copy and pickle objects that stand for something in this process.

A copy would be a second owner of the same native objects, and a pickled
semaphore would never be signalled in the other process.
"""

from __future__ import annotations

import copyreg
from typing import NoReturn

from hal.errors import ArgumentTypeError

__all__ = ["refuse_copies"]


def refuse_copies(*kinds: type) -> None:
    """Make `copy` and `pickle` raise `ArgumentTypeError` for objects of these classes."""
    for kind in kinds:
        copyreg.pickle(kind, _refuse)


def _refuse(what: object) -> NoReturn:
    message = (
        f"a {type(what).__name__} belongs to this process and is one: it can be neither copied nor "
        "pickled; pass what it is made of (a device's name, an array), and make another there"
    )
    raise ArgumentTypeError(message)
