"""What a compiler refuses is one error at the user's line, in the words of the dialect (C5)."""

import os
import pathlib
import re

import pytest

import hal
from hal._programs.compile_errors import explained
from hal._programs.scanner import scan
from hal._programs.words import RESERVED
from hal.errors import CompilationError, InvalidArgumentError
from hal.native import CompileRequest

HEAD = "struct Pair { int left, right; };\n"
OURS = re.compile(r"hal_(?!output)|hal_cpu/|type_table|/tmp")

REFUSED = {
    "an int": ("\n__global__ int f(int *p) { return 1; }", "m.cu:2: .*'f': it returns `int`, and"),
    "a pointer": ("__global__ void *f(int *p) { return p; }", r"m.cu:1: .*it returns `void \*`"),
    "an alias": (
        "typedef int T;\n__global__ T f(int *p) { return 1; }",
        "m.cu:2: error: kernel 'f': a kernel returns void",
    ),
    "an unknown type": ("\n__global__ void f(half_t *p) {}", r"m.cu:2:\d+: error: .*half_t"),
    "a structure that is no data": (
        "struct S { ~S() {} };\n\n__global__ void f(S s) {}",
        "m.cu:3: error: kernel 'f': parameter 's' must be trivially copyable",
    ),
    "too large a structure": (
        "struct S { int a[10000]; };\n\n__global__ void f(S s) {}",
        "m.cu:3: error: kernel 'f': its parameters take 32768 bytes at most",
    ),
    "no block": ("\n__global__ void HAL_BLOCK(0) f() {}", "m.cu:2: error: kernel 'f': HAL_BLOCK"),
    "too much shared memory": (
        "\n__global__ void f(int *p) { __shared__ int a[60000], b[60000]; a[p[0]] = b[p[1]]; }",
        "m.cu:2: error: kernel 'f': it declares 480,000 bytes of __shared__ memory, and a block",
    ),
    "printf of a structure": (
        HEAD + '__global__ void f() {\n  Pair p{}; printf("%d", p);\n}',
        r"m.cu:3:\d+: error: printf takes a format, and numbers, pointers and texts; no structures",
    ),
    "printf in a macro": (
        HEAD + '#define LOG(x) printf("%d", x)\n__global__ void f() { Pair p{}; LOG(p); }',
        r"m.cu:[23]:\d+: error: printf takes a format",
    ),
    "printf of a number": (
        "__global__ void f() { printf(5); }",
        r"m.cu:1:\d+: error: printf takes",
    ),
    "complex": (
        "// mine\n#include <complex>\n__global__ void f(float *x) { std::complex<float> c; }",
        "m.cu:2:1: error: <complex> is a header of the standard library, which kernels do not have",
    ),
    "exp": (
        'extern "C" __global__ void exp(int *p) {}',
        "m.cu:1: kernel 'exp': C or the dialect has a",
    ),
    "main": ("__global__ void main(int *p) {}", "m.cu:1: kernel 'main': C or the dialect"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_refused_is_one_error_at_the_users_line_c5(device, what):
    source, pattern = REFUSED[what]
    with pytest.raises((CompilationError, InvalidArgumentError)) as caught:
        device.compile(source, filename="m.cu")
    lines = str(caught.value).splitlines()
    if isinstance(caught.value, CompilationError):
        assert lines.pop(0) == "m.cu does not compile:"
    assert len(lines) == 1, lines
    assert re.match(pattern, lines[0]), lines
    assert not OURS.search(lines[0]), lines
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


def test_a_trace_of_a_structure_is_told_where_it_stands_c5(device):
    source = HEAD + "__global__ void f() {\n  Pair p{};\n  HAL_TRACE(p);\n}"
    with pytest.raises(
        CompilationError, match=r":4:\d+: error: HAL_TRACE takes a number, a"
    ) as caught:
        device.compile(source, filename="m.cu", trace=True)
    assert len(str(caught.value).splitlines()) == 2


def test_without_a_device_it_is_the_same_c5():
    source, pattern = REFUSED["an unknown type"]
    with pytest.raises(CompilationError) as caught:
        hal.compile(source, filename="m.cu", target="cpu")
    assert re.fullmatch(rf"cpu: m\.cu does not compile:\n{pattern}.*", str(caught.value))


def test_the_log_has_all_that_the_compiler_said_c5(device):
    source, _ = REFUSED["complex"]
    with pytest.raises(CompilationError) as caught:
        device.compile(source, filename="m.cu")
    assert "include/c++" in caught.value.log


@pytest.mark.parametrize(
    ("line", "told"),
    [
        # NVRTC's words and hiprtc's, with the place as all backends write it
        ('m.cu:3:7: error: no instance of function template "hal_pf" matches', "printf takes"),
        ("m.cu:3:7: error: no matching function for call to 'hal_pf'", "printf takes"),
        (
            "hal_type_table:9:1: error: static assertion failed with \"kernel 'f': no\"",
            "m.cu:2: error: kernel 'f': no",
        ),
        (
            "hal_type_table:9:1: error: static_assert failed due to 'a' \"kernel 'f': no\"",
            "m.cu:2: error: kernel 'f': no",
        ),
        ('m.cu:1: catastrophic error: cannot open source file "cmath"', "m.cu:1:1: error: <cmath>"),
        ("m.cu:1:10: fatal error: 'cmath' file not found", "m.cu:1:1: error: <cmath> is a header"),
    ],
)
def test_the_words_of_every_compiler_are_known_c5(line, told):
    source = "#include <cmath>\n__global__ void f() {}\n"
    request = CompileRequest(source, "m.cu", scan(source, filename="m.cu"), "")
    error = CompilationError.from_log("it fails", [line, "hal_type_table:7:1: error: more"], line)
    shown = str(explained(error, request)).splitlines()
    assert len(shown) == 2
    assert told in shown[1]


def test_errors_that_are_all_in_text_of_ours_are_shown_as_they_are_c5():
    request = CompileRequest("", "m.cu", (), "")
    error = CompilationError.from_log("it fails", ["hal_type_table:7:1: error: odd"], "log")
    assert str(explained(error, request)) == str(error)
    other = CompilationError("of another kind", log="log")
    assert explained(other, request) is other


def test_no_device_and_no_pipe_is_included_c5(device, tmp_path):
    """A compiler reads them without an end, and takes the machine's memory meanwhile."""
    os.mkfifo(tmp_path / "pipe.h")
    (tmp_path / "good.h").write_text("#define VALUE 3\n")
    kernel = "\n__global__ void HAL_BLOCK(1) f(int *p) { p[0] = VALUE; }"
    for line, name in [('#include "/dev/zero"', "/dev/zero"), ("# include <pipe.h>", "pipe.h")]:
        with pytest.raises(
            InvalidArgumentError, match=rf"m\.cu:2: .*{name}' is no file to include"
        ):
            device.compile(f"\n{line}{kernel}", filename="m.cu", include_directories=[tmp_path])
    skipped = '#if 0\n#include "no.h"\n#endif\n#include "good.h"'
    assert "f" in device.compile(skipped + kernel, include_directories=[tmp_path])


def test_functions_of_the_dialect_are_the_processors():
    """A kernel of such a name would stand in for the function; four headers declare them."""
    folder = pathlib.Path(pytest.importorskip("hal_cpu").__path__[0])
    text = "".join(
        (folder / name).read_text("utf-8")
        for name in ("kernel.h", "functions.h", "intrinsics.h", "special.h")
    )
    head = r"^(?:template <[^>]*> )?(?:static HAL_INLINE|extern \"C\") [^(;]*?\b([A-Za-z_]\w*)\("
    declared = set(re.findall(head, text, re.MULTILINE))
    declared |= set(
        re.findall(
            r"HAL_(?:UNARY|BINARY|ATOMIC|ONE|TWO|THREE|ROUNDED|TURNS|DOT|FROM_DOUBLE)\((\w+)", text
        )
    ) - {"name"}
    ours = {name for name in declared if name.startswith(("hal_", "make_"))}
    assert len(declared) > 120
    assert declared - ours - RESERVED == {"__assert_fail"}


def test_an_image_with_too_much_shared_memory_says_so_at_its_dispatch(device):
    kernel = device.compile("__global__ void HAL_BLOCK(1) f() {}")["f"]
    kernel.static_shared_memory = 10**6  # as an image from elsewhere may tell
    with pytest.raises(
        InvalidArgumentError, match="declares 1,000,000 bytes of shared memory, and"
    ):
        device.queue.dispatch(kernel, grid=1)
