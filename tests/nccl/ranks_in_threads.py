"""Run the programs of ranks over the fake library: a thread and a software device for each."""

from __future__ import annotations

import ctypes
import os
import socket
import sys
import threading
from functools import partial

import numpy as np
import pytest

import hal
import hal.collectives
from hal.errors import CollectiveError, CollectiveTimeoutError, UnimplementedError
from hal_conformance.ranks import PROGRAMS, Rank

LIMIT = 30.0
PROVIDER = sys.argv[1]
BACKEND = {"nccl": "cuda", "rccl": "hip"}[PROVIDER]
FAKE = ctypes.CDLL(os.environ[f"HAL_{PROVIDER.upper()}_LIBRARY"])


def in_threads(functions):
    """Call each on a thread; return the results, or raise the first error."""
    results, errors = [None] * len(functions), []

    def run(index):
        try:
            results[index] = functions[index]()
        except BaseException as error:  # noqa: BLE001 - raised by the caller
            errors.append(error)

    threads = [threading.Thread(target=run, args=(index,)) for index in range(len(functions))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return results


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
    """What the library reports, at a call and later, breaks the group."""
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


if __name__ == "__main__":
    globals()[sys.argv[2]](*sys.argv[3:])
    sys.stdout.write("done\n")
