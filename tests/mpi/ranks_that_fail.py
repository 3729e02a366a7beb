"""What each rank does in the tests of failures over MPI; prints what it has seen, as JSON."""

from __future__ import annotations

import json
import os
import signal
import sys
import time

import numpy as np

import hal
import hal.collectives
from hal.errors import CollectiveError, HalError

LIMIT = 20.0


def reduce(group, count=8, dtype="float32", **options):
    queue = group.device.queue
    return queue.all_reduce(group.device.upload(np.ones(count, dtype)), group=group, **options)


def seen(submission):
    """Return what a submission ended with."""
    begin = time.monotonic()
    try:
        submission.wait(LIMIT)
    except CollectiveError as error:
        return {
            "error": type(error).__name__,
            "ranks": error.ranks,
            "records": error.records,
            "text": str(error),
            "seconds": time.monotonic() - begin,
        }
    except HalError as error:
        return {"error": type(error).__name__, "text": str(error)}
    return {"error": None}


def size(group):
    """The last rank reduces more than the others."""
    return seen(reduce(group, 9 if group.rank == group.size - 1 else 8))


def dtype(group):
    return seen(reduce(group, dtype="int32" if group.rank == 1 else "float32"))


def kind(group):
    if group.rank == 0:
        return seen(group.device.queue.group_barrier(group=group))
    return seen(reduce(group))


def message(group):
    buffer = group.device.upload(np.ones(4 + group.rank))
    if group.rank == 1:
        return seen(group.device.queue.receive(buffer, group=group, peer=0))
    found = seen(group.device.queue.send(buffer, group=group, peer=1))
    while group.error is None:  # a small message is sent before anybody receives it
        time.sleep(0.01)
    return found if found["error"] else seen(reduce(group))


def late(group):
    """Rank 1 does not come to the second all-reduce until the others have given up."""
    reduce(group).wait(LIMIT)
    while group.rank == 1 and group.error is None:
        time.sleep(0.01)
    found = seen(reduce(group))
    left = [rank for rank in range(group.size) if rank != 1]
    if group.rank in left:
        other = group.rebuild(left[::-1], timeout=LIMIT)
        buffer = group.device.upload(np.full(4, float(group.rank)))
        other.device.queue.all_reduce(buffer, group=other).wait(LIMIT)
        found["rebuilt"] = [other.rank, other.size, *buffer.numpy()[:1]]
        other.close()
    buffer = group.device.upload(np.zeros(4))
    group.device.queue.fill(buffer, 3.0).wait(LIMIT)
    found["goes on"] = buffer.numpy().tolist() == [3.0] * 4
    return found


def killed(group):
    """Rank 1 is killed while the others wait for it; they make a new group and go on."""
    reduce(group).wait(LIMIT)
    if group.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    found = seen(reduce(group))
    other = group.rebuild([0, 2], timeout=LIMIT)
    buffer = group.device.upload(np.full(4, float(group.rank)))
    other.device.queue.all_reduce(buffer, group=other).wait(LIMIT)
    found["rebuilt"] = [other.rank, other.size, *buffer.numpy()[:1]]
    other.close()
    return found


def wait(group):
    """A wait of rank 0's fails."""
    if group.rank != 0:
        return seen(reduce(group))
    broken = hal.create_semaphore()
    mine = reduce(group, wait=broken.at(1))
    broken.fail(hal.errors.OperationError("broken on purpose"))
    found = seen(mine)
    while group.error is None:
        time.sleep(0.01)
    return found


def close(group):
    if group.rank == 0:
        reduce(group).wait(LIMIT)
        group.close()
        return {"error": None}
    reduce(group).wait(LIMIT)
    return seen(reduce(group))


def absent(seconds):
    """Rank 1 ends before it joins."""
    place = hal.collectives.find_place()
    if place.rank == 1:
        return
    with hal.create_device("cpu") as device:
        try:
            hal.collectives.join(device, timeout=seconds, name="tested")
        except HalError as error:
            found = {"rank": place.rank, "error": type(error).__name__, "text": str(error)}
            sys.stdout.write(json.dumps(found) + "\n")


def main():
    case, seconds = sys.argv[1], float(sys.argv[2])
    if case == "absent":
        absent(seconds)
        return
    with hal.create_device("cpu") as device:
        group = hal.collectives.join(device, timeout=seconds, name="tested")
        found = globals()[case](group)
        group.close()
    sys.stdout.write(json.dumps({"rank": group.rank, "provider": group.provider, **found}) + "\n")
    sys.stdout.flush()
    if case == "killed":
        os._exit(0)  # MPI_Finalize would wait for the one that is gone


if __name__ == "__main__":
    main()
