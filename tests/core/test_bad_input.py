"""Bad input: each its own error, which names the thing, the limit and the way out.

Nothing changes by it: after each refused call the semaphores have their
values and can take the next, the memory is what it was, the statistics too,
and a valid call works.
"""

from __future__ import annotations

import ctypes
import threading

import numpy as np
import pytest
from core_harness import LIMIT

import hal
from hal.errors import (
    ArgumentTypeError,
    BackendNotFoundError,
    HalError,
    InvalidArgumentError,
    NotFoundError,
)

TOP = 2**63 - 1
SIZE = 64


class World:
    """Hold one of everything, and check that a refused call has left it alone."""

    def __init__(self, device, other):
        self.device = device
        self.other = other
        self.queue = device.queue
        self.bytes = device.upload(np.arange(SIZE, dtype=np.uint8))
        self.floats = device.upload(np.zeros(4, np.float32))
        self.halves = device.upload(np.zeros(4, np.float16))
        self.ints = device.upload(np.zeros(4, np.int32))
        self.target = device.upload(np.zeros(SIZE, np.uint8))
        self.foreign = other.allocate(SIZE)
        self.three = hal.create_semaphore(3, name="three")
        self.zero = hal.create_semaphore(name="zero")
        self.commands = device.record()
        self.statistics = device.statistics()

    def check(self):
        assert (self.three.query(), self.zero.query()) == (3, 0)
        assert self.bytes.numpy().tolist() == list(range(SIZE))
        assert not self.target.numpy().any()
        assert not self.floats.numpy().any()
        assert not self.ints.numpy().any()
        assert len(self.commands) == 0
        assert self.device.statistics() == self.statistics
        assert not self.device.lost
        self.device.queue.fill(self.target, 1, wait=self.three.at(3), signal=self.zero.at(1))
        self.zero.wait(1, LIMIT)
        assert self.target.numpy().tolist() == [1] * SIZE
        self.three.signal(4)
        self.commands.fill(self.target, 1)
        self.commands.end()
        self.device.queue.execute(self.commands).wait(LIMIT)


@pytest.fixture
def world(device, second_device):
    return World(device, second_device)


# By name: what is called, its error, and what the text holds
FILLS = {
    "no buffer": (lambda w: w.queue.fill(None, 1), ArgumentTypeError, "NoneType"),
    "an array": (lambda w: w.queue.fill(np.zeros(4), 1), ArgumentTypeError, "ndarray"),
    "text": (lambda w: w.queue.fill(w.bytes, "a"), ArgumentTypeError, "str"),
    "None": (lambda w: w.queue.fill(w.bytes, None), ArgumentTypeError, "NoneType"),
    "complex": (lambda w: w.queue.fill(w.floats, 1j), ArgumentTypeError, "complex"),
    "array value": (lambda w: w.queue.fill(w.bytes, np.zeros(2, "u1")), HalError, "fill"),
    "no bytes": (lambda w: w.queue.fill(w.bytes, b""), InvalidArgumentError, "1, 2 or 4"),
    "three bytes": (lambda w: w.queue.fill(w.bytes, b"abc"), InvalidArgumentError, "1, 2 or 4"),
    "eight bytes": (lambda w: w.queue.fill(w.bytes, b"abcdefgh"), InvalidArgumentError, "update"),
    "double": (lambda w: w.queue.fill(w.bytes, np.float64(1)), InvalidArgumentError, "1, 2 or 4"),
    "too large": (lambda w: w.queue.fill(w.bytes, 256), InvalidArgumentError, "256.*uint8"),
    "too small": (lambda w: w.queue.fill(w.bytes, -1), InvalidArgumentError, "-1.*uint8"),
    "huge": (lambda w: w.queue.fill(w.ints, 2**100), InvalidArgumentError, "int32"),
    "huge float": (lambda w: w.queue.fill(w.floats, 10**400), InvalidArgumentError, "float32"),
    "float overflow": (lambda w: w.queue.fill(w.floats, 1e300), InvalidArgumentError, "float32"),
    "half overflow": (lambda w: w.queue.fill(w.halves, 1e10), InvalidArgumentError, "float16"),
    "float for int": (lambda w: w.queue.fill(w.ints, 1.5), ArgumentTypeError, "1.5.*int32"),
    "negative offset": (lambda w: w.queue.fill(w.bytes, 1, offset=-1), InvalidArgumentError, "-1"),
    "float offset": (lambda w: w.queue.fill(w.bytes, 1, offset=1.0), ArgumentTypeError, "float"),
    "bool offset": (lambda w: w.queue.fill(w.bytes, 1, offset=True), ArgumentTypeError, "bool"),
    "text offset": (lambda w: w.queue.fill(w.bytes, 1, offset="1"), ArgumentTypeError, "str"),
    "negative size": (lambda w: w.queue.fill(w.bytes, 1, size=-4), InvalidArgumentError, "-4"),
    "float size": (lambda w: w.queue.fill(w.bytes, 1, size=4.0), ArgumentTypeError, "float"),
    "outside": (lambda w: w.queue.fill(w.bytes, 1, size=65), InvalidArgumentError, "65.*64"),
    "begins outside": (lambda w: w.queue.fill(w.bytes, 1, offset=65), InvalidArgumentError, "64"),
    "ends outside": (
        lambda w: w.queue.fill(w.bytes, 1, offset=60, size=5),
        InvalidArgumentError,
        "60 to 65.*64",
    ),
    "huge size": (lambda w: w.queue.fill(w.bytes, 1, size=2**64), InvalidArgumentError, "64"),
    "huge offset": (lambda w: w.queue.fill(w.bytes, 1, offset=2**64), InvalidArgumentError, "64"),
    "wraps around": (
        lambda w: w.queue.fill(w.bytes, 1, offset=2**63, size=2**63),
        InvalidArgumentError,
        "64",
    ),
    "misaligned offset": (
        lambda w: w.queue.fill(w.bytes, b"abcd", offset=2, size=4),
        InvalidArgumentError,
        "multiples of 4",
    ),
    "misaligned size": (
        lambda w: w.queue.fill(w.bytes, b"ab", size=3),
        InvalidArgumentError,
        "multiples of 2",
    ),
    "misaligned part": (
        lambda w: w.queue.fill(w.bytes.subspan(1, 8), b"ab"),
        InvalidArgumentError,
        "align|multiple",
    ),
    "foreign": (lambda w: w.queue.fill(w.foreign, 1), InvalidArgumentError, "belongs to"),
}

TRANSFERS = {
    "update too long": (
        lambda w: w.queue.update(w.bytes, bytes(65)),
        InvalidArgumentError,
        "65.*64",
    ),
    "update outside": (
        lambda w: w.queue.update(w.bytes, b"12", offset=63),
        InvalidArgumentError,
        "63 to 65",
    ),
    "update text": (lambda w: w.queue.update(w.bytes, "text"), ArgumentTypeError, "str"),
    "update number": (lambda w: w.queue.update(w.bytes, 5), ArgumentTypeError, "int"),
    "update list": (lambda w: w.queue.update(w.bytes, [1, 2]), ArgumentTypeError, "list"),
    "update objects": (
        lambda w: w.queue.update(w.bytes, np.array([object()])),
        ArgumentTypeError,
        "objects",
    ),
    "update buffer": (lambda w: w.queue.update(w.bytes, w.target), ArgumentTypeError, "copy"),
    "update strided": (
        lambda w: w.queue.update(w.bytes, np.zeros(8, "u1")[::2]),
        InvalidArgumentError,
        "ascontiguousarray",
    ),
    "update strided view": (
        lambda w: w.queue.update(w.bytes, memoryview(b"12345678")[::2]),
        InvalidArgumentError,
        "contiguous",
    ),
    "update fortran": (
        lambda w: w.queue.update(w.bytes, np.zeros((2, 2), "u1", order="F")),
        InvalidArgumentError,
        "contiguous",
    ),
    "update foreign": (lambda w: w.queue.update(w.foreign, b"1"), InvalidArgumentError, "belongs"),
    "write too long": (lambda w: w.queue.write(w.bytes, bytes(65)), InvalidArgumentError, "65.*64"),
    "write text": (lambda w: w.queue.write(w.bytes, "text"), ArgumentTypeError, "str"),
    "write to array": (lambda w: w.queue.write(bytearray(4), b"1"), ArgumentTypeError, "bytearray"),
    "read too long": (
        lambda w: w.queue.read(w.bytes, bytearray(65)),
        InvalidArgumentError,
        "65.*64",
    ),
    "read into bytes": (
        lambda w: w.queue.read(w.bytes, b"1234"),
        InvalidArgumentError,
        "read-only",
    ),
    "read into constant": (
        lambda w: w.queue.read(w.bytes, np.frombuffer(b"1234", np.uint8)),
        InvalidArgumentError,
        "read-only",
    ),
    "read into list": (lambda w: w.queue.read(w.bytes, [0]), ArgumentTypeError, "list"),
    "read strided": (
        lambda w: w.queue.read(w.bytes, np.zeros(8, "u1")[::-1]),
        InvalidArgumentError,
        "contiguous",
    ),
    "read outside": (
        lambda w: w.queue.read(w.bytes, bytearray(2), offset=63),
        InvalidArgumentError,
        "63 to 65",
    ),
    "copy overlap": (lambda w: w.queue.copy(w.bytes, w.bytes), InvalidArgumentError, "overlap"),
    "copy too long": (
        lambda w: w.queue.copy(w.bytes, w.floats),
        InvalidArgumentError,
        "target.*16",
    ),
    "copy source outside": (
        lambda w: w.queue.copy(w.floats, w.bytes, size=17),
        InvalidArgumentError,
        "source.*16",
    ),
    "copy target outside": (
        lambda w: w.queue.copy(w.bytes, w.target, target_offset=1),
        InvalidArgumentError,
        "target.*1 to 65",
    ),
    "copy negative": (
        lambda w: w.queue.copy(w.bytes, w.target, source_offset=-1),
        InvalidArgumentError,
        "-1",
    ),
    "copy from array": (
        lambda w: w.queue.copy(np.zeros(4), w.target),
        ArgumentTypeError,
        "source.*ndarray",
    ),
    "copy to array": (
        lambda w: w.queue.copy(w.bytes, np.zeros(64)),
        ArgumentTypeError,
        "target.*ndarray",
    ),
    "copy past the end of foreign": (
        lambda w: w.queue.copy(w.foreign, w.target, size=SIZE + 1),
        InvalidArgumentError,
        "copy: the source",
    ),
    "copy past the end to foreign": (
        lambda w: w.queue.copy(w.bytes, w.foreign, target_offset=SIZE),
        InvalidArgumentError,
        "copy: the target",
    ),
    "subspan outside": (lambda w: w.bytes.subspan(60, 5), InvalidArgumentError, "60 to 65.*64"),
    "subspan negative": (lambda w: w.bytes.subspan(-1, 5), InvalidArgumentError, "-1"),
    "subspan dtype": (lambda w: w.floats.subspan(0, 6), InvalidArgumentError, "6 bytes.*float32"),
    "subspan bad dtype": (
        lambda w: w.floats.subspan(0, 4, dtype="nonsense"),
        ArgumentTypeError,
        "nonsense",
    ),
    "numpy bad dtype": (lambda w: w.floats.numpy("nonsense"), ArgumentTypeError, "nonsense"),
    "numpy objects": (lambda w: w.floats.numpy(object), ArgumentTypeError, "objects"),
    "upload objects": (lambda w: w.device.upload([object()]), ArgumentTypeError, "objects"),
    "call of nothing": (lambda w: w.queue.call(None), ArgumentTypeError, "NoneType"),
    "call of a result": (lambda w: w.queue.call(len("")), ArgumentTypeError, "int"),
    "call of a coroutine": (lambda w: w.queue.call(5.0), ArgumentTypeError, "float"),
}


class Index:
    def __index__(self):
        return 4


LISTS = {
    "wait number": (lambda w: w.queue.barrier(wait=5), ArgumentTypeError, "wait list.*int"),
    "wait semaphore": (lambda w: w.queue.barrier(wait=w.zero), ArgumentTypeError, r"at\(value\)"),
    "wait semaphores": (
        lambda w: w.queue.barrier(wait=[w.zero]),
        ArgumentTypeError,
        r"at\(value\).*Semaphore",
    ),
    "wait pair": (lambda w: w.queue.barrier(wait=[(w.zero, 1)]), ArgumentTypeError, "tuple"),
    "wait text": (lambda w: w.queue.barrier(wait="ab"), ArgumentTypeError, "str"),
    "wait bad pair": (
        lambda w: w.queue.barrier(wait=[hal.Timepoint(None, 1)]),
        ArgumentTypeError,
        "",
    ),
    "wait bad value": (
        lambda w: w.queue.barrier(wait=[hal.Timepoint(w.zero, "1")]),
        ArgumentTypeError,
        "str",
    ),
    "wait low value": (
        lambda w: w.queue.barrier(wait=[hal.Timepoint(w.zero, -1)]),
        InvalidArgumentError,
        "-1",
    ),
    "wait high value": (
        lambda w: w.queue.barrier(wait=[hal.Timepoint(w.zero, 2**63)]),
        InvalidArgumentError,
        r"2\*\*63",
    ),
    "bare bad pair": (
        lambda w: w.queue.barrier(wait=hal.Timepoint(None, 1)),
        ArgumentTypeError,
        "",
    ),
    "bare bad value": (
        lambda w: w.queue.barrier(wait=hal.Timepoint(w.zero, "1")),
        ArgumentTypeError,
        "str",
    ),
    "bare low value": (
        lambda w: w.queue.barrier(wait=hal.Timepoint(w.zero, -1)),
        InvalidArgumentError,
        "-1",
    ),
    "bare bad signal": (
        lambda w: w.queue.barrier(signal=hal.Timepoint(None, 1)),
        ArgumentTypeError,
        "NoneType",
    ),
    "bare low signal": (
        lambda w: w.queue.barrier(signal=hal.Timepoint(w.zero, -1)),
        InvalidArgumentError,
        "-1",
    ),
    "one bad among good": (
        lambda w: w.queue.fill(w.target, 1, wait=[w.three.at(1), w.three.at(2), None]),
        ArgumentTypeError,
        "NoneType",
    ),
    "signal number": (lambda w: w.queue.barrier(signal=5), ArgumentTypeError, "signal list.*int"),
    "signal semaphore": (
        lambda w: w.queue.barrier(signal=w.zero),
        ArgumentTypeError,
        r"at\(value\).*Semaphore",
    ),
    "signal submission": (
        lambda w: w.queue.barrier(signal=[w.queue.barrier()]),
        ArgumentTypeError,
        "Submission",
    ),
    "signal zero": (
        lambda w: w.queue.fill(w.target, 1, signal=w.zero.at(0)),
        InvalidArgumentError,
        "signal 1 or more",
    ),
    "signal reached": (
        lambda w: w.queue.fill(w.target, 1, signal=[w.zero.at(1), w.three.at(3)]),
        InvalidArgumentError,
        "signal 4 or more",
    ),
    "signal twice": (
        lambda w: w.queue.fill(w.target, 1, signal=[w.zero.at(1), w.zero.at(2)]),
        InvalidArgumentError,
        "zero.*twice",
    ),
    "waits for itself": (
        lambda w: w.queue.fill(w.target, 1, wait=w.zero.at(1), signal=w.zero.at(1)),
        InvalidArgumentError,
        "zero@1.*signal more than 1",
    ),
    "waits for later": (
        lambda w: w.queue.fill(w.target, 1, wait=[w.zero.at(7)], signal=[w.zero.at(5)]),
        InvalidArgumentError,
        "zero@7.*zero@5",
    ),
}

SEMAPHORES = {
    "at negative": (lambda w: w.zero.at(-1), InvalidArgumentError, "-1"),
    "at 2**63": (lambda w: w.zero.at(2**63), InvalidArgumentError, r"2\*\*63 - 1"),
    "at float": (lambda w: w.zero.at(1.0), ArgumentTypeError, "float"),
    "at bool": (lambda w: w.zero.at(bool(1)), ArgumentTypeError, "bool"),
    "at None": (lambda w: w.zero.at(None), ArgumentTypeError, "NoneType"),
    "at nan": (lambda w: w.zero.at(float("nan")), ArgumentTypeError, "float"),
    "poll negative": (lambda w: w.zero.poll(-1), InvalidArgumentError, "-1"),
    "poll text": (lambda w: w.zero.poll("1"), ArgumentTypeError, "str"),
    "wait negative": (lambda w: w.zero.wait(-1), InvalidArgumentError, "-1"),
    "wait 2**63": (lambda w: w.zero.wait(2**63, 0), InvalidArgumentError, r"2\*\*63"),
    "wait text": (lambda w: w.zero.wait("1", 0), ArgumentTypeError, "str"),
    "signal 2**63": (lambda w: w.zero.signal(2**63), InvalidArgumentError, r"2\*\*63"),
    "signal negative": (lambda w: w.zero.signal(-1), InvalidArgumentError, "-1"),
    "signal float": (lambda w: w.zero.signal(1.0), ArgumentTypeError, "float"),
    "signal low": (lambda w: w.three.signal(3), InvalidArgumentError, "three.*signal 4 or more"),
    "fail with text": (lambda w: w.zero.fail("broken"), ArgumentTypeError, "str"),
    "fail with a class": (lambda w: w.zero.fail(ValueError), ArgumentTypeError, "type"),
    "fail with None": (lambda w: w.zero.fail(None), ArgumentTypeError, "NoneType"),
    "callback of nothing": (lambda w: w.zero.on_reached(1, None), ArgumentTypeError, "NoneType"),
    "callback at -1": (lambda w: w.zero.on_reached(-1, print), InvalidArgumentError, "-1"),
    "reached text": (lambda w: w.zero.reached("1"), ArgumentTypeError, "str"),
    "initial negative": (lambda w: hal.create_semaphore(-1), InvalidArgumentError, "-1"),
    "initial 2**63": (lambda w: hal.create_semaphore(2**63), InvalidArgumentError, r"2\*\*63"),
    "initial text": (lambda w: hal.create_semaphore("1"), ArgumentTypeError, "str"),
    "initial None": (lambda w: hal.create_semaphore(None), ArgumentTypeError, "NoneType"),
    "name number": (lambda w: hal.create_semaphore(name=5), ArgumentTypeError, "int"),
    "wait_all number": (lambda w: hal.wait_all(5), ArgumentTypeError, "int"),
    "wait_all semaphore": (lambda w: hal.wait_all(w.zero), ArgumentTypeError, "Semaphore"),
    "wait_all pair": (lambda w: hal.wait_all([(w.zero, 0)]), ArgumentTypeError, "tuple"),
    "wait_all bare": (lambda w: hal.wait_all(hal.Timepoint(None, 0)), ArgumentTypeError, ""),
    "wait_any number": (lambda w: hal.wait_any(5), ArgumentTypeError, "int"),
    "wait_any list": (lambda w: hal.wait_any([[5]]), ArgumentTypeError, "int"),
    "wait_any bad pair": (
        lambda w: hal.wait_any([hal.Timepoint(None, 0)]),
        ArgumentTypeError,
        "",
    ),
    "wait_any bad value": (
        lambda w: hal.wait_any([hal.Timepoint(w.zero, "0")], 0),
        ArgumentTypeError,
        "str",
    ),
    "fence of numbers": (lambda w: hal.Fence([5]), ArgumentTypeError, "int"),
    "fence of nothing": (lambda w: hal.Fence(None), ArgumentTypeError, "NoneType"),
    "fence of a bad pair": (
        lambda w: hal.Fence([hal.Timepoint(w.zero, -1)]),
        InvalidArgumentError,
        "-1",
    ),
    "queue name": (lambda w: w.device.create_queue(name=5), ArgumentTypeError, "int"),
    "execute nothing": (lambda w: w.queue.execute(None), ArgumentTypeError, "NoneType"),
}

TABLE = {
    f"{group}: {name}": row
    for group, rows in (
        ("fill", FILLS),
        ("transfer", TRANSFERS),
        ("list", LISTS),
        ("semaphore", SEMAPHORES),
    )
    for name, row in rows.items()
}


@pytest.mark.parametrize("name", TABLE)
def test_bad_input_is_refused_and_changes_nothing(world, name):
    call, error, match = TABLE[name]
    with pytest.raises(error, match=match or None) as caught:
        call(world)
    assert isinstance(caught.value, HalError)
    assert len(str(caught.value)) > 15, "it says what was wrong"
    world.check()


RECORDED = {
    name: row
    for name, row in {**FILLS, **TRANSFERS}.items()
    if name != "misaligned part"
    and not name.startswith(("read", "write", "subspan", "numpy", "upload", "call"))
}


@pytest.mark.parametrize("name", RECORDED)
def test_recording_refuses_the_same(world, name):
    """What a queue refuses a recording refuses as well, when it is recorded."""
    call, error, match = RECORDED[name]
    world.queue = world.commands
    with pytest.raises(error, match=match or None):
        call(world)
    world.check()


def test_bad_input_behind_unmet_waits_is_refused_at_once(world):
    """Checks do not wait for the operation's turn."""
    gate = hal.create_semaphore()
    world.queue.barrier(wait=gate.at(1))
    with pytest.raises(InvalidArgumentError):
        world.queue.fill(world.target, 1, size=65, wait=gate.at(2))
    gate.signal(1)
    world.check()


def test_integers_of_other_types_are_taken(device):
    """Whatever has ``__index__`` is an int: numpy's integers and users' own."""
    buffer = device.upload(np.zeros(16, np.uint8))
    done = device.queue.fill(buffer, np.uint8(1), offset=Index(), size=np.int64(4))
    assert buffer.numpy(wait=done).tolist() == [0] * 4 + [1] * 4 + [0] * 8
    assert buffer.subspan(np.uint8(4), Index()).numpy().tolist() == [1] * 4
    semaphore = hal.create_semaphore(Index())
    assert semaphore.query() == 4
    semaphore.signal(np.uint64(9))
    assert type(semaphore.query()) is int
    semaphore.wait(np.int32(9), 0)


def test_host_memory_of_other_kinds_is_taken(device):
    """ctypes, multi-dimensional and typed memory."""
    buffer = device.allocate(16)
    numbers = (ctypes.c_int32 * 4)(1, 2, 3, 4)
    assert buffer.numpy("i4", wait=device.queue.update(buffer, numbers)).tolist() == [1, 2, 3, 4]
    table = memoryview(bytes(range(16))).cast("B", (4, 4))
    assert buffer.numpy(wait=device.queue.write(buffer, table)).tolist() == list(range(16))
    typed = memoryview(np.arange(4, dtype=np.float32))
    assert buffer.numpy("f4", wait=device.queue.write(buffer, typed)).tolist() == [0, 1, 2, 3]
    out = (ctypes.c_float * 4)()
    device.queue.read(buffer, out).wait(LIMIT)
    assert list(out) == [0, 1, 2, 3]
    flags = device.upload(np.zeros(1, bool))
    device.queue.write(flags, np.array([[True]])).wait(LIMIT)
    assert flags.numpy().tolist() == [True]


@pytest.mark.parametrize("operation", ["fill", "copy", "read", "numpy", "execute", "dispatch"])
def test_objects_of_a_closed_device(device, operation):
    """They are refused by another device's queues as what they are: not of this device."""
    other = hal.create_device("cpu")
    buffer = other.allocate(4)
    with other.record() as commands:
        commands.fill(buffer, 1)
    other.close(LIMIT)
    with pytest.raises(HalError):
        {
            "fill": lambda: device.queue.fill(buffer, 1),
            "copy": lambda: device.queue.copy(buffer, device.allocate(4)),
            "read": lambda: device.queue.read(buffer, bytearray(4)),
            "numpy": buffer.numpy,
            "execute": lambda: device.queue.execute(commands),
            "dispatch": lambda: device.queue.dispatch(buffer, grid=1, block=1),
        }[operation]()


def test_values_up_to_the_top(device):
    """2**63 - 1 can be signalled by host and queue, and nothing above it."""
    host, queue = hal.create_semaphore(TOP - 1), hal.create_semaphore(TOP - 1)
    host.signal(TOP)
    device.queue.barrier(signal=queue.at(TOP)).wait(LIMIT)
    for semaphore in (host, queue):
        assert semaphore.query() == TOP
        with pytest.raises(InvalidArgumentError) as caught:
            semaphore.signal(TOP)
        assert str(2**63) not in str(caught.value), "it recommends no value that cannot be"
        with pytest.raises(InvalidArgumentError):
            device.queue.barrier(signal=semaphore.at(TOP))


DEVICES = {
    "unknown backend": ("nonsense", {}, BackendNotFoundError, "nonsense"),
    "unknown index": ("cpu:99", {}, NotFoundError, "99"),
    "bad index": ("cpu:x", {}, InvalidArgumentError, "'x'"),
    "negative index": ("cpu:-1", {}, InvalidArgumentError, "-1"),
    "unknown parameter": ("cpu", {"nonsense": 1}, InvalidArgumentError, "nonsense"),
    "zero in flight": ("cpu", {"max_in_flight": 0}, InvalidArgumentError, "max_in_flight.*0"),
    "negative in flight": ("cpu", {"max_in_flight": -1}, InvalidArgumentError, "-1"),
    "text in flight": ("cpu?max_in_flight=many", {}, InvalidArgumentError, "many"),
    "float in flight": ("cpu", {"max_in_flight": 2.5}, InvalidArgumentError, "2.5"),
    "superscript in flight": ("cpu?max_in_flight=²", {}, InvalidArgumentError, "²"),
    "no spec": (None, {}, ArgumentTypeError, "NoneType|None"),
    "number": (0, {}, ArgumentTypeError, "int|0"),
    "object": ("cpu", {"max_in_flight": object()}, ArgumentTypeError, "max_in_flight"),
    "empty": ("", {}, HalError, ""),
}


@pytest.mark.parametrize("name", DEVICES)
def test_bad_devices(name):
    spec, parameters, error, match = DEVICES[name]
    with pytest.raises(error, match=match or None):
        hal.create_device(spec, **parameters)


def test_refused_calls_leave_no_thread_and_no_wait_behind(device):
    """A thousand refused submissions with good waits register nothing."""
    semaphore = hal.create_semaphore()
    buffer = device.allocate(4)
    threads = threading.active_count()
    for _ in range(1000):
        with pytest.raises(InvalidArgumentError):
            device.queue.fill(buffer, 1, size=5, wait=semaphore.at(1))
        with pytest.raises(InvalidArgumentError):
            device.queue.fill(buffer, 1, wait=semaphore.at(1), signal=semaphore.at(1))
    assert threading.active_count() == threads
    assert device.queue.barrier().state in {"issued", "done"}


@pytest.mark.parametrize("recorded", [True, False])
def test_a_place_behind_the_end_is_told_as_it_is(device, recorded):
    """What is asked for and what is there: bytes with a size, the offset alone without one."""
    buffer, other = device.allocate(16), device.allocate(64)
    calls = device.record() if recorded else device.queue
    for refused, text in (
        (lambda: calls.fill(buffer, 1, offset=20), "fill: the offset is 20"),
        (lambda: calls.copy(buffer, other, source_offset=17), "source: the offset is 17"),
        (lambda: calls.fill(buffer, 1, offset=20, size=4), "fill: bytes 20 to 24"),
        (lambda: calls.fill(buffer, 1, offset=8, size=9), "fill: bytes 8 to 17"),
        (lambda: calls.update(buffer, b"ab", offset=15), "update: bytes 15 to 17"),
        (lambda: calls.copy(other, buffer, target_offset=9), "target: bytes 9 to 73"),
    ):
        with pytest.raises(InvalidArgumentError) as caught:
            refused()
        assert text in str(caught.value)
        assert str(caught.value).endswith("and the buffer has 16 bytes")
    calls.fill(buffer, 1, offset=16)


def test_a_place_behind_the_end_of_a_slot_is_told_as_it_is_c3(device):
    slot = device.record(slots=[("u1", 16)]).slots[0]
    assert slot.subspan(16).size == 0
    with pytest.raises(InvalidArgumentError, match="the offset is 17, and slot 0 has 16 bytes"):
        slot.subspan(17)
    with pytest.raises(InvalidArgumentError, match=r"bytes 8 to 17 .*, and slot 0 has 16 bytes"):
        slot.subspan(8, 9)
