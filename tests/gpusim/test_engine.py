# ruff: noqa: E501 - the programs in strings
"""gpusim's streams, events, contexts, schedules and aborts."""

import pytest
from engine_harness import abort, run

MODES = pytest.mark.parametrize("mode", ["free", "stepped"])


def test_it_says_what_it_is():
    out = run("""
        cu = Driver()
        name = ctypes.create_string_buffer(64)
        cu.call("cuDeviceGetName", name, 64, 0)
        print(name.value.decode())
    """)
    assert out == "gpusim (software, no GPU) 0\n"


def test_a_handle_brings_its_context_unless_strict():
    program = """
        cu = Driver(); s = cu.stream(); e = cu.event(); a = cu.allocate(8); codes = []
        def work():
            for call in (("cuEventRecord", e, s), ("cuEventQuery", e), ("cuMemsetD8Async", a, 0, 8, s), ("cuStreamSynchronize", s)):
                codes.append(cu.code(*call) % 600)
            codes.append(cu.code("cuStreamQuery", 0))
            codes.append(cu.code("cuMemAlloc_v2", byref(c_uint64()), 8))
        thread = threading.Thread(target=work); thread.start(); thread.join()
        print(codes)
    """
    assert run(program).split() == ["[201,", *["201,"] * 4, "201]"]
    assert run(program, strict=0).split() == ["[0,", *["0,"] * 3, "201,", "201]"]


def test_a_forked_child_can_make_no_call():
    run("""
        cu = Driver()
        child = os.fork()
        if child == 0:
            os._exit(cu.code("cuCtxSynchronize"))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
        expect(0, "cuCtxSynchronize")
    """)


def test_a_wait_for_an_unrecorded_event_aborts_i1():
    program = "cu = Driver(); cu.call('cuStreamWaitEvent', cu.stream(), cu.event(), 0)"
    said = abort(program, seed=77)
    assert "never recorded (I1)" in said
    assert "seed 77" in said
    run(program, strict=0)


def test_a_wait_for_a_number_that_nothing_writes_aborts_i1():
    program = """
        cu = Driver(); s, t = cu.stream(), cu.stream(); flag = cu.pinned(8); flag[:] = 0; at = flag.ctypes.data
        cu.call("cuStreamWriteValue64_v2", s, at, c_uint64(3), 0)
        cu.call("cuStreamWaitValue64_v2", t, at, c_uint64(3), 0); cu.call("cuStreamSynchronize", t)
        cu.code("cuStreamWaitValue64_v2", t, at, c_uint64(4), 0)
    """
    said = abort(program)
    assert (
        "stream 2 is to wait for the number 4, and nothing that was enqueued writes it (I1)" in said
    )
    run(program, strict=0)


def test_a_destroyed_handle_aborts():
    program = "cu = Driver(); e = cu.event(); cu.call('cuEventDestroy_v2', e)\n"
    assert "after its destruction" in abort(program + "cu.code('cuEventQuery', e)")
    run(program + "expect(709, 'cuEventQuery', e); expect(400, 'cuEventQuery', 12345)", strict=0)


def test_a_call_inside_a_host_function_aborts_i6():
    program = """
        cu = Driver(); s = cu.stream(); codes = []
        cu.host(s, lambda: codes.append(cu.code("cuStreamQuery", s)))
        cu.call("cuStreamSynchronize", s)
        assert codes == [800], codes
    """
    assert "cuStreamQuery is called inside a host function" in abort(program)
    run(program, strict=0)


def test_an_abort_shows_the_streams_history():
    said = abort("""
        cu = Driver(); s = cu.stream(); a = cu.allocate(64)
        cu.call("cuMemsetD8Async", a, 7, 64, s); cu.call("cuStreamSynchronize", s)
        cu.code("cuStreamWaitEvent", s, cu.event(), 0)
    """)
    assert "the history of stream 1:\ndevice 0 stream 1 takes  op 1: set 64 bytes to 0x7" in said


SCHEDULE = """
    cu = Driver(); streams = [cu.stream() for _ in range(3)]; events = [cu.event() for _ in range(3)]
    a = cu.allocate(256)
    for turn in range(4):
        for i, s in enumerate(streams):
            cu.call("cuMemsetD8Async", a, turn, 16 * (i + 1), s)
            cu.call("cuEventRecord", events[i], s)
            if turn % 2: cu.call("cuStreamWaitEvent", streams[i - 1], events[i], 0)
            cu.code("cuEventQuery", events[0])
    cu.call("cuCtxSynchronize")
    print(cu.history())
"""


def test_a_seed_replays_exactly():
    histories = [run(SCHEDULE, mode="stepped", tick_ms=0, seed=s) for s in (1, 1, 2, 3, 4)]
    assert histories[0] == histories[1]
    assert len(set(histories)) == 4
    assert all(h.count(" begins ") == h.count(" ended ") == 30 for h in histories)


def test_nothing_runs_in_stepped_mode_before_somebody_waits():
    run(
        """
        cu = Driver(); s = cu.stream(); a = cu.allocate(4)
        cu.call("cuMemsetD8Async", a, 7, 4, s)
        time.sleep(0.05)
        assert ctypes.string_at(a, 4) == b"\\xcd" * 4
        cu.call("cuStreamSynchronize", s)
        assert ctypes.string_at(a, 4) == b"\\x07" * 4
        """,
        mode="stepped",
        tick_ms=0,
    )


@MODES
def test_a_kernel_and_a_host_function_that_wait_hold_nobody_else(mode):
    run(
        """
        cu = Driver(); s, t, u = (cu.stream() for _ in range(3)); flag = cu.pinned(4); flag[:] = 0
        gate = threading.Event(); a = cu.allocate(4)
        hold = cu.function(cu.module(image()), "hold")
        cu.launch(hold, s, c_void_p(flag.ctypes.data))
        cu.host(t, gate.wait)
        cu.call("cuMemsetD8Async", a, 7, 4, u); cu.call("cuStreamSynchronize", u)
        expect(600, "cuStreamQuery", s); expect(600, "cuStreamQuery", t)
        flag[0] = 1; gate.set()
        cu.call("cuCtxSynchronize")
        """,
        images=True,
        mode=mode,
    )


@MODES
def test_a_full_stream_blocks_the_next_launch(mode):
    run(
        """
        cu = Driver(); s = cu.stream(); flag = cu.pinned(4); flag[:] = 0; a = cu.allocate(4)
        cu.call("cuStreamWaitValue32_v2", s, flag.ctypes.data, 1, 0)
        for _ in range(3): cu.call("cuMemsetD8Async", a, 7, 4, s)
        assert cu.library.gpusim_blocked() == 0
        went = threading.Event()
        def more():
            cu.call("cuCtxSetCurrent", cu.contexts[0])
            cu.call("cuMemsetD8Async", a, 8, 4, s)
            went.set()
        thread = threading.Thread(target=more); thread.start()
        while not cu.library.gpusim_blocked(): pass
        assert not went.is_set()
        flag[0] = 1
        assert went.wait(30); thread.join()
        cu.call("cuStreamSynchronize", s)
        """,
        mode=mode,
        launch_limit=4,
    )


def test_a_number_that_is_seen_has_left_its_stream():
    """A host that has read what a stream wrote finds room for the next write."""
    run(
        """
        cu = Driver(); s = cu.stream(); word = cu.pinned(8).view("uint64"); word[:] = 0
        for number in range(1, 31):
            cu.call("cuStreamWriteValue64_v2", s, word.ctypes.data, c_uint64(number), 0)
            while word[0] < number: pass
        assert cu.library.gpusim_blocked() == 0
        """,
        mode="free",
        launch_limit=1,
        jitter_us=1000,
    )


def test_leaks_are_told_when_a_context_goes():
    program = """
        cu = Driver(); s = cu.stream(); e = cu.event(); a = cu.allocate(100)
        assert cu.leaks() == (3, "1 stream, 1 event, 1 allocation of 100 bytes"), cu.leaks()
        {}
        cu.call("cuDevicePrimaryCtxRelease_v2", 0)
    """
    assert "live objects (I7): 1 stream" in abort(program.format(""), abort_on_leaks=1)
    close = "cu.call('cuStreamDestroy_v2', s); cu.call('cuEventDestroy_v2', e); cu.call('cuMemFree_v2', a)"
    run(program.format(close), abort_on_leaks=1)
