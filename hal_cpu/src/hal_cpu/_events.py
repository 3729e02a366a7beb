"""The events of all devices, each a word that Python and the C runtime read and write."""

from __future__ import annotations

import errno
import functools
import itertools
from typing import Final

from hal.errors import OutOfMemoryError
from hal.handlers import own
from hal_cpu import _driver

_NEVER_RECORDED: Final = 1
"""A word of slot 0, which is no stream's, and a count of 0: the event counts as complete."""


class Events:
    """The handles of events, each an index in `words`.

    Any thread may call any method.

    Attributes
    ----------
    words
        The runtime's table of events.
    """

    __slots__ = ("_ended", "_unused", "words")

    def __init__(self, words: memoryview) -> None:
        self.words = words
        self._unused = itertools.count(1)
        self._ended: list[int] = []

    def create(self) -> int:
        """Return an event that counts as complete."""
        try:
            event = self._ended.pop()
        except own(IndexError):
            event = next(self._unused)
        if event >= len(self.words):
            message = f"no place for another event: {len(self.words) - 1} are there"
            raise OutOfMemoryError(message, native_name="ENOMEM", native_code=errno.ENOMEM)
        self.words[event] = _NEVER_RECORDED
        return event

    def destroy(self, event: int) -> None:
        """End an event; its handle is given to another one later."""
        self.words[event] = _driver.ENDED
        self._ended.append(event)

    def is_event(self, handle: int) -> bool:
        """Return whether a number is an event's handle."""
        return 0 < handle < len(self.words) and self.words[handle] not in {0, _driver.ENDED}


@functools.cache
def load_events() -> Events:
    """Return the events of the runtime, the same for all drivers of this process."""
    return Events(_driver.load_runtime().events)
