"""Test that what the explorers leave out is equivalent to something that they run."""

import random

import pytest
from schedlab import sync
from schedlab.explore import explore, reduce
from schedlab.threads import Cell


class RandomToy:
    """A random little program of locks, shared cells, doorbells, yields and data choices."""

    def __init__(self, seed):
        self.name = f"random toy {seed}"
        r = random.Random(seed)
        kinds = ["lock", "read", "write", "both"]
        if seed % 2:
            kinds += ["yield", "ring", "wait", "choose", "branch"]
        self.programs = [
            [(r.choice(kinds), r.choice("xy"), r.choice("ab")) for _ in range(r.randrange(1, 5))]
            for _ in range(r.choice((2, 2, 3)))
        ]
        self.seen = set()

    def run(self, scheduler):
        locks = {name: sync.Lock() for name in "ab"}
        bells = {name: sync.Doorbell() for name in "ab"}
        cells = {name: [Cell(), 0] for name in "xy"}
        logs = []

        def thread(number, program):
            log = logs[number]

            def read(name):
                scheduler.note_read(cells[name][0])
                log.append(cells[name][1])
                return cells[name][1]

            def write(name):
                scheduler.note_write(cells[name][0])
                cells[name][1] = (number, len(log))

            for kind, cell, other in program:
                log.append(kind)
                if kind == "lock":
                    with locks[other]:
                        write(cell)
                elif kind == "read":
                    scheduler.point("read")
                    read(cell)
                elif kind == "write":
                    scheduler.point("write")
                    write(cell)
                elif kind == "both":
                    scheduler.point("both")
                    read(cell)
                    scheduler.point("then")
                    write(cell)
                elif kind == "yield":
                    sync.yield_thread()
                    read(cell)
                elif kind == "ring":
                    bells[other].ring()
                elif kind == "wait":
                    log.append(bells[other].wait(0.5))
                elif kind == "choose":
                    if scheduler.choose(2, "which"):
                        write(cell)
                elif kind == "branch":
                    scheduler.point("branch")
                    if read(cell):
                        with locks[other]:
                            write("x" if cell == "y" else "y")

        threads = []
        for number, program in enumerate(self.programs):
            logs.append([])
            threads.append(scheduler.spawn(lambda n=number, p=program: thread(n, p), f"t{number}"))
        scheduler.join(*threads)
        self.seen.add((tuple(tuple(log) for log in logs), cells["x"][1], cells["y"][1]))


@pytest.mark.parametrize("part", range(4))
def test_reduced_explorations_see_every_outcome(part):
    checked = 0
    for seed in range(part, 120, 4):
        toy = RandomToy(seed)
        full = explore(toy, prune=False, budget=3000)
        if not full.complete:
            continue
        everything, toy.seen = toy.seen, set()
        cut = explore(toy)
        assert cut.complete
        assert toy.seen == everything, toy.programs
        toy.seen = set()
        reduced = reduce(toy)
        assert reduced.complete
        assert toy.seen == everything, toy.programs
        assert reduced.schedules <= full.schedules
        checked += 1
    assert checked > 8
