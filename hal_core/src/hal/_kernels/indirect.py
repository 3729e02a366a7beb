"""Launches over a grid in memory, where the device cannot read it (rule C4).

Only the host can read the grid there, once the writes to it have ended. So the
operation is a host one, on a thread of ours: it runs its commands on a stream
of its own, and waits for that stream before each such launch. Its waits are resolved
as *reached*, and it publishes as *reached* (M1). A recording with copies from
host to host runs this way, too, where the device's own would block (Q1).
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Container, Iterable
from typing import Any, Final

from hal._engine import contexts
from hal._kernels.launch_shape import too_many
from hal._memory.core import DeviceCore
from hal.errors import DeviceLostError, HalError, OperationError
from hal.handlers import own
from hal.native import IndirectLaunchNode

COUNTS_SIZE: Final = 12
"""Bytes of a grid in memory: three 32-bit numbers."""

COUNTS_ALIGNMENT: Final = 4

_Counts: Final = ctypes.c_uint32 * 3


def run_on_host(
    device: DeviceCore,
    calls: Iterable[tuple[Callable[..., object], Any]],
    moves: Container[int] = (),
) -> None:
    """Make native calls, ``(function, node)``, one after another, and wait for the last.

    They go to a stream of their own, which is idle before each call whose number is in `moves`.
    Blocks; runs on a thread of the pool. Raises what the calls raise, once the stream is idle,
    and loses the device if it never becomes idle.
    """
    native = device._native
    try:
        native.bind()
        stream = native.create_stream()
        try:
            for number, (function, node) in enumerate(calls):
                if number in moves:
                    # Else the driver would wait for the stream, under locks that we do not know.
                    native.synchronize_stream(stream)
                if node.__class__ is IndirectLaunchNode:
                    _launch(device, stream, node)
                else:
                    function(stream, *node)
        finally:
            _end(device, stream)
    except own(DeviceLostError) as error:
        contexts.lose(device._context, error)
        raise


def _end(device: DeviceCore, stream: int) -> None:
    """Wait until a stream is idle and destroy it; what cannot be freed goes with the device."""
    try:
        # First: when this returns, the memory that the stream's work uses may be given back.
        device._native.synchronize_stream(stream)
        device._native.destroy_stream(stream)
    except own(HalError) as error:
        contexts.lose(device._context, error)
        raise


def _launch(device: DeviceCore, stream: int, node: IndirectLaunchNode) -> None:
    """Read a grid and launch over it."""
    native = device._native
    counts = _Counts()
    native.copy_to_host(stream, ctypes.addressof(counts), node.counts, COUNTS_SIZE)
    native.synchronize_stream(stream)
    x, y, z = counts
    if problem := too_many((x, y, z)):
        raise OperationError(f"the grid in memory {problem}")
    if x and y and z:
        native.launch(
            stream, node.function, (x, y, z), node.block, node.shared_memory, node.parameters
        )
