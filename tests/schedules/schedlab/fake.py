"""A fake vendor: real event rules, lazy completion, faults, and every invariant it can see.

What is enqueued stays unfinished until somebody asks: a query, a
synchronisation or a notification then asks the scheduler whether the work has
completed, wherever both answers are possible, and the work is executed in the
order of these answers. So a schedule covers every completion time that makes a
difference, and a missing dependency shows as wrong bytes.
"""

from __future__ import annotations

import ctypes
import functools
import traceback
from types import SimpleNamespace

from schedlab import scheduler as sync

PATIENCE = 2
"""How often one thread may be told "not yet" about one record."""

ALIGNMENT = 256


class Record:
    """Be what one call of record_event captured: a place in a stream."""

    __slots__ = ("answers", "item", "stream")

    def __init__(self, stream, item):
        self.stream = stream
        self.item = item
        self.answers = {}

    def is_over(self):
        """Return whether nothing waits for it any more: it is done, or will never be."""
        return self.item.done or self.stream.device.lost


class Item:
    """Be one enqueued thing."""

    __slots__ = (
        "done",
        "faults",
        "hangs",
        "kind",
        "label",
        "needs",
        "number",
        "ranges",
        "run",
        "stream",
    )

    def __init__(self, stream, kind, label, run=None, needs=None, ranges=()):
        self.stream = stream
        self.kind = kind  # "work", "record", "wait", "notify", "allocate", "free"
        self.label = label
        self.run = run
        self.needs = needs  # a Record, for waits
        self.ranges = ranges  # (address, size) of device memory
        self.number = len(stream.items)
        self.done = False
        self.faults = False
        self.hangs = False


class Stream:
    """Be a stream: items in order, the first `head` of them done."""

    __slots__ = ("actor", "busy", "cell", "device", "done", "handle", "head", "items", "label")

    def __init__(self, device, handle, label):
        self.device = device
        self.handle = handle
        self.label = label
        self.items = []
        self.head = 0
        self.busy = None
        self.cell = sync.Cell()  # what was enqueued
        self.done = sync.Cell()  # what has completed
        # Whoever completes work unasked, so that its notification comes.
        self.actor = sync.Thread(-handle, f"{label} itself", daemon=True)


class Event:
    """Be an event and its last record."""

    __slots__ = ("cell", "device", "handle", "record", "records")

    def __init__(self, device, handle):
        self.device = device
        self.handle = handle
        self.record = None
        self.records = 0
        self.cell = sync.Cell()


class Allocation:
    """Be memory of a device, or of the host and pinned."""

    __slots__ = ("born", "buffer", "cell", "device", "doomed", "imported", "pinned", "size")

    def __init__(self, device, size, buffer, *, pinned=False):
        self.device = device
        self.pinned = pinned
        self.size = size
        self.buffer = buffer
        self.cell = sync.Cell()
        self.imported = False  # it belongs to somebody else
        self.born = None  # the Item of a stream-ordered allocation
        self.doomed = False  # a stream-ordered free of it was enqueued


class Graph:
    """Be a graph, or an instance of one."""

    __slots__ = ("busy", "cell", "dependencies", "device", "launches", "nodes")

    def __init__(self, device, nodes, dependencies):
        self.device = device
        self.nodes = list(nodes)
        self.dependencies = [tuple(each) for each in dependencies]
        self.launches = []  # the Items of an instance's
        self.busy = None  # the thread that is in a call on it
        self.cell = sync.Cell()

    def orders(self):
        """Return the order that takes nodes as early as recorded, and the most different one."""
        found = []
        for pick in (min, max):
            left, order = set(range(len(self.nodes))), []
            while left:
                ready = [i for i in left if not left.intersection(self.dependencies[i])]
                order.append(pick(ready))
                left.remove(order[-1])
            if order not in found:
                found.append(order)
        return found


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
        self.cell = sync.Cell()  # whether a device was lost
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

    def enter(self, device, primitive, stream=None, *, needs_bind=True):
        """Check the rules for a call, let others run, and raise a planned fault."""
        s = self.scheduler
        if s.dead:
            raise sync.GreenletExit
        me = s.current
        if s.finalising:
            s.report("I10", f"a finaliser calls {primitive}\n{traceback.format_stack()[-6:]}")
        if s.timeline_lock is not None and s.timeline_lock.owner is me:
            self.broken("I5", f"{me.name} calls {primitive} under the timeline lock")
        if needs_bind and self.bound.get(me.number) is not device:
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
            if number == (count if name else calls) and name in (
                None,
                primitive,
            ):
                error = make(self, primitive)
                if error is None:
                    continue
                if s.trace is not None:
                    s.log(f"{primitive} raises a planned fault")
                raise error
        if self.lost_at is not None and self.calls >= self.lost_at and not device.lost:
            device.lose()
        if device.lost:
            s.note_read(self.cell)
            self.raise_lost()

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
            sync.doorbell_of(item.run).ring_by_driver(s)
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

    def allocate(self, device, size, *, pinned=False):
        """Make an allocation; return its address."""
        if self.room is not None:
            left = self.room - sum(each.size for each in self.allocations.values())
            if size > left:
                message = f"{size} bytes were asked for and {left} are left"
                raise self.errors.OutOfMemoryError(message)
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


@functools.lru_cache(maxsize=64)
def classes(core):
    """Return the driver and device classes on a core's own base classes."""
    native = core.native
    errors = core.errors

    class FakeDriver(native.NativeDriver):
        """Be the vendor's driver; its devices can wait for each other's events."""

        def __init__(self, vendor):
            self.vendor = vendor

        def devices(self):
            return [_info(native, index, self.vendor.domain) for index in range(2)]

        def open_device(self, index, parameters):
            return FakeDevice(self.vendor, index)

    class FakeDevice(native.NativeDevice):
        """Be one device."""

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
                raise sync.GreenletExit
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

        # Streams and events

        def create_stream(self):
            v = self.vendor
            v.enter(self, "create_stream")
            handle = v.handle()
            v.streams[handle] = Stream(self, handle, f"{self.label}/s{len(v.streams)}")
            return handle

        def stream(self, handle, primitive):
            stream = self.vendor.streams.get(handle)
            if stream is None:
                self.vendor.broken(
                    "handle", f"{primitive} on stream {handle}, which does not exist"
                )
            if stream.device is not self:
                self.vendor.broken("handle", f"{primitive} on {stream.label} of another device")
            return stream

        def event(self, handle, primitive):
            event = self.vendor.events.get(handle)
            if event is None:
                self.vendor.broken("handle", f"{primitive} on event {handle}, which does not exist")
            return event

        def destroy_stream(self, stream):
            v = self.vendor
            target = self.stream(stream, "destroy_stream")
            v.enter(self, "destroy_stream", target)
            if target.head < len(target.items):
                v.broken("I4", f"{target.label} is destroyed with work on it")
            del v.streams[stream]

        def synchronize_stream(self, stream):
            v = self.vendor
            target = self.stream(stream, "synchronize_stream")
            v.enter(self, "synchronize_stream")
            if target.items:
                last = target.items[-1]
                if not v.possible(Record(target, last)):
                    v.scheduler.wait_for(_Possible(v, target, last))
                v.scheduler.note_read(target.done)
                if not self.lost:
                    v.complete(target, last.number)
                if self.lost:
                    raise errors.DeviceLostError("lost while synchronising")

        def create_event(self):
            v = self.vendor
            v.enter(self, "create_event")
            handle = v.handle()
            v.events[handle] = Event(self, handle)
            return handle

        def destroy_event(self, event):
            v = self.vendor
            v.enter(self, "destroy_event")
            target = self.event(event, "destroy_event")
            v.look_at_all()
            for stream in v.streams.values():
                for item in stream.items[stream.head :]:
                    if (
                        item.needs is not None
                        and item.needs is target.record
                        and not (target.record.item.done)
                    ):
                        v.broken(
                            "I4", f"event {event} is destroyed and {stream.label} waits for it"
                        )
            del v.events[event]

        def record_event(self, event, stream):
            v = self.vendor
            target = self.stream(stream, "record_event")
            v.enter(self, "record_event", target)
            record = self.event(event, "record_event")
            item = Item(target, "record", f"record e{event} on {target.label}", run=record)
            target.items.append(item)
            record.record = Record(target, item)
            record.records += 1
            v.scheduler.note_write(record.cell)

        def wait_event(self, stream, event):
            v = self.vendor
            target = self.stream(stream, "wait_event")
            v.enter(self, "wait_event", target)
            waited = self.event(event, "wait_event")
            v.scheduler.note_read(waited.cell)
            if waited.record is None:
                v.broken("I1", f"{target.label} waits for event {event}, which was never recorded")
            if v.pool_of is not None and v.pool_of(event):
                v.broken("I1", f"{target.label} waits for event {event}, which is back in the pool")
            target.items.append(
                Item(target, "wait", f"wait e{event} on {target.label}", needs=waited.record)
            )

        def query_event(self, event):
            v = self.vendor
            v.enter(self, "query_event")
            target = self.event(event, "query_event")
            s = v.scheduler
            s.note_read(target.cell)
            record = target.record
            if record is None:
                return True
            s.note_read(record.stream.done)
            if not record.item.done:
                s.note_read(v.cell)
                if not v.possible(record):
                    return False
                told = record.answers.get(s.current.number, 0)
                if told < PATIENCE and s.choose(2, f"whether e{event} is still running"):
                    record.answers[s.current.number] = told + 1
                    return False
                v.complete(record.stream, record.item.number)
                if record.stream.device.lost:
                    v.raise_lost()
            return True

        def notify(self, stream, function, argument):
            v = self.vendor
            target = self.stream(stream, "notify")
            v.enter(self, "notify", target)
            if function != 0xD00B:
                v.broken("I6", "notify with a function that is no doorbell's")
            sync.doorbell_of(argument)
            target.items.append(Item(target, "notify", f"notify on {target.label}", run=argument))

        # Memory

        def allocate(self, size, memory):
            v = self.vendor
            v.enter(self, "allocate")
            return v.allocate(self, size, pinned=memory is not native.MemoryType.DEVICE)

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
                    raise errors.OperationError("the range is pinned already")
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
            base = v.allocate(self, size)
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
            target.items.append(Item(target, "free", label, run, ranges=((address, 1),)))

        def declares(self, feature):
            if feature not in self.features:
                self.vendor.broken("feature", f"{feature} is used and was not declared")

        # Graphs

        def create_graph(self, nodes, dependencies):
            v = self.vendor
            v.enter(self, "create_graph")
            self.declares("graphs")
            for index, each in enumerate(dependencies):
                if any(not 0 <= before < index for before in each):
                    v.broken("graph", f"node {index} depends on {each}")
            handle = v.handle()
            v.graphs[handle] = Graph(self, nodes, dependencies)
            return handle

        def destroy_graph(self, graph):
            v = self.vendor
            v.enter(self, "destroy_graph")
            if v.graphs.pop(graph, None) is None:
                v.broken("handle", f"destroy_graph of {graph}, which does not exist")

        def instantiate_graph(self, graph):
            v = self.vendor
            v.enter(self, "instantiate_graph")
            found = v.graphs.get(graph)
            if found is None:
                v.broken("handle", f"instantiate_graph of {graph}, which does not exist")
            handle = v.handle()
            v.instances[handle] = Graph(self, found.nodes, found.dependencies)
            return handle

        def instance(self, handle, primitive, stream=None):
            """Return an instance that a call is on: one thread at a time may be in one."""
            v = self.vendor
            found = v.instances.get(handle)
            if found is None:
                v.broken("handle", f"{primitive} on instance {handle}, which does not exist")
            me = v.scheduler.current
            if found.busy is not None:
                v.broken("graph", f"{me.name} calls {primitive} during a call of {found.busy.name}")
            found.busy = me
            try:
                v.enter(self, primitive, stream)
            finally:
                found.busy = None
            v.scheduler.note_write(found.cell)
            return found

        def destroy_graph_instance(self, instance):
            v = self.vendor
            found = self.instance(instance, "destroy_graph_instance")
            v.look_at_all()
            if not self.lost and any(not item.done for item in found.launches):
                v.broken("I4", "a graph instance is destroyed that still runs")
            del v.instances[instance]

        def update_graph(self, instance, index, node):
            found = self.instance(instance, "update_graph")
            if type(found.nodes[index]) is not type(node):
                self.vendor.broken("graph", f"node {index} is updated to one of another class")
            found.nodes[index] = node

        def launch_graph(self, stream, instance):
            v = self.vendor
            target = self.stream(stream, "launch_graph")
            found = self.instance(instance, "launch_graph", target)
            v.look_at_all()
            if any(not item.done and item.stream is not target for item in found.launches):
                v.broken("graph", "an instance is launched that runs on another stream")
            nodes = list(found.nodes)
            works = [self.node(node) for node in nodes]
            orders = found.orders()

            def run():
                s = v.scheduler
                which = s.choose(len(orders), "in which order a graph runs") if s.current else 0
                for index in orders[which]:
                    works[index][1]()

            ranges = [each for work, _ in works for each in work]
            found.launches.append(self.enqueue(target, "graph", run, ranges))

        def node(self, node):
            """Return the ranges that a node uses, and what it does."""
            kind = type(node).__name__
            if kind == "FillNode":
                return self.filling(*node)
            if kind == "CopyNode":
                return self.copying(*node)
            if kind == "HostCopyNode":
                return self.reading_host(*node)
            if kind == "EmptyNode":
                return (), lambda: None
            raise errors.UnimplementedError("the fake device launches nothing")

        def host_pointer(self, address, memory):
            return None if memory is native.MemoryType.DEVICE else address

        def memory_info(self):
            return 1 << 30, 1 << 31

        # Work

        def work(self, primitive, stream, label, run, ranges):
            target = self.stream(stream, primitive)
            self.vendor.enter(self, primitive, target)
            return self.enqueue(target, label, run, ranges)

        def enqueue(self, target, label, run, ranges):
            """Append work to a stream; what it touches must be allocated for that stream."""
            v = self.vendor
            reach = None
            for address, size in ranges:
                v.locate(address, size, label)
                allocation = v.allocations[v.find(address, size)]
                if allocation.doomed:
                    v.broken("M3", f"{label} uses memory whose free is enqueued")
                born = allocation.born
                if born is not None and not born.done:
                    reach = reach or v.behind(target)
                    if born.number >= reach.get(born.stream.handle, 0):
                        v.broken("M3", f"{label} is not ordered behind {born.label}")
            v.work_count += 1
            item = Item(target, "work", f"#{v.work_count} {label}", run=run, ranges=ranges)
            target.items.append(item)
            return item

        def filling(self, address, pattern, width, count):
            """Return the ranges that a fill uses, and what it does."""
            v = self.vendor
            size = width * count
            data = (pattern & ((1 << 8 * width) - 1)).to_bytes(width, "little") * count

            def run():
                buffer, offset = v.locate(address, size, f"fill {pattern:#x}")
                buffer[offset : offset + size] = data
                v.ran.add(pattern)

            return ((address, size),), run

        def fill(self, stream, address, pattern, width, count):
            v = self.vendor
            what, name = v.special.get(pattern, (None, ""))
            if what == "refused":
                v.enter(self, "fill", self.stream(stream, "fill"))
                message = f"refused {name}"
                raise errors.OperationError(message, native_name="ACME_REFUSED", native_code=1)
            ranges, run = self.filling(address, pattern, width, count)
            item = self.work("fill", stream, f"fill {pattern:#x}", run, ranges)
            item.faults = what == "faults"
            item.hangs = what == "hangs"

        def copying(self, target, source, size):
            """Return the ranges that a copy uses, and what it does."""
            v = self.vendor

            def run():
                from_, start = v.locate(source, size, "copy")
                to, offset = v.locate(target, size, "copy")
                to[offset : offset + size] = from_[start : start + size]
                v.ran.add((target, source))

            return ((target, size), (source, size)), run

        def copy(self, stream, target, source, size):
            ranges, run = self.copying(target, source, size)
            self.work("copy", stream, "copy", run, ranges)

        def reading_host(self, target, source, size):
            """Return the ranges that a copy from the host uses, and what it does."""
            v = self.vendor

            def run():
                to, offset = v.locate(target, size, "copy_from_host")
                to[offset : offset + size] = bytes(v.host_bytes(source, size, "copy_from_host"))
                v.ran.add((target, "host"))

            return ((target, size), (source, size) if v.find(source, size) else (target, size)), run

        def check_pinned(self, address, size, primitive):
            """Report a copy that would block: its host memory is pageable (Q1)."""
            if "pageable_copies" in self.features:
                return
            base = self.vendor.find(address, size)
            if base is None or not self.vendor.allocations[base].pinned:
                self.vendor.broken("Q1", f"{primitive} is given pageable memory, and would block")

        def copy_from_host(self, stream, target, source, size):
            self.check_pinned(source, size, "copy_from_host")
            ranges, run = self.reading_host(target, source, size)
            self.work("copy_from_host", stream, "copy_from_host", run, ranges)

        def copy_to_host(self, stream, target, source, size):
            self.check_pinned(target, size, "copy_to_host")
            v = self.vendor

            def run():
                from_, start = v.locate(source, size, "copy_to_host")
                v.host_bytes(target, size, "copy_to_host").raw = bytes(from_[start : start + size])
                v.ran.add(("host", source))

            pinned = (target, size) if v.find(target, size) else (source, size)
            self.work("copy_to_host", stream, "copy_to_host", run, ((source, size), pinned))
            # What is there until then is undefined.
            v.host_bytes(target, size, "copy_to_host").raw = b"\xdd" * size

        # Kernels: there are none

        def compile(self, request):
            raise errors.UnimplementedError("the fake device compiles nothing")

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


class _Possible:
    """Be open once a stream can complete, or its device is lost."""

    def __init__(self, vendor, stream, last):
        self.vendor, self.place, self.device = vendor, Record(stream, last), stream.device

    @property
    def free(self):
        return self.device.lost or self.vendor.possible(self.place)


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
