"""Train the digits network with a part of every batch on each rank.

The same file runs as one process, as a loop of threads, and by launchers:

    python examples/data_parallel.py                      # one rank
    python examples/data_parallel.py --threads 2          # two, by the embedded provider
    mpiexec -n 4 python examples/data_parallel.py         # four, over MPI
    torchrun --nproc-per-node 4 examples/data_parallel.py --device cuda    # four GPUs, over NCCL

In a Ray actor, call `train` with the group of ``hal.collectives.join(device, rank=..., size=...,
rendezvous=...)``. The gradient of the second layer is reduced on a queue of its own while that of
the first is computed: semaphores alone order the two queues.
"""

# ruff: noqa: T201 - an example shows what it found

import argparse
import json
import threading
from functools import partial

import numpy as np

import hal
import hal.collectives
from digits.network import CLASSES, HIDDEN, INPUTS, SIZE, SOURCE, initial
from digits.training import load_digits

FIRST = (INPUTS + 1) * HIDDEN  # the parameters of the first layer
BATCH, RATE, MOMENTUM = 128, 0.1, 0.9


def train(group: hal.collectives.Group, epochs: int) -> list[float]:
    """Train on one rank; return the loss of each step, over all ranks' rows."""
    device, digits = group.device, load_digits()
    compute, exchange = device.queue, device.create_queue()
    steps = len(digits.images) // BATCH
    mine = np.array_split(np.arange(BATCH), group.size)[group.rank]
    count = len(mine)
    sizes = {"INPUTS": INPUTS, "HIDDEN": HIDDEN, "CLASSES": CLASSES}
    code = device.compile(SOURCE, filename="network.cpp", defines=sizes)
    images, labels = device.upload(digits.images), device.upload(digits.labels)
    network = device.upload(initial(0))
    velocity, gradient = device.zeros(SIZE, np.float32), device.zeros(SIZE + 1, np.float32)
    activity, blame = (device.empty((count, HIDDEN), np.float32) for _ in range(2))
    errors, losses = device.empty((count, CLASSES), np.float32), device.empty(count, np.float32)
    guesses, rows = device.empty(count, np.int32), device.empty(count, np.int32)
    curve = device.zeros(steps, np.float32)
    summed = (images, rows, activity, blame, errors, losses, gradient, count)
    # Every rank begins with rank 0's parameters.
    begun = exchange.broadcast(network, group=group, root=0)
    second, first, reduced = (hal.create_semaphore(name=each) for each in ("2", "1", "reduced"))
    chance = np.random.default_rng(0)
    found: list[float] = []
    step = 0
    for _ in range(epochs):
        order = chance.permutation(len(digits.images)).astype(np.int32)
        for place in range(steps):
            step += 1
            batch = order[place * BATCH : (place + 1) * BATCH]
            compute.update(rows, batch[mine], wait=begun)
            run = partial(compute.dispatch, block=64)
            run(code["activate"], grid=count, args=(images, rows, network, activity))
            run(
                code["judge"],
                grid=-(-count // 64),
                args=(activity, labels, rows, network, errors, losses, guesses, count),
            )
            run(
                code["collect"],
                grid=-(-(SIZE + 1 - FIRST) // 64),
                args=(*summed, FIRST, SIZE + 1),
                signal=second.at(step),
            )
            # Reduced while the lines below it compute
            exchange.all_reduce(gradient[FIRST:], group=group, wait=second.at(step))
            run(code["trace_back"], grid=count, args=(activity, errors, network, blame))
            run(
                code["collect"],
                grid=-(-FIRST // 64),
                args=(*summed, 0, FIRST),
                signal=first.at(step),
            )
            exchange.all_reduce(
                gradient[:FIRST], group=group, wait=first.at(step), signal=reduced.at(step)
            )
            numbers = (place, 1 / BATCH, RATE, MOMENTUM)
            run(
                code["descend"],
                grid=-(-(SIZE + 1) // 64),
                args=(gradient, network, velocity, curve, *numbers),
                wait=reduced.at(step),
            )
        reduced.wait(step, timeout=60)  # raises what has broken the group
        found += curve.numpy().tolist()
    exchange.close()
    return found


def one(device: str, epochs: int, rank: int | None, size: int | None) -> None:
    """Train as one rank, and have rank 0 print the losses."""
    with hal.create_device(device) as opened:
        meets = None if size is None else "data parallel"
        with hal.collectives.join(opened, rank=rank, size=size, rendezvous=meets) as group:
            losses = train(group, epochs)
            if group.rank == 0:
                told = {"ranks": group.size, "provider": group.provider, "losses": losses}
                print(json.dumps(told))


def main() -> None:
    """Run one rank, or several as threads."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--threads", type=int, default=0)
    options = parser.parse_args()
    # Ranks that share a processor share it; each rank has a GPU of its own.
    own = options.device != "cpu" and ":" not in options.device
    if not options.threads:
        local = hal.collectives.find_place().local_rank
        device = f"{options.device}:{local}" if own and local is not None else options.device
        one(device, options.epochs, None, None)
        return
    threads = [
        threading.Thread(
            target=one,
            args=(
                f"{options.device}:{rank}" if own else options.device,
                options.epochs,
                rank,
                options.threads,
            ),
        )
        for rank in range(options.threads)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main()
