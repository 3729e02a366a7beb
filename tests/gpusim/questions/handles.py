"""Ask what bad handles, bad numbers and missing contexts are answered."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import Any

from cuda.bindings import driver as cu

from questions import lab
from questions.lab import alone, ask, get, question

_REGISTERS = cu.CUfunction_attribute.CU_FUNC_ATTRIBUTE_NUM_REGS
_MEMORY_TYPE = cu.CUpointer_attribute.CU_POINTER_ATTRIBUTE_MEMORY_TYPE

_CALLS: tuple[tuple[Any, ...], ...] = (
    ("cuCtxSynchronize",),
    ("cuCtxGetDevice",),
    ("cuStreamCreate", 1),
    ("cuStreamQuery", "stream"),
    ("cuStreamSynchronize", "stream"),
    ("cuStreamQuery0", cu.CUstream(0)),
    ("cuStreamWaitEvent", "stream", "event", 0),
    ("cuStreamIsCapturing", "stream"),
    ("cuStreamGetCtx", "stream"),
    ("cuEventCreate", 2),
    ("cuEventRecord", "event", "stream"),
    ("cuEventSynchronize", "event"),
    ("cuEventQuery", "event"),
    ("cuEventElapsedTime", "timed", "timed"),
    ("cuMemGetInfo",),
    ("cuMemAlloc", 64),
    ("cuMemAllocManaged", 64, 1),
    ("cuMemHostAlloc", 64, 0),
    ("cuMemHostRegister", "page", 4096, 0),
    ("cuMemHostUnregister", "page"),
    ("cuMemAllocAsync", 64, "stream"),
    ("cuMemcpyHtoD", "memory", "host", 4),
    ("cuMemcpyHtoDAsync", "memory", "host", 4, "stream"),
    ("cuMemcpyDtoHAsync", "host", "memory", 4, "stream"),
    ("cuMemcpyAsync", "memory", "address of the host", 4, "stream"),
    ("cuMemsetD8Async", "memory", 0, 4, "stream"),
    ("cuLaunchHostFunc", "stream", "call"),
    ("cuLaunchKernel", "kernel", "stream"),
    ("cuModuleLoadData", "image"),
    ("cuModuleGetFunction", "module", b"add"),
    ("cuModuleGetGlobal", "module", b"counter"),
    ("cuFuncGetAttribute", _REGISTERS, "kernel"),
    ("cuFuncGetParamInfo", "add", 0),
    ("cuOccupancyMaxActiveBlocksPerMultiprocessor", "kernel", 64, 0),
    ("cuPointerGetAttribute", _MEMORY_TYPE, "memory"),
    ("cuGraphCreate", 0),
    ("cuGraphAddEmptyNode", "graph", None, 0),
    ("cuGraphInstantiate", "graph", 0),
    ("cuGraphLaunch", "instance", "stream"),
    ("cuGraphExecDestroy", "instance"),
    ("cuGraphDestroy", "graph"),
    ("cuMemFreeAsync", "pooled", "stream"),
    ("cuMemFree", "memory"),
    ("cuMemFreeHost", "host"),
    ("cuEventDestroy", "event"),
    ("cuStreamSynchronize again", "stream"),
    ("cuStreamDestroy", "stream"),
    ("cuModuleUnload", "module"),
)
"""A call of every kind on good objects: what it is called in the answers, and its arguments.

The name begins with the function's. A text among the arguments stands for an object of `_objects`.
"""


def _asking(row: tuple[Any, ...], objects: dict[str, Any]) -> Callable[[], str]:
    """Return the call of a row."""
    name, *arguments = row
    given = [objects[each] if isinstance(each, str) else each for each in arguments]
    function = name.split()[0].rstrip("0")
    if function == "cuLaunchHostFunc":
        return lambda: lab.ask_host_function(*given)
    if function == "cuLaunchKernel":
        return lambda: lab.launch(*given)
    return lambda: ask(getattr(cu, function), *given)


def _calls(objects: dict[str, Any]) -> dict[str, Callable[[], str]]:
    return {row[0]: _asking(row, objects) for row in _CALLS}


_page = ctypes.create_string_buffer(3 * 4096)


def _objects() -> dict[str, Any]:
    """Make one good object of every kind."""
    lab.open_context()
    made = lab.module()
    graph = get(cu.cuGraphCreate, 0)
    get(cu.cuGraphAddEmptyNode, graph, None, 0)
    running = lab.stream()
    timed = lab.event(0)
    get(cu.cuEventRecord, timed, running)
    pooled = get(cu.cuMemAllocAsync, 64, running)
    get(cu.cuCtxSynchronize)
    host = lab.pinned()
    return {
        "page": (ctypes.addressof(_page) + 4095) & ~4095,
        "stream": running,
        "event": lab.event(),
        "timed": timed,
        "memory": lab.words(),
        "pooled": pooled,
        "host": host,
        "address of the host": cu.CUdeviceptr(host),
        "call": lab.host_function(lambda: None),
        "module": made,
        "image": lab.compile_image(),
        "kernel": lab.function("nothing", made),
        "add": lab.function("add", made),
        "graph": graph,
        "instance": get(cu.cuGraphInstantiate, graph, 0),
    }


@alone()
def without_context() -> dict[str, str]:
    """Every call on good objects of a live context from a thread that has none bound."""
    calls = _calls(_objects())
    return {name: lab.in_thread(call, bind=False) for name, call in calls.items()}


@alone()
def with_context() -> dict[str, str]:
    """The same calls from a thread that has it."""
    return {name: call() for name, call in _calls(_objects()).items()}


@alone()
def other_device_bound() -> dict[str, str]:
    """The same calls while another device's context is bound."""
    lab.need_two()
    calls = _calls(_objects())

    def run() -> dict[str, str]:
        lab.open_context(1)
        return {name: call() for name, call in calls.items()}

    return lab.in_thread(run, bind=False)


@alone()
def nothing_before_init() -> dict[str, str]:
    """Calls before ``cuInit``."""
    return {
        "cuDriverGetVersion": ask(cu.cuDriverGetVersion),
        "cuGetErrorName": ask(cu.cuGetErrorName, cu.CUresult.CUDA_ERROR_UNKNOWN),
        "cuDeviceGetCount": ask(cu.cuDeviceGetCount),
        "cuDeviceGet": ask(cu.cuDeviceGet, 0),
        "cuCtxGetCurrent": ask(cu.cuCtxGetCurrent),
        "cuMemAlloc": ask(cu.cuMemAlloc, 64),
        "cuStreamCreate": ask(cu.cuStreamCreate, 1),
        "cuInit(1)": ask(cu.cuInit, 1),
        "cuInit(0)": ask(cu.cuInit, 0),
        "cuInit again": ask(cu.cuInit, 0),
    }


_NULL: tuple[tuple[Any, ...], ...] = (
    ("cuEventRecord", cu.CUevent(0), "stream"),
    ("cuEventQuery", cu.CUevent(0)),
    ("cuEventSynchronize", cu.CUevent(0)),
    ("cuEventDestroy", cu.CUevent(0)),
    ("cuEventElapsedTime", cu.CUevent(0), cu.CUevent(0)),
    ("cuStreamWaitEvent", "stream", cu.CUevent(0), 0),
    ("cuStreamDestroy", cu.CUstream(0)),
    ("cuStreamQuery", cu.CUstream(0)),
    ("cuStreamSynchronize", cu.CUstream(0)),
    ("cuEventRecord on 0", "event", cu.CUstream(0)),
    ("cuLaunchHostFunc on 0", 0, "call"),
    ("cuModuleUnload", cu.CUmodule(0)),
    ("cuModuleGetFunction", cu.CUmodule(0), b"x"),
    ("cuModuleGetGlobal", cu.CUmodule(0), b"x"),
    ("cuLaunchKernel", cu.CUfunction(0), "stream"),
    ("cuFuncGetAttribute", _REGISTERS, cu.CUfunction(0)),
    ("cuFuncGetParamInfo", cu.CUfunction(0), 0),
    ("cuGraphDestroy", cu.CUgraph(0)),
    ("cuGraphInstantiate", cu.CUgraph(0), 0),
    ("cuGraphLaunch", cu.CUgraphExec(0), "stream"),
    ("cuGraphExecDestroy", cu.CUgraphExec(0)),
    ("cuGraphAddEmptyNode", cu.CUgraph(0), None, 0),
    ("cuMemFree", cu.CUdeviceptr(0)),
    ("cuMemFreeHost", 0),
    ("cuMemFreeAsync", cu.CUdeviceptr(0), "stream"),
    ("cuMemHostRegister", 0, 4096, 0),
    ("cuMemHostUnregister", 0),
    ("cuMemHostGetDevicePointer", 0, 0),
    ("cuMemcpyHtoDAsync", cu.CUdeviceptr(0), 0, 4, "stream"),
    ("cuMemcpyDtoDAsync", cu.CUdeviceptr(0), cu.CUdeviceptr(0), 4, "stream"),
    ("cuMemcpyAsync", cu.CUdeviceptr(0), cu.CUdeviceptr(0), 4, "stream"),
    ("cuMemsetD8Async", cu.CUdeviceptr(0), 0, 4, "stream"),
    ("cuLaunchHostFunc", "stream", 0),
    ("cuCtxSetCurrent", cu.CUcontext(0)),
    ("cuPointerGetAttribute", _MEMORY_TYPE, cu.CUdeviceptr(0)),
    ("cuMemPoolDestroy", cu.CUmemoryPool(0)),
    ("cuMemPoolTrimTo", cu.CUmemoryPool(0), 0),
)
"""Calls with a null handle, as those in `_CALLS` are written."""


def _null(row: tuple[Any, ...]) -> str:
    lab.open_context()
    call = lab.host_function(lambda: None)
    return _asking(row, {"stream": lab.stream(), "event": lab.event(), "call": call})()


for _row in _NULL:
    question(f"null.{_row[0]}")(functools.partial(_null, _row))


def _destroyed(kind: str) -> Any:
    lab.open_context()
    s = lab.stream()
    if kind == "event":
        e = lab.event()
        get(cu.cuEventDestroy, e)
        return {
            "query": ask(cu.cuEventQuery, e),
            "record": ask(cu.cuEventRecord, e, s),
            "wait": ask(cu.cuStreamWaitEvent, s, e, 0),
            "destroy": ask(cu.cuEventDestroy, e),
        }
    if kind == "stream":
        other = lab.stream()
        get(cu.cuStreamDestroy, other)
        return {
            "query": ask(cu.cuStreamQuery, other),
            "record": ask(cu.cuEventRecord, lab.event(), other),
            "memset": ask(cu.cuMemsetD8Async, lab.words(), 0, 4, other),
            "destroy": ask(cu.cuStreamDestroy, other),
        }
    if kind == "memory":
        p = lab.words()
        get(cu.cuMemFree, p)
        return {
            "free": ask(cu.cuMemFree, p),
            "free async": ask(cu.cuMemFreeAsync, p, s),
            "attribute": ask(
                cu.cuPointerGetAttribute, cu.CUpointer_attribute.CU_POINTER_ATTRIBUTE_MEMORY_TYPE, p
            ),
        }
    if kind == "pinned":
        p = lab.pinned()
        get(cu.cuMemFreeHost, p)
        return {"free": ask(cu.cuMemFreeHost, p), "unregister": ask(cu.cuMemHostUnregister, p)}
    if kind == "module":
        m = lab.module()
        get(cu.cuModuleUnload, m)
        return {
            "function": ask(cu.cuModuleGetFunction, m, b"add"),
            "unload": ask(cu.cuModuleUnload, m),
        }
    if kind == "kernel of an unloaded module":
        m = lab.module()
        f = lab.function("nothing", m)
        get(cu.cuModuleUnload, m)
        return lab.launch(f, s)
    if kind == "graph":
        g = get(cu.cuGraphCreate, 0)
        get(cu.cuGraphDestroy, g)
        return {
            "add": ask(cu.cuGraphAddEmptyNode, g, None, 0),
            "destroy": ask(cu.cuGraphDestroy, g),
        }
    g = get(cu.cuGraphCreate, 0)
    get(cu.cuGraphAddEmptyNode, g, None, 0)
    x = get(cu.cuGraphInstantiate, g, 0)
    get(cu.cuGraphExecDestroy, x)
    return {"launch": ask(cu.cuGraphLaunch, x, s), "destroy": ask(cu.cuGraphExecDestroy, x)}


for _name in (
    "event",
    "stream",
    "memory",
    "pinned",
    "module",
    "kernel of an unloaded module",
    "graph",
    "instance",
):
    alone(f"destroyed.{_name}")(lambda _name=_name: _destroyed(_name))


@question()
def unknown_flags() -> dict[str, str]:
    """Flags that no call has."""
    lab.open_context()
    s, e = lab.stream(), lab.event()
    return {
        "cuStreamCreate": ask(cu.cuStreamCreate, 0x100),
        "cuEventCreate": ask(cu.cuEventCreate, 0x100),
        "cuEventCreate interprocess with timing": ask(cu.cuEventCreate, 4),
        "cuStreamWaitEvent": ask(cu.cuStreamWaitEvent, s, e, 0x100),
        "cuMemHostAlloc": ask(cu.cuMemHostAlloc, 64, 0x100),
        "cuMemAllocManaged 0": ask(cu.cuMemAllocManaged, 64, 0),
        "cuMemAllocManaged 0x100": ask(cu.cuMemAllocManaged, 64, 0x100),
        "cuGraphCreate": ask(cu.cuGraphCreate, 1),
    }


@question()
def devices() -> dict[str, Any]:
    """Ordinals, attributes and names out of range."""
    lab.open_context()
    count = get(cu.cuDeviceGetCount)
    return {
        "get -1": ask(cu.cuDeviceGet, -1),
        "get count": ask(cu.cuDeviceGet, count),
        "attribute of -1": ask(
            cu.cuDeviceGetAttribute,
            cu.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_WARP_SIZE,
            cu.CUdevice(-1),
        ),
        "retain -1": ask(cu.cuDevicePrimaryCtxRetain, cu.CUdevice(-1)),
        "total of count": ask(cu.cuDeviceTotalMem, cu.CUdevice(count)),
        "name of count": ask(cu.cuDeviceGetName, 64, cu.CUdevice(count)),
        "peer of itself": get(cu.cuDeviceCanAccessPeer, 0, 0),
        "version at least 12000": get(cu.cuDriverGetVersion) >= 12000,
    }


_ATTRIBUTES = [
    "WARP_SIZE",
    "MAX_THREADS_PER_BLOCK",
    "MAX_SHARED_MEMORY_PER_BLOCK",
    "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN",
    "MAX_SHARED_MEMORY_PER_MULTIPROCESSOR",
    "MANAGED_MEMORY",
    "CONCURRENT_MANAGED_ACCESS",
    "PAGEABLE_MEMORY_ACCESS",
    "MEMORY_POOLS_SUPPORTED",
    "COMPUTE_CAPABILITY_MAJOR",
    "COMPUTE_CAPABILITY_MINOR",
    "INTEGRATED",
    "COMPUTE_MODE",
]


@question()
def attributes() -> dict[str, Any]:
    """Attributes of the device that decide how a plugin behaves."""
    lab.open_context()
    found: dict[str, Any] = {}
    for name in _ATTRIBUTES:
        attribute = getattr(cu.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}", None)
        if attribute is not None:
            code, value = cu.cuDeviceGetAttribute(attribute, 0)
            found[name] = value if int(code) == 0 else lab.answer_of(code)
    return found


@question()
def error_names() -> dict[str, Any]:
    """Names of codes."""
    lab.open_context()
    return {
        str(number): get(cu.cuGetErrorName, cu.CUresult(number)).decode()
        for number in (
            0,
            1,
            2,
            3,
            4,
            100,
            101,
            200,
            201,
            209,
            218,
            400,
            500,
            600,
            700,
            701,
            710,
            715,
            716,
            719,
            800,
            900,
            999,
        )
        if number in set(map(int, cu.CUresult))
    }
