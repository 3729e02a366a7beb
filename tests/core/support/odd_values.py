"""Values that have no business where they are given: of every kind, made afresh for each call.

Each has the kinds of argument that it may rightly stand for, so that a call
that takes it for another one is found out: a flag takes no text that is true.
"""

from __future__ import annotations

import datetime as dt
import decimal
import fractions
import functools
import pathlib
from collections import OrderedDict
from typing import NamedTuple

import numpy as np

__all__ = ["ODD", "Odd"]


class Odd(NamedTuple):
    """How an odd value is made, and what kinds of argument it is."""

    make: object
    kinds: frozenset[str]


class OddError(Exception):
    """An error that a value of these tests raises by itself."""


def _fail(*_, **__):
    message = "of the odd value's own"
    raise OddError(message)


def _broken(base, *names):
    """Return a value whose special methods raise."""
    return type(f"Broken{base.__name__.title()}", (base,), dict.fromkeys(names, _fail))


BrokenObject = _broken(
    object,
    *("__index__", "__int__", "__float__", "__bool__", "__len__", "__iter__", "__getitem__"),
    *("__repr__", "__str__", "__format__", "__fspath__", "__eq__", "__hash__", "__contains__"),
)
_PRINTS = ("__repr__", "__str__", "__format__")
BrokenInt = _broken(int, "__index__", "__int__", "__float__", "__bool__", "__hash__", *_PRINTS)
BrokenFloat = _broken(float, "__float__", "__bool__", "__int__", "__hash__", *_PRINTS)
BrokenText = _broken(str, "__len__", "__iter__", "__bool__", "__hash__", "__eq__", *_PRINTS)
BrokenBytes = _broken(bytes, "__len__", "__iter__", "__bool__", "__getitem__", *_PRINTS)
BrokenList = _broken(list, "__len__", "__iter__", "__bool__", "__getitem__", *_PRINTS)
BrokenTuple = _broken(tuple, "__len__", "__iter__", "__bool__", "__getitem__", *_PRINTS)
BrokenDict = _broken(
    dict,
    *("__len__", "__iter__", "__bool__", "__getitem__", "items", "keys", "values", "get"),
    *_PRINTS,
)


class Liar:
    """Have special methods that return what they must not."""

    def __index__(self):
        return "no int"  # noqa: PLE0305 - that is what it is for

    __float__ = __bool__ = __len__ = __fspath__ = __repr__ = __iter__ = __hash__ = __index__

    def __getattr__(self, name):
        return self


class Endless:
    """An iterable that ends by an error after a while."""

    def __iter__(self):
        yield from range(3)
        _fail()


class Closing:
    """Have an index that is changed by asking for it."""

    count = 0

    def __index__(self):
        self.count += 1
        return -self.count


def _coroutine():
    async def wait():
        """Do nothing."""

    made = wait()
    made.close()
    return made


def _read_only():
    array = np.zeros(8, np.uint8)
    array.flags.writeable = False
    return array


def _odd(make, *kinds):
    return Odd(make if callable(make) else functools.partial(_same, make), frozenset(kinds))


def _same(value):
    return value


ODD = {
    "None": _odd(None, "none"),
    "True": _odd(lambda: True, "flag"),
    "False": _odd(lambda: False, "flag"),
    "numpy False": _odd(np.False_, "flag"),
    "zero": _odd(0, "int", "real"),
    "three": _odd(3, "int", "real"),
    "minus one": _odd(-1, "int", "real"),
    "minus zero": _odd(-0.0, "real"),
    "2**31": _odd(2**31, "int", "real"),
    "2**32": _odd(2**32, "int", "real"),
    "2**63 - 1": _odd(2**63 - 1, "int", "real"),
    "2**63": _odd(2**63, "int", "real"),
    "2**64": _odd(2**64, "int", "real"),
    "2**70": _odd(2**70, "int", "real"),
    "-2**63": _odd(-(2**63), "int", "real"),
    "10**29": _odd(10**29, "int", "real"),
    "10**5000": _odd(10**5000, "int", "real"),
    "half": _odd(0.5, "real"),
    "1e300": _odd(1e300, "real"),
    "nan": _odd(float("nan"), "real"),
    "inf": _odd(float("inf"), "real"),
    "-inf": _odd(float("-inf"), "real"),
    "complex": _odd(1j),
    "decimal": _odd(decimal.Decimal("0.5"), "real"),
    "decimal sNaN": _odd(decimal.Decimal("sNaN"), "real"),
    "fraction": _odd(fractions.Fraction(1, 3), "real"),
    "empty text": _odd("", "text"),
    "text": _odd("x", "text"),
    "long text": _odd("y" * 70_000, "text"),
    "nul": _odd("a\0b", "text"),
    "surrogate": _odd("a\udc80b", "text"),
    "braces": _odd("{0} %s\n", "text"),
    "bytes": _odd(b"x", "bytes"),
    "no bytes": _odd(b"", "bytes"),
    "bytearray": _odd(lambda: bytearray(b"xyz"), "bytes"),
    "memoryview": _odd(lambda: memoryview(b"abcdef")[::2], "bytes"),
    "path": _odd(pathlib.Path("x"), "path"),
    "no list": _odd(list, "list"),
    "no tuple": _odd((), "list"),
    "list": _odd(lambda: [1, 2], "numbers"),
    "list of None": _odd(lambda: [None]),
    "list of text": _odd(lambda: ["x"], "texts"),
    "list of lists": _odd(lambda: [[]]),
    "list in itself": _odd(lambda: (made := [], made.append(made))[0]),
    "four numbers": _odd((1, 1, 1, 1)),
    "huge numbers": _odd((2**70, 2**70), "numbers"),
    "mapping": _odd(dict, "mapping"),
    "mapping of numbers": _odd(lambda: {1: 2}, "mapping"),
    "mapping of texts": _odd(lambda: {"x": "y"}, "mapping"),
    "ordered mapping": _odd(lambda: OrderedDict({None: object()}), "mapping"),
    "set": _odd(lambda: {1}),
    "range": _odd(range(2), "numbers"),
    "generator": _odd(lambda: (each for each in (1, 2)), "numbers"),
    "endless": _odd(Endless),
    "object": _odd(object),
    "Ellipsis": _odd(...),
    "NotImplemented": _odd(NotImplemented),
    "slice": _odd(slice(1)),
    "module": _odd(np),
    "class": _odd(lambda: int, "callable", "dtype"),
    "odd class": _odd(lambda: Endless, "callable"),
    "function": _odd(lambda: _same, "callable"),
    "lambda": _odd(lambda: lambda: None, "callable"),
    "failing function": _odd(lambda: _fail, "callable"),
    "coroutine": _odd(_coroutine),
    "exception": _odd(lambda: OddError("given"), "error"),
    "exception class": _odd(lambda: OddError, "callable"),
    "interrupt": _odd(KeyboardInterrupt, "error"),
    "date": _odd(dt.timedelta(seconds=1)),
    "numpy int": _odd(np.int64(3), "int", "real"),
    "numpy unsigned": _odd(np.uint64(2**64 - 1), "int", "real"),
    "numpy byte": _odd(np.int8(-1), "int", "real"),
    "numpy float": _odd(np.float32(0.5), "real"),
    "numpy half nan": _odd(np.float16("nan"), "real"),
    "numpy long double": _odd(np.longdouble(1), "real"),
    "numpy complex": _odd(np.complex64(1 + 1j)),
    "numpy text": _odd(np.str_("x"), "text"),
    "numpy bytes": _odd(np.bytes_(b"x"), "bytes"),
    "numpy time": _odd(np.datetime64("NaT", "s")),
    "numpy span": _odd(np.timedelta64(1, "s")),
    "numpy record": _odd(lambda: np.zeros(1, "u1,f4")[0]),
    "numpy object": _odd(lambda: np.array(None)),
    "masked": _odd(np.ma.masked),
    "0-d ints": _odd(lambda: np.array(3), "int", "real"),
    "0-d floats": _odd(lambda: np.array(0.5), "real"),
    "one int": _odd(lambda: np.array([3]), "numbers"),
    "floats": _odd(lambda: np.zeros(2)),
    "ints": _odd(lambda: np.ones(2, np.int32), "numbers"),
    "no floats": _odd(lambda: np.zeros(0)),
    "flags": _odd(lambda: np.array([True, False])),
    "texts": _odd(lambda: np.array(["a", "b"])),
    "objects": _odd(lambda: np.array([object(), None])),
    "records": _odd(lambda: np.zeros(2, "u1,f4")),
    "times": _odd(lambda: np.array(["NaT"], "M8[s]")),
    "read-only": _odd(_read_only),
    "strided": _odd(lambda: np.zeros(8)[::2]),
    "dtype": _odd(np.dtype("f4"), "dtype"),
    "structured dtype": _odd(np.dtype("u1,f4"), "dtype"),
    "dtype of objects": _odd(np.dtype(object)),
    "liar": _odd(Liar, "path"),
    "closing": _odd(Closing, "int"),
    "broken object": _odd(BrokenObject),
    "broken int": _odd(lambda: BrokenInt(1), "int", "real"),
    "broken float": _odd(lambda: BrokenFloat(1.0), "real"),
    "broken text": _odd(lambda: BrokenText("x"), "text"),
    "broken bytes": _odd(lambda: BrokenBytes(b"x"), "bytes"),
    "broken list": _odd(lambda: BrokenList([1]), "list"),
    "broken tuple": _odd(lambda: BrokenTuple((1,)), "list"),
    "broken mapping": _odd(lambda: BrokenDict(x=1), "mapping"),
}
