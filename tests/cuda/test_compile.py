"""Compilation: what NVRTC is given, and what becomes of its errors."""

import pytest
from compile_requests import compiled, request

from hal.errors import CompilationError, InvalidArgumentError, UnimplementedError

SOURCE = """
struct Pair { int a; float b; };
__global__ void forward(int);
static __device__ int helper(int x) { return x; }
extern "C" __global__ void already(float *x) { x[0] = 1; }
extern "C" {
/* __global__ { */ void __global__ forward(int a) { helper(a); }
}
template <class T> __global__ void forward(T, T);
namespace some { __device__ int f() { return ';'; } }
#define BRACE {
__global__ void last(Pair p, double *y) { if (p.a) { y[0] = p.b; } }
"""
BROKEN = "__global__ void broken(int *p) {\n  p[0] = missing;\n}\n"
LOG = """broken.cpp(2): error: identifier "missing" is undefined
    p[0] = missing;
           ^

1 error detected in the compilation of "broken.cpp".
"""


class Compiler:
    """Take NVRTC's place."""

    def __init__(self, known=(80, 90), image=b"image", log=""):
        self.known, self.image, self.log = known, image, log
        self.calls = []

    def compiler(self):
        return "13.0", self.known

    def compile_source(self, source, name, options, headers):
        self.headers = headers
        self.calls.append((source.decode(), name.decode(), [each.decode() for each in options]))
        return self.image, self.log


@pytest.fixture
def compile_with(native, monkeypatch, tmp_path):
    from hal_cuda import _compile  # noqa: PLC0415

    monkeypatch.setenv("HAL_CACHE_DIR", str(tmp_path))

    def function(compiler, source=SOURCE, architecture="sm_90", **more):
        monkeypatch.setattr(native, "compiler", compiler.compiler)
        monkeypatch.setattr(native, "compile_source", compiler.compile_source)
        target = _compile.target_for(architecture)
        return _compile.compile_image(request(source, **more), target)[0]

    return function


def linked(text):
    """Return what stands in the braces of ``extern "C"`` that were put in."""
    pieces = text.split('\nextern "C" {\n#line')[1:]
    return [piece.split("\n", 1)[1].split("\n}\n#line")[0].strip() for piece in pieces]


def test_kernels_and_their_declarations_have_c_names(compile_with):
    compiler = Compiler()
    assert compile_with(compiler) == b"image"
    found = linked(compiler.calls[0][0])
    assert [piece.split("(")[0].split()[-1] for piece in found] == [
        "forward",
        "already",
        "forward",
        "last",
    ]
    assert found[0] == "__global__ void forward(int);"
    assert found[3].endswith("y[0] = p.b; } }")


def test_lines_and_columns_stay_what_they_were(compile_with):
    compiler = Compiler()
    compile_with(compiler, filename="my file.cpp")
    line, name, seen = 0, "", {}
    for text in compiler.calls[0][0].splitlines():
        if text.startswith("#line "):
            number, name = text[6:].split(" ", 1) if " " in text[6:] else (text[6:], name)
            line = int(number) - 1
            continue
        line += 1
        if name == '"my file.cpp"':
            for column, letter in enumerate(text):
                if letter != " ":
                    seen[line, column] = letter
    for line, text in enumerate(SOURCE.splitlines(), start=1):
        for column, letter in enumerate(text):
            if letter not in " \t":
                assert seen[line, column] == letter, (line, column)


def test_the_architecture_is_the_devices(compile_with):
    compiler = Compiler()
    compile_with(compiler)
    assert "--gpu-architecture=sm_90" in compiler.calls[0][2]


@pytest.mark.parametrize(
    ("architecture", "wanted"),
    [("sm_120", "compute_90"), ("sm_86", "compute_80"), ("sm_52", "sm_52")],
)
def test_a_device_that_the_compiler_does_not_know_gets_ptx(compile_with, architecture, wanted):
    compiler = Compiler()
    compile_with(compiler, architecture=architecture)
    assert f"--gpu-architecture={wanted}" in compiler.calls[0][2]


def test_the_users_options_win(compile_with):
    compiler = Compiler()
    options = ("-std=c++20", "--gpu-architecture=compute_80", "--use_fast_math")
    compile_with(compiler, options=options, include_directories=("/some/where",))
    given = compiler.calls[0][2]
    assert [each for each in given if "std" in each] == ["-std=c++20"]
    assert [each for each in given if "arch" in each] == ["--gpu-architecture=compute_80"]
    assert {"--use_fast_math", "--include-path=/some/where"} <= set(given)


def test_macros_are_lines(compile_with):
    compiler = Compiler()
    compile_with(compiler, defines={"N": "3", "TWICE(x)": "(x) + (x)"})
    text = compiler.calls[0][0]
    assert '#line 1 "defines"\n#define N 3\n#define TWICE(x) (x) + (x)\n' in text
    for defines in ({"2x": "1"}, {"A": "1\n#error"}):
        with pytest.raises(InvalidArgumentError, match="defines"):
            compile_with(compiler, defines=defines)


def test_what_was_compiled_is_kept(compile_with):
    compiler = Compiler()
    for _ in range(3):
        assert compile_with(compiler) == b"image"
    assert len(compiler.calls) == 1
    compile_with(compiler, architecture="sm_80")
    compile_with(compiler, defines={"N": "3"})
    compile_with(compiler, options=("--fmad=false",))
    assert len(compiler.calls) == 4


@pytest.mark.parametrize(
    "more", [{"source": '#include "a.h"\n' + BROKEN}, {"options": ("-include=a",)}]
)
def test_what_includes_files_is_compiled_each_time(compile_with, more):
    compiler = Compiler()
    for _ in range(2):
        compile_with(compiler, **more)
    assert len(compiler.calls) == 2


HALF = "#include <cuda_fp16.h>\n#include <cooperative_groups.h>\n" + BROKEN


@pytest.mark.parametrize("has_own", [True, False])
def test_the_vendors_16_bit_floats_come_before_ours_c5(
    native, compile_with, monkeypatch, tmp_path, has_own
):
    folder = str(tmp_path) if has_own else None
    monkeypatch.setattr(native, "header_folder", lambda: folder)
    compiler = Compiler()
    for _ in range(2):
        compile_with(compiler, source=HALF)
    ((_, _, options),) = compiler.calls  # these headers do not change: the image is kept
    assert (f"--include-path={tmp_path}" in options) == has_own
    assert ("cuda_fp16.h" in compiler.headers) != has_own
    assert "cooperative_groups.h" in compiler.headers


def test_headers_in_a_folder_of_the_users_are_taken_from_there_c5(compile_with, tmp_path):
    (tmp_path / "cooperative_groups.h").touch()
    compiler = Compiler()
    compile_with(compiler, source=HALF, include_directories=(str(tmp_path),))
    assert "cooperative_groups.h" not in compiler.headers
    assert "cmath" in compiler.headers


def test_an_error_has_file_line_and_column_c5(compile_with):
    compiler = Compiler(image=None, log=LOG)
    with pytest.raises(CompilationError) as caught:
        compile_with(compiler, source=BROKEN, filename="broken.cpp")
    assert str(caught.value) == (
        'broken.cpp does not compile:\nbroken.cpp:2:10: error: identifier "missing" is undefined'
    )
    assert caught.value.log == LOG


def test_many_errors_are_not_all_shown_c5(compile_with):
    log = "".join(f"other.h({number}): error: no {number}\n" for number in range(1, 9))
    with pytest.raises(CompilationError) as caught:
        compile_with(Compiler(image=None, log=log))
    assert "other.h:5: error: no 5\n... and 3 more" in str(caught.value)


def test_a_log_without_errors_is_shown_at_its_end_c5(compile_with):
    with pytest.raises(CompilationError, match="nvrtc: invalid value"):
        compile_with(Compiler(image=None, log="nvrtc: invalid value for --gpu-architecture"))


def test_without_a_compiler_the_package_is_named(driver, lab, hide):
    """And the feature is not declared."""
    hide("cuda.bindings.nvrtc")
    with pytest.raises(UnimplementedError, match="pip install nvidia-cuda-nvrtc"):
        compiled(lab.device, request(SOURCE))
    device = driver.open_device(0, {})
    assert "compile" not in device.features
    assert "graphs" in device.features
    device.close()
