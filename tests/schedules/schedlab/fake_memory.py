"""The memory of a fake device: its own, the host's, and what streams allocate."""

import ctypes

from schedlab.native_objects import Allocation, Item


class MemoryCalls:
    """Allocate and free, at once and in the order of a stream; a part of a fake device.

    The pool has no memory of its own: a stream that has waited past a free may
    have the freed bytes at once, and with the free's completion they are anybody's.
    """

    is_allocated_from = False

    def allocate(self, size, memory):
        v = self.vendor
        v.enter(self, "allocate")
        return v.allocate(
            self, size, pinned=memory is not self.vendor.core.native.MemoryType.DEVICE
        )

    def free(self, address, memory):
        v = self.vendor
        v.enter(self, "free")
        self.give_back("free", address)

    def give_back(self, primitive, address):
        """Let an allocation go that no work uses."""
        v = self.vendor
        allocation = v.allocations.get(address)
        if allocation is None or allocation.born is not None:
            v.broken("I4", f"{primitive} of {address:#x}, which is not allocated so")
        v.check_idle(address, allocation.size, f"{primitive} of {address:#x}")
        del v.allocations[address]
        v.freed.append((address, allocation.size))

    # Host memory of others

    def import_host(self, address, size):
        v = self.vendor
        v.enter(self, "import_host")
        self.declares("host_import")
        for base, each in v.allocations.items():
            if base < address + size and address < base + each.size:
                raise self.vendor.errors.OperationError("the range is pinned already")
        memory = memoryview((ctypes.c_char * size).from_address(address)).cast("B")
        v.allocations[address] = Allocation(self, size, memory, pinned=True)
        v.allocations[address].imported = True
        return address

    def release_host(self, address):
        v = self.vendor
        v.enter(self, "release_host")
        if address not in v.allocations or not v.allocations[address].imported:
            v.broken("I4", f"release_host of {address:#x}, which was not imported")
        v.check_idle(address, v.allocations[address].size, "host memory is released")
        del v.allocations[address]

    # Stream-ordered allocation

    def allocate_async(self, stream, size):
        v = self.vendor
        target = self.stream(stream, "allocate_async")
        v.enter(self, "allocate_async", target)
        self.declares("async_allocations")
        self.is_allocated_from = True
        base = v.allocate(self, size, freed=self.freed_before(target))
        v.allocations[base].born = item = Item(target, "allocate", f"allocate {base:#x}")
        target.items.append(item)
        return base

    def free_async(self, stream, address):
        v = self.vendor
        target = self.stream(stream, "free_async")
        v.enter(self, "free_async", target)
        allocation = v.allocations.get(address)
        if allocation is None or allocation.born is None or allocation.doomed:
            v.broken("I4", f"free_async of {address:#x}, which is not allocated so")
        reach = v.behind(target)
        for item in v.users(address, allocation.size):
            if item.number >= reach.get(item.stream.handle, 0):
                v.broken("I4", f"free_async is not ordered behind {item.label}")
        allocation.doomed = True

        def run():
            del v.allocations[address]

        label = f"free {address:#x}"
        allocation.freed = item = Item(target, "free", label, run, ranges=((address, 1),))
        target.items.append(item)

    def freed_before(self, stream):
        """Return what was freed at places that come before what is enqueued on a stream next."""
        v = self.vendor
        reach = v.behind(stream)
        return [
            each
            for each in v.allocations.values()
            if each.doomed and each.freed.number < reach.get(each.freed.stream.handle, 0)
        ]

    def configure_pool(self, keep, reuse):
        v = self.vendor
        v.enter(self, "configure_pool")
        self.declares("async_allocations")
        if self.is_allocated_from:
            v.broken("pool", "configure_pool after the first allocate_async")
        if keep < 0 or reuse not in {"stream", "ordered", "any"}:
            v.broken("pool", f"configure_pool({keep}, {reuse!r})")

    def pool_statistics(self):
        v = self.vendor
        v.enter(self, "pool_statistics")
        v.look_at_all()
        mine = [each for each in v.allocations.values() if each.born and each.device is self]
        return sum(each.held for each in mine), sum(each.size for each in mine if not each.doomed)

    def trim_pool(self, keep):
        """Do nothing but the checks: what is freed is gone as soon as its stream gets there."""
        v = self.vendor
        v.enter(self, "trim_pool")
        self.declares("async_allocations")
        if keep < 0:
            v.broken("pool", f"trim_pool({keep})")

    def host_pointer(self, address, memory):
        return None if memory is self.vendor.core.native.MemoryType.DEVICE else address

    def memory_info(self):
        return 1 << 30, 1 << 31
