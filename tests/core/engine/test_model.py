"""Random programs against a model that shares no code with hal: bytes and ints.

A program is a list of operations over several queues, with waits and signals
such that one order of running them is right: the order in which they were
made. It is submitted in another order, one that the queues allow, with gates
that the host opens meanwhile. In the end every byte, every value and every
state must be what the model says.
"""

from __future__ import annotations

import random
import threading

import numpy as np
import pytest
from core_harness import LIMIT, collect_in_threads

import hal
from hal.errors import HalError, OperationError

SIZE = 32
BUFFERS = 3


class Model:
    """What the memory, the semaphores and the submissions are in the end."""

    def __init__(self):
        self.memory = [bytearray(SIZE) for _ in range(BUFFERS)]
        self.reads = []
        self.calls = []

    def run(self, step):
        kind, arguments = step.kind, step.arguments
        if kind == "fill":
            index, offset, pattern, count = arguments
            self.memory[index][offset : offset + len(pattern) * count] = pattern * count
        elif kind in {"update", "write"}:
            index, offset, data = arguments
            self.memory[index][offset : offset + len(data)] = data
        elif kind == "copy":
            source, start, target, offset, size = arguments
            self.memory[target][offset : offset + size] = self.memory[source][start : start + size]
        elif kind == "read":
            index, offset, size = arguments
            self.reads.append((step.number, bytes(self.memory[index][offset : offset + size])))
        elif kind == "call":
            self.calls.append(step.number)
        elif kind == "execute":
            for inner in arguments:
                self.run(inner)


class Step:
    """One operation: what it does, on which queue, and the earlier ones it waits for."""

    def __init__(self, number, kind, arguments, queue=0, waits=(), fails=False):  # noqa: FBT002
        self.number = number
        self.kind = kind
        self.arguments = arguments
        self.queue = queue
        self.waits = waits
        self.fails = fails
        self.broken = False


def random_transfer(generator, number):
    kind = generator.choice(["fill", "fill", "update", "copy"])
    index = generator.randrange(BUFFERS)
    offset = generator.randrange(SIZE)
    if kind == "fill":
        width = generator.choice([1, 2, 4])
        offset -= offset % width
        count = generator.randint(0, (SIZE - offset) // width)
        return Step(number, kind, (index, offset, generator.randbytes(width), count))
    if kind == "update":
        data = generator.randbytes(generator.randint(0, SIZE - offset))
        return Step(number, kind, (index, offset, data))
    target = generator.choice([other for other in range(BUFFERS) if other != index])
    start = generator.randrange(SIZE)
    size = generator.randint(0, SIZE - max(offset, start))
    return Step(number, kind, (index, start, target, offset, size))


def random_step(generator, number, queues):
    kind = generator.choice(["transfer"] * 6 + ["read", "write", "call", "execute", "barrier"])
    if kind == "transfer":
        step = random_transfer(generator, number)
    elif kind == "read":
        offset = generator.randrange(SIZE)
        arguments = (generator.randrange(BUFFERS), offset, generator.randint(0, SIZE - offset))
        step = Step(number, kind, arguments)
    elif kind == "write":
        offset = generator.randrange(SIZE)
        data = generator.randbytes(generator.randint(0, SIZE - offset))
        step = Step(number, kind, (generator.randrange(BUFFERS), offset, data))
    elif kind == "execute":
        inner = [random_transfer(generator, number) for _ in range(generator.randrange(4))]
        step = Step(number, kind, tuple(inner))
    else:
        step = Step(number, kind, ())
    step.queue = generator.randrange(queues)
    return step


class Runner:
    """Submit steps to real queues."""

    def __init__(self, device, queues):
        self.device = device
        self.queues = queues
        self.buffers = [device.upload(np.zeros(SIZE, np.uint8)) for _ in range(BUFFERS)]
        self.reads = {}
        self.calls = []

    def submit(self, step, wait, signal):
        queue, lists = self.queues[step.queue], {"wait": wait, "signal": signal}
        if step.kind == "read":
            index, offset, size = step.arguments
            array = self.reads[step.number] = np.zeros(size, np.uint8)
            return queue.read(self.buffers[index], array, offset=offset, **lists)
        if step.kind == "call":
            return queue.call(self.call, step, **lists)
        if step.kind == "execute":
            with self.device.record() as commands:
                for inner in step.arguments:
                    self.transfer(commands, inner)
                    commands.barrier()
            return queue.execute(commands, **lists)
        if step.kind == "barrier":
            return queue.barrier(**lists)
        return self.transfer(queue, step, **lists)

    def transfer(self, target, step, **lists):
        arguments = step.arguments
        if step.kind == "fill":
            index, offset, pattern, count = arguments
            size = len(pattern) * count
            return target.fill(self.buffers[index], pattern, offset=offset, size=size, **lists)
        if step.kind == "copy":
            source, start, index, offset, size = arguments
            return target.copy(
                self.buffers[source],
                self.buffers[index],
                source_offset=start,
                target_offset=offset,
                size=size,
                **lists,
            )
        index, offset, data = arguments
        return getattr(target, step.kind)(self.buffers[index], data, offset=offset, **lists)

    def call(self, step):
        if step.fails:
            message = f"step {step.number}"
            raise OperationError(message)
        self.calls.append(step.number)

    def compare(self, model):
        assert [buffer.numpy().tobytes() for buffer in self.buffers] == [
            bytes(memory) for memory in model.memory
        ]
        assert sorted(self.calls) == model.calls
        assert {number: data.tobytes() for number, data in self.reads.items()} == dict(model.reads)


def open_queues(device, generator, count):
    """Return some of the device's queues, ordered and not."""
    queues = [device.queues.compute, device.queues.upload, device.queues.download]
    generator.shuffle(queues)
    made = [device.create_queue(ordered=generator.random() < 0.5) for _ in range(count)]
    return [*queues[: max(0, 3 - count)], *made][:3] or queues


def random_submission_order(generator, steps, queues):
    """Return the steps in another order that keeps each ordered queue's own.

    An ordered queue issues its operations in the order of submission, and an
    operation may wait for any step made before it: to keep its own order is
    enough to never wait in a circle.
    """
    lines = {}
    for step in steps:
        line = step.queue if queues[step.queue].ordered else ("free", step.number)
        lines.setdefault(line, []).append(step)
    waiting = list(lines.values())
    order = []
    while waiting:
        line = generator.choice(waiting)
        order.append(line.pop(0))
        if not line:
            waiting.remove(line)
    return order


@pytest.mark.parametrize("limit", [None, 2])
@pytest.mark.parametrize("seed", range(30))
def test_chain_of_random_operations(seed, limit):
    """Each step waits for the one before it, over 3 queues, submitted out of order.

    Waits are timepoints of one semaphore; the host opens the start, and
    single gates in the middle, at random moments.
    """
    generator = random.Random(seed)
    with hal.create_device("cpu", **({"max_in_flight": limit} if limit else {})) as device:
        queues = open_queues(device, generator, generator.randrange(4))
        runner, model = Runner(device, queues), Model()
        steps = [random_step(generator, number, len(queues)) for number in range(40)]
        for step in steps:
            model.run(step)
        semaphore = hal.create_semaphore()
        gates = {step.number: hal.create_semaphore() for step in generator.sample(steps, 5)}
        submissions = {}
        closed = list(gates.values())
        started = False
        for step in random_submission_order(generator, steps, queues):
            wait = [semaphore.at(step.number + 1)]
            if step.number in gates:
                wait.append(gates[step.number].at(1))
            submissions[step.number] = runner.submit(step, wait, semaphore.at(step.number + 2))
            if not started and generator.random() < 0.03:
                semaphore.signal(1)
                started = True
            if closed and generator.random() < 0.05:
                closed.pop().signal(1)
        if not started:
            semaphore.signal(1)
        generator.shuffle(closed)
        for gate in closed:
            gate.signal(1)
        semaphore.wait(len(steps) + 1, LIMIT)
        runner.compare(model)
        assert {each.state for each in submissions.values()} == {"done"}


def plan_failures(generator, steps, bad_gates, model):
    """Choose what steps wait for, run the model, and return each failed step's possible reasons.

    Every step that no failure reaches comes after all such before it: that is
    the model's order.
    """
    failures = {}
    last_good = None
    for step in steps:
        step.fails = step.kind == "call" and generator.random() < 0.3
        earlier = generator.sample(steps[: step.number], min(step.number, 2))
        step.waits = [each.number for each in earlier if generator.random() < 0.15]
        reasons = set().union(*(failures.get(number, ()) for number in step.waits))
        if step.number in bad_gates:
            reasons.add(f"gate {step.number}")
        if step.fails and not reasons:
            reasons.add(f"step {step.number}")
        if reasons:
            failures[step.number] = reasons
            continue
        if last_good is not None:
            step.waits.append(last_good)
        last_good = step.number
        model.run(step)
    return failures


@pytest.mark.parametrize("limit", [None, 2])
@pytest.mark.parametrize("seed", range(30))
def test_graph_of_random_operations_with_failures(seed, limit):
    """Steps wait for random earlier ones, by semaphore or by handle; some fail.

    The failures are calls that raise, and gates that the host fails, from
    another thread while this one submits.
    """
    generator = random.Random(1000 + seed)
    with hal.create_device("cpu", **({"max_in_flight": limit} if limit else {})) as device:
        queues = open_queues(device, generator, generator.randrange(4))
        runner, model = Runner(device, queues), Model()
        steps = [random_step(generator, number, len(queues)) for number in range(40)]
        gates = {step.number: hal.create_semaphore() for step in generator.sample(steps, 8)}
        bad_gates = set(generator.sample(sorted(gates), 2))
        failures = plan_failures(generator, steps, bad_gates, model)
        own = [hal.create_semaphore() for _ in steps]
        submissions = []
        opener = threading.Thread(target=open_gates, args=(generator.random(), gates, bad_gates))
        opener.start()
        for step in steps:
            wait = [
                own[number].at(1) if generator.random() < 0.5 else submissions[number]
                for number in step.waits
            ]
            if step.number in gates:
                wait.append(gates[step.number].at(1))
            submissions.append(runner.submit(step, wait, own[step.number].at(1)))
        opener.join(LIMIT)
        device.wait_idle(LIMIT)
        for step, submission, semaphore in zip(steps, submissions, own, strict=True):
            if step.number not in failures:
                assert submission.state == "done", step.number
                hal.wait_all([submission, semaphore.at(1)], LIMIT)
                continue
            assert str(submission.error) in failures[step.number]
            for waitable in (submission, semaphore.at(1)):
                with pytest.raises(HalError):
                    hal.wait_all([waitable], LIMIT)
        for number in [number for number in runner.reads if number in failures]:
            assert not runner.reads.pop(number).any(), "it did not run"
        runner.compare(model)


def open_gates(seed, gates, bad):
    generator = random.Random(seed)
    numbers = sorted(gates)
    generator.shuffle(numbers)
    for number in numbers:
        if number in bad:
            gates[number].fail(OperationError(f"gate {number}"))
        else:
            gates[number].signal(1)


# Many threads


@pytest.mark.parametrize("limit", [None, 3])
def test_threads_that_submit_concurrently(open_probe, limit):
    """Six threads submit chains to the same queues, wait for each other's work, and read back.

    Each thread has its own slot of a shared buffer and counts in it; the sum
    of all is known. The probe watches the native rules meanwhile.
    """
    device, probe = open_probe(max_in_flight=limit)
    threads, rounds = 6, 60
    shared = device.upload(np.zeros(threads * 4, np.uint8))
    queues = [
        device.queues.compute,
        device.queues.upload,
        device.create_queue(ordered=False),
        device.create_queue(ordered=False),
    ]
    semaphores = [hal.create_semaphore() for _ in range(threads)]
    asked, counted = [0] * threads, [0] * threads

    def work(index):
        generator = random.Random(index)
        mine = shared.subspan(4 * index, 4)
        scratch = device.allocate(4)
        semaphore = semaphores[index]
        value = 0
        for number in range(1, rounds + 1):
            queue = generator.choice(queues)
            kind = generator.randrange(4)
            wait, signal = semaphore.at(value), semaphore.at(value + 1)
            if kind == 0:
                queue.fill(mine, number, wait=wait, signal=signal)
            elif kind == 1:
                queue.update(mine, bytes([number] * 4), wait=wait, signal=signal)
            elif kind == 2:
                first = queue.fill(scratch, number, wait=wait)
                generator.choice(queues).copy(scratch, mine, wait=first, signal=signal)
            else:
                queue.fill(mine, number, wait=wait, signal=signal)
                neighbour = semaphores[(index + 1) % threads]
                # No more than it has reached, else they could wait in a circle.
                reached = min(neighbour.query(), 1)
                asked[index] += 1
                device.queues.download.call(
                    count, index, wait=[signal, neighbour.at(reached)]
                ).wait(LIMIT)
            value += 1
            if generator.random() < 0.1:
                semaphore.wait(value, LIMIT)
                assert (mine.numpy(timeout=LIMIT) == number).all()
        semaphore.wait(value, LIMIT)

    def count(index):
        counted[index] += 1

    collect_in_threads([lambda index=index: work(index) for index in range(threads)])
    device.wait_idle(LIMIT)
    assert shared.numpy().tolist() == [rounds] * (4 * threads)
    assert [semaphore.query() for semaphore in semaphores] == [rounds] * threads
    assert counted == asked
    assert probe.violations == []
