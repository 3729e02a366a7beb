"""Contexts: the named memory of a device, with which programs are linked."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterator, Mapping
from typing import Any, Final, Self
from weakref import WeakSet

import numpy as np
from numpy.typing import DTypeLike

import hal
from hal.arguments import as_array, as_dtype, as_flag, as_int, as_name, as_text, shown
from hal.errors import ArgumentTypeError, ClosedError, InvalidArgumentError, NotFoundError
from hal.flow.buffers import TrackedBuffer
from hal.flow.contexts.routine import Local, Routine, Step, bind
from hal.flow.flow import Flow
from hal.flow.locks import make_lock
from hal.flow.modes import MemoryMode, as_mode
from hal.flow.scheduler import AnyDevice
from hal.flow.virtual import name_of


class Context(Mapping[str, TrackedBuffer]):
    """The named memory of one device: a mapping of names to tracked buffers.

    A context sees its own names and those of its ancestors, which it shares. Unrelated contexts
    may have the same names. What a name's `MemoryMode` does not allow raises
    `InvalidArgumentError`. Names that are local to a call have no buffer outside of one, and
    are no part of the mapping. Any thread may use a context.

    `flow` runs the work, `device` is one of its devices (None for the first), and `name` stands
    in errors. `parent` is the parent context, or None; `closed` is whether it was closed.
    """

    def __init__(
        self, flow: Flow, *, device: AnyDevice | None = None, name: str = "context"
    ) -> None:
        if not isinstance(flow, Flow):
            raise ArgumentTypeError(f"Context takes a hal.flow.Flow, not {type(flow).__name__}")
        flow.check_open()
        self.flow: Final = flow
        self.device: Final = flow.lanes_of(device).device
        self.name: Final = as_name(name, "a context")
        self.parent: Context | None = None
        self._names: ChainMap[str, TrackedBuffer] = ChainMap({})  # with those of the ancestors
        self._locals: ChainMap[str, Local] = ChainMap({})
        self._memory: list[TrackedBuffer] = []  # to close
        self._routines: WeakSet[Routine] = WeakSet()  # its own, and those of its descendants
        self._lock = make_lock()  # of all related contexts
        self.closed = False

    def child(self, name: str = "child") -> Context:
        """Return a child of this context."""
        self._check_open()
        own = as_name(name, "a context")
        made = Context(self.flow, device=self.device, name=f"{self.name}/{own}")
        made.parent, made._lock = self, self._lock
        made._names, made._locals = self._names.new_child(), self._locals.new_child()
        return made

    def __getitem__(self, name: str) -> TrackedBuffer:
        """Return a name's buffer; raise `NotFoundError`, or `InvalidArgumentError` for a local."""
        found = self._find(name)
        if not isinstance(found, TrackedBuffer):
            raise InvalidArgumentError(f"{name!r} is local to a call: its bytes are gone after it")
        return found

    def get(self, name: str, default: Any = None) -> Any:  # noqa: ANN401 - as a dict's
        """Return a name's buffer, or `default` if there is none."""
        return self._names.get(as_text(name, "a name of a context's memory is a str"), default)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and as_text(name, "a name is a str") in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(dict(self._names))

    def __len__(self) -> int:
        return len(self._names)

    def allocate(
        self,
        name: str,
        size: int,
        *,
        dtype: DTypeLike = np.uint8,
        mode: str | MemoryMode = MemoryMode.DEVICE,
        clear: bool = False,
    ) -> TrackedBuffer | None:
        """Declare a name with memory of `size` bytes: zeros with `clear`, undefined without.

        Returns the buffer; None for a local, of which each call of a routine has its own. Raises
        `InvalidArgumentError` for a constant, for a size that is not a whole number of
        elements, and for a name that it has already.
        """
        element, kind = as_dtype(dtype), as_mode(mode)
        length = as_int(size, "the size of a name's memory is a number of bytes")
        if element.hasobject or not element.itemsize or length < 0 or length % element.itemsize:
            message = f"{shown(name)}: {shown(length)} bytes are no whole number of {element}"
            raise InvalidArgumentError(message)
        with self._lock:
            name = self._checked(name, kind, has_content=False)
            if kind is MemoryMode.LOCAL:
                self._locals[name] = Local(name, length, element, as_flag(clear, "allocate: clear"))
                return None
        own = self.flow.allocate(length, dtype=element, device=self.device, clear=clear)
        return self._keep(name, own, kind)

    def from_host(
        self, name: str, array: object, *, mode: str | MemoryMode = MemoryMode.HOSTED
    ) -> TrackedBuffer:
        """Declare a name with the content, the type and the shape of an array.

        Returns the buffer at once; the array may change then. Raises `InvalidArgumentError`
        for a local, and for a name that it has already.
        """
        host, kind = as_array(array, "from_host"), as_mode(mode)
        name = self._checked(name, kind)
        return self._keep(name, self.flow.from_host(host, self.device, hold=False), kind)

    def adopt(
        self, name: str, buffer: TrackedBuffer, *, mode: str | MemoryMode = MemoryMode.HOSTED
    ) -> TrackedBuffer:
        """Declare a name for a buffer of the flow, which stays the caller's too.

        The mode is that of the buffer that this returns. Raises as `from_host`, and
        for bytes that another name has in another mode, in any context, if
        kernels only read one of both: a constant, or volatile memory.
        """
        kind = as_mode(mode)
        self.flow.check(buffer, f"adopt {shown(name)}")
        if buffer.device is not self.device:
            raise InvalidArgumentError(
                f"{self.name}: adopt {shown(name)}: the buffer is on {buffer.device!r}, and the "
                f"context on {self.device!r}; copy it first, with flow.device_to_device"
            )
        with self._lock:
            name = self._checked(name, kind)
            return self._names.setdefault(name, buffer.named(name, kind))

    def link(self, code: hal.Program | hal.Executable | None, *steps: Step) -> Routine:
        """Bind kernels to names of this context; return a routine that runs them in order.

        `code` is a program, which is loaded on the device unless it is already, an
        executable, or None if each step has its kernel. Raises `NotFoundError` without such a
        kernel or name, `InvalidArgumentError` if a mode does not allow what a kernel does with a
        name, if a local is read before it was written, or what is merged is written.
        """
        self._check_open()
        loaded = self.device.load(code) if isinstance(code, hal.Program) else code
        bound = bind(loaded, steps, self._find)
        kernels = "+".join(step.kernel.name for step in bound)
        routine = Routine(self.flow, self.device, f"{self.name}/{kernels}", bound)
        with self._lock:
            self._check_open()
            for each in self._line():
                each._routines.add(routine)
        return routine

    def close(self) -> None:
        """Release this context's own memory, once all that uses it has ended, and its names.

        Its descendants, and the routines that were linked with them or with it, raise
        `ClosedError` from now on. May be called twice.
        """
        with self._lock:
            self.closed = True
            memory, self._memory = self._memory, []
            for name in self._names.maps[0].values():
                name.forget_name()
            self._names.clear()
            for routine in self._routines:
                routine.end(self.name)
        for each in memory:
            each.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        names = "closed" if self.closed else ", ".join(self)
        return f"<Context {self.name} on {name_of(self.device)}: {names}>"

    def _line(self) -> list[Context]:
        """Return this context and its ancestors, the nearest first."""
        return [self, *(() if self.parent is None else self.parent._line())]

    def _find(self, name: str) -> TrackedBuffer | Local:
        name = as_text(name, "a name of a context's memory is a str")
        self._check_open()
        if (found := self._names.get(name) or self._locals.get(name)) is not None:
            return found
        has = ", ".join(self) or "no names"
        raise NotFoundError(f"{self.name} has no {shown(name)}; it has: {has}")

    def _checked(self, name: str, mode: MemoryMode, *, has_content: bool = True) -> str:
        """Return a name that can be declared; raise for others."""
        self._check_open()
        name = as_name(name, "memory")
        if not name:
            raise InvalidArgumentError(f"{self.name}: the name of memory has a letter or more")
        if name in self._names or name in self._locals:
            message = f"{self.name} has {name!r} already; use that, or give another name"
            raise InvalidArgumentError(message)
        if has_content and mode is MemoryMode.LOCAL:
            message = f"{self.name}: {name!r} is a local, which has no content before a call"
            raise InvalidArgumentError(f"{message}; declare it with allocate")
        if not has_content and mode is MemoryMode.CONSTANT:
            message = f"{self.name}: {name!r} is a constant, which has its content from the start"
            raise InvalidArgumentError(f"{message}; declare it with from_host or adopt")
        return name

    def _keep(self, name: str, own: TrackedBuffer, mode: MemoryMode) -> TrackedBuffer:
        """Give memory, which was made under no lock, a name, unless that was taken meanwhile."""
        with self._lock:
            self._checked(name, mode)
            self._memory.append(own)
            return self._names.setdefault(name, own.named(name, mode))

    def _check_open(self) -> None:
        for each in self._line():
            if each.closed:
                raise ClosedError(f"the context {each.name!r} is closed")
        self.flow.check_open()
