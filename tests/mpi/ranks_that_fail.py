"""What each rank does in the tests of failures over MPI; prints what it has seen, as JSON."""

import contextlib
import ctypes
import gc
import json
import os
import resource
import signal
import sys
import threading
import time
import weakref
from pathlib import Path

import numpy as np
import ranks_that_agree

import hal
import hal.collectives
import hal_mpi.closed
from hal._base.regions import SharedRegion
from hal.errors import ClosedError, CollectiveError, HalError, RendezvousError
from hal_mpi import _mpi

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


def patience(group):
    """Rank 0 gives up a wait for an operation, to which rank 1 comes later; return what it saw."""
    world, found = _mpi.MPI.COMM_WORLD, {"late": 0, "wrong": []}
    for count in (8, 20_000, 1_200_006):
        buffer = group.device.upload(np.ones(count, np.float32))
        for _ in range(5):
            if group.rank == 1:
                world.recv(source=0)
            work = group.device.queue.all_reduce(buffer, group=group, op="average")
            if group.rank == 0:
                try:
                    work.wait(0.001)
                except TimeoutError:
                    found["late"] += 1
                world.send(None, 1)
            work.wait(LIMIT)
        if not (buffer.numpy() == 1).all():
            found["wrong"].append(count)
    return found


def small(group):
    return unheard(group, count=8)


def unheard(group, *, is_taken=False, count=1_200_000):
    """Rank 1 comes to an operation that rank 0 has given up, and has not looked since.

    Or another thread of its process has taken what rank 0 told, and no more.
    """
    from mpi4py import MPI  # noqa: PLC0415 - it is initialised by now

    reduce(group).wait(LIMIT)
    if group.rank == 1:
        MPI.COMM_WORLD.recv(source=0)
        while is_taken and group._native._failure is None:
            group._native._hear()
        return seen(reduce(group, count))
    found = seen(reduce(group, count))
    while not group._native._is_over:  # then it has told
        time.sleep(0.01)
    MPI.COMM_WORLD.send(None, 1)
    return found


def taken(group):
    return unheard(group, is_taken=True)


def forked(group):
    """Rank 0 has a child that drops its copy of the group, and is refused before."""
    reduce(group, 120_000).wait(LIMIT)
    status = 0
    if group.rank == 0:
        child = os.fork()
        if child == 0:
            signal.alarm(10)
            refused = 0
            batch = group.batch().__enter__
            for call in (group.close, batch, lambda: group.split(0), lambda: group.error):
                with contextlib.suppress(ClosedError):
                    call()
                    refused -= 1
                refused += 1
            group._native._streams = None
            os._exit(4 - refused)
        _, status = os.waitpid(child, 0)
    return {"status": status, **seen(reduce(group, 120_000))}


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


def hang(group):
    """Rank 1 gives no data of a large operation; the streams go on."""
    reduce(group).wait(LIMIT)
    large = group.device.upload(np.ones(300_000))
    found = seen(group.device.queue.broadcast(large, group=group, root=1))
    buffer = group.device.upload(np.zeros(4))
    group.device.queue.fill(buffer, 3.0).wait(LIMIT)
    found["goes on"] = buffer.numpy().tolist() == [3.0] * 4
    return found


refuse = hang


def asleep(group):
    """Rank 1 sleeps in MPI before it gives the data, and goes on once rank 0 has given up."""
    from mpi4py import MPI  # noqa: PLC0415 - it is initialised by now

    world, rank, queue = MPI.COMM_WORLD, group.rank, group.device.queue
    buffer = group.device.upload(np.full(300_000, float(rank)))
    found = seen(queue.broadcast(buffer, group=group, root=1))
    while not group._native._is_over:
        time.sleep(0.01)
    if rank == 0:
        queue.barrier().wait(LIMIT)  # behind the operation, which has ended on the stream
        world.send(None, 1)
        world.recv(source=1)
        world.send(None, 1)
    else:
        woken.wait(LIMIT)
        world.send(None, 0)  # MPI has the data by now
        world.recv(source=0)
    found["changed"] = int((buffer.numpy() != rank).sum())
    found["kept"] = len(hal.collectives.group._left)
    buffer.close()
    found["not freed"] = len(group.device.close())
    return found


woken = threading.Event()
send_type = ctypes.CFUNCTYPE(ctypes.c_int, *(ctypes.c_uint64,) * 7)


def other_send(case):
    """Return what rank 1 does in the place of MPI's function that sends."""
    from mpi4py import MPI  # noqa: PLC0415 - `join` initialises it

    send, receive = (send_type(_mpi._address_of(name)) for name in ("Isend", "Irecv"))

    def instead(*words):
        is_data = words[1] > 1_000  # bytes
        if is_data and case == "refuse":
            return -1
        if is_data and case == "hang":
            data, _, kind, rank, _, *others = words
            return receive(data, 0, kind, rank, _mpi._MESSAGE - 1, *others)  # which nobody sends
        if is_data and not woken.is_set():
            MPI.COMM_WORLD.recv(source=0)
        status = send(*words)
        if is_data:
            woken.set()
        return status

    return send_type(instead)


def late_split(group):
    """Rank 1 comes when rank 0 has given up, and both try again; return what each try gave."""
    world, tries = _mpi.MPI.COMM_WORLD, []

    def split(timeout):
        try:
            made = group.split(0, timeout=timeout)
        except RendezvousError as error:
            tries.append(error.ranks)
        else:
            tries.append(made.size)
            made.close()

    if group.rank == 1:
        world.recv(source=0)
    split(0.1)
    if group.rank == 0:
        world.send(None, 1)
    split(LIMIT)
    return {"tries": tries, **seen(reduce(group))}


def unmade(group):
    """Rank 1 hangs before it makes the communicator of a split to which both have come."""
    world, make = _mpi.MPI.COMM_WORLD, _mpi._make
    if group.rank == 1:
        _mpi._make = lambda *given: (world.recv(source=0), make(*given))[1]
    try:
        group.split(0, timeout=1.0)
    except RendezvousError as error:
        text = str(error)
    if group.rank == 0:
        world.recv(source=1)  # it has given up, too
    world.send(None, 1 - group.rank)
    return {"text": text, "next": seen(reduce(group))["error"]}


def few_files(group):
    """Rank 1 may open few files, and more each time; return what each new group has."""
    kind, found, groups = resource.RLIMIT_NOFILE, [], [group, group.split(0)]
    limits = resource.getrlimit(kind)
    for more in (*range(9), 50):
        before = ranks_that_agree.memories()
        if group.rank == 1:
            resource.setrlimit(kind, (len(os.listdir("/proc/self/fd")) - 1 + more, limits[1]))
        try:
            groups.append(group.split(0, timeout=LIMIT))
        finally:
            resource.setrlimit(kind, limits)
        found.append([ranks_that_agree.memories() - before, seen(reduce(groups[-1]))["error"]])
    for each in groups[1:]:
        each.close()
    return {"found": found}


def records(group):
    """Rank 0 looks at its records while operations run; return those that are others'."""
    device, meeting, wrong, is_over = group.device, group._native._streams.meeting, set(), []
    buffers = [device.upload(np.zeros(8, dtype)) for dtype in ("int32", "float32")]

    def look():
        while not is_over:
            begun, _, headers = meeting.records()
            for number, text in enumerate(headers, begun - len(headers) + 1):
                if not text.startswith(f"all_reduce #{number} of 8 {buffers[number % 2].dtype}"):
                    wrong.add((number, begun, text))

    looking = threading.Thread(target=look)
    looking.start()
    for _ in range(10):
        for number in range(1, 1001):
            last = device.queue.all_reduce(buffers[number % 2], group=group)
        last.wait(LIMIT)
    is_over.append(True)
    looking.join()
    return {"wrong": sorted(wrong)}


def idle(group):
    """Rank 1 has submitted nothing, and asks once for the error."""
    world = _mpi.MPI.COMM_WORLD
    if group.rank == 1:
        world.recv(source=0)
        return {"text": str(group.error)}
    broken = hal.create_semaphore()
    reduce(group, wait=broken.at(1))
    broken.fail(hal.errors.OperationError("broken on purpose"))
    while not group._native._is_over:  # then it has told
        time.sleep(0.01)
    world.send(None, 1)
    return {"text": str(group.error)}


def late_message(group):
    """Rank 1 sends when rank 0's receive has failed, and rank 0 has not told it yet."""
    world, told = _mpi.MPI.COMM_WORLD, threading.Event()
    if group.rank == 1:
        world.recv(source=0)
        comm, head = group._native._comm.comm, np.zeros(_mpi.HEADER, np.uint8)
        head[:9] = np.frombuffer(b"4 float64", np.uint8)
        head[9:] = ord(" ")
        comm.Send(head, 0, 1)
        comm.Send(np.full(4, 7.0), 0, 2)
        world.send(None, 0)
        return {"changed": 0}
    abort = group._native.abort
    group._native.abort = lambda error: told.wait(LIMIT) and abort(error)
    buffer = group.device.upload(np.ones(4))
    with group.batch():
        found = group.device.queue.receive(buffer, group=group, peer=1)
    found = seen(found)
    world.send(None, 1)
    world.recv(source=1)  # MPI has it by now
    for _ in range(100):
        world.iprobe()
        time.sleep(0.001)
    told.set()
    return {**found, "changed": int((buffer.numpy() != 1).sum())}


def late_data(group):
    """Rank 1 gives its data when rank 0's broadcast has failed, and rank 0 has not told it yet."""
    world, told, rank = _mpi.MPI.COMM_WORLD, threading.Event(), group.rank
    abort = group._native.abort
    group._native.abort = lambda error: told.wait(LIMIT) and abort(error)
    buffer = group.device.upload(np.full(300_000, float(rank)))
    work = group.device.queue.broadcast(buffer, group=group, root=1)
    if rank == 1:
        woken.wait(LIMIT)
        world.send(None, 0)  # MPI has the data by now
        world.recv(source=0)
        told.set()
        return seen(work)
    found = seen(work)
    world.send(None, 1)
    world.recv(source=1)
    for _ in range(100):
        world.iprobe()
        time.sleep(0.001)
    world.send(None, 1)
    told.set()
    return {**found, "changed": int((buffer.numpy() != rank).sum())}


def handlers(group):
    """A signal handler asks for errors at every place of this package's code.

    And in the middle of each function, for the first time, it closes a group.
    """
    folder, known, hits, busy = str(Path(_mpi.__file__).parent), set(), 0, False
    made = [group.split(0)]
    spare = [group.split(0) for _ in range(60)]

    def handle(frame, event, _):
        nonlocal hits, busy
        is_ours = frame.f_code.co_filename.startswith(folder)
        if not is_ours or event not in {"call", "c_return"} or busy:
            return
        busy, hits = True, hits + 1
        assert group.error is None
        assert made[-1].error is None
        if event == "c_return" and frame.f_code not in known:
            known.add(frame.f_code)
            spare.pop().close()
        busy = False

    sys.setprofile(handle)
    try:
        for _ in range(3):
            reduce(group).wait(LIMIT)
            made.append(group.split(0))
            reduce(made[-1]).wait(LIMIT)
            made.pop(0).close()
    finally:
        sys.setprofile(None)
    for each in spare:
        each.close()
    return {"hits": hits > 50, **seen(reduce(made[-1]))}


def raises(group):
    """MPI fails where rank 0 looks for what the others tell."""
    reduce(group).wait(LIMIT)
    other = group.split(0)
    if group.rank == 0:

        def fail():
            raise RuntimeError("MPI is broken on purpose")

        group._native._comm.is_told = fail
    found = seen(reduce(group, wait=hal.create_semaphore().at(1) if group.rank == 0 else ()))
    return {**found, "next": seen(reduce(other))["error"]}


def receives(group):
    """Rank 0 gives up two messages, of which it waits for one; return what is kept of them."""
    from mpi4py import MPI  # noqa: PLC0415 - it is initialised by now

    if group.rank == 1:
        MPI.COMM_WORLD.recv(source=0)
        return {}
    comm, heads = group._native._comm, []

    def receive(array, *peer):
        heads.append(weakref.ref(array))
        return type(comm).receive(comm, array, *peer)

    comm.receive = receive
    buffers = [group.device.upload(np.ones(4)) for _ in range(2)]
    with group.batch():
        for buffer in buffers:
            submission = group.device.queue.receive(buffer, group=group, peer=1)
    found = seen(submission)
    while group._native._is_waiting:
        time.sleep(0.01)
    gc.collect()
    MPI.COMM_WORLD.send(None, 1)
    return {**found, "kept": [head() is not None for head in heads]}


def many(group):
    """More groups than MPI has communicators, and another one once they are closed."""
    groups, error = [], None
    while error is None and len(groups) < 10_000:
        try:
            groups.append(group.split(0))
        except HalError as raised:
            error = raised
    for each in groups:
        each.close()
    groups = [group.split(0) for _ in range(10)]
    return {"text": str(error), **seen(reduce(groups[-1]))}


def broken(group, rounds=9):
    """Groups fail in all ways in which every rank lives, and all ranks close them."""
    hal_mpi.closed.ANSWERS = LIMIT  # a call that is slow on a busy machine is not given up
    world, free, made = _mpi.MPI.COMM_WORLD, _mpi.Communicator.free, {}
    _mpi.Communicator.free = lambda comm: (free(comm), made.pop(comm, None))
    errors = set()
    for number in range(rounds):
        other = group.split(0)
        made[other._native._comm] = None
        seen(reduce(other))
        count = 100_000 if number % 2 else 8  # a large one moves by itself
        if number % 3 == 0:
            found = seen(reduce(other, count + other.rank))
        elif number % 3 == 1:
            gate = hal.create_semaphore()
            found = reduce(other, count, wait=gate.at(1) if other.rank == 0 else ())
            if other.rank == 0:
                gate.fail(hal.errors.OperationError("broken on purpose"))
            found = seen(found)
        else:  # rank 0 and rank 1 differ, and others hear of it
            kind = "send" if other.rank == 0 else "receive"
            buffer = other.device.upload(np.ones(count + other.rank))
            if other.rank < 2:
                message = getattr(other.device.queue, kind)
                found = message(buffer, group=other, peer=1 - other.rank)
            while other.error is None:
                time.sleep(0)
            found = seen(found) if other.rank < 2 else seen(reduce(other))
        errors.add(found["error"])
        while other.error is None:
            time.sleep(0)
        other.close()
    end = time.monotonic() + LIMIT
    while world.allreduce(len(made)) and world.bcast(time.monotonic() < end):
        group.split(0).close()
    return {"left": len(made), "errors": sorted(map(str, errors)), **seen(reduce(group))}


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


def refuse_memory(*_):
    message = "refused on purpose"
    raise hal.errors.OutOfMemoryError(message)


def main():
    case, seconds = sys.argv[1], float(sys.argv[2])
    if case == "absent":
        absent(seconds)
        return
    if case in {"asleep", "late_data", "hang", "refuse"} and hal.collectives.find_place().rank == 1:
        of, send = _mpi._address_of, other_send(case)
        other = ctypes.cast(send, ctypes.c_void_p).value
        _mpi._address_of = lambda name: other if name == "Isend" else of(name)
    if case == "by_messages" and hal.collectives.find_place().rank == 1:
        SharedRegion.create = refuse_memory
    with hal.create_device("cpu") as device:
        # On a busy machine the ranks' processes start long after each other.
        group = hal.collectives.join(device, timeout=max(seconds, LIMIT), name="tested")
        group._timeout = seconds
        found = (vars(ranks_that_agree).get(case) or globals()[case])(group)
        group.close()
    sys.stdout.write(json.dumps({"rank": group.rank, "provider": group.provider, **found}) + "\n")
    sys.stdout.flush()
    if case in {"killed", "hang", "refuse", "unmade"}:
        os._exit(0)  # MPI_Finalize would wait for the one that is gone, or meet a thread in MPI


if __name__ == "__main__":
    main()
