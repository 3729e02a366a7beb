"""Devices of cpu, cuda and hip in one process, on software drivers: semaphores and data between."""

from __future__ import annotations

from hip_harness import gpusim, rocm_folder, run_python, variables

PROGRAM = """
import numpy as np
import hal

source = '''
__global__ void add(const int *x, int *y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = x[i] + 1;
}
'''
n = 300
names = ["cpu", "cuda:0", "hip:0", "hip:1", "cuda:1"]
devices = [hal.create_device(name) for name in names]
kernels = [device.compile(source)["add"] for device in devices]
for kernel in kernels:
    assert str(kernel.signature) == "(const ptr x, ptr y, i32 n)"

# Each device adds one to what the one before has made; nobody waits for anything but at the end.
turn = hal.create_semaphore()
values = [np.arange(n, dtype=np.int32)]
for step, (device, kernel) in enumerate(zip(devices, kernels)):
    x = device.upload(np.zeros(n, np.int32))
    y = device.upload(np.zeros(n, np.int32))
    result = np.zeros(n, np.int32)
    queue = device.queue
    queue.write(x, values[-1], wait=[turn.at(step)] if step else [])
    queue.dispatch(kernel, grid=3, block=128, args=(x, y, n))
    queue.read(y, result, signal=[turn.at(step + 1)])
    turn.wait(step + 1, timeout=20)
    values.append(result)
assert (values[-1] == np.arange(n) + len(devices)).all()

# A semaphore that nobody has signalled yet holds work of every backend.
start, ends = hal.create_semaphore(), [hal.create_semaphore() for _ in devices]
buffers = [device.upload(np.zeros(n, np.int32)) for device in devices]
for device, buffer, end in zip(devices, buffers, ends):
    device.queue.fill(buffer, 7, wait=[start.at(1)], signal=[end.at(1)])
assert not any(end.query() for end in ends)
start.signal(1)
hal.wait_all([end.at(1) for end in ends], timeout=20)
for buffer in buffers:
    assert (buffer.numpy() == 7).all()
for device in devices:
    device.close()
print("done")
"""


def test_three_backends_share_semaphores_in_one_process_s3(tmp_path):
    library = gpusim.built()
    done = run_python(
        tmp_path,
        PROGRAM,
        ROCM_PATH=str(rocm_folder()),
        LD_LIBRARY_PATH=str(library),
        LD_PRELOAD=f"{library}/libcuda.so.1:{library}/libnvrtc.so.13",
        **variables(devices=2),
    )
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
