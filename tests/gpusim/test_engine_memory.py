# ruff: noqa: E501 - the programs in strings
"""gpusim's memory: bounds, late uses, pools, pageable copies, registration, peers."""

import pytest
from engine_harness import abort, run

MODES = pytest.mark.parametrize("mode", ["free", "stepped"])


def test_memory_is_poisoned():
    run("""
        cu = Driver(); a = cu.allocate(1000)
        assert a % 256 == 0 and cu.read(a, 1000) == b"\\xcd" * 1000
        assert ctypes.string_at(cu.make("cuMemAllocManaged", 64, 1), 1) == b"\\xcd"
    """)


@pytest.mark.parametrize(
    "use",
    [
        "launch(a, 1025)",  # into the guard page
        "cu.call('cuMemFree_v2', a); launch(a, 1)",
        "launch(0, 1)",
        # Nobody is told before they run, unless gpusim is strict
        "lax(); a = cu.make('cuMemAllocAsync', 4096, s); cu.call('cuMemFreeAsync', a, s); launch(a, 1)",
        "lax(); a = cu.make('cuMemAllocAsync', 4096, t); launch(a, 1)",
    ],
)
@MODES
def test_a_kernel_that_touches_other_memory_loses_the_device(use, mode):
    run(
        f"""
        cu = Driver(devices=2); s, t = cu.stream(), cu.stream(); a = cu.allocate(4096)
        flag = cu.pinned(4); flag[:] = 0
        fill = cu.function(cu.module(image()), "fill")
        def launch(address, count):
            cu.launch(fill, s, c_void_p(address), c_uint32(7), c_uint32(count), block=1024, grid=2)
        lax = lambda: cu.library.gpusim_strict(0)
        cu.call("cuStreamWaitValue32_v2", t, flag.ctypes.data, 1, 0)
        if "cuMemFree_v2" in {use!r}: flag[0] = 1
        {use}
        expect(700, "cuStreamSynchronize", s)
        for name in ("cuCtxSynchronize", "cuStreamQuery"): expect(700, name, s)
        expect(700, "cuMemAlloc_v2", byref(c_uint64()), 4)
        cu.call("cuCtxSetCurrent", cu.contexts[1])
        cu.call("cuMemsetD8Async", cu.allocate(4), 0, 4, cu.stream()); cu.call("cuCtxSynchronize")
        """,
        images=True,
        mode=mode,
    )


def test_a_write_just_past_an_allocation_is_found_when_it_is_freed():
    said = abort(
        """
        cu = Driver(); s = cu.stream(); a = cu.allocate(100)
        fill = cu.function(cu.module(image()), "fill")
        cu.launch(fill, s, c_void_p(a), c_uint32(7), c_uint32(26), block=32)
        cu.call("cuStreamSynchronize", s); cu.call("cuMemFree_v2", a)
        """,
        images=True,
    )
    assert "allocation 1 of 100 bytes was written 1 bytes past its end" in said


@MODES
def test_stream_ordered_memory_is_there_between_its_two_operations(mode):
    run(
        """
        cu = Driver(); s = cu.stream(); h = cu.pinned(8); pool = cu.make("cuDeviceGetDefaultMemPool", 0)
        cu.library.gpusim_limit_memory(c_size_t(1 << 20))
        for turn in range(5):  # what the stream gives back can be had again at once
            a = cu.make("cuMemAllocAsync", 700_000, s)
            cu.call("cuMemsetD8Async", a, turn, 8, s)
            cu.call("cuMemcpyDtoHAsync_v2", h.ctypes.data, a, 8, s)
            expect(2, "cuMemAllocAsync", byref(c_uint64()), 700_000, s)
            cu.call("cuMemFreeAsync", a, s)
            expect(1, "cuMemsetD8Async", a, 0, 1, s)
        cu.call("cuStreamSynchronize", s)
        assert list(h) == [4] * 8
        used = c_uint64()
        cu.call("cuMemPoolGetAttribute", pool, 7, byref(used)); assert used.value == 0
        cu.call("cuMemPoolGetAttribute", pool, 8, byref(used)); assert used.value == 700_000
        plain = cu.allocate(4); cu.call("cuMemFreeAsync", plain, s); expect(1, "cuMemFree_v2", plain)
        cu.call("cuStreamSynchronize", s); assert cu.leaks(0)[1] == "1 stream, 1 allocation of 8 bytes", cu.leaks(0)
        """,
        mode=mode,
    )


def test_memory_ends_where_it_is_told_to():
    run("""
        cu = Driver(); cu.library.gpusim_limit_memory(c_size_t(1000))
        a = cu.allocate(600); expect(2, "cuMemAlloc_v2", byref(c_uint64()), 600)
        cu.pinned(5000)  # is the host's
        free, total = c_size_t(), c_size_t()
        cu.call("cuMemGetInfo_v2", byref(free), byref(total)); assert (free.value, total.value) == (400, 1000)
        cu.call("cuMemFree_v2", a); cu.allocate(1000)
    """)


def test_peers_need_access():
    program = """
        cu = Driver(devices=2); can = c_int()
        cu.call("cuDeviceCanAccessPeer", byref(can), 0, 1)
        cu.call("cuCtxSetCurrent", cu.contexts[1]); b = cu.allocate(64); cu.call("cuMemsetD8_v2", b, 3, 64)
        cu.call("cuCtxSynchronize"); cu.call("cuCtxSetCurrent", cu.contexts[0]); a = cu.allocate(64); s = cu.stream()
        fill = cu.function(cu.module(image()), "fill")
        cu.call("cuMemcpyPeerAsync", a, cu.contexts[0], b, cu.contexts[1], 64, s)  # needs none
        expect(1, "cuMemcpyPeerAsync", a, cu.contexts[1], b, cu.contexts[0], 64, s)
        cu.call("cuStreamSynchronize", s); assert cu.read(a, 64) == b"\\3" * 64
        {}
        expect({}, "cuCtxEnablePeerAccess", cu.contexts[1], 0)
        {}
        cu.launch(fill, s, c_void_p(b), c_uint32(7), c_uint32(4), block=4)
        expect({}, "cuStreamSynchronize", s)
    """
    enabled = "assert can.value == 1; expect(704, 'cuCtxEnablePeerAccess', cu.contexts[1], 0)"
    before = "expect(705, 'cuCtxDisablePeerAccess', cu.contexts[1])"
    run(program.format(before, 0, enabled, 0), images=True)
    run(
        program.format(before, 0, "cu.call('cuCtxDisablePeerAccess', cu.contexts[1])", 700),
        images=True,
    )
    run(program.format("assert can.value == 0", 217, "", 700), images=True, no_peers=1)


def test_a_released_context_takes_no_calls_and_its_memory_is_gone_unless_strict():
    program = """
        cu = Driver(); a = cu.allocate(100); cu.call("cuDevicePrimaryCtxRelease_v2", 0)
        expect(709, "cuMemAlloc_v2", byref(c_uint64()), 64); expect(0, "cuCtxGetDevice", byref(ctypes.c_int()))
        cu.make("cuDevicePrimaryCtxRetain", 0); cu.allocate(64)
        expect({}, "cuMemFree_v2", a)
    """
    run(program.format(0), quiet=True)
    run(program.format(1), quiet=True, strict=0)
