"""Ranks that meet in memory which all map: as threads, over a library that sends nothing."""

import contextlib
import ctypes
import functools
import importlib
import importlib.util
import os
import random
import threading

import numpy as np
import pytest

LENGTH = 512 << 10
MOST = LENGTH // 2 - 128
"""The bytes of data that a rank shows at once, behind the header and two numbers."""
FOLD, PLACE, TAKE = 1, 2, 3
AVERAGE, LEAST, GREATEST, WRAPPED = 1, 2, 3, 4
ROUNDS = 300

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("hal._speedups") is None, reason="the C extension is not built"
)

function_type = ctypes.CFUNCTYPE(ctypes.c_int, *(ctypes.c_uint64,) * 7)
DTYPES = [np.dtype(each) for each in ("f4", "f8", "u1", "i2", "i8")]


@function_type
def do_nothing(*_):
    return 0


@function_type
def reduce_local(data, target, count, dtype, *_):
    length = count * DTYPES[dtype].itemsize
    given, held = ((ctypes.c_char * length).from_address(each) for each in (data, target))
    held = np.frombuffer(held, DTYPES[dtype])
    held += np.frombuffer(given, DTYPES[dtype])
    return 0


def make(rank, size, *memory):
    """Make a meeting of one rank: it sends, receives and hears nothing."""
    nothing, reduces = (
        ctypes.cast(each, ctypes.c_void_p).value for each in (do_nothing, reduce_local)
    )
    functions = (nothing, nothing, nothing, nothing, reduces, nothing)
    meeting = importlib.import_module("hal._speedups").Meeting
    return meeting(nothing, functions, (0, 0, 0), (0, 0), 8, rank, size, *memory)


@contextlib.contextmanager
def files(size, length):
    """Files in memory, one for each rank."""
    opened = [os.memfd_create("hal-tested") for _ in range(size)]
    for file in opened:
        os.ftruncate(file, length)
    yield tuple(opened)
    for file in opened:
        os.close(file)


def gather(size, offset=4096):
    with files(size, offset + LENGTH) as opened:
        return [make(rank, size, (opened, LENGTH, offset)) for rank in range(size)]


def together(meetings, function):
    """Call a function for each rank on a thread of its own; return what it has returned."""
    found = [None] * len(meetings)

    def run(rank):
        found[rank] = function(meetings[rank], rank)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(len(meetings))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return found


def plan(meeting, action, dtype, count, *, root=-1, stride=0, way=0):
    item = dtype.itemsize
    shape = action, root, count * item, stride * item
    return meeting.plan("tested #", "", *shape, DTYPES.index(dtype), 0, item, way)


def run(meeting, known, source, target):
    return meeting.run(known, source.ctypes.data, target.ctypes.data)


@pytest.mark.parametrize("offset", [4096, 64], ids=["page", "less than a page"])
def test_pages_may_be_longer_than_the_offset_of_the_memory(offset):
    """As on ARM, where a page may have 64 KiB: no system maps a file from within a page on."""

    def add(meeting, rank):
        own = np.full(9, rank + 1.0)
        assert run(meeting, plan(meeting, FOLD, own.dtype, own.size), own, own)
        return own.tolist()

    assert together(gather(2, offset), add) == [[3.0] * 9] * 2


def test_memory_that_is_not_mapped_is_an_error():
    with files(2, LENGTH) as opened:
        pass
    with pytest.raises(OSError, match="Bad file descriptor"):
        make(0, 2, (opened, LENGTH, 0))


WAYS = {
    0: lambda every: functools.reduce(np.add, every),
    AVERAGE: lambda every: functools.reduce(np.add, every) / every[0].dtype.type(len(every)),
    LEAST: lambda every: functools.reduce(np.minimum, every),
    GREATEST: lambda every: functools.reduce(np.maximum, every),
    WRAPPED: lambda every: functools.reduce(np.add, every),
}


def step(number, size):
    """Return one operation, the same on all ranks: action, dtype, elements, root, stride, way."""
    chance = random.Random(number)
    action, dtype = chance.choice([0, FOLD, FOLD, PLACE, TAKE]), chance.choice(DTYPES)
    has_root = action == TAKE or (action == FOLD and chance.random() < 0.3)
    is_strided = action in {FOLD, PLACE} and not has_root and chance.random() < 0.5
    has_steps = action == FOLD or (action == TAKE and size > 2)
    most = MOST // size if is_strided else MOST * 3 if has_steps else MOST
    most //= dtype.itemsize
    count = chance.choice([1, 3, chance.randrange(1, 300), chance.randrange(1, most + 1), most])
    ways = {"f": [0, AVERAGE, LEAST, GREATEST], "i": [0], "u": [0]}[dtype.kind]
    way = WRAPPED if dtype.itemsize < 4 else chance.choice(ways)
    way = way if action == FOLD else 0
    stride = count if is_strided else 0
    root = chance.randrange(size) if has_root else -1
    return action, dtype, count if action else 0, root, stride, way


def expected(every, rank, action, count, root, stride, way):
    """Return what a rank has in its target, or None for what it had."""
    parts = [each[rank * stride :][:count] for each in every]
    if action == TAKE:
        return every[root][:count]
    if action == PLACE:
        return np.concatenate(parts)
    return None if not action or root not in {-1, rank} else WAYS[way](parts)


@pytest.mark.parametrize("size", [2, 3, 4])
def test_any_operations_one_after_another(size):
    """Of up to three times what is shown at once, at odd addresses; each rank in its own time."""

    def work(meeting, rank):
        wrong, shift = [], rank % 2
        memory = np.zeros((2, 2 * LENGTH), np.uint8)
        target = np.zeros(LENGTH // 2 * max(size, 3) + 8, np.uint8)
        for number in range(ROUNDS):
            action, dtype, count, root, stride, way = given = step(number, size)
            whole = count * size if stride else count
            every = [
                (np.arange(whole) % 251 + 17 * each + number).astype(dtype) for each in range(size)
            ]
            source = memory[number % 2, shift:][: every[0].nbytes]
            source[:] = every[rank].view(np.uint8)
            result = target[shift:][: count * dtype.itemsize * (size if action == PLACE else 1)]
            result[:] = 77
            known = plan(meeting, action, dtype, count, root=root, stride=stride, way=way)
            if not run(meeting, known, source, result):
                return [given]
            source[:] = 0  # nobody reads it any longer
            wanted = expected(every, rank, action, count, root, stride, way)
            is_right = (result == (77 if wanted is None else wanted.view(np.uint8))).all()
            if not is_right:
                wrong.append((number, given))
        return wrong

    assert together(gather(size), work) == [[]] * size


def test_ranks_that_differ_find_out_before_data_is_used():
    def work(meeting, rank):
        own = np.full(9, rank + 1.0)
        assert run(meeting, plan(meeting, FOLD, own.dtype, 9), own, own)
        shape = FOLD, -1, 8 * 9, 0
        other = meeting.plan(f"tested {rank == 2} #", "", *shape, 1, 0, 8, 0)
        assert not run(meeting, other, own, own)
        return own.tolist(), meeting.headers(), meeting.state()[1]

    headers = ["tested False #2", "tested False #2", "tested True #2"]
    assert together(gather(3), work) == [([6.0] * 9, headers, 1)] * 3


@pytest.mark.parametrize("count", [8, 1 << 20])
def test_a_rank_that_does_not_come_is_waited_for_until_the_meeting_is_stopped(count):
    meetings, own = gather(2), np.ones(count)
    ended = []
    known = plan(meetings[0], FOLD, own.dtype, count)
    thread = threading.Thread(target=lambda: ended.append(run(meetings[0], known, own, own)))
    thread.start()
    while not meetings[0].records()[0]:
        pass
    assert not ended
    meetings[0].stop()
    thread.join(60)
    assert ended == [False]
    assert (own == 1).all()


def test_a_rank_that_never_reduces_its_part_is_waited_for_until_the_meeting_is_stopped():
    own = np.ones(MOST // 8)
    with files(2, 4096 + LENGTH) as opened:
        meeting = make(0, 2, (opened, LENGTH, 4096))
        header = b"tested #1".ljust(96, b"\0") + (1).to_bytes(8, "little")
        os.pwrite(opened[1], header, 4096 + LENGTH // 2)  # of the first operation: they take turns
        ended = []
        known = plan(meeting, FOLD, own.dtype, own.size)
        thread = threading.Thread(target=lambda: ended.append(run(meeting, known, own, own)))
        thread.start()
        while not meeting.records()[1]:
            pass
        assert not ended
        meeting.stop()
        thread.join(60)
        assert ended == [False]
        assert (own == 1).all()
