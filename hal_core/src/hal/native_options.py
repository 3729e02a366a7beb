"""The optional primitives of a device: one group for each feature that it may declare.

`hal.native.NativeDevice` has them all. The core calls a group only if the
device declares its feature (`hal.native_types.FEATURES`); a vendor implements the
groups that its driver has natively. The rules of `hal.native` hold here too.
"""

from __future__ import annotations

from collections.abc import Sequence

from hal.errors import UnimplementedError
from hal.native_types import LaunchNode, LaunchUpdate, Node

__all__ = ["OptionalPrimitives", "missing"]


class OptionalPrimitives:
    """The primitives of `NativeDevice` that a vendor may leave out: `UnimplementedError`."""

    __slots__ = ()

    # Launches over a grid in memory: the feature "indirect_dispatch"

    def launch_indirect(
        self,
        stream: int,
        function: int,
        counts: int,
        block: tuple[int, int, int],
        shared_memory: int,
        parameters: int,
    ) -> None:
        """Launch as `launch` does, over a grid of three 32-bit numbers read when it runs.

        `counts` is the device address of the three, a multiple of 4. A zero among them launches
        nothing; more than `launch` takes is a fault of the device, like one of the kernel.
        """
        raise missing("indirect_dispatch")

    # Occupancy: the feature "occupancy"

    def occupancy(self, function: int, threads: int, shared_memory: int) -> int:
        """Return how many blocks of a kernel one compute unit holds at once; 0 if none fits.

        Blocks of `threads` > 0 threads, with `shared_memory` bytes of dynamic
        shared memory each, both within the limits that `launch` keeps.
        """
        raise missing("occupancy")

    # Numbers in memory: the feature "stream_values"

    def write_value(self, stream: int, address: int, value: int) -> None:
        """Write a number of 64 bits when all work enqueued on the stream so far has ended.

        `address` is of `MemoryType.HOST`, allocated by this device, and a multiple of 8. A reader
        of the number, the host included, sees all that the work has written.
        """
        raise missing("stream_values")

    def wait_value(self, stream: int, address: int, value: int) -> None:
        """Make later work of the stream wait until the number at `address` is `value` or more.

        Of 64 bits and below 2**63; `address` is as for `write_value`. The write of the number
        was enqueued before: so a driver that has streams share a channel keeps the order, though
        it knows nothing of it.
        """
        raise missing("stream_values")

    # Streams and events of others: the feature "external_streams"

    def export_stream(self, stream: int) -> int:
        """Return the vendor's own handle of a stream (``cudaStream_t``, ``hipStream_t``)."""
        raise missing("external_streams")

    def adopt_stream(self, handle: int) -> int:
        """Return a stream, for this class's methods, over another library's.

        `handle` is the vendor's, the default streams' too, as in DLPack: of
        CUDA 1 (legacy; also 0) and 2 (per thread), of ROCm 0. It is of this
        device and alive until `release_stream`. Adopting it twice is no error.
        `create_stream`'s promise does not hold for it, and its owner, or two
        threads of the core, may call on it at once. Raises
        `OperationError` if the driver reports that it is not a stream.
        """
        raise missing("external_streams")

    def release_stream(self, stream: int) -> None:
        """Forget what `adopt_stream` returned; its owner's stream stays as it is.

        By default this does nothing, and neither does `release_event`.
        """

    def adopt_event(self, handle: int) -> int:
        """Return an event for `record_event` and `wait_event` over another library's.

        `handle` is the vendor's; it is alive until `release_event`. Of this
        device, unless it is only waited for.
        """
        raise missing("external_streams")

    def release_event(self, event: int) -> None:
        """Forget what `adopt_event` returned; its owner's event stays as it is."""

    # Graphs: the feature "graphs"

    def create_graph(self, nodes: Sequence[Node], dependencies: Sequence[Sequence[int]]) -> int:
        """Return a graph of `nodes`, which may run in any order that `dependencies` leave.

        ``dependencies[i]``, all below i, are the nodes that must have ended
        before node i begins; nodes without a path between them may run at
        once. Enqueues nothing. The caller destroys the graph.
        """
        raise missing("graphs")

    def destroy_graph(self, graph: int) -> None:
        """Destroy a graph; its instances live on."""
        raise missing("graphs")

    def instantiate_graph(self, graph: int) -> int:
        """Return an executable instance of a graph. The caller destroys it."""
        raise missing("graphs")

    def destroy_graph_instance(self, instance: int) -> None:
        """Destroy an instance that no stream runs."""
        raise missing("graphs")

    def update_graph(self, instance: int, index: int, node: Node) -> None:
        """Replace the parameters of an instance's node, for launches from now on.

        The node is of the class that it had, and a launch of the same function. Here alone a
        launch may have a zero in its grid: its node runs nothing then, and still orders. One
        thread at a time uses an instance. Raises `OperationError` where the driver refuses to
        change it in place (the memory is of another kind, say): the core makes a new instance
        then, and does not launch this one again.
        """
        raise missing("graphs")

    def launch_update(self, instance: int, index: int, node: LaunchNode) -> LaunchUpdate:
        """Return what `CallTable.update_launch` takes for a launch of an instance.

        The core keeps `node.parameters` valid, and replaces the values there and the grid. Called
        only where the call table has that function.
        """
        raise missing("graphs")

    def launch_graph(self, stream: int, instance: int) -> None:
        """Run all nodes of an instance in the place of one operation of the stream.

        The instance runs once at a time: the core launches it again on the
        same stream, or when the launch before has ended.
        """
        raise missing("graphs")

    # Host memory of others: the feature "host_import"

    def import_host(self, address: int, size: int) -> int:
        """Pin `size` > 0 bytes of host memory, and return the device's address of them.

        ``cuMemHostRegister``, ``hipHostRegister``. The core keeps the memory
        alive until `release_host`. Raises `OperationError` where the driver
        refuses the range. May block.
        """
        raise missing("host_import")

    def release_host(self, address: int) -> None:
        """Unpin what `import_host` was given at host `address`; no work uses it. May block."""
        raise missing("host_import")

    # Memory of other processes: the feature "memory_sharing"

    def export_memory(self, address: int) -> bytes:
        """Return the handle with which another process opens what `allocate` returned.

        Device memory only. The handle is good until the memory is freed.
        """
        raise missing("memory_sharing")

    def open_memory(self, handle: bytes) -> int:
        """Return the address of another process's memory; never called for one's own.

        Its process keeps it until every `close_memory`, unless it dies. Raises `OperationError` if
        it is gone. May block.
        """
        raise missing("memory_sharing")

    def close_memory(self, address: int) -> None:
        """Close what `open_memory` returned; no work uses it any more. May block."""
        raise missing("memory_sharing")

    # Stream-ordered allocation: the feature "async_allocations"

    def configure_pool(self, keep: int, reuse: str) -> None:
        """Configure the pool of `allocate_async`.

        Called once, before the first `allocate_async`. `keep` is how many
        unused bytes the pool may keep when work has ended. `reuse`
        says which freed memory an allocation may get that its stream has not
        freed itself, before the host has seen the free complete: none
        (``"stream"``), what was freed before an event that the stream waits for
        (``"ordered"``), or also what happens to be complete, and what the
        driver makes the stream wait for by itself (``"any"``).
        """
        raise missing("async_allocations")

    def allocate_async(self, stream: int, size: int) -> int:
        """Return the address of `size` > 0 bytes, valid for work behind this in the stream.

        And for work ordered behind that by events. Memory that the stream has
        freed can be had again at once. The peers that `enable_peer` was called
        for may use it. Raises `OutOfMemoryError`, and enqueues nothing, if
        neither the pool nor the device has room.
        """
        raise missing("async_allocations")

    def free_async(self, stream: int, address: int) -> None:
        """Give back what `allocate_async` returned, once the stream gets there; never blocks.

        All work that uses the memory is ordered before that place of the stream.
        """
        raise missing("async_allocations")

    def pool_statistics(self) -> tuple[int, int]:
        """Return the bytes that the pool holds of the device, and those of them in use.

        Never blocks. In use is what `free_async` was not called for yet; the
        driver may count both in larger units than the requests.
        """
        raise missing("async_allocations")

    def trim_pool(self, keep: int) -> None:
        """Give memory of the pool back to the device until it holds `keep` bytes, or all in use.

        What was freed counts as in use until its stream got there. May block.
        """
        raise missing("async_allocations")


def missing(feature: str) -> UnimplementedError:
    """Return the error of a primitive that the device does not declare."""
    return UnimplementedError(f"this device does not declare the feature {feature!r}")
