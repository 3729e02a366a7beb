"""Several queues: three that every device has, and more on request, each on its own (Q3)."""

import numpy as np
import pytest

import hal
from hal.errors import ArgumentTypeError
from hal_conformance.suite.support import LIMIT, pattern

pytestmark = pytest.mark.ordering

NAMES = ("compute", "upload", "download")


def test_a_device_has_three_queues_q3(device):
    """Q3: compute, upload and download are ordered queues of the device, and `queue` the first."""
    queues = [getattr(device.queues, name) for name in NAMES]
    assert device.queue is device.queues.compute
    assert len(set(map(id, queues))) == 3
    for name, queue in zip(NAMES, queues, strict=True):
        assert queue.device is device
        assert queue.ordered
        assert not queue.closed
        assert name in queue.name
        assert device.name in queue.name


@pytest.mark.parametrize("held", NAMES)
def test_each_queue_has_a_stream_of_its_own_q3(device, make_latch, held):
    """Q3: while one of the three is held up, the two others run."""
    latch = make_latch(getattr(device.queues, held))
    latch.wait_running()
    buffer = device.allocate(64)
    for name in NAMES:
        if name != held:
            getattr(device.queues, name).fill(buffer, 1).wait(LIMIT)
    assert not latch.submission.done
    latch.open()
    latch.submission.wait(LIMIT)


@pytest.mark.parametrize("count", [1, 8])
def test_more_queues_can_be_created_q3(device, make_queue, gate, count):
    """Q3: created queues are independent: each but one is held up, and that one runs."""
    queues = [make_queue() for _ in range(count + 1)]
    assert len({queue.name for queue in queues}) == count + 1
    held = [queue.barrier(wait=gate.at(1)) for queue in queues[:-1]]
    buffer = device.allocate(64)
    queues[-1].fill(buffer, 1).wait(LIMIT)
    assert {each.state for each in held} == {"pending"}
    gate.signal(1)
    hal.wait_all(held, LIMIT)


def test_queues_have_names_q3(device):
    """Q3: a queue has the name given, after its device's; a name that is no text is refused."""
    with device.create_queue(name="copies") as queue:
        assert queue.name.startswith(device.name)
        assert queue.name.endswith("copies")
        assert "copies" in repr(queue)
    with pytest.raises(ArgumentTypeError):
        device.create_queue(name=3)


def test_a_pipeline_over_the_three_queues_q3(device, make_semaphore):
    """Q3: 20 tiles go through upload, copy and download in two slots, ordered by values alone."""
    uploaded, copied, downloaded = (make_semaphore() for _ in range(3))
    slots = [(device.allocate(4096), device.allocate(4096)) for _ in range(2)]
    tiles = [pattern(4096, seed) for seed in range(20)]
    outs = [np.zeros(4096, np.uint8) for _ in tiles]
    for number, (tile, out) in enumerate(zip(tiles, outs, strict=True)):
        first, second = slots[number % 2]
        before = max(number - 1, 0)  # the tile that had the slot has left it
        device.queues.upload.write(
            first, tile, wait=copied.at(before), signal=uploaded.at(number + 1)
        )
        device.queues.compute.copy(
            first,
            second,
            wait=[uploaded.at(number + 1), downloaded.at(before)],
            signal=copied.at(number + 1),
        )
        device.queues.download.read(
            second, out, wait=copied.at(number + 1), signal=downloaded.at(number + 1)
        )
    downloaded.wait(20, LIMIT)
    for tile, out in zip(tiles, outs, strict=True):
        assert np.array_equal(tile, out)


@pytest.mark.parametrize("seed", range(4))
def test_submission_out_of_order_over_all_queues_q3(device, make_queue, semaphore, seed):
    """Q3: a chain of 40 steps over five queues, submitted in a shuffled order, keeps its order.

    Ordered queues get their own steps in order, as they must; the data of
    each step is copied from the one before.
    """
    generator = np.random.default_rng(seed)
    queues = [*(getattr(device.queues, name) for name in NAMES), make_queue(ordered=False)]
    queues.append(make_queue())
    buffers = [device.upload(pattern(512)), *(device.allocate(512) for _ in range(4))]
    steps = [(int(generator.integers(5)), number) for number in range(1, 41)]
    lines = [[number for queue, number in steps if queue == index] for index in range(5)]
    generator.shuffle(lines[3])
    while any(lines):
        index = int(generator.choice([index for index in range(5) if lines[index]]))
        number = lines[index].pop(0)
        queues[index].copy(
            buffers[(number - 1) % 5],
            buffers[number % 5],
            wait=semaphore.at(number),
            signal=semaphore.at(number + 1),
        )
    assert semaphore.query() == 0
    semaphore.signal(1)
    semaphore.wait(41, LIMIT)
    for buffer in buffers:
        assert np.array_equal(buffer.numpy(timeout=LIMIT), pattern(512))
