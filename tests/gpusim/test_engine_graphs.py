# ruff: noqa: E501 - the programs in strings
"""gpusim's graphs: order, concurrency, instances and what may be changed in them."""

from __future__ import annotations

import pytest
from engine_harness import abort, run

MODES = pytest.mark.parametrize("mode", ["free", "stepped"])

GRAPHS = """
cu = Driver(); s = cu.stream(); context = cu.contexts[0]
def fill(graph, target, value, *after, width=4, height=1, pitch=0, element=1):
    node = MemsetNode(target, pitch, value, element, width, height)
    return cu.make("cuGraphAddMemsetNode", graph, (c_uint64 * len(after))(*after), len(after), byref(node), context)
def copy(graph, target, source, *after, size=4):
    node = MemcpyNode(source_type=4, source_device=source, target_type=4, target_device=target, width=size, height=1, depth=1)
    return cu.make("cuGraphAddMemcpyNode", graph, (c_uint64 * len(after))(*after), len(after), byref(node), context)
def kernel(function, *values, block=1):
    array = cu.parameters(*values)
    return KernelNode(function=function, grid=(1, 1, 1), block=(block, 1, 1), parameters=ctypes.addressof(array))
def instance(graph):
    return cu.make("cuGraphInstantiateWithFlags", graph, 0)
"""


def graphs(program: str) -> str:
    lines = [line.removeprefix("        ") for line in program.splitlines()]
    return GRAPHS + "\n".join(lines)


@pytest.mark.parametrize("seed", range(3))
@MODES
def test_nodes_run_in_topological_order(mode, seed):
    run(
        graphs("""
        g = cu.make("cuGraphCreate", 0); a = cu.pinned(400); p = a.ctypes.data
        last = []
        for turn in range(20):  # each fill of the whole is split in two by the next
            first = fill(g, p, turn, *last, width=400)
            last = [copy(g, p + 200, p, first, size=100), copy(g, p + 300, p + 100, first, size=100)]
        fill(g, p, 99, *last, width=1)
        x = instance(g)
        for _ in range(10):
            cu.call("cuGraphLaunch", x, s); cu.call("cuStreamSynchronize", s)
            assert list(a) == [99] + [19] * 399, a
        """),
        mode=mode,
        seed=seed,
    )


def test_equal_seeds_run_a_graph_in_the_same_order():
    program = graphs("""
        g = cu.make("cuGraphCreate", 0); a = cu.pinned(16)
        for i in range(8): fill(g, a.ctypes.data, i)
        cu.call("cuGraphLaunch", instance(g), s); cu.call("cuStreamSynchronize", s)
        print(a[0], cu.history())
    """)
    said = [run(program, mode="stepped", tick_ms=0, seed=seed) for seed in (1, 1, 2, 3)]
    assert said[0] == said[1]
    assert len(set(said)) == 3


def test_what_a_stream_still_runs_must_not_be_destroyed_i4():
    held = graphs("""
        g = cu.make("cuGraphCreate", 0); a = cu.pinned(8); a[:] = 0
        module = cu.module(image()); hold = cu.function(module, "hold")
        cu.make("cuGraphAddKernelNode_v2", g, None, 0, byref(kernel(hold, c_void_p(a.ctypes.data))))
        x = instance(g); cu.call("cuGraphLaunch", x, s)
    """)
    said = abort(held + "\ncu.call('cuGraphExecDestroy', x)", images=True)
    assert "is destroyed while a stream runs it (I4)" in said
    said = abort(held + "\ncu.call('cuModuleUnload', module)", images=True)
    assert "unloaded while 1 kernel(s) of it are queued (I4)" in said


@MODES
def test_a_launch_with_a_copy_between_pinned_memories_blocks_and_one_without_does_not(mode):
    """As seen on an H200; a fill of pinned memory, and a copy from it to the device's, are free."""
    run(
        graphs("""
        flag = cu.pinned(4); flag[:] = 0; a = cu.pinned(16); p = a.ctypes.data; device = cu.allocate(16)
        def launched(build, seconds=20):
            flag[:] = 0; g = cu.make("cuGraphCreate", 0); build(g); x = instance(g); returned = threading.Event()
            def launch():
                cu.call("cuCtxSetCurrent", context)
                cu.call("cuGraphLaunch", x, s); returned.set()
            cu.call("cuStreamWaitValue32_v2", s, flag.ctypes.data, 1, 0)
            thread = threading.Thread(target=launch); thread.start()
            before = returned.wait(seconds); flag[0] = 1; assert returned.wait(20); thread.join()
            cu.call("cuStreamSynchronize", s)
            return before
        assert launched(lambda g: fill(g, p, 1)) and launched(lambda g: copy(g, device, p))
        assert launched(lambda g: copy(g, p, device))
        assert not launched(lambda g: copy(g, p + 8, p), 0.2)
        assert not launched(lambda g: fill(g, p, 1, fill(g, p, 2)) and copy(g, p + 8, p, fill(g, device, 3)), 0.2)
        """),
        mode=mode,
    )
