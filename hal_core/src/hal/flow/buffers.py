"""Define tracked buffers: memory that knows what work uses it."""

from __future__ import annotations

import weakref
from bisect import bisect_left, insort
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

import hal
from hal.errors import ArgumentTypeError, ClosedError, HalError, InvalidArgumentError
from hal.flow.tracking import Access, History

if TYPE_CHECKING:
    from hal.flow.flow import Flow

__all__ = ["Adopted", "TrackedBuffer", "not_tracked"]


class TrackedBuffer:
    """Be a range of a device's memory that remembers its last writer and the readers since.

    Made by `Flow.allocate`, `Flow.from_host`, `Flow.adopt` and `subspan`, and
    used by the methods of that flow, which wait for exactly what they must.
    The parts of one memory share what is remembered, byte by byte. Any thread
    may use it.

    Attributes
    ----------
    flow
        The flow that it belongs to.
    shape
        In elements of `dtype`.
    """

    __slots__ = (
        "__weakref__",
        "flow",
        "history",
        "raw",
        "reading",
        "shape",
        "start",
        "stop",
        "writing",
    )

    def __init__(
        self,
        flow: Flow,
        history: History,
        raw: hal.Buffer,
        start: int = 0,
        shape: tuple[int, ...] | None = None,
    ) -> None:
        self.flow = flow
        # For the modules of this package. The memory behind them is the flow's to order: whoever
        # wants to use it in another way calls `release`.
        self.history = history
        self.raw = raw
        self.start = start
        self.stop = start + raw.size
        self.shape = raw.shape if shape is None else shape
        self.reading: Access = (history, start, self.stop, False)
        self.writing: Access = (history, start, self.stop, True)

    @property
    def size(self) -> int:
        """Return the size in bytes."""
        return self.stop - self.start

    @property
    def dtype(self) -> np.dtype[Any]:
        """Return the numpy type of an element."""
        return self.raw.dtype

    @property
    def device(self) -> hal.Device:
        """Return the device that owns the memory."""
        return self.history.lanes.device

    @property
    def closed(self) -> bool:
        """Return whether it is tracked no more: closed or released."""
        return self.history.raw is None or self.raw.closed

    @property
    def written(self) -> hal.Fence:
        """Return what is reached once the bytes are what was written last.

        It fails with the work that wrote them. Wait for it on the host, or in
        another library; a later write is not held up by whoever does.
        """
        return self.flow.fence(self, readers=False)

    @property
    def used(self) -> hal.Fence:
        """Return what is reached once nothing that was submitted uses the bytes any more."""
        return self.flow.fence(self, readers=True)

    def __repr__(self) -> str:
        state = "closed" if self.closed else f"on {self.device.name}"
        return f"<TrackedBuffer {self.dtype}{list(self.shape)} {self.size} bytes {state}>"

    def subspan(self, offset: int, size: int, *, dtype: DTypeLike | None = None) -> TrackedBuffer:
        """Return the part of `size` bytes from `offset` on; work on other bytes is not waited for.

        `dtype` is this buffer's unless given. Raises as `hal.Buffer.subspan`.
        """
        self.flow.check(self, "subspan")
        part = self.raw.subspan(offset, size, dtype=dtype)
        return TrackedBuffer(self.flow, self.history, part, self.start + int(offset))

    def numpy(self, *, timeout: float | None = None) -> NDArray[Any]:
        """Copy to a new array, once the work that writes the bytes has ended.

        Blocks for `timeout` seconds at most. Raises what that work failed with.
        """
        return self.flow.to_host(self).result(timeout)

    def release(self) -> tuple[hal.Buffer, hal.Fence]:
        """Track no more; return the raw buffer, and what to wait for before using it in any way.

        This buffer and its parts are closed for the flow. Raises
        `InvalidArgumentError` for a part, also for one of all bytes.
        """
        return self.flow.release(self)

    def recover(self) -> None:
        """Forget work that has failed, and come after everything that was submitted so far.

        Work on the bytes of a failed operation fails with the same error,
        until this. What the bytes hold is undefined then: write them. Waits
        for nothing, and applies to the whole memory that this is a part of.
        """
        self.flow.recover(self)

    def close(self) -> None:
        """Let the memory go, once all that uses it has ended; of a part, the part only.

        A part is what `subspan` returns, of all bytes, too. May be called
        twice. Using the buffer afterwards raises `ClosedError`.
        """
        if self.raw is self.history.raw:  # not a part, however large
            self.history.end()
        self.raw.close()


class Adopted:
    """Know which raw memory was adopted, so that none is tracked twice.

    One that has no address yet, from `Queue.alloca`, is not known.
    """

    __slots__ = ("_places",)

    def __init__(self) -> None:
        # By device: address, number, end, and who tracks it
        self._places: dict[hal.Device, list[tuple[int, int, int, weakref.ref[History]]]] = {}

    def add(self, raw: hal.Buffer, history: History) -> None:
        """Remember a memory; raise `InvalidArgumentError` if some of it is tracked already."""
        try:
            address = raw.address
        except ClosedError:
            raise
        except HalError:
            return
        places = self._places.setdefault(raw.device, [])
        index = bisect_left(places, (address,))
        stop = address + raw.size
        # Those in the list are apart from each other.
        first = last = max(index - 1, 0)
        while last < len(places) and places[last][0] < stop:
            start, _, end, reference = places[last]
            known = reference()
            if known is not None and known.raw is not None and address < end:
                message = (
                    f"adopt: the bytes from {max(start, address):#x} to {min(end, stop):#x} of "
                    f"{raw.device.name} are tracked already; use that tracked buffer, or release "
                    "it first"
                )
                raise InvalidArgumentError(message)
            last += 1
        places[first:last] = [
            place for place in places[first:last] if place[2] <= address and place[3]() is not None
        ]
        insort(places, (address, id(history), stop, weakref.ref(history)), key=_number)


def _number(place: tuple[int, int, int, weakref.ref[History]]) -> tuple[int, int]:
    return place[:2]


def not_tracked(value: object, what: str) -> HalError:
    """Return why something cannot stand for a tracked buffer."""
    if isinstance(value, hal.Buffer):
        return ArgumentTypeError(
            f"{what} takes a tracked buffer, and this one is raw: nobody knows what work uses it; "
            "use flow.adopt(buffer, after=...) with what has to end before"
        )
    return ArgumentTypeError(f"{what} takes a tracked buffer, not {type(value).__name__}")
