"""Submit while other streams are full behind a Python function of CuPy's (rule Q1).

    python hardware/full_streams.py [--streams 8] [--launches 900] [--operations 3000]

Each of CuPy's streams waits for a host function in Python, which needs the interpreter lock, and
has launches behind it. Streams share hardware channels, which a launch of ours may find full.
It must not keep the interpreter lock then: nobody would go on. Prints how long the longest call
took; a process that hangs ends with the stacks of its threads.
"""

import argparse
import faulthandler
import sys
import threading
import time

import cupy

import hal

LIMIT = 60.0
SHUT = 5.0  # seconds after which the streams go on, whatever hal does


def fill_streams(count, launches, gate):
    """Return streams of CuPy's that are full until the gate opens."""
    data = cupy.zeros(64, cupy.uint32).data
    streams = [cupy.cuda.Stream(non_blocking=True) for _ in range(count)]
    for stream in streams:
        stream.launch_host_func(lambda _: gate.wait(LIMIT), None)
        for _ in range(launches):
            cupy.cuda.runtime.memsetAsync(data.ptr, 0, 256, stream.ptr)
    return streams, data


def main():
    """Return the exit status."""
    parser = argparse.ArgumentParser(description="Submit beside full streams of CuPy's.")
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--launches", type=int, default=900, help="in each of them")
    parser.add_argument("--operations", type=int, default=3000, help="of hal's")
    options = parser.parse_args()
    faulthandler.dump_traceback_later(LIMIT, exit=True)
    gate = threading.Event()
    with hal.create_device("cuda") as device:
        buffer = device.allocate(256)
        queues = [device.queue, *(device.create_queue() for _ in range(16))]
        for queue in queues:
            queue.fill(buffer, 1).wait()
        streams, _data = fill_streams(options.streams, options.launches, gate)
        threading.Timer(SHUT, gate.set).start()
        longest, submissions = 0.0, []
        for number in range(options.operations):
            begun = time.perf_counter()
            submissions.append(queues[number % len(queues)].fill(buffer, 7))
            longest = max(longest, time.perf_counter() - begun)
        gate.set()
        for each in submissions:
            each.wait(LIMIT)
        for stream in streams:
            stream.synchronize()
        sys.stdout.write(
            f"{options.operations} fills on {len(queues)} queues beside {options.streams} full "
            f"streams: the longest call took {1000 * longest:.1f} ms\n"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
