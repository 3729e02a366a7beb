"""Ask about modules, kernels, launches and the run-time compiler."""

from __future__ import annotations

import ctypes
import struct
from pathlib import Path
from typing import Any

import numpy as np
from cuda.bindings import driver as cu
from cuda.bindings import nvrtc

from questions import lab
from questions.lab import alone, ask, get, question

_F = cu.CUfunction_attribute


@question()
def launches() -> dict[str, Any]:
    """Grids, blocks and shared memory within limits and beyond."""
    lab.open_context()
    s, nothing, p = lab.stream(), lab.function("nothing"), lab.words()
    cases: dict[str, dict[str, Any]] = {
        "grid 0": {"grid": 0},
        "grid y 0": {"grid": (1, 0, 1)},
        "block 0": {"block": 0},
        "block z 0": {"block": (1, 1, 0)},
        "block 1024": {"block": 1024},
        "block 1025": {"block": 1025},
        "block 32 32 2": {"block": (32, 32, 2)},
        "block z 64": {"block": (1, 1, 64)},
        "block z 65": {"block": (1, 1, 65)},
        "grid x 2**31-1 of nothing": {"grid": (1 << 31, 1, 1)},
        "grid y 65535": {"grid": (1, 65535, 1)},
        "grid y 65536": {"grid": (1, 65536, 1)},
        "grid z 65536": {"grid": (1, 1, 65536)},
        "shared 48 KiB": {"shared": 48 << 10},
        "shared over 48 KiB": {"shared": (48 << 10) + 1},
        "shared 64 KiB": {"shared": 64 << 10},
        "shared 1 GiB": {"shared": 1 << 30},
    }
    answers = {name: lab.launch(nothing, s, **given) for name, given in cases.items()}
    answers["bounded 64"] = lab.launch(lab.function("bounded"), s, p, block=64)
    answers["bounded 65"] = lab.launch(lab.function("bounded"), s, p, block=65)
    answers["static and dynamic over 48 KiB"] = lab.launch(
        lab.function("shared_static"), s, p, block=64, shared=48 << 10
    )
    answers["synchronize"] = ask(cu.cuStreamSynchronize, s)
    return answers


@question()
def shared_memory() -> dict[str, Any]:
    """More dynamic shared memory than by default."""
    lab.open_context()
    s, p = lab.stream(), lab.words()
    fresh = lab.module()
    f = lab.function("shared_dynamic", fresh)
    most = get(
        cu.cuDeviceGetAttribute,
        cu.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN,
        0,
    )
    dynamic = _F.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    answers: dict[str, Any] = {
        "default": get(cu.cuFuncGetAttribute, dynamic, f),
        "over the most": ask(cu.cuFuncSetAttribute, f, dynamic, most + 1),
        "negative": ask(cu.cuFuncSetAttribute, f, dynamic, -5),
        "60000": ask(cu.cuFuncSetAttribute, f, dynamic, 60000),
        "then": get(cu.cuFuncGetAttribute, dynamic, f),
        "launch 60000": lab.launch(f, s, p, block=64, shared=60000),
        "launch 60001": lab.launch(f, s, p, block=64, shared=60001),
        "the most": ask(cu.cuFuncSetAttribute, f, dynamic, most),
        "launch the most": lab.launch(f, s, p, block=64, shared=most),
        "less again": ask(cu.cuFuncSetAttribute, f, dynamic, 1024),
        "launch 2048": lab.launch(f, s, p, block=64, shared=2048),
        "read-only attribute": ask(cu.cuFuncSetAttribute, f, _F.CU_FUNC_ATTRIBUTE_NUM_REGS, 3),
        "synchronize": ask(cu.cuStreamSynchronize, s),
    }
    static = lab.function("shared_static", fresh)
    answers["static"] = get(cu.cuFuncGetAttribute, _F.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, static)
    answers["static: the most in all"] = ask(cu.cuFuncSetAttribute, static, dynamic, most)
    answers["static: the most less its own"] = ask(
        cu.cuFuncSetAttribute, static, dynamic, most - 256
    )
    other = lab.function("shared_dynamic", fresh)
    answers["the same function again"] = int(other) == int(f)
    return answers


@question()
def function_attributes() -> dict[str, Any]:
    """Attributes of kernels that do not depend on the compiler."""
    lab.open_context()
    bounded, mixed = lab.function("bounded"), lab.function("mixed")
    threads = _F.CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK
    return {
        "threads": get(cu.cuFuncGetAttribute, threads, mixed),
        "bounded": get(cu.cuFuncGetAttribute, threads, bounded),
        "name": get(cu.cuFuncGetName, mixed).decode(),
        "static shared of none": get(
            cu.cuFuncGetAttribute, _F.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, mixed
        ),
    }


@question()
def parameters() -> dict[str, Any]:
    """Offsets and sizes of parameters."""
    lab.open_context()
    f = lab.function("mixed")
    found = []
    for index in range(8):
        code, *rest = cu.cuFuncGetParamInfo(f, index)
        if int(code) != 0:
            found.append(lab.answer_of(code))
            break
        found.append([int(value) for value in rest])
    return {"mixed": found, "nothing": ask(cu.cuFuncGetParamInfo, lab.function("nothing"), 0)}


class Three(ctypes.Structure):
    """The structure of the kernel ``mixed``."""

    _fields_ = (("a", ctypes.c_int), ("b", ctypes.c_double), ("c", ctypes.c_char))


@question()
def arguments() -> dict[str, Any]:
    """Arguments by pointers are copied by the call."""
    lab.open_context()
    f, s, p = lab.function("mixed"), lab.stream(), lab.words()
    a, b, c = ctypes.c_int8(1), ctypes.c_double(2.0), ctypes.c_int16(3)
    d, e = Three(9, 4.0, b"\x05"), ctypes.c_uint64(int(p))
    pointers = (ctypes.c_void_p * 5)(*(ctypes.addressof(x) for x in (a, b, c, d, e)))
    answers: dict[str, Any] = {}
    with lab.Gate() as gate:
        gate.hold(s)
        answers["pointers"] = ask(
            cu.cuLaunchKernel, f, 1, 1, 1, 1, 1, 1, 0, s, ctypes.addressof(pointers), 0
        )
        a.value, b.value, e.value = 99, 99.0, 0
    get(cu.cuStreamSynchronize, s)
    answers["pointers wrote"] = lab.read_bytes(p, 5)
    answers["none given"] = ask(cu.cuLaunchKernel, f, 1, 1, 1, 1, 1, 1, 0, s, 0, 0)
    return answers


@question()
def results() -> dict[str, Any]:
    """Kernels compute what they should."""
    lab.open_context()
    s, p = lab.stream(), lab.words(1000)
    lab.launch(lab.function("iota"), s, p, 1000, grid=4, block=256)
    get(cu.cuStreamSynchronize, s)
    answers: dict[str, Any] = {"iota": lab.read(p, 1000) == list(range(1000))}
    lab.launch(lab.function("shared_static"), s, p, block=64)
    get(cu.cuStreamSynchronize, s)
    answers["static shared"] = lab.read(p)
    lab.launch(lab.function("shared_dynamic"), s, p, block=512, shared=2048)
    get(cu.cuStreamSynchronize, s)
    answers["dynamic shared"] = lab.read(p)
    return answers


@question()
def variables() -> dict[str, Any]:
    """Module variables: one for each load."""
    lab.open_context()
    a, b = lab.module(), lab.module()
    pointer, size = get(cu.cuModuleGetGlobal, a, b"counter")
    constant, length = get(cu.cuModuleGetGlobal, a, b"table")
    s, p = lab.stream(), lab.words()
    lab.launch(lab.function("count", a), s, p)
    get(cu.cuStreamSynchronize, s)
    answers: dict[str, Any] = {
        "size": size,
        "constant size": length,
        "wrote": lab.read(p),
        "value": lab.read(pointer),
    }
    answers["of the other"] = lab.read(get(cu.cuModuleGetGlobal, b, b"counter")[0])
    get(cu.cuMemsetD32, pointer, 40, 1)
    value = np.array([10.0])
    get(cu.cuMemcpyHtoD, constant, value.ctypes.data, 8)
    lab.launch(lab.function("count", a), s, p)
    get(cu.cuStreamSynchronize, s)
    answers["after writes"] = lab.read(p)
    answers["free a variable"] = ask(cu.cuMemFree, pointer)
    answers["missing"] = ask(cu.cuModuleGetGlobal, a, b"nope")
    answers["a kernel's name"] = ask(cu.cuModuleGetGlobal, a, b"count")
    answers["unload"] = ask(cu.cuModuleUnload, a)
    return answers


@question()
def names() -> dict[str, Any]:
    """Functions that are not there."""
    lab.open_context()
    m = lab.shared_module()
    return {
        "missing": ask(cu.cuModuleGetFunction, m, b"nope"),
        "empty": ask(cu.cuModuleGetFunction, m, b""),
        "a variable's name": ask(cu.cuModuleGetFunction, m, b"counter"),
        "count": get(cu.cuModuleGetFunctionCount, m),
    }


def _images() -> dict[str, bytes]:
    """Return images that no CUDA driver loads."""
    elf = bytearray(64)
    elf[:7] = b"\x7fELF\x02\x01\x01"
    struct.pack_into("<HHI", elf, 16, 3, 224, 1)
    struct.pack_into("<HHHHHH", elf, 52, 64, 0, 0, 64, 0, 0)
    x86 = bytearray(elf)
    struct.pack_into("<H", x86, 18, 62)
    with Path("/proc/self/exe").open("rb") as program:
        itself = program.read()
    return {
        "text": b"this is no image, but a text of some length" + bytes(64),
        "empty text": bytes(64),
        "PTX of nothing": b".version 8.0\n.target sm_50\n.address_size 64\n" + bytes(8),
        "PTX with an error": b".version 8.0\n.target sm_50\n.address_size 64\nblah blah;\n"
        + bytes(8),
        "PTX of a later device": b".version 8.8\n.target sm_121\n.address_size 64\n" + bytes(8),
        "an AMD header": bytes(elf) + bytes(64),
        "an x86 header": bytes(x86) + bytes(64),
        "a fatbin's magic": struct.pack("<IHHQ", 0xBA55ED50, 1, 16, 0) + bytes(64),
        "a bundle": b"__CLANG_OFFLOAD_BUNDLE__" + bytes(64),
        "a program": itself[:65536] + bytes(64),
    }


for _name in _images():

    def _load(_name: str = _name) -> Any:
        lab.open_context()
        return ask(cu.cuModuleLoadData, _images()[_name])

    alone(f"image.{_name}")(_load)


@alone("image.for an older device")
def _older() -> Any:
    """A cubin for another architecture: asked of NVRTC, so that a software driver may differ."""
    lab.open_context()
    program = get(
        nvrtc.nvrtcCreateProgram, b'extern "C" __global__ void k() {}', b"k.cu", 0, [], []
    )
    code = nvrtc.nvrtcCompileProgram(program, 1, [b"--gpu-architecture=sm_80"])[0]
    if int(code) != 0:
        return lab.answer_of(code)
    image = b" " * get(nvrtc.nvrtcGetCUBINSize, program)
    get(nvrtc.nvrtcGetCUBIN, program, image)
    return ask(cu.cuModuleLoadData, image)


@question()
def null_image() -> Any:
    """No image at all."""
    lab.open_context()
    return ask(cu.cuModuleLoadData, 0)


@question()
def occupancy() -> dict[str, Any]:
    """Occupancy: only that there is some."""
    lab.open_context()
    f = lab.function("iota")
    call = cu.cuOccupancyMaxActiveBlocksPerMultiprocessor
    return {
        "64": get(call, f, 64, 0) > 0,
        "1024": get(call, f, 1024, 0) > 0,
        "2048": ask(call, f, 2048, 0),
        "0": ask(call, f, 0, 0),
        "-1": ask(call, f, -1, 0),
        "shared 1 GiB": ask(call, f, 64, 1 << 30),
    }


@question()
def unload_while_running() -> dict[str, Any]:
    """A module unloaded while its kernel stands in a held stream."""
    lab.open_context()
    m, s, p, gate = lab.module(), lab.stream(), lab.words(), lab.Gate()
    f = lab.function("set", m)
    gate.hold(s)
    lab.launch(f, s, p, 3)
    told = lab.waits(lambda: ask(cu.cuModuleUnload, m), gate)
    return {"unload": told, "synchronize": ask(cu.cuStreamSynchronize, s), "value": lab.read(p)}
