"""What each rank of a group does in the tests of collectives, and what numpy says of it.

The suite runs these programs on threads; a provider of several processes runs them with

    LAUNCHER python -m hal_conformance.ranks --device cpu --provider mpi

of which each rank prints one line of JSON: the programs, each with its error or null.
"""

from __future__ import annotations

import argparse
import json
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

import hal
import hal.collectives
from hal import bfloat16
from hal.errors import UnimplementedError

__all__ = ["LIMIT", "PROGRAMS", "Rank", "main"]

LIMIT: Final = 30.0
"""Seconds that a wait may take which must succeed."""

_DTYPES: Final = ("uint8", "int32", "int64", "float16", "bfloat16", "float32", "float64")
_OPS: Final = ("sum", "product", "min", "max", "average")


@dataclass
class Rank:
    """One rank: its group and its queue."""

    group: hal.collectives.Group
    queue: hal.Queue

    @property
    def number(self) -> int:
        """Its number."""
        return self.group.rank

    @property
    def size(self) -> int:
        """How many there are."""
        return self.group.size

    def upload(self, numbers: NDArray[Any], dtype: str) -> hal.Buffer:
        """Return a buffer of numbers, which are exact in the dtype."""
        if dtype == "bfloat16":
            bits = (numbers.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
            return self.queue.device.upload(bits.view(bfloat16.dtype()))
        return self.queue.device.upload(numbers.astype(dtype))

    def empty(self, count: int, dtype: str) -> hal.Buffer:
        """Return a buffer that holds other bytes than any result."""
        kind = bfloat16.dtype() if dtype == "bfloat16" else np.dtype(dtype)
        return self.queue.device.full(count, 99, kind)

    def check(self, buffer: hal.Buffer, expected: NDArray[Any]) -> None:
        """Check the numbers of a buffer."""
        found = _numbers_in(buffer)
        assert np.array_equal(found, expected.astype(found.dtype)), (
            f"rank {self.number} of {self.size}: {found} instead of {expected}"
        )


def _numbers_in(buffer: hal.Buffer) -> NDArray[Any]:
    found = buffer.numpy().reshape(-1)
    if bfloat16.is_bfloat16(buffer.dtype):
        return (found.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    return found


def numbers_of(rank: int, count: int) -> NDArray[np.float64]:
    """Return small whole numbers, none zero, that differ between ranks and places."""
    return ((np.arange(count) * 5 + rank * 3) % 7 + 1).astype(np.float64)


def _reduced(size: int, count: int, op: str) -> NDArray[np.float64]:
    parts = np.stack([numbers_of(rank, count) for rank in range(size)])
    if op == "average":
        return np.asarray(parts.sum(0) / size)
    functions: dict[str, Callable[..., Any]] = {
        "sum": np.sum,
        "product": np.prod,
        "min": np.min,
        "max": np.max,
    }
    return np.asarray(functions[op](parts, axis=0), np.float64)


def _in(numbers: NDArray[np.float64], dtype: str) -> NDArray[Any]:
    """Return numbers as they are once rounded to a dtype."""
    if dtype == "bfloat16":  # eight bits of fraction
        fractions, exponents = np.frexp(numbers)
        rounded: NDArray[np.float64] = np.ldexp(np.rint(fractions * 256) / 256, exponents)
        return rounded.astype(np.float32)
    return numbers.astype(dtype)


def reductions(rank: Rank) -> None:
    """Reduce with each op, of each dtype, in place and not, to all and to each root."""
    count = 13
    for dtype in _DTYPES:
        for op in _OPS:
            if op == "average" and np.dtype(_in(np.ones(1), dtype).dtype).kind != "f":
                continue
            mine = numbers_of(rank.number, count)
            # Product and average of the numbers of 16 bits are exact, or rounded alike.
            expected = _in(_reduced(rank.size, count, op), dtype)
            buffer, target = rank.upload(mine, dtype), rank.empty(count, dtype)
            rank.queue.all_reduce(buffer, target, group=rank.group, op=op).wait(LIMIT)
            rank.check(target, expected)
            rank.check(buffer, mine)
            rank.queue.all_reduce(buffer, group=rank.group, op=op).wait(LIMIT)
            rank.check(buffer, expected)
    for root in range(rank.size):
        buffer, target = rank.upload(mine, "float32"), rank.empty(count, "float32")
        rank.queue.reduce(buffer, target, group=rank.group, root=root, op="max").wait(LIMIT)
        told = rank.number == root
        expected = _reduced(rank.size, count, "max") if told else np.full(count, 99.0)
        rank.check(target, expected)
        rank.check(buffer, mine)
        rank.queue.reduce(buffer, group=rank.group, root=root).wait(LIMIT)
        rank.check(buffer, _reduced(rank.size, count, "sum") if told else mine)


def rounding(rank: Rank) -> None:
    """Sum numbers of 16 bits that are not exact: at most one rounding for each rank is lost."""
    for dtype, unit in (("float16", 2.0**-10), ("bfloat16", 2.0**-7)):
        values = np.array([1.0, 0.75 * unit, 0.5 * unit, 0.5 * unit])[: rank.size]
        mine = np.full(5, values[rank.number])
        buffer = rank.upload(mine, dtype)
        rank.queue.all_reduce(buffer, group=rank.group).wait(LIMIT)
        found = _numbers_in(buffer).astype(np.float64)
        limit = unit / 2 * max(rank.size - 1, 1)
        assert np.abs(found - values.sum()).max() <= limit, found


def moves(rank: Rank) -> None:
    """Broadcast, gather, scatter and exchange, in place and not."""
    number, size, count = rank.number, rank.size, 6
    queue, group = rank.queue, rank.group
    mine = numbers_of(number, count)
    every = np.concatenate([numbers_of(each, count) for each in range(size)])
    for root in range(size):
        buffer, target = rank.upload(mine, "int32"), rank.empty(count, "int32")
        queue.broadcast(buffer, target, group=group, root=root).wait(LIMIT)
        rank.check(target, numbers_of(root, count))
        rank.check(buffer, mine)
        queue.broadcast(buffer, group=group, root=root).wait(LIMIT)
        rank.check(buffer, numbers_of(root, count))
    whole = rank.empty(size * count, "float16")
    queue.all_gather(rank.upload(mine, "float16"), whole, group=group).wait(LIMIT)
    rank.check(whole, every)
    whole = rank.upload(np.where(np.arange(size * count) // count == number, every, 0), "int64")
    part = whole[number * count : (number + 1) * count]
    queue.all_gather(part, whole, group=group).wait(LIMIT)
    rank.check(whole, every)
    given = rank.upload(numbers_of(number, size * count), "bfloat16")
    target = rank.empty(count, "bfloat16")
    summed = _reduced(size, size * count, "sum")[number * count : (number + 1) * count]
    queue.reduce_scatter(given, target, group=group).wait(LIMIT)
    rank.check(target, summed)
    part = given[number * count : (number + 1) * count]
    queue.reduce_scatter(given, part, group=group).wait(LIMIT)
    rank.check(part, summed)
    given = rank.upload(numbers_of(number, size * count), "uint8")
    target = rank.empty(size * count, "uint8")
    queue.all_to_all(given, target, group=group).wait(LIMIT)
    place = slice(number * count, (number + 1) * count)
    expected = np.concatenate([numbers_of(each, size * count)[place] for each in range(size)])
    rank.check(target, expected)


def messages(rank: Rank) -> None:
    """Send around a ring in a batch, and several messages in their order."""
    number, size = rank.number, rank.size
    if size == 1:
        return
    after, before = (number + 1) % size, (number - 1) % size
    given, taken = rank.upload(numbers_of(number, 5), "float32"), rank.empty(5, "float32")
    with rank.group.batch():
        rank.queue.send(given, group=rank.group, peer=after)
        submission = rank.queue.receive(taken, group=rank.group, peer=before)
    submission.wait(LIMIT)
    rank.check(taken, numbers_of(before, 5))
    works = []
    buffers = [rank.upload(numbers_of(each, 3 + each), "int64") for each in range(4)]
    if number == 0:
        with rank.group.batch():
            works += [rank.queue.send(each, group=rank.group, peer=1) for each in buffers]
    if number == 1:
        buffers = [rank.empty(3 + each, "int64") for each in range(4)]
        works += [rank.queue.receive(each, group=rank.group, peer=0) for each in buffers]
    hal.wait_all(works, LIMIT)
    for each, buffer in enumerate(buffers):
        rank.check(buffer, numbers_of(each, 3 + each))


def batches(rank: Rank) -> None:
    """Fuse several collectives into one launch, with the waits and signals of all."""
    done, gate = hal.create_semaphore(), hal.create_semaphore()
    count = 4
    buffers = [rank.upload(numbers_of(rank.number + each, count), "float32") for each in range(3)]
    target = rank.empty(count * rank.size, "float32")
    with rank.group.batch():
        first = rank.queue.all_reduce(buffers[0], group=rank.group, wait=gate.at(1))
        rank.queue.broadcast(buffers[1], group=rank.group, root=rank.size - 1)
        last = rank.queue.all_gather(buffers[2], target, group=rank.group, signal=done.at(1))
    assert first is last
    assert not first.done
    gate.signal(1)
    done.wait(1, LIMIT)
    first.wait(LIMIT)
    rank.check(buffers[0], _reduced(rank.size, count, "sum"))
    rank.check(buffers[1], numbers_of(rank.size - 1 + 1, count))
    every = [numbers_of(each + 2, count) for each in range(rank.size)]
    rank.check(target, np.concatenate(every))
    with rank.group.batch():
        pass
    rank.queue.group_barrier(group=rank.group).wait(LIMIT)


def order(rank: Rank) -> None:
    """Order collectives on several queues, and other work before and behind them."""
    device, count = rank.queue.device, 16
    unordered = device.create_queue(ordered=False)
    second = device.create_queue()
    value, copied = rank.upload(np.zeros(count), "float32"), rank.empty(count, "float32")
    start = hal.create_semaphore()
    filled = rank.queue.fill(value, float(rank.number + 1), wait=start.at(1))
    total = unordered.all_reduce(value, group=rank.group, wait=filled)
    most = second.all_reduce(value, group=rank.group)
    twice = unordered.all_reduce(value, group=rank.group)
    read = rank.queue.copy(value, copied, wait=twice)
    hal.wait_any([], 0)
    assert not total.done
    assert not most.done
    start.signal(1)
    read.wait(LIMIT)
    size = rank.size
    rank.check(copied, np.full(count, size * (size + 1) / 2 * size * size))
    unordered.close()
    second.close()


def recordings(rank: Rank) -> None:
    """Execute a recording of collectives twice, on a slot and temporaries, between other work."""
    number, size, count = rank.number, rank.size, 12
    device, group = rank.queue.device, rank.group
    after, before = (number + 1) % size, (number - 1) % size
    every = rank.empty(count * size, "float32")
    least = rank.empty(count // size, "float32")
    with device.record(slots=[(np.float32, count * 4)], hazards="auto") as commands:
        spare = commands.alloca(count * 4, dtype=np.float32)
        commands.fill(spare, 3.0)
        value = commands.alloca(count * 4, dtype=np.float32)
        commands.copy(commands.slots[0], value)
        commands.copy(spare, every, size=4)
        commands.dealloca(spare)
        commands.all_reduce(value, group=group, name="total")
        commands.all_gather(value, every, group=group)
        commands.reduce_scatter(commands.slots[0], least, group=group, op="min")
        if size > 1:
            with group.batch():
                commands.send(value, group=group, peer=after)
                commands.receive(commands.slots[0], group=group, peer=before)
        commands.broadcast(value, group=group, root=size - 1)
        commands.barrier()
        commands.group_barrier(group=group)
    assert commands.lowering == "parts"
    for shift in range(2):
        mine = rank.upload(numbers_of(number + shift, count), "float32")
        other = rank.upload(np.ones(count), "float32")
        done = rank.queue.execute(commands, bindings=[mine])
        rank.queue.all_reduce(other, group=group).wait(LIMIT)
        done.wait(LIMIT)
        parts = np.stack([numbers_of(each + shift, count) for each in range(size)])
        total = parts.sum(0)
        rank.check(every, np.concatenate([total] * size))
        rank.check(mine, total if size > 1 else numbers_of(shift, count))
        rank.check(other, np.full(count, float(size)))
        length = count // size
        rank.check(least, parts.min(0)[number * length : (number + 1) * length])


def nothing(rank: Rank) -> None:
    """Run operations on no elements: they order and signal."""
    done = hal.create_semaphore()
    empty = rank.queue.device.allocate(0, dtype=np.float32)
    other = rank.queue.device.allocate(0, dtype=np.float32)
    rank.queue.all_reduce(empty, group=rank.group)
    rank.queue.all_gather(empty, other, group=rank.group)
    rank.queue.all_to_all(empty, other, group=rank.group)
    rank.queue.broadcast(empty, group=rank.group)
    rank.queue.group_barrier(group=rank.group, signal=done.at(1))
    done.wait(1, LIMIT)


def large(rank: Rank) -> None:
    """Reduce more than any small message has."""
    count = 300_001
    buffer = rank.upload(numbers_of(rank.number, count), "float32")
    rank.queue.all_reduce(buffer, group=rank.group).wait(LIMIT)
    rank.check(buffer, _reduced(rank.size, count, "sum"))


def parts(rank: Rank) -> None:
    """Split the group by parity, in the opposite order, and leave the last rank out."""
    number, size = rank.number, rank.size
    color = None if size > 2 and number == size - 1 else number % 2
    part = rank.group.split(color, key=-number, timeout=LIMIT)
    if color is None:
        assert part is None
        rank.queue.group_barrier(group=rank.group).wait(LIMIT)
        return
    assert part is not None
    members = [each for each in range(size - (size > 2)) if each % 2 == color][::-1]
    assert (part.rank, part.size) == (members.index(number), len(members))
    target = rank.empty(len(members), "int32")
    mine = rank.upload(np.array([float(number)]), "int32")
    rank.queue.all_gather(mine, target, group=part).wait(LIMIT)
    rank.check(target, np.array(members, np.float64))
    part.close()
    rank.queue.group_barrier(group=rank.group).wait(LIMIT)


PROGRAMS: Final[dict[str, Callable[[Rank], None]]] = {
    each.__name__: each
    for each in (
        *(reductions, rounding, moves, messages, batches, order, recordings, nothing, large, parts),
    )
}


def main(arguments: list[str] | None = None) -> int:
    """Run every program as one rank of those that a launcher has started."""
    parser = argparse.ArgumentParser(prog="python -m hal_conformance.ranks")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--provider")
    parser.add_argument("programs", nargs="*", default=[])
    chosen = parser.parse_args(arguments)
    found: dict[str, str | None] = {}
    with hal.create_device(chosen.device) as device:
        group = hal.collectives.join(device, provider=chosen.provider, timeout=LIMIT)
        for name in chosen.programs or PROGRAMS:
            try:
                PROGRAMS[name](Rank(group, device.queue))
                found[name] = None
            except UnimplementedError as error:
                found[name] = f"unimplemented: {error}"
            except Exception:  # noqa: BLE001 - reported
                found[name] = traceback.format_exc()
        result = {"rank": group.rank, "size": group.size, "provider": group.provider}
        group.close()
    sys.stdout.write(json.dumps({**result, "programs": found}) + "\n")
    sys.stdout.flush()
    return int(any(found.values()))


if __name__ == "__main__":
    sys.exit(main())
