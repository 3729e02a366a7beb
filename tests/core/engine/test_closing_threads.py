"""Random programs whose queues and devices are closed at random moments (Q2, Q5, Q6).

Threads submit chains to the queues of one or two devices. Whatever is closed meanwhile: each
operation ends, one that is done comes after all that it waited for, and its bytes are right.
Without the interpreter lock these find what leans on it; ``HAL_SEEDS`` tries that many hundreds.
"""

import os
import random
import threading

import numpy as np
import pytest
from core_harness import LIMIT, collect_in_threads

import hal
from hal.errors import CancelledError, ClosedError

PROGRAMS = int(os.environ.get("HAL_SEEDS") or 0) * 100 or 60
EMPTY = 0xFFFFFFFF


class Chain:
    """One thread's operations, each of which waits for the one before it."""

    def __init__(self, generator, queues, rounds):
        self.random = generator
        self.queues = queues
        self.ended = []  # (operation, what it waited for, and where its bytes are)
        self.logs = {
            device: device.upload(np.full(rounds, EMPTY, np.uint32)) for device, _ in queues
        }
        self.start()

    def start(self):
        """Begin a chain with memory of its own: the last one has failed, and may run still."""
        self.cells = {}
        self.last = None
        self.value = 0
        self.semaphore = hal.create_semaphore()

    def add(self, operation, waited, bytes_at=None):
        self.ended.append((operation, waited, bytes_at))
        self.last = operation

    def step(self, number):
        """Submit one step; raise `ClosedError` or `CancelledError` if something is closed."""
        device, queue = self.random.choice(self.queues)
        if device not in self.cells:
            self.cells[device] = device.allocate(4, dtype=np.uint32)
        cell, log, last = self.cells[device], self.logs[device], self.last
        wait, signal = [] if last is None else [last], ()
        if self.value and self.random.random() < 0.3:
            wait.append(self.semaphore.at(self.value))
        if self.random.random() < 0.3:
            self.value += 1
            signal = self.semaphore.at(self.value)
        at = {"target_offset": 4 * number}
        way = self.random.choice(["copy", "copy", "call", "alloca", "execute", "read"])
        if way == "copy":
            filled = queue.fill(cell, number, wait=wait, signal=signal)
            self.add(filled, last)
            other = self.random.choice([each for owner, each in self.queues if owner is device])
            self.add(other.copy(cell, log, wait=[filled], **at), filled, (device, number))
        elif way == "call":
            seen = []
            called = queue.call(
                lambda: seen.append(last is None or last.state == "done"), wait=wait, signal=signal
            )
            self.add(called, last, (seen, True))
        elif way == "alloca":
            buffer = queue.alloca(4, dtype=np.uint32, wait=wait)
            self.add(buffer.allocation, last)
            self.add(queue.fill(buffer, number, wait=[self.last]), self.last)
            copied = queue.copy(buffer, log, wait=[self.last], signal=signal, **at)
            self.add(copied, self.last, (device, number))
            self.add(queue.dealloca(buffer, wait=[copied]), copied)
        elif way == "execute":
            with device.record() as commands:
                commands.fill(cell, number)
                commands.barrier()
                commands.copy(cell, log, **at)
            self.add(queue.execute(commands, wait=wait, signal=signal), last, (device, number))
        else:
            array = np.full(1, EMPTY, np.uint32)
            filled = queue.fill(cell, number, wait=wait)
            self.add(filled, last)
            self.add(queue.read(cell, array, wait=[filled], signal=signal), filled, (array, number))

    def run(self, rounds):
        for number in range(rounds):
            try:
                self.step(number)
                if self.random.random() < 0.1 and self.last is not None:
                    self.last.wait(LIMIT)
            except (ClosedError, CancelledError):
                self.start()
                continue
            if self.last.state == "cancelled":
                self.start()

    def check(self):
        """Wait for all; look at the order of what is done, and at its bytes."""
        for operation, _, _ in self.ended:
            try:
                operation.wait(LIMIT)
            except (ClosedError, CancelledError):
                assert operation.state in {"failed", "cancelled"}
        logs = {device: log.numpy() for device, log in self.logs.items() if not device.closed}
        for number, (operation, waited, bytes_at) in enumerate(self.ended):
            if operation.state != "done":
                continue
            assert waited is None or waited.state == "done", (number, operation, waited)
            if bytes_at is None:
                continue
            where, wanted = bytes_at
            if isinstance(where, hal.Device):
                assert where.closed or logs[where][wanted] == wanted, (number, operation)
            else:
                assert list(where) == [wanted], (number, operation)


def open_all(generator):
    """Return one or two devices, and their queues, each with its device."""
    devices = [
        hal.create_device(generator.choice(["cpu", "cpu?command_buffer=stream"]))
        for _ in range(generator.randint(1, 2))
    ]
    queues = []
    for device in devices:
        queues += [(device, device.queue), (device, device.queues.upload)]
        for _ in range(generator.randint(0, 3)):
            queue = device.create_queue(ordered=generator.random() < 0.5)
            queues.append((device, queue))
    return devices, queues


@pytest.mark.parametrize("first", range(0, PROGRAMS, 20))
def test_closing_at_random_moments_q6(first):
    """Q2, Q5, Q6: no work runs before the work it waits for, and all of it ends."""
    for seed in range(first, first + 20):
        generator = random.Random(seed)
        devices, queues = open_all(generator)
        rounds, submitted = generator.choice([5, 20, 60]), threading.Semaphore(0)
        chains = [
            Chain(random.Random(seed * 100 + number), queues, rounds)
            for number in range(generator.randint(2, 4))
        ]

        def work(chain, rounds=rounds, submitted=submitted):
            for _ in range(5):
                chain.run(rounds // 5)
                submitted.release()

        def close(what, after, submitted=submitted):
            for _ in range(after):
                assert submitted.acquire(timeout=LIMIT)
            assert what.close(LIMIT) == ()

        left, closers = 5 * len(chains), []
        for _ in range(generator.randint(1, 4)):
            device, queue = generator.choice(queues)
            after = generator.randint(0, min(left, 4))
            left -= after
            what = generator.choice([device, queue])
            closers.append(lambda what=what, after=after: close(what, after))
        collect_in_threads([*[lambda chain=chain: work(chain) for chain in chains], *closers])
        for chain in chains:
            chain.check()
        for device in devices:
            assert device.close(LIMIT) == (), seed
