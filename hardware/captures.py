"""Capture graphs with other libraries while hal works on other threads and in the captures (O1).

    python hardware/captures.py [--library torch cupy driver] [--mode global thread_local relaxed]
        [--seconds 60] [--captures 0] [--jobs 1] [--device cuda]

Each library and mode has a process of its own, `--jobs` of which run at once. There one thread
captures, launches what it captured and checks the result, again and again; in every second capture
it calls hal as well. Others fill, upload, download, allocate, take temporaries, import, compile,
load, run and drop kernels, and record. Nobody may fail, and the device is whole at the end. A
process ends after `--seconds`, or after `--captures` if that is given, and no sooner than everybody
has worked. ``driver`` captures by cuda-python's own calls, and needs no other library.
"""

import argparse
import importlib
import itertools
import subprocess
import sys
import threading
import time
import traceback
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import numpy as np

import hal

LIBRARIES = ("torch", "cupy", "driver")
MODES = ("global", "thread_local", "relaxed")
LIMIT = 60.0
COUNT = 4096
SOURCE = """
__global__ void HAL_BLOCK(256) add{number}(unsigned *data, unsigned n) {{
  unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) data[i] += {number}u;
}}
"""
_numbers = itertools.count(time.time_ns() % 1_000_000)


# Who captures. Each has capture(inside), which calls `inside` in the middle, and check(times).


class Torch:
    """Capture with `torch.cuda.graph`."""

    def __init__(self, mode):
        self._torch = importlib.import_module("torch")
        self._mode = mode
        self._data = self._torch.zeros(COUNT, device="cuda")
        self._data.add_(1)  # loads the kernel
        self._torch.cuda.synchronize()
        self._graph = None

    def capture(self, inside):
        self._graph = self._torch.cuda.CUDAGraph()
        with self._torch.cuda.graph(self._graph, capture_error_mode=self._mode):
            self._data.add_(1)
            inside()
            self._data.add_(1)

    def check(self, times):
        self._data.zero_()
        for _ in range(times):
            self._graph.replay()
        return float(self._data.min()), float(self._data.max()), 2.0 * times


class Cupy:
    """Capture with a stream of CuPy's."""

    def __init__(self, mode):
        self._cupy = importlib.import_module("cupy")
        runtime = self._cupy.cuda.runtime
        self._mode = {
            "global": runtime.streamCaptureModeGlobal,
            "thread_local": runtime.streamCaptureModeThreadLocal,
            "relaxed": runtime.streamCaptureModeRelaxed,
        }[mode]
        self._stream = self._cupy.cuda.Stream(non_blocking=True)
        self._graph = None
        with self._stream:
            self._data = self._cupy.zeros(COUNT, self._cupy.float32)
            self._cupy.add(self._data, 1, out=self._data)
            self._stream.synchronize()

    def capture(self, inside):
        with self._stream:
            self._stream.begin_capture(self._mode)
            self._cupy.add(self._data, 1, out=self._data)
            inside()
            self._cupy.add(self._data, 1, out=self._data)
            self._graph = self._stream.end_capture()

    def check(self, times):
        with self._stream:
            self._data.fill(0)
            for _ in range(times):
                self._graph.launch(self._stream)
            self._stream.synchronize()
            found = self._cupy.asnumpy(self._data)
        return float(found.min()), float(found.max()), 2.0 * times


class Driver:
    """Capture by the driver's own calls."""

    def __init__(self, mode):
        self._cu = cu = importlib.import_module("cuda.bindings.driver")
        self._get(cu.cuInit, 0)
        self._get(cu.cuCtxSetCurrent, self._get(cu.cuDevicePrimaryCtxRetain, 0))
        self._mode = cu.CUstreamCaptureMode(MODES.index(mode))
        self._stream = self._get(cu.cuStreamCreate, 1)
        self._memory = self._get(cu.cuMemAllocManaged, 4 * COUNT, 1)
        self._graph = None
        self._number = 0

    @staticmethod
    def _get(function, *arguments):
        error, *values = function(*arguments)
        if error:
            message = f"{function.__name__}: {error!r}"
            raise RuntimeError(message)
        return values[0] if values else None

    def capture(self, inside):
        cu = self._cu
        self._number += 1
        self._get(cu.cuStreamBeginCapture, self._stream, self._mode)
        self._get(cu.cuMemsetD32Async, self._memory, 0, COUNT, self._stream)
        inside()
        self._get(cu.cuMemsetD32Async, self._memory, self._number, COUNT, self._stream)
        graph = self._get(cu.cuStreamEndCapture, self._stream)
        if self._graph is not None:
            self._get(cu.cuGraphExecDestroy, self._graph)
        self._graph = self._get(cu.cuGraphInstantiate, graph, 0)
        self._get(cu.cuGraphDestroy, graph)

    def check(self, times):
        cu = self._cu
        for _ in range(times):
            self._get(cu.cuGraphLaunch, self._graph, self._stream)
        self._get(cu.cuStreamSynchronize, self._stream)
        found = np.zeros(COUNT, np.uint32)
        self._get(cu.cuMemcpyDtoH, found.ctypes.data, self._memory, found.nbytes)
        return int(found.min()), int(found.max()), self._number


# What hal does meanwhile


def fill(device, state):
    """Chain fills over two queues, from a value that the host signals."""
    buffer = state.setdefault("buffer", device.allocate(4 * COUNT))
    start = hal.create_semaphore()
    last = device.queue.fill(buffer, 1, wait=start.at(1))
    for number in range(20):
        queue = device.queues.upload if number % 2 else device.queue
        last = queue.fill(buffer, number, wait=last)
    start.signal(1)
    last.wait(LIMIT)
    if not (buffer.numpy("u1", wait=last) == number).all():
        message = "a fill is lost"
        raise RuntimeError(message)


def upload(device, state):
    """Upload, copy and download."""
    values = np.random.default_rng(state.setdefault("seed", 1)).integers(0, 99, 300_000)
    state["seed"] += 1
    source = device.upload(values)
    target = device.allocate(values.nbytes)
    done = device.queue.copy(source, target)
    if not (target.numpy(values.dtype, wait=done).ravel() == values.ravel()).all():
        message = "a copy is wrong"
        raise RuntimeError(message)


def allocate(device, state):
    """Allocate memory of each kind, import some, and give it all back."""
    number = state["number"] = state.get("number", 0) + 1
    kept = [
        device.allocate(1 + number * 7919 % (8 << 20), memory=memory)
        for memory in ("device", "host", "managed")
    ]
    pages = np.zeros(3 * 4096, np.uint8)
    kept.append(device.import_array(pages[-pages.ctypes.data % 4096 :][:4096]))
    device.queue.fill(kept[0], 1).wait(LIMIT)
    kept.clear()
    device.statistics()
    device.trim()


def temporaries(device, _state):
    """Take temporaries that grow, in the order of a queue, so that segments are made anew."""
    for step in range(1, 7):
        scratch = device.queue.alloca(step << 22, dtype=np.uint8)
        device.queue.fill(scratch, step)
        got = scratch.numpy()
        done = device.queue.dealloca(scratch)
        if got[0] != step or got[-1] != step:
            message = "a temporary is wrong"
            raise RuntimeError(message)
    done.wait(LIMIT)


def build(device, _state):
    """Compile, load, run and drop a kernel that nobody has seen before."""
    number = next(_numbers)
    kernel = device.compile(SOURCE.format(number=number))[f"add{number}"]
    data = device.upload(np.zeros(COUNT, np.uint32))
    done = device.queue.dispatch(kernel, grid=COUNT // 256, args=(data, COUNT))
    if not (data.numpy(np.uint32, wait=done) == number).all():
        message = "a kernel is wrong"
        raise RuntimeError(message)


def record(device, state):
    """Record, execute as a graph, and drop it."""
    first = state.setdefault("first", device.allocate(COUNT))
    second = state.setdefault("second", device.allocate(COUNT))
    with device.record() as commands:
        commands.fill(first, 5)
        commands.barrier()
        commands.copy(first, second)
    for _ in range(3):
        last = device.queue.execute(commands)
    last.wait(LIMIT)


WORKERS = (fill, upload, allocate, temporaries, build, record)


class Bench:
    """Let the workers work until somebody fails or all is done."""

    def __init__(self, device):
        self.device = device
        self.done = Counter()
        self.failed = []
        self.over = threading.Event()
        self._threads = [
            threading.Thread(target=self._work, args=(worker,), daemon=True) for worker in WORKERS
        ]
        for thread in self._threads:
            thread.start()

    def _work(self, worker):
        state = {}
        try:
            while not self.over.is_set():
                worker(self.device, state)
                self.done[worker.__name__] += 1
        except BaseException:  # noqa: BLE001 - told at the end
            self.failed.append(f"{worker.__name__}:\n{traceback.format_exc()}")
            self.over.set()

    def finish(self):
        self.over.set()
        for thread in self._threads:
            thread.join(LIMIT)
        if any(thread.is_alive() for thread in self._threads):
            self.failed.append("a worker does not end")


def run(library, mode, options):
    """Capture for the time given; return what failed."""
    device = hal.create_device(options.device)
    other = {"torch": Torch, "cupy": Cupy, "driver": Driver}[library](mode)
    mine = device.allocate(4096)
    bench = Bench(device)
    captures, begun = 0, time.monotonic()

    def inside():
        if captures % 2:
            device.queue.fill(mine, captures % 256).wait(LIMIT)
            device.allocate(4096).close()

    def is_enough():
        if not all(bench.done[worker.__name__] for worker in WORKERS):
            return time.monotonic() - begun > options.seconds + LIMIT
        if options.captures:
            return captures >= options.captures
        return time.monotonic() - begun > options.seconds

    try:
        while not bench.over.is_set() and not is_enough():
            other.capture(inside)
            captures += 1
            least, most, wanted = other.check(3)
            if not least == most == wanted:
                bench.failed.append(f"a graph gave {least} to {most}, not {wanted}")
                break
    except BaseException:  # noqa: BLE001 - told at the end
        bench.failed.append(f"capture {captures}:\n{traceback.format_exc()}")
    seconds = time.monotonic() - begun
    bench.finish()
    if device.lost:
        bench.failed.append("the device is lost")
    mine.close()
    if left := device.close():
        bench.failed.append(f"close left {left}")
    work = ", ".join(f"{name} {bench.done[name]}" for name in sorted(bench.done))
    sys.stdout.write(f"{library} {mode}: {captures} captures in {seconds:.1f} s beside {work}\n")
    return bench.failed


def run_apart(library, mode, options):
    """Run one library in one mode in a process of its own; return whether it went well."""
    command = [sys.executable, __file__, "--one", "--library", library, "--mode", mode]
    command += ["--seconds", str(options.seconds), "--captures", str(options.captures)]
    command += ["--device", options.device]
    limit = options.seconds + 3 * LIMIT
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=limit)
    sys.stdout.write(done.stdout)
    sys.stderr.write(done.stderr)
    return not done.returncode


def main():
    """Run the program."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--library", nargs="+", choices=LIBRARIES, default=["torch", "cupy"])
    parser.add_argument("--mode", nargs="+", choices=MODES, default=MODES)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--captures", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    pairs = list(itertools.product(options.library, options.mode))
    if options.one:
        failed = run(*pairs[0], options)
        sys.stderr.write("".join(f"FAILED: {' '.join(pairs[0])}: {each}\n" for each in failed))
        return bool(failed)
    with ThreadPoolExecutor(options.jobs) as pool:
        return not all(pool.map(lambda pair: run_apart(*pair, options), pairs))


if __name__ == "__main__":
    sys.exit(main())
