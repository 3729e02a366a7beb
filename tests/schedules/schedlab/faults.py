"""Cases in which something goes wrong: refused calls, lost devices, Ctrl-C, hangs, finalisers.

Where the model cannot tell the outcome, what must hold in any is checked: every
operation ends once, what is done has run, what is not done has failed its
signals, nobody hangs, other contexts are spared, and a close leaves nothing.
"""

from __future__ import annotations

import functools
import random

from schedlab.cases import random_program
from schedlab.loader import load_core
from schedlab.model import Op, Program, QueueSpec
from schedlab.world import ProgramCase, World

KINDS = ("refuse", "lose", "fault", "interrupt")


class FaultCase(ProgramCase):
    """Run a random program and let the fault of its seed happen in it."""

    def __init__(self, seed, **settings):
        program = random_program(seed)
        super().__init__(program, nets=True, **settings)
        self.name = f"fault/{seed}"
        r = random.Random(f"fault {seed}")
        self.kind = r.choice(KINDS)
        self.number = r.randrange(1, 16)
        fills = [op for op in program.operations().values() if op.target and op.source is None]
        self.victim = r.choice(fills) if fills else None
        if self.kind == "fault" and self.victim is None:
            self.kind = "lose"

    def run(self, scheduler):
        core = load_core(self.patches, track=self.track, lines=self.lines)
        world = World(core, scheduler)
        program = self.program
        if self.kind == "fault":
            world.labels[self.victim.value] = ("faults", self.victim.name)
        world.build(program)
        world.monitored = True
        scheduler.on_released = world.check_invariants
        self.actions(world, program.before)
        world.settle()
        self.plan(world, core, scheduler)
        world.start()
        threads = [
            scheduler.spawn(functools.partial(self.actions, world, actions), f"t{number}")
            for number, actions in enumerate(program.threads, 1)
        ]
        scheduler.join(*threads)
        world.stop()
        for vendor in world.vendors.values():
            vendor.faults.clear()
            vendor.lost_at = None
        world.settle()
        for submission in world.submissions.values():
            submission.state  # noqa: B018 - it asks the device
        world.settle()
        world.check_clean()
        world.close()
        self.check(world, scheduler)
        scheduler.on_released = None

    def plan(self, world, core, scheduler):
        """Have the fault happen at its call, counted from here."""
        if self.kind == "fault":
            return
        vendor = world.vendors[sorted(world.vendors)[self.number % len(world.vendors)]]
        vendor.calls = 0
        if self.kind == "lose":
            vendor.lost_at = self.number
            return

        def make(vendor, primitive):
            if self.kind == "interrupt":
                return KeyboardInterrupt() if not scheduler.current.daemon else None
            if primitive in {"query_event", "free", "destroy_event", "destroy_stream",
                             "synchronize_stream"}:  # fmt: skip
                return None  # these lose the device, if anything
            return core.errors.OperationError("refused by the fault")

        vendor.faults.append((None, self.number, make))

    def actions(self, world, actions):
        """Do a thread's actions; a submission that came to nothing fails what it had promised."""
        errors = world.core.errors
        for action in actions:
            if action[0] == "wait_op" and action[1] not in world.submissions:
                continue
            try:
                result = world.act(action)
            except KeyboardInterrupt:
                result = "interrupted"
            except KeyError:
                result = "its operand was never made"
            if action[0] == "submit" and action[1].name not in world.submissions:
                for s, _ in action[1].signal:
                    world.semaphores[s].fail(errors.OperationError(result))

    def check(self, world, scheduler):
        """Fail unless failures reached exactly what they had to."""
        core = world.core
        done = core._submission.DONE
        lost = {d for d in world.devices.values() if d._context.lost is not None}
        for name, submission in world.submissions.items():
            op = self.program.operations()[name]
            if submission._state == done:
                continue
            for s, _ in op.signal:
                if world.semaphores[s]._failure is None:
                    scheduler.fail("S5", f"{name} is not done and {s} has not failed")
            device = world.queues[op.queue]._device
            if device in lost or self.kind in {"refuse", "interrupt"} or op.refused:
                continue
            label = world.label(submission._error)
            causes = [
                (world.submissions[w]._state > done) if isinstance(w, str) and w in world.submissions
                else isinstance(w, str) or world.semaphores[w[0]]._failure is not None
                for w in op.wait
            ]  # fmt: skip
            if label == "lost" and not any(causes):
                scheduler.fail("S5", f"{name} failed with a device that it has nothing to do with")


class SmallCase:
    """Be a case written by hand: `body(world, scheduler)` is the first thread."""

    def __init__(self, name, program, body, *, patches=(), track=True, nets=True):
        self.name = name
        self.program = program
        self.body = body
        self.patches = tuple(patches)
        self.track = track
        self.nets = nets

    def run(self, scheduler):
        core = load_core(self.patches, track=self.track)
        if self.track:
            core.set_races(())
        world = World(core, scheduler)
        world.build(self.program)
        world.monitored = True
        self.body(world, scheduler)
        if not self.nets and scheduler.net_expiries:
            scheduler.fail("lost wake-up", "progress came only from a safety net")
        world.settle()
        world.check_clean()
        world.close()
        scheduler.on_released = None


def _program(*ops, queues=None, semaphores=("s", "t")):
    before = tuple(("submit", op) for op in ops)
    return Program(
        "by hand", (), before, queues=queues or {"q": QueueSpec()}, semaphores=semaphores,
        buffers=("x", "y"),
    )  # fmt: skip


def _expect(scheduler, seen, wanted):
    if seen != wanted:
        scheduler.fail("result", f"{seen!r} and not {wanted!r}")


def _threads(world, scheduler, *bodies):
    world.start()
    scheduler.join(*[scheduler.spawn(body, f"t{i}") for i, body in enumerate(bodies, 1)])
    world.stop()


def hang_and_time_out(**settings):
    """A wait for work that hangs times out; another's for other work does not."""
    a = Op("a", "q", (), (("s", 1),), target="x", value=1)
    b = Op("b", "r", (), (("t", 1),), target="y", value=2)
    program = _program(a, b, queues={"q": QueueSpec(), "r": QueueSpec(domain=1)})

    def body(world, scheduler):
        world.labels[1] = ("hangs", "a")
        errors = world.core.errors
        seen = {}

        def waits():
            try:
                world.semaphores["s"].wait(1, timeout=0.3)
                seen["s"] = "ok"
            except errors.DeadlineExceededError:
                seen["s"] = "timeout"

        def others():
            world.act(("wait", "t", 1))
            seen["t"] = "ok"

        world.act(("submit", a))
        world.act(("submit", b))
        _threads(world, scheduler, waits, others)
        _expect(scheduler, seen, {"s": "timeout", "t": "ok"})
        left = next(iter(world.devices.values())).close(0.2)
        if not left:
            scheduler.fail("Q6", "a close that abandons work says so")

    return SmallCase("hang and time out", program, body, **settings)


def close_abandons(**settings):
    """A close that times out loses the device, and only that."""
    a = Op("a", "q", (), (("s", 1),), target="x", value=1)
    b = Op("b", "r", (("s", 1),), (("t", 1),), target="y", value=2)
    program = _program(a, b, queues={"q": QueueSpec(), "r": QueueSpec(domain=1)})

    def body(world, scheduler):
        world.labels[1] = ("hangs", "a")
        results = {}

        def closes():
            results["left"] = world.devices[0, 0].close(0.3)

        def waits():
            results["wait"] = world.act(("wait", "t", 1))

        world.act(("submit", a))
        world.act(("submit", b))
        _threads(world, scheduler, closes, waits)
        _expect(scheduler, results["wait"], "lost")
        _expect(scheduler, len(results["left"]), 1)
        _expect(scheduler, world.devices[1, 0].lost, False)

    return SmallCase("close abandons", program, body, **settings)


def finaliser_in_a_critical_section(**settings):
    """The collector drops a buffer while the timeline lock is held, at any hold of it."""
    a = Op("a", "q", (), (("s", 1),), target="x", value=1)
    program = _program(a)

    def body(world, scheduler):
        spare = [world.devices[0, 0].allocate(16)]
        address = spare[0].address
        world.settle()

        def collect():
            if spare and not scheduler.quiet and scheduler.choose(2, "whether the collector runs"):
                scheduler.finalising = True
                try:
                    spare.clear()
                finally:
                    scheduler.finalising = False

        scheduler.on_acquired = collect
        _threads(
            world, scheduler, lambda: world.act(("submit", a)), lambda: world.act(("wait", "s", 1))
        )
        scheduler.on_acquired = None
        collected = not spare
        world.settle()
        if collected and address in world.vendors[0].allocations:
            scheduler.fail("forgotten", "a buffer was finalised and nobody frees its memory")

    return SmallCase("finaliser in a critical section", program, body, nets=False, **settings)


def lost_device(**settings):
    """A fault loses one device: its work fails, and dependents; the other device goes on."""
    a = Op("a", "q", (), (("s", 1),), target="x", value=1)
    b = Op("b", "r", (), (("t", 1),), target="y", value=2)
    program = _program(a, b, queues={"q": QueueSpec(), "r": QueueSpec(device=1)})

    def body(world, scheduler):
        world.labels[1] = ("faults", "a")
        results = {}

        def first():
            world.act(("submit", a))
            results["s"] = world.act(("wait", "s", 1))

        def second():
            world.act(("submit", b))
            results["t"] = world.act(("wait", "t", 1))

        _threads(world, scheduler, first, second)
        _expect(scheduler, results, {"s": "lost", "t": "ok"})

    return SmallCase("lost device", program, body, **settings)


BY_HAND = {
    "hang and time out": hang_and_time_out,
    "close abandons": close_abandons,
    "finaliser in a critical section": finaliser_in_a_critical_section,
    "lost device": lost_device,
}
