"""Cases in which the device refuses one native call, and what that call touched is used again.

One operation fails of it, or none where the core can do without the call; what depends on
that one fails with it, and whatever else was submitted ends well, with the right bytes.
"""

import functools

from schedlab.programs import Op, QueueSpec
from schedlab.small import SmallCase, expect, program_of, run_threads

CALLS = 3
"""How many calls of a primitive are tried, each in schedules of its own."""

QUEUES = {"q": QueueSpec(), "r": QueueSpec(), "u": QueueSpec()}
DEVICES = {"q": QueueSpec(), "r": QueueSpec(device=1), "u": QueueSpec(device=1)}

# a writes x. The others wait for it, or for each other, and do so twice on one stream.
A = Op("a", "q", (), (("s", 1),), target="x", value=1)


def _copies(queue, **more):
    """Return two copies behind `a` on one queue, and what follows them on a third."""
    wait = (("s", 1),)
    return (
        Op("b", queue, wait, target="y", source="x", **more),
        Op("d", queue, wait, (("t", 1),), target="z", source="x", **more),
        Op("e", "u", ("d",), target="w", source="z"),
    )


FILLS = (
    Op("b", "r", (("s", 1),), target="y", value=2),
    Op("d", "r", (("s", 1),), (("t", 1),), target="z", value=3),
    Op("e", "u", ("d",), target="w", value=4),
)


def _executions():
    """Return executions of one recording behind `a`, the last with the table of that before it."""
    first, second, _ = _copies("r", recorded=True)
    between = Op("e", "u", ("d",), target="z", value=9)
    return first, second, between, Op("f", "r", ("e",), target="z", source="x", recorded=True)


def _refused(name, others, primitive, *, queues=QUEUES, features=(), lowering="stream", **settings):
    ops = (A, *others)
    buffers = ("w", "x", "y", "z")
    program = program_of(*ops, queues=queues, features=features, buffers=buffers, lowering=lowering)

    def body(world, scheduler):
        vendor = world.vendors[0]
        results = {}

        def submits(*some):
            for op in some:
                if all(w in world.submissions for w in op.wait if isinstance(w, str)):
                    world.act(("submit", op))

        def second():
            submits(*others)
            for op in others:
                if op.name in world.submissions:
                    results[op.name] = world.act(("wait_op", op.name))

        def make(vendor, primitive):
            return world.core.errors.OperationError("refused")

        world.start()
        number = vendor.counts.get(primitive, 0) + 1
        number += scheduler.choose(CALLS, f"which {primitive} is refused")
        vendor.faults.append((primitive, number, make))

        def first():
            submits(A)
            world.act(("query", "t"))  # which asks the stream of the others

        run_threads(world, scheduler, first, second)
        vendor.faults.clear()
        results["a"] = world.act(("wait_op", "a"))
        world.settle()
        _check(world, scheduler, ops, results)
        for submission in world.submissions.values():
            submission.state  # noqa: B018 - it asks the device
        world.settle()
        world.check_events()

    return SmallCase(name, program, body, **settings)


def _check(world, scheduler, ops, results):
    """Fail unless one operation failed by itself at the most, and the others did their work."""
    causes = {("s", 1): "a", ("t", 1): "d"}
    failed = {name for name, result in results.items() if result != "ok"}
    roots = {
        op.name
        for op in ops
        if op.name in failed and not failed & {causes.get(w, w) for w in op.wait}
    }
    if len(roots) > 1:
        scheduler.fail("refusal", f"one call was refused and {sorted(roots)} failed: {results}")
    expect(scheduler, set(results), {op.name for op in ops})
    values = {}
    for op in ops:
        if op.name not in failed:
            values[op.target] = values[op.source] if op.source else op.value
    for name, value in values.items():
        data = world.vendors[0].peek(world.addresses[name], 8)
        expect(scheduler, (name, data), (name, bytes([value]) * 8))


def _cases():
    """Return the factories of the cases by name."""
    found = {}
    for primitive in ("wait_event", "record_event", "create_event", "fill", "copy"):
        found[f"refused {primitive}"] = (_copies("r"), primitive, {})
    for primitive in ("wait_event", "record_event"):
        found[f"refused {primitive}, devices"] = (FILLS, primitive, {"queues": DEVICES})
    for primitive in ("create_graph", "instantiate_graph", "update_graph", "launch_graph"):
        found[f"refused {primitive}"] = (
            _executions(),
            primitive,
            {"features": {"graphs"}, "lowering": "graph"},
        )
    return {
        name: functools.partial(_refused, name, others, primitive, **more)
        for name, (others, primitive, more) in found.items()
    }


REFUSALS = _cases()
