"""The end of queues and of native contexts (rule Q6).

A close has three parts, each of which may be repeated: it refuses new operations and cancels those
that are not issued; it waits for the others; it destroys the streams. At the deadline it marks the
context lost instead, and frees nothing that native calls may still use.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterator
from typing import Final

from hal._base import sync
from hal._engine import contexts, explain, progress, steps, timelines
from hal._engine.device_context import DeviceContext
from hal._engine.ending import call_off_all
from hal._engine.events import Event
from hal._engine.operation import ISSUED, Operation
from hal._engine.steps import CallStep, Closer
from hal._engine.stream import StreamQueue
from hal._engine.submission import Submission
from hal._engine.timelines import CHANGE
from hal.errors import DeviceLostError, HalError
from hal.handlers import dropped, own

NAP_SECONDS: Final = 0.001
"""Pause between two looks at what another thread has to do first, such as to end a native call.

To be told by that thread was rejected: every call would have to look for somebody who waits.
"""

_CALL_SECONDS: Final = 0.1
"""What a native call of another thread's on an idle stream has at least to end."""


# Queues


def close_queues(queues: list[StreamQueue], deadline: float) -> tuple[str, ...]:
    """Cancel what is not issued, wait for the rest, destroy the streams of one context (Q6).

    Returns a description of every operation that was still running at
    `deadline`; the context is lost then, and its streams are left behind.
    """
    return progress.act(_close_queues, queues, deadline)


def close_queue(queue: StreamQueue, deadline: float) -> tuple[str, ...]:
    """Close one queue like `close_queues`, or report the other thread that is closing it."""
    abandoned = close_queues([queue], deadline)
    if not abandoned and _is_left(queue):
        return (f"{queue.name}, which another thread is still closing",)
    return abandoned


def cancel(context: DeviceContext) -> None:
    """Refuse new operations and cancel those not issued: the first part of a close."""
    progress.act(_cancel, context.queues, None)


def _cancel(step: CallStep, queues: list[StreamQueue], _: None) -> None:
    """Refuse new operations and cancel those not issued."""
    with timelines.lock:
        step.work += [(CHANGE, (call_off_all, queue, None)) for queue in queues]
        for queue in queues:
            queue._closed = True


def _close_queues(step: CallStep, queues: list[StreamQueue], deadline: float) -> tuple[str, ...]:
    """Close the queues that nobody else is closing, and wait until the others are closed, too."""
    # Each call in here has a step of its own: a signal handler may run between them, and another
    # close completes what an interrupt leaves.
    step.calm = True
    closer = steps.Closer()
    abandoned: tuple[str, ...] = ()
    with closer.mark:
        while True:
            with timelines.lock:
                ours = _begin_close(queues, closer)
            if ours:
                abandoned += _close_ours(ours[0]._context, ours, deadline)
            # Another thread may be closing the others; all of them must be closed.
            if not any(map(_is_left, queues)) or sync.monotonic() >= deadline:
                return abandoned
            sync.nap(NAP_SECONDS)


def _begin_close(queues: list[StreamQueue], closer: Closer) -> list[StreamQueue]:
    """Have a call close the open queues that nobody else is closing; under the lock."""
    ours = []
    for queue in queues:
        if not queue._gone and not steps.is_another(queue._closer, closer):
            queue._closer = closer
            ours.append(queue)
    return ours


def _is_left(queue: StreamQueue) -> bool:
    """Return whether a queue still exists and is not being closed further up this stack."""
    return not queue._gone and not steps.is_mine(queue._closer)


def _close_ours(
    context: DeviceContext, ours: list[StreamQueue], deadline: float
) -> tuple[str, ...]:
    """Do the work of `close_queues` for queues that no other thread is closing."""
    progress.act(_cancel, ours, None)
    abandoned: tuple[str, ...] = ()
    while True:
        if context.lost is None:  # a lost one has nothing to retire
            progress.act(contexts.harvest_all, ours, None)
        with timelines.lock:
            running = [operation for queue in ours for operation in queue._running()]
        if not running:
            break
        remaining = deadline - sync.monotonic()
        if remaining <= 0:
            abandoned = tuple(operation._describe() for operation in running)
            give_up(context, abandoned)
            break
        _wait_for(running, min(remaining, 0.05))
    if not abandoned:
        abandoned = _destroy_streams(context, ours, deadline)
    with timelines.lock:
        # First: a close after an interrupt does no more for those that are gone.
        context.queues = list(itertools.filterfalse(ours.__contains__, context.queues))
        for queue in ours:
            queue._gone = True
    _forget(ours)
    return abandoned


def _wait_for(running: list[Operation], seconds: float) -> None:
    """Wait for a while until one of `running` may have ended."""
    # For one, since the caller looks at all of them again; the last one's retirement takes those
    # before it on its stream along.
    last = running[-1]
    if not isinstance(last, Submission) or last._state != ISSUED:
        # In another thread's hands, or failed and kept for its resources only.
        sync.nap(min(seconds, NAP_SECONDS))
        return
    with dropped(HalError):  # the caller looks at it again, whatever its outcome
        last.wait(seconds)


def _forget(queues: list[StreamQueue]) -> None:
    """Have the open queues forget how far they have waited for some that are gone."""
    # Without their batons: one that waits just now notes it again, and only a number is kept.
    others = [queue for context in list(explain.contexts) for queue in context.queues]
    for queue, gone in itertools.product(others, queues):
        queue._seen.pop(gone._id, None)


def _destroy_streams(
    context: DeviceContext, queues: list[StreamQueue], deadline: float
) -> tuple[str, ...]:
    """Destroy idle streams, once no other thread is in a native call on them.

    Such a call may be a thread's of our own, and ends soon: it has a moment behind `deadline`, too.
    Returns a description of each that goes on; the context is lost then.
    """
    deadline = max(deadline, sync.monotonic() + _CALL_SECONDS)
    with timelines.lock:
        for queue in queues:
            queue._dead = True  # no such call begins from here on
    while sync.monotonic() < deadline and any(map(_is_in_call, queues)):
        sync.nap(NAP_SECONDS)
    if context.lost is not None or not queues:
        return ()
    if calls := tuple([call_on(each.name) for each in filter(_is_in_call, queues)]):
        give_up(context, calls)
        return calls
    native = context.native
    with _lost_by_failures(context):
        native.bind()
        for queue in queues:
            queue._notifier.close()
            # Cleared before it is destroyed: a Ctrl-C leaks the stream, and destroys none twice.
            stream, queue._stream = queue._stream, 0
            if stream and queue._borrowed is None:
                native.destroy_stream(stream)
            elif stream:
                native.release_stream(stream)
            queue._borrowed = None
    return ()


def _is_in_call(queue: StreamQueue) -> bool:
    """Return whether another thread arms a notification of a queue, or synchronises its stream."""
    return queue._notifier.arming is not None or steps.users(queue) > 0


# Contexts


def give_up(context: DeviceContext, abandoned: tuple[str, ...]) -> None:
    """Lose a context: its operations did not end in time."""
    error = DeviceLostError(
        f"{context.name} was closed while {len(abandoned)} operations were still running and "
        f"did not end in time: {', '.join(abandoned[:8])}"
    )
    error.given_up = True
    contexts.lose(context, error)


def call_on(name: str) -> str:
    """Describe the native call of another thread that keeps what has this name from closing."""
    return f"a call of the driver's for {name} on another thread"


def wait_for_calls(context: DeviceContext, deadline: float) -> bool:
    """Wait until no other thread is in a native call; return False if the time is up before."""
    while steps.users(context) or (context.direct is not None and context.direct.users):
        if sync.monotonic() >= deadline:
            return False
        sync.nap(NAP_SECONDS)
    return True


@contextlib.contextmanager
def _lost_by_failures(context: DeviceContext) -> Iterator[None]:
    """Declare a context lost if a native call fails: what cannot be freed goes with it.

    Close goes on then, but not after what a user's signal handler raises (O3).
    """
    try:
        yield
    except own(HalError) as error:
        contexts.lose(context, error)


def trim_events(
    context: DeviceContext, deadline: float, while_open: Callable[[Callable[[], object]], object]
) -> None:
    """Destroy the events that nobody holds, unless other threads still ask some at `deadline`.

    `while_open` makes a call unless the device is being closed; a close that begins waits for it.
    """
    idle = context.events.take_idle()  # first: only calls that have begun may still ask one
    try:
        if context.lost is None and wait_for_calls(context, deadline):
            while_open(functools.partial(_destroy_events, context, idle))
    finally:
        context.events.put_back(idle)


def _destroy_events(context: DeviceContext, idle: list[Event]) -> None:
    context.native.bind()
    context.events.destroy(idle)


def close_events(context: DeviceContext) -> None:
    """Destroy the events; no thread is in a native call on one."""
    with _lost_by_failures(context):
        if not context.events.is_empty:  # else another close has done it
            context.native.bind()
            context.events.close()


def end_all(context: DeviceContext, end: Callable[[int], object], handles: list[int]) -> None:
    """End native handles, while the device is being closed."""
    with _lost_by_failures(context):
        if handles:
            context.native.bind()
        for handle in handles:
            end(handle)
