"""Two programs on contexts, with random delays: an input pipeline, and data-parallel descent.

python tests/flow/delayed_programs.py DEVICE RUNS [FIRST]; each run has sizes, numbers and delays of
its own, and compares what it finds with numpy.
"""

import random
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np

import hal
from hal.flow import Context, Flow, Merge, Step, virtual_devices

LIMIT = 60
SOURCE = r"""
__global__ void HAL_BLOCK(64) errors(const float *x, const float *t, const float *w, float *e,
                                     int n, int k) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  float sum = 0;
  for (int j = 0; j < k; j++) sum += x[i * k + j] * w[j];
  e[i] = sum - t[i];
}
__global__ void HAL_BLOCK(64) slope(const float *x, const float *e, float *g, int n, int k) {
  int j = threadIdx.x;
  double sum = 0;
  if (j < k) for (int i = 0; i < n; i++) sum += e[i] * x[i * k + j];
  if (j == k) for (int i = 0; i < n; i++) sum += e[i] * e[i];  // the loss, behind the slopes
  if (j <= k) g[j] = (float)sum;
}
__global__ void HAL_BLOCK(64) tell(const float *g, int k, int step) {
  if (threadIdx.x == 0) printf("step %d loss %g\n", step, g[k]);
}
__global__ void HAL_BLOCK(64) merge(const float *theirs, float *g, int k) {
  if (threadIdx.x <= k) g[threadIdx.x] += theirs[threadIdx.x];
}
__global__ void HAL_BLOCK(64) descend(const float *g, float *w, int k, float rate) {
  if (threadIdx.x < k) w[threadIdx.x] -= rate * g[threadIdx.x];
}
"""


class Delays:
    """Random delays of the host and of queues."""

    def __init__(self, flow, seed):
        self._flow = flow
        self._pick = random.Random(seed)

    def host(self):
        if self._pick.random() < 0.3:
            time.sleep(self._pick.random() * 3e-4)

    def queue(self, *buffers):
        """Hold up a queue, or who uses the buffers next."""
        if self._pick.random() < 0.3:
            name = self._pick.choice(["upload", "compute", "download"])
            seconds = self._pick.random() * 1e-3
            self._flow.call(time.sleep, seconds, reads=buffers, queue=name)


def reference(batches, rates, k):
    """Return the losses and the weights that numpy finds."""
    w, losses = np.zeros(k), []
    for (x, t), rate in zip(batches, rates, strict=True):
        e = x.astype(np.float64) @ w - t
        losses.append(e @ e)
        w = w - rate * (e @ x)
    return np.array(losses), w


def steps(n, k):
    """Return the steps from a batch to the slopes."""
    sizes = {"n": n, "k": k}
    return (
        Step("errors", grid=-(-n // 64), buffers={"x": None, "t": None}, scalars=sizes),
        Step("slope", grid=1, buffers={"x": None}, scalars=sizes),
    )


def pipeline(device, code, batches, rates, seed):
    """Train on batches from one staging array; upload, compute and download at once."""
    n, k = batches[0][0].shape
    with Flow(device) as flow, Context(flow, name="epoch") as epoch:
        delays = Delays(flow, seed)
        w = epoch.from_host("w", np.zeros(k, np.float32))
        # In turn a name of each call's own, and one that lasts
        epoch.allocate("e", 4 * n, dtype=np.float32, mode=("local", "device")[seed % 2])
        epoch.allocate("g", 4 * (k + 1), dtype=np.float32, mode="hosted")
        forward = epoch.link(code, *steps(n, k))
        descend = epoch.link(code, Step("descend", grid=1, scalars={"k": k}))
        sets = [
            (flow.allocate(4 * n * k, dtype=np.float32), flow.allocate(4 * n, dtype=np.float32))
            for _ in range(2)
        ]
        staging, targets = np.empty((n, k), np.float32), np.empty(n, np.float32)
        losses = []
        for index, (batch, wanted) in enumerate(batches):
            x, t = sets[index % 2]
            staging[:], targets[:] = batch, wanted
            x.write(staging)
            delays.queue()
            t.write(targets)
            staging[:] = targets[:] = np.nan  # the loader's again
            forward(x=x, t=t)
            delays.host()
            losses.append(flow.to_host(epoch["g"].subspan(4 * k, 4)))
            delays.queue(epoch["g"])
            descend(rate=rates[index])
        return np.array([each.result(LIMIT)[0] for each in losses]), w.numpy(timeout=LIMIT)


def replicas(devices, code, parts, rates, mode, seed):
    """Train a replica on each device with its part; the first merges the slopes of all."""
    k, count = parts[0][0].shape[1], len(rates)
    with Flow(*devices) as flow, ThreadPoolExecutor(len(devices)) as pool:
        delays = Delays(flow, seed)
        contexts = [Context(flow, device=each, name="replica") for each in devices]
        forwards = []
        for context, (x, t) in zip(contexts, parts, strict=True):
            context.from_host("x", x, mode="constant")
            context.from_host("t", t, mode="constant")
            context.from_host("w", np.zeros(k, np.float32))
            context.allocate("e", 4 * len(x), dtype=np.float32, mode="local")
            context.allocate("g", 4 * (k + 1), dtype=np.float32, mode="hosted")
            forwards.append(context.link(code, *steps(*x.shape)))
        size = {"k": k}
        descents = [each.link(code, Step("descend", grid=1, scalars=size)) for each in contexts]
        first, *others = contexts
        buffers = {"theirs": Merge("g", mode)}
        merge = first.link(code, Step("merge", grid=1, buffers=buffers, scalars=size))
        tell = first.link(code, Step("tell", grid=1, scalars=size))
        losses, texts = [], []

        def forward(each):
            delays.host()
            each[1](x=each[0]["x"], t=each[0]["t"])
            delays.queue(each[0]["g"])

        for step in range(count):
            # By turns from a thread for each device, and from one
            list((pool.map if seed % 2 else map)(forward, zip(contexts, forwards, strict=True)))
            for other in others:
                delays.host()
                flow.merge_buffer(first.device).load(other["g"], mode)
                delays.queue(first["g"])
                merge()
            losses.append(flow.to_host(first["g"].subspan(4 * k, 4)))
            output = hal.Output(first.device)
            texts.append((output, tell(step=step, hal_output=output)))
            for other in others:
                flow.copy(first["g"], other["g"])
            for descend in descents:
                delays.host()
                descend(rate=rates[step])
        found = np.array([each.result(LIMIT)[0] for each in losses])
        weights = [each["w"].numpy(timeout=LIMIT) for each in contexts]
        told = [str(output.read(wait=last, timeout=LIMIT)) for output, last in texts]
        assert all(
            text.startswith(f"step {step} loss ") and text.count("\n") == 1
            for step, text in enumerate(told)
        ), told
        for context in contexts:
            context.close()
        return found, weights


def check(found, wanted, *what):
    assert np.allclose(found, wanted, rtol=1e-3, atol=1e-3), (*what, found, wanted)


def run(devices, codes, seed):
    numbers = np.random.default_rng(seed)
    n, k = int(numbers.integers(1, 200)), int(numbers.integers(1, 32))
    batches = [
        (numbers.normal(size=(n, k)).astype(np.float32), numbers.normal(size=n).astype(np.float32))
        for _ in range(8)
    ]
    rates = [0.2 / (n + k) / (index + 1) for index in range(len(batches))]
    losses, w = reference(batches, rates, k)
    found = pipeline(devices[0].device, codes, batches, rates, seed)
    check(found[0], losses, "pipeline", seed)
    check(found[1], w, "pipeline", seed)
    parts = batches[: len(devices)]
    whole = tuple(np.concatenate(each) for each in zip(*parts, strict=True))
    rates = [0.2 / (n * len(parts) + k) / (index + 1) for index in range(5)]
    losses, w = reference([whole] * len(rates), rates, k)
    for mode in ("streaming", "copy"):
        found = replicas(devices, codes, parts, rates, mode, seed)
        check(found[0], losses, mode, seed)
        for each in found[1]:
            check(each, w, mode, seed)


def main(spec, runs, first=0):
    sys.setswitchinterval(1e-5)
    devices = virtual_devices(spec, 4)
    code = hal.compile(SOURCE, target=devices[0].device)
    for seed in range(int(first), int(first) + int(runs)):
        run(devices, code, seed)
    for each in devices:
        assert each.close(10) == ()


if __name__ == "__main__":
    main(*sys.argv[1:])
