"""The only module that touches the library: its functions by ctypes, and its errors.

NCCL's and RCCL's C interface of 2.10 and later. ctypes lets the interpreter lock go in calls.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from typing import Any, Final

from hal.errors import BackendUnavailableError, CollectiveError, InvalidArgumentError
from hal.handlers import own

ID_BYTES: Final = 128
TYPES: Final = {
    "int8": 0,
    "uint8": 1,
    "int32": 2,
    "uint32": 3,
    "int64": 4,
    "uint64": 5,
    "float16": 6,
    "float32": 7,
    "float64": 8,
    "bfloat16": 9,
}
BYTE: Final = TYPES["uint8"]
OPS: Final = {"sum": 0, "product": 1, "max": 2, "min": 3, "average": 4}
_ERRORS: Final = {
    1: "ncclUnhandledCudaError",
    2: "ncclSystemError",
    3: "ncclInternalError",
    4: "ncclInvalidArgument",
    5: "ncclInvalidUsage",
    6: "ncclRemoteError",
    7: "ncclInProgress",
}
IN_PROGRESS: Final = 7
_NO_COLOR: Final = -1


class UniqueId(ctypes.Structure):
    """An ``ncclUniqueId``, which is passed by value."""

    _fields_ = (("internal", ctypes.c_byte * ID_BYTES),)


_POINTER = ctypes.c_void_p
_SIZE = ctypes.c_size_t
_INT = ctypes.c_int
_SIGNATURES: Final[dict[str, tuple[Any, ...]]] = {
    "ncclGetUniqueId": (ctypes.POINTER(UniqueId),),
    "ncclCommInitRank": (ctypes.POINTER(_POINTER), _INT, UniqueId, _INT),
    "ncclCommDestroy": (_POINTER,),
    "ncclCommAbort": (_POINTER,),
    "ncclCommGetAsyncError": (_POINTER, ctypes.POINTER(_INT)),
    "ncclAllReduce": (_POINTER, _POINTER, _SIZE, _INT, _INT, _POINTER, _POINTER),
    "ncclReduce": (_POINTER, _POINTER, _SIZE, _INT, _INT, _INT, _POINTER, _POINTER),
    "ncclBroadcast": (_POINTER, _POINTER, _SIZE, _INT, _INT, _POINTER, _POINTER),
    "ncclReduceScatter": (_POINTER, _POINTER, _SIZE, _INT, _INT, _POINTER, _POINTER),
    "ncclAllGather": (_POINTER, _POINTER, _SIZE, _INT, _POINTER, _POINTER),
    "ncclSend": (_POINTER, _SIZE, _INT, _INT, _POINTER, _POINTER),
    "ncclRecv": (_POINTER, _SIZE, _INT, _INT, _POINTER, _POINTER),
    "ncclGroupStart": (),
    "ncclGroupEnd": (),
}
_ALL_TO_ALL: Final = "ncclAlltoAll", "ncclAllToAll"
"""NCCL's from 2.28 on, and RCCL's."""


class Library:
    """The library's functions; each raises for a result other than success."""

    def __init__(self, path: str, name: str) -> None:
        self.name = name
        try:
            self._library = ctypes.CDLL(path)
            for function, arguments in _SIGNATURES.items():
                found = getattr(self._library, function)
                found.argtypes, found.restype = arguments, _INT
        except own(OSError, AttributeError) as error:
            message = f"{name.upper()}'s library {path} cannot be used: {error}"
            raise BackendUnavailableError(message) from error
        # The function for an ``all_to_all``; "" where it takes sends and receives
        self.all_to_all = next((each for each in _ALL_TO_ALL if hasattr(self._library, each)), "")
        if self.all_to_all:
            found = getattr(self._library, self.all_to_all)
            found.argtypes, found.restype = _SIGNATURES["ncclAllGather"], _INT
        self._explain: Callable[[Any], bytes] | None = None
        if hasattr(self._library, "ncclGetLastError"):  # from 2.13 on
            self._explain = self._library.ncclGetLastError
            self._explain.argtypes, self._explain.restype = (_POINTER,), ctypes.c_char_p

    def call(self, function: str, *arguments: Any) -> None:  # noqa: ANN401 - as the function's
        """Call a function; raise its error."""
        result = getattr(self._library, function)(*arguments)
        if result not in {0, IN_PROGRESS}:
            raise self.error(function, result)

    def address_of(self, function: str) -> int:
        """Return the address of a function."""
        return ctypes.cast(getattr(self._library, function), _POINTER).value or 0

    def error(self, what: str, result: int) -> CollectiveError | InvalidArgumentError:
        """Return the error for a result."""
        name = _ERRORS.get(result, f"ncclResult_t {result}")
        text = b"" if self._explain is None else self._explain(None) or b""
        told = text.decode(errors="replace").strip()
        if "Duplicate GPU" in told:
            message = f"a device is in the group twice: {told}; give each rank one of its own"
            return InvalidArgumentError(message, native_name=name, native_code=result)
        message = f"{self.name.upper()}'s {what} failed with {name}{f': {told}' if told else ''}"
        return CollectiveError(message, native_name=name, native_code=result)

    def unique_id(self) -> bytes:
        """Return a new identity of a group."""
        made = UniqueId()
        self.call("ncclGetUniqueId", ctypes.byref(made))
        return bytes(made)

    def init(self, size: int, identity: bytes, rank: int) -> int:
        """Return a communicator; blocks until all ranks have called."""
        made = ctypes.c_void_p()
        given = UniqueId.from_buffer_copy(identity)
        self.call("ncclCommInitRank", ctypes.byref(made), size, given, rank)
        return made.value or 0

    def split(self, comm: int, color: int | None, key: int) -> int:
        """Return a rank's part of a communicator, 0 for none; blocks until all have called."""
        made = ctypes.c_void_p()
        try:
            function = self._library.ncclCommSplit
        except own(AttributeError) as error:
            message = f"this {self.name.upper()} cannot split groups; use 2.18 or later"
            raise BackendUnavailableError(message) from error
        function.argtypes = (_POINTER, _INT, _INT, ctypes.POINTER(_POINTER), _POINTER)
        chosen = _NO_COLOR if color is None else color
        self.call("ncclCommSplit", comm, chosen, key, ctypes.byref(made), None)
        return made.value or 0

    def abort(self, comm: int) -> None:
        """End a communicator, if there is one, whatever the other ranks do."""
        if comm:
            self.call("ncclCommAbort", comm)

    def rank_of(self, comm: int) -> tuple[int, int]:
        """Return a communicator's rank and size."""
        rank, size = _INT(), _INT()
        for function, place in (("ncclCommUserRank", rank), ("ncclCommCount", size)):
            getattr(self._library, function).argtypes = (_POINTER, ctypes.POINTER(_INT))
            self.call(function, comm, ctypes.byref(place))
        return rank.value, size.value

    def failure(self, comm: int) -> CollectiveError | InvalidArgumentError | None:
        """Return a communicator's asynchronous error."""
        found = _INT()
        self.call("ncclCommGetAsyncError", comm, ctypes.byref(found))
        if found.value in {0, IN_PROGRESS}:
            return None
        return self.error("work on the device", found.value)


@cache
def load(path: str, name: str) -> Library:
    """Return the library, loaded once."""
    return Library(path, name)
