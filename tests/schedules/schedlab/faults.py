"""Cases in which something goes wrong: refused calls, lost devices, Ctrl-C, hangs, finalisers.

Where the model cannot tell the outcome, what must hold in any is checked: every
operation ends once, what is done has run, what is not done has failed its
signals, nobody hangs, other contexts are spared, and a close leaves nothing.
"""

import functools
import random
import weakref

import numpy as np

from schedlab.cases import random_program
from schedlab.program_case import ProgramCase, check_saved
from schedlab.programs import Op, QueueSpec
from schedlab.small import by_hand, expect, program_of, run_threads
from schedlab.world import World

KINDS = ("refuse", "lose", "fault", "interrupt", "hang")

SPARED = frozenset(
    {
        "destroy_event",
        "destroy_graph",
        "destroy_graph_instance",
        "destroy_stream",
        "free",
        "query_event",
        "synchronize_stream",
    }
)
"""Primitives that are not refused: these lose the device, if anything."""

CLOSE_SECONDS = 0.3
"""How long a device is closed on which work hangs."""


def fault_case(seed, **settings):
    """Return the case of a seed, or None if its program is no case."""
    return FaultCase(seed, **settings) if random_program(seed) is not None else None


class FaultCase(ProgramCase):
    """Run a random program and let the fault of its seed happen in it."""

    def __init__(self, seed, **settings):
        program = random_program(seed)
        if program is None:
            message = f"seed {seed} makes no program: it could wait for ever"
            raise LookupError(message)
        super().__init__(program, **settings)
        self.name = f"fault/{seed}"
        r = random.Random(f"fault {seed}")
        self.kind = r.choice(KINDS)
        self.number = r.randrange(1, 16)
        fills = [op for op in program.operations().values() if op.target and op.source is None]
        self.victim = r.choice(fills) if fills else None
        if self.kind in {"fault", "hang"} and self.victim is None:
            self.kind = "lose"

    def run(self, scheduler):
        core = self.load()
        world = World(core, scheduler)
        program = self.program
        if self.kind in {"fault", "hang"}:
            world.labels[self.victim.value] = (f"{self.kind}s", self.victim.name)
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
        if self.kind == "hang":
            threads.append(scheduler.spawn(functools.partial(self.close, world), "closer"))
        scheduler.join(*threads)
        world.stop()
        check_saved(scheduler)
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

    def close(self, world):
        """Close the device that hangs, and those that wait for it: only this ends the waits."""
        first = world.queues[self.victim.queue]._device
        world.close_device(first, CLOSE_SECONDS)
        for device in world.devices.values():
            if device is not first and device._native.vendor.hangs(device._native):
                world.close_device(device, CLOSE_SECONDS)

    def plan(self, world, core, scheduler):
        """Have the fault happen at its call, counted from here."""
        if self.kind in {"fault", "hang"}:
            return
        vendor = world.vendors[sorted(world.vendors)[self.number % len(world.vendors)]]
        vendor.calls = 0
        if self.kind == "lose":
            vendor.lost_at = self.number
            return

        def make(vendor, primitive):
            if self.kind == "interrupt":
                return KeyboardInterrupt() if not scheduler.current.daemon else None
            if primitive in SPARED:
                return None
            return core.errors.OperationError("refused by the fault")

        vendor.faults.append((None, self.number, make))

    def actions(self, world, actions):
        """Do a thread's actions; one that came to nothing fails what it had promised."""
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
            promised = ()
            if action[0] == "submit" and action[1].name not in world.submissions:
                promised = [s for s, _ in action[1].signal]
            elif action[0] == "signal" and result == "interrupted":
                promised = [action[1]]  # perhaps before it was signalled
            for s in promised:
                world.semaphores[s].fail(errors.OperationError(result))

    def check(self, world, scheduler):
        """Fail unless failures reached exactly what they had to."""
        core = world.core
        done = core.operation.DONE
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
            waits = (*op.wait, *op.defer)
            if label == "lost" and not any(self.has_failed(world, w) for w in waits):
                scheduler.fail("S5", f"{name} failed with a device that it has nothing to do with")

    @staticmethod
    def has_failed(world, wait):
        """Return whether what an operation waits for has failed, or never came to be."""
        if not isinstance(wait, str):
            return world.semaphores[wait[0]]._failure is not None
        submission = world.submissions.get(wait)
        return submission is None or submission._state > world.core.operation.DONE


A = Op("a", "q", (), (("s", 1),), target="x", value=1)
B = Op("b", "r", (), (("t", 1),), target="y", value=2)
BEHIND = Op("b", "r", (("s", 1),), (("t", 1),), target="y", value=2)
"""Waits for what `A` signals."""

TWO = {"q": QueueSpec(), "r": QueueSpec()}
DEVICES = {"q": QueueSpec(), "r": QueueSpec(device=1)}
DOMAINS = {"q": QueueSpec(), "r": QueueSpec(domain=1)}

FAULTS = {}
"""Factories of the cases by hand, by name."""


@by_hand(FAULTS, "hang and time out", program_of(A, B, queues=DOMAINS))
def hang_and_time_out(world, scheduler):
    """A wait for work that hangs times out; another's for other work does not."""
    world.labels[1] = ("hangs", "a")
    errors = world.core.errors
    seen = {}

    def waits():
        try:
            scheduler.limits.append(scheduler.seconds + CLOSE_SECONDS)
            world.semaphores["s"].wait(1, timeout=CLOSE_SECONDS)
            seen["s"] = "ok"
        except errors.DeadlineExceededError:
            seen["s"] = "timeout"

    def others():
        world.act(("all", (("t", 1),)))
        seen["t"] = "ok"

    world.act(("submit", A))
    world.act(("submit", B))
    run_threads(world, scheduler, waits, others)
    expect(scheduler, seen, {"s": "timeout", "t": "ok"})
    if not world.close_device(world.devices[0, 0], CLOSE_SECONDS):
        scheduler.fail("Q6", "a close that abandons work says so")


@by_hand(FAULTS, "close abandons", program_of(A, BEHIND, queues=DOMAINS))
def close_abandons(world, scheduler):
    """A close that times out loses the device, and only that."""
    world.labels[1] = ("hangs", "a")
    results = {}

    def closes():
        results["left"] = world.close_device(world.devices[0, 0], CLOSE_SECONDS)

    def waits():
        results["wait"] = world.act(("wait", "t", 1))

    world.act(("submit", A))
    world.act(("submit", BEHIND))
    run_threads(world, scheduler, closes, waits)
    expect(scheduler, results["wait"], "lost")
    expect(scheduler, len(results["left"]), 1)
    expect(scheduler, [each.lost for each in world.devices.values()], [True, False])


@by_hand(FAULTS, "abandoned read", program_of(A, features={"pageable_copies"}))
def abandoned_read(world, scheduler):
    """A close that gives up leaves the host array of a read alive: the device still writes there.

    So it does although everyone else has dropped the array and the buffer.
    """
    world.labels[1] = ("hangs", "a")

    def reads():
        array = np.zeros(8, np.uint8)
        world.vendors[0].guard(array.ctypes.data, array.nbytes, weakref.ref(array))
        label = None
        try:
            world.queues["q"].read(world.buffers.pop("x"), array).wait()
        except world.core.errors.HalError as error:
            label = world.label(error)
        if label not in {"lost", "cancelled", "closed"}:
            scheduler.fail("result", f"a read behind what hangs ended with {label}")

    world.act(("submit", A))
    run_threads(
        world, scheduler, reads, lambda: world.close_device(world.devices[0, 0], CLOSE_SECONDS)
    )


def _finalise(world, scheduler, *, cached):
    """The collector drops a buffer while the timeline lock is held, at any hold of it."""
    device = world.devices[0, 0]
    if not cached:
        device._heap.reaper.cache_limit = 0  # then the progress thread frees it
    spare = [device.allocate(16)]
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
    run_threads(
        world, scheduler, lambda: world.act(("submit", A)), lambda: world.act(("wait", "s", 1))
    )
    scheduler.on_acquired = None
    collected = not spare
    world.settle()
    if collected and not cached and address in world.vendors[0].allocations:
        scheduler.fail("forgotten", "a buffer was finalised and nobody frees its memory")
    if collected and cached and device.allocate(16).address != address:
        scheduler.fail("forgotten", "a buffer was finalised and nobody gets its memory")


for title, cached in (("finaliser in a critical section", False), ("finaliser and cache", True)):
    by_hand(FAULTS, title, program_of(A))(functools.partial(_finalise, cached=cached))


@by_hand(FAULTS, "lost device", program_of(A, B, queues=DEVICES))
def lost_device(world, scheduler):
    """A fault loses one device: its work fails, and dependents; the other device goes on."""
    world.labels[1] = ("faults", "a")
    results = {}

    def first():
        world.act(("submit", A))
        results["s"] = world.act(("wait", "s", 1))

    def second():
        world.act(("submit", B))
        results["t"] = world.act(("wait", "t", 1))

    run_threads(world, scheduler, first, second)
    expect(scheduler, results, {"s": "lost", "t": "ok"})


LAST = Op("c", "r", (("t", 1),), target="z", value=4)  # its wait takes no stream wait
BESIDE = Op("d", "r", target="y", value=3)
DEPENDENT = program_of(A, BEHIND, LAST, BESIDE, queues=DEVICES, buffers=("x", "y", "z"))


@by_hand(FAULTS, "lost dependency", DEPENDENT)
def lost_dependency(world, scheduler):
    """Work that waits on another device for work of a lost one fails; that device goes on."""
    world.labels[1] = ("faults", "a")
    results = {}

    def first():
        world.act(("submit", BEHIND))
        world.act(("submit", LAST))
        results["c"] = world.act(("wait_op", "c"))
        results["t"] = world.act(("wait", "t", 1))

    def second():
        world.act(("submit", BESIDE))
        results["d"] = world.act(("wait_op", "d"))

    world.act(("submit", A))
    run_threads(world, scheduler, first, second)
    expect(scheduler, results, {"c": "lost", "t": "lost", "d": "ok"})
    expect(scheduler, [each.lost for each in world.devices.values()], [True, False])


SECOND = Op("b", "r", (), (("s", 2),), target="y", value=2)
THIRD = Op("c", "q", (), (("s", 3),), target="z", value=3)
OVERTAKEN = program_of(A, SECOND, THIRD, queues=TWO, buffers=("x", "y", "z"))


@by_hand(FAULTS, "overtaken point", OVERTAKEN)
def overtaken_point(world, scheduler):
    """Two queues publish in another order than they reserve; each value has its own operation.

    The highest value is never reached, for its operation hangs: the others are.
    """
    world.labels[3] = ("hangs", "c")
    results = []

    def first():
        results.append(world.act(("submit", THIRD)))
        results.append(world.act(("wait", "s", 1)))

    def second():
        results.append(world.act(("submit", SECOND)))
        if results[-1] == "ok":  # not so if the third was there before
            results.append(world.act(("wait", "s", 2)))

    world.act(("submit", A))
    run_threads(world, scheduler, first, second)
    if set(results) - {"ok", "invalid"}:
        scheduler.fail("result", f"{results}")
    world.close_device(world.devices[0, 0], CLOSE_SECONDS)


@by_hand(FAULTS, "close while asked", program_of(A))
def close_while_asked(world, scheduler):
    """A device is closed while a thread asks it: its events stay until that has its answer."""
    world.act(("submit", A))
    device = world.devices[0, 0]
    results = []

    def asks():
        results.append(world.act(("query", "s")))
        results.append(world.act(("done", "a")))

    run_threads(world, scheduler, asks, lambda: world.close_device(device))
    if results[0] not in {0, 1}:
        scheduler.fail("result", f"a query while the device is closed: {results}")
