"""One merge buffer for each device: in place or copied, and never overwritten too early."""

import numpy as np
import pytest
from core_harness import LIMIT

import hal
from hal.errors import ArgumentTypeError, ClosedError, HalError, InvalidArgumentError
from hal.flow import Flow, Merge

ADD = """
extern "C" __global__ void HAL_BLOCK(64) add(const int *theirs, int *ours, int n) {
  for (int i = threadIdx.x; i < n; i += blockDim.x) ours[i] += theirs[i];
}
"""


def ints(flow, *values, device=None):
    buffer = flow.from_host(np.array(values, np.int32), device)
    buffer.used.wait(LIMIT)
    return buffer


def add(flow, kernels, merge, theirs, ours, **options):
    count = ours.size // 4
    return flow.dispatch(
        kernels["add"], grid=1, args=(merge.expect(theirs), ours, count), **options
    )


@pytest.fixture
def kernels(device):
    return device.compile(ADD)


def test_streaming_reads_in_place_where_it_can(device, second_device):
    for peers, mode in ((True, "streaming"), (False, "copy")):
        with Flow(device, second_device, peers=peers) as flow:
            theirs = ints(flow, 10, device=second_device)
            merge = flow.merge_buffer(device)
            assert merge.load(theirs, "streaming") is None
            assert merge.mode == mode
            assert (merge.expect(theirs).device is second_device) == peers
            assert merge.capacity == (0 if peers else 4)
            own = ints(flow, 1)  # on one device there is nothing to reach
            merge.load(own, "streaming")
            assert merge.expect(own).raw.address == own.raw.address


def test_what_is_held_is_read_once(device):
    """Another thread may load something else between two looks."""

    class Emptied:
        looks = 0

        @property
        def _held(self):
            self.looks += 1
            return held if self.looks == 1 else None

    with Flow(device) as flow:
        merge = flow.merge_buffer()
        merge.load(ints(flow, 1), "streaming")
        held = merge._held
        assert type(merge).source.fget(Emptied()) is held.source
        assert type(merge).mode.fget(Emptied()) == "streaming"


@pytest.mark.parametrize(("mode", "sum_"), [("copy", 11), ("streaming", 21)])
def test_a_copy_is_of_the_load_and_streaming_of_the_work(
    pair, kernels, device, second_device, mode, sum_
):
    """The same with peers and without."""
    ours, theirs = ints(pair, 1), ints(pair, 10, device=second_device)
    merge = pair.merge_buffer(device)
    merge.load(theirs, mode)
    pair.fill(theirs, np.int32(20))
    add(pair, kernels, merge, theirs, ours)
    pair.fill(theirs, np.int32(30))
    assert ours.numpy(timeout=LIMIT).tolist() == [sum_]


@pytest.mark.parametrize("placed", [True, False])
@pytest.mark.parametrize("whole", [True, False])
def test_the_error_tells_two_buffers_apart(device, gate, placed, whole):
    """Also such that have no address yet, and parts."""
    with Flow(device) as flow:
        if placed:
            buffers = [flow.allocate(64) for _ in range(2)]
        else:
            held = device.queue.barrier(wait=gate.at(1))
            buffers = [flow.adopt(device.queue.alloca(64, wait=held)) for _ in range(2)]
        if not whole:
            buffers = [buffers[0].subspan(0, 32), buffers[0].subspan(32, 32)]
        merge = flow.merge_buffer(device)
        merge.load(buffers[0], "streaming")
        with pytest.raises(InvalidArgumentError, match="was expected to hold") as caught:
            merge.expect(buffers[1])
        texts = [str(caught.value).partition("hold ")[2], str(caught.value).partition("holds ")[2]]
        wanted, has = (text.partition(">")[0] for text in texts)
        assert wanted.startswith("<TrackedBuffer")
        assert has.startswith("<TrackedBuffer")
        assert wanted != has
        gate.signal(1)


def test_what_is_in_place_is_loaded_again_at_once(flow, device):
    """The argument stays the same; another source, a part or another mode makes another."""
    source, other = ints(flow, 1, 2), ints(flow, 3)
    merge = flow.merge_buffer(device)
    merge.load(source, "streaming")
    first = merge.expect(source)
    flow.fill(source, 5)
    assert merge.load(source, "streaming") is None
    assert merge.expect(source) is first
    merge.load(source.subspan(4, 4), "streaming")
    assert merge.expect(source.subspan(4, 4)).size == 4
    merge.load(other, "streaming")
    with pytest.raises(InvalidArgumentError, match="was expected to hold"):
        merge.expect(source)
    merge.load(source, "copy").wait(LIMIT)
    assert merge.expect(source).raw.address != source.raw.address
    merge.load(source, "streaming")
    source.close()
    with pytest.raises(ClosedError):
        merge.load(source, "streaming")


@pytest.mark.parametrize("way", ["whole", "part", "part of a part", "recorded", "bound"])
@pytest.mark.parametrize("mode", ["copy", "streaming"])
def test_what_was_made_of_what_was_expected_is_refused_too(device, second_device, mode, way):
    with Flow(device, second_device, peers=False) as flow:
        first, second = (ints(flow, value, value, device=second_device) for value in (10, 20))
        target = ints(flow, 0)
        merge = flow.merge_buffer(device)
        merge.load(first, mode)
        held = merge.expect(first)
        part = held if way == "whole" else held.subspan(0, 4)
        if way == "part of a part":
            part = part.subspan(0, 4)
        with flow.record(slots=int(way == "bound")) as commands:
            commands.copy(commands.slots[0] if way == "bound" else held, target, size=4)

        def work():
            if way in {"recorded", "bound"}:
                return flow.execute(commands, bindings=[held] if way == "bound" else ())
            return flow.copy(part, target, size=4)

        work()
        for loaded in (second, first):  # the same again is another load
            merge.load(loaded, mode)
            assert part.closed
            with pytest.raises(ClosedError):
                work()
        assert target.numpy(timeout=LIMIT).tolist() == [10]


def test_a_load_waits_for_who_reads_the_bytes_that_it_writes(flow, device, gate):
    """It waits for readers of earlier loads of these bytes, and for nobody else."""
    large, small, out = ints(flow, *range(100)), ints(flow, 7), np.zeros(1, np.int32)
    merge = flow.merge_buffer()
    merge.load(large)
    loaded = merge.expect(large)
    queue = device.create_queue()
    flow.read(loaded.subspan(200, 4), out, wait=gate.at(1), queue=queue)
    merge.load(small).wait(LIMIT)
    assert merge.expect(small).numpy(timeout=LIMIT).tolist() == [7]
    late = merge.load(large)
    assert late.state == "pending"
    gate.signal(1)
    late.wait(LIMIT)
    assert out.tolist() == [50]
    assert merge.expect(large).numpy(timeout=LIMIT).tolist() == list(range(100))


def test_who_expects_cannot_take_the_memory_away(flow):
    buffer, other = ints(flow, 1, 2), ints(flow, 3, 4)
    merge = flow.merge_buffer()
    for source in (buffer, other):
        merge.load(source)
        held = merge.expect(source)
        assert held.size == merge.capacity
        with pytest.raises(InvalidArgumentError, match="part"):
            held.release()
        assert held.numpy(timeout=LIMIT).tolist() == source.numpy(timeout=LIMIT).tolist()
        held.close()
        with pytest.raises(ClosedError):
            held.numpy()
    merge.load(buffer)
    assert merge.expect(buffer).numpy(timeout=LIMIT).tolist() == [1, 2]


@pytest.mark.parametrize("is_late", [False, True])
def test_an_interrupt_between_two_loads_mixes_nothing_up(flow, monkeypatch, is_late):
    """Ctrl-C before what it held is refused, and after."""
    buffer, other = ints(flow, 1), ints(flow, 2)
    merge = flow.merge_buffer()
    merge.load(buffer)
    held = merge.expect(buffer)
    renew = Flow.renew

    def interrupted(*arguments):
        if is_late:
            renew(*arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr(Flow, "renew", interrupted)
    with pytest.raises(KeyboardInterrupt):
        merge.load(other)
    monkeypatch.undo()
    merge.load(other)
    assert merge.expect(other).numpy(timeout=LIMIT).tolist() == [2]
    if is_late:
        with pytest.raises(ClosedError):
            held.numpy()
    else:
        assert held.numpy(timeout=LIMIT).tolist() == [1]


def test_there_is_one_for_each_device_and_its_memory_is_reused(flow, device):
    merge = flow.merge_buffer()
    assert flow.merge_buffer(device) is merge
    sizes = []
    before = device.statistics().bytes_now
    for size in (1000, 10, 1000, 1001, 1500, 0, 9000):
        merge.load(flow.allocate(size))
        sizes.append(merge.capacity)
    assert sizes == [1000, 1000, 1000, 2000, 2000, 2000, 9000]
    flow.wait_idle(LIMIT)
    device.trim()
    assert device.statistics().bytes_now - before == 2 * 9000
    merge.close()
    assert (merge.capacity, merge.source) == (0, None)


def test_it_grows_while_what_it_held_is_read(pair, kernels, device, second_device, gate):
    ours, small = ints(pair, 1), ints(pair, 10, device=second_device)
    large = ints(pair, *range(1000), device=second_device)
    merge = pair.merge_buffer(device)
    merge.load(small)
    add(pair, kernels, merge, small, ours, wait=gate.at(1))
    loaded = merge.load(large)
    loaded.wait(LIMIT)  # other memory, so it waits for nothing
    assert merge.expect(large).numpy(timeout=LIMIT)[999] == 999
    gate.signal(1)
    assert ours.numpy(timeout=LIMIT).tolist() == [11]


def test_a_failure_stays_with_the_bytes_until_recover(pair, kernels, device, second_device):
    gate = hal.create_semaphore()
    ours, theirs = ints(pair, 1), ints(pair, 10, device=second_device)
    merge = pair.merge_buffer(device)
    merge.load(theirs)
    add(pair, kernels, merge, theirs, ours, wait=gate.at(1))
    gate.fail(RuntimeError("the sensor was unplugged"))
    with pytest.raises(HalError, match="unplugged"):
        merge.load(theirs).wait(LIMIT)
    merge.recover()
    assert merge.source is None
    merge.load(theirs).wait(LIMIT)
    assert merge.expect(theirs).numpy(timeout=LIMIT).tolist() == [10]


def test_bad_input_changes_nothing(flow, second_device):
    buffer, merge = ints(flow, 1), flow.merge_buffer()
    merge.load(buffer)
    with pytest.raises(InvalidArgumentError, match="'copy', 'streaming'"):
        merge.load(buffer, "stream")
    with pytest.raises(TypeError, match="tracked buffer"):
        merge.load(buffer.raw)
    with pytest.raises(InvalidArgumentError, match="not among"):
        flow.merge_buffer(second_device)
    assert merge.source is buffer
    assert "copy of" in repr(merge)
    buffer.close()
    with pytest.raises(ClosedError):
        merge.expect(buffer)
    flow.close()
    with pytest.raises(ClosedError):
        flow.merge_buffer()


@pytest.mark.parametrize("mode", ["copy", "streaming"])
def test_what_it_brings_is_read_only(pair, kernels, second_device, mode):
    """A kernel that wrote it would change the other device's data without a word."""
    theirs, writable = ints(pair, 10, device=second_device), ints(pair, 1)
    merge = pair.merge_buffer()
    merge.load(theirs, mode)
    held = merge.expect(theirs)
    arguments = (writable, held, 1)
    with pair.record() as commands:
        commands.dispatch(kernels["add"], grid=1, args=(writable, held.subspan(0, 4), 1))
    for deed, write in (
        ("let kernels write", lambda: pair.dispatch(kernels["add"], grid=1, args=arguments)),
        ("let kernels write", lambda: pair.execute(commands)),
        ("fill", lambda: pair.fill(held, 0)),
        ("write", lambda: pair.write(held, np.zeros(1, np.int32))),
        ("copy to", lambda: pair.copy(writable, held)),
    ):
        match = f"cannot {deed} 'the merge buffer of .*', which is constant"
        with pytest.raises(InvalidArgumentError, match=match):
            write()
    held.close()  # what was merged stays
    assert theirs.numpy(timeout=LIMIT).tolist() == [10]


def test_an_argument_that_is_merged_is_checked_as_it_is_made():
    for name in (3, None):
        with pytest.raises(ArgumentTypeError, match=rf"Merge: .* a str, not {type(name).__name__}"):
            Merge(name)
    with pytest.raises(InvalidArgumentError, match=r"Merge: the mode is one of .*, not 'Copy'"):
        Merge("grad", "Copy")
    assert Merge("grad", "copy") == Merge("grad", mode="copy") != Merge("grad")


def test_the_mode_of_a_load_may_be_expected(pair, second_device):
    theirs = ints(pair, 10, device=second_device)
    merge = pair.merge_buffer()
    for mode, other in (("copy", "streaming"), ("streaming", "copy")):
        merge.load(theirs, mode)
        assert merge.expect(theirs, mode).numpy(timeout=LIMIT).tolist() == [10]
        with pytest.raises(InvalidArgumentError, match=f" as '{other}', and holds .* as '{mode}'"):
            merge.expect(theirs, other)
