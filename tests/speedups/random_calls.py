"""A random program of submissions, which prints all that a user can see of each call.

HAL_SPEEDUPS=0 python tests/speedups/random_calls.py DEVICE SEED; `test_same_as_python.py`
compares what is printed with the C extension and without.
"""

import gc
import random
import re
import sys

import numpy as np

import hal

CALLS = 400
SOURCE = """
extern "C" __global__ void HAL_BLOCK(4) set(int *y, signed char a, unsigned long long b, float c,
                                            const float *x) {
  y[threadIdx.x] = a + (int)b + (int)(c * 2) + (x ? (int)x[0] : 0);
}
"""
NUMBERS = [
    *(0, 1, 7, 255, 256, -1, -129, 2**31, 2**32 - 1, 2**53 + 1, 2**63, 2**64, True),
    *(0.0, -0.0, 1.5, 1e39, float("inf"), "x", None, 3j),
    *(
        np.int8(-3),
        np.uint64(2**63),
        np.float16(0.1),
        np.float32(1.1),
        np.float64(1e300),
        np.bool_(1),
    ),
    *(b"", b"a", b"ab", b"abc", b"abcd", b"abababab", b"abcdefgh", b"0123456789abcdef"),
]
DTYPES = ["u1", "i1", "<u2", ">i2", "i4", "u4", "i8", "u8", "f2", "f4", "f8", "?", "c8"]


def untimed(thing):
    """Return its text; what a semaphore's value was when an error was made depends on the time."""
    return re.sub("its value is [0-9]+", "its value is N", str(thing))


class Program:
    """The objects, and one random call after another."""

    def __init__(self, device, seed):
        self.device = device
        self.pick = random.Random(seed)
        self.queues = [
            device.queue,
            device.create_queue(name="ordered"),
            device.create_queue(name="free", ordered=False),
        ]
        for queue in self.queues[: seed % 3]:  # others may fill these streams, too
            assert queue.stream_handle
        self.semaphores = [hal.create_semaphore(name=f"s{i}") for i in range(4)]
        # A buffer for each queue: two queues would write in any order.
        self.buffers = [device.upload(np.zeros(64, np.uint8)) for _ in self.queues]
        self.pinned = [device.allocate(64, memory="host") for _ in self.queues]
        for each in self.pinned:
            each.map()[:] = 0
        self.index = 0  # of the queue and the buffers of the next call
        self.kernel = device.compile(SOURCE)["set"]
        self.foreign = hal.create_device("cpu").upload(np.zeros(64, np.uint8))
        self.recordings = []
        for index in range(len(self.queues)):
            self.index = index
            for count in (1, 2, 40):
                with device.record() as commands:
                    for _ in range(count):  # which run in any order
                        arguments = (self.whole("i4"), count, 1, 1.0, None)
                        commands.dispatch(self.kernel, grid=1, args=arguments)
                self.recordings.append(commands)
        self.slotted = []  # one launch, three with barriers, and three in the order of their bytes
        for count, options in ((1, {}), (3, {}), (3, {"hazards": "auto"})):
            slots = ["i4", ("f4", 8), "scalar", "grid"]
            with device.record(slots=slots, **options) as commands:
                y, x, number, grid = commands.slots
                for index in range(count):
                    arguments = (y, number, number, index, x)
                    commands.dispatch(self.kernel, grid=grid, args=arguments)
                    commands.barrier()
            self.slotted.append(commands)
        self.temporaries = [[] for _ in self.queues]  # of each queue
        for memory in ("device", "host"):  # so that no alloca waits for a thread that makes memory
            device.queue.dealloca(device.queue.alloca(1 << 16, memory=memory)).wait()
        for size in (1, 8, 64):  # and no write for memory to stage in
            for _ in range(2):
                device.queue.update(self.buffers[0], np.zeros(size, np.uint8)).wait()
        self.last = [
            queue.fill(buffer, 0) for queue, buffer in zip(self.queues, self.buffers, strict=True)
        ]

    def whole(self, dtype):
        return self.buffers[self.index].view(dtype)

    def buffer(self):
        pick = self.pick
        if pick.random() < 0.03:
            return pick.choice([self.foreign, None, 3])
        buffer = self.buffers[self.index]
        if pick.random() < 0.3:
            buffer = buffer.subspan(8 * pick.randrange(3), 8 * pick.randrange(5))
        return buffer.view(pick.choice(DTYPES))

    def point(self):
        pick = self.pick
        semaphore = pick.choice(self.semaphores)
        reserved = semaphore._reserved
        return semaphore.at(
            max(0, pick.choice([reserved, reserved + 1, reserved - 1, reserved + 2]))
        )

    def lists(self):
        pick, options = self.pick, {}
        if pick.random() < 0.6:
            wait = [
                pick.choice([*self.last, pick.choice(self.semaphores).at(0), self.point()])
                for _ in range(pick.choice([0, 1, 1, 2, 20]))
            ]
            options["wait"] = pick.choice([wait, tuple(wait), wait[0] if wait else None])
        if pick.random() < 0.5:
            signal = [self.point() for _ in range(pick.choice([1, 1, 1, 2]))]
            options["signal"] = pick.choice(
                [signal, tuple(signal), signal[0], "bad"][: 3 + (len(signal) > 1)]
            )
        return options

    def fill(self):
        pick, options = self.pick, self.lists()
        if pick.random() < 0.3:
            options["offset"] = pick.choice([0, 1, 2, 4, 8, 63, 64, 65, -1, None, np.int64(4)])
        if pick.random() < 0.3:
            options["size"] = pick.choice([0, 1, 2, 3, 4, 8, 64, 65, -1, None, True])
        return self.submit("fill", self.buffer(), pick.choice(NUMBERS), **options)

    def copy(self):
        """Copy between a queue's two buffers, in either direction, or into one from the host."""
        pick = self.pick
        if pick.random() < 0.3:
            self.settle()  # the memory to stage in is back: without it, a thread copies later
            data = np.arange(pick.choice([0, 1, 8, 64, 65]), dtype=np.uint8)
            method = pick.choice(["update", "write"])
            return self.submit(method, self.buffer(), data, **self.lists())
        options = self.lists()
        for name in ("source_offset", "target_offset", "size"):
            if pick.random() < 0.3:
                options[name] = pick.choice([0, 1, 8, 24, 63, 64, 65, -1, None, np.int64(4), True])
        pair = [self.buffer(), self.buffer() if pick.random() < 0.2 else self.pinned[self.index]]
        pick.shuffle(pair)
        return self.submit("copy", *pair, **options)

    def dispatch(self):
        pick = self.pick
        options = self.lists() | {
            "grid": pick.choice(
                [1, 1, 1, (1,), (1, 1, 1), [1, 1], 0, (2, 0), -1, True, 2**31, (), 1.0]
            ),
            "args": (
                pick.choice([self.whole("i4"), self.buffer(), None, 5]),
                *(pick.choice([1, 2, pick.choice(NUMBERS)]) for _ in range(3)),
                pick.choice([None, self.whole("f4"), self.buffer()]),
            ),
        }
        if options["args"][0] is None:
            options["grid"] = 0  # it would write there
        if pick.random() < 0.4:
            options["block"] = pick.choice(
                [None, 4, 4, (4, 1), (4,), [4], np.int32(4), 0, True, 2**20]
            )
        if pick.random() < 0.2:
            options["shared_memory"] = pick.choice([None, 0, 64, -1])
        if pick.random() < 0.2:
            options["args"] = pick.choice([list(options["args"]), options["args"][:-1], {}, ()])
        return self.submit("dispatch", self.kernel, **options)

    def execute(self):
        options = self.lists()
        if self.pick.random() < 0.2:
            options["bindings"] = self.pick.choice([None, (), [self.buffers[0]]])
        if self.pick.random() < 0.5:
            options["bindings"] = self.bindings()
            return self.submit("execute", self.pick.choice(self.slotted), **options)
        own = self.recordings[3 * self.index : 3 * self.index + 3]
        return self.submit("execute", self.pick.choice([*own, None]), **options)

    def bindings(self):
        pick, half = self.pick, self.buffers[self.index].subspan
        found = [
            half(0, pick.choice([16, 32])).view("i4"),
            half(pick.choice([32, 32, 40, 40, 48, 48, 8]), 16).view("f4"),
            pick.choice([1, 2, 2, 7, 100, pick.choice(NUMBERS)]),
            pick.choice([1, 1, 1, (1,), (1, 1, 1), pick.choice([[1, 1], 0, (1, 0), -1, 2**31])]),
        ]
        if pick.random() < 0.1:
            found[pick.randrange(4)] = pick.choice([None, self.foreign, self.buffer(), 1])
        if pick.random() < 0.1:
            found = pick.choice([found[:-1], [*found, 1], (), dict(enumerate(found))])
        return pick.choice([found, tuple(found) if type(found) is list else found])

    def alloca(self):
        """Allocate, fill now and then what was allocated, and give back."""
        pick, options = self.pick, self.lists()
        here = self.temporaries[self.index]
        if not here or pick.random() < 0.4:
            if pick.random() < 0.5:
                options["dtype"] = pick.choice([np.uint8, np.float32, np.dtype("i8"), "f4", "O", 3])
            size = pick.choice([64, 256, 256, 4096, 0, -1, 3, True, np.int64(64), 2.0, 1 << 60])
            if pick.random() < 0.3 and size != 1 << 60:  # which is refused for device memory only
                options["memory"] = pick.choice(["device", hal.MemoryType.DEVICE, "host", "no", 1])
            here.append(self.make(self.queues[self.index], size, options))
            return here[-1].dtype.name, here[-1].shape, here[-1].closed
        buffer = pick.choice(here)
        if pick.random() < 0.4:
            return self.submit("fill", buffer, 1, **self.lists())
        if pick.random() < 0.8:
            here.remove(buffer)
        elif pick.random() < 0.5:
            here.append(buffer.subspan(0, 64))
        queue = pick.choice([self.queues[self.index]] * 4 + self.queues)
        if queue is not self.queues[self.index]:
            options["wait"] = [self.last[self.index], buffer.allocation]
            return queue.dealloca(buffer, **options).kind
        return self.submit("dealloca", buffer, **options)

    def make(self, queue, size, options):
        """An alloca in the order of what writes to its queue's buffer."""
        if not queue.ordered:
            options["wait"] = self.last[self.index]
        buffer = queue.alloca(size, **options)
        self.last[self.index] = buffer.allocation
        return buffer

    def submit(self, method, *args, **options):
        queue = self.queues[self.index]
        if not queue.ordered:  # what writes one buffer is in order all the same
            options["wait"] = self.last[self.index]
        self.last[self.index] = submission = getattr(queue, method)(*args, **options)
        return submission.kind

    def barrier(self):
        return self.submit("barrier", **self.lists())

    def signal(self):
        return self.point().semaphore.signal(self.point().value)

    def wait(self):
        semaphore, timeout = self.pick.choice(self.semaphores), self.pick.choice([0, 0.0, -1, "x"])
        return semaphore.wait(self.pick.choice([0, 0, 0, -1, 2**63, True]), timeout)

    def at(self):
        return self.pick.choice(self.semaphores).at(
            self.pick.choice([0, 2**63 - 1, 2**63, -1, 1.0])
        )

    def odd(self):
        """Make a new semaphore, now and then behind a failure; or close a queue or a buffer."""
        pick = self.pick
        index = pick.randrange(len(self.semaphores))
        self.semaphores[index].fail(ValueError(f"failed {index}"))
        if pick.random() < 0.7:
            self.semaphores[index] = hal.create_semaphore(name=f"t{index}")
        if pick.random() < 0.1:
            self.settle()
            self.queues[-1].close()
        return index

    def run(self):
        for number in range(CALLS):
            kinds = [self.fill] * 8 + [self.dispatch] * 6 + [self.execute] * 3
            kinds += [self.copy] * 5 + [self.alloca] * 6 + [self.signal] * 4 + [self.wait, self.at]
            kinds += [self.barrier] * 2
            kinds += [self.odd] * (not number % 40)
            call = self.pick.choice(kinds)
            self.index = self.pick.randrange(len(self.queues))
            try:
                result = call()
            except Exception as error:  # noqa: BLE001 - what is compared
                result = f"{type(error).__name__}: {untimed(error)}"
            print(number, call.__name__, result)  # noqa: T201
            print([each._reserved for each in self.semaphores])  # noqa: T201
            if not number % 20:
                self.settle()

    def settle(self):
        """Release what waits, let all end, and print what is there."""
        for semaphore in self.semaphores:
            if semaphore._failure is None:
                semaphore.signal(semaphore._reserved + 100)
        self.device.wait_idle(60)
        for semaphore in self.semaphores:
            print(untimed(semaphore))  # noqa: T201
        for submission in self.last:
            print(submission.state, untimed(submission.error))  # noqa: T201
        for buffer in (*self.buffers, *self.pinned):
            print(buffer.numpy().tobytes().hex())  # noqa: T201
        gc.collect()  # errors are in cycles with frames, which hold temporaries
        now = self.device.statistics()
        print(now.bytes_now, now.allocations)  # noqa: T201


if __name__ == "__main__":
    with hal.create_device(sys.argv[1]) as opened:
        Program(opened, int(sys.argv[2])).run()
