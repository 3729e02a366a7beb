"""Shared buffers and semaphores as arguments of `multiprocessing`: they travel as tickets.

Only its own pickler learns of them. An ordinary pickle, which may be read on another day or
another host, is refused as for every object of hal (`hal._base.process`).
"""

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING, Any

from hal._buffers.buffer import Buffer
from hal._devices import lifecycle
from hal._devices.create import create_device
from hal._engine.shared_semaphore import SharedSemaphore, open_semaphore
from hal.errors import ClosedError
from hal.handlers import dropped

if TYPE_CHECKING:
    from collections.abc import Callable

    from hal.tickets import BufferTicket


def register() -> None:
    """Teach the pickler of `multiprocessing`, and hear how a process of it ends; imports that."""
    from multiprocessing import util  # noqa: PLC0415 - of programs that share
    from multiprocessing.process import BaseProcess  # noqa: PLC0415
    from multiprocessing.reduction import ForkingPickler  # noqa: PLC0415

    _hear_of_end(None)
    util.register_after_fork(register, _hear_of_end)  # a child of a fork server forgets the first
    start: Callable[..., int] = BaseProcess._bootstrap  # type: ignore[attr-defined]

    def bootstrap(child: BaseProcess, parent_sentinel: object = None) -> int:
        child.run = functools.partial(_run, child.run)  # type: ignore[method-assign]
        return start(child, parent_sentinel)

    BaseProcess._bootstrap = bootstrap  # type: ignore[attr-defined]
    ForkingPickler.register(Buffer, _reduce_buffer)
    ForkingPickler.register(SharedSemaphore, _reduce_semaphore)


def _run(run: Callable[[], None]) -> None:
    """Run the function of a child of `multiprocessing`; note what it raises as Python does.

    At the end of the process it is too late: from Python 3.13 on the exception has been printed
    and forgotten by then.
    """
    try:
        run()
    except SystemExit:
        raise
    except BaseException as error:
        sys.last_value = error
        raise


def _hear_of_end(_: object) -> None:
    from multiprocessing import util  # noqa: PLC0415

    util.Finalize(None, _end, exitpriority=-10)  # after its queues have sent what they hold


def _end() -> None:
    """Close everything in a child of `multiprocessing`, of which some end without `atexit`."""
    from multiprocessing import parent_process  # noqa: PLC0415

    if parent_process() is not None:
        with dropped(ClosedError):  # it was forked, and has nothing open
            lifecycle.close_all()


def _reduce_semaphore(semaphore: SharedSemaphore) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    return open_semaphore, (semaphore.share(),)


def _reduce_buffer(buffer: Buffer) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    device = buffer.device
    return _open_buffer, (buffer.share(), device.backend, device.info.index)


def _open_buffer(ticket: BufferTicket, backend: str, index: int) -> Buffer:
    """Open a buffer with the first open device like the one it is of, or with a new one."""
    for device in list(lifecycle.devices):
        if (device.backend, device.info.index, device.closed) == (backend, index, False):
            return device.open(ticket)
    return create_device(f"{backend}:{index}").open(ticket)
