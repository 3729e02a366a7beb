"""Run logical threads one at a time, in an order that a list of choices decides.

A logical thread is a greenlet. It gives the turn away only at a switch point:
before it takes a lock, rings or waits at a doorbell, yields, starts a thread,
ends, makes a native call of the fake device, and, where asked for, before it
touches a shared attribute outside the lock or at a new line of the core. At
each point where more than one continuation exists the strategy picks one by
number; the numbers are the whole schedule, and replay it.

The module also has the names of ``hal/_sync.py``; they act on the scheduler
that is running (`ACTIVE`).
"""

from __future__ import annotations

import contextlib
import itertools
import sys
import traceback
import weakref

from greenlet import GreenletExit, getcurrent, greenlet

ACTIVE = None
"""The scheduler whose threads are running, or None."""

NET_RANGE = (0.01, 0.1)
"""A sleep of so many seconds is a safety net of the core's; a shorter one is a way to poll."""

YIELD_SECONDS = 30e-6
"""What a yield takes on the virtual clock."""

SPINS = 2
"""How often a yielding thread may go on although others could run."""

STARVED = 4
"""How many yields of others may pass over a thread that can go on."""


class ScheduleError(AssertionError):
    """Report a broken rule, with the choices that lead to it."""

    def __init__(self, kind, message, choices=(), trace=None):
        super().__init__(kind, message)
        self.kind = kind
        self.message = message
        self.choices = list(choices)
        self.trace = trace
        self.case = ""

    def __str__(self):
        lines = [f"{self.kind}: {self.message}"]
        lines.append(f"replay: {self.case or '?'} {encode(self.choices)!r}")
        if self.trace is not None:
            lines.append("trace (the last 400 steps):")
            lines.extend(self.trace[-400:])
        return "\n".join(lines)


class NondeterminismError(Exception):
    """Report that a replayed prefix met other choices than before."""


class PrunedError(Exception):
    """Say that a strategy cut the run off: the rest is known."""


def encode(choices):
    """Write choices as a short string; zeros at the end are implied."""
    text = []
    zeros = 0
    for choice in choices:
        if choice == 0:
            zeros += 1
            continue
        if zeros:
            text.append("0" * zeros if zeros < 4 else f"({zeros})")
            zeros = 0
        text.append(
            "0123456789abcdefghijklmnopqrstuvwxyz"[choice] if choice < 36 else f"<{choice}>"
        )
    return "".join(text)


def decode(text):
    """Read what `encode` wrote."""
    choices = []
    position = 0
    while position < len(text):
        letter = text[position]
        if letter in "(<":
            end = text.index(")" if letter == "(" else ">", position)
            number = int(text[position + 1 : end])
            choices.extend([0] * number if letter == "(" else [number])
            position = end + 1
        else:
            choices.append(int(letter, 36))
            position += 1
    return choices


_serial = 0


def next_serial():
    """Return a number for a shared thing, the same in every run with the same beginning."""
    global _serial  # noqa: PLW0603 - counted from 0 in every run
    _serial += 1
    return _serial


def restart_serials(number):
    """Count the shared things on from `number`."""
    global _serial  # noqa: PLW0603 - counted from 0 in every run
    _serial = number


class _End:
    """Be the end of a thread, which others wait for."""

    __slots__ = ("free", "r", "serial", "w")

    def __init__(self):
        self.free = False
        self.r = self.w = 0
        self.serial = next_serial()


class _All:
    """Be open once all these threads have ended."""

    __slots__ = ("gates",)

    def __init__(self, threads):
        self.gates = [thread.finished for thread in threads]

    @property
    def free(self):
        return all(gate.free for gate in self.gates)


class Thread:
    """Be one logical thread."""

    __slots__ = (
        "daemon", "deadline", "error", "expired", "finished", "greenlet", "hash", "held", "name",
        "net", "number", "parked", "polled", "seen_switches", "spins", "starved", "waits", "where",
    )  # fmt: skip

    def __init__(self, number, name, daemon):
        self.number = number
        self.name = name
        self.daemon = daemon
        self.greenlet = None
        self.waits = None  # what must be .free before it can go on
        self.deadline = None
        self.net = False
        self.expired = False
        self.finished = _End()
        self.parked = False
        self.spins = 0
        self.starved = 0
        self.polled = 0.0
        self.seen_switches = -1
        self.held = []
        self.hash = number + 1
        self.where = "start"
        self.error = None


class Cell:
    """Keep who wrote and read one shared thing last, for fingerprints."""

    __slots__ = ("r", "serial", "w")

    def __init__(self):
        self.w = 0
        self.r = 0
        self.serial = next_serial()


class Scheduler:
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
        self.strategy = strategy
        # Who has to know every step, to find those whose order makes a difference.
        self.reduction = strategy if strategy.reduces else None
        self.option_ids = None
        self.trace = [] if trace else None
        self.track = track
        self.step_limit = step_limit
        self.steps = 0
        self.choices = []
        self.widths = []
        self.threads = []
        self.current = None
        self.hub = None
        self.failure = None
        self.pruned = False
        self.broken = None
        self.dead = False
        self.quiet = False  # no choices: the current thread goes on, the device is done
        self.clock = Cell()
        self.seconds = 1000.0
        self.net_expiries = 0
        self.fruitless = 0
        self.switches = 0
        self.environment = []  # objects with steps() -> list of (label, function)
        self.names = {}  # id of a lock -> name, for people
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
        global ACTIVE  # noqa: PLW0603 - there is one running scheduler
        if ACTIVE is not None:
            message = "a scheduler is running already"
            raise RuntimeError(message)
        ACTIVE = self
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
            ACTIVE = None
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
        me.waits = _All(threads)
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
        """Be a switch point of the current thread; returns when it may go on."""
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
            # Whoever yielded waits for the others, and there are none: let them all go.
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
        if first.net and waiting and not self.quiet:
            self.net_expiries += 1
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

    # Failures

    def fail(self, kind, message):
        """Fail the run from a logical thread; does not return."""
        self._set_failure(kind, message)
        if self.dead:
            raise GreenletExit
        if getcurrent() is not self.hub:
            self.hub.switch()
        raise self.failure

    def report(self, kind, message):
        """Fail the run at the next switch point: for code whose caller must go on."""
        self._set_failure(kind, message)

    def _set_failure(self, kind, message):
        if self.failure is None and not self.dead:
            self.failure = ScheduleError(kind, message, self.choices, self.trace)

    def stacks(self):
        """Describe where every living thread stands and what it holds."""
        parts = []
        for thread in self.threads:
            if thread.where == "end":
                continue
            held = ", ".join(self.name_of(lock) for lock in thread.held) or "no lock"
            parts.append(f"-- {thread.name}: {thread.where}; holds {held}")
            frame = thread.greenlet.gr_frame if thread is not self.current else sys._getframe(1)
            lines = traceback.format_stack(frame) if frame is not None else []
            parts.extend(
                line.rstrip() for line in lines[-14:] if "schedlab/scheduler.py" not in line
            )
        return "\n".join(parts)

    def name_of(self, lock):
        """Return how people call a lock."""
        return self.names.get(id(lock)) or f"lock {id(lock) & 0xFFFF:x}"

    def holds(self, lock):
        """Return whether the current thread holds `lock`."""
        return lock in self.current.held

    def log(self, text, who=None):
        """Add a line to the trace, with the place in the core that it comes from."""
        frame = sys._getframe(1)
        place = ""
        while frame is not None:
            name = frame.f_code.co_filename
            if "schedlab" not in name and "greenlet" not in name:
                place = f"{name.rsplit('/', 1)[-1]}:{frame.f_lineno}"
                break
            frame = frame.f_back
        name = who or self.current.name
        self.trace.append(f"{len(self.choices):4d} {name:<10} {text}  [{place}]")

    # What happened before what (fingerprints)

    def note_write(self, cell):
        """Say that the current thread changes what `cell` stands for."""
        if self.reduction is not None:
            self.reduction.touch(cell.serial, changes=True)
        elif self.track:
            me = self.current
            me.hash = cell.w = hash((me.hash, cell.w, cell.r, 3))
            cell.r = 0

    def note_read(self, cell):
        """Say that the current thread looks at what `cell` stands for."""
        if self.reduction is not None:
            self.reduction.touch(cell.serial, changes=False)
        elif self.track:
            me = self.current
            me.hash = hash((me.hash, cell.w, 1))
            cell.r = (cell.r + me.hash) & 0xFFFFFFFFFFFFFFFF

    def fingerprint(self, *, with_current):
        """Return a number that is equal for equivalent histories."""
        parts = [thread.hash for thread in self.threads]
        parts.extend(
            (thread.number * 8 + thread.spins) * 8 + thread.starved
            for thread in self.threads
            if thread.parked or thread.starved
        )
        parts.append(self.clock.w)
        for source in self.environment:
            source.fingerprint(parts)
        if with_current:
            parts.append(-self.current.number)
        return hash(tuple(parts))


_leaked = []
_bells = weakref.WeakValueDictionary()
_bell_numbers = itertools.count(1)


# The names of hal/_sync.py


class Lock:
    """Be a lock that is not re-entrant, as `threading.Lock`."""

    __slots__ = ("__weakref__", "free", "owner", "r", "serial", "w")

    def __init__(self):
        self.free = True
        self.owner = None
        self.r = 0
        self.w = 0
        self.serial = next_serial()

    def acquire(self, blocking=True, timeout=-1):  # noqa: FBT002 - the shape of threading.Lock
        s = ACTIVE
        if s is None:
            if not self.free:
                message = "a lock is held and no scheduler runs"
                raise RuntimeError(message)
            self.free = False
            return True
        if s.dead:
            raise GreenletExit
        if s.finalising:
            s.report("I10", f"a finaliser takes {s.name_of(self)}\n{_stack()}")
        me = s.current
        if self.owner is me and blocking and timeout < 0 and self is s.timeline_lock:
            s.fail("deadlock", f"{me.name} takes the timeline lock twice\n{s.stacks()}")
        me.where = f"acquire {s.name_of(self)}"
        if not blocking or timeout == 0:
            s.switch()
            self.note(s)
            if not self.free:
                return False
        else:
            me.waits = self
            if timeout > 0:
                me.deadline = s.seconds + timeout
                me.net = NET_RANGE[0] <= timeout <= NET_RANGE[1]
            s.switch()
            me.waits = None
            me.deadline = None
            self.note(s)
            if me.expired:
                me.expired = False
                return False
        self.free = False
        self.owner = me
        me.held.append(self)
        if s.trace is not None:
            s.log(f"takes {s.name_of(self)}")
        if self is s.timeline_lock and s.on_acquired is not None:
            s.on_acquired()
        return True

    def release(self):
        s = ACTIVE
        if s is not None and s.dead:
            return
        if self.free:
            message = "release unlocked lock"
            raise RuntimeError(message)
        self.free = True
        owner = self.owner
        self.owner = None
        if s is None:
            return
        if owner is not None and self in owner.held:
            owner.held.remove(self)
        self.note(s)
        if s.trace is not None:
            s.log(f"releases {s.name_of(self)}")
        if self is s.timeline_lock and s.on_released is not None:
            s.on_released()
        if s.release_points:
            s.current.where = "released"
            s.switch()

    def note(self, s):
        # The order of two holds of the timeline lock that touch nothing in common
        # makes no difference: what they touch is noted by itself.
        if self is not s.timeline_lock or s.order_locks:
            s.note_write(self)

    def locked(self):
        s = ACTIVE
        if s is not None:
            s.note_read(self)
        return not self.free

    def __enter__(self):
        return self.acquire()

    def __exit__(self, *_):
        self.release()


class Gate:
    """Be a gate that opens once: a lock that its opener releases."""

    __slots__ = ("lock",)

    def __init__(self):
        self.lock = Lock()
        self.lock.free = False

    def open(self):
        if self.lock.locked():
            self.lock.release()

    def spin(self):
        yield_thread()
        return self.lock.locked() is False

    def wait(self, seconds):
        return self.lock.acquire(timeout=seconds)


class Doorbell:
    """Be a doorbell; the fake device rings it by `argument`."""

    __slots__ = ("__weakref__", "argument", "free", "function", "r", "serial", "w")

    def __init__(self):
        self.free = False
        self.function = 0xD00B
        self.argument = next(_bell_numbers)
        self.r = 0
        self.w = 0
        self.serial = next_serial()
        _bells[self.argument] = self

    def ring(self):
        s = ACTIVE
        if s is None:
            self.free = True
            return
        if s.dead:
            return
        if not s.finalising:
            s.point("ring")
        self.free = True
        s.note_write(self)
        if s.trace is not None:
            s.log("rings a doorbell")

    def ring_by_driver(self, s):
        """Be rung by a driver's thread."""
        self.free = True
        s.note_write(self)

    def wait(self, timeout):
        s = ACTIVE
        if s is None:
            message = "a doorbell waits and no scheduler runs"
            raise RuntimeError(message)
        if s.dead:
            raise GreenletExit
        if s.finalising:
            s.report("I10", f"a finaliser waits\n{_stack()}")
        me = s.current
        if me.held:
            names = ", ".join(s.name_of(lock) for lock in me.held if lock is s.timeline_lock)
            if names:
                s.fail("I5", f"{me.name} sleeps at a doorbell and holds {names}")
        me.where = f"doorbell {timeout:g}"
        me.waits = self
        me.deadline = s.seconds + timeout
        me.net = NET_RANGE[0] <= timeout <= NET_RANGE[1]
        s.switch()
        me.waits = None
        me.deadline = None
        s.note_write(self)
        if me.expired:
            me.expired = False
            if not self.free:
                return False
        self.free = False
        if s.trace is not None:
            s.log("hears the doorbell")
        return True


def doorbell_of(argument):
    """Return the doorbell that a native device was given."""
    return _bells[argument]


def get_ident():
    """Return the number of the logical thread."""
    s = ACTIVE
    return 1 if s is None else 1000 + s.current.number


def monotonic():
    """Return the virtual clock's seconds."""
    s = ACTIVE
    if s is None:
        return 1000.0
    s.note_read(s.clock)
    # What it has polled passes for the thread itself: a clock that all polls advance
    # would put them all in order. Sleeps that expire advance the clock for all.
    return s.seconds + s.current.polled


def start_thread(name, target):
    """Start a daemon thread."""
    s = ACTIVE
    if s is None:
        message = "a thread starts and no scheduler runs"
        raise RuntimeError(message)
    if s.dead:
        raise GreenletExit
    if s.finalising:
        s.report("I10", f"a finaliser starts a thread\n{_stack()}")
    thread = s._create(name, target, daemon=True)
    if s.trace is not None:
        s.log(f"starts {thread.name}")
    s.point("start_thread")


def yield_thread():
    """Let the others run first."""
    s = ACTIVE
    if s is None:
        return
    if s.dead:
        raise GreenletExit
    me = s.current
    me.polled += YIELD_SECONDS
    if s.switches == me.seen_switches:
        me.spins += 1
    else:
        me.spins = 0
    me.seen_switches = s.switches
    me.where = "yield"
    me.parked = True
    s.switch()
    me.parked = False
    me.where = "running"


def nap(seconds):
    """Sleep as the core does: at a lock that nobody lets go."""
    gate = Lock()
    gate.acquire()
    gate.acquire(timeout=seconds)


def _stack():
    return "".join(
        line for line in traceback.format_stack()[-12:] if "schedlab/scheduler.py" not in line
    )
