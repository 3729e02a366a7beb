"""Explore one schedule of each class of equivalent ones: dynamic partial-order reduction.

Two steps of different threads depend on each other if they touch the same
thing (a lock, a doorbell, an attribute, a stream ...) and one of them changes
it. Schedules that differ only in the order of independent steps end alike. The
explorer runs one, finds the dependent steps that no third one keeps in order,
and comes back to try the other order (Flanagan and Godefroid 2005); sleep sets
(Godefroid 1996) keep it from trying the same twice.
"""

from schedlab.choices import NondeterminismError, Strategy, encode


class Node:
    """One decision: what was possible, what was tried, what is to be tried."""

    __slots__ = ("access", "blocked", "choice", "count", "done", "sleep", "tids", "todo")

    def __init__(self, count, tids, blocked, sleep):
        self.count = count
        self.tids = tids  # who could run, by number; None for an answer of the device
        self.blocked = blocked  # who could not, and the number of the thing it waits for
        self.sleep = sleep  # who need not run from here: number -> what it would touch
        self.choice = 0
        self.todo = set()
        self.done = set()
        self.access = {}  # choice -> what the step touches


class Step:
    """The deeds of a thread between two switch points."""

    __slots__ = ("access", "clock", "node", "number", "position", "start", "tid")

    def __init__(self, tid, number, node, start):
        self.tid = tid
        self.number = number  # among its thread's
        self.node = node  # index of the decision for it, or -1
        self.start = start  # the thread's clock before it
        self.access = {}  # number of a thing -> whether it was changed
        self.clock = None
        self.position = -1


class Reduction(Strategy):
    """The strategy of an exhaustive exploration; keeps its state from run to run."""

    reduces = True

    def __init__(self):
        self.nodes = []
        self.begin()

    def begin(self):
        """Begin a run."""
        self.prefix = len(self.nodes)
        self.live = self.prefix == 0  # whether `sleep` is right: not before the prefix is over
        self.sleep = {}
        self.steps = []
        self.clocks = {}
        self.counts = {}
        self.touched = {}  # number of a thing -> list of (step, changed)
        self.last = {}  # number of a thing -> [clock of the last change, clock of reads since]
        self.born = []
        self.step = None
        self.node = -1
        self.recording = True

    def advance(self, _scheduler):
        """Choose what to try next, from the deepest decision up; return whether there is any."""
        while self.nodes:
            node = self.nodes[-1]
            node.done.add(node.choice)
            for index in sorted(node.todo - node.done):
                if node.tids is None or node.tids[index] not in node.sleep:
                    node.choice = index
                    return True
            self.nodes.pop()
        return False

    # What the scheduler asks

    def pick(self, count, kind, scheduler):
        position = len(scheduler.choices)
        tids = None if kind == "data" else scheduler.option_ids
        if position < self.prefix:
            node = self.nodes[position]
            if node.count != count or node.tids != tids:
                message = (
                    f"choice {position} was between {node.tids or node.count} and is between "
                    f"{tids or count} now, after {encode(scheduler.choices)!r}"
                )
                raise NondeterminismError(message)
            if position == self.prefix - 1:
                self.live = True
                self.sleep = dict(node.sleep)
                if tids is not None:
                    for index in node.done:
                        self.sleep[tids[index]] = node.access.get(index, {})
                    self.sleep.pop(tids[node.choice], None)
        else:
            node = Node(count, tids, None, dict(self.sleep))
            if tids is None:
                node.todo = set(range(count))
            else:
                node.blocked = scheduler.blocked_ids()
                free = [index for index, tid in enumerate(tids) if tid not in self.sleep]
                if not free:
                    return None
                node.choice = free[0]
                node.todo = {free[0]}
            self.nodes.append(node)
        if tids is not None:
            self.node = position
        return node.choice

    def forced(self, tid):
        """State that a thread runs as the only one; return False if it need not."""
        return not (self.live and tid in self.sleep)

    # Steps

    def start(self, tid):
        """Begin a step of a thread, which the decision before it was for."""
        number = self.counts[tid] = self.counts.get(tid, 0) + 1
        self.step = Step(tid, number, self.node, self.clocks.get(tid, {}))
        self.node = -1

    def touch(self, serial, *, changes):
        """State that the step touches a thing."""
        if self.step is None:
            return
        access = self.step.access
        if changes or serial not in access:
            access[serial] = changes

    def create(self, tid):
        """State that the step makes a thread."""
        self.born.append(tid)

    def end(self):
        """End the step: find what it races with, and note what it touched."""
        step = self.step
        if step is None:
            return
        self.step = None
        clock = dict(step.start)
        clock[step.tid] = step.number
        step.position = len(self.steps)
        for serial, changed in step.access.items():
            last = self.last.get(serial)
            if last is None:
                last = self.last[serial] = [{}, {}]
            _join(clock, last[0])
            if changed:
                _join(clock, last[1])
        step.clock = clock
        if self.recording:
            for serial, changed in step.access.items():
                self.find_races(step, serial, changed)
        for serial, changed in step.access.items():
            last = self.last[serial]
            if changed:
                last[0], last[1] = clock, {}
            else:
                last[1] = dict(last[1])
                _join(last[1], clock)
            self.touched.setdefault(serial, []).append((step, changed))
        self.clocks[step.tid] = clock
        for tid in self.born:
            self.clocks[tid] = clock
        self.born.clear()
        self.steps.append(step)
        if step.node >= 0:
            node = self.nodes[step.node]
            known = node.access.setdefault(node.choice, {})
            for serial, changed in step.access.items():
                known[serial] = known.get(serial, False) or changed
        if self.live and self.sleep:
            for tid in [t for t, access in self.sleep.items() if _depend(access, step.access)]:
                del self.sleep[tid]

    def find_races(self, step, serial, changed):
        """Come back to every step that touched a thing and could have come after this one."""
        tid = step.tid
        start = step.start
        for earlier, wrote in reversed(self.touched.get(serial, ())):
            if not (wrote or changed):
                continue
            if earlier.tid == tid or start.get(earlier.tid, 0) >= earlier.number:
                if wrote:
                    return  # all before it are before this one, too
                continue
            if earlier.node >= 0:  # else nobody else could run then
                self.reverse(earlier, step, serial)

    def reverse(self, earlier, step, serial):
        """Have a schedule explored in which `step` comes before `earlier`."""
        node = self.nodes[earlier.node]
        # What has happened since without `earlier`, and then the step; who can be first in that?
        between = []
        first = []
        known = set()
        for other in (*self.steps[earlier.position + 1 :], step):
            if other is not step and other.clock.get(earlier.tid, 0) >= earlier.number:
                continue
            if other.tid not in known:
                known.add(other.tid)
                clock = other.clock
                if not any(clock.get(each.tid, 0) >= each.number for each in between):
                    if other is step and node.blocked.get(step.tid) in {serial, -1}:
                        continue  # it waited for just this: it could not have come first
                    first.append(other.tid)
            between.append(other)
        if not first:
            return
        indices = [node.tids.index(tid) for tid in first if tid in node.tids]
        if not indices:
            node.todo.update(range(node.count))
        elif node.todo.isdisjoint(indices):
            node.todo.add(indices[-1])


def _join(clock, other):
    for tid, number in other.items():
        if clock.get(tid, 0) < number:
            clock[tid] = number


def _depend(one, other):
    if len(one) > len(other):
        one, other = other, one
    for serial, changed in one.items():
        wrote = other.get(serial)
        if wrote is not None and (wrote or changed):
            return True
    return False
