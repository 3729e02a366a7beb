"""Random operations on several streams, ordered by events, against a model in numpy."""

import numpy as np
import pytest

SOURCE = """
__global__ void add(unsigned *target, const unsigned *source, unsigned value, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) target[i] += source[i] * 3 + value;
}
__global__ void turn(unsigned *target, int n) {
  extern __shared__ unsigned part[];
  unsigned *row = target + blockIdx.x * blockDim.x;
  part[threadIdx.x] = row[threadIdx.x];
  __syncthreads();
  row[threadIdx.x] = part[blockDim.x - 1 - threadIdx.x] + n;
}
"""
WORDS = 512
BUFFERS = 6


@pytest.mark.parametrize("seed", range(6))
def test_random_operations(lab, other_lab, seed):
    """Every operation waits for the last ones on its buffers, and for nothing else."""
    random = np.random.default_rng(seed)
    labs = [lab, lab, lab, other_lab]
    streams = [each.stream() for each in labs]
    modules = {id(each): each.build(SOURCE) for each in (lab, other_lab)}
    buffers = [lab.array(np.zeros(WORDS), "u4") for _ in range(BUFFERS)]
    model = [np.zeros(WORDS, "u4") for _ in range(BUFFERS)]
    last_write = [None] * BUFFERS
    last_reads = [[] for _ in range(BUFFERS)]
    kept = []
    for _ in range(400):
        kind = random.choice(["fill", "copy", "update", "add", "turn", "read"])
        target, source = random.choice(BUFFERS, 2, replace=False)
        index = random.integers(len(streams))
        each, stream = labs[index], streams[index]
        device, at = each.device, buffers[target].ctypes.data
        reads = [source] if kind in ("copy", "add") else [target] if kind == "read" else []
        writes = [target] if kind != "read" else []
        waits = [last_write[b] for b in (*reads, *writes)]
        waits += [event for b in writes for event in last_reads[b]]
        for event in waits:
            if event is not None:
                device.wait_event(stream, event)
        first, count = sorted(random.integers(0, WORDS + 1, 2))
        count -= first
        value = np.uint32(random.integers(1 << 32))
        if kind == "fill" and count:
            device.fill(stream, at + 4 * first, int(value), 4, int(count))
            model[target][first : first + count] = value
        elif kind == "copy" and count:
            source_at = buffers[source].ctypes.data + 4 * first
            device.copy(stream, at + 4 * first, source_at, int(4 * count))
            model[target][first : first + count] = model[source][first : first + count]
        elif kind == "update" and count:
            data = random.integers(0, 1 << 32, count, "u4")
            kept.append(data)
            device.copy_from_host(stream, at + 4 * first, data.ctypes.data, data.nbytes)
            model[target][first : first + count] = data
        elif kind == "add":
            function = device.get_function(modules[id(each)], "add")
            each.launch(
                stream, function, 9, 61, buffers[target], buffers[source], value, np.int32(WORDS)
            )
            model[target] += model[source] * np.uint32(3) + value
        elif kind == "turn":
            function = device.get_function(modules[id(each)], "turn")
            each.launch(stream, function, 8, 64, buffers[target], np.int32(seed), shared=256)
            model[target] = model[target].reshape(8, 64)[:, ::-1].reshape(-1) + np.uint32(seed)
        elif kind == "read":
            back = np.zeros(WORDS, "u4")
            device.copy_to_host(stream, back.ctypes.data, at, back.nbytes)
            kept.append((back, model[target].copy()))
        event = each.event(stream)
        for b in writes:
            last_write[b], last_reads[b] = event, []
        for b in reads:
            last_reads[b].append(event)
    lab.finish()
    other_lab.finish()
    for actual, expected in zip(buffers, model, strict=True):
        assert (actual == expected).all()
    for pair in kept:
        if isinstance(pair, tuple):
            assert (pair[0] == pair[1]).all()
