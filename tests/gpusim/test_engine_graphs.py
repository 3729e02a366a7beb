# ruff: noqa: E501 - the programs in strings
"""gpusim's graphs: order, concurrency, instances and what may be changed in them."""

from __future__ import annotations

import pytest
from engine_harness import abort, forget_kernels, run

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


@pytest.fixture(scope="module", autouse=True)
def no_files_are_left():
    yield
    forget_kernels()


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
        late = fill(g, p, 99, width=1)  # its edge comes after the node
        cu.call("cuGraphAddDependencies_v2", g, (c_uint64 * 2)(*last), (c_uint64 * 2)(late, late), None, 2)
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


def test_nodes_without_a_path_run_at_once():
    run(
        graphs("""
        g = cu.make("cuGraphCreate", 0); a = cu.pinned(8); a[:] = 0; p = a.ctypes.data
        meet = cu.function(cu.module(image()), "meet")
        for mine, other in ((p, p + 4), (p + 4, p)):
            cu.make("cuGraphAddKernelNode_v2", g, None, 0, byref(kernel(meet, c_void_p(mine), c_void_p(other))))
        cu.call("cuGraphLaunch", instance(g), s); cu.call("cuStreamSynchronize", s)
        assert list(a) == [2, 0, 0, 0] * 2, a
        """),
        images=True,
    )


@MODES
def test_an_instance_runs_once_at_a_time(mode):
    run(
        graphs("""
        g = cu.make("cuGraphCreate", 0); a = cu.pinned(8); a[:] = 0; p = a.ctypes.data; t = cu.stream()
        hold = cu.function(cu.module(image()), "hold")
        cu.make("cuGraphAddKernelNode_v2", g, None, 0, byref(kernel(hold, c_void_p(p))))
        x = instance(g)
        cu.call("cuGraphLaunch", x, s); cu.call("cuGraphLaunch", x, t)
        for _ in range(30): expect(600, "cuStreamQuery", t)
        a[0] = 1
        cu.call("cuCtxSynchronize")
        lines = cu.history().splitlines()
        events = [l for l in lines if "graph instance" in l and " takes " not in l]
        assert [l.split()[4] for l in events] == ["begins", "ended", "begins", "ended"], events
        """),
        images=True,
        mode=mode,
    )


@MODES
def test_nodes_of_an_instance_change_for_later_launches(mode):
    run(
        graphs("""
        g = cu.make("cuGraphCreate", 0); p = cu.allocate(32); flag = cu.pinned(4); flag[:] = 0
        import numpy as np; a = np.ctypeslib.as_array((ctypes.c_uint8 * 32).from_address(p)); a[:] = 0  # there is one address space
        module = cu.module(image()); function = cu.function(module, "fill")
        first = fill(g, p, 1); second = copy(g, p + 4, p, first)
        third = cu.make("cuGraphAddKernelNode_v2", g, (c_uint64 * 1)(second), 1,
                        byref(kernel(function, c_void_p(p + 8), c_uint32(5), c_uint32(1))))
        x = instance(g)
        cu.call("cuStreamWaitValue32_v2", s, flag.ctypes.data, 1, 0)
        cu.call("cuGraphLaunch", x, s)
        memset = MemsetNode(p + 16, 0, 2, 1, 4, 1)
        cu.call("cuGraphExecMemsetNodeSetParams", x, first, byref(memset), context)
        memcpy = MemcpyNode(source_type=4, source_device=p + 16, target_type=4, target_device=p + 20, width=4, height=1, depth=1)
        cu.call("cuGraphExecMemcpyNodeSetParams", x, second, byref(memcpy), context)
        cu.call("cuGraphExecKernelNodeSetParams_v2", x, third, byref(kernel(function, c_void_p(p + 24), c_uint32(6), c_uint32(1))))
        flag[0] = 1
        cu.call("cuStreamSynchronize", s)
        assert list(a[:12]) == [1] * 8 + [5, 0, 0, 0] and not a[12:].any(), a  # the launch before is as it was
        cu.call("cuGraphLaunch", x, s); cu.call("cuStreamSynchronize", s)
        assert list(a[16:28]) == [2] * 8 + [6, 0, 0, 0], a
        # What cannot be changed
        expect(1, "cuGraphExecMemsetNodeSetParams", x, second, byref(memset), context)
        expect(1, "cuGraphExecMemcpyNodeSetParams", x, first, byref(memcpy), context)
        expect(1, "cuGraphExecKernelNodeSetParams_v2", x, first, byref(kernel(function, c_void_p(p), c_uint32(6), c_uint32(1))))
        memset.height, memset.pitch = 2, 4
        expect(1, "cuGraphExecMemsetNodeSetParams", x, first, byref(memset), context)
        memset.height, memset.element = 1, 3
        expect(1, "cuGraphExecMemsetNodeSetParams", x, first, byref(memset), context)
        memcpy.source_device = cu.pinned(4).ctypes.data  # from the device's memory to the host's
        expect(1, "cuGraphExecMemcpyNodeSetParams", x, second, byref(memcpy), context)
        expect(400, "cuGraphExecKernelNodeSetParams_v2", x, third, byref(kernel(module, c_void_p(p))))
        cu.call("cuGraphLaunch", x, s); cu.call("cuStreamSynchronize", s)
        assert list(a[16:28]) == [2] * 8 + [6, 0, 0, 0], a
        """),
        images=True,
        mode=mode,
    )


def test_a_node_is_checked_when_it_is_added():
    run(
        graphs("""
        g, other = cu.make("cuGraphCreate", 0), cu.make("cuGraphCreate", 0); p = cu.allocate(64)
        foreign = fill(other, p, 1); own = fill(g, p, 1); out = c_uint64()
        def adding(node, *after):
            return cu.code("cuGraphAddMemsetNode", byref(out), g, (c_uint64 * len(after))(*after), len(after), byref(node), context)
        good = MemsetNode(p, 0, 1, 1, 4, 1)
        assert adding(good, own) == 0
        assert adding(good, foreign) == 1 and adding(good, own, own) == 1
        for bad in ((p, 0, 1, 1, 65, 1), (p, 0, 1, 3, 4, 1), (p + 1, 0, 1, 2, 4, 1), (p, 0, 1, 1, 0, 1), (p, 2, 1, 1, 4, 2)):
            assert adding(MemsetNode(*bad)) == 1, bad
        count = c_size_t(0)
        cu.call("cuGraphGetNodes", g, None, byref(count)); assert count.value == 2
        a, b = own, out.value
        cu.call("cuGraphAddDependencies_v2", g, byref(c_uint64(b)), byref(c_uint64(a)), None, 1)
        expect(1, "cuGraphInstantiateWithFlags", byref(out), g, 0)  # a cycle
        """)
    )


@MODES
def test_a_whole_graph_replaces_an_equal_one(mode):
    run(
        graphs("""
        a = cu.pinned(16); a[:] = 0; p = a.ctypes.data
        def made(value, *, edge=True, second=True):
            g = cu.make("cuGraphCreate", 0); first = fill(g, p, value)
            if second: copy(g, p + 4, p, *([first] if edge else []))
            return g
        x = instance(made(1)); result = (c_uint64 * 3)()
        cu.call("cuGraphExecUpdate_v2", x, made(2), result); assert result[0] & 255 == 0
        cu.call("cuGraphUpload", x, s); cu.call("cuGraphLaunch", x, s); cu.call("cuStreamSynchronize", s)
        assert list(a[:8]) == [2] * 8
        expect(910, "cuGraphExecUpdate_v2", x, made(3, edge=False), result); assert result[0] & 255 == 2
        expect(910, "cuGraphExecUpdate_v2", x, made(3, second=False), result); assert result[0] & 255 == 2
        other = cu.make("cuGraphCreate", 0); copy(other, p, p + 4); fill(other, p, 3)
        expect(910, "cuGraphExecUpdate_v2", x, other, result); assert result[0] & 255 == 3 and result[1]
        cu.call("cuGraphLaunch", x, s); cu.call("cuStreamSynchronize", s)
        assert list(a[:8]) == [2] * 8
        """),
        mode=mode,
    )


@MODES
def test_a_child_graph_and_host_and_empty_nodes_keep_their_place(mode):
    run(
        graphs("""
        a = cu.pinned(16); p = a.ctypes.data; seen = []
        child = cu.make("cuGraphCreate", 0); copy(child, p + 4, p); copy(child, p + 8, p)
        g = cu.make("cuGraphCreate", 0); before = fill(g, p, 7)
        inner = cu.make("cuGraphAddChildGraphNode", g, (c_uint64 * 1)(before), 1, child)
        cu.call("cuGraphDestroy", child)  # the node has a copy
        empty = cu.make("cuGraphAddEmptyNode", g, (c_uint64 * 1)(inner), 1)
        function = ctypes.CFUNCTYPE(None, c_void_p)(lambda _: seen.append(list(a[:12])))
        params = (c_void_p * 2)(ctypes.cast(function, c_void_p).value, None)
        cu.make("cuGraphAddHostNode", g, (c_uint64 * 1)(empty), 1, params)
        x = instance(g); cu.call("cuGraphDestroy", g)
        a[:] = 0
        cu.call("cuGraphLaunch", x, s); cu.call("cuStreamSynchronize", s)
        assert seen == [[7] * 12], seen
        cu.call("cuGraphLaunch", instance(cu.make("cuGraphCreate", 0)), s); cu.call("cuStreamSynchronize", s)
        """),
        mode=mode,
    )


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
        def launched(build):
            flag[:] = 0; g = cu.make("cuGraphCreate", 0); build(g); x = instance(g); returned = threading.Event()
            def launch():
                cu.call("cuCtxSetCurrent", context)
                cu.call("cuGraphLaunch", x, s); returned.set()
            cu.call("cuStreamWaitValue32_v2", s, flag.ctypes.data, 1, 0)
            thread = threading.Thread(target=launch); thread.start()
            before = returned.wait(0.2); flag[0] = 1; assert returned.wait(20); thread.join()
            cu.call("cuStreamSynchronize", s)
            return before
        assert launched(lambda g: fill(g, p, 1)) and launched(lambda g: copy(g, device, p))
        assert launched(lambda g: copy(g, p, device))
        assert not launched(lambda g: copy(g, p + 8, p))
        assert not launched(lambda g: fill(g, p, 1, fill(g, p, 2)) and copy(g, p + 8, p, fill(g, device, 3)))
        """),
        mode=mode,
    )
