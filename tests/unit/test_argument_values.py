"""Which values parameters take, and the bytes that kernels get of them."""

import array
import enum
import math
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from signature_harness import INTEGERS, PAIR, Buffer, Pair, contents, limits, pack, packed_bytes

from hal.errors import InvalidArgumentError


@pytest.mark.parametrize("name", INTEGERS)
def test_integer_takes_its_whole_range_and_nothing_beyond(name):
    low, high = limits(name)
    size = INTEGERS[name] // 8
    for value in (low, high, 0, 1):
        assert packed_bytes(name, value) == value.to_bytes(size, "little", signed=low < 0)
    for value in (low - 1, high + 1, 1 << 70, -(1 << 70)):
        with pytest.raises(InvalidArgumentError) as caught:
            pack(f"{name} n", value)
        message = f"kernel 'kernel': parameter 'n' ({name}) takes {low} to {high}, not {value}"
        assert str(caught.value) == message


def test_very_long_integer_is_refused_without_printing_it():
    with pytest.raises(InvalidArgumentError, match="20001 bits"):
        pack("i32 n", 1 << 20000)
    with pytest.raises(InvalidArgumentError, match="20001 bits"):
        pack("f64 n", 1 << 20000)


class Number(enum.IntEnum):
    SEVEN = 7


@pytest.mark.parametrize("value", [Number.SEVEN, *(np.dtype(c).type(7) for c in "bBhHiIlLqQ")])
def test_integer_takes_every_integer_type(value):
    assert packed_bytes("i32", value) == b"\7\0\0\0"
    assert packed_bytes("u8", value) == b"\7"
    assert packed_bytes("f32", value) == struct.pack("<f", 7)
    assert packed_bytes("f64", value) == struct.pack("<d", 7)


def test_numpy_integer_out_of_range_is_refused():
    with pytest.raises(InvalidArgumentError, match="-128 to 127, not 200"):
        pack("i8 n", np.uint8(200))
    with pytest.raises(InvalidArgumentError, match="not -1"):
        pack("u64 n", np.int8(-1))


FLOATS = {"f16": (np.float16, 2), "f32": (np.float32, 4), "f64": (np.float64, 8)}


@pytest.mark.parametrize("name", FLOATS)
@pytest.mark.parametrize("value", [0.0, -0.0, 0.1, 1e-7, 5e-324, math.inf, -math.inf, 65504])
def test_float_is_rounded_as_c_does(name, value):
    dtype, _ = FLOATS[name]
    for number in (value, np.float64(value), np.longdouble(value)):
        with np.errstate(all="ignore"):
            assert packed_bytes(name, number) == dtype(value).tobytes()


@pytest.mark.parametrize(("bits", "dtype"), [(11, np.float16), (24, np.float32)])
def test_a_long_double_is_rounded_once(bits, dtype):
    """Not to a double before, which would round what is above a tie to the even number below."""
    name = f"f{8 * np.dtype(dtype).itemsize}"
    least = np.longdouble(2) ** -62
    if np.longdouble(1) + least == 1:
        pytest.skip("no long double here has more bits than a double")
    tie = np.longdouble(2) ** -bits
    for whole, above in ((1, 1 + 2 * float(tie)), (1 + 2 * tie, 1 + 2 * float(tie))):
        value = np.longdouble(whole) + tie + (least if whole == 1 else -least)
        assert packed_bytes(name, value) == dtype(above).tobytes()
        assert packed_bytes(name, -value) == dtype(-above).tobytes()


@pytest.mark.parametrize("name", FLOATS)
def test_float_keeps_nan(name):
    dtype, _ = FLOATS[name]
    for number in (math.nan, np.float16("nan"), np.float32("nan"), np.longdouble("nan")):
        assert np.isnan(np.frombuffer(packed_bytes(name, number), dtype)[0])


@pytest.mark.parametrize(
    ("name", "last", "first_beyond"),
    [("f16", 65519.99, 65520.0), ("f32", 3.4028235677973362e38, 3.4028235677973366e38)],
)
def test_float_that_would_become_infinite_is_refused(name, last, first_beyond):
    dtype, _ = FLOATS[name]
    assert packed_bytes(name, last) == np.finfo(dtype).max.tobytes()
    for value in (first_beyond, -first_beyond, np.float64(first_beyond), 1e300):
        with pytest.raises(
            InvalidArgumentError, match=rf"'a' \({name}\) takes finite values up to"
        ):
            pack(f"{name} a", value)
    with pytest.raises(InvalidArgumentError, match="finite values"):
        pack(f"{name} a", int(first_beyond))
    with pytest.raises(InvalidArgumentError, match="finite values"):
        pack(f"{name} a", np.longdouble(first_beyond))


def test_integer_beyond_any_float_is_refused():
    assert packed_bytes("f64", 10**308) == struct.pack("<d", 1e308)
    with pytest.raises(InvalidArgumentError, match="finite values"):
        pack("f64 a", 10**309)


@given(st.integers(-(1 << 63), (1 << 63) - 1))
def test_integer_becomes_the_nearest_float(value):
    # numpy converts as C does: from 64 bits in one step.
    assert packed_bytes("f32", value) == np.int64(value).astype(np.float32).tobytes()
    assert packed_bytes("f32", np.int64(value)) == packed_bytes("f32", value)
    assert packed_bytes("f64", value) == np.int64(value).astype(np.float64).tobytes()


def test_integer_is_rounded_once():
    value = (1 << 54) + (1 << 30) + 1  # through a double it would end at a tie, and below
    assert packed_bytes("f32", value) == np.float32((1 << 54) + (1 << 31)).tobytes()
    assert packed_bytes("f32", -value) == np.float32(-(1 << 54) - (1 << 31)).tobytes()


def test_bool_takes_bools():
    block = pack("bool, bool, bool, bool", True, False, np.True_, np.False_)  # noqa: FBT003
    assert contents(block, 1, 1, 1, 1) == [b"\1", b"\0", b"\1", b"\0"]


def test_pointer_takes_buffers_and_none():
    block = pack("ptr x, ptr y, ptr z", Buffer(0xFFFF_FFFF_FFFF_FFFF), None, Buffer(0))
    assert contents(block, 8, 8, 8) == [b"\xff" * 8, b"\0" * 8, b"\0" * 8]


@pytest.mark.parametrize(
    "value",
    [
        struct.pack("<if", 1, 2.0),
        bytearray(struct.pack("<if", 1, 2.0)),
        memoryview(struct.pack("<if", 1, 2.0)),
        memoryview(b"".join(bytes((byte, 9)) for byte in struct.pack("<if", 1, 2.0)))[::2],
        np.array((1, 2.0), PAIR),
        np.array([(1, 2.0)], PAIR)[0],
        np.array([struct.pack("<if", 1, 2.0)], "V8")[0],
        np.frombuffer(struct.pack("<if", 1, 2.0), np.int32),
        array.array("i", np.frombuffer(struct.pack("<if", 1, 2.0), np.int32).tolist()),
        Pair(1, 2.0),
    ],
)
def test_record_takes_anything_with_its_bytes(value):
    assert packed_bytes("bytes[8]", value) == struct.pack("<if", 1, 2.0)


@pytest.mark.parametrize("size", [0, 7, 9, 16])
def test_record_of_another_size_is_refused(size):
    for value in (bytes(size), bytearray(size), np.zeros(size, np.uint8)):
        with pytest.raises(InvalidArgumentError) as caught:
            pack("bytes[8] p", value)
        expected = f"kernel 'kernel': parameter 'p' (bytes[8]) takes exactly 8 bytes, not {size}"
        assert str(caught.value) == expected
