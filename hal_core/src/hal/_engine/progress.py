"""Follow-up work after the locks are released, and work that no thread waits for.

`act` runs a call that changes the engine inside a step of its thread, and `drain` does the
work that follows from its changes, without recursion: follow-ups of one entry join the
same list. (A failure can run down a chain that is longer than Python's stack is deep.)
A call that breaks off, anywhere and for any reason, leaves its work in its step.
Only `_put_right` repairs it, called by whichever thread comes next: the same thread with
its next call, or the progress thread.

The *progress thread* starts lazily and sleeps while it has nothing to do. It takes over what
exceeds a caller's budget (Q1) and serves awaits, callbacks, waits across drivers,
sleeping host waiters, backlogs and frees. It runs no user code.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from itertools import islice, repeat
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, TypeVar

from hal._base import speedups, sync
from hal._base.workers import Pool, report
from hal._engine import steps, timelines
from hal._engine.backlog import release
from hal._engine.ending import disown, end_pending
from hal._engine.host_calls import MOST_CALLS
from hal._engine.issuing import pump, put_right
from hal._engine.notifier import Notifier
from hal._engine.operation import CANCELLED, Operation
from hal._engine.retiring import harvest, retire, serve
from hal._engine.steps import CallStep, Later
from hal._engine.timelines import (
    CALLBACK,
    CHANGE,
    GARBAGE,
    HOST,
    ISSUE,
    LATER,
    RELEASE,
    RETIRE,
    TELL,
    WAKE,
    WATCH,
    Batch,
    Work,
)
from hal.errors import CancelledError, HalError, ReentrantCallError
from hal.handlers import dropped, own

if TYPE_CHECKING:
    from hal._engine.device_context import DeviceContext
    from hal._engine.stream import StreamQueue


_T = TypeVar("_T")
_A = TypeVar("_A")
_B = TypeVar("_B")

BUDGET: Final = 64
"""Operations that one call issues for others before it hands over (rule Q1)."""

NET_SECONDS: Final = 0.1
"""Longest sleep for what is on a stream: after a device error no driver notifies."""

_SHORT_SECONDS: Final = 0.001
"""Sleep while a notification for earlier work stands behind one for later work."""

dispatcher = Pool("hal-dispatcher", 1)
"""Runs callbacks, in the order in which they are appended."""
_pool = Pool("hal-host-call", MOST_CALLS)
"""Runs functions of the user's."""
workers = Pool("hal-worker", 64)
"""Runs host work of ours, which user functions cannot delay."""

_broken: Final[deque[CallStep]] = deque()
"""Steps that were left with something to do."""


put_off_calls: Final[dict[Later, None]] = {}
"""Calls of handlers and finalisers that are not made yet. As long as there are any, the C extension
leaves every call to Python, which makes them in their order (Q2)."""


def act(function: Callable[[CallStep, _A, _B], _T], first: _A, second: _B) -> _T:
    """Call ``function(step, first, second)`` inside a step, and do the work that follows.

    Every change of the engine is made in here. No lock held. Raises what the function
    raises; the next call or the progress thread completes what it had begun then.
    Raises `ReentrantCallError` as `hal._engine.steps.begin` does.
    """
    step = steps.begin()
    try:
        with step.mark:
            # Cleared here and not at the end of the last call, which may have been broken off.
            step.calm = False
            step.contexts = ()
            if step.is_left:
                _put_right(step, step)
            step.is_left = True
            result = function(step, first, second)
            if step.work or step.awaited:
                drain(step)
            step.is_left = False
        if step.later:
            # Another call makes them, as one that finds something left does: they have changes and
            # follow-ups of their own, which can break off like any call's.
            step.is_left = True
            act(nothing, None, None)
    except BaseException:
        # The one handler for all that the engine changes. One in each function was rejected: a
        # second interrupt breaks it off, and then nothing knows what is left.
        if step.is_open():
            # The list comes first: another thread repairs it, whatever happens to this one. Then it
            # is repaired at once, if there is room on the stack. An interrupt in here loses
            # nothing, and is raised.
            _broken.append(step)
            _progress.wake()
            if function is not nothing:
                with dropped(Exception):
                    act(nothing, None, None)
        raise
    return result


def _do_later(step: CallStep) -> None:
    """Make the calls that were put off to the end of a step, in their order.

    A call leaves the list once its changes are made, so an interrupted one is repeated.
    """
    later = step.later
    while later:
        call = later[0]
        is_again, call.is_begun = call.is_begun, True
        try:
            call.function(step, call.first, call.second)
        except own(HalError) as error:
            if not is_again:  # else it may have been made before it was interrupted
                step.calm = True
                report(call.function, error)  # its caller has returned long ago
                step.calm = False
        put_off_calls.pop(call, None)
        del later[0]
        drain(step)


def nothing(_: CallStep, __: None, ___: None) -> None:
    """Do nothing: `act` repairs broken steps by itself."""


def change(step: CallStep, function: Callable[..., object], arguments: tuple[Any, Any]) -> None:
    """Have the function make a change of two objects, under the lock."""
    step.work.append((CHANGE, (function, *arguments)))


def _put_right(broken: CallStep, step: CallStep) -> None:
    """Take over the work of a broken step, which may be the caller's own."""
    with timelines.lock:
        if broken is not step:
            # Told before the look at the mark: a thread that comes back either is seen here, or
            # sees this when it has taken its mark, and waits for the lock, above. One that has come
            # back, and ended its call between the two, has taken this back, too.
            broken.is_left = True
            if broken.mark.locked() or not broken.is_left:
                return  # its thread has come back, and goes on with it
            # Added here before it is cleared there: work that stands in both is repeated,
            # harmlessly.
            step.work += broken.work
            broken.work = []
            step.operation, broken.operation = broken.operation, None
            step.noted, broken.noted = broken.noted, None
            step.waiter, broken.waiter = broken.waiter, None
            step.awaited += broken.awaited
            broken.awaited = []
            step.later += broken.later
            broken.later = []
            queue, step.queue = broken.queue, broken.queue
            if queue is not None and queue._owner is broken:
                queue._owner = step
            broken.queue = None
    queue = step.queue
    if queue is not None:
        put_right(queue, step)
        step.queue = None
    waiter = step.waiter
    if waiter is not None:
        waiter.leave()
        step.waiter = None
    operation = step.operation
    if operation is not None:
        if not step.has_put_off(operation):
            error = CancelledError("the submission was interrupted")
            for each in operation if isinstance(operation, tuple) else (operation,):
                end_pending(each, CANCELLED, error, step.work)
        step.operation = None
    noted = step.noted
    if noted is not None:
        if not step.has_put_off(noted):
            for each in noted if isinstance(noted, tuple) else (noted,):
                disown(each)
        step.noted = None
    drain(step)
    _do_later(step)


def drain(step: CallStep, budget: int = BUDGET) -> None:  # noqa: PLR0912 - a branch a kind
    """Do all of a step's work; hand the rest to the progress thread once `budget` is spent.

    Only released and ready operations count, and only they are handed over.
    Call it with no lock and no baton held.
    """
    work = step.work
    rest: Work = []
    position = 0
    # `work` grows while it is worked off, so its length is read each time. No entry is removed
    # before all are done: what an interrupt cuts short is repeated, which does no harm.
    while position < len(work):
        kind, item = entry = work[position]
        if kind == WAKE:
            item.ring()
        elif kind == RELEASE:
            if budget <= 0:
                rest.append(entry)
            else:
                budget -= _release(item, budget, work)
                if budget <= 0:
                    work.append(entry)  # the rest comes after the operations that are ready now
        elif kind == ISSUE:
            if budget > 0:
                budget -= pump(item, step, budget)
            else:
                rest.append(entry)
        elif kind == RETIRE:
            _retire(item, step)
        elif kind == WATCH:
            rest.append(entry)  # only the progress thread watches queues
        elif kind == CALLBACK:
            dispatcher.wake()
        elif kind == HOST:
            (_pool if item._kind == "call" else workers).run(item._run_on_host)
        elif kind == CHANGE:
            function, first, second = item
            with timelines.lock:
                function(first, second, work)
        elif kind == TELL:
            item[0].tell(step)
        elif kind == LATER:
            step.later.append(item)
        # GARBAGE is for the end, and DROP is dropped with the list.
        position += 1
    if rest:
        _progress.post(rest)
    _end_work(step, budget)


def _end_work(step: CallStep, budget: int) -> None:
    """Drop what has ended, and serve the operations that wait for memory."""
    work = step.work
    # Behind all wake-ups: dropping may run code of the user's, which may take long, or call hal.
    step.calm = True
    hungry: dict[DeviceContext, None] = {}  # all: one step may retire work of several devices
    for kind, item in work:
        if kind == GARBAGE:
            for operation in item:
                operation._let_go()
            if item:
                context = item[0]._queue._context  # the context of all in this list
                context.epoch = object()  # a search for memory that was in vain is worth another
                if context.starved:
                    hungry[context] = None
    if not hungry:
        # Before the look: a search that finds work in the step relies on it (`MemorySearch`).
        work.clear()
        if not step.awaited:
            step.calm = False
            return
    # Follow-ups join the list before the others leave it: else a Ctrl-C would lose a waiter.
    count = len(work)
    step.calm = False
    with timelines.lock:
        for context in hungry:
            context.feed_some(work)
        while True:  # a condition here would be compiled without the exit of the `with`
            if not step.awaited:
                break
            operation = step.awaited[-1]
            operation._queue._context.search_memory(operation, work)
            step.awaited.pop()
    step.calm = True
    del work[:count]
    step.calm = False
    drain(step, budget)


def _release(batch: Batch, budget: int, work: Work) -> int:
    """Release the next operations of a batch; return their number."""
    with timelines.lock:
        batch.take(budget)
        for operation, index in batch.some:
            release(operation, index, work)
        count = len(batch.some)
        batch.some.clear()
    return count


def _retire(operation: Operation, step: CallStep) -> None:
    """Retire an operation whose event is complete, in C if that is the plain case."""
    is_done = False
    if speedups.module is not None:
        step.calm = True  # it drops what operations kept alive
        is_done = speedups.module.retire(operation)
        step.calm = False
    if not is_done:
        retire(operation, step)


class _Progress:
    """The progress thread; one per process. It sleeps at a doorbell until it is woken."""

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        """Start over, without a thread."""
        self._starting = sync.Lock()
        self._bell: sync.Doorbell | None = None
        # What to do, and the number of the thread that hands it over
        self._inbox: deque[tuple[tuple[int, Any], int]] = deque()
        self._watched: dict[StreamQueue, None] = {}

    def start(self) -> None:
        """Start the thread unless it runs, or is being started. Raises `OperationError`."""
        if self._bell is not None or self._starting.locked():
            return  # it looks for work before it sleeps
        with self._starting:
            if self._bell is None:
                bell = sync.Doorbell()
                sync.start_thread("hal-progress", lambda: self._run(bell))
                self._bell = bell  # only now: if the start failed, the next caller tries again
                bell.ring()

    def wake(self) -> None:
        """Have the thread look for work. Never blocks; any thread, no lock held."""
        bell = self._bell
        if bell is not None:
            bell.ring()
            return
        with dropped(Exception):  # the next caller starts it
            self.start()

    def post(self, work: Work) -> None:
        """Hand work to the thread; never blocks. No lock held."""
        self._inbox.extend(zip(work, repeat(sync.get_ident()), strict=False))
        self.wake()

    def note(self, later: Later) -> None:
        """Hand a call to the thread, which runs: appends and posts only, and takes no lock."""
        self._inbox.append(((LATER, later), sync.get_ident()))
        if self._bell is not None:
            self._bell.ring()

    def _run(self, bell: sync.Doorbell) -> None:
        was_rung = True
        while self._bell in {None, bell}:  # else its start broke off, and another thread runs
            try:
                pause = act(self.turn, bell, was_rung)
            except Exception as error:  # noqa: BLE001 - it serves every device of the process
                report(self._run, error)
                pause = NET_SECONDS
            was_rung = bell.wait(pause if self._watched or _broken else 3600.0)

    def turn(self, step: CallStep, bell: sync.Doorbell, was_rung: bool) -> float:  # noqa: FBT001 - for `act`
        """Do the pending work; return the longest time to sleep."""
        inbox, watched = self._inbox, self._watched
        self._mend(step, was_rung=was_rung)
        # A budget here, too: a flood of follow-ups must not delay the queues that are watched.
        taken: Work = []
        self._take(BUDGET, taken)
        for entry in taken:
            if entry[0] == WATCH:
                watched[entry[1]] = None
            else:
                step.work.append(entry)
        drain(step)
        pause = NET_SECONDS
        for queue in list(watched):
            harvest(step, queue)
            drain(step)
            state = serve(queue, bell, step)
            drain(step)
            if state == Notifier.IDLE:
                del watched[queue]
            elif state == Notifier.BEHIND:
                pause = _SHORT_SECONDS
        if inbox:
            bell.ring()
        return pause

    def take_back(self, step: CallStep) -> bool:
        """Take the next of the inbox if this thread has handed it over; return whether it has."""
        try:
            entry, thread = self._inbox[0]  # asked once: the progress thread may empty it meanwhile
        except own(IndexError):
            return False
        if entry[0] == WATCH or thread != sync.get_ident():
            return False
        # If the progress thread was faster, this takes the next entry, another thread's, too.
        self._take(1, step.work)
        return True

    def _take(self, count: int, into: Work) -> None:
        """Take up to so many entries of the inbox; in one call of C, so an interrupt loses none."""
        with dropped(IndexError):
            into.extend(map(itemgetter(0), islice(iter(self._inbox.popleft, None), count)))

    def _mend(self, step: CallStep, *, was_rung: bool) -> None:
        """Repair broken steps; without news, look at all steps."""
        while _broken:
            _put_right(_broken[0], step)
            _broken.popleft()  # last: what it could not repair, for want of memory, it tries again
        # A second interrupt may have kept a step out of that list. To look at all is dear, so it is
        # done only where the sleep ended by itself.
        if not was_rung:
            for other in steps.all_steps():
                if other.is_open() and not other.mark.locked():
                    _put_right(other, step)


_progress = _Progress()


def act_or_put_off(function: Callable[[CallStep, _A, _B], object], first: _A, second: _B) -> None:
    """Do as `act`; what a signal handler or a finaliser calls is put off to where it can (O3)."""
    try:
        act(function, first, second)
    except own(ReentrantCallError):
        put_off(function, first, second)


def put_off(function: Callable[[CallStep, _A, _B], object], first: _A, second: _B) -> None:
    """Call ``function(step, first, second)`` as soon as this thread's call of ours ends.

    For a call that interrupts another one on its thread (`hal._engine.steps.is_inside`). What has
    broken off by then is completed first.
    """
    later = Later(function, first, second)
    put_off_calls[later] = None
    step = steps.interrupted()
    if step is not None:
        step.later.append(later)
    else:  # it holds the timeline lock for a look only: another thread will do
        _progress.post([(LATER, later)])


def put_last(function: Callable[[CallStep, _A, _B], object], first: _A, second: _B) -> None:
    """Have the progress thread call ``function(step, first, second)``, after its pending work.

    A finaliser may call this (I10): it takes no lock, so it cannot start the thread. The code that
    made what the call is for has started it.
    """
    _progress.note(Later(function, first, second))


def resume(step: CallStep, _: None, __: None) -> bool:
    """Do some of what this thread has put off; return whether there was any.

    For a thread that is about to sleep, perhaps until that is done.
    """
    steps.take_later(step)
    # What it handed to the progress thread it does itself, because two threads that issue would
    # take the interpreter lock from each other; but nothing of other threads', whose devices must
    # not hold it up (Q1).
    return _progress.take_back(step) or bool(step.later)


def put_behind(function: Callable[[CallStep, _A, _B], object], first: _A, second: _B) -> bool:
    """Call ``function(step, first, second)`` after the progress thread's pending work, if any.

    Returns whether it has any. No lock held.
    """
    if not _progress._inbox:
        return False
    put_last(function, first, second)
    return True


def reap_later(reap: Callable[[], object]) -> None:
    """Have a worker free what finalisers left; a finaliser may call this, as `put_last`."""
    put_last(_send, reap, None)


def _send(_: CallStep, reap: Callable[[], object], __: None) -> None:
    workers.run(reap)  # a native free may block until its device is idle


def start() -> None:
    """Start the progress thread unless it runs; raises `OperationError`. No lock held."""
    _progress.start()


def renew() -> None:
    """Forget the parent's threads and what they hold; for a forked child."""
    timelines.replace_lock(sync.LeafLock())
    steps.renew()
    _broken.clear()
    put_off_calls.clear()
    _progress.renew()
    for helper in (dispatcher, _pool, workers):
        helper.renew()


def start_for(kind: str) -> None:
    """Ensure that there is a thread for host operations of a kind; like `start`."""
    (_pool if kind == "call" else workers).start()
