"""Ask about changes of instantiated graphs in place."""

from __future__ import annotations

from typing import Any

from cuda.bindings import driver as cu

from questions import lab
from questions.graphs import copy_node, fill_node, graph, kernel_node, pair
from questions.lab import Gate, ask, get, question


@question()
def update_kernel() -> dict[str, Any]:
    """A kernel node of an instance changed in place."""
    _, p, g, kernel, fill, instance = pair()
    s, q = lab.stream(), lab.words()
    call = cu.cuGraphExecKernelNodeSetParams
    answers: dict[str, Any] = {
        "arguments": ask(call, instance, kernel, kernel_node(lab.function("add"), q, 6)),
        "launch": ask(cu.cuGraphLaunch, instance, s),
    }
    get(cu.cuStreamSynchronize, s)
    answers["wrote"] = [lab.read(p), lab.read(q)]
    answers["shape"] = ask(
        call, instance, kernel, kernel_node(lab.function("add"), q, 6, grid=3, block=2)
    )
    answers["grid 0"] = ask(call, instance, kernel, kernel_node(lab.function("add"), q, 6, grid=0))
    answers["block 2048"] = ask(
        call, instance, kernel, kernel_node(lab.function("add"), q, 6, block=2048)
    )
    answers["shared"] = ask(
        call, instance, kernel, kernel_node(lab.function("add"), q, 6, shared=1024)
    )
    answers["function"] = ask(call, instance, kernel, kernel_node(lab.function("set"), q, 9))
    get(cu.cuGraphLaunch, instance, s)
    answers["function: synchronize"] = ask(cu.cuStreamSynchronize, s)
    answers["function: wrote"] = lab.read(q)
    fresh = lab.module()
    answers["function of another module"] = ask(
        call, instance, kernel, kernel_node(lab.function("set", fresh), q, 10)
    )
    answers["a fill's node"] = ask(call, instance, fill, kernel_node(lab.function("add"), q, 6))
    other = graph()
    foreign = get(cu.cuGraphAddKernelNode, other, None, 0, kernel_node(lab.function("add"), p, 5))
    answers["a foreign node"] = ask(call, instance, foreign, kernel_node(lab.function("add"), q, 6))
    answers["the graph is unchanged"] = _launch_anew(g, p)
    return answers


def _launch_anew(g: Any, p: Any) -> Any:
    s = lab.stream()
    before = lab.read(p)
    get(cu.cuGraphLaunch, get(cu.cuGraphInstantiate, g, 0), s)
    get(cu.cuStreamSynchronize, s)
    return lab.read(p) - before


@question()
def update_fill() -> dict[str, Any]:
    """A fill node of an instance changed in place."""
    context, p, _, kernel, fill, instance = pair()
    s, q = lab.stream(), lab.words()
    call = cu.cuGraphExecMemsetNodeSetParams

    def change(node: Any, on: Any = fill) -> str:
        return ask(call, instance, on, node, context)

    answers: dict[str, Any] = {
        "address": change(fill_node(q, 2, 4)),
        "count": change(fill_node(q, 2, 8)),
        "value": change(fill_node(q, 3, 8)),
        "size of an element": change(fill_node(q, 3, 16, 1)),
        "height": change(fill_node(q, 3, 4, 4, 2)),
        "height back": change(fill_node(q, 3, 8)),
        "zero": change(fill_node(q, 3, 0)),
        "odd": change(fill_node(lab.at(q, 1), 3, 4)),
        "a kernel's node": change(fill_node(q, 3, 4), kernel),
        "managed": change(fill_node(get(cu.cuMemAllocManaged, 4096, 1), 3, 4)),
        "pinned": change(fill_node(cu.CUdeviceptr(lab.pinned()), 3, 4)),
        "device again": change(fill_node(q, 3, 8)),
    }
    get(cu.cuGraphLaunch, instance, s)
    answers["synchronize"] = ask(cu.cuStreamSynchronize, s)
    answers["wrote"] = [lab.read(p, 3), lab.read(q, 9)]
    return answers


@question()
def update_copy() -> dict[str, Any]:
    """A copy node of an instance changed in place."""
    context = lab.open_context()
    p, q, g, s = lab.words(), lab.words(), graph(), lab.stream()
    host = lab.pinned()
    node = get(cu.cuGraphAddMemcpyNode, g, None, 0, copy_node(q, p, 16), context)
    instance = get(cu.cuGraphInstantiate, g, 0)
    get(cu.cuMemsetD32, p, 4, 8)
    get(cu.cuCtxSynchronize)

    def change(given: Any) -> str:
        return ask(cu.cuGraphExecMemcpyNodeSetParams, instance, node, given, context)

    answers: dict[str, Any] = {
        "address": change(copy_node(lab.at(q, 16), p, 16)),
        "size": change(copy_node(q, p, 32)),
        "to the host": change(copy_node(host, p, 32, "DH")),
        "from the host": change(copy_node(q, host, 32, "HD")),
        "from managed": change(copy_node(q, get(cu.cuMemAllocManaged, 4096, 1), 32)),
        "zero": change(copy_node(q, p, 0)),
        "within": change(copy_node(q, p, 20)),
    }
    get(cu.cuGraphLaunch, instance, s)
    answers["synchronize"] = ask(cu.cuStreamSynchronize, s)
    answers["wrote"] = lab.read(q, 8)
    return answers


@question()
def update_while_running() -> dict[str, Any]:
    """An instance changed between a launch and its run: the launch keeps what it had."""
    _, p, _, kernel, _, instance = pair()
    s, q = lab.stream(), lab.words()
    gate = Gate()
    gate.hold(s)
    get(cu.cuGraphLaunch, instance, s)
    changed = lab.waits(
        lambda: ask(
            cu.cuGraphExecKernelNodeSetParams,
            instance,
            kernel,
            kernel_node(lab.function("add"), q, 1),
        ),
        gate,
    )
    get(cu.cuStreamSynchronize, s)
    return {"set": changed, "wrote": [lab.read(p), lab.read(q)]}
