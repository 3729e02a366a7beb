"""The C runtime: built, loaded, and with a Python interface.

The only module that calls C. `runtime.c` documents each function.
"""

from __future__ import annotations

import _ctypes
import ctypes
import errno
import functools
import os
import platform
import struct
import sys
from collections.abc import Callable
from typing import Any, Final

from hal.errors import BackendUnavailableError, OperationError
from hal.handlers import dropped, own
from hal.native import CallTable
from hal_cpu import _build, _image, _system

FILL: Final = 2
"""The kinds of work.h that a mailbox or a graph's node may name."""
COPY: Final = 3
WAIT: Final = 4
CALL: Final = 5
LAUNCH: Final = 6
INDIRECT: Final = 7
EMPTY: Final = 8
GRAPH: Final = 9

SLOTS: Final = 1 << 12
"""What a stream's handle is divided by: the rest is its slot, which is less."""

_INT, _SIZE, _U32, _U64 = ctypes.c_int, ctypes.c_size_t, ctypes.c_uint32, ctypes.c_uint64
_POINTER, _LETTERS = ctypes.c_void_p, ctypes.c_char_p

ENDED: Final = 2**64 - 1
"""The value in the place of an event that was destroyed."""


class Library:
    """A loaded shared object.

    Attributes
    ----------
    handle
        The result of ``dlopen``.
    path
        The name it was loaded by.
    """

    __slots__ = ("_descriptor", "handle", "path")

    def __init__(self, path: str, descriptor: int = -1) -> None:
        """Load it, with all symbols resolved now and hidden from other objects.

        `descriptor` is the file descriptor that the path names, which is the
        object's from now on, or -1. Raises `OperationError` with the loader's reason.
        """
        try:
            self.handle: int = _ctypes.dlopen(path, os.RTLD_NOW | os.RTLD_LOCAL)
        except own(OSError) as error:
            reason = str(error).removeprefix(f"{path}: ")
            message = f"the system's loader refuses the image: {reason}"
            raise OperationError(message, native_name="dlopen") from error
        self.path, self._descriptor = path, descriptor

    def address(self, name: str) -> int:
        """Return the address of a symbol that it is known to export."""
        # Not through `ctypes.CDLL`: it makes a class each time, which takes longer than to load.
        return _ctypes.dlsym(self.handle, name)

    def unload(self) -> None:
        """Unload it; nothing uses it any more."""
        _ctypes.dlclose(self.handle)
        if self._descriptor < 0:
            return
        # The loader distinguishes objects by name. One that it keeps for reasons of
        # its own must keep its descriptor too, or a later image under the same
        # number would be taken for it.
        try:
            kept = _ctypes.dlopen(self.path, os.RTLD_NOLOAD | os.RTLD_NOW)
        except own(OSError):
            os.close(self._descriptor)
        else:
            _ctypes.dlclose(kept)


def _check_platform() -> None:
    """Raise `BackendUnavailableError` on a platform that is not supported."""
    if not sys.platform.startswith("linux") or struct.calcsize("P") != 8:  # noqa: PLR2004
        message = f"the cpu backend runs on 64-bit Linux, and this is {platform.platform()}"
        raise BackendUnavailableError(message)


class KernelRecord(ctypes.Structure):
    """The layout of ``struct hal_kernel`` of image.h."""

    _fields_ = (
        ("abi", ctypes.c_uint),
        ("flags", ctypes.c_uint),
        ("name", ctypes.c_char_p),
        ("run", ctypes.c_void_p),
        ("max_threads", ctypes.c_uint),
        ("static_shared_memory", ctypes.c_uint),
        ("argument_bytes", ctypes.c_uint),
        ("parameter_count", ctypes.c_uint),
        ("sizes", ctypes.POINTER(ctypes.c_uint)),
        ("offsets", ctypes.POINTER(ctypes.c_uint)),
    )


def has_sanitizer(option: str) -> bool:
    """Return whether the library of a ``-fsanitize=`` is in the process."""
    return hasattr(ctypes.CDLL(None), _image.SANITIZERS[option])


def read_text(address: int) -> str:
    """Return the C string at an address."""
    return ctypes.string_at(address).decode(errors="replace")


def load_library(content: bytes) -> Library:
    """Load a shared object from memory.

    With ``HAL_CPU_DEBUG_DIR`` in the environment it is loaded from a file in
    that directory, which stays, so that a debugger finds it.

    Raises `OperationError` with the loader's reason if it fails.
    """
    debug = os.environ.get("HAL_CPU_DEBUG_DIR", "")
    if debug:
        import tempfile  # noqa: PLC0415 - here alone

        descriptor, path = tempfile.mkstemp(prefix="image-", suffix=".so", dir=debug)
        os.close(descriptor)
        return _load_from_file(content, path)
    try:
        descriptor = os.memfd_create("hal-cpu", os.MFD_CLOEXEC)
    except own(OSError):
        return _load_from_directory(content)
    try:
        with open(descriptor, "wb", closefd=False) as file:
            file.write(content)
        return Library(f"/proc/self/fd/{descriptor}", descriptor)
    except own(OperationError):
        os.close(descriptor)
        # Some systems refuse to run code from such memory.
        return _load_from_directory(content)
    except BaseException:
        os.close(descriptor)
        raise


def _load_from_directory(content: bytes) -> Library:
    """Load a shared object through a file that is gone when this returns."""
    from hal_cpu import _toolchain  # noqa: PLC0415 - few systems need it

    with (
        _system.refusals("the image cannot be put where it can be loaded"),
        _toolchain.work_directory() as directory,
    ):
        return _load_from_file(content, str(directory / "image.so"))


def _load_from_file(content: bytes, path: str) -> Library:
    """Write a shared object to a file and load it."""
    with open(path, "wb") as file:
        file.write(content)
    return Library(path)


class Runtime:
    """The runtime's functions, which C documents, and the memory it shares with Python.

    Attributes
    ----------
    progress
        Words of 64 bits; stream s has completed ``progress[16 * s]`` records
        of the ``progress[16 * s + 8]`` that were enqueued. ``progress[16 * s + 1]`` is the
        number of the oldest one that failed, or 2**64 - 1.
    events
        Words of 64 bits, one for each event: an index in `progress` in the lowest 16 bits, and the
        value that it stands for in the others. 0 where no event has been.
    mailboxes
        Bytes; the next work of `enqueue` for stream s stands at ``64 * s``. A stream that was
        adopted has another handle, and so another mailbox: its slot, and `SLOTS` times the
        mailbox's number.
    enqueue, try_update_graph
        As the functions of C; they keep the interpreter lock.
    stamp_function
        The address of ``hal_cpu_stamp``, for a stream to call.
    calls
        The call table, for all devices.
    fence
        Order reads of `progress` before later reads; None where the
        processor does so by itself.
    description
        The compiler that built it.
    """

    def __init__(self, library: Library) -> None:
        """Start the runtime, which the library is."""
        # The same object with and without releasing the interpreter lock: a call
        # of less than a microsecond must not hand the lock around.
        free_lock = ctypes.CDLL(library.path, handle=library.handle)
        keep_lock = ctypes.PyDLL(library.path, handle=library.handle)

        free_lock.hal_cpu_start(_system.processor_count())
        for name, (result, arguments) in _FUNCTIONS.items():
            function = getattr(free_lock, f"hal_cpu_{name}")
            function.restype, function.argtypes = result, arguments
        keep_lock.hal_cpu_fence.restype = None
        self.progress = _table(free_lock, "progress", 16)
        self.events = _table(free_lock, "events", 1)
        self.mailboxes = _table(free_lock, "mailboxes", 8).cast("B")
        # No argtypes here: ctypes passes a small int and bytes faster without.
        self.enqueue: Callable[[int], int] = keep_lock.hal_cpu_enqueue
        self.create_stream: Callable[[int], int] = free_lock.hal_cpu_stream_create
        self.destroy_stream: Callable[[int], int] = free_lock.hal_cpu_stream_destroy
        self.synchronize: Callable[[int, int, int], int] = free_lock.hal_cpu_synchronize
        self.allocate: Callable[[int], int | None] = free_lock.hal_cpu_allocate
        self.free: Callable[[int], None] = free_lock.hal_cpu_free
        self.notify_event: Callable[[int, int, int], int] = free_lock.hal_cpu_notify_event
        self.fault: Callable[[int, int, object, int], None] = free_lock.hal_cpu_fault
        self.forget_faults: Callable[[int, int], None] = free_lock.hal_cpu_forget_faults
        self.stamp_function = library.address("hal_cpu_stamp")
        self.create_graph: Callable[[int, bytes, bytes, bytes, object], int] = (
            free_lock.hal_cpu_graph_create
        )
        self.destroy_graph: Callable[[int], None] = free_lock.hal_cpu_graph_destroy
        self.instantiate_graph: Callable[[int, int], int] = free_lock.hal_cpu_graph_instantiate
        self.destroy_graph_instance: Callable[[int], None] = (
            free_lock.hal_cpu_graph_instance_destroy
        )
        self.update_graph: Callable[[bytes], int] = free_lock.hal_cpu_graph_update
        self.try_update_graph: Callable[[bytes], int] = keep_lock.hal_cpu_graph_update
        self.calls = _call_table(library)
        has_order = platform.machine() in {"x86_64", "AMD64"}
        self.fence: Callable[[], None] | None = None if has_order else keep_lock.hal_cpu_fence
        self.description = read_text(library.address("hal_cpu_compiler"))


@functools.cache
def load_runtime() -> Runtime:
    """Build the runtime, or take it from the cache, and load it; once per process.

    The backend's probe: only a runtime that was built and loaded tells that the backend works.

    Raises `BackendUnavailableError` when there is no compiler or it fails.
    """
    _check_platform()
    # Images that were linked against no library take the mathematics from here.
    with dropped(OSError):
        _ctypes.dlopen("libm.so.6", os.RTLD_NOW | os.RTLD_GLOBAL)
    with _system.refusals("the cpu backend's runtime cannot be built", BackendUnavailableError):
        library = load_library(_build.runtime())
    return Runtime(library)


_FUNCTIONS: Final[dict[str, tuple[Any, tuple[Any, ...]]]] = {
    "synchronize": (_INT, (_U32, _U64, ctypes.c_int64)),
    "allocate": (_POINTER, (_U64,)),
    "free": (None, (_POINTER,)),
    "notify_event": (_INT, (_U64, _POINTER, _POINTER)),
    "fault": (None, (_U32, _U64, _POINTER, _U64)),
    "forget_faults": (None, (_U32, _U64)),
    "graph_create": (_SIZE, (_U32, _LETTERS, _LETTERS, _LETTERS, _POINTER)),
    "graph_destroy": (None, (_POINTER,)),
    "graph_instantiate": (_SIZE, (_POINTER, _U64)),
    "graph_instance_destroy": (None, (_POINTER,)),
}
"""The result and the arguments of functions that take or return more than an ``int``."""


def _table(library: ctypes.CDLL, name: str, words: int) -> memoryview:
    """Return a table of the runtime's in words of 64 bits, of which each entry has so many."""
    find, count = getattr(library, f"hal_cpu_{name}"), ctypes.c_int()
    find.restype = _POINTER
    address = find(ctypes.byref(count))
    return memoryview((_U64 * (words * count.value)).from_address(address)).cast("B").cast("Q")


def _call_table(library: Library) -> CallTable:
    """Return the functions of enqueue.h, which any thread may call."""
    first = CallTable._fields[: CallTable._fields.index("current")]
    functions = (*first, "update_launch", "copy", "call", "await_event")
    addresses = {field: library.address(f"hal_cpu_{field}") for field in functions}
    return CallTable(**addresses, current=0, context=0, not_ready=errno.EAGAIN)
