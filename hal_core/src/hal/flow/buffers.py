"""Define tracked buffers: memory that knows what work uses it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

import hal
from hal.arguments import as_int, memory_hint
from hal.errors import ArgumentTypeError, HalError
from hal.flow.tracking import Access, History

if TYPE_CHECKING:
    from hal.flow.flow import Flow

__all__ = ["TrackedBuffer", "not_tracked"]


class TrackedBuffer:
    """A range of a device's memory that remembers its last writer and the readers since.

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
        begin = as_int(offset, "subspan: the offset is a number of bytes as an int")
        part = self.raw.subspan(begin, size, dtype=dtype)
        return TrackedBuffer(self.flow, self.history, part, self.start + begin)

    def view(self, dtype: DTypeLike) -> TrackedBuffer:
        """Return the same bytes with elements of another type, as `hal.Buffer.view`."""
        self.flow.check(self, "view")
        return TrackedBuffer(self.flow, self.history, self.raw.view(dtype), self.start)

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


def _hint(value: object) -> str:
    """Return how what has memory of its own becomes a tracked buffer."""
    hint = memory_hint(value)
    if isinstance(value, np.ndarray):
        return "; copy the array to the device first, with flow.from_host(array)"
    return f"{hint}, and flow.adopt(buffer)" if hint else ""


def not_tracked(value: object, what: str) -> HalError:
    """Return why something cannot stand for a tracked buffer."""
    if isinstance(value, hal.Buffer):
        return ArgumentTypeError(
            f"{what} takes a tracked buffer, and this one is raw: nobody knows what work uses it; "
            "use flow.adopt(buffer, after=...) with what has to end before"
        )
    return ArgumentTypeError(
        f"{what} takes a tracked buffer, not {type(value).__name__}{_hint(value)}"
    )
