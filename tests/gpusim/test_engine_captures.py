# ruff: noqa: E501 - the programs in strings
"""gpusim's stream captures: what they take, what they forbid, and what ends them.

The expectations are what an H100's driver (580, CUDA 13) answered to the same calls.
"""

import textwrap

import pytest
from engine_harness import run

BENCH = """
cu = Driver()
GLOBAL, LOCAL, RELAXED = range(3)
s, captured = cu.stream(), cu.stream(FLAGS)
a, b = cu.allocate(64), cu.allocate(64)
e = cu.event(); cu.call("cuEventRecord", e, s); cu.call("cuStreamSynchronize", s)
def mode(wanted):
    cell = c_uint(wanted)
    cu.call("cuThreadExchangeStreamCaptureMode", byref(cell))
    return cell.value
def status(stream=captured):
    cell = c_uint()
    cu.call("cuStreamIsCapturing", stream, byref(cell))
    return cell.value
def begin(how=GLOBAL):
    expect(0, "cuStreamBeginCapture_v2", captured, how)
    expect(0, "cuMemsetD32Async", a, 7, 4, captured)
def end(code=0):
    graph = c_uint64()
    expect(code, "cuStreamEndCapture", captured, byref(graph))
    return graph.value
def elsewhere(function):
    found = []
    def work():
        cu.call("cuCtxSetCurrent", cu.contexts[0])
        found.append(function())
    thread = threading.Thread(target=work); thread.start(); thread.join()
    return found[0]
"""


def bench(program, flags=1):
    return BENCH.replace("FLAGS", str(flags)) + textwrap.dedent(program)


def test_what_is_captured_runs_when_its_graph_is_launched():
    run(
        bench("""
        assert status() == 0
        begin()
        assert status() == 1
        module = cu.module(image()); fill = cu.function(module, "fill")
        cu.launch(fill, captured, c_uint64(a), c_uint(9), c_uint(1))
        expect(0, "cuMemcpyDtoDAsync_v2", b, a, 16, captured)
        graph = end()
        assert status() == 0
        assert cu.read(b, 4) == b"\\xcd" * 4, "it ran while it was captured"
        count = c_size_t(); cu.call("cuGraphGetNodes", graph, None, byref(count)); assert count.value == 3
        x = cu.make("cuGraphInstantiateWithFlags", graph, 0)
        cu.call("cuGraphLaunch", x, s); cu.call("cuStreamSynchronize", s)
        assert cu.read(b, 16) == bytes([9, 0, 0, 0] + 3 * [7, 0, 0, 0])
        """),
        images=True,
    )


@pytest.mark.parametrize(
    "call",
    [
        '"cuMemAlloc_v2", byref(c_uint64()), 64',
        '"cuMemHostAlloc", byref(c_uint64()), 64, 0',
        '"cuMemAllocManaged", byref(c_uint64()), 64, 1',
        '"cuMemFree_v2", cu.allocate(64)',
        '"cuMemAllocAsync", byref(c_uint64()), 64, s',
        '"cuStreamQuery", s',
        '"cuStreamSynchronize", s',
        '"cuEventQuery", e',
        '"cuEventSynchronize", e',
        '"cuGraphInstantiateWithFlags", byref(c_uint64()), cu.make("cuGraphCreate", 0), 0',
        '"cuModuleUnload", cu.module(image())',
    ],
)
def test_an_unsafe_call_is_refused_and_ends_the_captures_that_forbid_it(call):
    """Each call's operand is made before the capture begins."""
    run(
        bench(f"""
        def ask(mine, how, where):
            operands = {call},
            begin(how)
            def work():
                before = mode(mine)
                code = cu.code(*operands[0] if len(operands) == 1 else operands)
                assert mode(before) == mine
                return code
            code = where(work)
            broken = status() == 2
            end(901 if broken else 0)
            return code, broken
        here = lambda work: work()
        for where in (elsewhere, here):
            for how in (GLOBAL, LOCAL, RELAXED):
                for mine in (GLOBAL, LOCAL, RELAXED):
                    forbidden = mine != RELAXED and (
                        how != RELAXED if where is here else how == mine == GLOBAL
                    )
                    found = ask(mine, how, where)
                    assert found == ((900, True) if forbidden else (0, False)), (where, how, mine, found)
        """),
        images=True,
    )


def test_ordinary_calls_are_nobodys_concern():
    run(
        bench("""
        begin()
        expect(0, "cuMemsetD32Async", b, 1, 4, s)
        expect(0, "cuMemcpyDtoDAsync_v2", b, a, 16, s)
        expect(0, "cuEventRecord", e, s)
        expect(0, "cuStreamWaitEvent", s, e, 0)
        expect(0, "cuStreamDestroy_v2", cu.stream())
        expect(0, "cuEventDestroy_v2", cu.event())
        cu.module(image())
        end()
        """),
        images=True,
    )


def test_a_capturing_stream_is_not_asked_and_its_context_not_waited_for():
    run(
        bench("""
        mode(RELAXED)
        for name, *more in (("cuStreamQuery", captured), ("cuStreamSynchronize", captured), ("cuStreamGetFlags", captured, byref(c_uint())), ("cuCtxSynchronize",)):
            begin(RELAXED)
            expect(900, name, *more)
            assert status() == 2
            expect(901, "cuMemsetD32Async", a, 1, 1, captured)
            end(901)
        expect(401, "cuStreamEndCapture", captured, byref(c_uint64()))
        begin(); expect(401, "cuStreamBeginCapture_v2", captured, GLOBAL); end()
        expect(900, "cuStreamBeginCapture_v2", 0, GLOBAL)
        """)
    )


def test_a_captured_event_is_not_asked_and_draws_streams_into_the_capture():
    run(
        bench("""
        f = cu.event()
        begin(); expect(0, "cuEventRecord", f, captured)
        mode(RELAXED); expect(907, "cuEventQuery", f); mode(GLOBAL)
        expect(1, "cuStreamWaitEvent", s, f, 0)
        end(901)
        begin(); expect(905, "cuStreamWaitEvent", captured, e, 0); end(901)
        begin()
        expect(0, "cuEventRecord", f, captured); expect(0, "cuStreamWaitEvent", s, f, 0)
        assert status(s) == 1
        expect(0, "cuMemsetD32Async", b, 3, 1, s)
        end(904)
        assert status(s) == 0
        begin()
        expect(0, "cuEventRecord", f, captured); expect(0, "cuStreamWaitEvent", s, f, 0)
        expect(0, "cuMemsetD32Async", b, 3, 1, s)
        expect(0, "cuEventRecord", e, s); expect(0, "cuStreamWaitEvent", captured, e, 0)
        expect(0, "cuMemcpyDtoDAsync_v2", a + 4, b, 4, captured)
        x = cu.make("cuGraphInstantiateWithFlags", end(), 0)
        cu.call("cuGraphLaunch", x, s); cu.call("cuStreamSynchronize", s)
        assert cu.read(a, 8) == bytes([7, 0, 0, 0, 3, 0, 0, 0])
        """)
    )


def test_the_legacy_stream_cannot_wait_for_a_blocking_one_that_captures():
    run(
        bench(
            """
        mode(RELAXED)
        begin()
        expect(906, "cuStreamIsCapturing", 1, byref(c_uint()))
        assert status() == 1
        expect(906, "cuMemsetD32_v2", b, 1, 1)
        end(901)
        begin(); expect(0, "cuMemsetD32Async", b, 1, 1, s); expect(0, "cuStreamQuery", cu.stream()); end()
        """,
            flags=0,
        )
    )


def test_only_its_thread_ends_a_capture_that_is_not_relaxed():
    run(
        bench("""
        begin(LOCAL)
        assert elsewhere(lambda: cu.code("cuStreamEndCapture", captured, byref(c_uint64()))) == 908
        end(901)
        begin(RELAXED)
        assert elsewhere(lambda: cu.code("cuStreamEndCapture", captured, byref(c_uint64()))) == 0
        """)
    )
