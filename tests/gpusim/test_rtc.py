"""The run-time compiler of gpusim: results, messages, options, and its cache."""

import ctypes
import os
from pathlib import Path

import gpusim
import pytest

HERE = Path(__file__).resolve().parent
KERNEL = 'extern "C" __global__ void k(int *p) { *p = VALUE; }\n'
ARCHITECTURE = "--gpu-architecture=sm_90"
SUCCESS, INVALID_PROGRAM, INVALID_OPTION, COMPILATION, INTERNAL_ERROR = 0, 4, 5, 6, 11


class Compiler:
    """Call a run-time compiler's library by one vendor's names."""

    def __init__(self, path, prefix, code):
        self._library = ctypes.CDLL(str(path))
        self._prefix, self._code = prefix, code

    def call(self, name, *arguments):
        return getattr(self._library, self._prefix + name)(*arguments)

    def text(self, program, name):
        """Return what a pair of functions gives: its size, and the bytes."""
        size = ctypes.c_size_t()
        assert self.call(f"{name}Size", program, ctypes.byref(size)) == SUCCESS
        out = ctypes.create_string_buffer(max(size.value, 1))
        self.call(name, program, out)
        return out.raw[: size.value]

    def compile(self, source, *options, headers=None, name="user.cu"):
        """Return the code, the log and the image."""
        headers = headers or {}
        texts = (ctypes.c_char_p * max(len(headers), 1))(*(t.encode() for t in headers.values()))
        names = (ctypes.c_char_p * max(len(headers), 1))(*(n.encode() for n in headers))
        program = ctypes.c_void_p()
        created = self.call(
            "CreateProgram",
            ctypes.byref(program),
            source.encode(),
            name.encode(),
            len(headers),
            texts,
            names,
        )
        assert created == SUCCESS
        given = (ctypes.c_char_p * max(len(options), 1))(*(o.encode() for o in options))
        code = self.call("CompileProgram", program, len(options), given)
        log = self.text(program, "GetProgramLog").rstrip(b"\0").decode()
        image = self.text(program, self._code)
        assert self.call("DestroyProgram", ctypes.byref(program)) == SUCCESS
        return code, log, image


@pytest.fixture(scope="module", autouse=True)
def _variables():
    """The compiler's variables, for this module's tests."""
    before = dict(os.environ)
    os.environ.update(gpusim.variables())
    yield
    for name in os.environ.keys() - before.keys():
        del os.environ[name]


@pytest.fixture(scope="module")
def rtc():
    return Compiler(gpusim.built() / "libnvrtc.so.13", "nvrtc", "GetCUBIN")


def test_an_image_is_made_and_kept(rtc, monkeypatch):
    code, log, image = rtc.compile(KERNEL, ARCHITECTURE, "-DVALUE=1234")
    assert (code, log) == (SUCCESS, "")
    assert image.startswith(b"\x7fELF")
    assert b"hal_kernel_k" in image
    monkeypatch.setenv("GPUSIM_COMPILER", "/nowhere")
    assert rtc.compile(KERNEL, ARCHITECTURE, "-DVALUE=1234")[2] == image
    assert rtc.compile(KERNEL, ARCHITECTURE, "-DVALUE=no_entry")[0] == INTERNAL_ERROR
    monkeypatch.setenv("GPUSIM_RTC_STAMP", "another compiler")
    assert rtc.compile(KERNEL, ARCHITECTURE, "-DVALUE=1234")[0] == INTERNAL_ERROR


def test_a_virtual_architecture_has_no_machine_code(rtc):
    code, _, image = rtc.compile(KERNEL, "--gpu-architecture=compute_90", "-DVALUE=1")
    assert (code, image) == (SUCCESS, b"")


def test_an_error_has_file_line_and_column_as_nvrtc_writes_them(rtc):
    source = "__global__ void k(int *p) {\n  p[0] = missing;\n}\n"
    code, log, image = rtc.compile(source, ARCHITECTURE)
    assert (code, image) == (COMPILATION, b"")
    lines = log.splitlines()
    assert lines[0].startswith("user.cu(2): error: ")
    assert "missing" in lines[0]
    assert lines[1].strip() == "p[0] = missing;"
    assert lines[2].index("^") == lines[1].index("missing")
    assert lines[-1] == '1 error detected in the compilation of "user.cu".'


def test_line_directives_of_the_program_count(rtc):
    source = '#line 1 "first"\nint a;\n#line 40 "second.h"\n__global__ void k() {\n  no = 1;\n}\n'
    assert "second.h(41): error: " in rtc.compile(source, ARCHITECTURE)[1]
    after = source + '\n#line 7 "third"\nint b = nothing_there;\n'
    log = rtc.compile(after, ARCHITECTURE)[1]
    assert "second.h(41): error: " in log
    assert "third(7): error: " in log


def test_a_kernel_that_breaks_the_dialect_is_an_error(rtc):
    source = "\n\n__global__ void k(int &p) { p = 1; }\n"
    code, log, _ = rtc.compile(source, ARCHITECTURE)
    assert code == COMPILATION
    assert log.startswith("user.cu(3): error: ")


def test_headers_are_found_by_their_names(rtc):
    headers = {"parts/value.h": '#include "more.h"\n', "parts/more.h": "#define VALUE 7\n"}
    source = '#include "parts/value.h"\n' + KERNEL
    assert rtc.compile(source, ARCHITECTURE, headers=headers)[0] == SUCCESS
    broken = {"value.h": "int fine;\nint broken = nothing_there;\n"}
    code, log, _ = rtc.compile('#include "value.h"\n' + KERNEL, ARCHITECTURE, headers=broken)
    assert code == COMPILATION
    assert "value.h(2): error: " in log
    assert "outside" not in log
    missing = rtc.compile('#include "missing.h"\n' + KERNEL, ARCHITECTURE)
    assert missing[0] == COMPILATION
    assert "user.cu(1): catastrophic error: " in missing[1]


def test_a_header_may_hold_the_barrier(rtc):
    headers = {"meet.h": "__device__ inline void meet() { __syncthreads(); }\n"}
    source = '#include "meet.h"\n__global__ void k() { meet(); }\n'
    assert rtc.compile(source, ARCHITECTURE, headers=headers)[0] == SUCCESS


@pytest.mark.parametrize(
    ("options", "code"),
    [
        (("-arch", "sm_90", "-D", "VALUE=1"), SUCCESS),
        (("-DVALUE=1", "--std=c++17", "-lineinfo", "--use_fast_math", "-w", "-I/tmp"), SUCCESS),
        (("--define-macro=VALUE=1", "--fmad=false", "--maxrregcount=32"), SUCCESS),
        (("-DVALUE=1", "--no-such-option"), INVALID_OPTION),
        (("-DVALUE=1", "--gpu-architecture=sm_1"), INVALID_OPTION),
        (("-DVALUE=1", "stray"), INVALID_OPTION),
    ],
)
def test_options_are_taken_ignored_or_refused(rtc, options, code):
    got, log, _ = rtc.compile(KERNEL, *options)
    assert got == code, log
    assert bool(log) == (code != SUCCESS)


def test_the_program_sees_cuda_and_not_the_processor(rtc):
    source = """
        #if defined(__HAL_CPU__) || !defined(__CUDACC_RTC__) || __CUDA_ARCH__ != 900
        #error "the wrong compiler"
        #endif
        static_assert(warpSize == 32, "");
        extern "C" __global__ void k() {}
    """
    code, log, _ = rtc.compile(source, ARCHITECTURE)
    assert code == SUCCESS, log


def test_what_the_cuda_backend_hands_over_compiles(rtc):
    dialect = pytest.importorskip("hal_cuda._dialect")
    from hal._programs.scanner import read_source  # noqa: PLC0415
    from hal._programs.type_table import type_table  # noqa: PLC0415
    from hal.native import CompileRequest  # noqa: PLC0415

    text = (
        "struct Pair { int a; double b; };\n__constant__ int table[] = {1, 2};\n"
        "__global__ void HAL_BLOCK(SIZE) k(const float *__restrict__ x, Pair p, uint8_t n) {\n"
        "  extern __shared__ double memory[];\n  memory[threadIdx.x] = x[n] + p.b + table[0];\n"
        "  __syncthreads();\n  atomicExch(memory, 1.0);\n}\n"
    )
    entries, source = read_source(text, filename="mine.cpp")
    request = CompileRequest(source, "mine.cpp", entries, type_table(entries), {"SIZE": "64"})
    code, log, image = rtc.compile(dialect.rewrite(request), ARCHITECTURE, name="mine.cpp")
    assert code == SUCCESS, log
    assert b"hal_parameters" in image
    assert b"k(x,p,n)" in image
    broken = CompileRequest(source, "mine.cpp", entries, type_table(entries))
    assert "error: " in rtc.compile(dialect.rewrite(broken), ARCHITECTURE, name="mine.cpp")[1]


def test_programs_that_are_none(rtc):
    size = ctypes.c_size_t()
    none = ctypes.c_void_p()
    assert rtc.call("CompileProgram", none, 0, None) == INVALID_PROGRAM
    assert rtc.call("GetProgramLogSize", none, ctypes.byref(size)) == INVALID_PROGRAM
    assert rtc.call("DestroyProgram", ctypes.byref(none)) == INVALID_PROGRAM


def test_the_same_by_the_names_of_hip():
    hip = Compiler(gpusim.rocm_folder() / "lib" / "libhiprtc.so", "hiprtc", "GetCode")
    code, log, image = hip.compile(KERNEL, "--offload-arch=gfx942", "-DVALUE=5")
    assert code == SUCCESS, log
    assert b"hal_kernel_k" in image
    assert hip.compile(KERNEL, "--offload-arch=gfx942")[0] == COMPILATION
