"""Objects that belong to this process alone: no copies, no pickles, no use after a fork (Q6).

A copy would be a second owner of the same native objects, and a pickled
semaphore would never be signalled in the other process.
"""

from __future__ import annotations

import copyreg
import os
from typing import NoReturn

from hal.errors import ArgumentTypeError, ClosedError

_forked = False  # whether this process was forked from one that had opened a device


def refuse_copies(*kinds: type) -> None:
    """Make `copy` and `pickle` raise `ArgumentTypeError` for objects of these classes."""
    for kind in kinds:
        copyreg.pickle(kind, _refuse)


def _refuse(what: object) -> NoReturn:
    raise ArgumentTypeError(
        f"a {type(what).__name__} belongs to this process and is one: it can be neither copied nor "
        "pickled; pass what it is made of (a device's name, an array), and make another there"
    )


def note_fork() -> None:
    """Note that this process was forked from one that had opened a device."""
    global _forked  # noqa: PLW0603 - one process, one flag
    _forked = True


def refuse_after_fork() -> None:
    """Raise `ClosedError` in a forked child."""
    if _forked:
        refuse()


def refuse(*_: object, **__: object) -> NoReturn:
    """Raise `ClosedError`: a device was opened before the fork."""
    raise ClosedError(
        f"process {os.getpid()} was forked from one that had opened a device, whose context does "
        "not survive a fork; fork before the first device is opened, or start the process with the "
        "'spawn' method, and open the device there"
    )
