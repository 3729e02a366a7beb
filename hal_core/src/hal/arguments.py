"""Check the arguments that users give: one function for each kind.

A value's own methods (``__index__``, ``__iter__``, ``__fspath__`` ...) may raise
anything. Only `ask` calls them, and reports their exceptions as errors of the
argument; `shown` formats a value for an error's text.
"""

from __future__ import annotations

import functools
import operator
import os
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, Any, Final, SupportsFloat, TypeVar

import numpy as np

from hal import bfloat16
from hal.errors import ArgumentTypeError, HalError, InvalidArgumentError
from hal.handlers import is_a_handlers, own

if TYPE_CHECKING:
    from numpy.typing import DTypeLike, NDArray

__all__ = [
    "as_array",
    "as_choice",
    "as_dtype",
    "as_flag",
    "as_function",
    "as_instance",
    "as_int",
    "as_items",
    "as_mapping",
    "as_memory",
    "as_name",
    "as_names",
    "as_path",
    "as_seconds",
    "as_text",
    "as_three",
    "ask",
    "check_elements",
    "is_a_handlers",
    "memory_hint",
    "no_data",
    "number_of",
    "plain_three",
    "same_elements",
    "shown",
    "shown_path",
]

_Result = TypeVar("_Result")

_NO_LISTS: Final = (str, bytes, bytearray, memoryview, Mapping, np.ndarray, np.generic)
"""Iterables that are not lists of things."""

_BYTES: Final = np.dtype(np.uint8)
_LONGEST_NAME: Final = 1000
_SHOWN: Final = 80  # the characters of a value that an error shows
_MOST: Final = 2**63 - 1
_DTYPES: Final = (np.dtype, type, str, list, tuple, dict)
"""The accepted forms of a dtype; numpy would accept anything with a ``dtype``, even a buffer."""
_LONGEST_PATH: Final = 400  # the characters of a path that are shown; its end says most
_LONGEST: Final = 1e9
"""Seconds, thirty years: longer times, also infinity, become this, which every clock takes."""
_SECONDS: Final = "a timeout is seconds as a number, or None"
_DIGITS: Final = 4000
"""Bits of the longest integer that is shown in digits, of which Python prints 4,300."""


def shown(value: object, longest: int = _SHOWN) -> str:
    """Return a value as an error's text shows it: short, on one line, without ever failing."""
    kind = type(value).__name__
    if isinstance(value, int) and int.bit_length(value) > _DIGITS:
        return f"an {kind} of {int.bit_length(value)} bits"
    try:
        text = repr(value)
    except own(Exception):  # of the value's own
        return f"a {kind} whose repr fails"
    if " at 0x" in text:
        return f"a {kind}"
    text = " ".join(text.split())
    return text if len(text) <= longest else f"{text[:longest]}... ({kind})"


def shown_path(path: str) -> str:
    """Return a path as an error's text shows it: whole, unless it is very long."""
    return shown(path, _LONGEST_PATH)


def memory_hint(value: object) -> str:
    """Return how to make a buffer of an object with memory, for an error's end; or nothing."""
    if isinstance(value, np.ndarray):
        return "; copy the array to the device first, with device.upload(array)"
    kind = type(value)
    if hasattr(kind, "__dlpack__") or hasattr(kind, "__cuda_array_interface__"):
        return "; take its memory with device.from_dlpack(tensor)"
    return ""


def ask(function: Callable[[Any], _Result], value: object, rule: str) -> _Result:
    """Return ``function(value)``; report exceptions of the value's own methods as errors of `rule`.

    Exceptions of signal handlers are passed on unchanged (O3), and so are errors of the
    system, which say nothing of the value.
    """
    try:
        return function(value)
    except (HalError, OSError):
        raise
    except own(Exception) as error:
        message = f"{rule}, and this {type(value).__name__} raised {shown(error)}"
        if isinstance(error, TypeError):  # it has no such method, or refuses
            message = f"{rule}, not {type(value).__name__}"
        raise ArgumentTypeError(message) from error


# Numbers and flags


def as_int(value: object, rule: str, least: int | None = None, most: int | None = None) -> int:
    """Return an int of any type as an int; raise the rule for what is accepted, and the bounds."""
    if isinstance(value, (bool, np.bool_)) or not hasattr(type(value), "__index__"):
        raise ArgumentTypeError(f"{rule}, not {type(value).__name__}")
    number = ask(operator.index, value, rule)
    if least is not None and (number < least or (most is not None and number > most)):
        bounds = f"{least} or more" if most is None else f"{least} to {most}"
        raise InvalidArgumentError(f"{rule}, {bounds}, not {shown(number)}")
    return number


def plain_three(value: object, least: int) -> tuple[int, int, int] | None:
    """Return one to three plain ints as three, else None: the fast path of `as_three`."""
    kind = type(value)
    if kind is int:
        x, y, z = value, 1, 1
    elif (kind is tuple or kind is list) and 0 < len(value) < 4:  # type: ignore[arg-type] # noqa: PLR2004
        x, y, z = (*value, 1, 1)[:3]  # type: ignore[misc]
    else:
        return None
    if type(x) is type(y) is type(z) is int and x >= least and y >= least and z >= least:
        return (x, y, z) if x <= _MOST and y <= _MOST and z <= _MOST else None
    return None


def as_three(value: object, what: str, least: int, also: str = "") -> tuple[int, int, int]:
    """Return one to three numbers as three, filled up with 1; `also` names what else may be."""
    rule = f"{what} is one to three ints{also}"
    if isinstance(value, np.ndarray) and value.ndim == 1:
        value = value.tolist()
    items = as_items(value, rule) if isinstance(value, (tuple, list, range)) else (value,)
    numbers = [as_int(each, rule) for each in items]
    if not 1 <= len(numbers) <= 3 or min(numbers) < least or max(numbers) > _MOST:  # noqa: PLR2004
        message = f"{what} is one to three numbers of {least} or more, not {shown(value)}"
        raise InvalidArgumentError(message)
    first, second, third = (*numbers, 1, 1)[:3]
    return first, second, third


def as_seconds(timeout: SupportsFloat) -> float:
    """Return a time-out in seconds as a float; raise if it is malformed."""
    kind = type(timeout)
    if kind is float or kind is int:  # fast path
        given: SupportsFloat = timeout
    elif _is_real(timeout):
        given = ask(float, timeout, _SECONDS)
    else:
        raise ArgumentTypeError(f"{_SECONDS}, not {kind.__name__}")
    if given > _LONGEST:  # type: ignore[operator]
        return _LONGEST
    if not given >= 0:  # type: ignore[operator] # a NaN is not either
        message = f"a timeout is 0 or more seconds, or None for ever; {shown(timeout)} was given"
        raise InvalidArgumentError(message)
    return float(given)


def _is_real(value: object) -> bool:
    """Return whether a value is one real number: numpy gives ``__float__`` to others, too."""
    if isinstance(value, np.generic):
        return isinstance(value, (np.integer, np.floating))
    if isinstance(value, np.ndarray):
        return type(value) is np.ndarray and not value.ndim and value.dtype.kind in "iuf"
    is_number = hasattr(type(value), "__float__") or hasattr(type(value), "__index__")
    return is_number and not isinstance(value, (bool, str, bytes))


def as_flag(value: object, what: str) -> bool:
    """Return True or False; raise for anything else, even if it is truthy."""
    if value is True or value is False:
        return value is True
    if isinstance(value, np.bool_):
        return bool(value)
    raise ArgumentTypeError(f"{what} is True or False, not {shown(value)}")


def number_of(digits: str) -> int:
    """Return the number that up to 19 decimal digits denote, or -1 for another text."""
    is_number = digits.isascii() and digits.isdecimal() and len(digits) <= 19  # noqa: PLR2004
    return int(digits) if is_number else -1


# Elements


def check_elements(
    what: str, given: np.dtype[Any], dtype: np.dtype[Any], name: str = "array"
) -> None:
    """Raise unless the elements of a host array are those of a buffer of `dtype`."""
    if given is not dtype and not same_elements(dtype, given):
        raise ArgumentTypeError(
            f"{what}: the {name} is of {given}, and the buffer of {dtype}; convert the {name}, or "
            f"pass buffer.view({name}.dtype) if the bytes are meant"
        )


@functools.lru_cache(maxsize=1024)
def same_elements(buffer: np.dtype[Any], array: np.dtype[Any]) -> bool:
    """Return whether a buffer's bytes mean the same in a host array, or one of them is bytes.

    Two types match if they read an element's bytes alike: as an integer, a floating-point
    number, a bool or a structure, of the same size. An integer's sign does not count: the same
    bits are the same number wherever both types have it.
    """
    if buffer == array or _is_raw(buffer) or _is_raw(array):
        return True
    if buffer.itemsize != array.itemsize or buffer.byteorder != array.byteorder:
        return False
    if bfloat16.is_bfloat16(buffer) or bfloat16.is_bfloat16(array):
        return bfloat16.is_bfloat16(buffer) and bfloat16.is_bfloat16(array)
    kinds = {buffer.kind, array.kind}
    return len(kinds) == 1 or kinds == {"i", "u"} or (array.itemsize == 1 and kinds <= set("iub"))


def _is_raw(dtype: np.dtype[Any]) -> bool:
    """Return whether a type does not say what the bytes mean."""
    return dtype == _BYTES or (dtype.type is np.void and dtype.fields is None)


# Texts, names and paths


def as_text(value: object, rule: str) -> str:
    """Return a text of any type as a str; raise the rule for what is accepted."""
    if type(value) is str:
        return value
    if not isinstance(value, str):
        raise ArgumentTypeError(f"{rule}, not {type(value).__name__}")
    return str.__str__(value)


def as_name(value: object, what: str) -> str:
    """Return the name that a user gives to a thing, which errors show in full."""
    text = as_text(value, f"the name of {what} is a str")
    if len(text) > _LONGEST_NAME:
        message = f"the name of {what} has at most {_LONGEST_NAME} letters, not {len(text)}"
        raise InvalidArgumentError(message)
    return text


def as_choice(value: object, choices: Iterable[str], what: str) -> str:
    """Return a text that is one of a few; raise with the choices if it is not."""
    text = str.__str__(value) if isinstance(value, str) else None
    if text is None or text not in choices:
        message = f"{what} is one of {', '.join(map(repr, choices))}, not {shown(value)}"
        raise InvalidArgumentError(message)
    return text


def as_path(value: object, what: str) -> str:
    """Return a path, which is text, bytes or has ``__fspath__``, as text."""
    rule = f"{what} takes a path as text, bytes or os.PathLike"
    if isinstance(value, (str, bytes)):
        path: str | bytes = value
    else:
        path = ask(os.fspath, value, rule)
    text = os.fsdecode(bytes(path)) if isinstance(path, bytes) else str.__str__(path)
    if not text or "\0" in text:
        raise InvalidArgumentError(f"{what}: {shown(text)} is no path")
    return text


# Memory, arrays and their types, lists, mappings and functions


def as_memory(value: object, what: str) -> memoryview:
    """Return the memory of a bytes-like object."""
    return ask(memoryview, value, f"{what} takes a numpy array or a bytes-like object")


def no_data(dtype: np.dtype[Any], what: str) -> ArgumentTypeError:
    """Return the error of elements that are references (``dtype.hasobject``)."""
    return ArgumentTypeError(f"{what}: {dtype} holds Python objects, which device memory cannot")


def as_array(value: object, what: str) -> NDArray[Any]:
    """Return a value as a numpy array of numbers or records; a text is not accepted.

    Bytes become an array of them, as a bytearray does: numpy would take them for a text.
    """
    if isinstance(value, bytes):
        return np.frombuffer(value, np.uint8)
    try:
        made: NDArray[Any] = ask(np.asarray, value, what)
    except own(ArgumentTypeError) as error:
        message = f"{what}: numpy makes no array of this {type(value).__name__}: {error.__cause__}"
        raise ArgumentTypeError(message) from error.__cause__
    if made.dtype.kind in "US" and not made.ndim and not isinstance(value, np.ndarray):
        message = f"{what} takes an array, not {type(value).__name__}; a text has no bytes yet"
        raise ArgumentTypeError(message)
    return made


def as_dtype(dtype: DTypeLike) -> np.dtype[Any]:
    """Return a numpy type; raise if it is not one. ``"bfloat16"`` is one (`hal.bfloat16`)."""
    if not isinstance(dtype, _DTYPES):
        raise ArgumentTypeError(f"{shown(dtype)} is no numpy dtype")
    if type(dtype) is str and dtype == bfloat16.NAME:
        return bfloat16.dtype()
    try:
        found: np.dtype[Any] = ask(np.dtype, dtype, "")
    except own(ArgumentTypeError) as error:
        raise ArgumentTypeError(f"{shown(dtype)} is no numpy dtype") from error.__cause__
    if found.subdtype is not None:
        base, shape = found.subdtype
        raise ArgumentTypeError(
            f"{shown(dtype)} is {base} with a shape of its own, {shape}, and that is the array's; "
            f"use the dtype {base}, and reshape what it is read into"
        )
    return found


def as_items(value: object, rule: str, *, ordered: bool = False) -> tuple[Any, ...]:
    """Return the items of an iterable; a text, bytes, a mapping and an array are not lists.

    With `ordered` neither is a set.
    """
    kind = type(value)
    if kind is tuple or kind is list:  # fast path
        return tuple(value)  # type: ignore[arg-type]
    no_list = isinstance(value, _NO_LISTS) or (ordered and isinstance(value, AbstractSet))
    if no_list or not hasattr(type(value), "__iter__"):
        raise ArgumentTypeError(f"{rule}, not {type(value).__name__}")
    return ask(tuple, value, rule)


def as_names(value: object, what: str) -> tuple[str, ...]:
    """Return a list of names, such as those of parameters."""
    rule = f"{what}: a list of names is needed, as in ['x']"
    return tuple([as_text(each, rule) for each in as_items(value, rule)])


def as_mapping(value: object, rule: str) -> dict[Any, Any]:
    """Return a mapping as a new dictionary."""
    if not isinstance(value, Mapping):
        raise ArgumentTypeError(f"{rule}, not {type(value).__name__}")
    return ask(lambda each: dict(each.items()), value, rule)


def as_instance(value: object, kind: type[_Result], rule: str) -> _Result:
    """Return an object of a class; raise the rule for what is accepted."""
    if not isinstance(value, kind):
        raise ArgumentTypeError(f"{rule}, not {type(value).__name__}")
    return value


def as_function(value: object, what: str) -> Callable[..., Any]:
    """Return a callable; raise if it is not one."""
    if not callable(value):
        raise ArgumentTypeError(f"{what} takes a function, not {type(value).__name__}")
    return value
