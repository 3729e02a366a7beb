"""Measure collectives of CPU devices over MPI beside mpi4py by hand.

Run it by ``mpiexec -n 2 python benchmarks/mpi_rates.py [FILE]``; rank 0 prints a table, and writes
all numbers as JSON. In each round both sides take one sample, in turn.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import machine
import numpy as np
from mpi4py import MPI

import hal
import hal.collectives

LIMIT = 60.0
MIB = 1 << 20
SIZES = (1 << 10, 64 << 10, MIB, 4 * MIB, 16 * MIB, 64 * MIB)
IN_FLIGHT = 128 * MIB
"""What the calls of a sample reduce together, at most, if they are not few."""
ROUNDS = 11

Call = Callable[[], object]


def sides(
    device: hal.Device, group: hal.collectives.Group, kind: str, size: int
) -> dict[str, Call]:
    """Return what does an operation on `size` bytes and waits for its end, by each side."""
    world, queue = MPI.COMM_WORLD, device.queue
    data = np.random.default_rng(group.rank).normal(size=size // 4).astype(np.float32)
    whole, other = device.upload(data), device.upload(data)
    mine, theirs = data.copy(), data.copy()
    by_hal: dict[str, Call] = {
        "all_reduce": lambda: queue.all_reduce(whole, group=group).wait(LIMIT),
        "broadcast": lambda: queue.broadcast(whole, group=group).wait(LIMIT),
        "all_to_all": lambda: queue.all_to_all(whole, other, group=group).wait(LIMIT),
    }
    by_hand: dict[str, Call] = {
        "all_reduce": lambda: world.Allreduce(MPI.IN_PLACE, mine),
        "broadcast": lambda: world.Bcast(mine),
        "all_to_all": lambda: world.Alltoall(mine, theirs),
    }
    return {"hal": by_hal[kind], "mpi4py": by_hand[kind]}


def measure(found: dict[str, Call], calls: int) -> dict[str, float]:
    """Let the sides take turns; return microseconds of a call, and hal's for one of the other's."""
    samples: dict[str, list[float]] = {name: [] for name in found}
    for number in range(ROUNDS + 1):
        for name in sorted(found, reverse=bool(number % 2)):
            MPI.COMM_WORLD.Barrier()
            begin = time.perf_counter()
            for _ in range(calls):
                found[name]()
            if number:
                samples[name].append((time.perf_counter() - begin) / calls * 1e6)
    pairs = zip(samples["hal"], samples["mpi4py"], strict=True)
    row = {name: statistics.median(each) for name, each in samples.items()}
    return row | {"ratio": statistics.median(ours / its for ours, its in pairs)}


def main(file: str | None = None) -> None:
    """Run all rows."""
    device = hal.create_device("cpu")
    rows: list[dict[str, Any]] = []
    with hal.collectives.join(device, timeout=LIMIT) as group:
        plan = [("all_reduce", size) for size in SIZES]
        plan += [(kind, size) for kind in ("broadcast", "all_to_all") for size in (MIB, 64 * MIB)]
        for kind, size in plan:
            calls = max(2, min(50, IN_FLIGHT // size))
            row = measure(sides(device, group, kind, size), calls)
            rows.append({"kind": kind, "bytes": size, "calls": calls, "us": row})
            if not group.rank:
                print(  # noqa: T201 - a table
                    f"{kind:12} {size:>10}", *[f"{name} {row[name]:.2f}" for name in row], sep="  "
                )
        if file is not None and not group.rank:
            told = {"machine": machine.facts(device), "ranks": group.size, "rows": rows}
            Path(file).write_text(json.dumps(told, indent=1) + "\n")
    device.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
