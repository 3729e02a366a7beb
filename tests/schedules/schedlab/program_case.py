"""Run a program on a private copy of the core over fake devices, and check everything.

Checked in every run: the outcome is one that the model allows; after every
hold of the timeline lock nothing is ahead of what the device has done (I3, S7);
nobody holds two batons; nothing that could go on was forgotten once everything
is quiet; no wake-up came only from a safety net; nothing is left registered;
after a close no native handle is alive (I7). The fake device checks its own rules.
"""

import functools

from schedlab.loader import load_core
from schedlab.model import Model, State, allowed_outcomes
from schedlab.world import World


class ProgramCase:
    """The case of a program, run on a copy of the core with `patches`."""

    def __init__(self, program, *, patches=(), track=True, lines=False, races=None):
        self.program = program
        self.name = program.name
        self.patches = tuple(patches)
        self.track = track
        self.lines = lines
        self.races = races

    def load(self):
        """Return the copy of the core; raises `PatchError`."""
        return load_core(self.patches, track=self.track, lines=self.lines)

    def run(self, scheduler):
        core = self.load()
        if self.track:
            core.set_races(self.races or ())
        world = World(core, scheduler)
        program = self.program
        world.build(program)
        results = [[] for _ in range(len(program.threads) + 1)]
        ended = [False] * len(results)

        def thread(number, actions):
            for action in actions:
                results[number].append(world.act(action))
            ended[number] = True

        world.monitored = True
        scheduler.on_released = world.check_invariants
        thread(0, program.before)
        world.settle()
        world.start()
        threads = [
            scheduler.spawn(functools.partial(thread, number, actions), f"t{number}")
            for number, actions in enumerate(program.threads, 1)
        ]
        scheduler.join(*threads)
        world.stop()
        check_saved(scheduler)
        world.settle()
        check_nothing_forgotten(world)
        observed = outcome(world, tuple(ended), results)
        self.compare(scheduler, world, observed)
        world.check_clean()
        world.close()
        scheduler.on_released = None

    def compare(self, scheduler, world, observed):
        *rest, calls = observed
        for wanted in allowed_outcomes(self.program):
            if list(wanted[:5]) != rest:
                continue
            expected = dict(wanted[5])
            if all(self.agrees(expected[name], what, world, name) for name, what in calls):
                return
        scheduler.fail(
            "model",
            "no order of atomic steps has this outcome:\n"
            + "\n".join(str(part) for part in observed)
            + "\nallowed are for instance:\n"
            + "\n".join(str(each) for each in sorted(allowed_outcomes(self.program), key=str)[:6]),
        )

    @staticmethod
    def agrees(expected, what, world, name):
        if expected in ("waiting", "taken back"):
            return not isinstance(what, str)
        return what == expected


def check_saved(scheduler):
    """Fail if something has ended only since a bounded sleep was over."""
    if scheduler.saved:
        scheduler.fail("lost wake-up", "\n".join(scheduler.saved))


def check_nothing_forgotten(world):
    """Fail if an operation, a callback or a waiter could go on and nobody will see to it."""
    program = world.program
    model = Model(program)
    state = State()
    names = {0: "pending", 1: "pending", 2: "issued"}
    raw = {name: sub._state for name, sub in world.submissions.items()}
    state.status = {
        name: names.get(raw[name], "ended") if name in raw else "absent"
        for name in program.operations()
    }
    done = world.core.operation.DONE
    for name, number in raw.items():
        if number == done:
            state.status[name] = "done"
    state.values = {name: s._value for name, s in world.semaphores.items()}
    state.values.update({name: int(number == done) for name, number in raw.items()})
    state.failed = {
        name: world.label(s._failure)
        for name, s in world.semaphores.items()
        if s._failure is not None
    }
    for name, number in raw.items():
        if number > done:
            state.failed[name] = world.label(world.submissions[name]._error)
    state.order = {}
    for queue_name, queue in world.queues.items():
        mine = [n for n in raw if program.operations()[n].queue == queue_name]
        waiting = [
            next(n for n in mine if world.submissions[n] is operation)
            for operation in queue._backlog
            if operation._state < 2
        ]
        rest = [n for n in mine if n not in waiting]
        state.order[queue_name] = (*rest, *waiting)
    state.reserved = dict.fromkeys(state.values, 0)
    state.closed, state.must, state.written, state.promised = set(), set(), set(), {}
    state.deps = dict.fromkeys(state.status, ())
    state.buffers, state.callbacks, state.counters, state.results = {}, {}, [], []
    for name, status in state.status.items():
        if status == "pending" and model.issue(state, name)[1] == "must":
            world.scheduler.fail("forgotten", f"operation {name} can be issued and nobody does")
    for name, op in program.operations().items():
        if state.status[name] == "issued" and op.defer and model.retire(state, name):
            world.scheduler.fail("forgotten", f"what {name} deferred its end to has come")
    for name, semaphore in world.semaphores.items():
        waiters = semaphore._reached
        if waiters is None or semaphore._failure is not None:
            continue
        points = semaphore._points
        if points and waiters.any_up_to(points[-1][0]):
            world.scheduler.fail(
                "forgotten", f"somebody waits for {name} to be reached and nobody retires for it"
            )


def outcome(world, ended, results):
    """Return what can be seen at the end, as the model writes it."""
    ops = world.program.operations()
    # To ask is to retire. Repeated, as the end on one queue can release a beginning on another.
    for _ in range(len(ops) + 1):
        for submission in world.submissions.values():
            submission.state  # noqa: B018 - it asks the device
        world.settle()
    statuses = tuple(
        sorted(
            (name, world.status(world.submissions[name]) if name in world.submissions else "absent")
            for name in ops
        )
    )
    semaphores = []
    for name, semaphore in world.semaphores.items():
        try:
            semaphores.append((name, semaphore.query()))
        except world.core.errors.HalError as error:
            semaphores.append((name, world.label(error)))
    buffers = []
    for name in world.program.buffers:
        value = 0
        if name in world.addresses and name not in world.buffers:
            value = "dropped"
        elif name in world.buffers:
            buffer = world.buffers[name]
            vendor = buffer.device._native.vendor
            data = vendor.peek(world.addresses[name], 8)
            value = data[0] if len(set(data)) == 1 else data.hex()
        buffers.append((name, value))
    calls = []
    for name, what in world.called.items():
        if name not in world.callbacks:
            continue
        cancelled = world.callbacks[name]
        if len(what) > 1:
            world.scheduler.fail("S8", f"callback {name} was called {len(what)} times: {what}")
        calls.append((name, what[0] if what else cancelled))
    return (
        ended,
        tuple(tuple(r) for r in results),
        statuses,
        tuple(semaphores),
        tuple(sorted(buffers)),
        calls,
    )
