"""A fake vendor's driver and devices: real rules, lazy completion, faults on request."""

import functools
from types import SimpleNamespace

from greenlet import GreenletExit

from schedlab.fake_memory import MemoryCalls
from schedlab.fake_streams import StreamCalls
from schedlab.fake_work import GraphCalls, WorkCalls


@functools.lru_cache(maxsize=64)
def classes(core):
    """Return the driver and device classes on a core's own base classes."""
    native = core.native
    errors = core.errors

    class FakeDriver(native.NativeDriver):
        """The vendor's driver; its devices can wait for each other's events."""

        def __init__(self, vendor):
            self.vendor = vendor

        def devices(self):
            return [_info(native, index, self.vendor.domain) for index in range(2)]

        def open_device(self, index, parameters):
            return FakeDevice(self.vendor, index)

    class FakeDevice(StreamCalls, MemoryCalls, WorkCalls, GraphCalls, native.NativeDevice):
        """One device."""

        def __init__(self, vendor, index=0, *, max_in_flight=512, features=frozenset()):
            self.vendor = vendor
            self.index = index
            self.info = _info(native, index, vendor.domain)
            self.features = frozenset(features)
            self.domain = vendor
            self.max_in_flight = max_in_flight
            self.lost = False
            self.closed = False
            self.label = f"{vendor.domain}{index}"
            vendor.devices.append(self)

        def lose(self):
            self.lost = True
            self.vendor.scheduler.note_write(self.vendor.cell)

        # Context

        def bind(self):
            v = self.vendor
            s = v.scheduler
            if s.dead:
                raise GreenletExit
            if s.finalising:
                s.report("I10", "a finaliser binds the device")
            if s.timeline_lock is not None and s.timeline_lock.owner is s.current:
                v.broken("I5", f"{s.current.name} binds under the timeline lock")
            v.bound[s.current.number] = self

        def close(self):
            v = self.vendor
            if not self.lost:
                for stream in v.streams.values():
                    if stream.device is self:
                        v.broken("I7", f"close with {stream.label} alive")
            self.closed = True

        def declares(self, feature):
            if feature not in self.features:
                self.vendor.broken("feature", f"{feature} is used and was not declared")

        # Kernels: there are none

        def load_module(self, image):
            raise errors.UnimplementedError("the fake device loads nothing")

        def unload_module(self, module):
            raise errors.UnimplementedError("the fake device has no modules")

        def get_function(self, module, name):
            raise errors.NotFoundError(name)

        def function_info(self, function):
            raise errors.NotFoundError("no functions")

        def get_global(self, module, name):
            raise errors.NotFoundError(name)

        def launch(self, stream, function, grid, block, shared_memory, parameters):
            raise errors.UnimplementedError("the fake device launches nothing")

    return SimpleNamespace(driver=FakeDriver, device=FakeDevice)


def _info(native, index, domain):
    return native.DeviceInfo(
        index=index,
        name=f"Acme {index}",
        uuid=f"{domain}-{index}",
        architecture="acme_1",
        total_memory=1 << 31,
        compute_units=1,
        max_threads_per_block=1024,
        max_shared_memory=1 << 15,
        warp_size=32,
        driver="acme 1",
    )
