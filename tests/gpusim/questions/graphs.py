"""Ask about graphs: building, instantiating, updating, launching, capture."""

from __future__ import annotations

import ctypes
from typing import Any

from cuda.bindings import driver as cu

from questions import lab
from questions.lab import Gate, alone, ask, get, question


def kernel_node(
    kernel: Any, *arguments: Any, grid: int = 1, block: int = 1, shared: int = 0
) -> Any:
    """Return the parameters of a kernel node."""
    node = cu.CUDA_KERNEL_NODE_PARAMS()
    node.func = kernel
    node.gridDimX, node.gridDimY, node.gridDimZ = grid, 1, 1
    node.blockDimX, node.blockDimY, node.blockDimZ = block, 1, 1
    node.sharedMemBytes = shared
    given = lab.pack(*arguments) if arguments else 0
    _kept.append(given)  # the node points to the values, and keeps none of them
    node.kernelParams = given
    return node


_kept: list[Any] = []


def fill_node(pointer: Any, value: int, count: int = 1, size: int = 4, height: int = 1) -> Any:
    """Return the parameters of a fill node."""
    node = cu.CUDA_MEMSET_NODE_PARAMS()
    node.dst, node.value, node.elementSize, node.width, node.height = (
        pointer,
        value,
        size,
        count,
        height,
    )
    node.pitch = count * size if height > 1 else 0
    return node


def copy_node(target: Any, source: Any, size: int, kinds: str = "DD") -> Any:
    """Return the parameters of a copy node."""
    memory = cu.CUmemorytype
    node = cu.CUDA_MEMCPY3D()
    if kinds[0] == "D":
        node.srcMemoryType, node.srcDevice = memory.CU_MEMORYTYPE_DEVICE, source
    else:
        node.srcMemoryType, node.srcHost = memory.CU_MEMORYTYPE_HOST, int(source)
    if kinds[1] == "D":
        node.dstMemoryType, node.dstDevice = memory.CU_MEMORYTYPE_DEVICE, target
    else:
        node.dstMemoryType, node.dstHost = memory.CU_MEMORYTYPE_HOST, int(target)
    node.WidthInBytes, node.Height, node.Depth = size, 1, 1
    return node


def graph() -> Any:
    """Return a new graph."""
    return get(cu.cuGraphCreate, 0)


@question()
def runs() -> dict[str, Any]:
    """A graph of every kind of node runs in the order of its edges."""
    context = lab.open_context()
    s, p, q, g = lab.stream(), lab.words(), lab.words(), graph()
    host = lab.pinned()
    fill = get(cu.cuGraphAddMemsetNode, g, None, 0, fill_node(p, 100), context)
    empty = get(cu.cuGraphAddEmptyNode, g, [fill], 1)
    added = kernel_node(lab.function("add"), p, 5)
    kernel = get(cu.cuGraphAddKernelNode, g, [empty], 1, added)
    copy = get(cu.cuGraphAddMemcpyNode, g, [kernel], 1, copy_node(q, p, 4), context)
    get(cu.cuGraphAddMemcpyNode, g, [copy], 1, copy_node(host, q, 4, "DH"), context)
    instance = get(cu.cuGraphInstantiate, g, 0)
    get(cu.cuGraphDestroy, g)
    codes = [ask(cu.cuGraphLaunch, instance, s) for _ in range(3)]
    codes.append(ask(cu.cuStreamSynchronize, s))
    return {
        "codes": codes,
        "value": ctypes.c_uint32.from_address(host).value,
        "destroy": ask(cu.cuGraphExecDestroy, instance),
    }


@question()
def bad_nodes() -> dict[str, Any]:
    """Nodes with parameters that no operation may have."""
    context = lab.open_context()
    p, q, g = lab.words(), lab.words(), graph()
    nothing = lab.function("nothing")
    null = cu.CUdeviceptr(0)

    def kernel(**given: Any) -> str:
        return ask(cu.cuGraphAddKernelNode, g, None, 0, kernel_node(nothing, **given))

    def fill(node: Any) -> str:
        return ask(cu.cuGraphAddMemsetNode, g, None, 0, node, context)

    def copy(node: Any) -> str:
        return ask(cu.cuGraphAddMemcpyNode, g, None, 0, node, context)

    odd = fill_node(p, 1, 4)
    odd.elementSize = 3
    return {
        "grid 0": kernel(grid=0),
        "block 0": kernel(block=0),
        "block 2048": kernel(block=2048),
        "shared 1 GiB": kernel(shared=1 << 30),
        "shared 64 KiB": kernel(shared=65536),
        "null kernel": ask(cu.cuGraphAddKernelNode, g, None, 0, kernel_node(cu.CUfunction(0))),
        "no arguments": ask(cu.cuGraphAddKernelNode, g, None, 0, kernel_node(lab.function("set"))),
        "fill 0": fill(fill_node(p, 1, 0)),
        "fill height 0": fill(fill_node(p, 1, 4, 4, 0)),
        "fill of 3": fill(odd),
        "fill of null": fill(fill_node(null, 1)),
        "fill odd 2": fill(fill_node(lab.at(p, 1), 1, 4, 2)),
        "fill odd 4": fill(fill_node(lab.at(p, 2), 1, 4, 4)),
        "fill value too wide": fill(fill_node(p, 0x1234, 4, 1)),
        "fill out of range": fill(fill_node(p, 1, 1 << 38)),
        "fill null context": ask(
            cu.cuGraphAddMemsetNode, g, None, 0, fill_node(p, 1), cu.CUcontext(0)
        ),
        "copy 0": copy(copy_node(q, p, 0)),
        "copy null": copy(copy_node(null, p, 4)),
        "copy out of range": copy(copy_node(q, p, 1 << 38)),
        "copy null context": ask(
            cu.cuGraphAddMemcpyNode, g, None, 0, copy_node(q, p, 4), cu.CUcontext(0)
        ),
        "copy of pinned as device": copy(copy_node(cu.CUdeviceptr(lab.pinned()), p, 4)),
        "copy to pageable": copy(copy_node(ctypes.addressof(_page), p, 4, "DH")),
    }


_page = ctypes.create_string_buffer(4096)


@question()
def bad_edges() -> dict[str, Any]:
    """Edges that a graph may not have."""
    lab.open_context()
    g, other = graph(), graph()
    a = get(cu.cuGraphAddEmptyNode, g, None, 0)
    c = get(cu.cuGraphAddEmptyNode, other, None, 0)
    return {
        "dependency of another graph": ask(cu.cuGraphAddEmptyNode, g, [c], 1),
        "the same dependency twice": ask(cu.cuGraphAddEmptyNode, g, [a, a], 2),
    }


@question()
def instantiate() -> dict[str, Any]:
    """Instances of an empty graph, flags, and destruction of the graph."""
    lab.open_context()
    s, g = lab.stream(), graph()
    empty = get(cu.cuGraphInstantiate, g, 0)
    answers: dict[str, Any] = {
        "empty graph launches": ask(cu.cuGraphLaunch, empty, s),
        "unknown flag": ask(cu.cuGraphInstantiate, g, 1 << 20),
        "auto free flag": ask(cu.cuGraphInstantiate, g, 1),
        "node count": int(get(cu.cuGraphGetNodes, g, 0)[1]),
    }
    get(cu.cuGraphDestroy, g)
    answers["after the graph is gone"] = ask(cu.cuGraphLaunch, empty, s)
    with Gate() as gate:
        gate.hold(s)
        get(cu.cuGraphLaunch, empty, s)
        answers["destroyed in use"] = lab.waits(lambda: ask(cu.cuGraphExecDestroy, empty), gate)
    answers["synchronize"] = ask(cu.cuStreamSynchronize, s)
    return answers


def pair() -> Any:
    """Return a context, memory, a graph of a kernel and a fill, its nodes and an instance."""
    context = lab.open_context()
    p, g = lab.words(), graph()
    kernel = get(cu.cuGraphAddKernelNode, g, None, 0, kernel_node(lab.function("add"), p, 5))
    fill = get(cu.cuGraphAddMemsetNode, g, [kernel], 1, fill_node(lab.at(p, 4), 1, 4), context)
    return context, p, g, kernel, fill, get(cu.cuGraphInstantiate, g, 0)


@question()
def two_launches() -> dict[str, Any]:
    """One instance launched on two streams: the second runs after the first."""
    lab.open_context()
    flag, out = lab.words(), lab.words()
    g, a, b = graph(), lab.stream(), lab.stream()
    gate_memory = lab.pinned()
    get(
        cu.cuGraphAddKernelNode,
        g,
        None,
        0,
        kernel_node(lab.function("spin"), cu.CUdeviceptr(gate_memory), out),
    )
    instance = get(cu.cuGraphInstantiate, g, 0)
    codes = [ask(cu.cuGraphLaunch, instance, a), ask(cu.cuGraphLaunch, instance, b)]
    held = [ask(cu.cuStreamQuery, a), ask(cu.cuStreamQuery, b)]
    ctypes.c_uint32.from_address(gate_memory).value = 5
    done = [ask(cu.cuStreamSynchronize, a), ask(cu.cuStreamSynchronize, b)]
    del flag
    return {"codes": codes, "held": held, "done": done, "wrote": lab.read(out)}


@question()
def second_launch_waits_for_first() -> dict[str, Any]:
    """One instance behind a held stream, launched on a free one, too."""
    _, p, _, _, _, instance = pair()
    a, b, gate = lab.stream(), lab.stream(), Gate()
    gate.hold(a)
    get(cu.cuGraphLaunch, instance, a)
    second = lab.waits(lambda: ask(cu.cuGraphLaunch, instance, b), Gate())
    done = lab.until(lambda: ask(cu.cuStreamQuery, b) == "SUCCESS", 0.5)
    gate.open()
    get(cu.cuCtxSynchronize)
    return {"launch": second, "done while the first is held": done, "wrote": lab.read(p)}


@question()
def branches_overlap() -> Any:
    """Nodes without an edge may run at once: one waits for what the other writes."""
    lab.open_context()
    flag, out, g, s = lab.words(), lab.words(), graph(), lab.stream()
    get(cu.cuGraphAddKernelNode, g, None, 0, kernel_node(lab.function("spin"), flag, out))
    get(cu.cuGraphAddKernelNode, g, None, 0, kernel_node(lab.function("set"), flag, 6))
    get(cu.cuGraphLaunch, get(cu.cuGraphInstantiate, g, 0), s)
    done = lab.until(lambda: ask(cu.cuStreamQuery, s) == "SUCCESS")
    if not done:
        get(cu.cuMemsetD32Async, flag, 6, 1, lab.stream())
    return [done, ask(cu.cuStreamSynchronize, s), lab.read(out)]


@question()
def arguments_are_copied() -> Any:
    """A kernel node's arguments are copied when the node is added."""
    lab.open_context()
    p, g, s = lab.words(), graph(), lab.stream()
    pointer, value = ctypes.c_uint64(int(p)), ctypes.c_uint32(3)
    given = (ctypes.c_void_p * 2)(ctypes.addressof(pointer), ctypes.addressof(value))
    node = kernel_node(lab.function("set"))
    node.kernelParams = ctypes.addressof(given)
    get(cu.cuGraphAddKernelNode, g, None, 0, node)
    value.value, pointer.value = 99, 0
    get(cu.cuGraphLaunch, get(cu.cuGraphInstantiate, g, 0), s)
    get(cu.cuStreamSynchronize, s)
    return lab.read(p)


@question()
def disabled_node() -> dict[str, Any]:
    """A node switched off."""
    _, p, _, kernel, fill, instance = pair()
    s = lab.stream()
    answers: dict[str, Any] = {
        "kernel": ask(cu.cuGraphNodeSetEnabled, instance, kernel, 0),
        "fill": ask(cu.cuGraphNodeSetEnabled, instance, fill, 1),
    }
    get(cu.cuGraphLaunch, instance, s)
    get(cu.cuStreamSynchronize, s)
    answers["wrote"] = lab.read(p, 2)
    return answers


@question()
def other_device() -> dict[str, Any]:
    """Graphs launched on another device's stream."""
    lab.need_two()
    _, p, _, _, _, instance = pair()
    lab.open_context(1)
    t = lab.stream()
    answers = {
        "launch": ask(cu.cuGraphLaunch, instance, t),
        "synchronize": ask(cu.cuStreamSynchronize, t),
    }
    lab.open_context()
    answers["wrote"] = str(lab.read(p))
    return answers


# Capture


@alone()
def capture() -> dict[str, Any]:
    """What a capturing stream takes, and what it refuses."""
    lab.open_context()
    s, t, e, p = lab.stream(), lab.stream(), lab.event(), lab.words()
    mode = cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
    answers: dict[str, Any] = {
        "default stream": ask(cu.cuStreamBeginCapture, cu.CUstream(0), mode),
        "begin": ask(cu.cuStreamBeginCapture, s, mode),
        "begin again": ask(cu.cuStreamBeginCapture, s, mode),
        "fill": ask(cu.cuMemsetD32Async, p, 1, 1, s),
        "query": ask(cu.cuStreamQuery, s),
        "end after a query": ask(cu.cuStreamEndCapture, s),
        "end again": ask(cu.cuStreamEndCapture, s),
    }
    get(cu.cuStreamBeginCapture, s, mode)
    get(cu.cuMemsetD32Async, p, 9, 1, s)
    answers["record"] = ask(cu.cuEventRecord, e, s)
    answers["query of the event"] = ask(cu.cuEventQuery, e)
    answers["wait of another stream"] = ask(cu.cuStreamWaitEvent, t, e, 0)
    answers["kernel there"] = lab.launch(lab.function("add"), t, p, 1)
    answers["end unjoined"] = ask(cu.cuStreamEndCapture, s)
    get(cu.cuStreamSynchronize, t)
    get(cu.cuStreamBeginCapture, s, mode)
    get(cu.cuMemsetD32Async, p, 9, 1, s)
    lab.launch(lab.function("add"), s, p, 1)
    captured = get(cu.cuStreamEndCapture, s)
    answers["not run yet"] = lab.read(p)
    get(cu.cuGraphLaunch, get(cu.cuGraphInstantiate, captured, 0), s)
    get(cu.cuStreamSynchronize, s)
    answers["run"] = lab.read(p)
    answers["wait uncaptured"] = ask(cu.cuStreamWaitEvent, s, e, 0)
    return answers
