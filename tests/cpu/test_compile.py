"""The compile step: errors name what the user wrote, and everything given reaches the compiler."""

from unittest import mock

import numpy as np
import pytest

from hal._programs.type_table import read_type_table
from hal.errors import CompilationError, InvalidArgumentError
from hal_cpu import _toolchain

ERRORS = {
    "undeclared": (
        "__global__ void kernel(int *p) {\n  // comment\n  p[threadIdx.x] = undefined_name;\n}\n",
        "user.cpp:3:20: error: ",
        "undefined_name",
    ),
    "on the kernel's own line": (
        "#define A\n__global__ void kernel(int *p) { p[0] = mistake; }\n",
        "user.cpp:2:41: error: ",
        "mistake",
    ),
    "in the parameters": (
        "__global__ void kernel(int n,\n    missing_t p) {}\n",
        "user.cpp:2:5: error: ",
        "missing_t",
    ),
    "after another kernel": (
        "__global__ void one() {} __global__ void two(int *p) { p = oops; }\n",
        "user.cpp:1:60: error: ",
        "oops",
    ),
    "after shared memory": (
        """__global__ void kernel(int *p) {
  extern __shared__ int s[]; p[0] = s[0] + gone;
  p[1] = s[1];
}
""",
        "user.cpp:2:44: error: ",
        "gone",
    ),
    "in a device function": (
        "__device__ float f(float x) { return x +; }\n__global__ void kernel() {}\n",
        "user.cpp:1:41: error: ",
        "expected",
    ),
    "outside": ("\n\nint x = y_y;\n__global__ void kernel() {}\n", "user.cpp:3:9: error: ", "y_y"),
    "after a pragma": (
        """__global__ void kernel(int *p) {
#pragma unroll 4
  for (int k = 0; k < 4; k++) p[k] = a;
}
""",
        "user.cpp:3:38: error: ",
        "'a'",
    ),
    "include": (
        '#include "no_such_file.h"\n__global__ void kernel() {}\n',
        "user.cpp:1:10: fatal error: ",
        "no_such_file.h",
    ),
}


@pytest.mark.parametrize("case", ERRORS)
def test_errors_show_the_users_line(lab, case):
    source, place, text = ERRORS[case]
    with pytest.raises(CompilationError) as caught:
        lab.image(source)
    message, log = str(caught.value), caught.value.log
    assert place in message
    assert text in message
    assert place in log
    for word in ("hal_user_source", "image.cpp", "/tmp", "kernel.h"):
        assert word not in message
    line = source.splitlines()[int(place.split(":")[1]) - 1]
    if _toolchain.find_compiler().family == "gcc":  # others show what they were given
        assert line.replace("\t", "        ") in log, "the log quotes what the user wrote"


def test_an_error_with_an_odd_file_name(lab):
    name = 'my "kernels" \\ of 100% = §.cu'
    with pytest.raises(CompilationError) as caught:
        lab.image("__global__ void kernel() { oops; }\n", filename=name)
    assert f"{name}:1:28: error: " in str(caught.value)


def test_many_errors_are_summed_up(lab):
    body = "".join(f"  oops{i};\n" for i in range(20))
    with pytest.raises(CompilationError, match=r"oops0(.|\n)*and 15 more"):
        lab.image(f"__global__ void kernel() {{\n{body}}}\n")


def test_an_undefined_function(lab):
    """The linker or the loader finds out; either way it is named."""
    source = (
        "__device__ int not_anywhere(int);\n__global__ void k(int *p) { *p = not_anywhere(1); }"
    )
    with pytest.raises(Exception, match="not_anywhere"):
        lab.build(source)


OBJECTS = """
struct Shape { virtual int sides() const = 0; virtual ~Shape() {} };
struct Square : Shape { int sides() const override { return 4; } };
struct Triangle : Shape { int sides() const override { return 3; } };
__device__ __noinline__ int sides_of(const Shape &shape) { return shape.sides(); }
"""
LINKED = {
    "mathematics": ("", 'printf(""); p[0] = 3 + (int)powf(p[0] - 3, 0.0f);', 1),
    "wide numbers": ("", "__int128 n = p[0] * 4; p[0] = n / p[0];", 1),
    "a virtual function": (
        OBJECTS,
        "Square s; Triangle t; p[0] = sides_of(t) + sides_of(s) - p[0];",
        2,
    ),
    "a global object": (
        "struct Number { volatile int n; Number() : n(4) {} ~Number() { n = 0; } } number;",
        "p[0] = number.n;",
        2,
    ),
}


@pytest.mark.parametrize("case", LINKED.values(), ids=LINKED)
def test_the_cpp_library_is_linked_where_it_is_needed(lab, monkeypatch, tmp_path, case):
    outside, body, runs = case
    family = _toolchain.find_compiler().family
    if family == "zig" and outside == OBJECTS:
        pytest.skip("zig links no C++ library, which has what is called for a pure function")
    monkeypatch.setenv("HAL_CACHE_DIR", str(tmp_path))
    run = mock.Mock(wraps=_toolchain.run_compiler)
    monkeypatch.setattr(_toolchain, "run_compiler", run)
    kernel = lab.function(f"{outside} __global__ void kernel(int *p) {{ {body} }}")
    p = lab.array([3], "i4")
    lab.run(kernel, 1, 1, p)
    assert p.tolist() == [4]
    if family == "gcc":
        assert run.call_count == runs


def test_defines(lab):
    source = """
__global__ void kernel(int *p) { p[0] = VALUE; p[1] = TWICE(21); p[2] = sizeof(TEXT); }
"""
    defines = {"VALUE": "-3", "TWICE(x)": "((x) * 2)", "TEXT": '"a \\"b\\""', "EMPTY": ""}
    kernel = lab.function(source, defines=defines)
    p = lab.array(np.zeros(3), "i4")
    lab.run(kernel, 1, 1, p)
    assert p.tolist() == [-3, 42, 6]


@pytest.mark.parametrize("name", ["1X", "A B", "", "A\nB", "A=1", "-X", "A)("])
def test_wrong_defines(lab, name):
    with pytest.raises(InvalidArgumentError, match="is no name of a macro"):
        lab.image("__global__ void kernel() {}", defines={name: "1"})


def test_a_define_cannot_bring_lines(lab):
    with pytest.raises(InvalidArgumentError, match="line break"):
        lab.image("__global__ void kernel() {}", defines={"A": "1\n#include </etc/passwd>"})


def test_options(lab):
    kernel = lab.function(
        "__global__ void kernel(int *p) { p[0] = VALUE; }\n", options=("-DVALUE=5", "-O1")
    )
    p = lab.array(np.zeros(1), "i4")
    lab.run(kernel, 1, 1, p)
    assert p[0] == 5
    with pytest.raises(CompilationError, match="no-such-option"):
        lab.image("__global__ void kernel() {}", options=("--no-such-option",))


def test_macros_do_not_reach_what_surrounds_the_source(lab):
    """Names that the header and the generated text use may be the user's macros."""
    names = """
        A B F I N P T To a b c f g i x_ y_ to from old name next run size offset layout block
        worker shared grid launch first last entry frame fast any loops one arguments value address
        barriers tell flags index get wanted saved count kernel_ argument small type
    """
    numbers = dict.fromkeys(names.split(), "7")
    source = """
#define thread 1 +
__global__ void k(int *p) { p[threadIdx.x] = A + thread 1; }
"""
    expected = lab.array(np.full(4, 9), "i4")
    for request in (
        {"defines": numbers},
        {"options": tuple(f"-D{name}=7" for name in numbers)},
        {"options": ("-D", "A=7", "-Dsize", "-Uunused")},
    ):
        p = lab.array(np.zeros(4), "i4")
        lab.run(lab.function(source, "k", table=True, **request), 1, 4, p)
        assert (p == expected).all()


def test_options_are_no_shell_text(lab, tmp_path):
    target = tmp_path / "made"
    options = (f"; touch {target}", f"$(touch {target})")
    with pytest.raises(CompilationError):
        lab.image("__global__ void kernel() {}", options=options)
    assert not target.exists()


def test_contraction_can_be_turned_off(lab):
    source = "__global__ void kernel(float a, float b, float c, float *p) { p[0] = a * b + c; }\n"
    a, b = np.float32(1 + 2**-12), np.float32(1 + 2**-12)
    c = -np.float32(a * b)
    p = lab.array(np.ones(1), "f4")
    lab.run(lab.function(source, options=("-ffp-contract=off",)), 1, 1, a, b, c, p)
    assert p[0] == 0


def test_include_directories(lab, tmp_path):
    """A header that changes makes a new image; one with a barrier makes its users wait."""
    folder = tmp_path / "with space"
    folder.mkdir()
    header = folder / "tools.h"
    source = (
        '#include "tools.h"\n'
        "__global__ void kernel(int *p) {\n"
        "  __shared__ int s[64];\n"
        "  s[threadIdx.x] = p[threadIdx.x];\n"
        "  meet();\n"
        "  p[threadIdx.x] = s[63 - threadIdx.x] + BASE + (int)threadIdx.x * where();\n"
        "}\n"
    )
    for base in (1, 2):
        header.write_text(
            f"#define BASE {base}\n#define SYNC __syncthreads()\n"
            "__device__ void meet() { SYNC; }\n"
            "__device__ int where() { return blockIdx.x; }\n"
        )
        kernel = lab.function(source, include_directories=(str(folder),))
        p = lab.array(np.arange(64), "i4")
        lab.run(kernel, 1, 64, p)
        assert (p == np.arange(64)[::-1] + base).all()


HIDDEN = {
    "macro": """
#define SYNC() __syncthreads()
__global__ void kernel(int *p) { BODY(SYNC()) }
""",
    "function": """
__device__ void sync() { __syncthreads(); }
__global__ void kernel(int *p) { BODY(sync()) }
""",
    "method": """
struct S { __device__ void sync() const { __syncthreads(); } };
__global__ void kernel(int *p) { S o; BODY(o.sync()) }
""",
    "argument": """
struct S { __device__ void sync() const { __syncthreads(); } };
__global__ void kernel(int *p, S o) { BODY(o.sync()) }
""",
    "template": """
template <class F> __device__ void twice(F f) { f(); __syncthreads(); }
__global__ void kernel(int *p) { BODY(twice([] {})) }
""",
    "namespace": """
namespace a { namespace { inline __device__ int n() { __syncthreads(); return 1; } } }
namespace b { __device__ int m(int k = a::n()); __device__ int m(int k) { return k; } }
__global__ void kernel(int *p) { BODY(b::m()) }
""",
    "base": """
struct base { __device__ base() { __syncthreads(); } };
struct derived : base { int x; };
typedef derived other;
__global__ void kernel(int *p) { BODY(other o) }
""",
    "table in sight": """
__device__ void meet() { __syncthreads(); }
__device__ void (*const table[])() = {meet};
#undef BODY
#define BODY(f) __shared__ int s[32]; s[threadIdx.x] = p[threadIdx.x]; f; \\
  p[threadIdx.x] = s[31 - threadIdx.x];
__global__ void kernel(int *p) { BODY(table[0]()) }
""",
    "table": """
__device__ void sync() { __syncthreads(); }
__device__ void (*const table[])() = {sync};
__global__ void kernel(int *p) { BODY(table[0]()) }
""",
}


@pytest.mark.parametrize("case", HIDDEN)
def test_barriers_are_found_wherever_they_are(lab, case):
    body = "#define BODY(sync) __shared__ int s[32]; s[threadIdx.x] = p[threadIdx.x]; sync; "
    kernel = lab.function(f"{body} p[threadIdx.x] = s[31 - threadIdx.x];\n{HIDDEN[case]}\n")
    p = lab.array(np.arange(32), "i4")
    lab.run(kernel, 1, 32, p, np.int8(0))
    assert (p == np.arange(32)[::-1]).all()


def test_a_barrier_from_a_macro_of_the_request(lab):
    source = """
__global__ void kernel(int *p) {
  __shared__ int s[32];
  s[threadIdx.x] = p[threadIdx.x]; SYNC; p[threadIdx.x] = s[31 - threadIdx.x];
}
"""
    defined = {"SYNC": "__syncthreads()"}
    for request in ({"defines": defined}, {"options": ("-DSYNC=__syncthreads()",)}):
        p = lab.array(np.arange(32), "i4")
        lab.run(lab.function(source, **request), 1, 32, p)
        assert (p == np.arange(32)[::-1]).all()


def test_a_barrier_that_is_not_found_says_so(python):
    program = """
from hal._programs.scanner import scan
from hal.native import CompileRequest
from hal_cpu.compiler import CpuCompiler
from hal_cpu.driver import CpuDriver
import ctypes
source = '''
#define PASTE(a, b) a##b
__global__ void kernel() { PASTE(__sync, threads)(); }
'''
device = CpuDriver().open_device(0, {})
request = CompileRequest(source, "user.cpp", scan(source, filename="user.cpp"), "")
module = device.load_module(CpuCompiler().compile(request, "").image)
stream = device.create_stream()
device.launch(stream, device.get_function(module, "kernel"), (1, 1, 1), (2, 1, 1), 0, 0)
device.synchronize_stream(stream)
"""
    result = python(program)
    assert result.returncode == -6
    assert "__syncthreads() that was not found in its source" in result.stderr


def test_preprocessor_conditions(lab):
    module = lab.build("""
#if 0
__global__ void absent(int *p) { __syncthreads(); }
#endif
#ifdef __HAL_CPU__
__global__ void kernel(int *p) { p[0] = 1; }
#else
__global__ void other(int *p) { p[0] = 2; }
#endif
#if 1
// it's here
#endif
""")
    p = lab.array(np.zeros(1), "i4")
    lab.run(lab.device.get_function(module, "kernel"), 1, 1, p)
    assert p[0] == 1


def test_the_type_table_is_in_the_image(lab):
    module = lab.build(
        """
struct P { float x; char c; };
__global__ void kernel(float a, const P *p, P q, unsigned char n, bool b) {}
__global__ void none() {}
""",
        table=True,
    )
    tables = []
    for name in ("hal_kernels", "hal_parameters"):
        address, size = lab.device.get_global(module, name)
        back = np.zeros(size, "u1")
        stream = lab.stream()
        lab.device.copy_to_host(stream, back.ctypes.data, address, size)
        lab.finish(stream)
        tables.append(back.tobytes())
    signatures = read_type_table(*tables)
    assert list(signatures) == ["kernel", "none"]
    parameters = [(each.name, each.size) for each in signatures["kernel"].signature.parameters]
    assert parameters == [("a", 4), ("p", 8), ("q", 8), ("n", 1), ("b", 1)]


def test_too_many_parameters(lab):
    with pytest.raises(CompilationError, match="32768 bytes"):
        lab.image("struct S { char c[40000]; };\n__global__ void kernel(S s) {}\n")


def test_line_endings_and_a_missing_last_one(lab):
    source = (
        "__global__ void kernel(int *p)\r\n{\r\n"
        "  p[0] = __LINE__; // x \\\n y\r\n  p[1] = __LINE__; }"
    )
    p = lab.array(np.zeros(2), "i4")
    lab.run(lab.function(source), 1, 1, p)
    assert p.tolist() == [3, 5]


def test_debug_directory(python, tmp_path):
    program = """
from hal._programs.scanner import scan
from hal.native import CompileRequest
from hal_cpu.compiler import CpuCompiler
from hal_cpu.driver import CpuDriver
source = "__global__ void kernel(int *p) { p[0] = 1; }\\n"
device = CpuDriver().open_device(0, {})
request = CompileRequest(source, "user.cpp", scan(source, filename="user.cpp"), "", options=("-g",))
device.load_module(CpuCompiler().compile(request, "").image)
"""
    result = python(program, HAL_CPU_DEBUG_DIR=str(tmp_path))
    assert (result.returncode, result.stderr) == (0, "")
    (source,) = tmp_path.glob("*.cpp")
    assert source.read_text() == "__global__ void kernel(int *p) { p[0] = 1; }\n"
    images = [path.read_bytes() for path in tmp_path.glob("*.so")]
    assert any(source.name.encode() in image for image in images), "debuggers find the source"
