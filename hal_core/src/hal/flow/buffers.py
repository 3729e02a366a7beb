"""Tracked buffers: memory that knows what work uses it."""

from __future__ import annotations

from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import DTypeLike, NDArray

import hal
from hal.arguments import as_int, memory_hint
from hal.errors import ArgumentTypeError, HalError, InvalidArgumentError
from hal.flow.locks import make_lock
from hal.flow.modes import MemoryMode, check_mode, is_read_only
from hal.flow.tracking import History, TrackedAccess, part_of
from hal.flow.virtual import name_of
from hal.handlers import own
from hal.protocols import Signals, Waits

_naming: Final = make_lock()
"""Held while what memory has names is looked at; finalisers may close contexts meanwhile."""


class Tracker(Protocol):
    """The methods of a flow that its tracked buffers call; see `TrackedBuffer`."""

    def check(self, buffer: object, what: str) -> None:
        """Raise unless an object is a buffer that this flow tracks."""

    def fence(self, buffer: TrackedBuffer, *, readers: bool) -> hal.Fence:
        """Return a fence for the last writers of the bytes, or all users."""

    def release(self, buffer: TrackedBuffer) -> tuple[hal.Buffer, hal.Fence]:
        """Stop tracking a buffer."""

    def recover(self, buffer: TrackedBuffer) -> None:
        """Forget failed work on a memory."""

    def to_host(self, buffer: TrackedBuffer) -> Any:  # noqa: ANN401 - hal.flow.Download
        """Copy a buffer to a new array."""

    def write(
        self,
        buffer: TrackedBuffer,
        array: object,
        *,
        offset: int = 0,
        wait: Waits = (),
        signal: Signals = (),
    ) -> hal.Submission:
        """Copy a host array into a buffer."""

    def fill(
        self, buffer: TrackedBuffer, value: object, *, wait: Waits = (), signal: Signals = ()
    ) -> hal.Submission:
        """Fill a buffer."""


class TrackedBuffer:
    """A range of a device's memory that remembers its last writer and the readers since.

    Made by `Flow.allocate`, `Flow.from_host`, `Flow.adopt` and `subspan`, and
    used by the methods of that flow, which wait for exactly what they must.
    The parts of one memory share what is remembered, byte by byte. Any thread
    may use it.

    `flow` is the flow that it belongs to, and `shape` is in elements of `dtype`. `name` is its
    name in a `Context`, and `mode` who may read and write it; "" and None without. What the
    mode does not allow raises `InvalidArgumentError`.
    """

    __slots__ = (
        "__weakref__",
        "flow",
        "history",
        "mode",
        "name",
        "part",
        "raw",
        "reading",
        "shape",
        "start",
        "stop",
        "writing",
    )

    def __init__(
        self,
        flow: Tracker,
        history: History,
        raw: hal.Buffer,
        start: int = 0,
        shape: tuple[int, ...] | None = None,
        name: str = "",
        mode: MemoryMode | None = None,
    ) -> None:
        self.flow = flow
        # For the modules of this package. The flow orders the memory behind them: call `release`
        # before using it in another way.
        self.history = history
        self.raw = raw
        self.start = start
        self.stop = start + raw.size
        self.shape = raw.shape if shape is None else shape
        self.part = part_of(history, start, self.stop)
        self.reading: TrackedAccess = (history, self.part, False)
        self.name = name
        self.mode = mode
        if is_read_only(mode):
            history = history.refused(lambda: check_mode(repr(name), mode))
        self.writing: TrackedAccess = (history, self.part, True)

    @property
    def size(self) -> int:
        """The size in bytes."""
        return self.stop - self.start

    @property
    def dtype(self) -> np.dtype[Any]:
        """The numpy type of an element."""
        return self.raw.dtype

    @property
    def device(self) -> hal.Device:
        """The device that owns the memory."""
        return self.history.lanes.device

    @property
    def closed(self) -> bool:
        """Whether it is no longer tracked: closed or released."""
        return self.history.raw is None or self.raw.closed

    @property
    def written(self) -> hal.Fence:
        """A fence that is reached once the bytes are what was written last.

        It fails with the work that wrote them. Wait for it on the host, or in
        another library; a later write does not wait for you.
        """
        return self.flow.fence(self, readers=False)

    @property
    def used(self) -> hal.Fence:
        """A fence that is reached once no work submitted so far uses the bytes any more."""
        return self.flow.fence(self, readers=True)

    def named(self, name: str, mode: MemoryMode) -> TrackedBuffer:
        """Return a buffer of the same bytes that has a name and a mode while it lives.

        For the package. Raises `InvalidArgumentError` for bytes that another name has in another
        mode, if kernels only read one of both.
        """
        made = TrackedBuffer(self.flow, self.history, self.raw, self.start, self.shape, name, mode)
        with _naming:
            for known in list(self.history.claims):
                if max(known.start, self.start) >= min(known.stop, self.stop):
                    continue
                if known.mode is not mode and (is_read_only(mode) or is_read_only(known.mode)):
                    raise InvalidArgumentError(
                        f"{name!r} as {mode}: some of these bytes are {known!r}, which is "
                        f"{known.mode}, and what kernels only read has no name of another mode; "
                        "use that mode, or other bytes"
                    )
            self.history.claims.add(made)
        return made

    def forget_name(self) -> None:
        """Let its bytes have names of other modes again. For the package."""
        with _naming:
            self.history.claims.discard(self)

    def check_fill(self, value: object) -> None:
        """Raise if it has a name that may not be filled with a value. For the package."""
        if self.mode is None:
            return
        check_mode(repr(self.name), self.mode, "fill")
        if isinstance(value, np.generic):
            self.check_type(value.dtype, None, "the value")

    def check_write(self, array: object, *, is_whole: bool) -> None:
        """Raise if it has a name to which a host array may not be written."""
        if self.mode is None:
            return
        check_mode(repr(self.name), self.mode, "write")
        if isinstance(array, (np.ndarray, np.generic)):
            self.check_type(array.dtype, array.nbytes if is_whole else None, "the array")

    def check_copy(self, source: TrackedBuffer, *, is_whole: bool) -> None:
        """Raise if it has a name to which another buffer may not be copied."""
        if self.mode is None:
            return
        check_mode(repr(self.name), self.mode, "copy to")
        are_bytes = source.mode is None and source.dtype == np.uint8  # of any type
        dtype = self.dtype if are_bytes else source.dtype
        self.check_type(dtype, source.size if is_whole else None, "the source")

    def check_type(self, dtype: np.dtype[Any], size: int | None, what: str) -> None:
        """Raise unless a name's elements are of a type, and so many bytes."""
        if dtype != self.dtype:
            raise InvalidArgumentError(
                f"{self.name!r} has elements of {self.dtype}, and {what} of {dtype}; convert "
                "them, as with array.astype, or take the bytes as they are, as with "
                f".view({str(dtype)!r})"
            )
        if size is not None and size != self.size:
            raise InvalidArgumentError(
                f"{self.name!r} has {self.size} bytes, and {what} {size}; say which part is meant, "
                "with subspan or an offset"
            )

    def __repr__(self) -> str:
        state = "closed"
        if not self.closed:
            try:
                state = f"at {self.raw.address:#x} on {name_of(self.device)}"
            except own(HalError):  # an allocation that is not issued yet
                place = f"{id(self.history):x}[{self.start}:{self.stop}]"  # no other buffer's
                state = f"without an address yet, memory {place}, on {name_of(self.device)}"
        name = f" {self.name!r}" if self.name else ""
        return f"<TrackedBuffer{name} {self.dtype}{list(self.shape)} {self.size} bytes {state}>"

    def subspan(self, offset: int, size: int, *, dtype: DTypeLike | None = None) -> TrackedBuffer:
        """Return the part of `size` bytes from `offset` on; work on other bytes is not waited for.

        `dtype` is this buffer's unless given. Raises as `hal.Buffer.subspan`.
        """
        self.flow.check(self, "subspan")
        begin = as_int(offset, "subspan: the offset is a number of bytes as an int")
        part = self.raw.subspan(begin, size, dtype=dtype)
        name = self.name and f"{self.name}[{begin}:{begin + part.size}]"
        start = self.start + begin
        return TrackedBuffer(self.flow, self.history, part, start, None, name, self.mode)

    def view(self, dtype: DTypeLike) -> TrackedBuffer:
        """Return the same bytes with elements of another type, as `hal.Buffer.view`."""
        self.flow.check(self, "view")
        raw = self.raw.view(dtype)
        return TrackedBuffer(self.flow, self.history, raw, self.start, None, self.name, self.mode)

    def write(
        self, array: object, *, offset: int = 0, wait: Waits = (), signal: Signals = ()
    ) -> hal.Submission:
        """Copy an array into it, from `offset` bytes on, as `Flow.write` does."""
        return self.flow.write(self, array, offset=offset, wait=wait, signal=signal)

    def fill(self, value: object, *, wait: Waits = (), signal: Signals = ()) -> hal.Submission:
        """Fill it, as `Flow.fill` does."""
        return self.flow.fill(self, value, wait=wait, signal=signal)

    def numpy(self, *, timeout: float | None = None) -> NDArray[Any]:
        """Copy to a new array, once the work that writes the bytes has ended.

        Blocks for at most `timeout` seconds. Raises the failure of that work.
        """
        array: NDArray[Any] = self.flow.to_host(self).result(timeout)
        return array

    def release(self) -> tuple[hal.Buffer, hal.Fence]:
        """Stop tracking; return the raw buffer, and what to wait for before using it in any way.

        This buffer and its parts are closed for the flow. Raises
        `InvalidArgumentError` for a part, also for one of all bytes.
        """
        return self.flow.release(self)

    def recover(self) -> None:
        """Forget work that has failed, and come after everything that was submitted so far.

        Until this, work on the bytes of a failed operation fails with the same error.
        The content of the bytes is undefined then: write them. Does not wait, and applies
        to the whole memory that this is a part of.
        """
        self.flow.recover(self)

    def close(self) -> None:
        """Release the memory, once all that uses it has ended; of a part, the part only.

        A part is what `subspan` returns, even of all bytes. May be called
        twice. Using the buffer afterwards raises `ClosedError`.
        """
        if self.raw is self.history.raw:  # not a part, however large
            self.history.end()
        self.raw.close()


def not_tracked(value: object, what: str) -> HalError:
    """Return why an object cannot stand for a tracked buffer."""
    if isinstance(value, hal.Buffer):
        return ArgumentTypeError(
            f"{what} takes a tracked buffer, and this one is raw: nobody knows what work uses it; "
            "use flow.adopt(buffer, after=...) with what has to end before"
        )
    hint = memory_hint(value)
    hint = f"{hint}, and flow.adopt(buffer)" if hint else ""
    if isinstance(value, np.ndarray):
        hint = "; copy the array to the device first, with flow.from_host(array)"
    return ArgumentTypeError(f"{what} takes a tracked buffer, not {type(value).__name__}{hint}")
