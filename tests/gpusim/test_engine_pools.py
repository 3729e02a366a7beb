# ruff: noqa: E501 - the programs in strings
"""gpusim's pools: memory in the order of streams, what may be had again, and what is found out."""

import textwrap

import pytest
from engine_harness import abort, run

MODES = pytest.mark.parametrize("mode", ["free", "stepped"])

# A device of a million bytes; a pool that reuses as it is told; a stream that a gate holds
BED = """
cu = Driver(); s, t = cu.stream(), cu.stream(); flag = cu.pinned(4); flag[:] = 0
cu.library.gpusim_limit_memory(c_size_t(1_000_000))
pool = cu.make("cuDeviceGetDefaultMemPool", 0)
def policy(events, opportunistic, internal, keep=1 << 40):
    for number, value in enumerate((events, opportunistic, internal), 1):
        cu.call("cuMemPoolSetAttribute", pool, number, byref(c_int(value)))
    cu.call("cuMemPoolSetAttribute", pool, 4, byref(c_uint64(keep)))
def count(number):
    value = c_uint64(); cu.call("cuMemPoolGetAttribute", pool, number, byref(value)); return value.value
def held():
    return count(5), count(7)  # reserved, used
def get(size, stream):
    return cu.make("cuMemAllocAsync", size, stream)
def give(address, stream):
    cu.call("cuMemFreeAsync", address, stream)
def none(size, stream):
    expect(2, "cuMemAllocAsync", byref(c_uint64()), size, stream)
def close():
    flag[:] = 0; cu.call("cuStreamWaitValue32_v2", s, flag.ctypes.data, 1, 0)
def follow():  # t comes behind s
    event = cu.make("cuEventCreate", 2); cu.call("cuEventRecord", event, s); cu.call("cuStreamWaitEvent", t, event, 0)
def idle(stream):
    while cu.code("cuStreamQuery", stream): pass
"""


def in_bed(program, **settings):
    return run(BED + textwrap.dedent(program), **settings)


def abort_in_bed(program, **settings):
    return abort(BED + textwrap.dedent(program), **settings)


@MODES
def test_order_goes_through_several_streams_and_stays_when_it_has_passed(mode):
    in_bed(
        """
        policy(1, 0, 0); close(); u = cu.stream(); a = get(600_000, s); give(a, s)
        follow(); event = cu.make("cuEventCreate", 2); cu.call("cuEventRecord", event, t)
        b = get(300_000, t); give(b, t)  # behind the record: u is not behind that
        cu.call("cuStreamWaitEvent", u, event, 0)
        c = get(300_000, u); none(600_000, u); give(c, u)
        flag[0] = 1
        for stream in (s, t, u): idle(stream)
        d = get(600_000, u); give(d, u)  # what was freed on t completed; 400,000 are the device's
        idle(u)
        """,
        mode=mode,
    )


def test_a_number_in_memory_orders_streams_and_the_driver_does_not_know():
    """A stream that waits for a number gets no memory that was freed before it, as by an event."""
    in_bed("""
        policy(1, 0, 0); close(); at = cu.pinned(8).ctypes.data
        a = get(600_000, s); cu.call("cuStreamWriteValue64_v2", s, at, c_uint64(1), 0)
        cu.call("cuStreamWaitValue64_v2", t, at, c_uint64(1), 0)
        cu.call("cuMemsetD8Async", a, 1, 600_000, t)  # behind its allocation
        cu.call("cuStreamWriteValue64_v2", t, at, c_uint64(2), 0)
        cu.call("cuStreamWaitValue64_v2", s, at, c_uint64(2), 0); give(a, s)  # and before its free
        cu.call("cuStreamWriteValue64_v2", s, at, c_uint64(3), 0)
        cu.call("cuStreamWaitValue64_v2", t, at, c_uint64(3), 0); none(600_000, t)
        follow(); b = get(600_000, t); give(b, t); flag[0] = 1
    """)


@MODES
def test_a_wait_is_put_in_when_there_is_no_more(mode):
    in_bed(
        """
        close(); a = get(600_000, s); cu.call("cuMemsetD8Async", a, 1, 600_000, s); give(a, s)
        b = get(400_000, t); idle(t); give(b, t); idle(t)  # the device had that
        c = get(700_000, t); expect(600, "cuStreamQuery", t)
        cu.call("cuMemsetD8Async", c, 7, 700_000, t); give(c, t)
        assert held() == (1_000_000, 0)
        none(1_000_001, t)
        flag[0] = 1; cu.call("cuStreamSynchronize", t)
        expect(0, "cuStreamQuery", s)
        """,
        mode=mode,
    )


def test_a_pool_that_is_destroyed_gives_all_back_as_it_comes():
    in_bed(
        """
        class Properties(ctypes.Structure):
            _fields_ = [(name, c_int) for name in ("kind", "handles", "place", "device")] + [("rest", ctypes.c_char * 72)]
        def room():
            free = c_size_t(); cu.call("cuMemGetInfo_v2", byref(free), byref(c_size_t())); return free.value
        own = cu.make("cuMemPoolCreate", byref(Properties(1, 0, 1, 0)))
        a, b = (cu.make("cuMemAllocFromPoolAsync", 300_000, own, s) for _ in range(2))
        cu.call("cuMemFreeAsync", a, s); idle(s); assert room() == 400_000
        cu.call("cuMemPoolDestroy", own); assert room() == 700_000
        cu.call("cuMemFreeAsync", b, s); idle(s); assert room() == 1_000_000
        """
    )


@MODES
@pytest.mark.parametrize("number", [1, 3])
def test_the_nth_allocation_can_be_made_to_fail(number, mode):
    in_bed(
        f"""
        for turn in range(1, 5):
            code = cu.code("cuMemAllocAsync", byref(c_uint64()), 1000, s)
            assert code == (2 if turn == {number} else 0), turn
        """,
        mode=mode,
        fail=f"cuMemAllocAsync:{number}:2",
    )


@pytest.mark.parametrize(
    ("program", "said"),
    [
        (
            "close(); a = get(4096, s); cu.call('cuMemsetD8Async', a, 1, 4096, t)",
            "uses allocation 2, and nothing orders it behind that on stream 1",
        ),
        (
            "close(); a = get(4096, s); give(a, t)",
            "uses allocation 2, and nothing orders it behind that on stream 1",
        ),
        (
            "close(); a = get(4096, t); idle(t); cu.call('cuMemsetD8Async', a, 1, 4096, s); give(a, t)",
            "allocation 2 is freed, and nothing orders a set on stream 1 before that",
        ),
        ("close(); a = get(4096, s); give(a, s); give(a, s)", "allocation 2 is freed twice"),
        ("a = get(4096, s); give(a, s); idle(s); give(a, s)", "allocation 2 is freed twice"),
    ],
)
@MODES
def test_what_nothing_orders_is_found_at_the_call(program, said, mode):
    assert said in abort_in_bed(program, mode=mode)


@pytest.mark.parametrize("use", ["a = get(64, t)", "a = get(64, s); give(a, s)"])
def test_a_kernels_arguments_are_uses_too(use):
    said = abort_in_bed(
        f"""
        fill = cu.function(cu.module(image()), "fill"); close(); cu.call("cuStreamWaitValue32_v2", t, flag.ctypes.data, 1, 0)
        {use}
        cu.launch(fill, s, c_void_p(a), c_uint32(7), c_uint32(4), block=4)
        """,
        images=True,
    )
    assert "a kernel on stream 1 uses allocation 2" in said


def test_ordered_uses_are_none_of_these():
    in_bed(
        """
        close(); a = get(4096, s); follow(); cu.call("cuMemsetD8Async", a, 1, 4096, t)
        event = cu.make("cuEventCreate", 2); cu.call("cuEventRecord", event, t); cu.call("cuStreamWaitEvent", s, event, 0)
        give(a, s); flag[0] = 1; cu.call("cuCtxSynchronize")
        b = get(4096, s); idle(s); cu.call("cuMemsetD8Async", b, 1, 4096, t); idle(t); give(b, s)  # the host knows
        cu.call("cuCtxSynchronize"); assert held()[1] == 0
        """
    )
