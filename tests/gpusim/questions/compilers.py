"""Ask about the run-time compiler."""

from __future__ import annotations

from typing import Any

from cuda.bindings import driver as cu
from cuda.bindings import nvrtc

from questions import lab
from questions.lab import get, question

# The run-time compiler


def _compile(
    source: str, *options: str, headers: dict[str, str] | None = None
) -> tuple[str, str, int]:
    """Return the code, the log and the size of the cubin."""
    given = headers or {}
    created = nvrtc.nvrtcCreateProgram(
        source.encode(),
        b"user.cu",
        len(given),
        [text.encode() for text in given.values()],
        [name.encode() for name in given],
    )
    if int(created[0]) != 0:
        return lab.answer_of(created[0]), "", 0
    program = created[1]
    code = nvrtc.nvrtcCompileProgram(program, len(options), [o.encode() for o in options])[0]
    log = b" " * get(nvrtc.nvrtcGetProgramLogSize, program)
    get(nvrtc.nvrtcGetProgramLog, program, log)
    size = nvrtc.nvrtcGetCUBINSize(program)
    get(nvrtc.nvrtcDestroyProgram, program)
    return (
        lab.answer_of(code),
        log.decode(errors="replace"),
        int(size[1]) if int(size[0]) == 0 else -1,
    )


_KERNEL = 'extern "C" __global__ void k(int *p) { *p = VALUE; }\n'
_ARCHITECTURE = "--gpu-architecture=sm_90"


@question(seconds=60)
def compiler() -> dict[str, Any]:
    """What NVRTC answers."""
    lab.open_context()
    broken = _compile("__global__ void k(int *p) {\n  p[0] = missing;\n}\n", _ARCHITECTURE)
    header = _compile(
        '#include "value.h"\n' + _KERNEL, _ARCHITECTURE, headers={"value.h": "#define VALUE 4\n"}
    )
    answers: dict[str, Any] = {
        "good": _compile(_KERNEL, _ARCHITECTURE, "-DVALUE=3")[0],
        "good makes a cubin": _compile(_KERNEL, _ARCHITECTURE, "-DVALUE=3")[2] > 0,
        "spaced option": _compile(_KERNEL, "-arch", "sm_90", "-D", "VALUE=3")[0],
        "equals option": _compile(_KERNEL, "-arch=sm_90", "--define-macro=VALUE=3")[0],
        "bad": broken[0],
        "bad names file and line": "user.cu(2)" in broken[1] and "missing" in broken[1],
        "bad makes no cubin": broken[2],
        "header": header[0],
        "header missing": _compile('#include "nope.h"\n' + _KERNEL, _ARCHITECTURE)[0],
        "unknown option": _compile(_KERNEL, "--no-such-option")[0],
        "unknown architecture": _compile(_KERNEL, "--gpu-architecture=sm_1", "-DVALUE=3")[0],
        "no architecture": _compile(_KERNEL, "-DVALUE=3")[0],
        "warning": _compile(_KERNEL.replace("{", "{ int unused; "), _ARCHITECTURE, "-DVALUE=3")[0],
        "standard": _compile(_KERNEL, _ARCHITECTURE, "-DVALUE=3", "--std=c++17")[0],
        "line info": _compile(_KERNEL, _ARCHITECTURE, "-DVALUE=3", "-lineinfo")[0],
        "fast mathematics": _compile(_KERNEL, _ARCHITECTURE, "-DVALUE=3", "--use_fast_math")[0],
        "include path": _compile(_KERNEL, _ARCHITECTURE, "-DVALUE=3", "-I/tmp")[0],
        "version at least 12": get(nvrtc.nvrtcVersion)[0] >= 12,
        "architectures": 90 in [int(a) for a in get(nvrtc.nvrtcGetSupportedArchs)],
        "error string": get_string(nvrtc.nvrtcResult.NVRTC_ERROR_COMPILATION),
    }
    return answers


def get_string(code: Any) -> str:
    """Return NVRTC's own name of a code."""
    value = nvrtc.nvrtcGetErrorString(code)[1]
    return value.decode() if isinstance(value, bytes) else str(value)


@question(seconds=30)
def compiler_misuse() -> dict[str, Any]:
    """Results asked of a program that has none."""
    lab.open_context()
    program = get(
        nvrtc.nvrtcCreateProgram, b'extern "C" __global__ void k() {}', b"k.cu", 0, [], []
    )
    answers: dict[str, Any] = {
        "cubin size before": lab.answer_of(nvrtc.nvrtcGetCUBINSize(program)[0]),
        "ptx size before": lab.answer_of(nvrtc.nvrtcGetPTXSize(program)[0]),
        "log size before": lab.answer_of(nvrtc.nvrtcGetProgramLogSize(program)[0]),
    }
    get(nvrtc.nvrtcCompileProgram, program, 1, [b"--gpu-architecture=compute_90"])
    answers["virtual: ptx"] = get(nvrtc.nvrtcGetPTXSize, program) > 0
    code, *size = nvrtc.nvrtcGetCUBINSize(program)
    answers["virtual: cubin"] = [lab.answer_of(code), *(int(value) for value in size)]
    answers["compile again"] = lab.answer_of(
        nvrtc.nvrtcCompileProgram(program, 1, [b"--gpu-architecture=compute_90"])[0]
    )
    get(nvrtc.nvrtcDestroyProgram, program)
    return answers


@question()
def ptx_loads() -> dict[str, Any]:
    """PTX from NVRTC goes through the driver's own compiler."""
    lab.open_context()
    program = get(
        nvrtc.nvrtcCreateProgram,
        b'extern "C" __global__ void k(int *p) { *p = 8; }',
        b"k.cu",
        0,
        [],
        [],
    )
    get(nvrtc.nvrtcCompileProgram, program, 1, [b"--gpu-architecture=compute_90"])
    image = b" " * get(nvrtc.nvrtcGetPTXSize, program)
    get(nvrtc.nvrtcGetPTX, program, image)
    code, *rest = cu.cuModuleLoadData(image)
    answers: dict[str, Any] = {"load": lab.answer_of(code)}
    if int(code) == 0:
        s, p = lab.stream(), lab.words()
        lab.launch(lab.function("k", rest[0]), s, p)
        get(cu.cuStreamSynchronize, s)
        answers["value"] = lab.read(p)
    return answers
