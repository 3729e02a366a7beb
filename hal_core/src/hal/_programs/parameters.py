"""Kernel parameters, the conversion of arguments for them, and the packed bytes of a launch."""

from __future__ import annotations

import ctypes
import functools
import math
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, SupportsInt

import numpy as np

from hal import bfloat16
from hal._programs.elements import is_element
from hal.arguments import memory_hint
from hal.errors import ArgumentTypeError, HalError, InvalidArgumentError
from hal.handlers import own

Resolver = Callable[[object, str], int | None]
"""Takes an argument and its parameter's name. Returns the device address of a buffer, or None for
anything else; raises for a buffer that may not be used here.
"""

Converter = Callable[[Any], object]
"""Converts an argument to a value that `struct` packs correctly; raises ValueError, OverflowError
or TypeError for a value that it cannot convert.
"""

_CODES: Final[dict[tuple[str, int], tuple[str, str]]] = {
    ("ptr", 8): ("ptr", "Q"),
    ("int", 1): ("i8", "b"),
    ("int", 2): ("i16", "h"),
    ("int", 4): ("i32", "i"),
    ("int", 8): ("i64", "q"),
    ("uint", 1): ("u8", "B"),
    ("uint", 2): ("u16", "H"),
    ("uint", 4): ("u32", "I"),
    ("uint", 8): ("u64", "Q"),
    ("float", 2): ("f16", "e"),
    ("float", 4): ("f32", "f"),
    ("float", 8): ("f64", "d"),
    ("bfloat", 2): ("bf16", "H"),
    ("bool", 1): ("bool", "?"),
}
TYPES: Final = {name: key for key, (name, _) in _CODES.items()}
"""The kind and the size of each type of fixed size that a signature's text can name."""
SIZED: Final = {"bytes": "record", "any": "any"}
"""The kinds of variable size, by the word before ``[N]`` in a signature's text."""
POINTERS: Final = frozenset({"ptr", "any"})
"""The kinds that may take a buffer."""

_TAKES: Final = {
    "ptr": "a buffer, or None for a null pointer",
    "int": "an int or a numpy integer",
    "uint": "an int or a numpy integer",
    "float": "a float or an int, Python's or numpy's",
    "bfloat": "a float or an int, Python's or numpy's",
    "bool": "a bool",
    "record": "bytes, a numpy record or a ctypes structure",
    "any": "a numpy scalar, a numpy record or bytes",
}
# Types that have bytes of their own, and types without bytes or with those of an array.
_PLAIN: Final = (bytes, bytearray, memoryview, np.void, ctypes.Structure, ctypes.Union)
_UNSIZED: Final = (int, float, complex, str, np.ndarray, np.generic)
_LARGEST: Final = {2: 65504.0, 4: 3.4028234663852886e38, 8: 1.7976931348623157e308}
_MOST_BYTES: Final = 1 << 20  # more than any driver takes for a whole launch
_PRINTABLE_BITS: Final = 1024
_DOUBLE: Final = 8
_DOUBLE_BITS: Final = 53
_POINTER: Final = 8
pack_address: Final = struct.Struct("<Q").pack_into
STORAGE_ALIGNMENT: Final = 8
"""The alignment that ctypes surely gives a block's storage; a larger one is made by hand."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of a kernel.

    Raises `InvalidArgumentError` for a kind that does not come in that size,
    for more than 1 MiB, and for a constant that is not a pointer.
    """

    name: str
    """Its name in the source."""
    kind: str
    """"ptr", "int" (signed), "uint", "float", "bfloat" (bfloat16), "bool", "record" (anything else
    that can be copied byte by byte), or "any" (only the size is known)."""
    size: int
    alignment: int
    """In bytes, as the size."""
    is_const: bool = False
    """Whether it is a pointer through which the kernel only reads, as ``const float *`` is. The
    kernel may still write to the same memory through another pointer."""
    element: str = ""
    """The type that a pointer points to, as a signature spells it: ``"f32"``, ``"bytes[12]"`` for a
    structure. Empty for ``void *``, for anything but a pointer, and where it is unknown."""

    def __post_init__(self) -> None:
        known = self.kind in SIZED.values() or (self.kind, self.size) in _CODES
        if self.is_const and self.kind != "ptr":
            message = f"parameter '{self.name}': only a pointer is const, and {self.kind} is none"
            raise InvalidArgumentError(message)
        if self.element and (self.kind != "ptr" or not is_element(self.element)):
            message = f"parameter '{self.name}': {self.kind} has no elements {self.element!r}"
            raise InvalidArgumentError(message)
        power_of_two = self.alignment > 0 and self.alignment & (self.alignment - 1) == 0
        if self.size > _MOST_BYTES or self.alignment > _MOST_BYTES:
            message = f"parameter '{self.name}' is larger than {_MOST_BYTES:,} bytes"
            raise InvalidArgumentError(message)
        if not known or self.size < 1 or not power_of_two:
            raise InvalidArgumentError(
                f"parameter '{self.name}': there is no kind {self.kind!r} of {self.size} bytes "
                f"aligned to {self.alignment}"
            )

    @property
    def type(self) -> str:
        """The type as a signature spells it: ``"f32"``, ``"const f32*"``, ``"bytes[12]"``."""
        for word, kind in SIZED.items():
            if kind == self.kind:
                return f"{word}[{self.size}]"
        name = f"{self.element}*" if self.element else _CODES[self.kind, self.size][0]
        return f"const {name}" if self.is_const else name

    @property
    def code(self) -> str:
        """The `struct` format of its value."""
        if self.kind == "any" and self.size == _POINTER:
            return "Q"  # it may be an address
        return f"{self.size}s" if self.kind in SIZED.values() else _CODES[self.kind, self.size][1]

    def __str__(self) -> str:
        return f"{self.type} {self.name}"


def element_name(kind: str, size: int) -> str:
    """Return how a signature spells what a pointer points to; empty if unknown."""
    if kind == "record":
        return f"bytes[{size}]"
    name = _CODES.get((kind, size), ("",))[0]
    return name if is_element(name) else ""


class Layout:
    """The place of each value, in bytes from the first pointer, and how to pack it."""

    __slots__ = ("_packers", "offsets", "parameters")

    def __init__(self, parameters: tuple[Parameter, ...], offsets: tuple[int, ...]) -> None:
        self.parameters = parameters
        self.offsets = offsets
        self._packers = tuple(struct.Struct(f"<{each.code}").pack for each in parameters)

    def pack_one(self, kernel_name: str, index: int, argument: object) -> bytes:
        """Return one argument's bytes, zeros for a buffer, or raise the error that it causes."""
        parameter = self.parameters[index]
        convert = conversion(kernel_name, parameter, argument)
        if convert is None and parameter.kind in POINTERS:
            return bytes(_POINTER)
        try:
            return self._packers[index](convert(argument) if convert else argument)
        except own(TypeError) as error:
            raise wrong_type(kernel_name, parameter, argument) from error
        except own(struct.error, OverflowError, ValueError) as error:
            raise InvalidArgumentError(
                f"kernel '{kernel_name}': parameter '{parameter.name}' ({parameter.type}) takes "
                f"{_range(parameter)}, not {_shown(parameter, argument)}"
            ) from error


class ParameterBlock:
    """The packed arguments of one launch: their bytes, and an array of pointers to them.

    The storage lives as long as the block and never moves. The block does not
    keep buffers alive. Several threads may read a block; one may patch it while
    no other reads. `address` is that of the array, with one pointer per argument, as
    `hal.native.NativeDevice.launch` takes it; valid memory even without arguments.
    """

    __slots__ = ("_layout", "_storage", "address")

    def __init__(self, layout: Layout, storage: ctypes.Array[ctypes.c_char], address: int) -> None:
        self._layout = layout
        self._storage = storage
        self.address = address

    def place(self, index: int) -> int:
        """Return where the storage has the value of a parameter."""
        return self.address - ctypes.addressof(self._storage) + self._layout.offsets[index]

    def set_address(self, index: int, address: int) -> None:
        """Replace the device address of a pointer in place, without any check."""
        pack_address(self._storage, self.place(index), address)

    def copy(self) -> ParameterBlock:
        """Return a block with the same values in memory of its own."""
        layout, size = self._layout, len(self._storage)
        storage = type(self._storage)()
        base = ctypes.addressof(storage)
        alignment = max((each.alignment for each in layout.parameters), default=1)
        slack = -base % alignment if alignment > STORAGE_ALIGNMENT else 0
        start = self.address - ctypes.addressof(self._storage)
        ctypes.memmove(base + slack, self.address, size - max(start, slack))
        for index, offset in enumerate(layout.offsets):
            pack_address(storage, slack + _POINTER * index, base + slack + offset)
        return ParameterBlock(layout, storage, base + slack)


def conversion(kernel_name: str, parameter: Parameter, argument: object) -> Converter | None:
    """Return the conversion that an argument of this type needs before `struct` packs it, or None.

    The answer depends only on the argument's type and may be cached by it. For
    a pointer, None means that the argument has to be resolved. Raises
    `ArgumentTypeError` for a type that the parameter does not take.
    """
    kind = parameter.kind
    if kind == "ptr":
        return _null if argument is None else None
    if kind in SIZED.values():
        convert, takes_buffer = _conversion_by_size(parameter, argument)
        if convert is not None or takes_buffer:
            return convert
    elif kind == "bool":
        if isinstance(argument, (bool, np.bool_)):
            return None
    elif bfloat16.is_number(argument):
        if kind in {"float", "bfloat"}:
            return _rounding(parameter, argument)
        if isinstance(argument, (int, np.integer)):
            return None
    raise wrong_type(kernel_name, parameter, argument)


def _rounding(parameter: Parameter, argument: object) -> Converter | None:
    """Return the conversion of a number for a floating-point parameter."""
    if parameter.kind == "bfloat":
        return bfloat16.bits_of
    if isinstance(argument, (int, np.integer)):
        return _sticky if parameter.size < _DOUBLE else None
    if isinstance(argument, np.longdouble):
        return _odd if parameter.size < _DOUBLE else _double
    return float if bfloat16.is_scalar(argument) else None


def _conversion_by_size(parameter: Parameter, argument: object) -> tuple[Converter | None, bool]:
    """Return the conversion of an argument taken as bytes, and whether a buffer will do."""
    scalar = isinstance(argument, np.generic) and not isinstance(argument, np.void)
    if parameter.kind == "record":
        # numpy's numbers have bytes too, and so do buffers; neither is a structure.
        shared = hasattr(type(argument), "__dlpack__") and not isinstance(argument, np.ndarray)
        return (None if scalar or shared else functools.partial(_record, parameter.size)), False
    if isinstance(argument, _PLAIN) or (scalar and argument.dtype.kind in "biufc"):  # type: ignore[attr-defined]
        convert = _number if parameter.size == _POINTER else _record
        return functools.partial(convert, parameter.size), False
    if parameter.size != _POINTER or isinstance(argument, _UNSIZED):
        return None, False
    return (_null, True) if argument is None else (None, True)


def wrong_type(kernel_name: str, parameter: Parameter, argument: object) -> HalError:
    """Return the error for an argument whose type its parameter does not take."""
    hint = ""
    if parameter.kind == "ptr" and isinstance(argument, (int, np.integer)):
        hint = "; a number is never taken for an address"
    elif parameter.kind in POINTERS:
        hint = memory_hint(argument)
    elif parameter.kind == "record" and isinstance(argument, np.generic):
        hint = "; if its bytes are meant, pass value.tobytes()"
    takes = _TAKES[parameter.kind]
    if parameter.kind == "any":
        if parameter.size == _POINTER:
            takes = f"a buffer, None for a null pointer, {takes}"
        if isinstance(argument, (int, float, complex)):
            hint = (
                "; the image does not say what it is, so write the number with its size, as in "
                "np.int32(5), or give the kernel a signature"
            )
    return ArgumentTypeError(
        f"kernel '{kernel_name}': parameter '{parameter.name}' ({parameter.type}) takes "
        f"{takes}, not {type(argument).__name__}{hint}"
    )


def _range(parameter: Parameter) -> str:
    bits = 8 * parameter.size
    if parameter.kind == "int":
        return f"{-(1 << (bits - 1))} to {(1 << (bits - 1)) - 1}"
    if parameter.kind == "uint":
        return f"0 to {(1 << bits) - 1}"
    if parameter.kind == "bfloat":
        return f"finite values up to {bfloat16.LARGEST:.8g}, infinities and NaN"
    if parameter.kind == "float":
        return f"finite values up to {_LARGEST[parameter.size]:.8g}, infinities and NaN"
    return f"exactly {parameter.size} bytes"


def _shown(parameter: Parameter, argument: object) -> str:
    if parameter.kind in SIZED.values():
        size = str(len(_bytes_of(argument)))
        return size if parameter.kind == "record" else f"{size} ({type(argument).__name__})"
    if isinstance(argument, int) and argument.bit_length() > _PRINTABLE_BITS:
        return f"an integer of {argument.bit_length()} bits"  # Python refuses to print the longest
    return str(argument)


def _null(_: object) -> int:
    return 0


def _sticky(argument: SupportsInt) -> int:
    """Convert an integer to a double so that rounding it again to fewer bits is exact."""
    value = int(argument)
    excess = value.bit_length() - _DOUBLE_BITS
    if excess <= 0:
        return value
    # `struct` converts through a double, and rounding twice can give another result than rounding
    # once. So the low bits are cut off, and the last bit that is kept records whether any of them
    # was set (a sticky bit).
    magnitude = abs(value)
    kept = magnitude >> excess
    kept = (kept | (kept << excess != magnitude)) << excess
    return kept if value > 0 else -kept


def _double(argument: np.longdouble) -> float:
    result = float(argument)
    if math.isinf(result) and not np.isinf(argument):
        raise OverflowError
    return result


def _odd(argument: np.longdouble) -> float:
    """Convert to a double that is odd if it is not exact, for the same reason as `_sticky`."""
    near = _double(argument)
    if near != argument and not np.float64(near).view(np.int64) & 1:
        near = math.nextafter(near, math.inf if argument > near else -math.inf)
    return near


def _record(size: int, argument: object) -> bytes:
    data = _bytes_of(argument)
    if len(data) != size:
        raise ValueError
    return data


def _number(size: int, argument: object) -> int:
    return int.from_bytes(_record(size, argument), "little")


def _bytes_of(argument: object) -> bytes:
    """Return the bytes of an argument; raise TypeError if it has none."""
    if type(argument) is bytes:
        return argument
    if isinstance(argument, (np.generic, np.ndarray)):
        if argument.dtype.hasobject:
            raise TypeError  # its bytes are addresses in this process
        return argument.tobytes()
    return memoryview(argument).tobytes()  # type: ignore[arg-type]  # raises TypeError
