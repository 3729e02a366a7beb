"""Watch the native graphs that the core makes, and run them in the most awkward order allowed."""

from __future__ import annotations

import contextlib
import ctypes
import random
from collections import Counter
from dataclasses import dataclass, field

from hal.native import (
    CopyNode,
    EmptyNode,
    FillNode,
    HostCopyNode,
    IndirectLaunchNode,
    LaunchNode,
    PeerCopyNode,
)

__all__ = ["GRAPH_CALLS", "GraphCalls"]

GRAPH_CALLS = ("create_graph", "instantiate_graph", "update_graph", "launch_graph")
"""What an execution calls for a graph; destruction comes later, and fails silently."""

_CALLS = {
    FillNode: "fill",
    CopyNode: "copy",
    HostCopyNode: "copy_from_host",
    PeerCopyNode: "copy_peer",
    LaunchNode: "launch",
    IndirectLaunchNode: "launch_indirect",
}


def _sides(node):
    if node.__class__ is not PeerCopyNode:
        return ()
    return ((node.target_device, node.target), (node.source_device, node.source))


@dataclass
class Instance:
    """The probe's knowledge of an instance."""

    nodes: list
    dependencies: tuple
    kept: dict = field(default_factory=dict)  # index -> a copy of a kernel's parameters
    stream: int = 0
    event: int = 0  # behind its last launch


class GraphCalls:
    """Forward the graph primitives of a `Probe`, and watch their rules.

    Violations: edges that point forward or double, empty nodes that join
    nothing, memory that is not allocated, an instance in the hands of two
    threads, launched while it runs on another stream, or destroyed while it
    runs, an update that changes a node's class or function.

    With `graph_order` the graphs are the probe's own: their nodes are enqueued
    one by one in an order that the edges allow, "backward" for the latest node
    first, or a number for a shuffled one. A missing edge shows in the result.
    """

    __slots__ = ()

    def _start_graphs(self):
        self.graph_order = None
        self.graphs = {}  # handle -> (nodes, dependencies, kept), of every graph ever made
        self.instances = {}
        self.updates = []  # (instance, index)
        self._own_handles = iter(range(1 << 40, 1 << 41))
        self._in_hands = Counter()
        self._order_of = random.Random(0)

    # Primitives

    def create_graph(self, nodes, dependencies):
        self._enter("create_graph")
        followers = Counter(before for each in dependencies for before in each)
        if len(nodes) != len(dependencies):
            self._violate(f"create_graph with {len(nodes)} nodes, {len(dependencies)} dependencies")
        for index, (node, before) in enumerate(zip(nodes, dependencies, strict=True)):
            if any(not 0 <= each < index for each in before) or len(set(before)) != len(before):
                self._violate(f"node {index} depends on {before}")
            joins = len(before) > 1 and followers[index] > 1
            if node.__class__ is EmptyNode and not joins:
                self._violate(f"empty node {index} joins nothing")
            self._check_node("create_graph", node)
        if self.graph_order is None:
            handle = self.inner.create_graph(nodes, dependencies)
        else:
            handle = next(self._own_handles)
        kept = {index: self._keep(node) for index, node in enumerate(nodes)}
        self.graphs[handle] = (list(nodes), tuple(dependencies), kept)
        return self._born("graph", handle)

    def destroy_graph(self, graph):
        self._enter("destroy_graph")
        self._dies("graph", graph)
        if graph < 1 << 40 or self.graph_order is None:
            self.inner.destroy_graph(graph)

    def instantiate_graph(self, graph):
        self._enter("instantiate_graph")
        if graph not in self.alive["graph"]:
            self._violate(f"instantiate_graph of graph {graph}, which is not alive")
        if self.graph_order is None:
            handle = self.inner.instantiate_graph(graph)
        else:
            handle = next(self._own_handles)
        nodes, dependencies, kept = self.graphs[graph]
        self.instances[handle] = Instance(list(nodes), dependencies, dict(kept))
        return self._born("instance", handle)

    def destroy_graph_instance(self, instance):
        self._enter("destroy_graph_instance")
        with self._hold_instance("destroy_graph_instance", instance) as known:
            if known.event and not self.inner.query_event(known.event):
                self._violate(f"instance {instance} is destroyed while it runs")
            if known.event:
                self.inner.destroy_event(known.event)
        self._dies("instance", instance)
        del self.instances[instance]
        if self.graph_order is None:
            self.inner.destroy_graph_instance(instance)

    def update_graph(self, instance, index, node):
        self._enter("update_graph")
        with self._hold_instance("update_graph", instance) as known:
            old = known.nodes[index]
            if node.__class__ is not old.__class__ or node.__class__ is EmptyNode:
                self._violate(f"node {index} becomes {node}, and was {old}")
            if hasattr(node, "function") and node.function != old.function:
                self._violate(f"node {index} becomes a launch of another function")
            self._check_node("update_graph", node)
            self.updates.append((instance, index))
            known.nodes[index] = node
            known.kept[index] = self._keep(node)
            if self.graph_order is None:
                self.inner.update_graph(instance, index, node)

    def launch_graph(self, stream, instance):
        with self._hold_instance("launch_graph", instance) as known:
            running = known.event and not self.inner.query_event(known.event)
            if running and known.stream != stream:
                self._violate(f"instance {instance} is launched while another stream runs it")
            for node in known.nodes:
                if node.__class__ in {CopyNode, HostCopyNode, PeerCopyNode}:
                    self.check_hosts("launch_graph of a copy", node.target, node.source)
            self._work("launch_graph", stream, self._all_ranges(known.nodes), instance)
            for node in known.nodes:
                for device, start in _sides(node):
                    if device is not self:
                        device.note_guest(self, stream, start, node.size)
            known.stream = stream
            known.event = known.event or self.inner.create_event()
            self.inner.record_event(known.event, stream)

    def launch_indirect(self, stream, function, counts, block, shared_memory, parameters):
        arguments = (function, counts, block, shared_memory, parameters)
        self._work("launch_indirect", stream, [(counts, 12)], *arguments)

    # What they go through

    def _run(self, name, stream, *arguments):
        """Make a native call of work, or what the probe does instead."""
        if name == "launch_graph" and self.graph_order is not None:
            self._run_nodes(stream, self.instances[arguments[0]])
        else:
            getattr(self.inner, name)(stream, *arguments)

    def _run_nodes(self, stream, instance):
        waiting = [set(before) for before in instance.dependencies]
        followers = [[] for _ in waiting]
        for index, before in enumerate(instance.dependencies):
            for each in before:
                followers[each].append(index)
        ready = [index for index, before in enumerate(waiting) if not before]
        while ready:
            ready.sort()
            chosen = -1
            if self.graph_order != "backward":
                chosen = self._order_of.randrange(len(ready))
            index = ready.pop(chosen)
            node = instance.nodes[index]
            if node.__class__ is not EmptyNode:
                kept = instance.kept[index]
                if kept is not None:
                    node = node._replace(parameters=ctypes.addressof(kept[0]))
                getattr(self.inner, _CALLS[node.__class__])(stream, *node)
            for each in followers[index]:
                waiting[each].discard(index)
                if not waiting[each]:
                    ready.append(each)

    def _keep(self, node):
        """Copy a kernel's parameters, which are no longer there after the call."""
        if self.graph_order is None or not hasattr(node, "parameters"):
            return None
        sizes = self.inner.function_info(node.function).parameter_sizes
        pointers = (ctypes.c_void_p * max(len(sizes), 1)).from_address(node.parameters)
        values = [ctypes.create_string_buffer(size) for size in sizes]
        for value, pointer, size in zip(values, pointers, sizes, strict=False):
            ctypes.memmove(value, pointer, size)
        own = (ctypes.c_void_p * max(len(sizes), 1))(*map(ctypes.addressof, values))
        return own, values

    def _node_ranges(self, node):
        if node.__class__ is FillNode:
            return [(node.address, node.width * node.times)]
        if node.__class__ is CopyNode:
            return [(node.target, node.size), (node.source, node.size)]
        if node.__class__ is PeerCopyNode:
            return [(start, node.size) for device, start in _sides(node) if device is self]
        if node.__class__ is HostCopyNode:
            return [(node.target, node.size)]
        if node.__class__ is IndirectLaunchNode:
            return [(node.counts, 12)]
        return []

    def _all_ranges(self, nodes):
        return [each for node in nodes for each in self._node_ranges(node)]

    def _check_node(self, name, node):
        with self._lock:
            for start, length in self._node_ranges(node):
                if not self._is_inside(start, length):
                    self._violate(f"{name}: {node} is at {start:#x}, which is not allocated")

    def _is_inside(self, start, length):
        return any(
            address <= start and start + length <= address + size
            for address, size in self._ranges()
        )

    @contextlib.contextmanager
    def _hold_instance(self, name, instance):
        with self._lock:
            if instance not in self.alive["instance"]:
                self._violate(f"{name} of instance {instance}, which is not alive")
            self._in_hands[instance] += 1
            if self._in_hands[instance] > 1:
                self._violate(f"{name} while another thread uses instance {instance}")
        try:
            yield self.instances[instance]
        finally:
            with self._lock:
                self._in_hands[instance] -= 1
