"""A signal handler may use a device in the middle of any call of its own thread (O3)."""

import ctypes

from interrupts import nest_everywhere

import hal_cpu
from hal.errors import OperationError
from hal.native import MemoryType


def test_a_call_that_interrupts_another_waits_for_nothing_o3(lab):
    foreign = ctypes.create_string_buffer(64)
    before = lab.device._allocated

    def act():
        address = lab.device.allocate(64, MemoryType.DEVICE)
        try:
            lab.device.import_host(ctypes.addressof(foreign), 64)
        except OperationError:  # the one that is interrupted has imported it
            pass
        else:
            lab.device.release_host(ctypes.addressof(foreign))
        lab.device.free(address, MemoryType.DEVICE)

    nest_everywhere(hal_cpu, act)
    assert lab.device._allocated == before
