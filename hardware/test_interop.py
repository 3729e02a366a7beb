"""Use arrays of CuPy and PyTorch as buffers, without a copy, ordered by streams (M2)."""

import subprocess
import sys
from pathlib import Path

import cupy
import numpy as np
import pytest
import torch

import hal

COUNT = 1 << 20
SOURCE = """
extern "C" __global__ void scale(float* values, float factor, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) values[i] *= factor;
}
"""


@pytest.fixture
def scale(device):
    return device.compile(SOURCE)["scale"]


def slow(stream):
    """Keep a stream of CuPy's busy for some milliseconds."""
    with stream:
        left = cupy.ones((4096, 4096), cupy.float32)
        for _ in range(8):
            left = left @ left * cupy.float32(1e-4)


def test_an_array_of_cupy_is_a_buffer_m2(device, scale):
    stream = cupy.cuda.Stream(non_blocking=True)
    slow(stream)
    with stream:
        array = cupy.arange(COUNT, dtype=cupy.float32)
        buffer = device.from_dlpack(array)
    assert buffer.address == array.data.ptr
    # from_dlpack has ordered our queues behind theirs; their stream waits for ours.
    device.queue.dispatch(scale, grid=COUNT // 256, block=256, args=(buffer, 2.0, COUNT))
    device.queue.notify_external(stream)
    with stream:
        found = cupy.asnumpy(array + 1)
    assert np.array_equal(found, np.arange(COUNT, dtype=np.float32) * 2 + 1)


def test_a_buffer_is_an_array_of_cupy_m2(device, scale):
    buffer = device.upload(np.arange(COUNT, dtype=np.float32))
    device.queue.dispatch(scale, grid=COUNT // 256, block=256, args=(buffer, 3.0, COUNT))
    for array in (cupy.from_dlpack(buffer), cupy.asarray(buffer)):
        assert array.data.ptr == buffer.address
        assert np.array_equal(cupy.asnumpy(array), np.arange(COUNT, dtype=np.float32) * 3)


def test_a_tensor_of_torch_is_a_buffer_m2(device, scale):
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        left = torch.ones((4096, 4096), device="cuda")
        for _ in range(8):
            left = left @ left * 1e-4
        tensor = torch.arange(COUNT, dtype=torch.float32, device="cuda")
        buffer = device.from_dlpack(tensor)
    assert buffer.address == tensor.data_ptr()
    device.queue.dispatch(scale, grid=COUNT // 256, block=256, args=(buffer, 2.0, COUNT))
    device.queue.notify_external(stream)
    with torch.cuda.stream(stream):
        found = (tensor + 1).cpu().numpy()
    assert np.array_equal(found, np.arange(COUNT, dtype=np.float32) * 2 + 1)


def test_a_buffer_is_a_tensor_of_torch_m2(device, scale):
    buffer = device.upload(np.arange(COUNT, dtype=np.float32))
    device.queue.dispatch(scale, grid=COUNT // 256, block=256, args=(buffer, 3.0, COUNT))
    tensor = torch.from_dlpack(buffer)
    assert tensor.data_ptr() == buffer.address
    assert np.array_equal(tensor.cpu().numpy(), np.arange(COUNT, dtype=np.float32) * 3)


def test_a_queue_on_the_stream_of_torch_q4(device, scale):
    """Our work and theirs share one stream, whose order is the only one."""
    stream = torch.cuda.Stream()
    tensor = torch.ones(COUNT, dtype=torch.float32, device="cuda")
    torch.cuda.synchronize()
    buffer = device.from_dlpack(tensor)
    with device.create_queue(stream=stream) as queue:
        for _ in range(100):
            queue.dispatch(scale, grid=COUNT // 256, block=256, args=(buffer, 2.0, COUNT))
            with torch.cuda.stream(stream):
                tensor += 1.0
                tensor.remainder_(1024)
        queue.wait_idle()
    stream.synchronize()
    value = 1.0
    for _ in range(100):
        value = (value * 2 + 1) % 1024
    assert (tensor == value).all().item()


def test_their_event_is_waited_for_q4(device, scale):
    stream, ready = cupy.cuda.Stream(non_blocking=True), cupy.cuda.Event(disable_timing=True)
    slow(stream)
    with stream:
        array = cupy.full(COUNT, 5, cupy.float32)
    ready.record(stream)
    buffer = device.from_dlpack(array)
    device.queue.wait_external(event=ready.ptr)
    done = hal.create_semaphore()
    device.queue.dispatch(
        scale, grid=COUNT // 256, block=256, args=(buffer, 2.0, COUNT), signal=[done.at(1)]
    )
    done.wait(1, timeout=30)
    assert (cupy.asnumpy(array) == 10).all()


def test_a_full_stream_of_cupy_stops_nobody_q1():
    """In a process of its own, which ends by itself if it hangs."""
    script = Path(__file__).with_name("full_streams.py")
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
