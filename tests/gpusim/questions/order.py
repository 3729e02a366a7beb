"""Ask what blocks and what does not: launches in depth, copies, frees, host functions."""

from __future__ import annotations

import ctypes
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from cuda.bindings import driver as cu

from questions import lab
from questions.lab import Gate, alone, ask, get, question

MOST = 10000


def _depth(submit: Callable[[], Any], gate: Gate, most: int = MOST) -> Any:
    """Return about how many submissions a held stream takes before one blocks.

    The number is rounded to the nearest power of two times 1 or 1.5.
    """
    count = [0]
    stop = threading.Event()

    def run() -> None:
        lab.open_context()
        while count[0] < most and not stop.is_set():
            submit()
            count[0] += 1

    worker = threading.Thread(target=run, daemon=True)
    worker.start()
    last, since = 0, time.monotonic()
    while worker.is_alive() and time.monotonic() - since < 1.0:
        worker.join(0.01)
        if count[0] != last:
            last, since = count[0], time.monotonic()
    blocked = worker.is_alive()
    stop.set()
    gate.open()
    worker.join(5)
    get(cu.cuCtxSynchronize)
    if not blocked:
        return f"never in {most}" if count[0] >= most else "failed"
    sizes = [size * half // 2 for size in (1 << i for i in range(4, 16)) for half in (2, 3)]
    sys.stderr.write(f"blocked at {last}\n")
    return f"blocks at about {min(sizes, key=lambda size: abs(size - last))}"


@question(seconds=30)
def depth_of_kernels() -> Any:
    """Launches behind a host function that waits."""
    lab.open_context()
    s, kernel = lab.stream(), lab.function("nothing")
    gate = Gate()
    gate.hold(s)
    return _depth(lambda: cu.cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, s, 0, 0), gate)


@question(seconds=30)
def depth_of_memsets() -> Any:
    """Fills behind a host function that waits."""
    lab.open_context()
    s, p, gate = lab.stream(), lab.words(), Gate()
    gate.hold(s)
    return _depth(lambda: cu.cuMemsetD32Async(p, 1, 1, s), gate)


@question(seconds=30)
def depth_of_events() -> Any:
    """Event records behind a host function that waits."""
    lab.open_context()
    s, e, gate = lab.stream(), lab.event(), Gate()
    gate.hold(s)
    return _depth(lambda: cu.cuEventRecord(e, s), gate)


@question(seconds=30)
def depth_of_host_functions() -> Any:
    """Host functions behind one that waits."""
    lab.open_context()
    s, gate = lab.stream(), Gate()
    post = ctypes.cast(lab._libc.sem_post, ctypes.c_void_p).value
    other = Gate().memory
    gate.hold(s)
    return _depth(lambda: lab.plain_host_function(s, post, ctypes.addressof(other)), gate)


@question(seconds=30)
def depth_of_graphs() -> Any:
    """Launches of one graph behind a host function that waits."""
    lab.open_context()
    s, gate, g = lab.stream(), Gate(), get(cu.cuGraphCreate, 0)
    node = cu.CUDA_KERNEL_NODE_PARAMS()
    node.func = lab.function("nothing")
    node.gridDimX = node.gridDimY = node.gridDimZ = node.blockDimX = node.blockDimY = (
        node.blockDimZ
    ) = 1
    get(cu.cuGraphAddKernelNode, g, None, 0, node)
    instance = get(cu.cuGraphInstantiate, g, 0)
    gate.hold(s)
    return _depth(lambda: cu.cuGraphLaunch(instance, s), gate)


@question(seconds=30)
def depth_is_per_stream() -> Any:
    """Whether another stream takes work while one stream is full."""
    lab.open_context()
    s, other, kernel, gate = lab.stream(), lab.stream(), lab.function("nothing"), Gate()
    gate.hold(s)
    for _ in range(600):
        get(cu.cuLaunchKernel, kernel, 1, 1, 1, 1, 1, 1, 0, s, 0, 0)
    for _ in range(600):
        get(cu.cuLaunchKernel, kernel, 1, 1, 1, 1, 1, 1, 0, other, 0, 0)
    answer = lab.until(lambda: ask(cu.cuStreamQuery, other) == "SUCCESS")
    gate.open()
    get(cu.cuStreamSynchronize, s)
    return answer


def _copies() -> dict[str, Callable[[Any], str]]:
    small, large = 4096, 32 << 20
    size = large
    device, second = get(cu.cuMemAlloc, size), get(cu.cuMemAlloc, size)
    pageable = np.zeros(size, np.uint8)
    address = pageable.ctypes.data
    locked = lab.pinned(size)
    managed = get(cu.cuMemAllocManaged, size, 1)
    registered = np.zeros(size + 8192, np.uint8)
    page = (registered.ctypes.data + 4095) & ~4095
    get(cu.cuMemHostRegister, page, size, 0)
    _kept.extend([pageable, registered])
    return {
        "H2D pageable 64": lambda s: ask(cu.cuMemcpyHtoDAsync, device, address, 64, s),
        "H2D pageable small": lambda s: ask(cu.cuMemcpyHtoDAsync, device, address, small, s),
        "H2D pageable 64 KiB": lambda s: ask(cu.cuMemcpyHtoDAsync, device, address, 65536, s),
        "H2D pageable over 64 KiB": lambda s: ask(cu.cuMemcpyHtoDAsync, device, address, 65537, s),
        "H2D pageable large": lambda s: ask(cu.cuMemcpyHtoDAsync, device, address, large, s),
        "D2H pageable small": lambda s: ask(cu.cuMemcpyDtoHAsync, address, device, small, s),
        "D2H pageable large": lambda s: ask(cu.cuMemcpyDtoHAsync, address, device, large, s),
        "unified pageable to device": lambda s: ask(
            cu.cuMemcpyAsync, device, cu.CUdeviceptr(address), small, s
        ),
        "unified device to pageable": lambda s: ask(
            cu.cuMemcpyAsync, cu.CUdeviceptr(address), device, small, s
        ),
        "H2D pinned large": lambda s: ask(cu.cuMemcpyHtoDAsync, device, locked, large, s),
        "D2H pinned large": lambda s: ask(cu.cuMemcpyDtoHAsync, locked, device, large, s),
        "H2D registered large": lambda s: ask(cu.cuMemcpyHtoDAsync, device, page, large, s),
        "D2H registered large": lambda s: ask(cu.cuMemcpyDtoHAsync, page, device, large, s),
        "H2H pageable": lambda s: ask(
            cu.cuMemcpyAsync,
            cu.CUdeviceptr(address),
            cu.CUdeviceptr(address + large // 2),
            small,
            s,
        ),
        "H2H pinned": lambda s: ask(
            cu.cuMemcpyAsync, cu.CUdeviceptr(locked), cu.CUdeviceptr(locked + large // 2), small, s
        ),
        "D2D": lambda s: ask(cu.cuMemcpyDtoDAsync, second, device, large, s),
        "managed to device": lambda s: ask(cu.cuMemcpyAsync, device, managed, large, s),
        "pageable to managed": lambda s: ask(cu.cuMemcpyHtoDAsync, managed, address, small, s),
        "memset device": lambda s: ask(cu.cuMemsetD8Async, device, 1, large, s),
        "memset pinned": lambda s: ask(cu.cuMemsetD8Async, cu.CUdeviceptr(locked), 1, small, s),
        "memset managed": lambda s: ask(cu.cuMemsetD8Async, managed, 1, small, s),
        "zero bytes": lambda s: ask(cu.cuMemcpyHtoDAsync, device, address, 0, s),
    }


_kept: list[Any] = []


@question(seconds=30)
def copies_behind_a_gate() -> dict[str, Any]:
    """Which transfers return while their stream is held."""
    lab.open_context()
    answers = {}
    for name, call in _copies().items():
        s, gate = lab.stream(), Gate()
        gate.hold(s)
        answers[name] = lab.waits(lambda call=call, s=s: call(s), gate)
        get(cu.cuStreamSynchronize, s)
    return answers


@question(seconds=60)
def pageable_copy_takes_its_bytes() -> dict[str, Any]:
    """Whether a pageable source may change once the call has returned, the stream being free."""
    lab.open_context()
    answers = {}
    for name, size in (("small", 1024), ("large", 8 << 20)):
        s, device = lab.stream(), get(cu.cuMemAlloc, size)
        source = np.full(size, 1, np.uint8)
        get(cu.cuMemcpyHtoDAsync, device, source.ctypes.data, size, s)
        source[:] = 2
        get(cu.cuStreamSynchronize, s)
        out = np.zeros(size, np.uint8)
        get(cu.cuMemcpyDtoH, out.ctypes.data, device, size)
        answers[name] = bool((out == 1).all())
        get(cu.cuMemFree, device)
    return answers


@question(seconds=30)
def calls_behind_a_gate() -> dict[str, Any]:
    """Which other calls return while some stream of the context is held."""
    lab.open_context()
    image = lab.compile_image()
    lab.shared_module()
    fresh = lab.module()
    lazy = lab.function("count", fresh)
    graph = get(cu.cuGraphCreate, 0)
    get(cu.cuGraphAddEmptyNode, graph, None, 0)
    memory = [lab.words() for _ in range(3)]
    locked = lab.pinned()
    managed = get(cu.cuMemAllocManaged, 64, 1)
    page = np.zeros(3 * 4096, np.uint8)
    address = (page.ctypes.data + 4095) & ~4095
    get(cu.cuMemHostRegister, address, 4096, 0)
    other, target, pooled_on = lab.stream(), lab.stream(), lab.stream()
    pooled = get(cu.cuMemAllocAsync, 4096, pooled_on)
    get(cu.cuCtxSynchronize)
    instance = get(cu.cuGraphInstantiate, graph, 0)
    calls: dict[str, Callable[[], Any]] = {
        "cuMemAlloc": lambda: ask(cu.cuMemAlloc, 1 << 20),
        "cuMemAlloc large": lambda: ask(cu.cuMemAlloc, 256 << 20),
        "cuMemFree": lambda: ask(cu.cuMemFree, memory[0]),
        "cuMemHostAlloc": lambda: ask(cu.cuMemHostAlloc, 4096, 0),
        "cuMemFreeHost": lambda: ask(cu.cuMemFreeHost, locked),
        "cuMemAllocManaged": lambda: ask(cu.cuMemAllocManaged, 4096, 1),
        "cuMemFree managed": lambda: ask(cu.cuMemFree, managed),
        "cuMemHostUnregister": lambda: ask(cu.cuMemHostUnregister, address),
        "cuMemHostRegister": lambda: ask(cu.cuMemHostRegister, address, 4096, 0),
        "cuMemAllocAsync": lambda: ask(cu.cuMemAllocAsync, 4096, other),
        "cuMemFreeAsync": lambda: ask(cu.cuMemFreeAsync, pooled, other),
        "cuModuleLoadData": lambda: ask(cu.cuModuleLoadData, image),
        "cuModuleGetFunction": lambda: ask(cu.cuModuleGetFunction, fresh, b"iota"),
        "cuModuleGetGlobal": lambda: ask(cu.cuModuleGetGlobal, fresh, b"counter"),
        "first launch of a kernel": lambda: lab.launch(lazy, other, memory[1]),
        "cuModuleUnload": lambda: ask(cu.cuModuleUnload, fresh),
        "cuStreamCreate": lambda: ask(cu.cuStreamCreate, 1),
        "cuStreamDestroy of an idle one": lambda: ask(cu.cuStreamDestroy, target),
        "cuEventCreate": lambda: ask(cu.cuEventCreate, 2),
        "cuGraphInstantiate": lambda: ask(cu.cuGraphInstantiate, graph, 0),
        "cuGraphLaunch": lambda: ask(cu.cuGraphLaunch, instance, other),
        "cuGraphExecDestroy": lambda: ask(cu.cuGraphExecDestroy, instance),
        "cuMemcpyHtoD": lambda: ask(cu.cuMemcpyHtoD, memory[1], page.ctypes.data, 64),
        "cuMemcpyDtoH": lambda: ask(cu.cuMemcpyDtoH, page.ctypes.data, memory[1], 64),
        "cuMemsetD8": lambda: ask(cu.cuMemsetD8, memory[1], 0, 64),
        "cuMemGetInfo": lambda: ask(cu.cuMemGetInfo),
        "cuDevicePrimaryCtxRetain": lambda: ask(cu.cuDevicePrimaryCtxRetain, 0),
        "cuStreamSynchronize of another": lambda: ask(cu.cuStreamSynchronize, other),
    }
    answers = {}
    for name, call in calls.items():
        s, gate = lab.stream(), Gate()
        gate.hold(s)
        answers[name] = lab.waits(call, gate)
        get(cu.cuStreamSynchronize, s)
    return answers


@question()
def host_functions() -> dict[str, Any]:
    """Order and thread of host functions."""
    lab.open_context()
    s, seen = lab.stream(), []
    for i in range(20):
        get(
            cu.cuLaunchHostFunc,
            s,
            lab.host_function(lambda i=i: seen.append((i, threading.get_native_id()))),
            0,
        )
    early = ask(cu.cuStreamSynchronize, s)
    return {
        "synchronize": early,
        "in order": [i for i, _ in seen] == list(range(20)),
        "on this thread": threading.get_native_id() in {thread for _, thread in seen},
    }


@question()
def host_functions_of_two_streams() -> dict[str, Any]:
    """Whether a host function that waits holds up those of another stream, and kernels."""
    lab.open_context()
    a, b, c = lab.stream(), lab.stream(), lab.stream()
    kernel, seen = lab.function("nothing"), []
    with Gate() as gate:
        gate.hold(a)
        time.sleep(0.2)  # whichever gets there first runs: this one
        get(cu.cuLaunchHostFunc, b, lab.host_function(lambda: seen.append(1)), 0)
        get(cu.cuLaunchKernel, kernel, 1, 1, 1, 1, 1, 1, 0, c, 0, 0)
        ran = lab.until(lambda: bool(seen), 1.0)
        kernels = lab.until(lambda: ask(cu.cuStreamQuery, c) == "SUCCESS", 1.0)
    return {
        "another host function runs": ran,
        "kernels run": kernels,
        "in the end": [ask(cu.cuStreamSynchronize, s) for s in (a, b, c)],
    }


@question()
def event_after_host_function() -> dict[str, Any]:
    """An event behind a host function is not complete before the function has returned."""
    lab.open_context()
    s, e, seen = lab.stream(), lab.event(), []
    with Gate() as gate:
        gate.hold(s)
        get(cu.cuEventRecord, e, s)
        get(cu.cuLaunchHostFunc, s, lab.host_function(lambda: seen.append(ask_inside(e))), 0)
    get(cu.cuStreamSynchronize, s)
    return {"query inside": seen}


def ask_inside(e: Any) -> str:
    """Ask within a host function, where calls are not allowed."""
    return ask(cu.cuEventQuery, e)


def _inside(call: Callable[[], str]) -> Any:
    lab.open_context()
    s, seen = lab.stream(), []

    def run() -> None:
        try:
            seen.append(call())
        except Exception as error:  # noqa: BLE001 - an answer
            seen.append(f"{type(error).__name__}")

    get(cu.cuLaunchHostFunc, s, lab.host_function(run), 0)
    done = lab.until(lambda: ask(cu.cuStreamQuery, s) != "NOT_READY", 5)
    return [
        *seen,
        "stream done" if done else "stream stuck",
        ask(cu.cuStreamQuery, s) if done else "",
    ]


@alone()
def inside_a_host_function() -> dict[str, Any]:
    """Codes of calls made inside a host function."""
    lab.open_context()
    e, p, target = lab.event(), lab.words(), lab.stream()
    host = lab.pinned()
    return {
        "cuEventQuery": _inside(lambda: ask(cu.cuEventQuery, e)),
        "cuEventRecord": _inside(lambda: ask(cu.cuEventRecord, e, target)),
        "cuStreamQuery": _inside(lambda: ask(cu.cuStreamQuery, target)),
        "cuMemAlloc": _inside(lambda: ask(cu.cuMemAlloc, 64)),
        "cuMemcpyHtoDAsync": _inside(lambda: ask(cu.cuMemcpyHtoDAsync, p, host, 4, target)),
        "cuCtxGetCurrent": _inside(lambda: ask(cu.cuCtxGetCurrent)),
        "cuDriverGetVersion": _inside(lambda: ask(cu.cuDriverGetVersion)),
        "cuGetErrorName": _inside(lambda: ask(cu.cuGetErrorName, cu.CUresult.CUDA_ERROR_UNKNOWN)),
    }


@alone(seconds=30)
def synchronize_inside_a_host_function() -> Any:
    """The code of ``cuCtxSynchronize`` inside a host function."""
    return _inside(lambda: ask(cu.cuCtxSynchronize))


@alone(seconds=30)
def stream_synchronize_inside_a_host_function() -> Any:
    """The code of ``cuStreamSynchronize`` of another stream inside a host function."""
    lab.open_context()
    other = lab.stream()
    return _inside(lambda: ask(cu.cuStreamSynchronize, other))


@question()
def memory_operations() -> dict[str, Any]:
    """Streams that write and wait for values in memory."""
    lab.open_context()
    p, s, t = lab.words(), lab.stream(), lab.stream()
    geq = 0
    answers = {
        "wait": ask(cu.cuStreamWaitValue32, s, p, 3, geq),
        "misaligned": ask(cu.cuStreamWaitValue32, t, lab.at(p, 1), 3, geq),
        "null": ask(cu.cuStreamWaitValue32, t, cu.CUdeviceptr(0), 3, geq),
        "held": ask(cu.cuStreamQuery, s),
    }
    answers["write"] = ask(cu.cuStreamWriteValue32, t, p, 3, 0)
    get(cu.cuStreamSynchronize, t)
    answers["goes on"] = lab.until(lambda: ask(cu.cuStreamQuery, s) == "SUCCESS")
    if not answers["goes on"]:
        lab.get(cu.cuMemsetD32, p, 3, 1)
    return answers


@alone()
def streams_overlap() -> Any:
    """Two kernels on two streams run at once: one waits for what the other writes.

    On its own, for the one that waits never ends where they do not.
    """
    lab.open_context()
    flag, out = lab.words(), lab.words()
    a, b = lab.stream(), lab.stream()
    lab.launch(lab.function("spin"), a, flag, out)
    lab.launch(lab.function("set"), b, flag, 4)
    done = lab.until(lambda: ask(cu.cuStreamQuery, a) == "SUCCESS")
    return [done, lab.read(out) if done else 0]
