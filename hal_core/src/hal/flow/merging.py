"""Merge buffers: bring another device's data to a device, to merge it with its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, TypeAlias

import hal
from hal.arguments import as_choice, as_text, shown
from hal.errors import InvalidArgumentError
from hal.flow.buffers import TrackedBuffer
from hal.flow.locks import make_lock, refuse_reentrance
from hal.flow.modes import MemoryMode
from hal.flow.tracking import Lanes
from hal.flow.transfers import Transfers
from hal.flow.virtual import name_of

MergeMode: TypeAlias = Literal["copy", "streaming"]

_MODES: Final = ("copy", "streaming")


@dataclass(frozen=True, slots=True)
class Merge:
    """The argument of a routine that a device's merge buffer brings; see `Context.link`."""

    name: str
    """The name, in any context, of what has to be loaded when the routine is called."""
    mode: MergeMode | None = None
    """The mode that it has to be loaded with; None for any."""

    def __post_init__(self) -> None:
        as_text(self.name, "Merge: the name of what is merged is a str")
        if self.mode is not None:
            as_choice(self.mode, _MODES, "Merge: the mode")


class _Held(NamedTuple):
    """The content of a merge buffer."""

    source: TrackedBuffer
    wanted: MergeMode
    view: TrackedBuffer  # of the part or of the source; kernels only read it
    part: TrackedBuffer | None  # of the merge buffer's memory; None if kernels read the source


class MergeBuffer:
    """Memory that brings one buffer at a time, of any device, to a device's kernels.

    Made by `Flow.merge_buffer`; there is one for each `device` of a flow. Its
    memory is reused, and grows. `load` sets its content, and `expect`
    returns the argument of a kernel, which only reads it, at the moment when its
    work is scheduled::

        merge.load(theirs, "streaming")
        flow.dispatch(add, grid=1, args=(merge.expect(theirs), ours))

    The next `load` comes after the work that reads what the last one brought.
    Any thread may use it.
    """

    __slots__ = ("_flow", "_held", "_lock", "_whole", "device")

    def __init__(self, flow: Transfers, lanes: Lanes) -> None:
        self.device: Final = lanes.device
        self._flow = flow
        self._lock = make_lock()
        self._held: _Held | None = None
        self._whole: TrackedBuffer | None = None

    @property
    def source(self) -> TrackedBuffer | None:
        """The buffer loaded last, or None."""
        held = self._held  # once: another thread may load something else
        return None if held is None else held.source

    @property
    def mode(self) -> MergeMode:
        """The mode in effect: ``"streaming"`` if kernels read the source in place."""
        held = self._held
        return "streaming" if held is not None and held.part is None else "copy"

    @property
    def capacity(self) -> int:
        """The bytes of its own memory."""
        whole = self._whole
        return 0 if whole is None else whole.size

    def __repr__(self) -> str:
        held = "empty" if self.source is None else f"{self.mode} of {self.source!r}"
        return f"<MergeBuffer of {name_of(self.device)} {self.capacity} bytes, {held}>"

    def load(self, source: TrackedBuffer, mode: MergeMode = "copy") -> hal.Submission | None:
        """Hold `source`, a buffer or a part of one, instead of the previous content.

        With ``"copy"`` it holds the current bytes, in memory of its
        own, and returns the copy. With ``"streaming"`` it stands for the
        source as it is when it is expected, and returns None: in place
        if the device's kernels reach that memory (it is their own, or
        `hal.Device.can_access`, in a flow with ``peers``). Elsewhere streaming
        becomes copying, by each `expect`, and `mode` says so. What is in place already stays.

        Closes what `expect` returned before, unless it was in place, with the
        parts of it; work recorded with it is refused. Raises as
        `Flow.copy` and `Flow.allocate`; nothing is held then.
        """
        as_choice(mode, _MODES, "load: mode")
        self._flow.check_open()
        self._flow.check(source, "load")
        refuse_reentrance(self._lock)
        with self._lock:
            self._flow.check_open()  # again: it may have been closed meanwhile, and this with it
            if mode == self.mode == "streaming" and self.source is source:
                return None  # it stands for the source already
            self._empty()
            copied = part = None
            if mode == "copy" or not self._flow.reaches(self.device, source.device):
                part = self._room_for(source)
                if mode == "copy":
                    copied = self._flow.copy(source, part)
            brought = part or source.subspan(0, source.size)
            view = TrackedBuffer(
                self._flow,
                brought.history,
                brought.raw,
                brought.start,
                source.shape,
                f"the merge buffer of {name_of(self.device)}",
                MemoryMode.CONSTANT,
            )
            self._held = _Held(source, mode, view, part)
            return copied

    def expect(self, source: TrackedBuffer | str, mode: MergeMode | None = None) -> TrackedBuffer:
        """Return the argument that stands for `source`, if that is held.

        `source` is a buffer, or the name of one in any context; `mode` is what it must have been
        loaded with, None for any. The argument is read-only.

        For work that is scheduled next: the following `load` closes it, unless
        it is in place, and work that is scheduled afterwards with it,
        with a part of it, or with a recording that uses it is refused. It
        cannot be released. Raises `InvalidArgumentError` if something else is
        held, or nothing, or in another mode, and `ClosedError` for a source that was closed.
        """
        if isinstance(source, str):
            source = as_text(source, "expect: source is a buffer or its name")
        else:
            self._flow.check(source, "expect")
        if mode is not None:
            as_choice(mode, _MODES, "expect: mode")
        refuse_reentrance(self._lock)
        with self._lock:
            held = self._held
            if (
                held is None
                or not _is_same(held.source, source)
                or (mode is not None and mode != held.wanted)
            ):
                wanted = shown(source) if isinstance(source, str) else repr(source)
                holds = "nothing" if held is None else f"{held.source!r} as {held.wanted!r}"
                raise InvalidArgumentError(
                    f"the merge buffer of {name_of(self.device)} was expected to hold {wanted}"
                    f"{f' as {mode!r}' if mode else ''}, and holds {holds}; load what is to be "
                    "merged before the work is scheduled"
                )
            self._flow.check(held.source, "expect")
            if held.wanted == "streaming" and held.part is not None:
                self._flow.copy(held.source, held.part)
            return held.view

    def recover(self) -> None:
        """Hold nothing, and forget failed work on its memory, as `TrackedBuffer.recover` does."""
        refuse_reentrance(self._lock)
        with self._lock:
            self._empty()
            if self._whole is not None:
                self._whole.recover()

    def close(self) -> None:
        """Release its memory, once all that uses it has ended. The next `load` makes another."""
        refuse_reentrance(self._lock)
        with self._lock:
            self._empty()
            whole, self._whole = self._whole, None
            if whole is not None:
                whole.close()

    def _empty(self) -> None:
        """Hold nothing; under the lock."""
        # First: after a Ctrl-C here, other memory is used from now on.
        whole, self._whole = self._whole, None
        held, self._held = self._held, None
        if held is not None and held.part is not None and whole is not None:
            # Before the memory is written again: from now on, users of the part, or of what was
            # made of it, are refused; work scheduled already is remembered by the flow.
            whole = self._flow.renew(whole)
            held.part.close()
        self._whole = whole

    def _room_for(self, source: TrackedBuffer) -> TrackedBuffer:
        """Return as many bytes of its memory; under the lock."""
        whole = self._whole
        if whole is None or whole.size < source.size:
            size = max(source.size, 0 if whole is None else 2 * whole.size)
            grown = self._flow.allocate(size, device=self.device)
            self._whole = grown
            if whole is not None:
                whole.close()
            whole = grown
        raw = whole.raw.subspan(0, source.size, dtype=source.dtype)
        return TrackedBuffer(self._flow, whole.history, raw, 0, source.shape)


def _is_same(held: TrackedBuffer, source: TrackedBuffer | str) -> bool:
    """Return whether two are the same bytes, or have the same name."""
    if isinstance(source, str):
        return held.name == source
    return held is source or (
        held.history is source.history and (held.start, held.stop) == (source.start, source.stop)
    )
