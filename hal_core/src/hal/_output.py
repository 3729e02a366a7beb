"""Define the memory that a run prints into, and what is read from it."""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from hal._buffer import Buffer
from hal._kernel_output import HEADER
from hal.errors import InvalidArgumentError

if TYPE_CHECKING:
    from hal._device import Device
    from hal.protocols import Waits

__all__ = ["Output", "Printed", "PrintedLine"]

_WORD: Final = 8
_LEAST: Final = HEADER + 64
_PLACE: Final = struct.Struct("<6I")
_CONVERSION: Final = re.compile(
    r"%([-+ #0]*)(\*|\d+)?(?:\.(\*|\d*))?(hh|h|ll|l|L|j|z|t)?([diouxXcsfFeEgGaApNV%])"
)
_BITS: Final = {"hh": 8, "h": 16, None: 32}
_SIGNED, _FLOAT, _POINTER, _TEXT, _UNSIGNED = 1, 2, 3, 4, 5

_Value = int | float | str


@dataclass(frozen=True, slots=True)
class PrintedLine:
    """Be what one call of printf, or one trace, has written.

    Attributes
    ----------
    thread, block
        Who wrote it: its indices in x, y and z.
    text
        As formatted, with its line end if it has one.
    """

    thread: tuple[int, int, int]
    block: tuple[int, int, int]
    text: str


@dataclass(frozen=True, slots=True)
class Printed:
    """Hold what a run has printed; ``str()`` is the whole text.

    Attributes
    ----------
    lines
        Call by call; those of one thread are in order.
    cut
        How many calls had no room.
    """

    lines: tuple[PrintedLine, ...]
    cut: int

    def __str__(self) -> str:
        text = "".join(line.text for line in self.lines)
        if self.cut:
            text += f"[{self.cut} more calls of printf had no room; give Output a larger size]\n"
        return text


class Output(Buffer):
    """Be memory that one run prints into: the last argument of a kernel with printf in it.

    ``queue.dispatch(kernel, grid=1, args=(x, n, output))``, or by name, as
    ``hal_output``. Use each for one run: what others print into it is mixed
    with that. It is the memory of one device, as any buffer.

    Parameters
    ----------
    device
        Where the kernel runs.
    size
        Bytes for what is printed, at least 64: 48 for each call, and the text
        of its format and its arguments. What has no room is counted.
    """

    __slots__ = ()

    def __init__(self, device: Device, size: int = 1 << 16) -> None:
        """Allocate and clear the memory; blocks until it is ready on every queue."""
        if not isinstance(size, int) or isinstance(size, bool) or size < _LEAST - HEADER:
            message = f"the size of an output is a number of bytes, 64 or more, not {size!r}"
            raise InvalidArgumentError(message)
        words = np.zeros(HEADER // _WORD + -(-size // _WORD), np.uint64)
        words[0] = words.nbytes - HEADER
        raw = device.upload(words)
        super().__init__(device, raw._live(), 0, raw.size, raw.dtype, raw.shape)

    def read(self, *, wait: Waits = (), timeout: float | None = None) -> Printed:
        """Return what was printed, once `wait` has ended: the run's submission.

        Blocks for `timeout` seconds at most, and raises what
        `Submission.wait` raises.
        """
        data = self.numpy(np.uint8, wait=wait, timeout=timeout).tobytes()
        capacity, used, cut = struct.unpack_from("<3Q", data)
        end = HEADER + min(capacity, used)
        lines: list[PrintedLine] = []
        position = HEADER
        while position + _WORD <= end:
            (size,) = struct.unpack_from("<Q", data, position)
            if size == 0 or position + size > end:
                break  # what was cut first
            lines.append(_read(data[position + _WORD : position + size]))
            position += size
        return Printed(tuple(lines), cut)


def _read(record: bytes) -> PrintedLine:
    """Return what a record without its size says."""
    x, y, z, bx, by, bz = _PLACE.unpack_from(record)
    values: list[tuple[int, _Value]] = []
    position = _PLACE.size
    while position < len(record):
        (word,) = struct.unpack_from("<Q", record, position)
        kind, length = word & 0xFF, word >> 8
        position += _WORD
        value: _Value
        if kind == _TEXT:
            value = record[position : position + length].decode(errors="replace")
            position += -(-length // _WORD) * _WORD
        else:
            code = {_SIGNED: "<q", _FLOAT: "<d"}.get(kind, "<Q")
            (value,) = struct.unpack_from(code, record, position)
            position += _WORD
        values.append((kind, value))
    text = _format(str(values[0][1]), values[1:])
    return PrintedLine((x, y, z), (bx, by, bz), text)


def _format(form: str, values: list[tuple[int, _Value]]) -> str:
    """Return what C's printf would; a value that does not fit its conversion is shown as it is."""
    rest = iter(values)

    def one(match: re.Match[str]) -> str:
        flags, width, precision, length, letter = match.groups()
        if letter == "%":
            return "%"
        try:
            if width == "*":
                number = int(next(rest)[1])
                flags, width = (flags + "-", str(-number)) if number < 0 else (flags, str(number))
            if precision == "*":
                number = int(next(rest)[1])
                precision = None if number < 0 else str(number)
            kind, value = next(rest)
        except (StopIteration, ValueError):
            return match.group()
        form = "%" + flags + (width or "") + ("" if precision is None else f".{precision or 0}")
        return _convert(form, length, letter, kind, value)

    return _CONVERSION.sub(one, form)


def _convert(form: str, length: str | None, letter: str, kind: int, value: _Value) -> str:
    if isinstance(value, str) or letter in "sNV":
        return str(form + "s") % _plain(kind, value)
    if letter == "p":
        return (form + "s") % f"{int(value):#x}"
    if letter in "diouxXc":
        if isinstance(value, float):
            return (form + "s") % value
        bits = _BITS.get(length, 64)
        value &= (1 << bits) - 1
        if letter == "c":
            return (form + "c") % (value & 0xFF)
        if letter in "di" and value >> (bits - 1):
            value -= 1 << bits
        if letter == "o" and "#" in form:  # C's has one zero in front
            return (form.replace("#", "") + "s") % f"0{value:o}"
        return (form + letter) % value
    if letter in "aA":
        text = float(value).hex()
        return (form + "s") % (text.upper() if letter == "A" else text)
    return (form + letter) % float(value)


def _plain(kind: int, value: _Value) -> str:
    return f"{value:#x}" if kind == _POINTER and isinstance(value, int) else f"{value}"
