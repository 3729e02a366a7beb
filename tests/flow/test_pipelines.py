"""A recording over many inputs: right results, sets that are not overwritten, clear errors."""

import gc
import weakref

import numpy as np
import pytest
from core_harness import LIMIT

import hal
from hal.errors import ArgumentTypeError, ClosedError, DeadlineExceededError, InvalidArgumentError
from hal.flow import Flow

SOURCE = """
__global__ void HAL_BLOCK(64) scale(const float *x, const float *factor, float *y) {
  y[threadIdx.x] = factor[0] * x[threadIdx.x];
}
"""
BYTES = 256
ARRAY = np.arange(64, dtype=np.float32)


def recorded(flow, sizes=(BYTES, None, BYTES)):
    kernel = flow.devices[0].compile(SOURCE)["scale"]
    slots = [np.float32 if size is None else (np.float32, size) for size in sizes]
    with flow.record(slots=slots) as commands:
        commands.dispatch(kernel, grid=1, args=tuple(commands.slots))
    return commands


def good_and_bad(flow, why):
    """Return a factor of 1, and one whose fill has failed."""
    good, bad = (flow.from_host(np.array([1], np.float32)) for _ in range(2))
    broken = hal.create_semaphore()
    broken.fail(RuntimeError(why))
    flow.fill(bad, 1.0, wait=broken.at(1))
    return good, bad


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_many_inputs_go_through_few_buffers(flow, depth):
    pipeline = flow.pipeline(recorded(flow), depth=depth)
    factors = [flow.from_host(np.array([index], np.float32)) for index in range(20)]
    results = [np.full(64, np.nan, np.float32) for _ in factors]
    ends = [
        pipeline.run({0: ARRAY + index, 1: factor}, {2: result})
        for index, (factor, result) in enumerate(zip(factors, results, strict=True))
    ]
    for index, (end, result) in enumerate(zip(ends, results, strict=True)):
        (download,) = end
        download.wait(LIMIT)
        assert np.array_equal(result, index * (ARRAY + index))
    pipeline.close()
    pipeline.close()
    with pytest.raises(ClosedError, match="pipeline is closed"):
        pipeline.run({0: ARRAY, 1: factors[0]}, {})


def test_as_many_are_on_their_way_as_there_are_sets(device, gate):
    """The next upload waits for a set, and not for the whole of the inputs before."""
    flow = Flow(device)
    pipeline = flow.pipeline(recorded(flow), depth=2)
    factor = flow.from_host(np.array([3], np.float32))
    factor.used.wait(LIMIT)
    held = flow.fill(factor, 2.0, wait=gate.at(1))
    uploads = []
    flow.trace = lambda each, _: uploads.append(each) if each.kind == "write" else None
    result = np.zeros(64, np.float32)
    for _ in range(3):
        (last,) = pipeline.run({0: ARRAY.tobytes(), 1: factor}, {2: result})
    for upload in uploads[:2]:
        upload.wait(LIMIT)
    assert [uploads[2].state, held.state] == ["pending"] * 2
    gate.signal(1)
    last.wait(LIMIT)
    assert np.array_equal(result, 2 * ARRAY)


def test_without_outputs_the_execution_is_returned(flow):
    target = flow.allocate(BYTES, dtype=np.float32)
    pipeline = flow.pipeline(recorded(flow, (BYTES, 4, None)))
    (end,) = pipeline.run({0: ARRAY, 1: np.array([2], np.float32), 2: target}, {})
    end.wait(LIMIT)
    assert end.kind == "execute"
    assert np.array_equal(target.numpy(), 2 * ARRAY)


def test_a_failure_stays_with_its_set(flow):
    """And goes no further than to what is in flight in the same buffers."""
    pipeline = flow.pipeline(recorded(flow), depth=2)
    good, bad = good_and_bad(flow, "no more")
    first, second = np.zeros(64, np.float32), np.zeros(64, np.float32)
    (lost,) = pipeline.run({0: ARRAY, 1: bad}, {2: first})
    (fine,) = pipeline.run({0: ARRAY, 1: good}, {2: second})
    with pytest.raises(hal.HalError, match="no more"):
        lost.wait(LIMIT)
    fine.wait(LIMIT)
    assert np.array_equal(second, ARRAY)


def test_what_is_wrong_is_refused(flow):
    factor = flow.from_host(np.array([1], np.float32))
    pipeline = flow.pipeline(recorded(flow))
    for inputs, outputs, match in (
        ({0: ARRAY}, {}, r"slots \[1\] have no size"),
        ({0: ARRAY, 1: np.ones(1, np.float32)}, {}, r"slots \[1\] have no size"),
        ({0: ARRAY, 1: factor, 3: ARRAY}, {}, r"3 slots, and \[3\] are none"),
        ({0: ARRAY, 1: factor}, {"y": ARRAY}, r"\['y'\] are none"),
    ):
        with pytest.raises(InvalidArgumentError, match=match):
            pipeline.run(inputs, outputs)
    good = {0: ARRAY, 1: factor}
    for inputs, match in (
        ({1: factor}, r"reads slots \[0\]"),
        ({**good, 0: ARRAY[:32].astype(np.float64)}, "of float64, and the buffer of float32"),
        ({**good, 0: ARRAY.astype(np.int32)}, "of int32, and the buffer of float32"),
    ):
        with pytest.raises((InvalidArgumentError, ArgumentTypeError), match=match):
            pipeline.run(inputs, {})
    result = np.empty(64, np.float32)
    for _ in range(pipeline.depth):
        pipeline.run(good, {2: result})
    pipeline.wait(LIMIT)
    assert np.array_equal(result, ARRAY)
    for depth, error in ((0, ValueError), (2**31, ValueError), (True, TypeError), (2.0, TypeError)):
        with pytest.raises(error, match="depth"):
            flow.pipeline(recorded(flow), depth=depth)
    with pytest.raises(TypeError, match="takes a recording"):
        flow.pipeline(flow.devices[0].record())


def test_waiting_for_all_runs(flow, gate):
    with flow.pipeline(recorded(flow), depth=2) as pipeline:
        pipeline.wait(0)
        factor = flow.from_host(np.array([3], np.float32))
        flow.fill(factor, 2.0, wait=gate.at(1))
        results = [np.zeros(64, np.float32) for _ in range(5)]
        for result in results:
            pipeline.run({0: ARRAY, 1: factor}, {2: result})
        pipeline.run({0: ARRAY, 1: factor}, {})
        with pytest.raises(DeadlineExceededError):
            pipeline.wait(0.01)
        gate.signal(1)
        pipeline.wait(LIMIT)
        assert all(np.array_equal(result, 2 * ARRAY) for result in results)
        pipeline.wait(0)
    with pytest.raises(ClosedError, match="pipeline is closed"):
        pipeline.run({0: ARRAY, 1: factor}, {})


def test_a_failure_is_raised_however_many_runs_come_after_it(flow):
    """Though few of the runs that have ended are kept."""
    pipeline = flow.pipeline(recorded(flow), depth=2)
    good, bad = good_and_bad(flow, "no more")
    result = np.zeros(64, np.float32)
    ends = []
    for factor in (good, bad, *[good] * 300):
        (end,) = pipeline.run({0: ARRAY, 1: factor}, {2: result})
        ends.append(weakref.ref(end))
        hal.Fence(flow.devices[0].queues.download.barrier()).wait(LIMIT)
    assert end.done
    del end
    gc.collect()
    assert sum(each() is not None for each in ends) < 80
    for _ in range(2):
        with pytest.raises(hal.HalError, match="no more"):
            pipeline.wait(LIMIT)


def test_a_download_of_a_buffer_of_the_users_is_waited_for_too(flow, tmp_path):
    """Its error is raised, also after more runs in its set and after a close."""
    pipeline = flow.pipeline(recorded(flow), depth=2)
    factor = flow.from_host(np.array([1], np.float32))
    result = np.zeros(64, np.float32)
    nowhere = hal.File(tmp_path / "missing" / "factor")
    pipeline.run({0: ARRAY, 1: factor}, {1: nowhere, 2: result})
    for _ in range(6):
        pipeline.run({0: ARRAY, 1: factor}, {2: result})
    pipeline.close()
    for _ in range(2):
        with pytest.raises(hal.HalError, match="missing"):
            pipeline.wait(LIMIT)


def test_a_set_is_uploaded_to_after_what_used_it_last(device, gate):
    """Also where the run between had a buffer of the user's in the place of its own."""
    flow = Flow(device)
    pipeline = flow.pipeline(recorded(flow, (BYTES, 4, BYTES)), depth=1)
    factor = flow.from_host(np.array([3], np.float32))
    factor.used.wait(LIMIT)
    uploads = []
    flow.trace = lambda each, _: uploads.append(each) if each.kind == "write" else None
    held = flow.fill(factor, 2.0, wait=gate.at(1))
    read, result = np.zeros(1, np.float32), np.zeros(64, np.float32)
    pipeline.run({0: ARRAY, 1: factor}, {1: read, 2: result})
    pipeline.run({0: ARRAY, 1: np.ones(1, np.float32)}, {2: result})
    assert [each.state for each in (held, uploads[-1])] == ["pending"] * 2
    gate.signal(1)
    pipeline.wait(LIMIT)
    assert np.array_equal(result, ARRAY)
    assert read.tolist() == [2]


def test_what_a_set_is_used_for_comes_one_after_the_other(device):
    """Also where a slot is both uploaded and downloaded; and no wait too many."""
    waits = {}
    flow = Flow(device, trace=lambda each, found: waits.update({each: list(found)}))
    kernel = device.compile(SOURCE)["scale"]
    with flow.record(slots=[(np.float32, BYTES), (np.float32, 4)]) as commands:
        x, factor = commands.slots
        commands.dispatch(kernel, grid=1, args=(x, factor, x))
    pipeline = flow.pipeline(commands, depth=1)
    results = [np.zeros(64, np.float32) for _ in range(3)]
    for index, result in enumerate(results):
        pipeline.run({0: ARRAY + index, 1: np.full(1, 2, np.float32)}, {0: result})
    pipeline.wait(LIMIT)
    for index, result in enumerate(results):
        assert np.array_equal(result, 2 * (ARRAY + index))
    x1, f1, e1, r1, x2, f2, e2, r2, *_ = waits
    assert [waits[each] for each in (x1, f1, e1, r1)] == [[], [], [x1, f1], [e1]]
    assert [waits[each] for each in (x2, f2, e2, r2)] == [[r1], [e1], [x2, f2, r1], [e2]]


def test_after_a_run_that_was_refused_its_set_is_as_good_as_ever(flow):
    pipeline = flow.pipeline(recorded(flow), depth=1)
    factor, closed = (flow.from_host(np.array([2], np.float32)) for _ in range(2))
    closed.close()
    result, constant = np.zeros(64, np.float32), np.zeros(64, np.float32)
    constant.flags.writeable = False
    for inputs, outputs in (
        ({0: np.zeros(65, np.float32), 1: factor}, {2: result}),
        ({0: ARRAY, 1: closed}, {2: result}),
        ({0: ARRAY, 1: factor}, {2: constant}),
    ):
        with pytest.raises((InvalidArgumentError, ClosedError)):
            pipeline.run(inputs, outputs)
        pipeline.run({0: ARRAY, 1: factor}, {2: result})
        pipeline.wait(LIMIT)
        assert np.array_equal(result, 2 * ARRAY)
        result.fill(0)


ERRORS = {"ctrl-c": KeyboardInterrupt, "hal": hal.HalError}


def raise_at(flow, kind, error):
    """Have the flow's trace raise once, when the first submission of a kind is told."""

    def trace(submission, _):
        if submission.kind == kind:
            flow.trace = None
            raise error("from the trace")

    flow.trace = trace


@pytest.mark.parametrize("error", ERRORS.values(), ids=ERRORS)
@pytest.mark.parametrize("kind", ["write", "execute", "read"])
@pytest.mark.parametrize("is_tracked", [True, False], ids=["tracked", "own"])
@pytest.mark.parametrize("is_constant", [True, False], ids=["constant", "array"])
def test_after_an_error_a_set_comes_after_everything(
    device, gate, error, kind, is_tracked, is_constant
):
    """Nobody knows then how much was submitted; here it is all of it, and it is held up."""
    waits = {}
    flow = Flow(device)
    factor = flow.from_host(np.array([3], np.float32))
    flow.fill(factor, 2.0, wait=gate.at(1))
    pipeline = flow.pipeline(recorded(flow, (BYTES, None if is_tracked else 4, BYTES)), depth=1)
    result = np.zeros(64, np.float32)
    given = factor if is_tracked else np.full(1, 2, np.float32).tobytes()
    raise_at(flow, kind, error)
    with pytest.raises(error, match="from the trace"):
        pipeline.run({0: ARRAY.tobytes() if is_constant else ARRAY, 1: given}, {2: result})
    flow.trace = lambda submission, found: waits.update({submission: list(found)})
    pipeline.run({0: ARRAY + 1, 1: given}, {2: result})
    (write, (barrier,)), *_, (execution, found), (read, _) = waits.items()
    assert (barrier.kind, execution.kind, read.kind) == ("barrier", "execute", "read")
    assert write in found
    gate.signal(1)
    pipeline.wait(LIMIT)
    assert np.array_equal(result, 2 * (ARRAY + 1))


@pytest.mark.parametrize("error", ERRORS.values(), ids=ERRORS)
@pytest.mark.parametrize("is_own", [True, False], ids=["own", "users"])
def test_what_a_trace_raised_for_is_waited_for(device, gate, error, is_own):
    """A download of the set's own buffer, or of one of the user's."""
    flow = Flow(device)
    pipeline = flow.pipeline(recorded(flow), depth=2)
    factor = flow.from_host(np.array([2], np.float32))
    device.queues.download.barrier(wait=gate.at(1))  # which the download comes after
    read, result = np.zeros(1, np.float32), np.zeros(64, np.float32)
    raise_at(flow, "read", error)
    with pytest.raises(error, match="from the trace"):
        pipeline.run({0: ARRAY, 1: factor}, {2: result} if is_own else {1: read})
    device.queue.wait_idle(LIMIT)
    with pytest.raises(DeadlineExceededError):
        pipeline.wait(0.01)
    gate.signal(1)
    pipeline.wait(LIMIT)
    assert np.array_equal(result, 2 * ARRAY) if is_own else read.tolist() == [2]


@pytest.mark.parametrize("kind", ["execute", "read"])
def test_what_a_trace_raised_for_tells_its_failure(flow, tmp_path, kind):
    pipeline = flow.pipeline(recorded(flow), depth=1)
    good, bad = good_and_bad(flow, "missing")
    result = hal.File(tmp_path / "missing" / "result")
    raise_at(flow, kind, hal.HalError)
    with pytest.raises(hal.HalError, match="from the trace"):
        pipeline.run({0: ARRAY, 1: bad if kind == "execute" else good}, {2: result})
    for _ in range(2):
        with pytest.raises(hal.HalError, match="missing"):
            pipeline.wait(LIMIT)
        pipeline.run({0: ARRAY, 1: good}, {})


RECORDS = """
struct Pair { int a, b; };
__global__ void HAL_BLOCK(1) sum(Pair pair, int *out) { *out = pair.a + pair.b; }
"""


def test_an_array_may_be_the_number_of_a_structure(flow):
    """It is neither uploaded nor compared; slots are found as in any mapping, by equal numbers."""
    kernel = flow.devices[0].compile(RECORDS)["sum"]
    with flow.record(slots=["scalar", (np.int32, 4)]) as commands:
        commands.dispatch(kernel, grid=1, args=tuple(commands.slots))
    out = np.zeros(1, np.int32)
    with flow.pipeline(commands) as pipeline:
        for key in (0, np.int64(0), 0.0):
            pipeline.run({key: np.array([3, 4 + key], np.int32)}, {1.0: out})
            pipeline.wait(LIMIT)
            assert out == [7]
        with pytest.raises(InvalidArgumentError, match=r"\[0.5, 2\] are none of them"):
            pipeline.run({0.5: ARRAY}, {2: out})
    target = flow.allocate(4, dtype=np.int32)
    flow.execute(commands, bindings={0.0: np.array([1, 2], np.int32), np.int8(1): target})
    assert target.numpy(timeout=LIMIT) == [3]
