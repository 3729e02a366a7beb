"""Signatures as text, and which arguments they take, by place and by name."""

import copy
import ctypes
import pickle
import struct
import types
from collections import OrderedDict

import numpy as np
import pytest
from signature_harness import BUFFER, PAIR, Buffer, Pair, contents, pack, packed_bytes, resolve

from hal._programs.signature import Parameter, Signature
from hal.errors import ArgumentTypeError, ClosedError, InvalidArgumentError


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        ("(f32 a, ptr x, ptr y, i32 n)", "(f32 a, ptr x, ptr y, i32 n)"),
        ("ptr,u32,f32,bytes[12]", "(ptr arg0, u32 arg1, f32 arg2, bytes[12] arg3)"),
        (" ( i8 a,u8 b ,i16 c , u16\td,i64 e,u64 f) ", "(i8 a, u8 b, i16 c, u16 d, i64 e, u64 f)"),
        ("f16 a, f64, bool größe", "(f16 a, f64 arg1, bool größe)"),
        ("bytes[1] p", "(bytes[1] p)"),
        ("f32* a, const i64 *b, u8 * c", "(f32* a, const i64* b, u8* c)"),
        ("const f32*, bytes[12]*,bool*b", "(const f32* arg0, bytes[12]* arg1, bool* b)"),
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
        "ptr* a",
        "any[4]* a",
        "bytes[0]* a",
        "f32** a",
        "f32[2]* a",
        "f32 a*",
        "int* a",
    ],
)
def test_parse_refuses_other_text(text):
    with pytest.raises(InvalidArgumentError):
        Signature.parse(text)


@pytest.mark.parametrize("size", ["9" * 5000, "99999999999", "1048577"], ids=len)
@pytest.mark.parametrize("word", ["any", "bytes"])
def test_no_parameter_has_more_bytes_than_a_launch_takes(word, size):
    with pytest.raises(InvalidArgumentError, match=r"is no parameter|larger than") as caught:
        Signature.parse(f"({word}[{size}] p)")
    assert len(str(caught.value)) < 1000  # the user's text is quoted, but not all of it


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


def test_what_a_kernel_prints_to_is_its_last_parameter():
    assert Signature.parse("(i32 n, ptr hal_output)").output == "hal_output"
    assert Signature.parse("(ptr hal_output, i32 n)").output is None
    assert Signature.parse("()").output is None


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


@pytest.mark.parametrize(("kind", "value", "expected"), ANY)
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
    assert contents(block, 8, 4) == [struct.pack("<Q", 99), struct.pack("<i", 2)]


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
        ({"a": 1.0, "x": BUFFER, "m": 1, 7: 2}, "got 4 (missing: n; not in the signature: 'm', 7)"),
        ({"a": 1.0, "x": BUFFER, "n": 1, "m": 1}, "got 4 (not in the signature: 'm')"),
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


def test_a_signature_can_be_pickled_and_copied():
    signature = Signature.parse("(f32 a, const ptr x, bytes[12] p)")
    for made in (pickle.loads(pickle.dumps(signature)), copy.deepcopy(signature)):
        assert made == signature
        assert made.pack("k", (1.0, None, bytes(12)), resolve)
