"""Run recordings on plain bytes: what hal's command buffers must come to.

Shares no code with hal. A program is a list of commands, tuples whose first
entry is their kind; memory is a list of bytearrays. A place in memory is named
by an int: 0 and more are buffers given directly, -1 and less are slots 0 and
more. A table has ``(memory, base, size)`` for each buffer, one for each slot.

Commands are carried out one after another, which is right for any program in
which no two commands race: `races` says which do, from barriers and events.
"""

import math

__all__ = ["accesses", "describe", "horizons", "meet", "meets_itself", "races", "run"]

WORD = 1 << 32


# Kernels: each takes the block count along three axes, and its arguments as
# bytearrays with an offset, or ints.


def mix(grid, x, y, count, key):
    """Take x to 3 x + y + key + index, byte for byte."""
    if math.prod(grid):
        (mine, at), (other, start) = x, y
        for index in range(count):
            value = 3 * mine[at + index] + other[start + index] + key + index
            mine[at + index] = value % 256


def scramble(grid, x, count, key):
    """Turn 32-bit words by seven bits and change some of them."""
    if math.prod(grid):
        memory, at = x
        for index in range(count):
            place = slice(at + 4 * index, at + 4 * index + 4)
            word = int.from_bytes(memory[place], "little")
            word = (word << 7 | word >> 25) % WORD ^ (key + 2654435761 * index) % WORD
            memory[place] = word.to_bytes(4, "little")


def reverse(grid, source, target, count):
    """Write the bytes of one range, last first, to another."""
    if math.prod(grid):
        (read, start), (written, at) = source, target
        taken = read[start : start + count]
        for index in range(count):
            written[at + index] = taken[count - 1 - index]


def set_grid(grid, counts, x, y, z):
    """Write three 32-bit numbers."""
    if math.prod(grid):
        memory, at = counts
        for index, number in enumerate((x, y, z)):
            memory[at + 4 * index : at + 4 * index + 4] = number.to_bytes(4, "little")


def mark(grid, out, count, key):
    """Write one byte for each block, as many as there is room for."""
    memory, at = out
    for block in range(min(math.prod(grid), count)):
        memory[at + block] = (key + 7 * block) % 256


KERNELS = {"mix": mix, "scramble": scramble, "reverse": reverse, "set_grid": set_grid, "mark": mark}
WRITES = {"mix": (0,), "scramble": (0,), "reverse": (1,), "set_grid": (0,), "mark": (0,)}
"""Which arguments a kernel writes to; it reads from the other ranges."""


# Programs


def run(program, memory, direct, table):
    """Carry a program out, in the order in which it was recorded."""
    for command in program:
        kind, *given = command
        if kind == "fill":
            place, offset, pattern, count = given
            target, base = _locate(place, direct, table)
            at = base + offset
            memory[target][at : at + len(pattern) * count] = pattern * count
        elif kind == "update":
            place, offset, data = given
            target, base = _locate(place, direct, table)
            memory[target][base + offset : base + offset + len(data)] = data
        elif kind == "copy":
            source, source_offset, place, offset, size = given
            read, start = _locate(source, direct, table)
            target, base = _locate(place, direct, table)
            taken = memory[read][start + source_offset : start + source_offset + size]
            memory[target][base + offset : base + offset + size] = taken
        elif kind in {"launch", "indirect"}:
            name, grid, _, arguments = given[:4]
            if kind == "indirect":
                place, offset = grid
                target, base = _locate(place, direct, table)
                at = base + offset
                grid = [
                    int.from_bytes(memory[target][at + step : at + step + 4], "little")
                    for step in (0, 4, 8)
                ]
            values = []
            for argument in arguments:
                if isinstance(argument, tuple):
                    place, offset, _ = argument
                    target, base = _locate(place, direct, table)
                    values.append((memory[target], base + offset))
                else:
                    values.append(argument)
            KERNELS[name](grid, *values)


def _locate(place, direct, table):
    """Return which memory a buffer or a slot is in, and where it begins there."""
    return (direct[place] if place >= 0 else table[-1 - place])[:2]


def accesses(command, direct, table):
    """Return what a command may touch: ``(memory, start, stop, writes)``, zero bytes left out."""
    kind, *given = command
    found = []
    if kind == "fill":
        found = [(given[0], given[1], len(given[2]) * given[3], True)]
    elif kind == "update":
        found = [(given[0], given[1], len(given[2]), True)]
    elif kind == "copy":
        found = [(given[0], given[1], given[4], False), (given[2], given[3], given[4], True)]
    elif kind in {"launch", "indirect"}:
        name, grid, _, arguments = given[:4]
        if kind == "launch" and not math.prod(grid):
            return []
        found = [
            (*argument, index in WRITES[name])
            for index, argument in enumerate(arguments)
            if isinstance(argument, tuple)
        ]
        if kind == "indirect":
            found.append((*grid, 12, False))
    located = []
    for place, offset, size, writes in found:
        memory, base = _locate(place, direct, table)
        if size:
            located.append((memory, base + offset, base + offset + size, writes))
    return located


def horizons(program):
    """Return, for each command, before which index all are ordered before it.

    A barrier orders all before it with all after it; an event orders all before
    its signal with all after a wait for it.
    """
    horizon, signals, found = 0, {}, []
    for index, command in enumerate(program):
        if command[0] == "barrier":
            horizon = index
        elif command[0] == "signal":
            signals[command[1]] = index
        elif command[0] == "wait":
            horizon = max(horizon, signals[command[1]])
        found.append(horizon)
    return found


def races(program, direct, table, first=0):
    """Return pairs of commands that touch the same bytes, one writing, in no order.

    Only those whose second one is `first` or later.
    """
    touched = [accesses(command, direct, table) for command in program]
    limits = horizons(program)
    return [
        (earlier, later)
        for later in range(first, len(program))
        for earlier in range(limits[later], later)
        if meet(touched[earlier], touched[later])
    ]


def meet(some, others):
    """Return whether two lists of accesses have a byte in common that one of them writes."""
    return any(
        one[0] == other[0] and one[1] < other[2] and other[1] < one[2] and (one[3] or other[3])
        for one in some
        for other in others
    )


def meets_itself(command, direct, table):
    """Return whether a command writes to bytes that it touches in another place, too."""
    touched = accesses(command, direct, table)
    return any(meet(touched[:index], touched[index : index + 1]) for index in range(len(touched)))


def describe(program):
    """Return a program as text, a command a line."""
    return "\n".join(f"{index:4} {command}" for index, command in enumerate(program))
