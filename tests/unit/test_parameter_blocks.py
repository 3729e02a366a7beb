"""Blocks of arguments: life, patches, alignment, and what a compiled function gets."""

import ctypes
import gc
import shutil
import struct
import subprocess

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from signature_harness import (
    BUFFER,
    INTEGERS,
    PAIR,
    Buffer,
    Pair,
    contents,
    limits,
    pack,
    packed_bytes,
    pointers,
    resolve,
)

from hal._programs.signature import Parameter, ParameterBlock, Signature

COMPILER = shutil.which("g++") or shutil.which("clang++")


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
    expected = contents(block, *sizes)
    block.set_address(4, 0x1234)
    expected[4] = struct.pack("<Q", 0x1234)
    assert contents(block, *sizes) == expected
    assert (block.address, pointers(block, 6)) == before


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
        block.set_address(2, 1)
        assert contents(block, 1, alignment, 8) == [b"\xff", data, struct.pack("<Q", 1)]


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
    for index, parameter in enumerate(signature.parameters):
        one = signature._layout.pack_one("k", index, arguments[index])
        assert one == (bytes(8) if parameter.kind == "ptr" else expected[index])


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
