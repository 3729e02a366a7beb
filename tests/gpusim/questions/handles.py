"""Ask what bad handles, bad numbers and missing contexts are answered."""

from __future__ import annotations

import ctypes
from typing import Any

from cuda.bindings import driver as cu

from questions import lab
from questions.lab import alone, ask, get, question


def _calls(objects: dict[str, Any]) -> dict[str, Any]:
    """Return a call of every kind on good objects, by name."""
    o = objects
    host = o["host"]
    return {
        "cuCtxSynchronize": lambda: ask(cu.cuCtxSynchronize),
        "cuCtxGetDevice": lambda: ask(cu.cuCtxGetDevice),
        "cuStreamCreate": lambda: ask(cu.cuStreamCreate, 1),
        "cuStreamQuery": lambda: ask(cu.cuStreamQuery, o["stream"]),
        "cuStreamSynchronize": lambda: ask(cu.cuStreamSynchronize, o["stream"]),
        "cuStreamQuery0": lambda: ask(cu.cuStreamQuery, cu.CUstream(0)),
        "cuStreamWaitEvent": lambda: ask(cu.cuStreamWaitEvent, o["stream"], o["event"], 0),
        "cuStreamIsCapturing": lambda: ask(cu.cuStreamIsCapturing, o["stream"]),
        "cuStreamGetCtx": lambda: ask(cu.cuStreamGetCtx, o["stream"]),
        "cuEventCreate": lambda: ask(cu.cuEventCreate, 2),
        "cuEventRecord": lambda: ask(cu.cuEventRecord, o["event"], o["stream"]),
        "cuEventSynchronize": lambda: ask(cu.cuEventSynchronize, o["event"]),
        "cuEventQuery": lambda: ask(cu.cuEventQuery, o["event"]),
        "cuEventElapsedTime": lambda: ask(cu.cuEventElapsedTime, o["timed"], o["timed"]),
        "cuMemGetInfo": lambda: ask(cu.cuMemGetInfo),
        "cuMemAlloc": lambda: ask(cu.cuMemAlloc, 64),
        "cuMemAllocManaged": lambda: ask(cu.cuMemAllocManaged, 64, 1),
        "cuMemHostAlloc": lambda: ask(cu.cuMemHostAlloc, 64, 0),
        "cuMemHostRegister": lambda: ask(cu.cuMemHostRegister, o["page"], 4096, 0),
        "cuMemHostUnregister": lambda: ask(cu.cuMemHostUnregister, o["page"]),
        "cuMemAllocAsync": lambda: ask(cu.cuMemAllocAsync, 64, o["stream"]),
        "cuMemcpyHtoD": lambda: ask(cu.cuMemcpyHtoD, o["memory"], host, 4),
        "cuMemcpyHtoDAsync": lambda: ask(cu.cuMemcpyHtoDAsync, o["memory"], host, 4, o["stream"]),
        "cuMemcpyDtoHAsync": lambda: ask(cu.cuMemcpyDtoHAsync, host, o["memory"], 4, o["stream"]),
        "cuMemcpyAsync": lambda: ask(
            cu.cuMemcpyAsync, o["memory"], cu.CUdeviceptr(host), 4, o["stream"]
        ),
        "cuMemsetD8Async": lambda: ask(cu.cuMemsetD8Async, o["memory"], 0, 4, o["stream"]),
        "cuLaunchHostFunc": lambda: lab.ask_host_function(o["stream"], o["call"]),
        "cuLaunchKernel": lambda: lab.launch(o["kernel"], o["stream"]),
        "cuModuleLoadData": lambda: ask(cu.cuModuleLoadData, lab.compile_image()),
        "cuModuleGetFunction": lambda: ask(cu.cuModuleGetFunction, o["module"], b"add"),
        "cuModuleGetGlobal": lambda: ask(cu.cuModuleGetGlobal, o["module"], b"counter"),
        "cuFuncGetAttribute": lambda: ask(
            cu.cuFuncGetAttribute, cu.CUfunction_attribute.CU_FUNC_ATTRIBUTE_NUM_REGS, o["kernel"]
        ),
        "cuFuncGetParamInfo": lambda: ask(cu.cuFuncGetParamInfo, o["add"], 0),
        "cuOccupancyMaxActiveBlocksPerMultiprocessor": lambda: ask(
            cu.cuOccupancyMaxActiveBlocksPerMultiprocessor, o["kernel"], 64, 0
        ),
        "cuPointerGetAttribute": lambda: ask(
            cu.cuPointerGetAttribute,
            cu.CUpointer_attribute.CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
            o["memory"],
        ),
        "cuGraphCreate": lambda: ask(cu.cuGraphCreate, 0),
        "cuGraphAddEmptyNode": lambda: ask(cu.cuGraphAddEmptyNode, o["graph"], None, 0),
        "cuGraphInstantiate": lambda: ask(cu.cuGraphInstantiate, o["graph"], 0),
        "cuGraphLaunch": lambda: ask(cu.cuGraphLaunch, o["instance"], o["stream"]),
        "cuGraphExecDestroy": lambda: ask(cu.cuGraphExecDestroy, o["instance"]),
        "cuGraphDestroy": lambda: ask(cu.cuGraphDestroy, o["graph"]),
        "cuMemFreeAsync": lambda: ask(cu.cuMemFreeAsync, o["pooled"], o["stream"]),
        "cuMemFree": lambda: ask(cu.cuMemFree, o["memory"]),
        "cuMemFreeHost": lambda: ask(cu.cuMemFreeHost, host),
        "cuEventDestroy": lambda: ask(cu.cuEventDestroy, o["event"]),
        "cuStreamSynchronize again": lambda: ask(cu.cuStreamSynchronize, o["stream"]),
        "cuStreamDestroy": lambda: ask(cu.cuStreamDestroy, o["stream"]),
        "cuModuleUnload": lambda: ask(cu.cuModuleUnload, o["module"]),
    }


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
    return {
        "page": (ctypes.addressof(_page) + 4095) & ~4095,
        "stream": running,
        "event": lab.event(),
        "timed": timed,
        "memory": lab.words(),
        "pooled": pooled,
        "host": lab.pinned(),
        "call": lab.host_function(lambda: None),
        "module": made,
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


def _null(name: str) -> Any:
    lab.open_context()
    s, e = lab.stream(), lab.event()
    call = lab.host_function(lambda: None)
    none: dict[str, Any] = {
        "cuEventRecord": lambda: ask(cu.cuEventRecord, cu.CUevent(0), s),
        "cuEventQuery": lambda: ask(cu.cuEventQuery, cu.CUevent(0)),
        "cuEventSynchronize": lambda: ask(cu.cuEventSynchronize, cu.CUevent(0)),
        "cuEventDestroy": lambda: ask(cu.cuEventDestroy, cu.CUevent(0)),
        "cuEventElapsedTime": lambda: ask(cu.cuEventElapsedTime, cu.CUevent(0), cu.CUevent(0)),
        "cuStreamWaitEvent": lambda: ask(cu.cuStreamWaitEvent, s, cu.CUevent(0), 0),
        "cuStreamDestroy": lambda: ask(cu.cuStreamDestroy, cu.CUstream(0)),
        "cuStreamQuery": lambda: ask(cu.cuStreamQuery, cu.CUstream(0)),
        "cuStreamSynchronize": lambda: ask(cu.cuStreamSynchronize, cu.CUstream(0)),
        "cuEventRecord on 0": lambda: ask(cu.cuEventRecord, e, cu.CUstream(0)),
        "cuLaunchHostFunc on 0": lambda: lab.ask_host_function(0, call),
        "cuModuleUnload": lambda: ask(cu.cuModuleUnload, cu.CUmodule(0)),
        "cuModuleGetFunction": lambda: ask(cu.cuModuleGetFunction, cu.CUmodule(0), b"x"),
        "cuModuleGetGlobal": lambda: ask(cu.cuModuleGetGlobal, cu.CUmodule(0), b"x"),
        "cuLaunchKernel": lambda: lab.launch(cu.CUfunction(0), s),
        "cuFuncGetAttribute": lambda: ask(
            cu.cuFuncGetAttribute,
            cu.CUfunction_attribute.CU_FUNC_ATTRIBUTE_NUM_REGS,
            cu.CUfunction(0),
        ),
        "cuFuncGetParamInfo": lambda: ask(cu.cuFuncGetParamInfo, cu.CUfunction(0), 0),
        "cuGraphDestroy": lambda: ask(cu.cuGraphDestroy, cu.CUgraph(0)),
        "cuGraphInstantiate": lambda: ask(cu.cuGraphInstantiate, cu.CUgraph(0), 0),
        "cuGraphLaunch": lambda: ask(cu.cuGraphLaunch, cu.CUgraphExec(0), s),
        "cuGraphExecDestroy": lambda: ask(cu.cuGraphExecDestroy, cu.CUgraphExec(0)),
        "cuGraphAddEmptyNode": lambda: ask(cu.cuGraphAddEmptyNode, cu.CUgraph(0), None, 0),
        "cuMemFree": lambda: ask(cu.cuMemFree, cu.CUdeviceptr(0)),
        "cuMemFreeHost": lambda: ask(cu.cuMemFreeHost, 0),
        "cuMemFreeAsync": lambda: ask(cu.cuMemFreeAsync, cu.CUdeviceptr(0), s),
        "cuMemHostRegister": lambda: ask(cu.cuMemHostRegister, 0, 4096, 0),
        "cuMemHostUnregister": lambda: ask(cu.cuMemHostUnregister, 0),
        "cuMemHostGetDevicePointer": lambda: ask(cu.cuMemHostGetDevicePointer, 0, 0),
        "cuMemcpyHtoDAsync": lambda: ask(cu.cuMemcpyHtoDAsync, cu.CUdeviceptr(0), 0, 4, s),
        "cuMemcpyDtoDAsync": lambda: ask(
            cu.cuMemcpyDtoDAsync, cu.CUdeviceptr(0), cu.CUdeviceptr(0), 4, s
        ),
        "cuMemcpyAsync": lambda: ask(cu.cuMemcpyAsync, cu.CUdeviceptr(0), cu.CUdeviceptr(0), 4, s),
        "cuMemsetD8Async": lambda: ask(cu.cuMemsetD8Async, cu.CUdeviceptr(0), 0, 4, s),
        "cuLaunchHostFunc": lambda: lab.ask_host_function(s, 0),
        "cuCtxSetCurrent": lambda: ask(cu.cuCtxSetCurrent, cu.CUcontext(0)),
        "cuPointerGetAttribute": lambda: ask(
            cu.cuPointerGetAttribute,
            cu.CUpointer_attribute.CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
            cu.CUdeviceptr(0),
        ),
        "cuMemPoolDestroy": lambda: ask(cu.cuMemPoolDestroy, cu.CUmemoryPool(0)),
        "cuMemPoolTrimTo": lambda: ask(cu.cuMemPoolTrimTo, cu.CUmemoryPool(0), 0),
    }
    if not name:
        return tuple(none)
    return none[name]()


_NULL = """cuEventRecord;cuEventQuery;cuEventSynchronize;cuEventDestroy;cuEventElapsedTime
cuStreamWaitEvent;cuStreamDestroy;cuStreamQuery;cuStreamSynchronize;cuEventRecord on 0
cuLaunchHostFunc on 0;cuModuleUnload;cuModuleGetFunction;cuModuleGetGlobal;cuLaunchKernel
cuFuncGetAttribute;cuFuncGetParamInfo;cuGraphDestroy;cuGraphInstantiate;cuGraphLaunch
cuGraphExecDestroy;cuGraphAddEmptyNode;cuMemFree;cuMemFreeHost
cuMemFreeAsync;cuMemHostRegister;cuMemHostUnregister;cuMemHostGetDevicePointer
cuMemcpyHtoDAsync;cuMemcpyDtoDAsync;cuMemcpyAsync;cuMemsetD8Async;cuLaunchHostFunc
cuCtxSetCurrent;cuPointerGetAttribute
cuMemPoolDestroy;cuMemPoolTrimTo""".replace("\n", ";").split(";")
for _name in _NULL:
    question(f"null.{_name}")(lambda _name=_name: _null(_name))


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
