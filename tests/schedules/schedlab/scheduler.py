"""Run logical threads one at a time, in an order that a list of choices decides.

A logical thread is a greenlet. It gives the turn away only at a switch point:
before it takes a lock, rings or waits at a doorbell, yields, starts a thread,
ends, makes a native call of the fake device, and, where asked for, before it
touches a shared attribute outside the lock or at a new line of the core. At
each point where more than one continuation exists the strategy picks one by
number; the numbers are the whole schedule, and replay it.
"""

import contextlib
import traceback

from greenlet import GreenletExit, getcurrent, greenlet

from schedlab import slices, sync
from schedlab.choices import NondeterminismError, PrunedError, ScheduleError
from schedlab.chronicle import Chronicle
from schedlab.threads import All, Cell, Thread, restart_serials

SPINS = 2
"""How often a yielding thread may go on although others could run."""

STARVED = 4
"""How many yields of others may pass over a thread that can go on."""

_leaked = []


class Scheduler(Chronicle):
    """Run one schedule.

    Parameters
    ----------
    strategy
        Decides: ``pick(count, kind, scheduler)`` returns 0 <= choice < count.
        For the kind "thread" choice 0 is to go on with the current thread if
        it can; "data" are the device's answers; "line" and "race" are the
        optional points. ``reduces`` says whether it has to be told every step.
    trace
        Whether to keep a readable trace.
    track
        Whether to keep fingerprints of what happened before what.
    """

    def __init__(
        self, strategy, *, trace=False, track=False, release_points=False, step_limit=20000
    ):
        restart_serials(0)
        super().__init__(strategy if strategy.reduces else None, trace=trace, track=track)
        self.strategy = strategy
        self.option_ids = None
        self.step_limit = step_limit
        self.steps = 0
        self.pruned = False
        self.broken = None
        self.quiet = False  # no choices: the current thread goes on, the device is done
        self.seconds = 1000.0
        self.slice = None  # who sleeps no longer as a time slice is over, until others go on
        self.saved = []  # what only a time slice has brought about
        self.limits = []  # when time-outs end that the case has given
        self.is_broken = lambda: False  # whether a device is lost, or its work hangs
        self.fruitless = 0
        self.switches = 0
        self.timeline_lock = None
        self.on_acquired = None  # called after the timeline lock was taken
        self.on_released = None  # and after it was released
        self.finalising = False
        self.no_points = False
        self.order_locks = True  # whether the holds of the timeline lock are all in order
        self.preemptions = 0
        self.release_points = release_points

    # Running

    def run(self, main):
        """Run `main` as the first logical thread until it ends; raise what went wrong."""
        if sync.ACTIVE is not None:
            message = "a scheduler is running already"
            raise RuntimeError(message)
        sync.ACTIVE = self
        self.hub = getcurrent()
        try:
            thread = self._create("main", main, daemon=False)
            self.current = thread
            if self.reduction is not None:
                self.reduction.start(0)
            thread.greenlet.switch()
            self._finish()
        finally:
            self._unwind()
            sync.ACTIVE = None
        if self.broken is not None:
            raise self.broken
        if self.failure is not None:
            raise self.failure
        if self.pruned:
            raise PrunedError

    def _finish(self):
        if self.failure is None and not self.pruned:
            for thread in self.threads:
                if thread.error is not None:
                    self._set_failure("exception", thread.error)
                    return

    def _unwind(self):
        """End what still runs; its cleanup finds a dead scheduler and does nothing."""
        self.dead = True
        for thread in self.threads:
            g = thread.greenlet
            tries = 0
            while g is not None and g:
                g.parent = getcurrent()
                self.current = thread
                with contextlib.suppress(BaseException):  # an unwound thread has no say
                    g.throw(GreenletExit)
                tries += 1
                if tries > 50:
                    _leaked.append(g)
                    break
        for thread in self.threads:
            thread.greenlet = None

    def _create(self, name, target, *, daemon):
        thread = Thread(len(self.threads), name, daemon)
        thread.greenlet = greenlet(lambda *_: self._enter(thread, target), parent=self.hub)
        self.threads.append(thread)
        if self.current is not None:
            self.note_write(thread_cell := Cell())
            thread.hash = hash((thread.number, thread_cell.w))
            if self.reduction is not None:
                self.reduction.create(thread.number)
        return thread

    def _enter(self, thread, target):
        try:
            target()
        except GreenletExit:
            if self.dead:
                return
        except BaseException as error:  # noqa: BLE001 - reported as the run's failure
            if self.dead:
                return
            text = "".join(traceback.format_exception(error))
            if isinstance(error, ScheduleError):
                self.failure = self.failure or error
            else:
                self._set_failure("exception", f"thread {thread.name} ended with\n{text}")
            del error
        if self.dead:
            return
        if not thread.daemon:
            self.note_end(f"thread {thread.name}")
        thread.finished.free = True
        thread.where = "end"
        thread.greenlet.parent = self.hub
        # A lock without a name may be somebody's gate, which is held on purpose.
        names = ", ".join(self.names[id(lock)] for lock in thread.held if id(lock) in self.names)
        if names:
            self._set_failure("held", f"thread {thread.name} ended and holds {names}")
        if thread.number == 0 or self.failure is not None:
            return  # to the hub
        if self.trace is not None:
            self.log("ends")
        self.note_write(thread.finished)
        target = self._next(thread)
        if target is not None:
            self.current = target
            thread.greenlet.parent = target.greenlet

    # For the case's own code

    def spawn(self, target, name=None):
        """Start a logical thread of the case; returns it for `join`."""
        thread = self._create(name or f"t{len(self.threads)}", target, daemon=False)
        if self.trace is not None:
            self.log(f"starts {thread.name}")
        return thread

    def join(self, *threads):
        """Wait until these threads have ended."""
        me = self.current
        me.where = "join"
        me.waits = All(threads)
        self.switch()
        me.waits = None
        for thread in threads:
            self.note_write(thread.finished)

    def wait_for(self, gate):
        """Wait until ``gate.free``."""
        me = self.current
        me.waits = gate
        self.switch()
        me.waits = None

    def point(self, where):
        """Let others run here, perhaps."""
        self.current.where = where
        self.switch()

    def choose(self, count, what):
        """Return a choice of the device, 0 <= choice < count."""
        if self.quiet or count < 2:
            return 0
        me = self.current
        me.hash = hash((me.hash, 77))
        choice = self.decide(count, "data")
        me.hash = hash((me.hash, choice))
        if self.trace is not None:
            self.log(f"chooses {what}: {choice} of {count}")
        return choice

    def shared_access(self, kind):
        """Let others run here: before an unlocked access (race), or at a new line (line)."""
        if self.dead or self.quiet or self.finalising or self.no_points:
            return
        me = self.current
        if self.failure is not None:
            self.hub.switch()
        enabled = self._enabled(me)
        if len(enabled) < 2 or not self.strategy.may_preempt(self):
            return
        self.steps += 1
        me.hash = hash((me.hash, 8))
        if self.reduction is not None:
            self.reduction.end()
            self.option_ids = [thread.number for thread in enabled]
        choice = self.decide(len(enabled), kind)
        if self.reduction is not None:
            self.reduction.start(enabled[choice].number)
        if choice:
            if self.trace is not None:
                self.log(f"is preempted ({kind})")
            self.preemptions += 1
            me.where = kind
            target = self._chosen(enabled[choice], me)
            self.current = target
            target.greenlet.switch()
            if self.dead:
                raise GreenletExit

    # Deciding

    def decide(self, count, kind):
        """Ask the strategy and write the answer down."""
        try:
            choice = self.strategy.pick(count, kind, self)
        except NondeterminismError as error:
            self.broken = error
            self.hub.switch()
        if choice is None:
            self.pruned = True
            self.hub.switch()
        self.choices.append(choice)
        self.widths.append(count)
        return choice

    def switch(self):
        """Act as a switch point of the current thread; returns when it may go on."""
        if self.dead:
            raise GreenletExit
        me = self.current
        if self.failure is not None:
            self.hub.switch()
        self.steps += 1
        if self.steps > self.step_limit:
            self.fail("livelock", f"no end after {self.step_limit} steps\n{self.stacks()}")
        me.hash = hash((me.hash, 9))
        if me.where != "yield":
            self._moved()
        target = self._next(me)
        if target is None:
            self.hub.switch()
        elif target is not me:
            self.current = target
            target.greenlet.switch()
            if self.dead:
                raise GreenletExit

    def _enabled(self, me):
        """Return who can go on, `me` first, then in order after `me`."""
        threads = self.threads
        start = me.number
        count = len(threads)
        enabled = []
        parked = False
        for offset in range(count):
            thread = threads[(start + offset) % count]
            if thread.where == "end":
                continue
            if thread.waits is None or thread.waits.free:
                if thread.parked and thread is not me:
                    parked = True
                    continue
                enabled.append(thread)
        if parked and (not enabled or (len(enabled) == 1 and me.parked and enabled[0] is me)):
            # The threads that yielded wait for others, and there are none: let them all go on.
            for thread in threads:
                thread.parked = thread is me and me.parked
            return self._enabled(me)
        return enabled

    def blocked_ids(self):
        """Return who cannot run: number -> the number of the thing that it waits for."""
        return {
            thread.number: getattr(thread.waits, "serial", -1)
            for thread in self.threads
            if thread.where != "end" and thread.waits is not None and not thread.waits.free
        }

    def _next(self, me):
        """Return the thread to run next, or None when the run is over."""
        if self.reduction is None:
            return self._next_thread(me)
        self.reduction.end()
        thread = self._next_thread(me)
        if thread is not None:
            self.reduction.start(thread.number)
        return thread

    def _next_thread(self, me):
        while True:
            enabled = self._enabled(me)
            if self.quiet:
                if enabled:
                    yielding = me.parked and enabled[0] is me and len(enabled) > 1
                    return self._chosen(enabled[1] if yielding else enabled[0], me)
                steps = self._steps()
                if steps:
                    if self.reduction is not None:
                        self.reduction.start(steps[0][2])
                        steps[0][1]()
                        self.reduction.end()
                    else:
                        steps[0][1]()
                elif not self._expire():
                    return None
                continue
            steps = self._steps()
            if not enabled and not steps:
                if not self._expire():
                    return None
                continue
            can_stay = bool(enabled) and enabled[0] is me
            if can_stay and me.parked:
                if len(enabled) + len(steps) > 1:
                    # It yields: others first, itself last, and not for ever.
                    del enabled[0]
                    starved = [thread for thread in enabled if thread.starved >= STARVED]
                    for thread in enabled:
                        thread.starved += 1
                    if starved:
                        enabled = starved
                    elif me.spins < SPINS:
                        enabled.append(me)
                can_stay = False
            count = len(enabled) + len(steps)
            if count == 1:
                choice = 0
                if self.reduction is not None:
                    only = enabled[0].number if enabled else steps[0][2]
                    if not self.reduction.forced(only):
                        self.pruned = True
                        return None
                elif self.track and self.strategy.is_known(self):
                    self.pruned = True
                    return None
            else:
                if can_stay and not self.strategy.may_preempt(self):
                    if self.track and self.strategy.is_known(self):
                        self.pruned = True
                        return None
                    return self._chosen(me, me)
                if self.reduction is not None:
                    self.option_ids = [thread.number for thread in enabled]
                    self.option_ids.extend(step[2] for step in steps)
                choice = self.decide(count, "thread")
                if can_stay and choice:
                    self.preemptions += 1
            if choice < len(enabled):
                return self._chosen(enabled[choice], me)
            label, step, actor = steps[choice - len(enabled)]
            if self.trace is not None:
                self.log(label, who="device")
            self._moved()
            self.switches += 1
            if self.reduction is not None:
                self.reduction.start(actor)
                step()
                self.reduction.end()
            else:
                step()
            if self.failure is not None:
                return None

    def _is_limit(self, time):
        return any(abs(time - limit) < slices.NEAR for limit in self.limits)

    def note_end(self, what):
        """Note that something has come to its end for which the case waits."""
        if self.slice is not None:
            self.saved.append(f"{what} has ended only as {self.slice} was over")
            self.slice = None

    def _chosen(self, thread, me):
        if thread is me:
            return me
        if me.where != "yield":
            me.spins = 0
        self.switches += 1
        thread.parked = False
        thread.starved = 0
        return thread

    def _moved(self):
        for thread in self.threads:
            thread.parked = False

    def _steps(self):
        steps = []
        for source in self.environment:
            steps.extend(source.steps())
        return steps

    def _expire(self):
        """End the earliest timed sleep, as nobody else can go on; False if there is none."""
        first = None
        for thread in self.threads:
            if (
                thread.where != "end"
                and thread.deadline is not None
                and (first is None or thread.deadline < first.deadline)
            ):
                first = thread
        if first is None:
            self._set_failure("deadlock", f"every thread is blocked\n{self.stacks()}")
            return False
        waiting = any(not thread.daemon and thread.where != "end" for thread in self.threads)
        self.slice = None
        if first.net and waiting and not self.quiet and not self._is_limit(first.deadline):
            place = slices.place_of(self.frame_of(first))
            if not slices.is_known(place, is_broken=self.is_broken()):
                self.slice = f"the sleep of {first.name} in {'.'.join(place)}"
        self.fruitless += 1
        if self.fruitless > 1000:
            self._set_failure("deadlock", f"only safety nets expire\n{self.stacks()}")
            return False
        self.seconds = max(self.seconds, first.deadline)
        self.clock.w = hash((self.clock.w, self.clock.r, 5))
        if self.trace is not None:
            self.log(f"sleep of {first.where} expires", who=first.name)
        first.expired = True
        first.waits = None
        first.deadline = None
        return True
