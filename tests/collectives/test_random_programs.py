"""Random collectives of several ranks, on several queues each, against numpy (G1, G2)."""

import random

import numpy as np
import pytest

import hal
import hal.collectives

LIMIT = 60.0
OPERATIONS = 60
COUNT = 6


class Ranks:
    """Ranks that one thread drives, their buffers, and what numpy says that these hold."""

    def __init__(self, size, draw):
        self.size, self.draw = size, draw
        self.devices = [hal.create_device("cpu") for _ in range(size)]
        self.groups = hal.collectives.join_all(self.devices, timeout=LIMIT)
        self.queues = [
            (each.queue, each.create_queue(), each.create_queue(ordered=False))
            for each in self.devices
        ]
        start = [np.arange(COUNT * size) + 100 * rank for rank in range(size)]
        self.model = np.array(start, np.int64)
        self.buffers = [
            device.upload(each) for device, each in zip(self.devices, self.model, strict=True)
        ]
        self.gate = hal.create_semaphore()
        self.last = []

    def step(self, number):
        """Submit one operation on all ranks, in any order of them."""
        draw, size = self.draw, self.size
        kind = draw.choice(
            [
                "all_reduce",
                "broadcast",
                "reduce",
                "all_gather",
                "reduce_scatter",
                "barrier",
                "batch",
            ]
        )
        root, op = draw.randrange(size), draw.choice(["sum", "max", "min"])
        reduced = {"sum": np.sum, "max": np.max, "min": np.min}[op](self.model, axis=0)
        waits = self.gate.at(number // 20 + 1)
        for rank in draw.sample(range(size), size):
            queue = draw.choice(self.queues[rank])
            if kind != "batch":
                self.last.append(self._submit(kind, rank, queue, root, op, waits))
                continue
            with self.groups[rank].batch():
                self._submit("barrier", rank, queue, root, op, waits)
                self.last.append(self._submit("broadcast", rank, queue, root, op, waits))
        parts = [slice(rank * COUNT, (rank + 1) * COUNT) for rank in range(size)]
        if kind == "all_reduce":
            self.model[:] = reduced
        elif kind in {"broadcast", "batch"}:
            self.model[:] = self.model[root].copy()
        elif kind == "reduce":
            self.model[root] = reduced
        elif kind == "all_gather":
            self.model[:] = np.concatenate([self.model[r][parts[r]] for r in range(size)])
        elif kind == "reduce_scatter":
            for rank in range(size):
                self.model[rank][parts[rank]] = reduced[parts[rank]]

    def _submit(self, kind, rank, queue, root, op, wait):
        """Submit an operation of one rank."""
        whole, lists = self.buffers[rank], {"group": self.groups[rank], "wait": wait}
        part = whole[rank * COUNT : (rank + 1) * COUNT]
        if kind == "all_reduce":
            return queue.all_reduce(whole, op=op, **lists)
        if kind == "broadcast":
            return queue.broadcast(whole, root=root, **lists)
        if kind == "reduce":
            return queue.reduce(whole, root=root, op=op, **lists)
        if kind == "all_gather":
            return queue.all_gather(part, whole, **lists)
        if kind == "reduce_scatter":
            return queue.reduce_scatter(whole, part, op=op, **lists)
        return queue.group_barrier(**lists)

    def close(self):
        for each in (*self.groups, *self.devices):
            each.close()


@pytest.mark.parametrize("seed", range(4))
def test_random_collectives_against_numpy_g1(seed):
    draw = random.Random(seed)
    ranks = Ranks(draw.randint(2, 4), draw)
    for number in range(OPERATIONS):
        ranks.step(number)
        if number % 20 == 10:
            ranks.gate.signal(number // 20 + 1)
    hal.wait_all(ranks.last, LIMIT)
    for buffer, expected in zip(ranks.buffers, ranks.model, strict=True):
        assert (buffer.numpy() == expected).all()
    ranks.close()
