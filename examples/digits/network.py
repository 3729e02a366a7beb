"""One replica of a two-layer network: its kernels, its memory, its routines.

64 pixels, a layer of rectified linear units, and scores for ten digits,
whose error is the cross entropy after a softmax. One buffer holds all parameters:
first the weights of the first layer, a row for each pixel, then
its biases, then those of the second layer in the same way. The gradient has
the same form, followed by the sum of the errors, so that replicas are merged by
adding one buffer to another.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

import hal
from hal.flow import Context, Flow, Merge, Step, TrackedBuffer

__all__ = ["CLASSES", "HIDDEN", "INPUTS", "SIZE", "Replica", "initial"]

INPUTS: Final = 64
HIDDEN: Final = 64
CLASSES: Final = 10
SIZE: Final = (INPUTS + 1) * HIDDEN + (HIDDEN + 1) * CLASSES
"""The number of parameters."""

_BLOCK: Final = 64

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int32]

SOURCE: Final = r"""
#define OFFSETS1 (INPUTS * HIDDEN)
#define WEIGHTS2 (OFFSETS1 + HIDDEN)
#define OFFSETS2 (WEIGHTS2 + HIDDEN * CLASSES)
#define SIZE (OFFSETS2 + CLASSES)

// The first layer: a block for each row of the batch, a thread for each unit.
extern "C" __global__ void HAL_BLOCK(HIDDEN)
activate(const float* __restrict__ images, const int* __restrict__ rows,
         const float* __restrict__ network, float* __restrict__ activity) {
  const float* image = images + INPUTS * rows[blockIdx.x];
  const int unit = threadIdx.x;
  float sum = network[OFFSETS1 + unit];
  for (int k = 0; k < INPUTS; ++k) sum += image[k] * network[k * HIDDEN + unit];
  activity[blockIdx.x * HIDDEN + unit] = sum > 0.0f ? sum : 0.0f;
}

// The second layer, a thread for each row: what is wrong with its scores, and what it would guess.
extern "C" __global__ void HAL_BLOCK(64)
judge(const float* __restrict__ activity, const int* __restrict__ labels,
      const int* __restrict__ rows, const float* __restrict__ network, float* __restrict__ errors,
      float* __restrict__ losses, int* __restrict__ guesses, int count) {
  const int row = blockIdx.x * blockDim.x + threadIdx.x;
  if (row >= count) return;
  float scores[CLASSES];
  int best = 0;
  for (int c = 0; c < CLASSES; ++c) {
    float sum = network[OFFSETS2 + c];
    for (int k = 0; k < HIDDEN; ++k)
      sum += activity[row * HIDDEN + k] * network[WEIGHTS2 + k * CLASSES + c];
    scores[c] = sum;
    if (sum > scores[best]) best = c;
  }
  const float largest = scores[best];
  const int label = labels[rows[row]];
  const float right = scores[label];
  float total = 0.0f;
  for (int c = 0; c < CLASSES; ++c) total += scores[c] = expf(scores[c] - largest);
  for (int c = 0; c < CLASSES; ++c)
    errors[row * CLASSES + c] = scores[c] / total - (c == label ? 1.0f : 0.0f);
  losses[row] = logf(total) - (right - largest);
  guesses[row] = best;
}

// What is wrong with the first layer: a block for each row, a thread for each unit.
extern "C" __global__ void HAL_BLOCK(HIDDEN)
trace_back(const float* __restrict__ activity, const float* __restrict__ errors,
           const float* __restrict__ network, float* __restrict__ blame) {
  const int unit = threadIdx.x, at = blockIdx.x * HIDDEN + unit;
  float sum = 0.0f;
  for (int c = 0; c < CLASSES; ++c)
    sum += errors[blockIdx.x * CLASSES + c] * network[WEIGHTS2 + unit * CLASSES + c];
  blame[at] = activity[at] > 0.0f ? sum : 0.0f;
}

// The sum over the rows of the batch, a thread for each number that is learnt, and for the loss:
// those from first up to end.
extern "C" __global__ void HAL_BLOCK(64)
collect(const float* __restrict__ images, const int* __restrict__ rows,
        const float* __restrict__ activity, const float* __restrict__ blame,
        const float* __restrict__ errors, const float* __restrict__ losses,
        float* __restrict__ gradient, int count, int first, int end) {
  const int i = first + blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= end) return;
  double sum = 0.0;
  if (i < OFFSETS1) {
    const int pixel = i / HIDDEN, unit = i % HIDDEN;
    for (int r = 0; r < count; ++r)
      sum += images[rows[r] * INPUTS + pixel] * blame[r * HIDDEN + unit];
  } else if (i < WEIGHTS2) {
    for (int r = 0; r < count; ++r) sum += blame[r * HIDDEN + i - OFFSETS1];
  } else if (i < OFFSETS2) {
    const int unit = (i - WEIGHTS2) / CLASSES, c = (i - WEIGHTS2) % CLASSES;
    for (int r = 0; r < count; ++r) sum += activity[r * HIDDEN + unit] * errors[r * CLASSES + c];
  } else if (i < SIZE) {
    for (int r = 0; r < count; ++r) sum += errors[r * CLASSES + i - OFFSETS2];
  } else {
    for (int r = 0; r < count; ++r) sum += losses[r];
  }
  gradient[i] = (float)sum;
}

extern "C" __global__ void HAL_BLOCK(64)
merge(const float* __restrict__ theirs, float* __restrict__ ours) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i <= SIZE) ours[i] += theirs[i];
}

// Descend, with momentum; note the loss.
extern "C" __global__ void HAL_BLOCK(64)
descend(const float* __restrict__ gradient, float* __restrict__ network,
        float* __restrict__ velocity, float* __restrict__ curve, int step, float share, float rate,
        float momentum) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < SIZE) {
    velocity[i] = momentum * velocity[i] - rate * share * gradient[i];
    network[i] += velocity[i];
  } else if (i == SIZE) {
    curve[step] = share * gradient[i];
  }
}
"""


def initial(seed: int) -> Floats:
    """Return the initial parameters: random weights, biases of 0."""
    chance = np.random.default_rng(seed)
    first = chance.normal(0, np.sqrt(2 / INPUTS), INPUTS * HIDDEN)
    second = chance.normal(0, np.sqrt(2 / HIDDEN), HIDDEN * CLASSES)
    parts = (first, np.zeros(HIDDEN), second, np.zeros(CLASSES))
    return np.concatenate(parts).astype(np.float32)


class Replica(Context):
    """The network on one device, for batches of `count` rows: named memory, and what uses it.

    ``"network"`` and ``"gradient"`` are its parameters, and the gradient of its last batch; see
    this module. ``"curve"`` is the loss of each of the `steps` of an epoch.
    """

    def __init__(
        self, flow: Flow, device: hal.Device, images: Floats, labels: Ints, count: int, steps: int
    ) -> None:
        """Compile, allocate, and link the kernels with the memory."""
        super().__init__(flow, device=device, name="replica")
        self.from_host("images", images, mode="constant")
        self.from_host("labels", labels, mode="constant")
        self.allocate("guesses", 4 * count, dtype=np.int32, mode="hosted")
        for mode, sizes in {
            "local": {
                "activity": count * HIDDEN,
                "blame": count * HIDDEN,
                "errors": count * CLASSES,
                "losses": count,
            },
            "device": {"gradient": SIZE + 1, "velocity": SIZE},
            "hosted": {"network": SIZE, "curve": steps},
        }.items():
            for name, size in sizes.items():
                self.allocate(name, 4 * size, dtype=np.float32, mode=mode)
        # Two, so that one is uploaded while the kernels read the other.
        self._rows = [flow.allocate(4 * count, dtype=np.int32, device=device) for _ in range(2)]
        sizes = {"INPUTS": INPUTS, "HIDDEN": HIDDEN, "CLASSES": CLASSES}
        code = device.compile(SOURCE, filename="network.cpp", defines=sizes)
        some, whole = -(-count // _BLOCK), -(-(SIZE + 1) // _BLOCK)
        self._gradient = self.link(
            code,
            Step("activate", count, buffers={"rows": None}),
            Step("judge", some, buffers={"rows": None}, scalars={"count": count}),
            Step("trace_back", count),
            Step(
                "collect",
                whole,
                buffers={"rows": None},
                scalars={"count": count, "first": 0, "end": SIZE + 1},
            ),
        )
        self._merge = self.link(
            code,
            Step("merge", whole, buffers={"theirs": Merge("gradient"), "ours": "gradient"}),
        )
        self._descend = self.link(code, Step("descend", whole, buffers={"gradient": None}))

    def reset(self, network: Floats) -> None:
        """Set the parameters to `network`, at rest."""
        self["network"].write(network)
        self["velocity"].fill(0)

    def upload(self, step: int, rows: Ints) -> None:
        """Upload the numbers of a batch's rows, while the batch before is computed."""
        self._rows[step % 2].write(rows)

    def compute(self, step: int) -> None:
        """Compute the gradient of the uploaded batch."""
        self._gradient(rows=self._rows[step % 2])

    def merge(self) -> None:
        """Add the gradient in the device's merge buffer to this one's."""
        self._merge()

    def descend(self, gradient: TrackedBuffer, step: int, **numbers: float) -> None:
        """Update the parameters by a gradient: `share` of it, with a `rate` and a `momentum`."""
        self._descend(gradient=gradient, step=step, **numbers)

    def guess(self, rows: Ints) -> Ints:
        """Return the most likely digit of each of `count` rows. Blocks."""
        self.upload(0, rows)
        self.compute(0)
        return self["guesses"].numpy()
