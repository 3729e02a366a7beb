"""DLPack's C structures: export capsules, and import those of other libraries.

Exported capsules are numpy's own, over an array at the buffer's address,
with what numpy cannot know (which device it is) written into them. So deleter
and destructor are C code, which may run without the interpreter lock, in the
middle of an exception or after the interpreter's end; a Python function
behind `ctypes` may not.
"""

from __future__ import annotations

import ctypes
import math
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from hal import bfloat16
from hal._memory.blocks import Releasable
from hal._memory.views import ArrayBase
from hal.errors import ArgumentTypeError, ExchangeError
from hal.handlers import own

if TYPE_CHECKING:
    from numpy.typing import NDArray


CPU: Final = 1
HOST_DEVICE: Final = (CPU, 0)
HOST_KINDS: Final = frozenset({CPU, 3, 11, 13})
"""Types of devices whose addresses the host may read: also pinned and managed memory."""
VERSION: Final = (1, 0)
"""The version of DLPack to ask for."""

_READ_ONLY: Final = 1
_IS_COPIED: Final = 2
_DEVICES: Final = {
    1: "host memory", 2: "CUDA", 3: "pinned host memory of CUDA", 4: "OpenCL", 7: "Vulkan",
    8: "Metal", 10: "ROCm", 11: "pinned host memory of ROCm", 13: "managed memory of CUDA",
    14: "oneAPI", 15: "WebGPU",
}  # fmt: skip
_CODES: Final = {0: "i", 1: "u", 2: "f", 5: "c", 6: "b"}
_BFLOAT: Final = 4
_CODE_NAMES: Final = {3: "opaque handles"}
_NUMPY_HAS_VERSIONS: Final = np.lib.NumpyVersion(np.__version__) >= "2.1.0"


class _DLDevice(ctypes.Structure):
    _fields_ = (("kind", ctypes.c_int32), ("number", ctypes.c_int32))


class _DLTensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", _DLDevice),
        ("dimensions", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _Managed(ctypes.Structure):
    """The target of a capsule named ``dltensor``."""

    _fields_ = (("tensor", _DLTensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p))


class _Versioned(ctypes.Structure):
    """The target of a capsule named ``dltensor_versioned``, from version 1.0 on."""

    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _DLTensor),
    )


def _function(name: str, result: Any, *arguments: Any) -> Any:  # noqa: ANN401 - ctypes' own
    # A prototype of our own: all modules share those in `ctypes.pythonapi`.
    return ctypes.PYFUNCTYPE(result, *arguments)((name, ctypes.pythonapi))


_capsule_name: Final = _function("PyCapsule_GetName", ctypes.c_char_p, ctypes.py_object)
_capsule_pointer: Final = _function(
    "PyCapsule_GetPointer", ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p
)
_rename_capsule: Final = _function(
    "PyCapsule_SetName", ctypes.c_int, ctypes.py_object, ctypes.c_char_p
)
_PLAIN: Final = b"dltensor"
_WITH_VERSION: Final = b"dltensor_versioned"
# A capsule keeps the address of its name, so these must never be freed.
_USED: Final = {
    _PLAIN: ctypes.c_char_p(b"used_dltensor"),
    _WITH_VERSION: ctypes.c_char_p(b"used_dltensor_versioned"),
}
_deleter: Final = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class _Claim(Releasable):
    """The owner of a tensor from a capsule; calls its deleter once."""

    __slots__ = ("_delete", "_pointer", "taken")

    def __init__(self, pointer: int, deleter: int | None) -> None:
        self.taken = False
        self._pointer = pointer
        self._delete = _deleter(deleter) if deleter else None

    def release(self) -> None:
        # A Ctrl-C may come before it has anything.
        if getattr(self, "taken", False) and self._delete is not None:
            delete, self._delete = self._delete, None
            delete(self._pointer)

    def __del__(self) -> None:
        self.release()  # of a tensor that was copied or refused


class ImportedTensor(NamedTuple):
    """A tensor that we own now."""

    owner: object  # keeps its memory alive; the last reference goes where foreign code may run
    address: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    strides: tuple[int, ...]  # bytes from one element to the next along each axis
    device: tuple[int, int]  # type and number in DLPack's terms
    read_only: bool

    @property
    def is_contiguous(self) -> bool:
        """Whether its elements are contiguous in C order, the last axis fastest."""
        wanted = packed(self.shape, self.dtype)
        along = zip(self.shape, self.strides, wanted, strict=True)
        return all(length == 1 or stride == expected for length, stride, expected in along)

    @property
    def size(self) -> int:
        """The bytes of all elements."""
        return math.prod(self.shape) * self.dtype.itemsize

    def array(self) -> NDArray[Any]:
        """Return a numpy view, which keeps the owner alive; the memory must be the host's."""
        has_bits = bfloat16.is_bfloat16(self.dtype)  # numpy's protocol has no name for the type
        kind = "<u2" if has_bits else self.dtype.str
        place = self.address, self.read_only
        array = np.asarray(ArrayBase(self.owner, kind, self.shape, self.strides, place))
        return array.view(self.dtype) if has_bits else array


def describe_device(device: tuple[int, int]) -> str:
    """Return the name of a DLPack device, given as a pair."""
    kind, number = device
    return f"{_DEVICES.get(kind, f'device type {kind}')} ({kind}, {number})"


def check_elements(dtype: np.dtype[Any]) -> None:
    """Raise `ExchangeError` for elements that DLPack has no type for."""
    if bfloat16.is_bfloat16(dtype):
        return
    if dtype.kind not in "biufc" or dtype.itemsize > (16 if dtype.kind == "c" else 8):
        raise ExchangeError(
            f"DLPack has no type for elements of {dtype}; exchange them as bytes, with "
            "buffer.subspan(0, buffer.size, dtype='u1')"
        )
    if not dtype.isnative:
        message = f"DLPack knows this machine's byte order only, and {dtype} has the other"
        raise ExchangeError(message)


def export_array(
    array: NDArray[Any],
    device: tuple[int, int],
    max_version: tuple[int, int] | None,
    *,
    is_copy: bool,
) -> object:
    """Return a new capsule over an array's memory, which belongs to `device`.

    It has a version if `max_version` allows one and numpy (from 2.1 on) can make it.
    Raises `ExchangeError` for read-only memory without a version.
    """
    versioned = _NUMPY_HAS_VERSIONS and max_version is not None and max_version >= VERSION
    if not versioned and not array.flags.writeable:
        raise ExchangeError(
            "the memory is read-only, and DLPack can say so from version 1.0 on only: ask for "
            "max_version=(1, 0) (numpy makes such capsules from 2.1 on), or for copy=True"
        )
    asked: dict[str, Any] = {"max_version": VERSION} if versioned else {}
    is_bfloat16 = bfloat16.is_bfloat16(array.dtype)
    capsule = (array.view(np.uint16) if is_bfloat16 else array).__dlpack__(**asked)
    name = _capsule_name(capsule)
    managed = (_Versioned if name == _WITH_VERSION else _Managed).from_address(
        _capsule_pointer(capsule, name)
    )
    managed.tensor.device = _DLDevice(*device)
    if is_bfloat16:
        managed.tensor.code = _BFLOAT
    if is_copy and name == _WITH_VERSION:
        managed.flags |= _IS_COPIED
    return capsule


def take_capsule(capsule: object, what: str) -> ImportedTensor:
    """Take the tensor out of a capsule, which is used up then.

    Raises `ExchangeError` for a type that numpy does not have, or a tensor of a
    future version, and `ArgumentTypeError` for anything but such a capsule, which
    stays unused then.
    """
    try:
        name = _capsule_name(capsule)
    except own(ValueError):
        name = None  # not a capsule
    if name not in _USED:
        used = name is not None and name.startswith(b"used_")
        found = "a capsule that was used already" if used else f"{type(capsule).__name__}"
        message = f"{what}: its __dlpack__ returned {found}, and not a new capsule of DLPack's"
        raise ArgumentTypeError(message)
    pointer = _capsule_pointer(capsule, name)
    read_only = False
    managed: _Versioned | _Managed
    if name == _WITH_VERSION:
        managed = _Versioned.from_address(pointer)
        if managed.major != VERSION[0]:
            message = f"{what}: it is of DLPack {managed.major}, and hal speaks {VERSION[0]}"
            raise ExchangeError(message)
        read_only = bool(managed.flags & _READ_ONLY)
    else:
        managed = _Managed.from_address(pointer)
    tensor = managed.tensor
    dtype = _dtype(tensor, what)
    shape = tuple(tensor.shape[: tensor.dimensions])
    if tensor.strides:
        strides = tuple(each * dtype.itemsize for each in tensor.strides[: tensor.dimensions])
    else:
        strides = packed(shape, dtype)
    claim = _Claim(pointer, managed.deleter)
    found_tensor = ImportedTensor(
        claim,
        (tensor.data or 0) + tensor.byte_offset,
        dtype,
        shape,
        strides,
        (tensor.device.kind, tensor.device.number),
        read_only,
    )
    # A Ctrl-C between the two leaks the tensor's memory, and frees nothing twice.
    _rename_capsule(capsule, _USED[name])
    claim.taken = True
    return found_tensor


def packed(shape: tuple[int, ...], dtype: np.dtype[Any]) -> tuple[int, ...]:
    """Return the strides in bytes of contiguous elements."""
    strides: list[int] = []
    step = dtype.itemsize
    for length in reversed(shape):
        strides.append(step)
        step *= length
    return tuple(reversed(strides))


def _dtype(tensor: _DLTensor, what: str) -> np.dtype[Any]:
    if (tensor.code, tensor.bits, tensor.lanes) == (_BFLOAT, 16, 1):
        return bfloat16.dtype()
    code = _CODES.get(tensor.code)
    if code is not None and tensor.lanes == 1 and tensor.bits % 8 == 0:
        try:
            return np.dtype(f"{code}{tensor.bits // 8}")
        except own(TypeError):
            pass
    name = _CODE_NAMES.get(tensor.code, f"DLPack's type code {tensor.code}")
    raise ExchangeError(
        f"{what}: numpy has no type for its elements ({name}, {tensor.bits} bits, {tensor.lanes} "
        "lanes); view them as integers of that size first, as in tensor.view(torch.int16)"
    )


def check_copy(copy: object) -> None:
    """Raise unless `copy` is as ``__dlpack__`` and ``__array__`` have it."""
    if copy is not None and not isinstance(copy, (bool, np.bool_)):
        message = f"copy is True, False or None (where it must be), not {type(copy).__name__}"
        raise ArgumentTypeError(message)
