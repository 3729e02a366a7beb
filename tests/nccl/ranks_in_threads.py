"""Run the programs of ranks over the fake library: a thread and a software device for each."""

import ctypes
import os
import random
import socket
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial

import numpy as np
import pytest

import hal
import hal.collectives
from hal.collectives import Group, group_watch
from hal.errors import CollectiveError, CollectiveTimeoutError, HalError, UnimplementedError
from hal_conformance.ranks import PROGRAMS, Rank

LIMIT = 30.0
PROVIDER = sys.argv[1]
BACKEND = {"nccl": "cuda", "rccl": "hip"}[PROVIDER]
FAKE = ctypes.CDLL(os.environ[f"HAL_{PROVIDER.upper()}_LIBRARY"])


def in_threads(functions):
    """Call each on a thread; return the results, or raise the first error."""
    with ThreadPoolExecutor(len(functions)) as pool:
        running = [pool.submit(each) for each in functions]
    return [each.result() for each in running]


class Ranks:
    """Devices and groups of some ranks."""

    def __init__(self, size, rendezvous="tests", timeout=LIMIT):
        self.devices = [hal.create_device(f"{BACKEND}:{number}") for number in range(size)]
        join = partial(hal.collectives.join, size=size, rendezvous=rendezvous, timeout=timeout)
        self.groups = in_threads(
            [partial(join, device, rank=rank) for rank, device in enumerate(self.devices)]
        )
        assert {group.provider for group in self.groups} == {PROVIDER}
        # On a queue whose stream was asked for the C extension submits nothing.
        assert not any(device.queue._shown for device in self.devices)

    def reduce(self, rank, count=8):
        device = self.devices[rank]
        buffer = device.upload(np.ones(count, np.float32))
        return device.queue.all_reduce(buffer, group=self.groups[rank])

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for each in (*self.groups, *self.devices):
            each.close()


def failure_of(submission):
    """Return what a submission fails with."""
    try:
        submission.wait(LIMIT)
    except CollectiveError as error:
        return error
    raise AssertionError("it did not fail")


def results(size):
    """Run every program of the suite's."""
    with Ranks(int(size)) as ranks:
        for program in PROGRAMS.values():
            in_threads(
                [
                    partial(program, Rank(group, device.queue))
                    for group, device in zip(ranks.groups, ranks.devices, strict=True)
                ]
            )


def late():
    """A rank that does not come: the others abort, go on, and make a new group."""
    with Ranks(3, timeout=4.0) as ranks:  # the first must end within it
        hal.wait_all([ranks.reduce(rank) for rank in range(3)], LIMIT)
        for error in [failure_of(each) for each in (ranks.reduce(0), ranks.reduce(2))]:
            assert isinstance(error, CollectiveTimeoutError)
            assert "all_reduce #2 of 8 float32, sum" in str(error)
        buffer = ranks.devices[0].upload(np.zeros(4))
        ranks.devices[0].queue.fill(buffer, 2.0).wait(LIMIT)
        left = in_threads(
            [partial(ranks.groups[each].rebuild, [2, 0], timeout=LIMIT) for each in (0, 2)]
        )
        assert [group.rank for group in left] == [1, 0]
        ranks.groups[0], ranks.groups[2] = left
        hal.wait_all([ranks.reduce(0), ranks.reduce(2)], LIMIT)


def errors():
    """An error that the library reports, at a call or later, breaks the group."""
    with Ranks(2) as ranks:
        FAKE.fake_fail_next(5)
        error = failure_of(ranks.reduce(0))
        assert (error.native_name, error.native_code) == ("ncclInvalidUsage", 5)
        assert "told to" in str(error)
        assert ranks.groups[0].error is not None
    with Ranks(2, "again") as ranks:
        first = ranks.reduce(0)
        FAKE.fake_fail.argtypes = (ctypes.c_void_p, ctypes.c_int)
        FAKE.fake_fail(ranks.groups[0]._native._comm, 6)
        assert failure_of(first).native_name == "ncclRemoteError"
        short = ranks.devices[0].upload(np.ones(2, np.int16))
        with pytest.raises(UnimplementedError, match="does not reduce int16"):
            ranks.devices[0].queue.all_reduce(short, group=ranks.groups[0])


def meeting(folder):
    """The ranks meet by a file, by an address, and by a function; a batch is one launch."""
    table = {}
    came = threading.Event()

    def hand_on(data):
        if data is not None:
            table["id"] = data
            came.set()
        assert came.wait(LIMIT)
        return table["id"]

    with socket.create_server(("127.0.0.1", 0)) as free:  # a port that no other run has
        port = free.getsockname()[1]
    for place in (f"file://{folder}/id", f"tcp://127.0.0.1:{port}", hand_on):
        with Ranks(2, place) as ranks:
            hal.wait_all([ranks.reduce(rank) for rank in range(2)], LIMIT)
    with pytest.raises(hal.errors.RendezvousError, match="give each run a path of its own"):
        Ranks(2, f"file://{folder}/id", timeout=2.0)


def calls_of(function):
    """Return the Python functions of hal that a call enters, once it is like an earlier one."""
    function()
    names = []

    def note(frame, event, _):
        if event == "call" and frame.f_globals["__name__"].partition(".")[0] == "hal":
            names.append(frame.f_code.co_qualname)

    sys.setprofile(note)
    try:
        function()
    finally:
        sys.setprofile(None)
    return names


@contextmanager
def watched_by_nobody():
    """Hold the thread that watches over groups between two looks.

    A group that it found at rest is added again by its next submission, in Python: whether it had
    looked meanwhile depended on the machine's speed.
    """
    held, go_on, pause = threading.Event(), threading.Event(), group_watch._pause

    class Pause:
        def wait(self, _):
            held.set()
            go_on.wait()

    group_watch._pause = Pause()
    try:
        yield held
    finally:
        group_watch._pause = pause
        go_on.set()


def direct():
    """With the C extension an operation that is one call enters no Python; what is unusual does."""
    with Ranks(2) as ranks, watched_by_nobody() as held:
        semaphores = [hal.create_semaphore() for _ in ranks.devices]
        values = iter(range(1, 100))
        small, large = (
            [device.upload(np.ones(count, np.float32)) for device in ranks.devices]
            for count in (8, 16)
        )
        parts = [each.subspan(0, 32) for each in large]
        others = [device.upload(np.ones(16, np.float32)) for device in ranks.devices]
        methods = {
            "all_reduce": lambda queue, i, of: queue.all_reduce(small[i], **of),
            "a target": lambda queue, i, of: queue.all_reduce(small[i], target=parts[i], **of),
            "lists": lambda queue, i, of: queue.all_reduce(
                small[i], wait=semaphores[i].at(0), signal=semaphores[i].at(next(values)), **of
            ),
            "reduce": lambda queue, i, of: queue.reduce(small[i], root=1, op="min", **of),
            "broadcast": lambda queue, i, of: queue.broadcast(small[i], root=1, **of),
            "all_gather": lambda queue, i, of: queue.all_gather(small[i], large[i], **of),
            "reduce_scatter": lambda queue, i, of: queue.reduce_scatter(large[i], small[i], **of),
            "send": lambda queue, i, of: (queue.receive if i else queue.send)(
                small[i], peer=1 - i, **of
            ),
            "group_barrier": lambda queue, i, of: queue.group_barrier(**of),
        }
        exchange = {"all_to_all": lambda queue, i, of: queue.all_to_all(large[i], others[i], **of)}
        if PROVIDER == "nccl":  # the other library is an older one, where it is several calls
            methods |= exchange

        def run(method):
            entered, made = [], []
            for i, group in enumerate(ranks.groups):
                queue = ranks.devices[i].queue
                entered += calls_of(lambda: made.append(method(queue, i, {"group": group})))  # noqa: B023
            hal.wait_all(made, LIMIT)
            return entered

        for device in ranks.devices:
            hal.wait_all([device.queue.fill(device.allocate(64), 0) for _ in range(64)], LIMIT)
        run(methods["all_reduce"])  # the thread is started
        assert held.wait(LIMIT)
        run(methods["all_reduce"])  # the groups are among those to be watched from now on
        for name, method in methods.items():
            entered = run(method)
            assert not entered, (name, entered)
        # The holder of the group's lock is between two changes of it: the next comes after.
        entered, turns = threading.Event(), [group._turns for group in ranks.groups]

        def reduce_both():
            sys.setprofile(lambda frame, *_: frame.f_code is Group.enter.__code__ and entered.set())
            hal.wait_all([ranks.reduce(i) for i in range(2)], LIMIT)

        thread = threading.Thread(target=reduce_both)
        with ranks.groups[0].lock:
            thread.start()
            assert entered.wait(LIMIT)
            assert [group._turns for group in ranks.groups] == turns
        thread.join()
        assert [group._turns for group in ranks.groups] == [each + 1 for each in turns]
        assert ("Group.enter" in run(exchange["all_to_all"])) == (PROVIDER == "rccl")
        # What waits for a value that nobody has promised is Python's to line up.
        later = hal.create_semaphore()
        for value, method in enumerate(methods.values(), start=1):
            waiting = [
                method(ranks.devices[i].queue, i, {"group": group, "wait": later.at(value)})
                for i, group in enumerate(ranks.groups)
                if method is not methods["lists"]
            ]
            later.signal(value)
            hal.wait_all(waiting, LIMIT)


def same(seed):
    """Random calls, of which some are wrong; what they do and raise is printed."""
    chosen = random.Random(int(seed))
    with Ranks(2) as ranks:
        types = [np.float32, np.int32, np.int16]
        kinds = [
            "all_reduce",
            "reduce",
            "broadcast",
            "all_gather",
            "reduce_scatter",
            "group_barrier",
        ]
        buffers = [
            [
                device.upload(np.arange(4 * count, dtype=each) + 3 * rank)
                for count in (1, 1, 2)
                for each in types
            ]
            for rank, device in enumerate(ranks.devices)
        ]
        queues = [[device.queue, device.create_queue()] for device in ranks.devices]
        semaphores = [hal.create_semaphore() for _ in ranks.devices]
        for number in range(1, 81):
            kind = chosen.choice(kinds)
            source = chosen.randrange(9)
            target = chosen.choice([None, *(source % 3 + other for other in (0, 3, 6)), *range(3)])
            options = {}
            if kind in {"all_reduce", "reduce", "reduce_scatter"}:
                options["op"] = chosen.choice(["sum", "sum", "max", "average", "most"])
            if kind in {"reduce", "broadcast"}:
                options["root"] = chosen.choice([0, 1, 1, 2])
                target = chosen.choice([None, source])  # else one rank alone is wrong
            queue = int(chosen.random() < 0.1)
            for rank, group in enumerate(ranks.groups):
                given = [] if kind == "group_barrier" else [buffers[rank][source]]
                if given and target is not None:
                    given.append(buffers[rank][target])
                lists = {
                    "signal": semaphores[rank].at(number),
                    "wait": semaphores[rank].at(number - 1),
                }
                try:
                    getattr(queues[rank][queue], kind)(*given, group=group, **options, **lists)
                except (HalError, TypeError) as error:
                    print(rank, kind, type(error).__name__, error)  # noqa: T201
                    semaphores[rank].signal(number)
            hal.wait_all([each.at(number) for each in semaphores], LIMIT)
        for rank, group in enumerate(ranks.groups):
            print([str(step) for step in group._records], group._turn, group._counts)  # noqa: T201
            print([each.numpy().tolist() for each in buffers[rank]])  # noqa: T201


if __name__ == "__main__":
    globals()[sys.argv[2]](*sys.argv[3:])
    sys.stdout.write("done\n")
