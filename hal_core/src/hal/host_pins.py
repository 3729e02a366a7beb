"""Counts of pinned host memory, for backends whose driver pins a range only once.

Drivers refuse memory that is pinned already, by whichever device, and every device
can use what one device has pinned. So a backend keeps one table for
the whole process, and its `NativeDevice.import_host` uses that.
"""

from __future__ import annotations

from collections.abc import Callable

from hal._base import sync
from hal._engine import steps
from hal.errors import HalError, OperationError
from hal.handlers import dropped, own

__all__ = ["HostPins", "Undo"]

Undo = Callable[[], None]
"""Unpins the memory that a call has pinned; raises `HalError` if the driver fails."""


class _Range:
    """A pinned range; without `undo` other code has pinned it."""

    __slots__ = ("address", "count", "size", "undo")

    def __init__(self, address: int, size: int, undo: Undo | None) -> None:
        self.address = address
        self.size = size
        self.undo = undo
        self.count = 0

    def holds(self, address: int, size: int) -> bool:
        return self.address <= address and address + size <= self.address + self.size


class HostPins:
    """The pinned memory of this process, with the number of its uses.

    Any thread may call; the functions that are given run under a lock of the
    table's own, so that no thread takes memory for pinned that is about to be unpinned.
    `pinned_already` is the native code with which the driver refuses memory that is.
    """

    __slots__ = ("_lock", "_pinned_already", "_ranges", "_uses")

    def __init__(self, pinned_already: int) -> None:
        self._pinned_already = pinned_already
        self._lock = sync.OwnedLock()
        self._ranges: list[_Range] = []  # those of other code may overlap
        # The ranges of each import, by its user and address.
        self._uses: dict[tuple[object, int], list[_Range]] = {}

    def pin(
        self,
        user: object,
        address: int,
        size: int,
        register: Callable[[], Undo | None],
        find: Callable[[], int],
    ) -> int:
        """Pin `size` > 0 bytes of host memory unless they are; return the result of `find`.

        `user` is an open device, or stands for one. `register` pins the
        memory for all devices and returns a function that undoes that, or None if
        other code has pinned it, which then stays its owner. `find` returns the
        device's address of the memory. Their exceptions are passed on, after everything
        was undone; an `OperationError` with the code for memory that is pinned
        already says what to do then.
        """
        with steps.unheld(self._lock):
            found = next((each for each in self._ranges if each.holds(address, size)), None)
            if found is None:
                try:
                    undo = register()
                except own(OperationError) as error:
                    if error.native_code != self._pinned_already:
                        raise
                    raise OperationError(
                        f"a part of the {size} bytes at {address:#x} is pinned already: release "
                        f"what was imported there first, or import all of it at once ({error})",
                        native_name=error.native_name,
                        native_code=error.native_code,
                    ) from error
                found = _Range(address, size, undo)
                self._ranges.append(found)
            found.count += 1
            self._uses.setdefault((user, address), []).append(found)
        try:
            return find()
        except BaseException:
            self.unpin(user, address)
            raise

    def is_own(self, address: int) -> bool:
        """Return whether this table itself has pinned a byte; for `register`."""
        return any(each.undo and each.holds(address, 1) for each in self._ranges)

    def unpin(self, user: object, address: int) -> None:
        """Undo one `pin` of a user at an address; the last one for a range unpins that."""
        with steps.unheld(self._lock):
            uses = self._uses[user, address]
            found = uses.pop()
            if not uses:
                del self._uses[user, address]
            self._end(found)

    def _end(self, found: _Range) -> None:
        """End one use of a range; with the lock."""
        found.count -= 1
        if not found.count:
            self._ranges.remove(found)
            if found.undo is not None:
                found.undo()

    def forget(self, user: object) -> None:
        """Undo the remaining imports of a closed user: a lost device's were never undone."""
        with steps.unheld(self._lock):
            left = [key for key in self._uses if key[0] == user]
            for found in [found for key in left for found in self._uses.pop(key)]:
                with dropped(HalError):  # lost memory went with the device
                    self._end(found)
