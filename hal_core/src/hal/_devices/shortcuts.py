"""Put the shortcuts of the C extension in front of the methods that they stand in for.

`hal_core/speedups/speedups.h` says what a shortcut is. The methods stay what they are where the
extension is missing, and where a call is not one of the commonest.
"""

from __future__ import annotations

import heapq
from types import ModuleType
from typing import Any, Final

import numpy as np

from hal._base import speedups
from hal._base.sync import Doorbell
from hal._buffers import buffer
from hal._buffers.alloca import Deallocation
from hal._buffers.buffer import Buffer
from hal._commands.command_buffer import CommandBuffer
from hal._commands.instances import Instance, InstancePool, Lease, Replica
from hal._commands.playback import Playback, StreamReplay, go_on
from hal._devices import queue
from hal._devices.queue import Queue
from hal._engine import progress, shared_semaphore, timelines, waiting
from hal._engine.contexts import harvest_some
from hal._engine.device_context import DeviceContext
from hal._engine.events import Event, EventPool
from hal._engine.host_calls import complete, send_again
from hal._engine.issuing import complete_issue, take_back
from hal._engine.notifier import Notifier
from hal._engine.operation import DONE, ISSUED, ISSUING, RUNNING, SENT, Operation
from hal._engine.semaphore import Semaphore, release_again, release_some
from hal._engine.stream import StreamQueue
from hal._engine.submission import Submission, sleep
from hal._engine.submitting import HARVEST_MASK, issue_ready, want
from hal._engine.timelines import Timeline, Timepoint, Waiters
from hal._engine.waiting import HostWaiter
from hal._kernels.executable import Kernel
from hal._kernels.launch_shape import MAX_GRID
from hal._memory import blocking
from hal._memory.blocks import ALIGNMENT, ASYNC, CACHED, GONE, LARGE, NO_BUCKET, Block, BlockLease
from hal._memory.books import Books
from hal._memory.core import CopyStream, DeviceCore
from hal._memory.driver_memory import DriverMemory
from hal._memory.extent import DEALLOCATED, Extent
from hal._memory.heap import Heap
from hal._memory.reaper import Reaper
from hal._memory.replay import Give
from hal._memory.segment_pool import RECENT, Piece, Segment, SegmentPool
from hal._memory.storage import MANY_USES, Handle, Storage, Transient
from hal._memory.usage import DISPATCH, READ, TRANSFER_SOURCE, TRANSFER_TARGET, WRITE
from hal._transfers.collectives import GroupLaunch, prepare
from hal._transfers.transfers import CHUNK, SMALL
from hal.native import CopyNode, FillNode, HostCopyNode, LaunchNode, MemoryType
from hal.native_collectives import CollectiveStep

_CLASSES: Final[tuple[type, ...]] = (
    *(DeviceContext, DeviceCore, Event, EventPool, Extent, Kernel, Operation, Queue, Semaphore),
    *(Block, Books, Buffer, Deallocation, DriverMemory, Give, Piece, Reaper, Segment, SegmentPool),
    *(GroupLaunch, CollectiveStep, BlockLease, CommandBuffer, CopyStream, Handle, Heap, Instance),
    *(InstancePool, CopyNode, FillNode, HostCopyNode, LaunchNode, Lease, Playback, Replica),
    *(Storage, StreamQueue, Submission, Timeline, Timepoint, Transient, Waiters, np.ndarray),
    *(Doorbell, HostWaiter, Notifier, StreamReplay),
)

_METHODS: Final[tuple[tuple[type | ModuleType, str, str], ...]] = (
    *(
        (Queue, name, name)
        for name in ("alloca", "copy", "dealloca", "dispatch", "execute", "fill")
    ),
    *((Queue, name, name) for name in ("all_gather", "all_reduce", "all_to_all", "broadcast")),
    *((Queue, name, name) for name in ("receive", "reduce", "reduce_scatter", "send")),
    (Queue, "group_barrier", "barrier"),
    (Queue, "read", "queue_read"),
    (Queue, "write", "queue_write"),
    (Heap, "allocate", "allocate"),
    *((Semaphore, name, name) for name in ("at", "signal", "wait")),
    (Submission, "wait", "submission_wait"),
    (blocking, "read", "read"),
    (blocking, "write", "write"),
    (buffer, "wait_before", "wait_before"),
    (queue, "submit", "submit"),
    (shared_semaphore, "signal_again", "signal"),  # that of a value of another process
    (waiting, "spin_for", "spin"),
    (waiting, "spin_for_operation", "spin"),
    (waiting, "wait_all", "wait_all"),
)
"""A class, its method, and the name of the shortcut; or a module, and a function that it calls."""

_DTYPES: Final = "BbHhIiefd"
"""Types whose name in numpy is their code in `struct`; those of 8 bytes are added."""

_SCALARS: Final[tuple[tuple[type[Any], str], ...]] = (
    *((getattr(np, f"int{bits}"), "i") for bits in (8, 16, 32, 64)),
    *((getattr(np, f"uint{bits}"), "i") for bits in (8, 16, 32, 64)),
    *((getattr(np, f"float{bits}"), "f") for bits in (16, 32, 64)),
    (np.bool_, "?"),
)


def install() -> None:
    """Install the shortcuts, if the extension is there; hal calls it once, when imported."""
    module = speedups.module
    if module is None:
        return
    dtypes = (
        *((np.dtype(code), code) for code in _DTYPES),
        *((np.dtype(np.int64), "q"), (np.dtype(np.uint64), "Q")),
    )
    functions = (
        *(complete_issue, harvest_some, issue_ready, release_again, release_some, take_back, want),
        *(progress.act, progress.act_or_put_off, progress.resume, progress.put_last),
        *(waiting.leave, waiting.wait_all),
        *(complete, go_on, prepare, send_again, sleep),
    )
    parts = {
        **{each.__name__: each for each in (*functions, heapq.heappop, heapq.heappush)},
        "lock": timelines.lock,
        "harvest_mask": HARVEST_MASK,
        "budget": progress.BUDGET,
        "chunk": CHUNK,
        "small": SMALL,
        "part": blocking.PART,
        "most_blocks": MAX_GRID[0],
        "most_blocks_yz": min(MAX_GRID[1:]),
        "launch_graph": Playback._launch,
        "bells": waiting.bells,
        "put_off": progress.put_off_calls,
        "issued": ISSUED,
        "issuing": ISSUING,
        "sent": SENT,
        "running": RUNNING,
        "done": DONE,
        "denied_read": DISPATCH | READ,
        "denied_write": DISPATCH | WRITE,
        "denied_source": TRANSFER_SOURCE,
        "denied_target": TRANSFER_TARGET,
        "async_way": ASYNC,
        "cached_way": CACHED,
        "device_memory": MemoryType.DEVICE,
        "host_memory": MemoryType.HOST,
        "held": blocking.held_step(),
        "no_bucket": NO_BUCKET,
        "gone": GONE,
        "many_uses": MANY_USES,
        "bytes": np.dtype(np.uint8),
        "deallocated": DEALLOCATED,
        "alignment": ALIGNMENT,
        "large": LARGE,
        "recent": RECENT,
        "dtypes": dtypes,
        "types": tuple((dtype.type, code) for dtype, code in dtypes),
        "scalars": _SCALARS,
    }
    module.install({each.__name__: each for each in _CLASSES}, parts)
    for owner, method, name in _METHODS:
        setattr(owner, method, module.Shortcut(name, getattr(owner, method)))
