"""Check the offsets and sizes that users give (rule M2)."""

from __future__ import annotations

from hal.arguments import as_int, shown
from hal.errors import InvalidArgumentError


def check_index(value: object, what: str) -> int:
    """Return a size or an offset as an int >= 0; raise if it is not one."""
    number: int
    if type(value) is int:
        number = value
    else:
        number = as_int(value, f"{what} is a number of bytes as an int")
    if number < 0:
        raise InvalidArgumentError(f"{what} is 0 or more bytes; {shown(number)} was given")
    return number


def check_range(whole: int, offset: object, size: object, what: str) -> tuple[int, int]:
    """Return an offset and a size inside a buffer of `whole` bytes; None means all that follows."""
    if size is None and type(offset) is int and 0 <= offset <= whole:
        return offset, whole - offset  # fast path
    start = check_index(offset, f"{what}: the offset")
    length = whole - start if size is None else check_index(size, f"{what}: the size")
    if start > whole or length > whole - start:
        asked = None if size is None else length
        raise InvalidArgumentError(explain_range(what, start, asked, "the buffer", whole))
    return start, length


def check_copy(
    source: int, target: int, offsets: tuple[object, object], size: object, apart: int | None
) -> tuple[int, int, int]:
    """Return where a copy begins in two buffers of so many bytes, and how many it copies.

    `apart` is by how much the target begins behind the source, if they are in one memory: nothing
    is copied from a range to itself, and ranges must not overlap otherwise.
    """
    first, length = check_range(source, offsets[0], size, "copy: the source")
    into, _ = check_range(target, offsets[1], length, "copy: the target")
    if apart is None or abs(distance := apart + into - first) >= length:
        return first, into, length
    if not distance:
        return first, into, 0
    raise InvalidArgumentError(
        f"copy: {length} bytes from offset {first} to offset {into} overlap in the same memory; "
        "copy through another buffer"
    )


def explain_range(what: str, start: int, length: int | None, thing: str, size: int) -> str:
    """Describe a range outside a thing of `size` bytes; None means all from `start` on."""
    asked = f"the offset is {shown(start)}"
    if length is not None:
        asked = f"bytes {shown(start)} to {shown(start + length)} were asked for"
    return f"{what}: {asked}, and {thing} has {size} bytes"
