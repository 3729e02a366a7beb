"""Bad input: each its own error, which names the thing, the limit and the way out.

Nothing changes by it: after each refused call the semaphores have their
values and can take the next, the memory is what it was, the statistics too,
and a valid call works.
"""

import ctypes
import pathlib
import re
import signal
import threading

import numpy as np
import pytest
from core_harness import LIMIT, handled_by

import hal
from hal.errors import ArgumentTypeError, HalError, InvalidArgumentError

SIZE, TOP = 64, 2**63 - 1
KERNEL = "__global__ void k(int n) {}"
LINES = pathlib.Path(__file__).parents[1].joinpath("support/bad_input.txt").read_text("utf-8")
TABLE = dict(line.split(" -> ") for line in LINES.splitlines() if " -> " in line)
"""What is called, by its text: its error and a pattern in the error's words."""


class Shapeless:
    """Not even a class that can be asked what it has."""

    def __getattr__(self, name):
        raise RuntimeError(name)


class World:
    """Hold one of everything, and check that a refused call has left it alone."""

    def __init__(self, device, other):
        self.device = device
        self.other = other
        self.queue = device.queue
        self.data = device.upload(np.arange(SIZE, dtype=np.uint8))
        self.floats = device.upload(np.zeros(4, np.float32))
        self.halves = device.upload(np.zeros(4, np.float16))
        self.ints = device.upload(np.zeros(4, np.int32))
        self.target = device.upload(np.zeros(SIZE, np.uint8))
        self.shapeless = Shapeless()
        self.released = memoryview(bytes(4))
        self.released.release()
        self.foreign = other.allocate(SIZE)
        self.three = hal.create_semaphore(3, name="three")
        self.zero = hal.create_semaphore(name="zero")
        self.commands = device.record()
        device.queue.barrier().wait(LIMIT)  # makes an event
        self.statistics = device.statistics()

    def check(self):
        assert (self.three.query(), self.zero.query()) == (3, 0)
        assert self.data.numpy().tolist() == list(range(SIZE))
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


def is_refused(world, call):
    name, _, words = TABLE[call].partition(": ")
    names = {"np": np, "hal": hal, "pathlib": pathlib, "KERNEL": KERNEL, **vars(world)}
    with pytest.raises(getattr(hal.errors, name), match=words or None) as caught:
        eval(call, names)
    assert isinstance(caught.value, HalError)
    assert len(str(caught.value)) > 15, "it says what was wrong"
    world.check()


@pytest.mark.parametrize("call", TABLE)
def test_bad_input_is_refused_and_changes_nothing(world, call):
    is_refused(world, call)


@pytest.mark.parametrize(
    "call",
    [each for each in TABLE if re.match(r"queue\.(fill|copy|update)\((?!data\.|target)", each)],
)
def test_recording_refuses_the_same(world, call):
    """A recording refuses what a queue refuses, when the command is recorded."""
    world.queue = world.commands
    is_refused(world, call)


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

    class Index:
        def __index__(self):
            return 4

    buffer = device.upload(np.zeros(16, np.uint8))
    done = device.queue.fill(buffer, np.uint8(1), offset=Index(), size=np.int64(4))
    assert buffer.numpy(wait=done).tolist() == [0] * 4 + [1] * 4 + [0] * 8
    assert buffer.subspan(np.uint8(4), Index()).numpy().tolist() == [1] * 4
    semaphore = hal.create_semaphore(Index())
    assert semaphore.query() == 4
    semaphore.signal(np.uint64(9))
    assert type(semaphore.query()) is int
    semaphore.wait(np.int32(9), 0)


@pytest.mark.parametrize("nothing", [None, (), [], hal.Fence()])
def test_nothing_is_waited_for_and_signalled(device, nothing):
    device.queue.barrier(wait=nothing).wait(LIMIT)
    device.queue.barrier(wait=nothing, signal=nothing).wait(LIMIT)


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


def test_a_place_behind_the_end_of_a_slot_is_told_as_it_is_c3(device):
    device.queue.fill(device.allocate(16), 1, offset=16)  # the end is no place behind it
    slot = device.record(slots=[("u1", 16)]).slots[0]
    assert slot.subspan(16).size == 0
    with pytest.raises(InvalidArgumentError, match="the offset is 17, and slot 0 has 16 bytes"):
        slot.subspan(17)
    with pytest.raises(InvalidArgumentError, match=r"bytes 8 to 17 .*, and slot 0 has 16 bytes"):
        slot.subspan(8, 9)


class Tensor:
    """Another library's tensor."""

    def __dlpack__(self, **_):
        raise AssertionError

    __dlpack_device__ = __dlpack__


@pytest.mark.parametrize("recorded", [True, False])
def test_memory_of_others_is_told_how_it_becomes_a_buffer(device, recorded):
    kernel = device.compile("__global__ void HAL_BLOCK(1) k(float *x) { x[0] = 1; }")["k"]
    calls = device.record() if recorded else device.queue
    for given, hint in (
        (Tensor(), "not Tensor; take its memory with device.from_dlpack"),
        (np.zeros(4), "not ndarray; copy the array to the device first, with device.upload"),
    ):
        for call in (
            lambda given=given: calls.fill(given, 0),
            lambda given=given: calls.dispatch(kernel, grid=1, args=(given,)),
        ):
            with pytest.raises(ArgumentTypeError, match=hint):
                call()


def test_an_error_of_a_values_own_is_told_as_one_of_the_argument(device):
    class Size:
        def __index__(self):
            raise LookupError("no size yet")

    with pytest.raises(ArgumentTypeError, match=r"Size raised LookupError.'no size yet'") as caught:
        device.allocate(Size())
    assert isinstance(caught.value.__cause__, LookupError)


def test_what_a_signals_handler_raises_is_not_the_arguments_o3(device):
    """It comes while a value of the user's is asked, and is raised as it is."""

    class Size:
        def __index__(self):
            signal.raise_signal(signal.SIGALRM)
            return 64

    def handler(*_):
        raise TimeoutError("of the handler")

    raises = pytest.raises(TimeoutError, match="of the handler")
    with handled_by(handler), raises as caught:
        device.allocate(Size())
    assert type(caught.value) is TimeoutError


@pytest.mark.parametrize("timeout", [2**70, 10**1000, 1e300, float("inf")])
def test_a_time_out_that_no_clock_has_is_a_long_one_s6(device, timeout):
    gate = hal.create_semaphore()
    done = device.queue.barrier(wait=gate.at(1))
    threading.Timer(0.05, gate.signal, (1,)).start()
    done.wait(timeout)
    gate.wait(1, timeout)
    device.wait_idle(timeout)
