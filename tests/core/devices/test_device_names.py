"""Two devices that are open at once are told apart, though they are the same hardware."""

from weakref import WeakValueDictionary

import numpy as np
import pytest

import hal
from hal._devices import lifecycle
from hal.errors import ClosedError, InvalidArgumentError, OperationError
from hal_cpu.plugin import hal_backend

SOURCE = "__global__ void HAL_BLOCK(1) named(int *x) { x[0] = 1; }"


@pytest.fixture(autouse=True)
def _nothing_is_open(monkeypatch):
    """Leave the names out of what other tests have left open."""
    monkeypatch.setattr(lifecycle, "_names", WeakValueDictionary())


@pytest.fixture
def pair(device, second_device):
    return device, second_device


def test_names_differ_in_reprs_and_queues(pair):
    one, two = pair
    assert one.name == two.name == "cpu:0"
    assert "<Device cpu:0 '" in repr(one)
    assert "<Device cpu:0 (2) " in repr(two)
    assert two.queue.name == "cpu:0 (2)/compute"
    assert repr(one.queue) != repr(two.queue)
    with hal.create_device("cpu") as third:
        assert "cpu:0 (3)" in repr(third)


def test_a_name_is_free_once_its_device_is_closed(device):
    with hal.create_device("cpu") as two:
        assert "cpu:0 (2)" in repr(two)
    with hal.create_device("cpu") as three:
        assert "cpu:0 (2)" in repr(three)
    with pytest.raises(ClosedError, match=r"cpu:0 \(2\) is closed.*create_device\('cpu:0'\)"):
        two.allocate(16)


def test_a_device_may_have_a_name_of_its_own(device):
    with hal.create_device("cpu?name=mine") as mine, hal.create_device("cpu", name="mine") as two:
        assert mine.name == two.name == "cpu:0/mine"
        assert "<Device cpu:0/mine '" in repr(mine)
        assert two.queue.name == "cpu:0/mine (2)/compute"
    with pytest.raises(ClosedError, match=r"cpu:0/mine is closed.*create_device\('cpu:0'\)"):
        mine.allocate(16)
    with hal.create_device("cpu", name="mine (2)") as odd:
        assert odd.name == "cpu:0/mine (2)"
    with pytest.raises(InvalidArgumentError, match="the name of a device has at most"):
        hal.create_device("cpu", name="n" * 10_000)


def test_a_device_that_does_not_open_leaves_its_name(device, monkeypatch):
    inner = hal_backend().open().open_device(0, {})

    class Broken:
        def __getattr__(self, name):
            if name == "create_stream":
                message = "no stream"
                raise OperationError(message)
            return getattr(inner, name)

    with pytest.raises(OperationError, match="no stream"):
        hal.Device("cpu", Broken(), None)
    with hal.create_device("cpu") as second:
        assert "cpu:0 (2)" in repr(second)


def test_errors_say_whose_is_what_and_name_the_recording(pair):
    one, two = pair
    kernel, other = one.compile(SOURCE)["named"], two.compile(SOURCE)["named"]
    theirs, ours = two.upload(np.zeros(4, np.int32)), one.allocate(16)
    with pytest.raises(InvalidArgumentError, match=r"to cpu:0 \(2\), and this queue to cpu:0;"):
        one.queue.fill(theirs, 1)
    with pytest.raises(InvalidArgumentError, match=r"on cpu:0 \(2\), and this queue belongs to c"):
        one.queue.dispatch(other, grid=1, args=(ours,))
    with one.record(slots=1) as commands:
        for wrong in (
            lambda: commands.fill(theirs, 1),
            lambda: commands.update(theirs, b"1"),
            lambda: commands.dispatch(kernel, grid=1, args=(theirs,)),
        ):
            with pytest.raises(InvalidArgumentError, match="and this recording to cpu:0;"):
                wrong()
        with pytest.raises(InvalidArgumentError, match="and this recording belongs to cpu:0;"):
            commands.dispatch(other, grid=1, args=(commands.slots[0],))
        commands.fill(commands.slots[0], 1, size=4)
    with pytest.raises(InvalidArgumentError, match=r"for cpu:0, and this queue belongs to cpu:0 "):
        two.queue.execute(commands, bindings=[theirs])


def test_a_program_names_the_device_that_it_has_no_image_for(pair):
    _, two = pair
    image = hal.compile(SOURCE, target=two).images[0]._replace(backend="cuda", target="sm_90")
    with pytest.raises(OperationError, match=r"none of them runs on cpu:0 \(2\) "):
        two.load(hal.Program([image], ["named"], {}))


def test_what_a_closed_device_made_is_not_said_to_be_of_a_later_one_of_its_name():
    with hal.create_device("cpu") as gone:
        buffer, kernel = gone.allocate(16), gone.compile(SOURCE)["named"]
        with gone.record() as commands:
            commands.fill(buffer, 1)
    with hal.create_device("cpu") as later:
        for wrong in (
            lambda: later.queue.execute(commands),
            lambda: later.queue.fill(buffer, 1),
            lambda: later.queue.dispatch(kernel, grid=1, args=(buffer,)),
        ):
            with pytest.raises(ClosedError, match="cpu:0 is closed"):
                wrong()
