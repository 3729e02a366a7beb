"""What is kept of a run: choices, its failure, a readable trace, and fingerprints."""

import sys
import traceback

from greenlet import GreenletExit, getcurrent

from schedlab.choices import ScheduleError
from schedlab.threads import Cell

_OWN = ("schedlab/scheduler.py", "schedlab/chronicle.py", "schedlab/sync.py")


def is_own(line):
    """Return whether a line of a stack is of the scheduler's own code."""
    return any(name in line for name in _OWN)


class Chronicle:
    """Keep what happens in one run: a part of `Scheduler`."""

    def __init__(self, reduction, *, trace, track):
        # Who has to know every step, to find those whose order makes a difference.
        self.reduction = reduction
        self.trace = [] if trace else None
        self.track = track
        self.choices = []
        self.widths = []
        self.threads = []
        self.current = None
        self.hub = None
        self.failure = None
        self.dead = False
        self.clock = Cell()
        self.environment = []  # objects with steps() -> list of (label, function)
        self.names = {}  # id of a lock -> name, for people

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
            frame = self.frame_of(thread)
            lines = traceback.format_stack(frame) if frame is not None else []
            parts.extend(line.rstrip() for line in lines[-14:] if not is_own(line))
        return "\n".join(parts)

    def frame_of(self, thread):
        """Return where a thread stands; None if it has not begun."""
        return sys._getframe(1) if getcurrent() is thread.greenlet else thread.greenlet.gr_frame

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
        """State that the current thread changes what `cell` stands for."""
        if self.reduction is not None:
            self.reduction.touch(cell.serial, changes=True)
        elif self.track:
            me = self.current
            me.hash = cell.w = hash((me.hash, cell.w, cell.r, 3))
            cell.r = 0

    def note_read(self, cell):
        """State that the current thread looks at what `cell` stands for."""
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
