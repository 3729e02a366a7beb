"""Buffers that several processes open: their tickets, and what is refused (M1)."""

import copy
import dataclasses
import errno
import gc
import os
import pickle
from types import SimpleNamespace

import numpy as np
import pytest
from core_harness import wait_until

import hal
from hal._base import futex
from hal._base.regions import SharedRegion
from hal._buffers import sharing
from hal._memory.heap import Heap
from hal.errors import (
    ArgumentTypeError,
    ClosedError,
    InvalidArgumentError,
    OutOfMemoryError,
    UnimplementedError,
)
from hal.tickets import BufferTicket

pytestmark = pytest.mark.skipif(not futex.is_available(), reason="sharing needs Linux")


def raising(error):
    """Return a function that raises an error."""

    def refuse(*_, **__):
        raise error

    return refuse


def test_a_part_is_opened_as_it_is_m2(device):
    whole = device.allocate(400, dtype=np.float32, shareable=True)
    whole.map()[:] = np.arange(100)
    ticket = pickle.loads(pickle.dumps(whole[10:20].share()))
    opened = device.open(ticket)
    assert (opened.size, opened.dtype, opened.shape) == (40, np.float32, (10,))
    assert opened.numpy().tolist() == list(range(10, 20))
    opened.map()[0] = -1
    assert whole.map()[10] == -1
    read_only = device.allocate(16, access="read", shareable=True)
    assert device.open(read_only.share()).access == "read"


@pytest.mark.parametrize(
    "dtype", ["float16", "bfloat16", np.dtype([("a", "i1"), ("b", "f8")], align=True)]
)
def test_elements_are_opened_as_they_are_m2(device, dtype):
    shared = device.allocate(32, dtype=dtype, shareable=True)
    opened = device.open(pickle.loads(pickle.dumps(shared.share())))
    assert (opened.dtype, opened.shape) == (shared.dtype, shared.shape)


@pytest.mark.parametrize(
    "changes",
    [
        {"offset": -8},
        {"offset": 24, "size": -8, "shape": (-1,)},
        {"shape": (3,)},
        {"shape": (-2, -1)},
        {"dtype": "<f4"},
        {"dtype": "|O"},
        {"dtype": "none"},
        {"dtype": None},
        {"shape": 2},
        {"size": "16"},
        {"offset": None},
    ],
    ids=str,
)
def test_a_ticket_whose_fields_do_not_agree_is_refused_m2(device, changes):
    """No view beside the memory that is shared, and no objects in it."""
    ticket = device.allocate(16, dtype=np.float64, shareable=True).share()
    with pytest.raises((InvalidArgumentError, ArgumentTypeError), match=r"^open: "):
        device.open(dataclasses.replace(ticket, **changes))


def test_memory_lives_as_long_as_anybody_uses_it_m2(device):
    first = device.allocate(16, shareable=True)
    first.map()[:] = 7
    second = device.open(first.share())
    ticket = first.share()
    del first
    gc.collect()
    assert (second.numpy() == 7).all()
    device.trim()
    with pytest.raises(ClosedError, match="was closed there"):
        device.open(ticket)


def test_only_what_was_made_for_it_is_shared_m1(device):
    with pytest.raises(InvalidArgumentError, match=r"allocate\(size, shareable=True\)"):
        device.allocate(16).share()
    with pytest.raises(InvalidArgumentError, match=r"create_semaphore\(shareable=True\)"):
        hal.create_semaphore().share()
    for what in (7, None, b"ticket", device):
        with pytest.raises(ArgumentTypeError, match="open takes what share"):
            device.open(what)
    with pytest.raises(ArgumentTypeError):
        device.allocate(16, shareable="yes")
    shared = device.allocate(16, shareable=True)
    with pytest.raises(ArgumentTypeError, match="neither copied nor pickled"):
        copy.copy(shared)
    shared.close()
    with pytest.raises(ClosedError):
        shared.share()


def test_memory_that_the_system_does_not_map_is_refused_m3(device, monkeypatch):
    shared = device.allocate(16, shareable=True)
    ticket, open_files = shared.share(), len(os.listdir("/proc/self/fd"))

    def refuse(*_):
        raise OSError(errno.ENOMEM, "no memory on purpose")

    monkeypatch.setattr("hal._base.regions.mmap.mmap", refuse)
    with pytest.raises(InvalidArgumentError, match="no memory on purpose"):
        device.open(ticket)
    # The watching thread opens a file for a moment, to see whether a process still runs.
    wait_until(lambda: len(os.listdir("/proc/self/fd")) <= open_files)


def test_more_than_there_is_is_refused_m3(device):
    with pytest.raises(OutOfMemoryError, match="35,184,372,088,832 bytes of shared memory"):
        device.allocate(1 << 45, shareable=True)


def test_device_memory_is_refused_by_name_m1(open_probe):
    device, probe = open_probe()
    probe.dlpack_device = lambda memory: (2, 0)
    with pytest.raises(UnimplementedError, match='memory="host"'):
        device.allocate(16, shareable=True)


@pytest.mark.parametrize("kind", ["buffer", "semaphore"])
def test_a_ticket_of_somewhere_else_is_refused_m1(device, kind):
    if kind == "buffer":
        shared = device.allocate(16, shareable=True)
    else:
        shared = hal.create_semaphore(shareable=True)
    ticket = shared.share()
    assert repr(ticket.secret) not in repr(ticket)
    for changes, error, words in (
        ({"boot": "another"}, InvalidArgumentError, "another host"),
        ({"user": os.geteuid() + 1}, InvalidArgumentError, "users? "),
        ({"started": ticket.started + 1}, ClosedError, "has ended"),
        ({"secret": bytes(16)}, ClosedError, "was closed there"),
        ({"secret": None}, ClosedError, "was closed there"),
        ({"file": 0}, ClosedError, "was closed there"),
        ({"file": 1 << 20}, ClosedError, "was closed there"),
    ):
        with pytest.raises(error, match=words):
            device.open(dataclasses.replace(ticket, **changes))
    if kind == "buffer":
        with pytest.raises(ClosedError):
            device.open(dataclasses.replace(ticket, size=1 << 40, shape=(1 << 40,)))


def test_a_ticket_of_a_process_that_has_ended_m1(device, run_script):
    done = run_script("""
        import hal, pickle
        shared = hal.create_semaphore(shareable=True)
        print(pickle.dumps(shared.share()).hex())
    """)
    with pytest.raises(ClosedError, match="has ended"):
        device.open(pickle.loads(bytes.fromhex(done.stdout)))


PARENT = """
import multiprocessing, pickle, sys, hal

def double(buffer, turn, answers):
    turn.wait(1, 60)
    buffer.map()[:] *= 2
    answers.put(str(buffer.device.backend))
    turn.signal(2)

def divide(turn):
    turn.wait(2, 60)
    1 / 0

if __name__ == "__main__":
    multiprocessing.set_start_method(sys.argv[1])
    device = hal.create_device("cpu")
    buffer = device.allocate(40, dtype="i4", shareable=True)
    turn, answers = hal.create_semaphore(shareable=True), multiprocessing.Queue()
    child = multiprocessing.Process(target=double, args=(buffer, turn, answers))
    child.start()
    device.queue.fill(buffer, 21, signal=turn.at(1))
    turn.wait(2, 60)
    assert set(buffer.numpy()) == {42} and answers.get(timeout=60) == "cpu"
    for shared in (buffer, turn):
        try:
            pickle.dumps(shared)
        except hal.errors.ArgumentTypeError:
            continue
        raise AssertionError
    child.join()
    child = multiprocessing.Process(target=divide, args=(turn,))
    child.start()
    try:
        turn.wait(3, 60)
    except hal.errors.ProcessLostError as error:
        print(str(error).replace(str(child.pid), "N"), flush=True)
    child.join()
    child = multiprocessing.get_context("fork").Process(target=print, args=("forked",))
    child.start()
    child.join()
    assert child.exitcode == 0
"""


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_arguments_of_multiprocessing_are_shared_m2(run_script, method):
    """M2, S4: they travel as tickets, and a process whose function raises fails its semaphores."""
    done = run_script(PARENT, arguments=(method,), watchdog=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == (
        "process N, which shared it, has ended with ZeroDivisionError('division by zero')\nforked\n"
    )
    assert done.stderr.count("Traceback") == 1, done.stderr  # of the second child


FORKED = """
import multiprocessing
import hal

def work(semaphore, ticket):
    try:
        semaphore.query()
    except hal.errors.ClosedError as error:
        print("refused", "open a ticket" in str(error), flush=True)
    with hal.create_device("cpu") as device:
        device.open(ticket).signal(1)

semaphore = hal.create_semaphore(shareable=True)
context = multiprocessing.get_context("fork")
child = context.Process(target=work, args=(semaphore, semaphore.share()))
child.start()
semaphore.wait(1, 30)
child.join()
"""


def test_a_fork_does_not_copy_a_shareable_semaphore_q6(run_script):
    """Q6: no device was opened, so the child says what is wrong and opens the ticket."""
    done = run_script(FORKED, watchdog=False)
    assert (done.returncode, done.stdout) == (0, "refused True\n"), done.stderr


def test_what_cannot_be_opened_after_all_is_left_again_m1(open_probe, monkeypatch):
    """M1: the process that has lent the memory would keep it as long as this one runs."""
    device, probe = open_probe()
    probe.dlpack_device = lambda memory: (2, 0)
    probe.open_memory = lambda handle: 1 << 20
    region = SharedRegion.create("buffer", 0)
    fields = {"device": device.info.uuid, "offset": 0, "size": 4, "shape": (4,)}
    ticket = BufferTicket(**region.names(), **fields, dtype="|u1", denied=0)
    monkeypatch.setattr(sharing, "os", SimpleNamespace(getpid=lambda: 0))  # as another process
    monkeypatch.setattr(Heap, "adopt", raising(MemoryError()))
    with pytest.raises(MemoryError):
        device.open(ticket)
    assert region.members() == ()
