"""Test that arguments are checked by name, and that a kernel gets exactly their bytes."""

from __future__ import annotations

import array
import ctypes
import enum
import gc
import math
import shutil
import struct
import subprocess
import types
from collections import OrderedDict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hal._signature import Parameter, ParameterBlock, Signature
from hal.errors import ArgumentTypeError, ClosedError, InvalidArgumentError

COMPILER = shutil.which("g++") or shutil.which("clang++")


class Buffer:
    """Stand in for a device buffer."""

    def __init__(self, address):
        self.address = address


def resolve(argument, name):
    assert isinstance(name, str)
    return argument.address if isinstance(argument, Buffer) else None


def pack(text, *arguments):
    return Signature.parse(text).pack("kernel", arguments, resolve)


def pointers(block, count):
    return list((ctypes.c_void_p * count).from_address(block.address))


def contents(block, *sizes):
    """Read each argument's bytes as a driver would: through its pointer."""
    return [
        ctypes.string_at(pointer, size)
        for pointer, size in zip(pointers(block, len(sizes)), sizes, strict=True)
    ]


def packed_bytes(parameter_type, argument):
    size = Signature.parse(parameter_type).parameters[0].size
    return contents(pack(parameter_type, argument), size)[0]


# Text


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        ("(f32 a, ptr x, ptr y, i32 n)", "(f32 a, ptr x, ptr y, i32 n)"),
        ("ptr,u32,f32,bytes[12]", "(ptr arg0, u32 arg1, f32 arg2, bytes[12] arg3)"),
        (" ( i8 a,u8 b ,i16 c , u16\td,i64 e,u64 f) ", "(i8 a, u8 b, i16 c, u16 d, i64 e, u64 f)"),
        ("f16 a, f64, bool größe", "(f16 a, f64 arg1, bool größe)"),
        ("bytes[1] p", "(bytes[1] p)"),
        ("()", "()"),
        ("", "()"),
        (" ( ) ", "()"),
    ],
)
def test_parse_and_print(text, printed):
    signature = Signature.parse(text)
    assert str(signature) == printed
    assert Signature.parse(printed) == signature
    assert hash(Signature.parse(printed)) == hash(signature)


@pytest.mark.parametrize(
    "text",
    [
        "int n",
        "ptr x,",
        ",",
        "f32 a b",
        "f128 a",
        "bytes p",
        "bytes[] p",
        "bytes[0] p",
        "bytes[-1] p",
        "bytes[2 p",
        "f32[2] a",
        "(f32 a",
        "f32 a)",
        "f32 a; f32 b",
        "f32 a, i32 a",
        "f32 arg1, i32",
        "const f32 a",
        "const bytes[4] a",
        "const any[8] a",
        "const const ptr a",
        "const x",
        "constptr x",
        "any a",
        "any[0] a",
        "ptr[8] a",
    ],
)
def test_parse_refuses_other_text(text):
    with pytest.raises(InvalidArgumentError):
        Signature.parse(text)


def test_parse_error_lists_the_types():
    with pytest.raises(InvalidArgumentError, match=r"'int n' is no parameter.*f32.*bytes\[N\]"):
        Signature.parse("(ptr x, int n)")


def test_signatures_are_values():
    a, b = Signature.parse("f32 a"), Signature.parse("f32 b")
    assert a != b
    assert a != "(f32 a)"
    assert "Parameter(name='a'" in repr(a)
    assert a.parameters == (Parameter("a", "float", 4, 4),)


@pytest.mark.parametrize(
    ("kind", "size", "alignment"),
    [
        ("int", 16, 16),
        ("int", 3, 1),
        ("float", 16, 16),
        ("ptr", 4, 4),
        ("bool", 4, 4),
        ("record", 0, 1),
        ("record", 4, 3),
        ("record", 4, 0),
        ("record", 4, -4),
        ("double", 8, 8),
    ],
)
def test_parameter_refuses_what_does_not_exist(kind, size, alignment):
    with pytest.raises(InvalidArgumentError, match="parameter 'p'"):
        Parameter("p", kind, size, alignment)


def test_constants_are_pointers_and_known_by_name():
    signature = Signature.parse("(const ptr x, ptr y, f32 a, const ptr z)")
    assert signature.constants == {"x", "z"}
    assert [each.is_const for each in signature.parameters] == [True, False, False, True]
    assert signature != Signature.parse("(ptr x, ptr y, f32 a, const ptr z)")
    assert packed_bytes("const ptr x", Buffer(77)) == struct.pack("<Q", 77)
    assert packed_bytes("const ptr x", None) == bytes(8)
    with pytest.raises(InvalidArgumentError, match=r"'n'.*const"):
        Parameter("n", "int", 4, 4, is_const=True)


# Parameters of which only the size is known


ANY = [
    ("any[4]", np.int32(-2), struct.pack("<i", -2)),
    ("any[4]", np.float32(0.5), struct.pack("<f", 0.5)),
    ("any[8]", np.float64(0.5), struct.pack("<d", 0.5)),
    ("any[8]", np.int64(-2), struct.pack("<q", -2)),
    ("any[8]", np.complex64(1 + 2j), struct.pack("<ff", 1, 2)),
    ("any[16]", np.complex128(1 + 2j), struct.pack("<dd", 1, 2)),
    ("any[1]", np.bool_(1), b"\1"),
    ("any[8]", Buffer(4096), struct.pack("<Q", 4096)),
    ("any[8]", None, bytes(8)),
    ("any[3]", b"abc", b"abc"),
    ("any[8]", b"abcdefgh", b"abcdefgh"),
    ("any[8]", memoryview(b"abcdefgh"), b"abcdefgh"),
]


@pytest.mark.parametrize(("kind", "value", "expected"), ANY, ids=str)
def test_any_takes_what_has_its_size(kind, value, expected):
    assert packed_bytes(kind, value) == expected


def test_any_takes_records():
    value = np.array([(3, 0.5)], dtype=PAIR)[0]
    assert packed_bytes("any[8]", value) == struct.pack("<if", 3, 0.5)
    assert packed_bytes("any[8]", Pair(3, 0.5)) == struct.pack("<if", 3, 0.5)


@pytest.mark.parametrize("kind", ["any[1]", "any[4]", "any[8]", "any[16]"])
@pytest.mark.parametrize(
    "value",
    [1, 0, 2.5, True, 1j, "text", np.zeros(1), np.str_("a"), np.datetime64(1, "s"), object(), []],
    ids=repr,
)
def test_any_takes_no_number_of_unknown_size(kind, value):
    with pytest.raises(ArgumentTypeError, match="kernel 'kernel': parameter 'arg0'"):
        pack(kind, value)


def test_any_says_how_to_write_a_number():
    with pytest.raises(ArgumentTypeError, match=r"not int.*np\.int32\(5\).*signature"):
        pack("any[4]", 7)
    with pytest.raises(ArgumentTypeError, match="a buffer, None for a null pointer, a numpy"):
        pack("any[8]", 7)
    with pytest.raises(ArgumentTypeError, match=r"device\.upload"):
        pack("any[8]", np.zeros(3))


@pytest.mark.parametrize(
    ("kind", "value"),
    [("any[4]", np.int64(1)), ("any[8]", np.int32(1)), ("any[2]", b"abc"), ("any[8]", b"")],
    ids=str,
)
def test_any_checks_the_size(kind, value):
    with pytest.raises(InvalidArgumentError, match=r"'arg0' \(any\[\d\]\) takes exactly \d bytes"):
        pack(kind, value)
    with pytest.raises(ArgumentTypeError, match="'arg0'"):
        pack("any[4]", Buffer(4096))


def test_any_is_patched_like_a_pointer():
    block = pack("any[8] a, any[4] b", Buffer(1), np.int32(2))
    block.set_address(0, 99)
    block.set("kernel", 1, np.float32(0.5), resolve)
    block.set("kernel", 0, Buffer(100), resolve)
    assert contents(block, 8, 4) == [struct.pack("<Q", 100), struct.pack("<f", 0.5)]


# Values


INTEGERS = {f"{sign}{bits}": bits for sign in "iu" for bits in (8, 16, 32, 64)}


def limits(name):
    info = np.iinfo({"i": "int", "u": "uint"}[name[0]] + name[1:])
    return int(info.min), int(info.max)


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


class Pair(ctypes.Structure):
    _fields_ = (("a", ctypes.c_int32), ("b", ctypes.c_float))


PAIR = np.dtype([("a", "<i4"), ("b", "<f4")])


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


# Types


BUFFER = Buffer(4096)
WRONG = [
    ("ptr", [1, 0, True, 1.0, "x", b"12345678", np.int64(1), np.zeros(2), ctypes.c_void_p(1)]),
    (
        "i32",
        [1.0, True, np.True_, np.float32(1), None, "1", b"1", BUFFER, 1j, np.timedelta64(1, "s")],
    ),
    ("u8", [False, np.array(1), np.array([1]), [1]]),
    ("f32", [True, np.True_, None, "1", BUFFER, 1j, np.complex64(1), np.array(1.0)]),
    ("f64", [np.timedelta64(1, "s"), np.datetime64(1, "s"), [1.0]]),
    ("bool", [0, 1, 1.0, None, np.int8(1), BUFFER, "x"]),
    ("bytes[8]", [None, 1, 1.0, "12345678", BUFFER, np.float64(1), np.int64(1), [1, 2]]),
    ("bytes[8]", [np.array([None], object), np.array((None,), [("a", object)])]),
]


@pytest.mark.parametrize(
    ("name", "values"), WRONG, ids=[f"{i}-{n}" for i, (n, _) in enumerate(WRONG)]
)
def test_wrong_type_is_refused_by_name(name, values):
    signature = Signature.parse(f"i32 first, {name} second")
    for value in values * 2:  # also once the types are known
        with pytest.raises(ArgumentTypeError) as caught:
            signature.pack("blur", (1, value), resolve)
        message = str(caught.value)
        assert message.startswith(f"kernel 'blur': parameter 'second' ({name}) takes ")
        assert f"not {type(value).__name__}" in message


@pytest.mark.parametrize(
    ("name", "value", "hint"),
    [
        ("ptr", 4096, "a number is never taken for an address"),
        ("ptr", np.uint64(4096), "a number is never taken for an address"),
        ("ptr", np.zeros(3), "device.upload(array)"),
        ("bytes[2]", np.float16(1), "value.tobytes()"),
    ],
)
def test_wrong_type_says_what_to_do(name, value, hint):
    with pytest.raises(ArgumentTypeError) as caught:
        pack(name, value)
    assert hint in str(caught.value)


def test_resolver_is_asked_once_by_name_and_its_error_passes():
    asked = []

    def refuse(argument, name):
        asked.append((argument, name))
        message = "the buffer is closed"
        raise ClosedError(message)

    signature = Signature.parse("f32 a, ptr x, ptr y")
    with pytest.raises(ClosedError, match="the buffer is closed"):
        signature.pack("saxpy", (1.0, BUFFER, BUFFER), refuse)
    assert asked == [(BUFFER, "x")]


# Number and order


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((1.0, BUFFER), "got 2 (missing: n)"),
        ((), "got 0 (missing: a, x, n)"),
        ((1.0, BUFFER, 1, 2, 3), "got 5 (not in the signature: argument 4, argument 5)"),
        ({"a": 1.0, "x": BUFFER}, "got 2 (missing: n)"),
        (
            {"a": 1.0, "x": BUFFER, "m": 1, 7: 2},
            "got 4 (missing: n; not in the signature: m, 7)",
        ),
        ({"a": 1.0, "x": BUFFER, "n": 1, "m": 1}, "got 4 (not in the signature: m)"),
        ({}, "got 0 (missing: a, x, n)"),
    ],
)
def test_wrong_number_names_what_is_missing_and_surplus(arguments, message):
    signature = Signature.parse("(f32 a, ptr x, i32 n)")
    with pytest.raises(ArgumentTypeError) as caught:
        signature.pack("saxpy", arguments, resolve)
    expected = f"kernel 'saxpy' takes 3 arguments (f32 a, ptr x, i32 n), {message}"
    assert str(caught.value) == expected


@pytest.mark.parametrize(
    "arguments",
    [
        [2, BUFFER, 5],
        {"n": 5, "x": BUFFER, "a": 2},
        OrderedDict(n=5, x=BUFFER, a=2),
        types.MappingProxyType({"n": 5, "x": BUFFER, "a": 2}),
    ],
)
def test_arguments_come_in_order_or_by_name(arguments):
    block = Signature.parse("f32 a, ptr x, i32 n").pack("saxpy", arguments, resolve)
    expected = [struct.pack("<f", 2), struct.pack("<Q", 4096), struct.pack("<i", 5)]
    assert contents(block, 4, 8, 4) == expected


@pytest.mark.parametrize("arguments", [1, None, "abc", b"xyz", {1, 2, 3}, BUFFER, iter(())])
def test_arguments_of_no_order_are_refused(arguments):
    with pytest.raises(ArgumentTypeError, match=r"tuple or, by name, as a mapping.*\(value,\)"):
        Signature.parse("u8 a, u8 b, u8 c").pack("k", arguments, resolve)


def test_no_parameters():
    signature = Signature(())
    for arguments in ((), [], {}):
        assert signature.pack("k", arguments, resolve).address > 0
    with pytest.raises(ArgumentTypeError, match=r"takes 0 arguments \(\), got 1"):
        signature.pack("k", (1,), resolve)


def test_types_made_at_run_time_do_not_pile_up():
    signature = Signature.parse("i32 n")
    for number in range(300):
        block = signature.pack("k", (type("Int", (int,), {})(number),), resolve)
        assert contents(block, 4) == [struct.pack("<i", number)]
    assert len(signature._plans) < 100


# Blocks


def test_block_stays_valid_while_it_lives():
    blocks = [pack("i64 a, ptr b", number, Buffer(number)) for number in range(200)]
    gc.collect()
    for number, block in enumerate(blocks):
        assert contents(block, 8, 8) == [struct.pack("<q", number)] * 2


def test_block_keeps_no_buffer_alive():
    block = pack("ptr x, bytes[4] p", BUFFER, b"abcd")
    assert isinstance(block, ParameterBlock)
    assert not any(referent is BUFFER for referent in gc.get_referents(block))


def test_block_is_patched_in_place():
    signature = Signature.parse("(u8 a, ptr x, f32 b, bytes[3] p, ptr y, bool c)")
    sizes = (1, 8, 4, 3, 8, 1)
    block = signature.pack("k", (1, BUFFER, 2.0, b"abc", BUFFER, True), resolve)
    before = (block.address, pointers(block, 6))
    block.set("k", 0, np.uint8(7), resolve)
    block.set("k", 1, None, resolve)
    block.set("k", 2, 3, resolve)
    block.set("k", 3, b"xyz", resolve)
    block.set_address(4, 0x1234)
    block.set("k", 5, np.False_, resolve)
    expected = [b"\7", bytes(8), struct.pack("<f", 3), b"xyz", struct.pack("<Q", 0x1234), b"\0"]
    assert contents(block, *sizes) == expected
    assert (block.address, pointers(block, 6)) == before
    block.set("k", 4, Buffer(0x77), resolve)
    assert contents(block, *sizes)[4] == struct.pack("<Q", 0x77)


def test_refused_patch_changes_nothing():
    block = pack("u8 a, ptr x, bytes[3] p", 1, BUFFER, b"abc")
    before = contents(block, 1, 8, 3)
    for index, value, error in [
        (0, 256, InvalidArgumentError),
        (0, 1.0, ArgumentTypeError),
        (1, 4096, ArgumentTypeError),
        (2, b"ab", InvalidArgumentError),
        (2, 1, ArgumentTypeError),
    ]:
        with pytest.raises(error, match=r"kernel 'k': parameter '[axp]'"):
            block.set("k", index, value, resolve)
    assert contents(block, 1, 8, 3) == before


@pytest.mark.parametrize("alignment", [1, 2, 4, 8, 16, 32, 64, 256])
def test_values_are_aligned(alignment):
    signature = Signature(
        [
            Parameter("a", "uint", 1, 1),
            Parameter("p", "record", alignment, alignment),
            Parameter("x", "ptr", 8, 8),
        ]
    )
    data = bytes(range(alignment % 256 or 1)) * (256 if alignment == 256 else 1)
    blocks = [signature.pack("k", (255, data, BUFFER), resolve) for _ in range(20)]
    for block in blocks:
        assert contents(block, 1, alignment, 8) == [b"\xff", data, struct.pack("<Q", 4096)]
        assert pointers(block, 3)[1] % alignment == 0
        block.set("k", 1, bytes(alignment), resolve)
        block.set_address(2, 1)
        assert contents(block, 1, alignment, 8) == [b"\xff", bytes(alignment), struct.pack("<Q", 1)]


SCALARS = {
    **{name: st.integers(*limits(name)) for name in INTEGERS},
    "f16": st.floats(width=16),
    "f32": st.floats(width=32),
    "f64": st.floats(),
    "bool": st.booleans(),
    "ptr": st.one_of(st.none(), st.integers(0, (1 << 64) - 1).map(Buffer)),
}
NUMPY_NAMES = {"i": "int", "u": "uint", "f": "float"}


@st.composite
def calls(draw):
    """Draw a signature's text with arguments, and the bytes that numpy makes of them."""
    parts, arguments, expected = [], [], []
    for index in range(draw(st.integers(0, 8))):
        name = draw(st.sampled_from([*SCALARS, "bytes"]))
        if name == "bytes":
            value = draw(st.binary(min_size=1, max_size=40))
            name, data = f"bytes[{len(value)}]", value
        else:
            value = draw(SCALARS[name])
            if name == "ptr":
                data = np.uint64(value.address if value else 0).tobytes()
            elif name == "bool":
                data = np.bool_(value).tobytes()
            else:
                scalar = np.dtype(NUMPY_NAMES[name[0]] + name[1:]).type(value)
                data = scalar.tobytes()
                if draw(st.booleans()):
                    value = scalar
        parts.append(f"{name} p{index}")
        arguments.append(value)
        expected.append(data)
    return f"({', '.join(parts)})", tuple(arguments), expected


@given(calls(), st.randoms(use_true_random=False))
@settings(max_examples=200, deadline=None)
def test_packing_gives_the_bytes_that_numpy_gives(call, random):
    text, arguments, expected = call
    signature = Signature.parse(text)
    assert str(signature) == text
    by_name = [(p.name, a) for p, a in zip(signature.parameters, arguments, strict=True)]
    random.shuffle(by_name)
    sizes = [len(data) for data in expected]
    for given_as in (arguments, arguments, dict(by_name)):
        block = signature.pack("k", given_as, resolve)
        assert contents(block, *sizes) == expected
        for pointer, parameter in zip(
            pointers(block, len(sizes)), signature.parameters, strict=True
        ):
            assert pointer % parameter.alignment == 0
    patched = signature.pack("k", tuple(map(neutral, signature.parameters)), resolve)
    for index, argument in enumerate(arguments):
        patched.set("k", index, argument, resolve)
    assert contents(patched, *sizes) == expected


def neutral(parameter):
    zeros = {"ptr": None, "bool": False, "float": 0.0, "record": bytes(parameter.size)}
    return zeros.get(parameter.kind, 0)


# A compiled function that takes its arguments as a kernel does

ECHO = """
struct alignas(32) Wide { float x[8]; };
struct Pair { int a; float b; };
template <typename T> static T take(void **arguments, int index) {
  return *static_cast<T *>(arguments[index]);
}
struct Result {
  double sum; unsigned char *pointer; long long a; unsigned char b; bool c; float d; Pair p; Wide w;
};
extern "C" int echo(void **arguments, Result *out) {
  *out = Result{take<double>(arguments, 0), take<unsigned char *>(arguments, 1),
                take<long long>(arguments, 2), take<unsigned char>(arguments, 3),
                take<bool>(arguments, 4), take<float>(arguments, 5), take<Pair>(arguments, 6),
                take<Wide>(arguments, 7)};
  return reinterpret_cast<unsigned long long>(arguments[7]) % 32 == 0;
}
extern "C" float rounded(long long value) { return static_cast<float>(value); }
extern "C" unsigned int layout() { return sizeof(Result) * 1000 + alignof(Result); }
"""


class Result(ctypes.Structure):
    _fields_ = (
        ("sum", ctypes.c_double),
        ("pointer", ctypes.c_uint64),
        ("a", ctypes.c_int64),
        ("b", ctypes.c_uint8),
        ("c", ctypes.c_bool),
        ("d", ctypes.c_float),
        ("p", Pair),
        ("padding", ctypes.c_uint8 * 24),
        ("w", ctypes.c_float * 8),
    )


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    if COMPILER is None:
        pytest.skip("there is no g++ and no clang++ here")
    folder = tmp_path_factory.mktemp("echo")
    (folder / "echo.cpp").write_text(ECHO)
    command = [COMPILER, "-std=c++17", "-O2", "-march=native", "-shared", "-fPIC", "echo.cpp"]
    subprocess.run([*command, "-o", "echo.so"], cwd=folder, check=True)
    library = ctypes.CDLL(str(folder / "echo.so"))
    library.rounded.restype = ctypes.c_float
    library.rounded.argtypes = [ctypes.c_int64]
    assert library.layout() == ctypes.sizeof(Result) * 1000 + 32
    return library


def test_compiled_function_gets_the_arguments(compiled):
    signature = Signature(
        [
            Parameter("sum", "float", 8, 8),
            Parameter("pointer", "ptr", 8, 8),
            Parameter("a", "int", 8, 8),
            Parameter("b", "uint", 1, 1),
            Parameter("c", "bool", 1, 1),
            Parameter("d", "float", 4, 4),
            Parameter("p", "record", 8, 4),
            Parameter("w", "record", 32, 32),
        ]
    )
    wide = np.arange(8, dtype=np.float32)
    arguments = (0.1, Buffer(0xDEAD), -5, 200, True, 0.1, np.array((7, 0.5), PAIR), wide)
    storage = ctypes.create_string_buffer(ctypes.sizeof(Result) + 32)
    aligned = -(-ctypes.addressof(storage) // 32) * 32
    for _ in range(20):
        block = signature.pack("echo", arguments, resolve)
        result = Result.from_address(aligned)
        assert compiled.echo(ctypes.c_void_p(block.address), ctypes.c_void_p(aligned)) == 1
        assert (result.sum, result.pointer, result.a, result.b) == (0.1, 0xDEAD, -5, 200)
        assert (result.c, result.d) == (True, float(np.float32(0.1)))
        assert (result.p.a, result.p.b) == (7, 0.5)
        assert list(result.w) == list(range(8))


@given(value=st.integers(-(1 << 63), (1 << 63) - 1))
@settings(deadline=None)
def test_compiled_function_rounds_integers_alike(compiled, value):
    assert struct.unpack("<f", packed_bytes("f32", value))[0] == compiled.rounded(value)
