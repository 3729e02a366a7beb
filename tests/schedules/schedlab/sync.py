"""The names of ``hal/_base/sync.py``; they act on the scheduler that is running (`ACTIVE`)."""

import itertools
import math
import traceback
import weakref

from greenlet import GreenletExit

from schedlab.chronicle import is_own
from schedlab.slices import is_slice
from schedlab.threads import next_serial

ACTIVE = None
"""The scheduler whose threads are running, or None."""

YIELD_SECONDS = 30e-6
"""What a yield takes on the virtual clock."""

_bells = weakref.WeakValueDictionary()
_bell_numbers = itertools.count(1)


class Lock:
    """A lock that is not re-entrant, as `threading.Lock`."""

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
                me.net = is_slice(timeout)
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


class OwnedLock(Lock):
    """A lock that knows its owner, as `threading.RLock` does."""

    __slots__ = ()

    def _is_owned(self):
        s = ACTIVE
        return s is not None and self.owner is s.current


LeafLock = OwnedLock


class Mark:
    """A lock that only one thread takes: nobody waits for it, so nothing is switched at it."""

    __slots__ = ("__weakref__", "taken")

    def __init__(self):
        self.taken = False

    def __enter__(self):
        self.taken = True

    def __exit__(self, *_):
        self.taken = False

    def locked(self):
        return self.taken


class Doorbell:
    """A doorbell; the fake device rings it by `argument`."""

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
        """Ring, as a driver's thread does."""
        self.free = True
        s.note_write(self)

    def clear(self):
        was_rung, self.free = self.free, False
        s = ACTIVE
        if s is not None:
            s.note_write(self)
        return was_rung

    def spin(self):
        yield_thread()

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
        me.deadline = None if timeout == math.inf else s.seconds + timeout
        me.net = is_slice(timeout)
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
    return "".join(line for line in traceback.format_stack()[-12:] if not is_own(line))
