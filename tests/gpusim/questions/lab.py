"""What the probe's questions share: a context, kernels, gates, and calls that answer with codes.

Uses cuda-python's driver API and NVRTC only, and nothing of this project, so
that it runs alike on a GPU's driver and on a software one.
"""

from __future__ import annotations

import ctypes
import functools
import threading
import time
from collections.abc import Callable
from typing import Any, ClassVar

from cuda.bindings import driver as cu
from cuda.bindings import nvrtc

__all__ = [
    "Gate",
    "Setup",
    "alone",
    "answer_of",
    "ask",
    "compile_image",
    "function",
    "get",
    "host_function",
    "in_thread",
    "launch",
    "module",
    "open_context",
    "plain_host_function",
    "question",
    "stream",
]

QUESTIONS: dict[str, Callable[[], Any]] = {}
"""Every question by its name, in the order of asking."""
ALONE: set[str] = set()
"""Those that may spoil their process, and get one of their own."""
_AREAS = {"graph_updates": "graphs", "compilers": "kernels", "pools": "memory"}
"""What the names of a module's questions begin with, where it is not the module's."""
SLOW: dict[str, float] = {}
"""Seconds after which a question counts as hanging, where it is not the usual time."""

SOURCE = r"""
extern "C" __global__ void nothing() {}
extern "C" __global__ void set(unsigned int *p, unsigned int value) { *p = value; }
extern "C" __global__ void add(unsigned int *p, unsigned int value) { *p += value; }
extern "C" __global__ void iota(unsigned int *p, unsigned int n) {
  unsigned int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) p[i] = i;
}
struct Three { int a; double b; char c; };
extern "C" __global__ void mixed(char a, double b, short c, Three d, unsigned char *out) {
  out[0] = a; out[1] = (unsigned char)b; out[2] = (unsigned char)c; out[3] = (unsigned char)d.b;
  out[4] = (unsigned char)d.c;
}
extern "C" __global__ void shared_static(unsigned int *p) {
  __shared__ unsigned int memory[64];
  memory[threadIdx.x % 64] = threadIdx.x;
  __syncthreads();
  if (threadIdx.x == 0) *p = memory[blockDim.x - 1];
}
extern "C" __global__ void shared_dynamic(unsigned int *p) {
  extern __shared__ unsigned int dynamic[];
  dynamic[threadIdx.x] = threadIdx.x;
  __syncthreads();
  if (threadIdx.x == 0) *p = dynamic[blockDim.x - 1];
}
extern "C" __global__ void spin(volatile unsigned int *flag, volatile unsigned int *out) {
  while (*flag == 0) {}
  *out = *flag;
}
extern "C" __global__ void fail() { assert(warpSize < 0); }
extern "C" __global__ void trap() { __trap(); }
extern "C" __global__ void wild(unsigned int *p) { *p = 1; }
extern "C" __global__ void __launch_bounds__(64) bounded(unsigned int *p) { *p = 1; }
__device__ unsigned int counter = 7;
__constant__ double table[3] = {1, 2, 3};
extern "C" __global__ void count(unsigned int *p) {
  counter += 1;
  *p = counter + (unsigned int)table[0];
}
"""

_libc = ctypes.CDLL(None, use_errno=True)


class Setup(Exception):  # noqa: N818 - it is no error of the probe
    """Which call in a question's preparation failed, and how."""


def question(name: str = "", *, seconds: float = 0.0) -> Callable[[Any], Any]:
    """Register a function as a question under ``area.name``."""

    def register(function: Any) -> Any:
        area = function.__module__.rpartition(".")[2]
        full = name or f"{_AREAS.get(area, area)}.{function.__name__}"
        if full in QUESTIONS:
            raise ValueError(full)
        QUESTIONS[full] = function
        if seconds:
            SLOW[full] = seconds
        return function

    return register


def alone(name: str = "", *, seconds: float = 0.0) -> Callable[[Any], Any]:
    """Register a question that gets a process of its own."""

    def register(function: Any) -> Any:
        known = set(QUESTIONS)
        question(name, seconds=seconds)(function)
        ALONE.update(set(QUESTIONS) - known)
        return function

    return register


def answer_of(code: Any) -> str:
    """Return a result code's short name."""
    name = getattr(code, "name", str(code))
    for prefix in ("CUDA_ERROR_", "CUDA_", "NVRTC_ERROR_", "NVRTC_"):
        if name.startswith(prefix):
            return name[len(prefix) :]
    return name


def ask(call: Any, *arguments: Any) -> str:
    """Make a call; return its code's short name."""
    try:
        return answer_of(call(*arguments)[0])
    except RuntimeError as error:
        if "not found" in str(error):
            return "ABSENT"
        raise


def get(call: Any, *arguments: Any) -> Any:
    """Make a call that must succeed; return what it gives."""
    result = call(*arguments)
    if int(result[0]) != 0:
        raise Setup(f"{getattr(call, '__name__', call)}: {answer_of(result[0])}")
    if len(result) == 1:
        return None
    return result[1] if len(result) == 2 else result[1:]


@functools.cache
def contexts() -> list[Any]:
    """Return the primary context of every device, at most two."""
    get(cu.cuInit, 0)
    count = min(get(cu.cuDeviceGetCount), 2)
    return [get(cu.cuDevicePrimaryCtxRetain, get(cu.cuDeviceGet, i)) for i in range(count)]


def open_context(index: int = 0) -> Any:
    """Bind a device's primary context to this thread and return it."""
    context = contexts()[index]
    get(cu.cuCtxSetCurrent, context)
    return context


def need_two() -> None:
    """Leave the question if there is one device only."""
    if len(contexts()) < 2:
        raise Setup("one device only")


def stream(flags: int = 1) -> Any:
    """Return a new stream, non-blocking unless told."""
    return get(cu.cuStreamCreate, flags)


def event(flags: int = 2) -> Any:
    """Return a new event, without timing unless told."""
    return get(cu.cuEventCreate, flags)


@functools.cache
def compile_image(source: str = SOURCE, options: tuple[str, ...] = ()) -> bytes:
    """Compile CUDA C++ for device 0 by NVRTC; return the cubin."""
    major = get(
        cu.cuDeviceGetAttribute,
        cu.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
        0,
    )
    minor = get(
        cu.cuDeviceGetAttribute,
        cu.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
        0,
    )
    program = get(nvrtc.nvrtcCreateProgram, source.encode(), b"probe.cu", 0, [], [])
    given = [f"--gpu-architecture=sm_{major}{minor}".encode(), *(o.encode() for o in options)]
    code = nvrtc.nvrtcCompileProgram(program, len(given), given)[0]
    if int(code) != 0:
        log = b" " * get(nvrtc.nvrtcGetProgramLogSize, program)
        get(nvrtc.nvrtcGetProgramLog, program, log)
        raise Setup(f"compile: {answer_of(code)}: {log.decode(errors='replace')}")
    image = b" " * get(nvrtc.nvrtcGetCUBINSize, program)
    get(nvrtc.nvrtcGetCUBIN, program, image)
    get(nvrtc.nvrtcDestroyProgram, program)
    return image


def module() -> Any:
    """Return a new module of the probe's kernels in the current context."""
    return get(cu.cuModuleLoadData, compile_image())


@functools.cache
def shared_module() -> Any:
    """Return the module of device 0 that most questions use."""
    return module()


def function(name: str, of: Any = None) -> Any:
    """Return a kernel of the probe's module."""
    return get(cu.cuModuleGetFunction, of or shared_module(), name.encode())


def pack(*arguments: Any) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Return kernel parameters as cuda-python takes them; ints are unsigned 32 bit."""
    values: list[Any] = []
    types: list[Any] = []
    for argument in arguments:
        if isinstance(argument, int):
            values.append(argument)
            types.append(ctypes.c_uint32)
        elif isinstance(argument, ctypes._SimpleCData):
            values.append(argument.value)
            types.append(type(argument))
        else:  # a CUdeviceptr or a structure
            values.append(argument)
            types.append(None)
    return tuple(values), tuple(types)


def launch(
    kernel: Any, on: Any, *arguments: Any, grid: Any = 1, block: Any = 1, shared: int = 0
) -> str:
    """Launch a kernel; return the code."""
    g = grid if isinstance(grid, tuple) else (grid, 1, 1)
    b = block if isinstance(block, tuple) else (block, 1, 1)
    given = pack(*arguments) if arguments else 0
    return ask(cu.cuLaunchKernel, kernel, *g, *b, shared, on, given, 0)


def words(count: int = 64) -> Any:
    """Return new device memory of so many zeroed 32-bit words."""
    pointer = get(cu.cuMemAlloc, count * 4)
    get(cu.cuMemsetD8, pointer, 0, count * 4)
    get(cu.cuCtxSynchronize)
    return pointer


def at(pointer: Any, offset: int) -> Any:
    """Return a device pointer some bytes further."""
    return cu.CUdeviceptr(int(pointer) + offset)


def read(pointer: Any, count: int = 1) -> Any:
    """Return 32-bit words of device memory, one as a number."""
    out = (ctypes.c_uint32 * count)()
    get(cu.cuMemcpyDtoH, ctypes.addressof(out), pointer, 4 * count)
    return out[0] if count == 1 else list(out)


def read_bytes(pointer: Any, count: int) -> list[int]:
    """Return bytes of device memory."""
    out = (ctypes.c_uint8 * count)()
    get(cu.cuMemcpyDtoH, ctypes.addressof(out), pointer, count)
    return list(out)


def pinned(size: int = 4096, flags: int = 0) -> int:
    """Return the address of new, zeroed pinned memory."""
    address = int(get(cu.cuMemHostAlloc, size, flags))
    ctypes.memset(address, 0, size)
    return address


def host_function(call: Callable[[], Any], kept: list[Any] = []) -> int:  # noqa: B006
    """Return the address of a C function that runs a Python one; kept for good."""
    wrapped = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: call())
    kept.append(wrapped)
    return ctypes.cast(wrapped, ctypes.c_void_p).value or 0


def plain_host_function(on: Any, call: int, argument: int) -> int:
    """Launch a C function by the driver's own entry; return the number of its code.

    cuda-python's takes the interpreter lock on the driver's thread, and whoever
    waits inside of it would stop the whole program.
    """
    return _launch_host_function()(int(on), call, argument)


def ask_host_function(on: Any, call: int) -> str:
    """Launch a C function by the driver's own entry; return the code's short name."""
    return answer_of(cu.CUresult(plain_host_function(on, call, 0)))


@functools.cache
def _launch_host_function() -> Any:
    code, address = cu.cuGetProcAddress(b"cuLaunchHostFunc", 10000, 0)[:2]
    if int(code) != 0 or not int(address):
        raise Setup("no cuLaunchHostFunc")
    types = (ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
    return ctypes.CFUNCTYPE(*types)(int(address))


class Gate:
    """Hold streams by a host function in C until `open`: a POSIX semaphore."""

    _wait = ctypes.cast(_libc.sem_wait, ctypes.c_void_p).value or 0
    _kept: ClassVar[list[Any]] = []

    def __init__(self) -> None:
        self.memory = ctypes.create_string_buffer(64)
        self._kept.append(self.memory)
        self.held = 0
        _libc.sem_init(ctypes.byref(self.memory), 0, 0)

    def hold(self, on: Any) -> None:
        """Make a stream wait for the gate."""
        status = plain_host_function(on, self._wait, ctypes.addressof(self.memory))
        if status:
            raise Setup(f"cuLaunchHostFunc: {status}")
        self.held += 1

    def open(self) -> None:
        """Let everybody go on."""
        for _ in range(self.held):
            _libc.sem_post(ctypes.byref(self.memory))
        self.held = 0

    def __enter__(self) -> Gate:  # noqa: PYI034 - Python 3.10 has no Self
        return self

    def __exit__(self, *_: object) -> None:
        self.open()


def in_thread(call: Callable[[], Any], *, bind: bool = True) -> Any:
    """Run a call on a new thread and return its value, or raise what it raised."""
    box: list[Any] = []

    def run() -> None:
        try:
            if bind:
                open_context()
            box.append((True, call()))
        except BaseException as error:  # noqa: BLE001 - handed to the asker
            box.append((False, error))

    worker = threading.Thread(target=run, daemon=True)
    worker.start()
    worker.join(15.0)
    if not box:
        return "hangs"
    if not box[0][0]:
        raise box[0][1]
    return box[0][1]


def waits(call: Callable[[], Any], gate: Gate, patience: float = 0.25) -> list[Any]:
    """Tell whether a call returns while a gate is held, and what it returns in the end."""
    box: list[Any] = []

    def run() -> None:
        try:
            open_context()
            box.append(call())
        except Exception as error:  # noqa: BLE001 - an answer
            box.append(f"{type(error).__name__}: {error}")

    worker = threading.Thread(target=run, daemon=True)
    worker.start()
    worker.join(patience)
    told = "waits" if worker.is_alive() else "returns"
    gate.open()
    worker.join(5)
    return [told, box[0] if box else "hangs"]


def until(test: Callable[[], Any], seconds: float = 5.0) -> bool:
    """Poll until a test holds; return whether it did."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if test():
            return True
        time.sleep(0.001)
    return bool(test())
