"""The functions of a device's call table, and a hold on native streams, through ctypes."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any, Final, Self

from hal.native import CallTable, NativeDevice

__all__ = ["Calls", "Holds", "arguments_of"]

_P: Final = ctypes.c_void_p
_SIZE: Final = ctypes.c_size_t
_UNSIGNED: Final = ctypes.c_uint
_SHAPES: Final[dict[str, tuple[Any, ...]]] = {
    "record_event": (_P, _P),
    "wait_event": (_P, _P, _UNSIGNED),
    "query_event": (_P,),
    "query_stream": (_P,),
    "await_event": (_P, ctypes.c_uint64),
    "fill_8": (_SIZE, ctypes.c_ubyte, _SIZE, _P),
    "fill_16": (_SIZE, ctypes.c_ushort, _SIZE, _P),
    "fill_32": (_SIZE, _UNSIGNED, _SIZE, _P),
    "copy": (_SIZE, _SIZE, _SIZE, _P),
    "launch": (_P, *[_UNSIGNED] * 7, _P, _P, _P),
    "launch_graph": (_P, _P),
    "current": (_P,),
    "exchange_capture_mode": (_P,),
    "allocate_async": (_P, _SIZE, _P, _P),
    "free_async": (_SIZE, _P),
    "update_launch": (_P, _P, ctypes.c_char_p),
}
_WRAPPED: Final = frozenset(
    {"query_event", "query_stream", "current", "allocate_async", "free_async"}
)
_RELAXED: Final = 2


class Calls:
    """The functions of a call table, with the names and the arguments that the table gives them.

    Each returns its status, and keeps the interpreter lock, as the core does.
    """

    record_event: Callable[..., int]
    wait_event: Callable[..., int]
    await_event: Callable[..., int] | None
    fill_8: Callable[..., int]
    fill_16: Callable[..., int]
    fill_32: Callable[..., int]
    copy: Callable[..., int] | None
    launch: Callable[..., int]
    launch_graph: Callable[..., int]
    update_launch: Callable[..., int]

    def __init__(self, table: CallTable) -> None:
        self.table = table
        for name, shape in _SHAPES.items():
            address = getattr(table, name)
            function = ctypes.PYFUNCTYPE(ctypes.c_int, *shape)(address) if address else None
            setattr(self, f"_{name}" if name in _WRAPPED else name, function)

    def current(self) -> int:
        """Return what is current on this thread, as the core reads it; `context` without a call."""
        if not self.table.current:
            return self.table.context
        found = ctypes.c_uint64(0)
        _succeed(self._current(ctypes.addressof(found)))  # type: ignore[attr-defined]
        return found.value

    def query_event(self, event: int) -> int:
        """Return the status of an event, asked in the relaxed capture mode, as the core asks."""
        return self._relaxed(self._query_event, event)  # type: ignore[attr-defined]

    def query_stream(self, stream: int) -> int:
        """Return the status of a stream, asked in that mode."""
        return self._relaxed(self._query_stream, stream)  # type: ignore[attr-defined]

    def allocate_async(self, stream: int, size: int) -> tuple[int, int]:
        """Return the status, and the address of memory of the pool, in that mode."""
        address = ctypes.c_uint64(0)
        status = self._relaxed(
            self._allocate_async,  # type: ignore[attr-defined]
            ctypes.addressof(address),
            size,
            self.table.pool,
            stream,
        )
        return status, address.value

    def free_async(self, address: int, stream: int) -> int:
        """Return the status of a free, in that mode."""
        return self._relaxed(self._free_async, address, stream)  # type: ignore[attr-defined]

    def _relaxed(self, function: Callable[..., int], *arguments: int) -> int:
        mode = ctypes.c_int(_RELAXED)
        exchange = self.exchange_capture_mode  # type: ignore[attr-defined]
        if exchange:
            _succeed(exchange(ctypes.addressof(mode)))
        try:
            return function(*arguments)
        finally:
            if exchange:
                _succeed(exchange(ctypes.addressof(mode)) or mode.value - _RELAXED)


class Holds:
    """Holds native streams, each by a function on a driver's thread, until `open`, or the end."""

    _libc: Final = ctypes.CDLL(None)
    _immortal: Final[list[object]] = []
    """A driver may still be in the function when the holds are gone."""

    def __init__(self, native: NativeDevice) -> None:
        self._native = native
        self._semaphore = ctypes.create_string_buffer(64)
        self._immortal.append(self._semaphore)
        self._libc.sem_init(self._semaphore, 0, 0)
        self._held = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.open()

    def hold(self, stream: int) -> None:
        """Let the stream's later work wait."""
        function = ctypes.cast(self._libc.sem_wait, ctypes.c_void_p).value or 0
        self._held += 1
        self._native.notify(stream, function, ctypes.addressof(self._semaphore))

    def open(self) -> None:
        """Let all streams go on."""
        while self._held:
            self._held -= 1
            self._libc.sem_post(self._semaphore)


def _succeed(status: int) -> None:
    if status:
        message = f"a function of the call table returned {status}"
        raise RuntimeError(message)


def arguments_of(*values: Any) -> tuple[int, object]:  # noqa: ANN401 - objects of ctypes
    """Return the address that a launch takes for values of ctypes, and what keeps it alive."""
    pointers = (ctypes.c_void_p * max(len(values), 1))(*map(ctypes.addressof, values))
    return ctypes.addressof(pointers), (pointers, values)
