"""Ask what a fault inside a kernel leaves behind. Every question has its own process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cuda.bindings import driver as cu

from questions import lab
from questions.lab import alone, ask, get


def _after(cause: Callable[[Any, Any], str]) -> dict[str, Any]:
    """Cause a fault, and ask whatever a plugin calls afterwards."""
    lab.open_context()
    s, other, p, q = lab.stream(), lab.stream(), lab.words(), lab.words()
    e, before, behind, timed = lab.event(), lab.event(), lab.event(), lab.event(0)
    host, seen = lab.pinned(), []
    fine = lab.function("set")
    graph = get(cu.cuGraphCreate, 0)
    get(cu.cuGraphAddEmptyNode, graph, None, 0)
    instance = get(cu.cuGraphInstantiate, graph, 0)
    pooled = get(cu.cuMemAllocAsync, 64, other)
    get(cu.cuEventRecord, before, other)
    get(cu.cuEventRecord, timed, other)
    get(cu.cuCtxSynchronize)
    gate = lab.Gate()  # the fault comes after what is asked first
    gate.hold(s)
    a: dict[str, Any] = {"launch": cause(s, p)}
    a["record behind"] = ask(cu.cuEventRecord, behind, s)
    a["host function behind"] = ask(
        cu.cuLaunchHostFunc, s, lab.host_function(lambda: seen.append(1)), 0
    )
    gate.open()
    a["synchronize"] = ask(cu.cuStreamSynchronize, s)
    a["synchronize again"] = ask(cu.cuStreamSynchronize, s)
    a["synchronize another stream"] = ask(cu.cuStreamSynchronize, other)
    a["query"] = ask(cu.cuStreamQuery, s)
    a["query another stream"] = ask(cu.cuStreamQuery, other)
    a["event behind"] = ask(cu.cuEventQuery, behind)
    a["event synchronize"] = ask(cu.cuEventSynchronize, behind)
    a["event completed before"] = ask(cu.cuEventQuery, before)
    a["event unrecorded"] = ask(cu.cuEventQuery, e)
    a["elapsed before"] = ask(cu.cuEventElapsedTime, timed, timed)
    a["context synchronize"] = ask(cu.cuCtxSynchronize)
    a["record"] = ask(cu.cuEventRecord, e, other)
    a["wait"] = ask(cu.cuStreamWaitEvent, other, before, 0)
    a["launch then"] = lab.launch(fine, other, q, 3)
    a["graph launch"] = ask(cu.cuGraphLaunch, instance, other)
    a["graph instantiate"] = ask(cu.cuGraphInstantiate, graph, 0)
    a["graph create"] = ask(cu.cuGraphCreate, 0)
    a["host function"] = ask(
        cu.cuLaunchHostFunc, other, lab.host_function(lambda: seen.append(2)), 0
    )
    a["fill"] = ask(cu.cuMemsetD8Async, q, 1, 4, other)
    a["copy"] = ask(cu.cuMemcpyDtoHAsync, host, q, 4, other)
    a["copy now"] = ask(cu.cuMemcpyDtoH, host, q, 4)
    a["allocate"] = ask(cu.cuMemAlloc, 64)
    a["allocate pinned"] = ask(cu.cuMemHostAlloc, 64, 0)
    a["allocate async"] = ask(cu.cuMemAllocAsync, 64, other)
    a["free async"] = ask(cu.cuMemFreeAsync, pooled, other)
    a["event create"] = ask(cu.cuEventCreate, 2)
    a["stream create"] = ask(cu.cuStreamCreate, 1)
    a["module load"] = ask(cu.cuModuleLoadData, lab.compile_image())
    a["module get function"] = ask(cu.cuModuleGetFunction, lab.shared_module(), b"iota")
    a["memory info"] = ask(cu.cuMemGetInfo)
    a["pointer attribute"] = ask(
        cu.cuPointerGetAttribute, cu.CUpointer_attribute.CU_POINTER_ATTRIBUTE_MEMORY_TYPE, q
    )
    a["current device"] = ask(cu.cuCtxGetDevice)
    a["context set"] = ask(cu.cuCtxSetCurrent, lab.contexts()[0])
    a["device attribute"] = ask(
        cu.cuDeviceGetAttribute, cu.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_WARP_SIZE, 0
    )
    a["host functions ran"] = list(seen)
    a["free"] = ask(cu.cuMemFree, q)
    a["free pinned"] = ask(cu.cuMemFreeHost, host)
    a["event destroy"] = ask(cu.cuEventDestroy, behind)
    a["graph exec destroy"] = ask(cu.cuGraphExecDestroy, instance)
    a["graph destroy"] = ask(cu.cuGraphDestroy, graph)
    a["stream destroy"] = ask(cu.cuStreamDestroy, s)
    a["module unload"] = ask(cu.cuModuleUnload, lab.shared_module())
    a["retain"] = ask(cu.cuDevicePrimaryCtxRetain, 0)
    a["release"] = ask(cu.cuDevicePrimaryCtxRelease, 0)
    a["release the last"] = ask(cu.cuDevicePrimaryCtxRelease, 0)
    code, *context = cu.cuDevicePrimaryCtxRetain(cu.CUdevice(0))
    a["retain afresh"] = lab.answer_of(code)
    if int(code) == 0:
        a["set afresh"] = ask(cu.cuCtxSetCurrent, context[0])
        a["allocate afresh"] = ask(cu.cuMemAlloc, 64)
    return a


@alone()
def illegal_address() -> dict[str, Any]:
    """A write to an address that is nobody's."""
    return _after(lambda s, _: lab.launch(lab.function("wild"), s, cu.CUdeviceptr(0xDEAD0000)))


@alone()
def null_address() -> dict[str, Any]:
    """A write to a null pointer: the code alone."""
    lab.open_context()
    s = lab.stream()
    return {
        "launch": lab.launch(lab.function("wild"), s, cu.CUdeviceptr(0)),
        "synchronize": ask(cu.cuStreamSynchronize, s),
    }


@alone()
def misaligned_address() -> dict[str, Any]:
    """A write of a word to an odd address."""
    lab.open_context()
    s, p = lab.stream(), lab.words()
    return {
        "launch": lab.launch(lab.function("wild"), s, lab.at(p, 1)),
        "synchronize": ask(cu.cuStreamSynchronize, s),
    }


@alone()
def assertion() -> dict[str, Any]:
    """A failed assertion."""
    return _after(lambda s, _: lab.launch(lab.function("fail"), s))


@alone()
def trap() -> dict[str, Any]:
    """A trap."""
    return _after(lambda s, _: lab.launch(lab.function("trap"), s))


@alone()
def fault_in_a_graph() -> dict[str, Any]:
    """A fault in a kernel of a graph."""

    def cause(s: Any, _: Any) -> str:
        node = cu.CUDA_KERNEL_NODE_PARAMS()
        node.func = lab.function("trap")
        node.gridDimX = node.gridDimY = node.gridDimZ = 1
        node.blockDimX = node.blockDimY = node.blockDimZ = 1
        g = get(cu.cuGraphCreate, 0)
        get(cu.cuGraphAddKernelNode, g, None, 0, node)
        return ask(cu.cuGraphLaunch, get(cu.cuGraphInstantiate, g, 0), s)

    return _after(cause)


@alone()
def fault_while_waited_for() -> dict[str, Any]:
    """A fault on a stream that another stream waits for, behind a gate."""
    lab.open_context()
    s, t, e, f, gate = lab.stream(), lab.stream(), lab.event(), lab.event(), lab.Gate()
    seen: list[int] = []
    trap = lab.function("trap")  # before the gate: loading a module waits for the device
    gate.hold(s)
    lab.launch(trap, s)
    get(cu.cuEventRecord, e, s)
    get(cu.cuStreamWaitEvent, t, e, 0)
    get(cu.cuLaunchHostFunc, t, lab.host_function(lambda: seen.append(1)), 0)
    get(cu.cuEventRecord, f, t)
    gate.open()
    return {
        "event of the waiting stream": ask(cu.cuEventSynchronize, f),
        "waiting stream": ask(cu.cuStreamSynchronize, t),
        "host function ran": bool(seen),
    }


@alone()
def other_device_goes_on() -> dict[str, Any]:
    """A fault on one device leaves the other alone."""
    lab.need_two()
    lab.open_context()
    s = lab.stream()
    lab.launch(lab.function("trap"), s)
    answers = {"synchronize": ask(cu.cuStreamSynchronize, s)}
    lab.open_context(1)
    answers["synchronize the other"] = ask(cu.cuCtxSynchronize)
    answers["allocate there"] = ask(cu.cuMemAlloc, 64)
    answers["event of the first"] = ask(cu.cuEventQuery, lab.event())
    return answers
