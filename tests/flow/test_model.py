"""Random programs against plain bytes, and the waits against what really conflicts."""

import random
from functools import partial

import numpy as np
import pytest
from core_harness import LIMIT, collect_in_threads

import hal
from hal.flow import Flow, scheduler

SIZE = 96
SOURCE = """
extern "C" __global__ void mix(const unsigned char *x, unsigned char *y, int n) {
  for (int i = 0; i < n; i++) y[i] = 3 * y[i] + x[i];
}
"""


class Program:
    """Make the same random steps on tracked buffers and on bytearrays."""

    def __init__(self, seed, flow, kernels):
        self.random = random.Random(seed)
        self.flow = flow
        self.kernels = kernels
        self.model = [bytearray(SIZE) for _ in range(4)]
        devices = flow.devices
        self.buffers = [
            flow.from_host(np.zeros(SIZE, np.uint8), devices[index % len(devices)])
            for index in range(4)
        ]
        self.reads = []
        self.accesses = []  # of each step: (buffer, start, stop, writes)

    def part(self, size=None):
        index = self.random.randrange(4)
        if size is None:
            size = self.random.choice([0, 1, 8, 24, SIZE])
        start = self.random.randrange(SIZE - size + 1)
        return index, start, size

    def tracked(self, index, start, size):
        whole = self.buffers[index]
        if size == SIZE or self.random.random() < 0.5:
            return whole, start
        return whole.subspan(start, size), 0

    def step(self):
        """Submit one operation, and do it on the model."""
        pick = self.random
        kind = pick.choice(["fill", "write", "read", "copy", "mix"])
        queue = pick.choice([None, None, "upload", "compute", "download"])
        index, start, size = self.part()
        buffer, offset = self.tracked(index, start, size)
        if kind == "fill":
            value = pick.randrange(256)
            self.flow.fill(buffer, np.uint8(value), offset=offset, size=size, queue=queue)
            self.model[index][start : start + size] = bytes([value]) * size
            self.accesses.append([(index, start, start + size, True)])
        elif kind == "write":
            data = pick.randbytes(size)
            self.flow.write(buffer, data, offset=offset, queue=queue)
            self.model[index][start : start + size] = data
            self.accesses.append([(index, start, start + size, True)])
        elif kind == "read":
            out = np.empty(size, np.uint8)
            self.flow.read(buffer, out, offset=offset, queue=queue)
            self.reads.append((out, bytes(self.model[index][start : start + size])))
            self.accesses.append([(index, start, start + size, False)])
        else:
            other, place, _ = self.part(size)
            is_same = self.buffers[other].device is self.buffers[index].device
            overlaps = other == index and abs(place - start) < size
            if overlaps or (kind == "mix" and not is_same):
                return self.step()
            source = bytes(self.model[index][start : start + size])
            if kind == "copy":
                self.flow.copy(
                    self.buffers[index],
                    self.buffers[other],
                    source_offset=start,
                    target_offset=place,
                    size=size,
                    queue=queue if is_same else None,
                )
                self.model[other][place : place + size] = source
            else:
                device = self.buffers[index].device
                args = (
                    self.buffers[index].subspan(start, size),
                    self.buffers[other].subspan(place, size),
                    size,
                )
                self.flow.dispatch(self.kernels[device], grid=1, block=1, args=args, queue=queue)
                target = self.model[other]
                for at in range(size):
                    target[place + at] = (3 * target[place + at] + source[at]) % 256
            self.accesses.append(
                [(index, start, start + size, False), (other, place, place + size, True)]
            )
        return None

    def check(self):
        for out, expected in self.reads:
            assert out.tobytes() == expected
        for buffer, expected in zip(self.buffers, self.model, strict=True):
            assert buffer.numpy(timeout=LIMIT).tobytes() == bytes(expected)


def conflict(first, second):
    """Return whether two steps touch a common byte that one of them writes."""
    return any(
        a[0] == b[0] and a[1] < b[2] and b[1] < a[2] and a[1] < a[2] and b[1] < b[2]
        and (a[3] or b[3])
        for a in first
        for b in second
    )  # fmt: skip


def compiled(devices):
    return {device: device.compile(SOURCE)["mix"] for device in devices}


@pytest.mark.parametrize("seed", range(30))
def test_random_programs_on_two_devices(device, second_device, seed):
    with Flow(device, second_device, chunk=7, peers=seed % 2 == 0) as flow:
        program = Program(seed, flow, compiled(flow.devices))
        for _ in range(60):
            program.step()
        flow.wait_idle(LIMIT)
        program.check()


@pytest.mark.parametrize("seed", range(30))
def test_each_conflict_is_ordered_and_each_wait_is_a_conflict(device, gate, seed):
    """No work ends before all is submitted, so that no hazard is forgotten."""
    steps, index_of = [], {}

    def trace(submission, waits):
        index_of[submission] = len(steps)
        steps.append((submission, list(waits)))

    flow = Flow(device, trace=trace)
    program = Program(seed, flow, compiled(flow.devices))
    flow.wait_idle(LIMIT)
    for queue in (device.queues.upload, device.queues.compute, device.queues.download):
        queue.barrier(wait=gate.at(1))
    steps.clear()
    index_of.clear()
    for _ in range(80):
        program.step()
    gate.signal(1)
    flow.wait_idle(LIMIT)
    program.check()
    steps = steps[:80]  # and what `check` reads
    assert len(program.accesses) == len(steps)
    before = []  # of each step: all that it is ordered behind
    last = {}
    for index, (submission, waits) in enumerate(steps):
        known = [index_of[wait] for wait in waits if wait in index_of]
        for wait in known:
            assert conflict(program.accesses[wait], program.accesses[index])
        direct = set(known) | ({last[submission.queue]} if submission.queue in last else set())
        reached = set(direct)
        for each in direct:
            reached |= before[each]
        for each in range(index):
            if conflict(program.accesses[each], program.accesses[index]):
                assert each in reached, (seed, each, index)
        before.append(reached)
        last[submission.queue] = index


def test_the_tracking_can_fail(device, gate, monkeypatch):
    """The oracle finds a wait that is left out."""
    collect = scheduler.collect
    monkeypatch.setattr(scheduler, "collect", lambda _, *rest: collect((), *rest))
    flow = Flow(device)
    buffer = flow.from_host(np.zeros(4, np.uint8))
    buffer.used.wait(LIMIT)
    write = flow.write(buffer, bytes([1] * 4), wait=gate.at(1))
    flow.fill(buffer, 2, size=2).wait(LIMIT)  # overtakes
    gate.signal(1)
    write.wait(LIMIT)
    assert buffer.numpy(timeout=LIMIT).tolist() == [1, 1, 1, 1]


def test_threads_share_a_flow(device):
    """Sums are the same in any order; none is lost."""
    source = 'extern "C" __global__ void HAL_BLOCK(1) bump(int *x) { x[0] += 1; }'
    bump = device.compile(source)["bump"]
    flow = Flow(device)
    buffer = flow.from_host(np.zeros(1, np.int32))

    def work(queue):
        for _ in range(100):
            flow.dispatch(bump, grid=1, args=(buffer,), queue=queue)

    collect_in_threads([partial(work, name) for name in ("upload", "compute")])
    assert buffer.numpy(timeout=LIMIT).tolist() == [200]
    hal.wait_all(buffer.used, LIMIT)
