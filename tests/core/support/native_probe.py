"""Watch, hold up and break the native calls that the core makes."""

import threading
import traceback
import weakref
from collections import Counter, defaultdict

from core_harness import SEM_WAIT
from external_probe import ExternalCalls
from graph_probe import GraphCalls
from pool_probe import ORDER, PoolCalls

from hal.errors import OperationError
from hal.native import MemoryType, NativeDevice

__all__ = ["STREAM_CALLS", "Probe"]

WORK = (
    *("fill", "copy", "copy_from_host", "copy_to_host"),
    *("launch", "launch_indirect", "launch_graph", "copy_peer"),
)
STREAM_CALLS = (
    *(*WORK, "wait_event", "record_event", "record_timer", "notify", "synchronize_stream"),
)
_UNBOUND = {"bind", "close"}
"""Calls that need no current context."""

_current = threading.local()
_probes = weakref.WeakSet()


class Probe(ExternalCalls, GraphCalls, PoolCalls, NativeDevice):
    """Forward every primitive to a real device, and watch the native rules.

    The pool of stream-ordered allocations is its own.

    Violations are collected, not raised, since the core may swallow errors:
    a handle that is not alive, two threads in one stream, an event waited for
    that was never recorded (I1), memory freed under work that still uses it
    (I4), a primitive on a thread whose current context is another device's.
    """

    __slots__ = ("__dict__", "__weakref__")

    def __init__(self, inner, domain=None, features=None):
        self.inner = inner
        self.info = inner.info
        self.features = inner.features if features is None else frozenset(features)
        self.domain = inner.domain if domain is None else domain
        self.max_in_flight = inner.max_in_flight
        self.graph_commands = inner.graph_commands
        self.graph_launches = inner.graph_launches
        self.violations = []
        self.foreign = []  # (address, size) of memory that is nobody's allocation
        # address -> size, of what was allocated as the host's; copied before it is walked, since
        # other threads allocate
        self.pinned = {}
        self.calls = Counter()
        self.callers = Counter()  # (name, thread)
        self.closed = False
        self.alive = defaultdict(dict)  # kind -> handle -> anything
        self._lock = threading.RLock()
        self._inside = Counter()  # stream -> threads in a call on it
        self._recorded = set()
        self._uses = defaultdict(list)  # stream -> [(private event, ranges, place)]
        self._latches = []
        self._hold = []  # latches for the next work calls
        self._faults = []
        self._doom_next = []  # errors of the work before the next records
        _probes.add(self)
        self._fatal = []  # (private event behind the work, error)
        self._start_graphs()
        self._start_pool()

    # What tests ask for

    def hold(self, latch):
        """Make the next work call of any stream wait for `latch` before its work."""
        self._latches.append(latch)
        self._hold.append(latch)

    def fail_call(self, number, error=None, names=None):
        """Raise at the `number`-th call from now on (from 1), of `names` if given; once."""
        error = error or OperationError("injected", native_name="ACME_BROKEN", native_code=77)
        self._faults.append([number, error, names])

    def fail_event(self, error):
        """Make the work before the next record fail on the device, as soon as it has run.

        From then on every query raises, as with the sticky errors of CUDA and HIP.
        """
        self._doom_next.append(error)

    def heal(self):
        """Open every latch and inject nothing more."""
        self._faults.clear()
        self._doom_next.clear()
        self._fatal.clear()
        for latch in self._latches:
            latch.open(1000)

    def finish(self):
        """Wait for what still runs of a device that is lost to the core alone.

        The core lets go of the arrays that a lost device has copied to; here its streams go on.
        """
        for stream in self.alive["stream"]:
            self.inner.synchronize_stream(stream)

    def live(self):
        """Return how many native objects of each kind are alive, those with none left out."""
        with self._lock:
            return {kind: len(handles) for kind, handles in self.alive.items() if handles}

    @property
    def pending_fault(self):
        """Return whether a fault was asked for and has not happened."""
        return bool(self._faults)

    # What every call goes through

    def _enter(self, name, stream=None):
        self.calls[name] += 1
        self.callers[name, threading.get_ident()] += 1
        self._break(name)
        with self._lock:
            if self.closed:
                self._violate(f"{name} after close")
            if name == "bind":
                _current.device = self
            elif name not in _UNBOUND and getattr(_current, "device", None) is not self:
                self._violate(f"{name} without this device bound on the thread")
            if stream is not None:
                self._check_alive(name, stream)
                self._inside[stream] += 1
                if self._inside[stream] > 1:
                    self._violate(f"{name} while another thread is in a call on the stream")

    def _check_alive(self, name, stream):
        if not (stream in self.alive["stream"] or stream in self.alive["adopted stream"]):
            self._violate(f"{name} on stream {stream}, which is not alive")

    def _break(self, name):
        chosen = None
        with self._lock:
            for fault in list(self._faults):
                if fault[2] is None or name in fault[2]:
                    fault[0] -= 1
                    if fault[0] == 0:
                        self._faults.remove(fault)
                        chosen = fault[1]
        if chosen is not None:
            if not callable(chosen):
                raise chosen
            chosen()

    def _leave(self, stream):
        with self._lock:
            self._inside[stream] -= 1

    def _violate(self, text):
        stack = [frame.name for frame in traceback.extract_stack()[:-2] if "hal" in frame.filename]
        self.violations.append(f"{text}, in {' > '.join(stack)}")

    def _dies(self, kind, handle):
        with self._lock:
            if self.alive[kind].pop(handle, None) is None:
                self._violate(f"{kind} {handle} is not alive")

    def _born(self, kind, handle, value=True):  # noqa: FBT002 - a mark
        with self._lock:
            if handle in self.alive[kind]:
                self._violate(f"{kind} {handle} was made twice")
            self.alive[kind][handle] = value
        return handle

    # Context

    def bind(self):
        self._enter("bind")
        self.inner.bind()

    def close(self):
        self._enter("close")
        self.closed = True
        if not self.alive["stream"]:  # else the device was lost, and here its work goes on
            self._end_pool()
        self.inner.close()

    # Streams and events

    def create_stream(self):
        self._enter("create_stream")
        return self._born("stream", self.inner.create_stream())

    def destroy_stream(self, stream):
        self._enter("destroy_stream")
        if not all(self.inner.query_event(event) for event, *_ in self._uses[stream]):
            self._violate(f"stream {stream} is destroyed while it works")
        self._dies("stream", stream)
        for event, *_ in self._uses.pop(stream, ()):
            self.inner.destroy_event(event)
        self.inner.destroy_stream(stream)

    def copy_and_wait(self, *copy):
        # Calls that block by themselves make this one, and threads of the pool: no submitter.
        _current.may_block = True
        try:
            super().copy_and_wait(*copy)
        finally:
            _current.may_block = False

    def synchronize_stream(self, stream):
        self._enter("synchronize_stream")
        with self._lock:
            self._check_alive("synchronize_stream", stream)
        self.inner.synchronize_stream(stream)

    def create_event(self):
        self._enter("create_event")
        return self._born("event", self.inner.create_event())

    def destroy_event(self, event):
        self._enter("destroy_event")
        self._dies("event", event)
        self._recorded.discard(event)
        self.inner.destroy_event(event)

    def record_event(self, event, stream):
        self._enter("record_event", stream)
        try:
            self._check_event("record_event", event)
            self._recorded.add(event)
            ORDER.record(event, stream)
            if self._doom_next:
                private = self.inner.create_event()
                self.inner.record_event(private, stream)
                self._fatal.append((private, self._doom_next.pop(0)))
            self.inner.record_event(event, stream)
        finally:
            self._leave(stream)

    def wait_event(self, stream, event):
        self._enter("wait_event", stream)
        try:
            owners = [each for each in _probes if event in each.alive["event"]]
            foreign = event in self.alive["adopted event"]  # its owner has to know
            if not (foreign or any(each.domain is self.domain for each in owners)):
                self._violate(f"stream {stream} waits for event {event} of another domain")
            if not (foreign or any(event in each._recorded for each in owners)):
                self._violate(f"stream {stream} waits for event {event}, never recorded")
            ORDER.wait(stream, event)
            self.inner.wait_event(stream, event)
        finally:
            self._leave(stream)

    def query_event(self, event):
        self._enter("query_event")
        self._check_event("query_event", event)
        done = self.inner.query_event(event)
        for private, error in self._fatal:
            if self.inner.query_event(private):
                raise error
        return done

    def notify(self, stream, function, argument):
        self._enter("notify", stream)
        try:
            self.inner.notify(stream, function, argument)
        finally:
            self._leave(stream)

    def _check_event(self, name, event):
        if not (event in self.alive["event"] or event in self.alive["adopted event"]):
            self._violate(f"{name} of event {event}, which is not alive")

    # Memory

    def allocate(self, size, memory):
        self._enter("allocate")
        if memory is MemoryType.DEVICE:
            self.take_room(size)
        address = self._born("allocation", self.inner.allocate(size, memory), size)
        if memory is MemoryType.HOST:
            self.pinned[address] = size
        return address

    def free(self, address, memory):
        self._enter("free")
        for each in [self, *self._neighbours()] if self.pinned.pop(address, None) else [self]:
            each._check_unused(address, self.alive["allocation"].get(address, 0))
        self._dies("allocation", address)
        self.inner.free(address, memory)

    def _check_unused(self, address, size, stream=None):
        """Look whether the work that uses memory has ended, or comes before a stream's next."""
        with self._lock:
            for uses in self._uses.values():
                for event, ranges, place in uses:
                    if stream is not None and ORDER.is_before(place, stream):
                        continue
                    for start, length in ranges:
                        inside = start < address + size and address < start + length
                        if inside and not self.inner.query_event(event):
                            self._violate(f"{address:#x} is freed under work that uses it")

    def _ranges(self):
        """Return the device's addresses and sizes of all memory that work may use."""
        return [
            *self.alive["allocation"].items(),
            *self.alive["async allocation"].items(),
            *self.alive["import"].values(),
            *self.foreign,
            *(each for other in self._neighbours() for each in other.pinned.copy().items()),
        ]

    def _neighbours(self):
        """Return the other devices of the driver, for all of which memory of the host is pinned."""
        return [each for each in [*_probes] if each is not self and each.domain is self.domain]

    def _check_pageable(self, name, address, size):
        """Look whether a copy of ordinary host memory would hold up a submitter (Q1)."""
        pinned = [*self.alive["allocation"].copy().items()]
        pinned += [(host, length) for host, (_, length) in self.alive["import"].copy().items()]
        if "pageable_copies" in self.features or self._may_block():
            return
        if not any(start <= address <= start + length - size for start, length in pinned):
            self._violate(f"{name} of pageable memory at {address:#x}")

    def _may_block(self):
        """Return whether the calling thread is one of the pool's, or blocks by itself."""
        is_pool = threading.current_thread().name in {"hal-host-call", "hal-worker"}
        return is_pool or getattr(_current, "may_block", False)

    def check_hosts(self, name, target, source, owners=()):
        """Look whether a copy from pinned to pinned memory would hold up a submitter (Q1)."""
        if "pageable_copies" in self.features or self._may_block():
            return
        pinned = [
            (start, size)
            for owner in {self, *self._neighbours(), *owners}
            for start, size in [
                *owner.pinned.copy().items(),
                *owner.alive["import"].copy().values(),
            ]
        ]
        if all(
            any(start <= address < start + size for start, size in pinned)
            for address in (target, source)
        ):
            self._violate(f"{name} from {source:#x} to {target:#x}, both of them pinned memory")

    def import_host(self, address, size):
        self._enter("import_host")
        found = self.inner.import_host(address, size)
        self._born("import", address, (found, size))
        return found

    def release_host(self, address):
        self._enter("release_host")
        self._check_unused(*self.alive["import"].get(address, (0, 0)))
        self._dies("import", address)
        self.inner.release_host(address)

    def host_pointer(self, address, memory):
        self._enter("host_pointer")
        return self.inner.host_pointer(address, memory)

    def dlpack_device(self, memory):
        return self.inner.dlpack_device(memory)

    def memory_info(self):
        self._enter("memory_info")
        return self.inner.memory_info()

    # Work

    def _work(self, name, stream, ranges, *arguments):
        self._enter(name, stream)
        try:
            with self._lock:
                latch = self._hold.pop(0) if self._hold else None
                for start, length in ranges:
                    # Globals of modules are read, too, which are no allocations.
                    if name != "copy_to_host" and not any(
                        address <= start and start + length <= address + size
                        for address, size in self._ranges()
                    ):
                        self._violate(f"{name} at {start:#x}, which is not allocated")
                    self.check_born(name, stream, start, length)
            if latch is not None:
                self.inner.notify(stream, SEM_WAIT, latch.argument)
            self._run(name, stream, *arguments)
            with self._lock:
                uses = self._uses[stream]
                while uses and self.inner.query_event(uses[0][0]):
                    self.inner.destroy_event(uses.pop(0)[0])
                place = ORDER.place(stream)
                event = self.inner.create_event()
                self.inner.record_event(event, stream)
                uses.append((event, ranges, place))
        finally:
            self._leave(stream)

    def fill(self, stream, address, pattern, width, count):
        self._work("fill", stream, [(address, width * count)], address, pattern, width, count)

    def copy(self, stream, target, source, size):
        if abs(target - source) < size:
            self._violate(f"copy of {size} bytes from {source:#x} to {target:#x}, which overlap")
        self.check_hosts("copy", target, source)
        self._work("copy", stream, [(target, size), (source, size)], target, source, size)

    def copy_from_host(self, stream, target, source, size):
        self._check_pageable("copy_from_host", source, size)
        self.check_hosts("copy_from_host", target, source)
        self._work("copy_from_host", stream, [(target, size)], target, source, size)

    def copy_to_host(self, stream, target, source, size):
        self._check_pageable("copy_to_host", target, size)
        self.check_hosts("copy_to_host", target, source)
        self._work("copy_to_host", stream, [(source, size)], target, source, size)

    def launch(self, stream, function, grid, block, shared_memory, parameters):
        if not all(grid):
            self._violate(f"launch over the grid {grid}")
        self._work("launch", stream, [], function, grid, block, shared_memory, parameters)

    # Kernels

    def load_module(self, image):
        self._enter("load_module")
        return self._born("module", self.inner.load_module(image))

    def unload_module(self, module):
        self._enter("unload_module")
        self._dies("module", module)
        self.inner.unload_module(module)

    def get_function(self, module, name):
        self._enter("get_function")
        return self.inner.get_function(module, name)

    def function_info(self, function):
        self._enter("function_info")
        return self.inner.function_info(function)

    def get_global(self, module, name):
        self._enter("get_global")
        return self.inner.get_global(module, name)
