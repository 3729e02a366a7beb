"""Write random command buffers in which no two commands race."""

import random

import byte_model
from command_world import (
    DIRECT,
    GRID_POOL,
    GRID_SLOT,
    GRID_SLOT_SIZE,
    GRIDS,
    POOL,
    SIZES,
    SLOT_SIZE,
    SLOTS,
)

SHAPES = [1, 2, 5, (2, 2), (1, 2, 2), (3, 1, 2)]
BLOCKS = [1, 4, 32, (4, 2), (2, 2, 2)]


class Author:
    """Write random programs in which, with their tables, no two commands race."""

    def __init__(self, seed, *, hazards, direct=True):
        self.random = random.Random(seed)
        self.hazards = hazards
        self.data = [0, 1, 2, 3] * direct + [-1 - index for index in range(SLOTS)] * 2
        self.tables = [self.table() for _ in range(self.random.randint(1, 3))]
        self.program = []
        self.events = 0

    def table(self):
        """Return bindings; where bytes order the commands, of memories of their own."""
        pick = self.random
        pool = list(POOL) if self.hazards == "auto" else [*POOL, *POOL, 0, 1, 2]
        table = []
        for each in pick.sample(pool, SLOTS):
            base = 4 * pick.randint(0, (SIZES[each] - SLOT_SIZE) // 4)
            table.append((each, base, SLOT_SIZE))
        each = pick.choice(GRID_POOL)
        base = 4 * pick.randint(0, (SIZES[each] - GRID_SLOT_SIZE) // 4)
        return [*table, (each, base, GRID_SLOT_SIZE)]

    def write(self, length):
        """Return a program with so many commands, barriers and the like not counted."""
        count = 0
        while count < length:
            command = self.command()
            if any(byte_model.meets_itself(command, DIRECT, table) for table in self.tables):
                continue
            if self.hazards == "auto" or self.make_room(command):
                self.program.append(command)
                count += 1
            if self.hazards == "manual" and self.random.random() < 0.1:
                self.program.append(("signal", self.events))
                self.events += 1
        return self.program

    def make_room(self, command):
        """Order a command behind those that it would race with, or return False."""
        if not self.has_races(self.program, command):
            return self.random.random() < 0.95 or not self.program.append(("barrier",))
        way = self.random.choice(["barrier", "event", "event", "event", "skip"])
        if way == "event":
            for number in range(self.events):
                wait = ("wait", number)
                if not self.has_races([*self.program, wait], command):
                    self.program.append(wait)
                    return True
        if way == "barrier":
            self.program.append(("barrier",))
            return True
        return False

    def has_races(self, program, command):
        return any(
            byte_model.races([*program, command], DIRECT, table, first=len(program))
            for table in self.tables
        )

    def command(self):
        """Return a random command, which may touch itself or race."""
        pick = self.random
        kind = pick.choice(
            [
                *("fill", "fill", "update", "copy", "copy", "copy", "grid", "indirect", "indirect"),
                *("mix", "mix", "mix", "scramble", "scramble", "reverse", "reverse", "mark"),
            ]
        )
        if kind == "fill":
            width = pick.choice([1, 2, 4])
            place, offset, size = self.region(width)
            return kind, place, offset, pick.randbytes(width), size // width
        if kind == "update":
            place, offset, size = self.region()
            return kind, place, offset, pick.randbytes(size)
        if kind == "copy":
            place, offset, size = self.region()
            source, start, length = self.region()
            return kind, source, start, place, offset, min(size, length)
        if kind == "grid":
            return self.grid()
        shape = pick.choice(SHAPES) if pick.random() < 0.93 else pick.choice([0, (2, 0), (1, 1, 0)])
        grid = shape if isinstance(shape, tuple) else (shape,)
        if kind == "indirect":
            grid = self.grid_place()
            name = pick.choice(["mark", "mark", "mark", "mix", "scramble", "reverse"])
        else:
            kind, name = "launch", kind
        turns = pick.choice([0, 0, 0, 300, 3000, 30000])
        return kind, name, grid, pick.choice(BLOCKS), self.arguments(name), turns

    def arguments(self, name):
        pick = self.random
        key = pick.randrange(2**32)
        if name == "mix":
            x, y = self.region(), self.region()
            count = min(x[2], y[2])
            return ((*x[:2], count), (*y[:2], count), count, key)
        if name == "scramble":
            x = self.region(4)
            return (x, x[2] // 4, key)
        if name == "reverse":
            source, target = self.region(), self.region()
            count = min(source[2], target[2])
            return ((*source[:2], count), (*target[:2], count), count)
        place = self.region()
        return (place, place[2], key)

    def region(self, alignment=1):
        """Return a place, an offset and a size in it; often small, now and then all of it."""
        pick = self.random
        place = pick.choice(self.data)
        limit = SLOT_SIZE if place < 0 else DIRECT[place][2]
        offset = alignment * pick.randint(0, limit // alignment - 1)
        size = pick.choice([pick.randint(0, 16), pick.randint(0, 16), pick.randint(0, 64), limit])
        size = min(size, limit - offset)
        return place, offset, size - size % alignment

    def grid_place(self):
        return self.random.choice([GRIDS, GRID_SLOT]), 16 * self.random.randrange(3)

    def grid(self):
        """Return a command that makes a small grid, in memory where nothing else is."""
        pick = self.random
        place, offset = self.grid_place()
        shape = [pick.choice([0, 1, 1, 2, 3]) for _ in range(3)]
        way = pick.choice(["kernel", "update", "copy"])
        if way == "update":
            return "update", place, offset, b"".join(each.to_bytes(4, "little") for each in shape)
        if way == "copy":
            return "copy", *self.grid_place(), place, offset, 12
        turns = pick.choice([0, 3000, 30000])
        return "launch", "set_grid", (1,), 1, ((place, offset, 12), *shape), turns
