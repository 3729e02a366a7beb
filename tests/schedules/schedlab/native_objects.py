"""What lies in a fake device: streams and their items, events, memory, graphs."""

from schedlab.threads import Cell, Thread


class Record:
    """A place in a stream, as one call of record_event captured it."""

    __slots__ = ("answers", "item", "stream")

    def __init__(self, stream, item):
        self.stream = stream
        self.item = item
        self.answers = {}

    def is_over(self):
        """Return whether nothing waits for it any more: it is done, or will never be."""
        return self.item.done or self.stream.device.lost


class Item:
    """One enqueued thing."""

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
    """A stream: items in order, the first `head` of them done."""

    __slots__ = ("actor", "busy", "cell", "device", "done", "handle", "head", "items", "label")

    def __init__(self, device, handle, label):
        self.device = device
        self.handle = handle
        self.label = label
        self.items = []
        self.head = 0
        self.busy = None
        self.cell = Cell()  # what was enqueued
        self.done = Cell()  # what has completed
        # Completes work unasked, so that its notification comes.
        self.actor = Thread(-handle, f"{label} itself", daemon=True)


class Event:
    """An event and its last record."""

    __slots__ = ("cell", "device", "handle", "record", "records")

    def __init__(self, device, handle):
        self.device = device
        self.handle = handle
        self.record = None
        self.records = 0
        self.cell = Cell()


class Allocation:
    """Memory of a device, or of the host and pinned."""

    __slots__ = (
        "born",
        "buffer",
        "cell",
        "device",
        "doomed",
        "freed",
        "held",
        "imported",
        "pinned",
        "size",
    )

    def __init__(self, device, size, buffer, *, pinned=False):
        self.device = device
        self.pinned = pinned
        self.size = size
        self.held = size  # without what others have got of it since it was freed
        self.buffer = buffer
        self.cell = Cell()
        self.imported = False  # it belongs to somebody else
        self.born = None  # the Item of a stream-ordered allocation
        self.doomed = False  # a stream-ordered free of it was enqueued
        self.freed = None  # the Item of that


class Graph:
    """A graph, or an instance of one."""

    __slots__ = ("busy", "cell", "dependencies", "device", "interrupt", "launches", "nodes")

    def __init__(self, device, nodes, dependencies):
        self.device = device
        self.nodes = list(nodes)
        self.dependencies = [tuple(each) for each in dependencies]
        self.launches = []  # the Items of an instance's
        self.busy = None  # the thread that is in a call on it
        self.interrupt = None  # of the call that destroys it
        self.cell = Cell()

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
