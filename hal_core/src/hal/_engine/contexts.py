"""Retire what the queues of a native context have completed, and lose a context (rules S5, O2)."""

from __future__ import annotations

from hal._base.failures import is_users, keep
from hal._engine import ending, progress, retiring, timelines
from hal._engine.device_context import DeviceContext
from hal._engine.steps import CallStep
from hal._engine.stream import StreamQueue
from hal._engine.timelines import CHANGE, Work
from hal.errors import DeviceLostError


def harvest(context: DeviceContext) -> None:
    """Retire what has completed on every queue."""
    progress.act(harvest_all, context.queues, None)


def harvest_all(step: CallStep, queues: list[StreamQueue], _: None) -> None:
    """Have the step retire what has completed on some queues."""
    for queue in queues:
        retiring.harvest(step, queue)


def harvest_some(step: CallStep, queue: StreamQueue, _: None = None) -> None:
    """Retire what has completed on a queue and, in rotation, on one other of its device."""
    retiring.harvest(step, queue)
    # A queue that nobody submits to any more would keep what its work used.
    context = queue._context
    context._rotation += 1
    queues = context.queues  # once: another thread may replace it
    if queues:
        other = queues[context._rotation % len(queues)]
        if other is not queue:
            retiring.harvest(step, other)


def synchronize_idle(context: DeviceContext) -> None:
    """Synchronise the streams of queues without work: their driver then knows it to be complete.

    Blocks for work that other threads submit meanwhile. Raises what the native calls raise.
    """
    for queue in context.queues:
        progress.act(_synchronize_idle, queue, None)


def _synchronize_idle(step: CallStep, queue: StreamQueue, _: None) -> None:
    context = queue._context
    with timelines.lock:
        if queue._ring or queue._dead or context.lost is not None:
            return
        step.contexts = (context, queue)  # the stream is not destroyed before the step is done
    step.calm = True  # no engine state in its hands: a signal handler may call anything
    context.native.bind()
    context.native.synchronize_stream(queue._stream)
    step.contexts = ()


def feed(context: DeviceContext) -> None:
    """Have starved operations try again: memory may have been given back."""
    if context.starved:
        progress.act(_feed, context, None)


def _feed(step: CallStep, context: DeviceContext, _: None) -> None:
    with timelines.lock:
        context.feed_some(step.work)


def synchronize(context: DeviceContext, stream: int) -> None:
    """Block until a stream is idle; raises `DeviceLostError`, and the device is lost then."""
    try:
        context.native.bind()
        context.native.synchronize_stream(stream)
    except Exception as error:
        if is_users(error):
            raise
        if isinstance(error, DeviceLostError):
            lose(context, error)
            raise
        message = f"waiting for a copy raised {error!r}: nothing knows when it ends"
        lost = DeviceLostError(message)
        lose(context, lost)
        raise lost from error


def lose(context: DeviceContext, error: BaseException) -> None:
    """Mark a context lost and fail everything unretired on it, and only that (S5).

    The contexts that share its loss are lost, too.
    """
    progress.act(progress.change, ending.lose, (context, keep(error)))


def share_loss(context: DeviceContext, other: DeviceContext) -> None:
    """Join two groups of contexts that are lost at once: those of two contexts."""
    progress.act(_share_loss, context, other)


def _share_loss(step: CallStep, context: DeviceContext, other: DeviceContext) -> None:
    with timelines.lock:
        together = list(dict.fromkeys((*context.together, *other.together)))
        for each in together:
            each.together = together
        step.work += _losses(together)


def _losses(contexts: list[DeviceContext]) -> Work:
    # Its own function: a condition is not looked at inside of the ``with`` (`timelines.lock`).
    return [(CHANGE, (ending.lose, each, each.lost)) for each in contexts if each.lost is not None]
