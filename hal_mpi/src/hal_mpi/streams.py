"""Operations that run on streams of the cpu backend, by the core's C extension.

A stream's thread meets the other ranks itself and moves the data: no thread of Python's is woken
for it.
"""

from __future__ import annotations

import ctypes
from typing import Any, Final

import numpy as np

from hal.collectives.numerics import wide_type
from hal.errors import OperationError
from hal.native_collectives import (
    MESSAGES,
    SOURCE,
    STREAM,
    TARGET,
    Collective,
    CollectiveStep,
    GroupCall,
)
from hal_mpi import _mpi

__all__ = ["Streams"]

_MOST: Final = 2**31 - 1
"""The most bytes of a rank's part: MPI's functions take an int."""

_NOTHING: Final = 0
_FOLD: Final = 1
_PLACE: Final = 2
_TAKE: Final = 3
"""What a rank does with the data of all, as `hal_core/speedups/meeting.h` has it."""
_WAYS: Final = {"average": 1, "min": 2, "max": 3, "sum": 4}
"""How other functions than MPI's reduce, as `hal_core/speedups/meeting.h` has it; else 0."""


class Streams:
    """The part of a group that runs its operations on streams."""

    def __init__(self, comm: _mpi.Communicator) -> None:
        self._comm = comm
        self.meeting: Any = comm.meeting
        self._begin = ctypes.CFUNCTYPE(ctypes.c_int, *(ctypes.c_uint64,) * 5)(self.meeting.begin)
        self._plans: dict[CollectiveStep, int] = {}

    def take(self, step: CollectiveStep, dtype: np.dtype[Any] | None) -> bool:
        """Return whether an operation can run there."""
        if dtype is None:
            return step.kind == "barrier"
        if step.kind in MESSAGES or step.elements * dtype.itemsize > _MOST:
            return False
        return not step.op or wide_type(dtype) == dtype

    def call_for(self, step: CollectiveStep, dtype: np.dtype[Any] | None) -> GroupCall:
        """Return the call that puts an operation on a stream."""
        arguments = self.meeting.address, self._plan(step, dtype), SOURCE, TARGET, STREAM
        return GroupCall(self.meeting.begin, arguments)

    def enqueue(self, stream: int, work: Collective) -> None:
        """Put an operation on a stream."""
        plan = self._plan(work.step, work.dtype)
        status = self._begin(self.meeting.address, plan, *_addresses(work), stream)
        if status:
            raise self.refusal(work, status)

    def run(self, work: Collective) -> bool:
        """Run an operation of a batch as others run it on a stream; false if it went wrong.

        If no stream can run it, it only meets the others.
        """
        dtype = work.dtype if self.take(work.step, work.dtype) else None
        return bool(self.meeting.run(self._plan(work.step, dtype), *_addresses(work)))

    def refusal(self, work: Collective, status: int) -> OperationError:
        """Return the error for a status of `call_for`'s call."""
        return OperationError(f"{work.step}: no memory for it on the stream", native_code=status)

    def _plan(self, step: CollectiveStep, dtype: np.dtype[Any] | None) -> int:
        """Return the address of C's record of an operation but for its number and buffers."""
        plain = step._replace(number=0)
        known = self._plans.get(plain)
        if known is None:
            known = self._plans[plain] = self._make(plain, dtype)
        return known

    def _make(self, step: CollectiveStep, dtype: np.dtype[Any] | None) -> int:
        before, _, after = str(step).partition("#0")
        shape: tuple[int, ...] = (_NOTHING, -1, 0, 0)
        reduces: tuple[int, ...] = (0, 0, 1, 0)
        if dtype is not None and step.elements:
            piece = step.elements * dtype.itemsize
            action = _FOLD if step.op else _TAKE if step.kind == "broadcast" else _PLACE
            stride = piece if step.kind in {"reduce_scatter", "all_to_all"} else 0
            shape = action, step.root, piece, stride
            is_own = step.op == "average" or _mpi.has_own(dtype, step.op)
            way = _WAYS[step.op] if is_own else 0
            reduces = *self._comm.how(dtype, step.op), dtype.itemsize, way
        return int(self.meeting.plan(before + "#", after, *shape, *reduces))


def _addresses(work: Collective) -> tuple[int, int]:
    """Return those of the source and of the target; 0 for none."""
    source, target = work.source, work.target
    return 0 if source is None else source.address(), 0 if target is None else target.address()
