"""What all fake devices of a run share: handles, rules, lazy completion and memory.

What is enqueued stays unfinished until somebody asks: a query, a
synchronisation or a notification then asks the scheduler whether the work has
completed, wherever both answers are possible, and the work is executed in the
order of these answers. So a schedule covers every completion time that makes a
difference, and a missing dependency shows as wrong bytes.
"""

import ctypes
import traceback

from greenlet import GreenletExit

from schedlab.native_objects import Allocation, Record
from schedlab.threads import Cell

ALIGNMENT = 256


_ENDS = {"destroy_event", "destroy_graph", "destroy_graph_instance", "destroy_stream"}


class Vendor:
    """Hold what all devices of a run share: the scheduler, handles, memory and faults.

    Parameters
    ----------
    core
        The copy of the core, for its error classes and base classes.
    scheduler
        Who is asked and told.
    """

    def __init__(self, core, scheduler, *, domain="acme"):
        self.core = core
        self.scheduler = scheduler
        self.domain = domain
        self.errors = core.errors
        self.handles = 100 * (1 + len(scheduler.environment))
        self.streams = {}
        self.events = {}
        self.graphs = {}
        self.instances = {}
        self.allocations = {}  # address -> Allocation
        self.graveyard = []  # all memory, kept so that a wrong access harms nobody
        self.room = None  # bytes that there are, or None for any number
        self.freed = []  # (address, size) of what was freed
        self.guards = []  # (address, size, weakref) of host arrays
        self.devices = []
        self.cell = Cell()  # whether a device was lost
        self.bound = {}  # thread number -> device
        self.calls = 0
        self.counts = {}
        self.faults = []  # (primitive or None, number of the call, what makes the error)
        self.lost_at = None
        self.executed = []  # labels in the order of execution
        self.ran = set()  # patterns of fills and (target, source) of copies that have run
        self.special = {}  # pattern of a fill -> ("faults", "refused" or "hangs", name)
        self.work_count = 0
        self.posted = 0
        self.pool_of = None  # tells whether an event lies in the pool of the core
        scheduler.environment.append(self)

    # Handles and rules

    def handle(self):
        self.handles += 1
        return self.handles

    def broken(self, rule, message):
        """Report a broken invariant; the run ends."""
        where = "".join(line for line in traceback.format_stack()[:-1] if "/schedlab/" not in line)
        self.scheduler.fail(rule, f"{message}\n{where}")

    def enter(self, device, primitive, stream=None):
        """Check the rules for a call, let others run, and raise a planned fault.

        An interrupt of what destroys something comes when that has been done: it is returned.
        """
        s = self.scheduler
        if s.dead:
            raise GreenletExit
        me = s.current
        if s.finalising:
            s.report("I10", f"a finaliser calls {primitive}\n{traceback.format_stack()[-6:]}")
        if s.timeline_lock is not None and s.timeline_lock.owner is me:
            self.broken("I5", f"{me.name} calls {primitive} under the timeline lock")
        if self.bound.get(me.number) is not device:
            self.broken("bind", f"{me.name} calls {primitive} and has not bound the device")
        if device.closed and primitive != "bind":
            self.broken("I7", f"{primitive} after the device was closed")
        self.calls += 1
        self.counts[primitive] = self.counts.get(primitive, 0) + 1
        calls, count = self.calls, self.counts[primitive]  # others may make some meanwhile
        if stream is not None:
            if stream.busy is not None and stream.busy is not me:
                self.broken(
                    "stream",
                    f"{me.name} calls {primitive} on {stream.label} during a call of "
                    f"{stream.busy.name} on it",
                )
            stream.busy = me
        if not s.quiet:
            s.point(primitive)
        if stream is not None:
            stream.busy = None
            s.note_write(stream.cell)
        if self.faults or self.lost_at is not None:
            s.note_write(self.cell)  # the order of all calls makes a difference
        for fault in self.faults:
            name, number, make = fault
            if number == (count if name else calls) and name in (None, primitive):
                error = make(self, primitive)
                if error is None:
                    continue
                if s.trace is not None:
                    s.log(f"{primitive} raises a planned fault")
                if isinstance(error, KeyboardInterrupt) and primitive in _ENDS:
                    return error
                raise error
        if self.lost_at is not None and self.calls >= self.lost_at and not device.lost:
            device.lose()
        if device.lost:
            s.note_read(self.cell)
            self.raise_lost()
        return None

    def raise_lost(self):
        """Raise what every call on a lost device raises."""
        message = "the device is lost"
        raise self.errors.DeviceLostError(message, native_name="ACME_LOST", native_code=700)

    # Completion

    def possible(self, record):
        """Return whether the work that a record stands for can complete now."""
        checked = set()
        stack = [record]
        while stack:
            place = stack.pop()
            if id(place) in checked:
                continue
            checked.add(id(place))
            stream = place.stream
            for item in stream.items[stream.head : place.item.number + 1]:
                if item.hangs:
                    return False
                if item.needs is not None and not item.needs.is_over():
                    stack.append(item.needs)
        return True

    def hangs(self, device):
        """Return whether something on a device's streams never completes."""
        ends = [(each, each.items[-1]) for each in self.streams.values() if each.items]
        return any(
            each.device is device and not item.done and not self.possible(Record(each, item))
            for each, item in ends
        )

    def complete(self, stream, upto):
        """Execute the items of a stream up to and with number `upto`, and what they wait for.

        What waits for a lost device goes on: its own device knows nothing of that.
        """
        stack = [(stream, upto)]
        while stack:
            stream, upto = stack[-1]
            if stream.head > upto:
                stack.pop()
                continue
            if stream.device.lost:  # it runs nothing more
                stack.pop()
                continue
            item = stream.items[stream.head]
            if item.needs is not None and not item.needs.is_over():
                stack.append((item.needs.stream, item.needs.item.number))
                continue
            self.execute(item)

    def execute(self, item):
        """Do the next item of its stream."""
        s = self.scheduler
        stream = item.stream
        s.note_write(stream.done)
        for address, _ in item.ranges:
            for base, allocation in self.allocations.items():
                if base <= address < base + allocation.size:
                    s.note_write(allocation.cell)
        if item.kind == "work":
            if item.faults:
                # An asynchronous fault ends the context, as CUDA's and HIP's do.
                stream.device.lose()
            else:
                item.run()
                self.executed.append(item.label)
        elif item.kind == "free":
            item.run()
        elif item.kind == "notify":
            self.posted += 1
            item.run.ring_by_driver(s)
        item.done = True
        stream.head += 1
        if s.trace is not None:
            s.log(f"completes {item.label}", who="device")

    def steps(self):
        """Return what the device can do by itself: finish work that a notification waits for."""
        steps = []
        for stream in self.streams.values():
            if stream.device.lost:
                continue
            for item in stream.items[stream.head :]:
                if item.kind == "notify":
                    if self.possible(Record(stream, item)):
                        steps.append(
                            (
                                f"notifies of {stream.label}",
                                lambda it=item: self.step(it),
                                stream.actor.number,
                            )
                        )
                    break
        return steps

    def look_at_all(self):
        """Note that a check depends on what all streams hold and what has completed."""
        self.scheduler.note_read(self.cell)
        for stream in self.streams.values():
            self.scheduler.note_read(stream.cell)
            self.scheduler.note_read(stream.done)

    def step(self, item):
        s = self.scheduler
        me, s.current = s.current, item.stream.actor
        try:
            s.note_read(item.stream.cell)
            self.complete(item.stream, item.number)
        finally:
            s.current = me

    def fingerprint(self, parts):
        """Add what the device has done by itself to a fingerprint."""
        parts.append(self.cell.w)
        parts.extend(stream.actor.hash for stream in self.streams.values())

    def finish_all(self):
        """Complete whatever can, at the end of a run."""
        for stream in self.streams.values():
            if stream.items and not stream.device.lost:
                last = stream.items[-1]
                if self.possible(Record(stream, last)):
                    self.complete(stream, last.number)

    # Memory

    def locate(self, address, size, what):
        """Return the buffer and the offset of device memory; a rule is broken if it is none."""
        base = self.find(address, size)
        if base is None:
            self.broken(
                "I4", f"{what} touches {size} bytes at {address:#x}, which is not allocated"
            )
        return self.allocations[base].buffer, address - base

    def find(self, address, size):
        """Return the address of the allocation that holds a range, or None."""
        for base, allocation in self.allocations.items():
            if base <= address and address + size <= base + allocation.size:
                return base
        return None

    def allocate(self, device, size, *, pinned=False, freed=()):
        """Make an allocation, of bytes that were `freed` if need be; return its address."""
        if self.room is not None:
            left = self.room - sum(each.held for each in self.allocations.values())
            if size > left + sum(each.held for each in freed):
                message = f"{size} bytes were asked for and {left} are left"
                raise self.errors.OutOfMemoryError(message)
            for each in freed:
                taken = max(0, min(each.held, size - left))
                each.held -= taken
                left += taken
        raw = ctypes.create_string_buffer(size + ALIGNMENT)
        start = ctypes.addressof(raw)
        base = -(-start // ALIGNMENT) * ALIGNMENT
        buffer = memoryview(raw).cast("B")[base - start : base - start + size]
        self.allocations[base] = Allocation(device, size, buffer, pinned=pinned)
        self.graveyard.append(raw)
        return base

    def users(self, address, size):
        """Return the unfinished work that may use a range of memory."""
        self.look_at_all()
        return [
            item
            for stream in self.streams.values()
            if not stream.device.lost
            for item in stream.items[stream.head :]
            for start, length in item.ranges
            if start < address + size and address < start + length
        ]

    def behind(self, stream):
        """Return how far each stream, by handle, has got before what comes next on `stream`."""
        reach = {}
        stack = [(stream, len(stream.items))]
        while stack:
            place, stop = stack.pop()
            start = reach.get(place.handle, 0)
            if stop <= start:
                continue
            reach[place.handle] = stop
            stack.extend(
                (item.needs.stream, item.needs.item.number + 1)
                for item in place.items[start:stop]
                if item.needs is not None
            )
        return reach

    def check_idle(self, address, size, what):
        """Report memory that is given to others while work may still use it."""
        users = self.users(address, size)
        if users:
            self.broken("I4", f"{what} while {users[0].label} may use it")

    def guard(self, address, size, reference):
        """Watch a host array that queued work may use: it must live until then."""
        self.guards.append((address, size, reference))

    def host_bytes(self, address, size, what):
        """Return `size` bytes of host memory as a ctypes array."""
        for base, length, reference in self.guards:
            if base <= address < base + length and reference() is None:
                self.broken("I4", f"{what} touches a host array that is gone")
        for base, length in self.freed:
            if base <= address < base + length:
                self.broken("I4", f"{what} touches pinned memory that was freed")
        return (ctypes.c_char * size).from_address(address)

    def live(self, device):
        """Return every native handle of a device that is alive, for I7."""
        parts = [stream.label for stream in self.streams.values() if stream.device is device]
        parts.extend(
            f"event {handle}" for handle, event in self.events.items() if event.device is device
        )
        parts.extend(
            f"{each.size} bytes at {base:#x}"
            for base, each in self.allocations.items()
            if each.device is device and not each.doomed
        )
        for kind, table in (("graph", self.graphs), ("instance", self.instances)):
            parts.extend(f"{kind} {h}" for h, graph in table.items() if graph.device is device)
        return parts

    def end_hangs(self):
        """Let what hangs go on after all, and finish what it held up: its memory must be there."""
        for stream in self.streams.values():
            for item in stream.items:
                item.hangs = False
        self.finish_all()

    def peek(self, address, size):
        """Return bytes of device memory, without a call."""
        buffer, offset = self.locate(address, size, "peek")
        return bytes(buffer[offset : offset + size])
