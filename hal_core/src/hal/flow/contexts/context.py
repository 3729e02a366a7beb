"""Contexts: the named memory of a device, and the programs linked with it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np
from numpy.typing import DTypeLike, NDArray

import hal
from hal.arguments import as_array, as_mapping, as_name, as_text, shown
from hal.errors import ArgumentTypeError, ClosedError, InvalidArgumentError, NotFoundError
from hal.flow.buffers import TrackedBuffer
from hal.flow.contexts.holders import Holders, Named
from hal.flow.contexts.linking import link_kernels, link_recording
from hal.flow.contexts.routines import Routine, Step
from hal.flow.modes import Memory, MemoryMode, refuse, rights_of
from hal.flow.recordings import Recording
from hal.flow.scheduler import AnyDevice
from hal.flow.transfers import Download
from hal.protocols import Signals, Waits

if TYPE_CHECKING:
    from hal.flow.flow import Flow

__all__ = ["Context"]

_holders: Final = Holders()


class Context:
    """The named memory of one device, against which programs are linked.

    A context sees its own names and those of its ancestors:
    related contexts share that memory. A name belongs to one context of a
    flow and a device while that lives. Declaring it again in a descendant
    shares the memory if both declarations are equal, and is
    an error otherwise, as is any use from an unrelated context. Memory
    that is local to a call belongs to no context and is exempt.

    What a name's `MemoryMode` does not allow raises `InvalidArgumentError`:
    for kernels when they are linked, for the host when it asks. Any thread may
    use a context; all work goes through the flow, ordered by the bytes.

    Parameters
    ----------
    flow
        The flow that runs the work.
    device
        One of the flow's; None for the first.
    name
        Its name in errors.

    Attributes
    ----------
    parent
        Its parent context, or None.
    """

    def __init__(
        self, flow: Flow, *, device: AnyDevice | None = None, name: str = "context"
    ) -> None:
        if not hasattr(type(flow), "lanes_of"):
            message = f"Context takes a flow (hal.flow.Flow), not {type(flow).__name__}"
            raise ArgumentTypeError(message)
        flow.check_open()
        self.flow: Final = flow
        self.device: Final = flow.lanes_of(device).device
        self.name: Final = as_name(name, "a context")
        self.parent: Context | None = None
        self.own: dict[str, Named] = {}  # for the modules of this package
        self._closed = False

    def child(self, name: str = "child") -> Context:
        """Return a child of this context."""
        self._check_open()
        own = as_name(name, "a context")
        made = Context(self.flow, device=self.device, name=f"{self.name}/{own}")
        made.parent = self
        return made

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._closed

    @property
    def names(self) -> Mapping[str, Memory]:
        """The names declared here and in its ancestors."""
        found: dict[str, Memory] = {}
        for context in reversed(list(self.line())):
            found.update((name, each.memory) for name, each in dict(context.own).items())
        return found

    # Declarations

    def allocate(
        self,
        name: str,
        size: int,
        *,
        dtype: DTypeLike = np.uint8,
        mode: str | MemoryMode = MemoryMode.DEVICE,
    ) -> None:
        """Declare a name with memory of `size` bytes, whose content is undefined.

        Raises `InvalidArgumentError` for a constant, which needs a content, and
        for a name that is declared otherwise, or by a context that is not an
        ancestor of this one.
        """
        memory = Memory(size, dtype, mode)
        if memory.mode is MemoryMode.CONSTANT:
            message = f"{shown(name)} is constant and needs its content; use from_host or adopt"
            raise InvalidArgumentError(message)
        self._declare(name, memory, lambda: self._allocate(memory), has_content=False)

    def from_host(
        self, name: str, array: object, *, mode: str | MemoryMode = MemoryMode.HOSTED
    ) -> None:
        """Declare a name with the content of an array, or of an array-like object.

        Returns at once; the array may change then. Raises as `allocate`, and
        for a name that is declared already: it has its content.
        """
        host = as_array(array, "from_host")
        if host.dtype.hasobject:
            message = f"{shown(name)}: the array holds Python objects, which device memory cannot"
            raise ArgumentTypeError(message)
        memory = Memory(host.nbytes, host.dtype, mode)
        self._declare(name, memory, lambda: self.flow.from_host(host, self.device, hold=False))

    def adopt(
        self, name: str, buffer: TrackedBuffer, *, mode: str | MemoryMode = MemoryMode.HOSTED
    ) -> None:
        """Declare a name for a buffer of the flow, which stays the caller's too.

        The caller's own uses of it are ordered with the context's work, and exempt
        from the mode. Raises as `from_host`, and for bytes that
        another name has, in any context of the flow's, if kernels only read
        one of both: a constant, or volatile memory.
        """
        self.flow.check(buffer, f"adopt {shown(name)}")
        if buffer.device is not self.device:
            message = (
                f"adopt {shown(name)}: the buffer is on {buffer.device.name}, and the context on "
                f"{self.device.name}, or that was opened another time"
            )
            raise InvalidArgumentError(message)
        memory = Memory(buffer.size, buffer.dtype, mode)
        self._declare(name, memory, lambda: buffer, is_lent=True)

    # Host operations

    def write(
        self, name: str, array: object, *, offset: int = 0, wait: Waits = (), signal: Signals = ()
    ) -> hal.Submission:
        """Copy an array into a name's memory, as `Flow.write` does."""
        buffer = self._for_host(name, "write", is_written=True)
        return self.flow.write(buffer, array, offset=offset, wait=wait, signal=signal)

    def read(self, name: str, *, wait: Waits = ()) -> Download:
        """Copy a name's memory to a new array; return that at once, as `Flow.to_host` does."""
        return self.flow.to_host(self._for_host(name, "read", is_written=False), wait=wait)

    def numpy(self, name: str, *, timeout: float | None = None) -> NDArray[Any]:
        """Read as `read` does, and wait for it, for at most `timeout` seconds."""
        return self.read(name).result(timeout)

    # Device operations

    def fill(
        self, name: str, value: object, *, wait: Waits = (), signal: Signals = ()
    ) -> hal.Submission:
        """Fill a name's memory on the device, as `Flow.fill` does."""
        return self.flow.fill(self.for_work(name, "fill"), value, wait=wait, signal=signal)

    def copy(
        self, source: str, target: str, *, to: Context | None = None, wait: Waits = ()
    ) -> hal.Submission:
        """Copy a name's memory to that of another name, of another context and device too."""
        if to is not None and not isinstance(to, Context):
            message = f"copy: to is a context, not {type(to).__name__}"
            raise ArgumentTypeError(message)
        found = self.find(source)
        if found.buffer is None:
            refuse(source, found.memory.mode, "copy from", self.name)
        return self.flow.copy(found.buffer, (to or self).for_work(target, "copy to"), wait=wait)

    def link(
        self,
        code: hal.Program | hal.Executable | hal.Kernel | Recording,
        entry: str | Sequence[Step] | None = None,
        *,
        grid: int | Sequence[int] | None = None,
        block: int | Sequence[int] | None = None,
        buffers: Mapping[str, str] | Sequence[str] = (),
        scalars: Mapping[str, object] | None = None,
        shared_memory: int | None = None,
        reads: Iterable[str] = (),
        writes: Iterable[str] = (),
        allocate: Mapping[str, Memory] | None = None,
        name: str | None = None,
    ) -> Routine:
        """Bind code to names of this context; return a callable routine with a child context.

        Parameters
        ----------
        code
            A program, which is loaded on the device unless it is already, or
            an executable; a kernel; or a recording of the flow's with slots.
        entry
            Of a program: the kernel's name, or a list of `Step`, which run
            as one command buffer.
        grid, block, shared_memory
            As for `Flow.dispatch`; without a grid `Routine.run` takes it.
        buffers
            The name that each pointer of the kernel takes; the parameter's own
            name unless given. Of a recording: the name for each slot.
        scalars
            The current values for other parameters; those that are not
            here stay open.
        reads, writes
            As for `Flow.dispatch`, by parameter.
        allocate
            Declarations for the child context, unless this one sees the same
            declaration of the name already.
        name
            The child context's name; the kernel's name unless given.

        Raises
        ------
        NotFoundError
            There is no such kernel, or no such name.
        InvalidArgumentError
            A mode does not allow what the code does with a name; a local is
            read before the code has written it; a declaration does not agree.
        ArgumentTypeError, ClosedError
            For anything but code; for closed objects. Nothing has changed then.
        """
        self._check_open()
        title = None if name is None else as_name(name, "a routine")
        child = self.child(title or (entry if isinstance(entry, str) else "routine"))
        try:
            child.allocate_all({} if allocate is None else allocate)
            if isinstance(code, Recording):
                others = (entry, grid, block, scalars, shared_memory, reads, writes)
                return link_recording(child, code, buffers, others)
            if isinstance(code, hal.Program):
                code = self.device.load(code)
            given = (
                grid,
                block,
                {} if isinstance(buffers, tuple) and not buffers else buffers,
                {} if scalars is None else scalars,
                shared_memory,
                reads,
                writes,
            )
            return link_kernels(child, code, entry, given)
        except BaseException:
            child.close()
            raise

    # The end

    def close(self) -> None:
        """Release this context's own memory, once all that uses it has ended, and its names.

        Its descendants go on without them. May be called twice.
        """
        with _holders.lock:
            self._closed = True
            own, self.own = self.own, {}
            _holders.leave(self, own)
        for each in own.values():
            each.close()

    def __enter__(self) -> Self:
        self._check_open()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        state = " closed" if self._closed else ""
        return f"<Context {self.name} on {self.device.name}: {', '.join(self.names)}{state}>"

    # For the modules of this package

    def line(self) -> Iterable[Context]:
        """Yield this context and its ancestors, the nearest first."""
        each: Context | None = self
        while each is not None:
            yield each
            each = each.parent

    def find(self, name: str) -> Named:
        """Return what a name stands for; raise if this context may not use it."""
        self._check_open()
        name = as_text(name, "a name of a context's memory is a str")
        with _holders.lock:
            found = self._look(name)
            other = _holders.of(self, name) if found is None else None
        if found is not None:
            return found
        if other is not None:
            message = (
                f"{shown(name)} belongs to the context {other.name!r}, from which {self.name!r} "
                "does not come: they share no memory; use a context that comes from it, or another "
                "name"
            )
            raise InvalidArgumentError(message)
        closed = [each.name for each in self.line() if each.closed]
        if closed:
            message = f"{self.name}: {shown(name)} is not here, and {', '.join(closed)} is closed"
            raise ClosedError(message)
        message = f"{self.name} has no {shown(name)}; it has: {', '.join(self.names) or 'no names'}"
        raise NotFoundError(message)

    def check_use(self, name: str, user: str, *, is_written: bool) -> Named:
        """Return what a name stands for; raise if kernels may not use it so."""
        found = self.find(name)
        if is_written and not rights_of(found.memory.mode).kernels_write:
            message = (
                f"{user} writes {name!r}, which is {found.memory.mode.value}: kernels only read "
                "it; declare it otherwise, or say what is only read, as in reads=['x']"
            )
            raise InvalidArgumentError(message)
        return found

    def for_work(self, name: str, deed: str) -> TrackedBuffer:
        """Return the target of a device's fill or copy; raise if it may not be written."""
        found = self.find(name)
        if found.buffer is None or found.memory.mode is MemoryMode.CONSTANT:
            refuse(name, found.memory.mode, deed, self.name)
        return found.buffer

    def allocate_all(self, wanted: Mapping[str, Memory]) -> None:
        """Make the declarations that a routine brings along."""
        rule = "link: allocate is a mapping of names to hal.flow.Memory"
        for name, memory in as_mapping(wanted, rule).items():
            if not isinstance(memory, Memory):
                message = f"allocate: {shown(name)} is a hal.flow.Memory, not {shown(memory)}"
                raise ArgumentTypeError(message)
            self.allocate(name, memory.size, dtype=memory.dtype, mode=memory.mode)

    # Inside

    def _look(self, name: str) -> Named | None:
        for each in self.line():
            found = each.own.get(name)
            if found is not None:
                return found
        return None

    def _allocate(self, memory: Memory) -> TrackedBuffer | None:
        if memory.mode is MemoryMode.LOCAL:
            return None
        return self.flow.allocate(memory.size, dtype=memory.dtype, device=self.device)

    def _declare(
        self,
        name: str,
        memory: Memory,
        make: Callable[[], TrackedBuffer | None],
        *,
        has_content: bool = True,
        is_lent: bool = False,
    ) -> None:
        """Give a name memory, unless it has that very memory already."""
        name = as_name(name, "memory")
        if not name:
            message = "the name of memory has at least one letter"
            raise InvalidArgumentError(message)
        if has_content and memory.mode is MemoryMode.LOCAL:
            message = f"{name!r} is local: it has no content before a call; use allocate"
            raise InvalidArgumentError(message)
        if self._has(name, memory, has_content=has_content):
            return
        named = Named(memory, make(), self.name, is_lent)  # slow: under no lock
        try:
            with _holders.lock:
                self._claim(name, named, has_content=has_content)
        finally:
            if self.own.get(name) is not named:
                named.close()

    def _claim(self, name: str, named: Named, *, has_content: bool) -> None:
        """Claim a name, unless another thread has declared the same; under the lock."""
        if self._has(name, named.memory, has_content=has_content):
            return
        if named.buffer is not None:
            other = _holders.of(self, name)
            if other is not None:
                message = (
                    f"{name!r} belongs to the context {other.name!r}, from which {self.name!r} "
                    "does not come; declare it in a context that both come from, or use another "
                    "name"
                )
                raise InvalidArgumentError(message)
        if named.is_lent:
            self._check_alone(name, named)
        self.own[name] = named
        if named.buffer is not None:
            _holders.take(self, name)

    def _check_alone(self, name: str, named: Named) -> None:
        """Raise if memory that kernels only read would have a name of another mode; the lock."""
        assert named.buffer is not None  # noqa: S101 - it was adopted
        for other, known in _holders.sharing(self, named.buffer):
            if known.memory.mode is named.memory.mode:
                continue
            for mode in (named.memory.mode, known.memory.mode):
                if not rights_of(mode).kernels_write:
                    message = (
                        f"adopt {name!r}: some of these bytes are {other!r} in {known.owner!r}, "
                        f"and what is {mode.value} has no name of another mode, through which it "
                        "could be written; use that mode, or other bytes"
                    )
                    raise InvalidArgumentError(message)

    def _has(self, name: str, memory: Memory, *, has_content: bool) -> bool:
        """Return whether a name has such memory already; raise if it cannot get it."""
        self._check_open()
        found = self._look(name)
        if found is None:
            return False
        if has_content:
            message = f"{name!r} has its content already, in {found.owner!r}; use write"
            raise InvalidArgumentError(message)
        if found.memory != memory:
            message = (
                f"{name!r} is declared as {found.memory} in {found.owner!r}, and as {memory} here; "
                "use one declaration, or another name"
            )
            raise InvalidArgumentError(message)
        return True

    def _for_host(self, name: str, deed: str, *, is_written: bool) -> TrackedBuffer:
        found = self.find(name)
        rights = rights_of(found.memory.mode)
        if found.buffer is None or not (rights.host_writes if is_written else rights.host_reads):
            refuse(name, found.memory.mode, deed, self.name)
        return found.buffer

    def _check_open(self) -> None:
        if self._closed:
            message = f"the context {self.name!r} is closed"
            raise ClosedError(message)
        self.flow.check_open()
