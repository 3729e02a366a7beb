"""Memory shared with numpy and by the buffer protocol (M2)."""

import sys

import numpy as np
import pytest

from hal.errors import ClosedError, ExchangeError, UnimplementedError


@pytest.mark.skipif(np.lib.NumpyVersion(np.__version__) < "2.0.0", reason="numpy before 2")
def test_asarray_obeys_copy(device):
    buffer = device.upload(np.arange(6, dtype=np.float32))
    assert np.asarray(buffer, copy=False).ctypes.data == buffer.address
    assert np.asarray(buffer, copy=True).ctypes.data != buffer.address
    with pytest.raises(ValueError, match="copy"):
        np.asarray(buffer, dtype=np.float64, copy=False)


def test_asarray_of_structures_and_scalars(device):
    records = np.array([(1, 0.5), (2, 1.5)], dtype=[("i", "i4"), ("x", "f8")])
    view = np.asarray(device.upload(records))
    assert view.dtype == records.dtype
    assert view.tolist() == records.tolist()
    scalar = np.asarray(device.upload(np.float32(3)))
    assert np.asarray(device.upload(np.float32(3)), dtype=np.float64).dtype == np.float64
    assert (scalar.shape, float(scalar)) == ((), 3)
    assert np.asarray(device.upload(np.zeros((0, 4), "f4"))).shape == (0, 4)


@pytest.mark.skipif(sys.version_info < (3, 12), reason="__buffer__ is of Python 3.12")
def test_the_buffer_protocol_m2(device):
    buffer = device.upload(np.arange(6, dtype=np.int16).reshape(2, 3))
    with memoryview(buffer) as view:
        assert (view.format, view.shape, view.tolist()) == ("h", (2, 3), [[0, 1, 2], [3, 4, 5]])
        view[1, 2] = 99
    assert buffer.numpy()[1, 2] == 99
    assert bytes(buffer) == buffer.numpy().tobytes()
    buffer.close()
    with pytest.raises(ClosedError):
        memoryview(buffer)


def hide(probe, monkeypatch):
    """Make a device's memory one that the host does not see, and of no device of DLPack's."""
    monkeypatch.setattr(probe, "host_pointer", lambda address, memory: None)
    monkeypatch.setattr(probe, "dlpack_device", lambda memory: None)


def test_memory_that_the_host_does_not_see_m2(open_probe, monkeypatch):
    device, probe = open_probe()
    hide(probe, monkeypatch)
    buffer = device.upload(np.arange(4, dtype=np.int32))
    with pytest.raises(TypeError, match=r"not visible to the host.*buffer\.numpy\(\)"):
        np.asarray(buffer)
    with pytest.raises(TypeError):
        memoryview(buffer)
    with pytest.raises(UnimplementedError):
        buffer.map()
    for use in (buffer.__dlpack__, buffer.__dlpack_device__):
        with pytest.raises(ExchangeError, match=r"device memory of cpu:0.*buffer\.numpy\(\)"):
            use()
    assert buffer.numpy().tolist() == [0, 1, 2, 3]
