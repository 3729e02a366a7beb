"""What each rank does in the tests of results over MPI; returns what is wrong (ranks_that_fail)."""

import contextlib
import itertools
import threading
from pathlib import Path

import numpy as np

import hal

LIMIT = 20.0


def streams(group):
    """Each kind of operation, of few elements and of many; return what went wrong."""
    device, queue, size, rank = group.device, group.device.queue, group.size, group.rank
    wrong = []
    # The second by steps, or in messages though a rank's piece is small; the last by more of either
    for count in (24, 399_996, 1_200_006):
        own = np.arange(count, dtype=np.float32) % 251 + rank
        every = [np.arange(count, dtype=np.float32) % 251 + each for each in range(size)]
        part, place = count // size, rank * (count // size) * 4
        whole, other = device.upload(own), device.upload(own)
        gathered = device.upload(np.concatenate(every))
        mine = gathered.subspan(rank * count * 4, count * 4)
        piece, copied = device.upload(own[:part]), device.upload(own)
        scattered, root = device.upload(own), size - 1
        given = device.upload(own)
        work = [
            queue.all_reduce(whole, group=group, op="average"),
            queue.reduce(other, group=group, root=root),
            queue.all_gather(mine, gathered, group=group),
            queue.reduce_scatter(given, piece, group=group, op="max"),
            queue.reduce_scatter(
                scattered, scattered.subspan(place, part * 4), group=group, op="min"
            ),
            queue.broadcast(copied, group=group, root=root),
            queue.group_barrier(group=group),
        ]
        target = device.upload(np.zeros(count, np.float32))
        work.append(queue.all_to_all(given, target, group=group))
        hal.wait_all(work, timeout=LIMIT)
        mean = np.add.reduce(every) / np.float32(size)
        own_part = slice(rank * part, rank * part + part)
        expected = {
            "all_reduce": (whole, mean),
            "reduce": (other, np.add.reduce(every) if rank == root else own),
            "all_gather": (gathered, np.concatenate(every)),
            "reduce_scatter": (piece, every[-1][own_part]),
            "in place": (
                scattered,
                np.concatenate([own[: rank * part], every[0][own_part], own[rank * part + part :]]),
            ),
            "broadcast": (copied, every[-1]),
            "all_to_all": (target, np.concatenate([each[own_part] for each in every])),
        }
        for kind, (buffer, values) in expected.items():
            if not np.array_equal(buffer.numpy(), values):
                wrong.append(f"{kind} of {count}")
    threads = [
        each.name for each in threading.enumerate() if each.name.startswith("hal-mpi tested")
    ]
    return {"wrong": wrong, "threads": threads}


def numbers(group):
    """Sums wrap around, and each rank has a number that is none; return what is not as numpy's."""
    device, queue, size, rank, wrong = group.device, group.device.queue, group.size, group.rank, []
    for count, dtype in itertools.product((24, 120_000), ("int8", "uint8", "int16", "uint16")):
        every = [np.arange(count).astype(dtype) * np.array(7 + each, dtype) for each in range(size)]
        buffer = device.upload(every[rank])
        queue.all_reduce(buffer, group=group).wait(LIMIT)
        if not np.array_equal(buffer.numpy(), np.add.reduce(every, dtype=dtype)):
            wrong.append(f"sum of {count} {dtype}")
    for count, dtype in itertools.product((24, 120_000), ("float16", "float32", "float64")):
        own = np.full(count, rank, dtype)
        own[[rank, count - 1 - rank]] = np.nan
        for op, kind in itertools.product(("min", "max"), ("all_reduce", "reduce")):
            buffer = device.upload(own)
            getattr(queue, kind)(buffer, group=group, op=op).wait(LIMIT)
            expected = np.full(count, 0 if op == "min" else size - 1, dtype)
            expected[:size] = expected[count - size :] = np.nan
            has_it = kind == "all_reduce" or rank == 0
            if has_it and not np.array_equal(buffer.numpy(), expected, equal_nan=True):
                wrong.append(f"{kind}, {op} of {count} {dtype}")
    return {"wrong": wrong}


def batches(group):
    """Rank 0 submits in batches what the others submit one by one."""
    device, wrong = group.device, []
    for count in (8, 120_000):
        values = np.full(count, 1.0 + group.rank, np.float32)
        reduced, copied = device.upload(values), device.upload(values)
        with group.batch() if group.rank == 0 else contextlib.nullcontext():
            work = [
                device.queue.all_reduce(reduced, group=group),
                device.queue.broadcast(copied, group=group, root=group.size - 1),
            ]
        hal.wait_all(work, timeout=LIMIT)
        for buffer, value in ((reduced, sum(range(group.size + 1))), (copied, group.size)):
            if not (buffer.numpy() == value).all():
                wrong.append([count, *buffer.numpy()[:1].tolist()])
    return {"wrong": wrong}


def memories():
    """Return how many regions of groups this process has mapped."""
    return Path("/proc/self/maps").read_text().count("hal-group")


def shared(group):
    """Return whether the ranks share memory, and what is wrong with their operations."""
    wrong = [each for case in (streams, numbers, batches) for each in case(group)["wrong"]]
    return {"wrong": wrong, "memories": memories()}


by_messages = shared


def odd_address(group):
    """Rank 0's numbers begin at an odd address; return those that are reduced."""
    device, begin = group.device, 1 - group.rank
    found = []
    for count in (3, 120_000):
        memory = device.zeros(4 * count + 4, np.uint8)
        numbers = memory.subspan(begin, 4 * count).view(np.float32)
        own = device.upload(np.full(count, 1.0 + group.rank, np.float32))
        device.queue.copy(own, numbers)
        device.queue.all_reduce(numbers, group=group, op="average").wait(LIMIT)
        found += set(numbers.numpy().tolist())
    return {"found": found}
