"""How many blocks of a kernel fit on a compute unit: `Kernel.occupancy` (C5)."""

import pytest

from hal.errors import ClosedError, UnimplementedError

SOURCE = """
__global__ void HAL_BLOCK(32, 2) HAL_SHARED_MEMORY(256) own(int *x) { x[threadIdx.x] = 1; }
__global__ void plain(int *x) { x[threadIdx.x] = 1; }
"""


def asked(probe, monkeypatch):
    """Have the device answer with what it was asked, which the real one's arithmetic would hide."""
    calls = []

    def occupancy(function, threads, shared_memory):
        calls.append((function, threads, shared_memory))
        return 7

    monkeypatch.setattr(probe, "occupancy", occupancy)
    return calls


def test_the_device_is_asked_for_the_block_c5(open_probe, monkeypatch):
    """C5: threads are counted over all axes; what is not given is the kernel's own."""
    device, probe = open_probe()
    program = device.compile(SOURCE)
    own, plain = program["own"], program["plain"]
    calls = asked(probe, monkeypatch)
    assert own.occupancy() == 7
    assert own.occupancy(16) == 7
    assert own.occupancy((4, 5, 6), shared_memory=512) == 7
    assert own.occupancy([8, 8], shared_memory=0) == 7
    assert plain.occupancy(128) == 7
    assert calls == [
        (own._function, 64, 256),
        (own._function, 16, 256),
        (own._function, 120, 512),
        (own._function, 64, 0),
        (plain._function, 128, 0),
    ]


def test_a_processor_holds_one_block(device):
    program = device.compile(SOURCE)
    assert program["own"].occupancy() == 1
    assert program["plain"].occupancy(1024) == 1


def test_a_device_that_does_not_tell(open_probe):
    device, probe = open_probe(without={"occupancy"})
    kernel = device.compile(SOURCE)["own"]
    with pytest.raises(UnimplementedError, match=r"cpu:0.*'occupancy'"):
        kernel.occupancy()
    assert probe.calls["occupancy"] == 0


def test_a_closed_device_is_not_asked(open_probe):
    device, probe = open_probe()
    kernel = device.compile(SOURCE)["own"]
    device.close()
    with pytest.raises(ClosedError):
        kernel.occupancy()
    assert probe.calls["occupancy"] == 0
