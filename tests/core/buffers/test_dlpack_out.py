"""Buffers handed out by DLPack and as CUDA arrays, on the host and of other devices (M2)."""

import numpy as np
import pytest
from core_harness import collect_in_threads
from interop_harness import (
    DTYPES,
    IS_COPIED,
    NUMPY_HAS_VERSIONS,
    PLAIN,
    VERSIONED,
    assert_soon,
    look_into,
    memory_of,
    name_of,
    settle,
)

from hal.errors import ArgumentTypeError, ExchangeError, InvalidArgumentError, UnimplementedError


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("max_version", [None, (0, 8), (1, 0), (1, 99), (2, 0)], ids=str)
def test_a_capsule_says_what_the_buffer_is_m2(device, dtype, max_version):
    array = np.zeros((2, 3, 4), dtype)
    buffer = device.upload(array)
    capsule = buffer.__dlpack__(max_version=max_version)
    versioned = NUMPY_HAS_VERSIONS and max_version is not None and max_version >= (1, 0)
    assert name_of(capsule) == (VERSIONED if versioned else PLAIN)
    tensor, shape, strides, flags = look_into(capsule)
    assert buffer.__dlpack_device__() == (1, 0)
    assert (tensor["type"], tensor["id"]) == (1, 0)
    assert int(tensor["data"]) + int(tensor["off"]) == buffer.address
    assert shape == [2, 3, 4]
    assert strides in ([12, 4, 1], None)  # none, from a numpy before 2.1, stands for the same
    code = {"i": 0, "u": 1, "f": 2, "c": 5, "b": 6}[array.dtype.kind]
    assert (tensor["code"], tensor["bits"], tensor["lanes"]) == (code, 8 * array.itemsize, 1)
    assert flags == (0 if versioned else None)


def test_copies_are_copies(device):
    buffer = device.upload(np.arange(4, dtype=np.int32))
    capsule = buffer.__dlpack__(copy=True, max_version=(1, 0))
    tensor, shape, _, flags = look_into(capsule)
    assert shape == [4]
    assert int(tensor["data"]) != buffer.address
    assert memory_of(int(tensor["data"]), 16).view("i4").tolist() == [0, 1, 2, 3]
    assert flags == (IS_COPIED if NUMPY_HAS_VERSIONS else None)
    for copy in (False, None):
        shared, *_ = look_into(buffer.__dlpack__(copy=copy))
        assert int(shared["data"]) == buffer.address
    for dl_device in (None, (1, 0), [1, 0]):
        same, *_ = look_into(buffer.__dlpack__(dl_device=dl_device))
        assert int(same["data"]) == buffer.address


@pytest.mark.parametrize(
    ("asked", "error", "match"),
    [
        ({"stream": 1}, InvalidArgumentError, "no streams.*None, not 1"),
        ({"stream": -1}, InvalidArgumentError, "no streams"),
        ({"stream": 1.5}, ArgumentTypeError, "stream"),
        ({"stream": True}, ArgumentTypeError, "stream"),
        ({"max_version": 1}, ArgumentTypeError, "max_version"),
        ({"max_version": (1,)}, ArgumentTypeError, "max_version"),
        ({"max_version": "x"}, ArgumentTypeError, "max_version"),
        ({"dl_device": 2}, ArgumentTypeError, "dl_device"),
        ({"dl_device": (2, 0)}, ExchangeError, r"host memory \(1, 0\).*CUDA \(2, 0\)"),
        ({"copy": 1}, ArgumentTypeError, "copy"),
    ],
    ids=str,
)
def test_what_a_consumer_may_not_ask(device, asked, error, match):
    buffer = device.upload(np.arange(4, dtype=np.int32))
    with pytest.raises(error, match=match):
        buffer.__dlpack__(**asked)


def test_a_consumer_keeps_the_memory_until_its_end_m2(device):
    """M2: memory lives as long as the consumer's tensor; an unused capsule releases it, too."""
    buffer = device.upload(np.arange(4, dtype=np.int32))
    taken = np.from_dlpack(buffer)
    buffer.close()
    settle(device)
    assert device.statistics().allocations == 1
    assert taken.tolist() == [0, 1, 2, 3]
    del taken
    assert_soon(device, lambda: device.statistics().allocations == 0)
    for versions in ({}, {"max_version": (1, 0)}):
        capsule = device.upload(np.arange(4)).__dlpack__(**versions)
        settle(device)
        assert device.statistics().allocations == 1
        del capsule
        assert_soon(device, lambda: device.statistics().allocations == 0)


def test_a_consumer_that_lets_go_in_the_middle_of_an_error_m2(device):
    """M2: giving memory back disturbs no exception that is on its way."""

    def fail(_first, _second):
        raise AssertionError

    for _ in range(20):
        with pytest.raises(ZeroDivisionError):
            fail(np.from_dlpack(device.upload(np.arange(4))), 1 // 0)
        with pytest.raises(ZeroDivisionError):
            fail(device.upload(np.arange(4)).__dlpack__(), 1 // 0)
    assert_soon(device, lambda: device.statistics().allocations == 0)


def test_a_consumer_may_let_go_on_any_thread_m2(device):
    taken = [np.from_dlpack(device.upload(np.arange(4))) for _ in range(8)]

    def drop():
        while taken:
            try:
                taken.pop()
            except IndexError:
                return

    collect_in_threads([drop] * 4)
    assert_soon(device, lambda: device.statistics().allocations == 0)


def test_a_consumer_may_let_go_at_the_end_of_the_process_m2(run_script):
    done = run_script("""
        import sys, numpy as np, hal
        device = hal.create_device("cpu")
        sys.taken = np.from_dlpack(device.upload(np.arange(4, dtype="i4")))
        sys.capsule = device.upload(np.arange(4)).__dlpack__()
        array = np.arange(4, dtype="f4")
        sys.given = device.from_dlpack(array)
        sys.view = np.asarray(sys.given)
        print(sys.taken.sum(), sys.view.sum())
    """)
    assert (done.returncode, done.stdout, done.stderr) == (0, "6 6.0\n", "")


# DLPack, out, of other devices' memory


def pretend(probe, monkeypatch, where):
    """Make a device's memory that of a GPU, as far as DLPack sees it."""
    monkeypatch.setattr(probe, "host_pointer", lambda address, memory: None)
    monkeypatch.setattr(probe, "dlpack_device", lambda memory: where)


@pytest.mark.parametrize("where", [(2, 3), (10, 0)])
def test_device_memory_is_handed_out_by_its_address_m2(open_probe, monkeypatch, where):
    """M2: the capsule names the device, the host reads nothing, the consumer keeps it alive."""
    device, probe = open_probe()
    pretend(probe, monkeypatch, where)
    buffer = device.upload(np.arange(6, dtype=np.float32).reshape(2, 3))
    assert buffer.__dlpack_device__() == where
    for versions in ({}, {"max_version": (1, 0)}):
        tensor, shape, strides, _ = look_into(buffer.__dlpack__(stream=-1, **versions))
        assert (int(tensor["type"]), int(tensor["id"])) == where
        assert (int(tensor["data"]), shape) == (buffer.address, [2, 3])
        assert strides in ([3, 1], None)
        assert (tensor["code"], tensor["bits"]) == (2, 32)
    capsule = buffer.__dlpack__()
    buffer.close()
    settle(device)
    assert device.statistics().allocations == 1
    del capsule
    assert_soon(device, lambda: device.statistics().allocations == 0)


def test_device_memory_is_copied_where_that_is_asked_for(open_probe, monkeypatch):
    device, probe = open_probe()
    pretend(probe, monkeypatch, (2, 0))
    buffer = device.upload(np.arange(6, dtype=np.float32).reshape(2, 3))
    tensor, shape, _, flags = look_into(buffer.__dlpack__(copy=True, max_version=(1, 0)))
    assert (int(tensor["type"]), shape) == (2, [2, 3])
    assert int(tensor["data"]) != buffer.address
    assert flags == (IS_COPIED if NUMPY_HAS_VERSIONS else None)
    asked = {"dl_device": (1, 0), "max_version": (1, 0)}
    for copy in (None, True):
        tensor, _, _, flags = look_into(capsule := buffer.__dlpack__(copy=copy, **asked))
        assert (tensor["type"], flags) == (1, IS_COPIED if NUMPY_HAS_VERSIONS else None)
        values = memory_of(int(tensor["data"]), 24).view("f4").tolist()
        assert values == [0, 1, 2, 3, 4, 5]
        del capsule
    with pytest.raises(ExchangeError, match="copy=False"):
        buffer.__dlpack__(copy=False, **asked)


@pytest.mark.parametrize(
    ("where", "right", "wrong"),
    [((2, 0), [None, -1, 1, 2, 4096], [0, -2]), ((10, 0), [None, -1, 0, 4096], [1, 2, -2])],
)
def test_streams_are_checked_as_the_standard_says(open_probe, monkeypatch, where, right, wrong):
    device, probe = open_probe()
    pretend(probe, monkeypatch, where)
    buffer = device.upload(np.zeros(4, np.float32))
    for stream in right:
        buffer.__dlpack__(stream=stream)
    for stream in wrong:
        with pytest.raises(InvalidArgumentError, match="stream"):
            buffer.__dlpack__(stream=stream)


def test_the_cuda_array_interface_is_there_where_the_memory_is_cudas(
    open_probe, device, monkeypatch
):
    gpu, probe = open_probe()
    pretend(probe, monkeypatch, (2, 0))
    buffer = gpu.upload(np.arange(6, dtype=np.float32).reshape(2, 3))
    interface = buffer.__cuda_array_interface__
    assert {key: interface[key] for key in ("version", "shape", "typestr", "data", "strides")} == {
        "version": 3,
        "shape": (2, 3),
        "typestr": "<f4",
        "data": (buffer.address, False),
        "strides": None,
    }
    monkeypatch.setattr(probe, "dlpack_device", lambda memory: (10, 0))
    assert not hasattr(buffer, "__cuda_array_interface__")
    mine = device.upload(np.zeros(4))
    assert not hasattr(mine, "__cuda_array_interface__")
    with pytest.raises(ExchangeError, match=r"host memory \(1, 0\)"):
        _ = mine.__cuda_array_interface__


def test_an_array_that_is_cudas_only_is_refused(device):
    class Array:
        __cuda_array_interface__ = {"version": 3}  # noqa: RUF012 - as such classes have it

    with pytest.raises(UnimplementedError, match=r"__cuda_array_interface__.*cpu:0"):
        device.from_dlpack(Array())
