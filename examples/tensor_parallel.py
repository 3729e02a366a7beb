"""Multiply matrices that are split over ranks, as the two halves of a layer of a large network.

The first matrix is split by columns, so that each rank has some columns of the product; the second
by rows, so that each rank's product is a part of a sum, which an all-reduce completes.

    python examples/tensor_parallel.py                # three ranks, which this thread drives
    mpiexec -n 2 python examples/tensor_parallel.py   # two, over MPI
    torchrun --nproc-per-node 2 examples/tensor_parallel.py cuda    # two GPUs, over NCCL
"""

# ruff: noqa: S101 - an example shows and checks what it found

import sys

import numpy as np

import hal
import hal.collectives

ROWS, INNER, OUTER = 48, 96, 64

SOURCE = """
// A thread for each element of c = a b; relu, if asked for.
extern "C" __global__ void HAL_BLOCK(64)
multiply(const float* __restrict__ a, const float* __restrict__ b, float* __restrict__ c, int rows,
         int inner, int columns, int relu) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= rows * columns) return;
  float sum = 0.0f;
  for (int k = 0; k < inner; ++k) sum += a[i / columns * inner + k] * b[k * columns + i % columns];
  c[i] = relu && sum < 0.0f ? 0.0f : sum;
}
"""


def layer(group: hal.collectives.Group) -> tuple[hal.Submission, hal.Buffer]:
    """Submit a rank's part of relu(x first) second; return its end, and the whole result."""
    device, queue = group.device, group.device.queue
    x, first, second = matrices()
    columns = np.array_split(np.arange(INNER), group.size)[group.rank]
    width = len(columns)
    multiply = device.compile(SOURCE)["multiply"]
    given = device.upload(x)
    some = device.upload(np.ascontiguousarray(first[:, columns]))
    rest = device.upload(np.ascontiguousarray(second[columns]))
    hidden = device.empty((ROWS, width), np.float32)
    result = device.empty((ROWS, OUTER), np.float32)
    queue.dispatch(
        multiply,
        grid=-(-ROWS * width // 64),
        args=(given, some, hidden, ROWS, OUTER, width, 1),
    )
    queue.dispatch(
        multiply,
        grid=-(-ROWS * OUTER // 64),
        args=(hidden, rest, result, ROWS, width, OUTER, 0),
    )
    return queue.all_reduce(result, group=group), result


def matrices() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the input and the two matrices, the same on all ranks."""
    chance = np.random.default_rng(0)
    sizes = ((ROWS, OUTER), (OUTER, INNER), (INNER, OUTER))
    x, first, second = (chance.normal(size=each).astype(np.float32) for each in sizes)
    return x, first, second


def main() -> None:
    """Join what a launcher has started, or make three ranks here."""
    spec = sys.argv[1] if len(sys.argv) > 1 else "cpu"
    place = hal.collectives.find_place()
    if place.size > 1:
        # Ranks that share a processor share it; each rank has a GPU of its own.
        own = "" if spec == "cpu" else f":{place.local_rank or 0}"
        devices = [hal.create_device(spec + own)]
        groups = [hal.collectives.join(devices[0])]
    else:
        devices = [hal.create_device(spec) for _ in range(3)]
        groups = hal.collectives.join_all(devices)
    work = [layer(group) for group in groups]
    hal.wait_all([submission for submission, _ in work], timeout=60)
    x, first, second = matrices()
    expected = np.maximum(x @ first, 0) @ second
    for group, (_, result) in zip(groups, work, strict=True):
        away = float(np.abs(result.numpy() - expected).max())
        assert away < 1e-3 * float(np.abs(expected).max()), away
        who = f"rank {group.rank} of {group.size} ({group.provider})"
        sys.stdout.write(f"{who}: off by {away:.1e}\n")  # at once: ranks share the output
    for each in (*groups, *devices):
        each.close()


if __name__ == "__main__":
    main()
