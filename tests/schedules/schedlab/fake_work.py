"""The work of a fake device: fills, copies, and graphs of these."""

import threading

from schedlab.native_objects import Graph, Item

_current = threading.local()


class WorkCalls:
    """Enqueue fills and copies; a part of a fake device."""

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
            raise self.vendor.errors.OperationError(
                message, native_name="ACME_REFUSED", native_code=1
            )
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
        if "pageable_copies" in self.features or getattr(_current, "may_block", False):
            return
        base = self.vendor.find(address, size)
        if base is None or not self.vendor.allocations[base].pinned:
            self.vendor.broken("Q1", f"{primitive} is given pageable memory, and would block")

    def copy_and_wait(self, *copy):
        # Calls that block by themselves make this one, and threads of the pool.
        _current.may_block = True
        try:
            super().copy_and_wait(*copy)
        finally:
            _current.may_block = False

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


class GraphCalls:
    """Make graphs, change their instances and launch them; a part of a fake device."""

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
        interrupt = v.enter(self, "destroy_graph")
        if v.graphs.pop(graph, None) is None:
            v.broken("handle", f"destroy_graph of {graph}, which does not exist")
        if interrupt:
            raise interrupt

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
            found.interrupt = v.enter(self, primitive, stream)
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
        if found.interrupt:
            raise found.interrupt

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
        if kind == "PeerCopyNode":
            return self.copying(node.target, node.source, node.size)
        if kind == "HostCopyNode":
            return self.reading_host(*node)
        if kind == "EmptyNode":
            return (), lambda: None
        raise self.vendor.errors.UnimplementedError("the fake device launches nothing")
