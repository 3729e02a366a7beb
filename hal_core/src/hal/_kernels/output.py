"""The memory that a run prints into, and the text read from it."""

import math
import re
import struct
from typing import Final, NamedTuple

import numpy as np

from hal._base.checks import check_index
from hal._buffers.buffer import Buffer
from hal._engine.fence import Waits
from hal._memory.core import DeviceCore
from hal._programs.printing import HEADER, OutputPlace
from hal._programs.program import is_device
from hal.errors import ArgumentTypeError, InvalidArgumentError, OperationError
from hal.handlers import own

_WORD: Final = 8
_LEAST: Final = HEADER + 64
_PLACE: Final = struct.Struct("<6I")
_CONVERSION: Final = (
    r"%([-+ #0]*)(\*|\d+)?(?:\.(\*|\d*))?(hh|h|ll|l|L|j|z|t)?([diouxXcsfFeEgGaApV%])"
)
_WIDEST: Final = 4096
"""The most letters of a padded number or text: two numbers could ask for gigabytes."""
_LONGEST: Final = 1 << 62
_DIGITS: Final = 18
_HEX_DIGITS: Final = 13  # of a double, behind the point
_BITS: Final = {"hh": 8, "h": 16, None: 32}
_SIGNED, _FLOAT, _POINTER, _TEXT, _UNSIGNED = 1, 2, 3, 4, 5

_INTEGERS: Final = "diouxX"
_NUMBERS: Final = "diouxXaAeEfFgG"

_Value = int | float | str


class PrintedLine(NamedTuple):
    """The output of one call of printf, or of one trace."""

    thread: tuple[int, int, int]
    """The indices in x, y and z of the thread that wrote it."""
    block: tuple[int, int, int]
    """Those of its block."""
    text: str
    """As formatted, with its line end if it has one."""


class Printed(NamedTuple):
    """The output of a run; ``str()`` is the whole text."""

    lines: tuple[PrintedLine, ...]
    """One per call; those of one thread are in order."""
    cut: int
    """The number of calls that found no room."""

    def __str__(self) -> str:
        text = "".join(line.text for line in self.lines)
        if self.cut:
            text += f"[{self.cut} more calls of printf had no room; give Output a larger size]\n"
        return text


class Output(Buffer, OutputPlace):
    """Memory for the output of one run: the last argument of a kernel that calls printf.

    ``queue.dispatch(kernel, grid=1, args=(x, n, output))``, or by name, as
    ``hal_output``. Use each for one run: output of several runs is
    mixed. It is memory of the `device` that runs the kernel, like any buffer.

    `size` is the bytes for the output, at least 64: 48 for each call, and the text
    of its format and its arguments. Calls that find no room are counted.
    """

    __slots__ = ()

    def __init__(self, device: DeviceCore, size: int = 1 << 16) -> None:
        """Allocate and clear the memory; blocks until it is ready on every queue."""
        size = check_index(size, "the size of an output")
        if size < _LEAST - HEADER:
            raise InvalidArgumentError(f"the size of an output is 64 or more bytes, not {size}")
        if not is_device(device):
            message = f"an output is memory of a device, not of {type(device).__name__}"
            raise ArgumentTypeError(message)
        whole = HEADER + -(-size // _WORD) * _WORD
        raw = device.allocate(whole, dtype=np.uint64)
        capacity = np.array([whole - HEADER], np.uint64)
        cleared = device.queue.fill(raw, b"\0")
        device.queue.update(raw, capacity, wait=cleared).wait()
        super().__init__(device, raw._live(), 0, raw.size, raw.dtype, raw.shape)

    def read(self, *, wait: Waits | None = None, timeout: float | None = None) -> Printed:
        """Return the output, once `wait`, the run's submission, has ended.

        Without `wait`, waits for everything submitted before, as `Buffer.numpy` does.
        Blocks for at most `timeout` seconds. Raises what
        `Submission.wait` raises, and `OperationError` if something else
        wrote to the memory. A number is padded to 4096 letters at most.
        """
        data = self.numpy(np.uint8, wait=wait, timeout=timeout).tobytes()
        capacity, used, cut = struct.unpack_from("<3Q", data)
        end = HEADER + min(capacity, used)
        lines: list[PrintedLine] = []
        position = HEADER
        while position + _WORD <= end:
            (size,) = struct.unpack_from("<Q", data, position)
            if size == 0 or position + size > end:
                break  # the first record that was cut
            try:
                lines.append(_read(data[position + _WORD : position + size]))
            except own(struct.error, IndexError) as error:
                raise OperationError(
                    "the output does not hold what printf wrote: something else has written to "
                    f"its byte {position}, or near it"
                ) from error
            position += size
        return Printed(tuple(lines), cut)


def _read(record: bytes) -> PrintedLine:
    """Return the contents of a record without its size."""
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
    """Format as C's printf does; a value that does not fit its conversion is shown as it is."""
    rest = iter(values)

    def one(match: re.Match[str]) -> str:
        flags, width, precision, length, letter = match.groups()
        if letter == "%":
            return "%"
        try:
            if width == "*":
                width = str(int(next(rest)[1]))
                flags += "-" * (width[0] == "-")
            if precision == "*":
                precision = str(int(next(rest)[1]))
                precision = None if precision[0] == "-" else precision
            kind, value = next(rest)
        except own(StopIteration, ValueError, OverflowError):
            return match.group()
        room = _number(width or "", _WIDEST)
        # A precision only shortens a text, so it may be large.
        most = _LONGEST if isinstance(value, str) else _WIDEST
        digits = None if precision is None else _number(precision, most)
        sign, body = _convert(flags, digits, length, letter, kind, value)
        # Zeros go between the sign and the number.
        zeros = "0" in flags and "-" not in flags and letter in _NUMBERS
        if letter in _INTEGERS:
            zeros = zeros and digits is None
        if zeros and not isinstance(value, str) and math.isfinite(value):
            body = body.rjust(room - len(sign), "0")
        body = sign + body
        return body.ljust(room) if "-" in flags else body.rjust(room)

    return re.sub(_CONVERSION, one, form)


def _number(text: str, most: int) -> int:
    """Return a width or a precision without its sign, 0 if absent, at most `most`."""
    text = text.lstrip("-0")
    return min(int(text or 0), most) if len(text) <= _DIGITS else most


def _convert(
    flags: str, precision: int | None, length: str | None, letter: str, kind: int, value: _Value
) -> tuple[str, str]:
    """Return a value's sign or prefix, and the rest, without padding."""
    if letter in "di" and isinstance(value, int):
        mask = _mask(length)
        value &= mask
        # The value that a signed type of that length stores
        value -= (mask + 1) * (value > mask >> 1)
        digits = _digits(f"{abs(value)}", value, precision)
        return _sign(flags, is_negative=value < 0), digits
    if letter in _INTEGERS and isinstance(value, int):
        value &= _mask(length)
        digits = _digits(format(value, "d" if letter == "u" else letter), value, precision)
        if "#" in flags and letter == "o" and digits[:1] != "0":
            digits = f"0{digits}"
        return (f"0{letter}" if "#" in flags and letter in "xX" and value else ""), digits
    if letter in "cp" and isinstance(value, int):
        return "", chr(value & 0xFF) if letter == "c" else f"{value:#x}"
    if letter in "aAeEfFgG" and not isinstance(value, str):
        number = abs(float(value))
        sign = _sign(flags, is_negative=math.copysign(1, value) < 0)
        if letter in "aA":
            prefix, body = _hexadecimal(number, flags, precision)
            return (sign + prefix, body) if letter == "a" else (sign + prefix.upper(), body.upper())
        form = f"%{'#' * ('#' in flags)}{'' if precision is None else f'.{precision}'}{letter}"
        return sign, form % number
    text = f"{value:#x}" if kind == _POINTER and isinstance(value, int) else f"{value}"
    return "", text[:precision]


def _hexadecimal(number: float, flags: str, precision: int | None) -> tuple[str, str]:
    """Return the prefix of a non-negative number, its digits and its power of two."""
    if not math.isfinite(number):
        return "", number.hex()
    whole, digits, power = re.split("[.p]", number.hex()[2:])
    if precision is None:
        digits = digits.rstrip("0")
    else:
        kept = min(precision, _HEX_DIGITS)
        scale = 16 ** (_HEX_DIGITS - kept)
        value, rest = divmod(int(whole + digits.ljust(_HEX_DIGITS, "0"), 16), scale)
        value += 2 * rest + value % 2 > scale  # half to even
        whole, digits = f"{value >> 4 * kept:x}", f"{value:0{kept + 1}x}"[1:].ljust(precision, "0")
    return "0x", f"{whole}{'.' if digits or '#' in flags else ''}{digits}p{power}"


def _sign(flags: str, *, is_negative: bool) -> str:
    return "-" if is_negative else "+" if "+" in flags else " " if " " in flags else ""


def _digits(digits: str, value: int, precision: int | None) -> str:
    """Return digits, at least as many as the precision; none for 0 with a precision of 0."""
    if precision is None:
        return digits
    return digits.rjust(precision, "0") if value or precision else ""


def _mask(length: str | None) -> int:
    return (1 << _BITS.get(length, 64)) - 1
