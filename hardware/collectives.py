"""Measure collectives over the GPUs of one host: ``python hardware/collectives.py --devices 2``.

Each rank is a process, or with ``--threads`` a thread. In each round every side takes one sample,
and the order changes: hal, the library by itself (*raw*), and PyTorch where it is there. Then a
training step whose gradients are reduced while it computes, by hal and by hand, and a semaphore
that two GPUs signal in turn. Rank 0 prints tables, and writes all numbers as JSON.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import importlib
import importlib.util
import json
import pickle
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import hal
import hal.collectives

LIMIT = 60.0
MIB = 1 << 20
SIZES = (64, 1 << 10, 16 << 10, 256 << 10, MIB, 4 * MIB, 16 * MIB, 64 * MIB, 256 * MIB)
QUICK_SIZES = (64, 16 << 10)
IN_FLIGHT = 512 * MIB
"""What the calls of a sample move together, at most, if they are not few."""
OTHERS = ("all_gather", "reduce_scatter", "broadcast", "all_to_all")
LAYERS, GRADIENT = 32, 32 * MIB
HOPS = 200
SOURCE = """
extern "C" __global__ void HAL_BLOCK(256) burn(float* x, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  float a = x[i];
  for (int k = 0; k < n; ++k) a = a * 0.999f + 0.001f;
  x[i] = a;
}
"""

Call = Callable[[], Any]


class Side(NamedTuple):
    """One way to do something: the call, and what waits for the end of the last one."""

    call: Call
    end: Callable[[Any], object]


class Rank:
    """One rank: its device, its group, and the sides that are there."""

    def __init__(self, options: argparse.Namespace, number: int, folder: str) -> None:
        self.options, self.number, self.size = options, number, options.devices
        self.folder = Path(folder)
        self.device = hal.create_device(f"{options.backend}:{number}")
        self.group = hal.collectives.join(
            self.device,
            rank=number,
            size=self.size,
            rendezvous=f"file://{folder}/id",
            timeout=LIMIT,
        )
        self.second = self.device.create_queue()  # raw calls are on its stream
        self.stream = self.second.stream_handle
        # The raw side calls the library itself.
        native = self.group._native  # noqa: SLF001
        self.library, self.comm = native._library._library, native._comm  # noqa: SLF001
        self.cuda: Any = importlib.import_module("cuda.bindings.driver")
        self.torch: Any = None
        if not options.threads and importlib.util.find_spec("torch") is not None:
            self.torch = importlib.import_module("torch")
            self.torch.cuda.set_device(number)
            self.torch.distributed.init_process_group(
                "nccl", init_method=f"file://{folder}/torch", rank=number, world_size=self.size
            )

    def meet(self) -> None:
        """Wait for the other ranks."""
        self.device.queue.group_barrier(group=self.group).wait(LIMIT)

    def synchronize(self, _: object = None) -> None:
        """Wait for the raw side's stream."""
        self.cuda.cuStreamSynchronize(self.stream)

    def sides(self, kind: str, size: int) -> dict[str, Side]:
        """Return who can do an operation, on `size` bytes in all."""
        count = size // 4
        part = max(count // self.size, 1)
        # Sums grow beyond all numbers in the end; the time does not depend on them.
        data = np.random.default_rng(self.number).normal(size=count).astype(np.float32)
        whole, other = self.device.upload(data), self.device.upload(data)
        mine = self.device.upload(data[:part])
        group, queue, comm, stream = self.group, self.device.queue, self.comm, self.stream
        ours: dict[str, Call] = {
            "all_reduce": lambda: queue.all_reduce(whole, group=group),
            "all_gather": lambda: queue.all_gather(mine, whole, group=group),
            "reduce_scatter": lambda: queue.reduce_scatter(whole, mine, group=group),
            "broadcast": lambda: queue.broadcast(whole, group=group),
            "all_to_all": lambda: queue.all_to_all(whole, other, group=group),
        }
        a, b, library = whole.address, mine.address, self.library
        raw: dict[str, Call] = {
            "all_reduce": lambda: library.ncclAllReduce(a, a, count, 7, 0, comm, stream),
            "all_gather": lambda: library.ncclAllGather(b, a, part, 7, comm, stream),
            "reduce_scatter": lambda: library.ncclReduceScatter(a, b, part, 7, 0, comm, stream),
            "broadcast": lambda: library.ncclBroadcast(a, a, count, 7, 0, comm, stream),
        }
        found = {"hal": Side(ours[kind], lambda last: last.wait(LIMIT))}
        if kind in raw:
            # The buffers live as long as the side.
            found["raw"] = Side(raw[kind], lambda _, kept=(whole, mine): self.synchronize(kept))
        if self.torch is not None:
            found["PyTorch"] = self._by_torch(kind, data, part)
        return found

    def _by_torch(self, kind: str, data: Any, part: int) -> Side:
        torch, distributed = self.torch, self.torch.distributed
        whole = torch.from_numpy(data).cuda()
        other, mine = whole.clone(), whole[:part].clone()
        calls: dict[str, Call] = {
            "all_reduce": lambda: distributed.all_reduce(whole),
            "all_gather": lambda: distributed.all_gather_into_tensor(whole, mine),
            "reduce_scatter": lambda: distributed.reduce_scatter_tensor(mine, whole),
            "broadcast": lambda: distributed.broadcast(whole, 0),
            "all_to_all": lambda: distributed.all_to_all_single(other, whole),
        }
        return Side(calls[kind], lambda _: torch.cuda.current_stream().synchronize())

    def close(self) -> None:
        """End what was opened."""
        if self.torch is not None:
            self.torch.distributed.destroy_process_group()
        self.group.close()
        self.device.close()


def measure(rank: Rank, sides: dict[str, Side], calls: int, rounds: int) -> dict[str, Any]:
    """Let the sides take turns; return microseconds of a call, and of one with its end."""
    called: dict[str, list[float]] = {name: [] for name in sides}
    ended: dict[str, list[float]] = {name: [] for name in sides}
    names = list(sides)
    gc.collect()
    gc.disable()
    for number in range(rounds + 1):
        for name in names[number % len(names) :] + names[: number % len(names)]:
            side, last = sides[name], None
            rank.meet()
            begin = time.perf_counter()
            for _ in range(calls):
                last = side.call()
            done = time.perf_counter()
            side.end(last)
            if number:
                called[name].append((done - begin) / calls * 1e6)
                ended[name].append((time.perf_counter() - begin) / calls * 1e6)
    gc.enable()
    return {
        name: {
            "call": statistics.median(called[name]),
            "us": statistics.median(ended[name]),
            "least": min(ended[name]),
            "of it": statistics.median(
                ours / its for ours, its in zip(ended["hal"], ended[name], strict=True)
            )
            if "hal" in sides
            else None,
        }
        for name in names
    }


def rates(rank: Rank) -> list[dict[str, Any]]:
    """Time the operations by size, in a row and one by one."""
    quick = rank.options.quick
    rounds = 2 if quick else 15
    rows = []
    sizes = QUICK_SIZES if quick else SIZES
    plan = [("all_reduce", size, 1) for size in sizes[:1]]
    plan += [("all_reduce", size, max(5, min(100, IN_FLIGHT // size))) for size in sizes]
    few = sizes[-1:] if quick else (64 << 10, 64 * MIB)
    plan += [(kind, size, max(5, min(100, IN_FLIGHT // size))) for kind in OTHERS for size in few]
    for kind, size, calls in plan:
        sides = rank.sides(kind, size)
        found = measure(rank, sides, calls, rounds)
        share = (2 if kind == "all_reduce" else 1) * (rank.size - 1) / rank.size
        if kind == "broadcast":
            share = 1
        for each in found.values():
            each["GB/s"] = size * share / each["us"] / 1e3
        rows.append({"kind": kind, "bytes": size, "calls": calls, "sides": found})
        say(rank, f"{kind:14} {size:>10} x {calls:<3}", found)
    return rows


class Steps:
    """A training step: layers forwards, then backwards, where each has its gradient reduced."""

    def __init__(self, rank: Rank, blocks: int, forward: int, backward: int) -> None:
        self.rank, self.blocks, self.rounds = rank, blocks, (forward, backward)
        device, quick = rank.device, rank.options.quick
        self.layers, size = (4, 1 << 10) if quick else (LAYERS, GRADIENT)
        self.kernel = device.compile(SOURCE)["burn"]
        self.numbers = device.zeros(blocks * 256, np.float32)
        self.gradients = [device.zeros(size // 4, np.float32) for _ in range(self.layers)]
        self.exchange = device.create_queue()
        self.ready, self.reduced = hal.create_semaphore(), hal.create_semaphore()
        self.count = self.steps = 0
        # By hand
        cuda = rank.cuda
        self.streams = [cuda.cuStreamCreate(1)[1] for _ in range(2)]
        self.events = [cuda.cuEventCreate(2)[1] for _ in range(self.layers + 1)]
        cuda.cuEventRecord(self.events[-1], self.streams[1])

    def by_hal(self, *, compute: bool = True, reduce: bool = True) -> hal.Submission:
        """Submit a step; the next waits for the last gradient."""
        queue, (forward, backward) = self.rank.device.queue, self.rounds
        wait = self.reduced.at(self.steps) if compute and reduce else ()
        last = None
        if compute:
            for _ in range(self.layers):
                args = (self.numbers, forward)
                last = queue.dispatch(self.kernel, grid=self.blocks, args=args, wait=wait)
                wait = ()
        for layer in reversed(range(self.layers)):
            before = ()
            if compute:
                self.count += 1
                before = self.ready.at(self.count)
                args = (self.numbers, backward)
                last = queue.dispatch(self.kernel, grid=self.blocks, args=args, signal=before)
            if reduce:
                signal = ()
                if layer == 0:
                    self.steps += 1
                    signal = self.reduced.at(self.steps)
                last = self.exchange.all_reduce(
                    self.gradients[layer], group=self.rank.group, wait=before, signal=signal
                )
        return last

    def by_hand(self, *, compute: bool = True, reduce: bool = True) -> None:
        """Submit a step by the driver's and the library's own calls."""
        cuda, (compute_stream, exchange) = self.rank.cuda, self.streams
        function = cuda.CUfunction(self.kernel._function)  # noqa: SLF001 - as raw as can be
        types = (ctypes.c_void_p, ctypes.c_int)

        def launch(rounds: int) -> None:
            given = ((self.numbers.address, rounds), types)
            cuda.cuLaunchKernel(function, self.blocks, 1, 1, 256, 1, 1, 0, compute_stream, given, 0)

        if compute:
            if reduce:
                cuda.cuStreamWaitEvent(compute_stream, self.events[-1], 0)
            for _ in range(self.layers):
                launch(self.rounds[0])
        for layer in reversed(range(self.layers)):
            if compute:
                launch(self.rounds[1])
                cuda.cuEventRecord(self.events[layer], compute_stream)
                cuda.cuStreamWaitEvent(exchange, self.events[layer], 0)
            if reduce:
                gradient = self.gradients[layer]
                place, count = gradient.address, gradient.size // 4
                self.rank.library.ncclAllReduce(
                    place, place, count, 7, 0, self.rank.comm, int(exchange)
                )
        if reduce:
            cuda.cuEventRecord(self.events[-1], exchange)

    def finish(self, _: object = None) -> None:
        """Wait for both streams."""
        for stream in self.streams:
            self.rank.cuda.cuStreamSynchronize(stream)

    def close(self) -> None:
        """Give back what is not hal's."""
        for stream in self.streams:
            self.rank.cuda.cuStreamDestroy(stream)
        for event in self.events:
            self.rank.cuda.cuEventDestroy(event)

    def sides(self) -> dict[str, Side]:
        """Return the parts and the wholes."""

        def wait(last: hal.Submission) -> None:
            last.wait(LIMIT)

        return {
            "hal": Side(self.by_hal, wait),
            "compute": Side(lambda: self.by_hal(reduce=False), wait),
            "communication": Side(lambda: self.by_hal(compute=False), wait),
            "by hand": Side(self.by_hand, self.finish),
            "by hand, compute": Side(lambda: self.by_hand(reduce=False), self.finish),
            "by hand, communication": Side(lambda: self.by_hand(compute=False), self.finish),
        }


def overlap(rank: Rank) -> list[dict[str, Any]]:
    """Time a step beside its parts, for kernels that fill the GPU and ones that do not."""
    quick = rank.options.quick
    units = rank.device.info.compute_units or 4
    rows = []
    for name, blocks in (("some left free", units * 3 // 4), ("filled", units * 64)):
        probe = Steps(rank, blocks, 0, 100 if quick else 20_000)
        parts = {name: side for name, side in probe.sides().items() if name.startswith("com")}
        took = measure(rank, parts, 2, 1 if quick else 3)
        probe.close()
        each = took["communication"]["us"] / max(took["compute"]["us"], 1.0)
        # Every rank takes rank 0's numbers.
        given = rank.device.upload(np.array([probe.rounds[1] * each], np.float64))
        rank.device.queue.broadcast(given, group=rank.group).wait(LIMIT)
        balanced = max(1, int(given.numpy()[0]))
        for times in (1, 2):
            backward = balanced * times
            steps = Steps(rank, blocks, backward // 2, backward)
            found = measure(rank, steps.sides(), 3, 2 if quick else 9)
            steps.close()
            row: dict[str, Any] = {"kernels": name, "backward": f"{times} x communication"}
            row |= {"layers": steps.layers, "gradient": steps.gradients[0].size}
            for whose, prefix in (("hal", ""), ("by hand", "by hand, ")):
                longer = max(
                    found[f"{prefix}{part}"]["us"] for part in ("compute", "communication")
                )
                row[whose] = found[whose]["us"] / longer
            rows.append({**row, "sides": found})
            told = (
                f"{name}, {times} x: {row['hal']:.3f} of the longer, by hand {row['by hand']:.3f}"
            )
            say(rank, told, found)
    return rows


def ping_pong(rank: Rank) -> dict[str, float]:
    """Time a semaphore that two GPUs signal in turn: in one process, and in two."""
    if rank.number > 0:
        return {}
    quick = rank.options.quick
    hops, rounds = (20, 2) if quick else (HOPS, 15)
    found = {}
    mine = rank.device.zeros(64, np.float32)
    # Where there is one GPU, it is opened twice.
    spec = f"{rank.options.backend}:{min(1, rank.size - 1)}"
    with hal.create_device(spec) as other:
        theirs = other.zeros(64, np.float32)
        for name, shareable in (("one process", False), ("one process, shareable", True)):
            turn = hal.create_semaphore(shareable=shareable)

            def both(start: int, turn: hal.Semaphore = turn) -> None:
                half(mine, turn, start, hops)
                half(theirs, turn, start + 1, hops)

            found[name] = hop_of(both, turn, hops, rounds)
    turn = hal.create_semaphore(shareable=True)
    given = pickle.dumps((turn.share(), spec, hops, rounds)).hex()
    with subprocess.Popen([sys.executable, __file__, "--turns", given]) as child:
        turn.wait(1, LIMIT)  # it is there
        found["two processes"] = hop_of(
            lambda start: half(mine, turn, start + 1, hops), turn, hops, rounds, 1
        )
        child.wait(LIMIT)
    for name, value in found.items():
        print(f"semaphore, {name}: {value:.1f} us a hop", flush=True)  # noqa: T201
    return found


def half(buffer: hal.Buffer, turn: hal.Semaphore, first: int, hops: int) -> None:
    """Submit every other hop of a round."""
    for hop in range(first, first + hops, 2):
        buffer.device.queue.fill(buffer, 1.0, wait=turn.at(hop), signal=turn.at(hop + 1))


def hop_of(
    play: Callable[[int], object], turn: hal.Semaphore, hops: int, rounds: int, begun: int = 0
) -> float:
    """Return the microseconds of a hop, the median of some rounds."""
    taken = []
    for number in range(rounds):
        begin = time.perf_counter()
        play(number * hops)
        turn.wait((number + 1) * hops + begun, LIMIT)
        taken.append((time.perf_counter() - begin) / hops * 1e6)
    return statistics.median(taken[1:])


def take_turns(given: str) -> None:
    """Play the part of the other process of `ping_pong`."""
    ticket, spec, hops, rounds = pickle.loads(bytes.fromhex(given))
    with hal.create_device(spec) as device:
        turn, mine = device.open(ticket), device.zeros(64, np.float32)
        turn.signal(1)
        hop_of(lambda start: half(mine, turn, start + 2, hops), turn, hops, rounds, 1)


PARTS: dict[str, Callable[[Rank], Any]] = {
    "rates": rates,
    "overlap": overlap,
    "semaphore": ping_pong,
}


def say(rank: Rank, title: str, found: dict[str, Any]) -> None:
    """Print a row."""
    if rank.number == 0:
        words = []
        for name, each in found.items():
            rate = f" {each['GB/s']:.0f} GB/s" if "GB/s" in each else ""
            words.append(f"{name} {each['us']:.1f} (call {each['call']:.1f}){rate}")
        print(f"{title}: {'; '.join(words)}", flush=True)  # noqa: T201


def run(options: argparse.Namespace, number: int, folder: str) -> None:
    """Run the parts as one rank."""
    rank = Rank(options, number, folder)
    found: dict[str, Any] = {
        "machine": {
            "device": rank.device.info.name,
            "driver": rank.device.info.driver,
            "ranks": rank.size,
            "torch": rank.torch and rank.torch.__version__,
            "date": time.strftime("%Y-%m-%d"),
        }
    }
    for name in options.only:
        found[name] = PARTS[name](rank)
        if number == 0 and options.json:
            options.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    rank.close()


def main() -> int:
    """Start the ranks, or be one."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--backend", default="cuda")
    parser.add_argument("--devices", type=int, default=2)
    parser.add_argument("--threads", action="store_true", help="ranks are threads")
    parser.add_argument("--quick", action="store_true", help="small and few, as a test of this")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--json", type=Path)
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    parser.add_argument("--turns", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.turns is not None:
        take_turns(options.turns)
        return 0
    if options.rank is not None:
        run(options, options.rank, options.folder)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        if options.threads:
            with ThreadPoolExecutor(options.devices) as ranks:
                list(ranks.map(lambda number: run(options, number, folder), range(options.devices)))
            return 0
        command = [sys.executable, *sys.argv, "--folder", folder, "--rank"]
        children = [subprocess.Popen([*command, str(n)]) for n in range(options.devices)]
        return max(abs(child.wait()) for child in children)


if __name__ == "__main__":
    sys.exit(main())
