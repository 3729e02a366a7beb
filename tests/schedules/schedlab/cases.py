"""List the cases: small programs, as tables over the kinds of queues.

A scenario is a function of two queue names; a variant says what these queues
are: one and the same, two of a device, of two devices of one domain, of two
domains (whose devices cannot wait for each other's events), unordered, or of a
device that takes one operation at a time.
"""

import random
from dataclasses import replace

from schedlab.model import allowed_outcomes
from schedlab.programs import Op, Program, QueueSpec

VARIANTS = {
    "one": {"q": QueueSpec()},
    "two": {"q": QueueSpec(), "r": QueueSpec()},
    "devices": {"q": QueueSpec(), "r": QueueSpec(device=1)},
    "domains": {"q": QueueSpec(), "r": QueueSpec(domain=1)},
    "unordered": {"q": QueueSpec(ordered=False)},
    "tight": {"q": QueueSpec(limit=1)},
}

S1, S2, S3, T1, T2 = ("s", 1), ("s", 2), ("s", 3), ("t", 1), ("t", 2)


def _submit(name, queue, wait=(), signal=(), **more):
    return ("submit", Op(name, queue, wait, signal, **more))


class Makes:
    """Make operations for a variant: a consumer copies where the buffers are of one device."""

    def __init__(self, variant):
        queues = VARIANTS[variant]
        self.q, self.r = "q", "r" if "r" in queues else "q"
        self.copies = variant not in ("devices", "domains")

    def a(self, signal=(S1,), **more):
        """Return the submission of the producer, which writes x."""
        more.setdefault("wait", ())
        return _submit("a", self.q, signal=signal, target="x", value=1, **more)

    def b(self, wait=(S1,), signal=(T1,), **more):
        """Return the submission of the consumer, which copies x to y."""
        if self.copies:
            return _submit("b", self.r, wait, signal, target="y", source="x", **more)
        return _submit("b", self.r, wait, signal, target="y", value=2, **more)

    def d(self, wait=(T1,), signal=(S2,), queue=None, **more):
        """Return the submission of a third operation, which writes z."""
        return _submit("d", queue or self.q, wait, signal, target="z", value=3, **more)


def _scenarios():
    """Yield ``(name, variants, function)``; the function returns (before, threads)."""
    all_ = ("one", "two", "devices", "domains", "unordered", "tight")
    most = ("one", "two", "domains", "unordered")

    yield "chain", all_, lambda m: ((), ((m.a(),), (m.b(), ("wait", "t", 1), ("query", "t"))))
    yield "late", most, lambda m: (
        (), ((m.b(), ("query", "s")), (m.a(), ("wait", "t", 1), ("poll", "s", 1))),
    )  # fmt: skip
    yield "released", all_, lambda m: (
        (m.b(),), ((m.a(),), (("wait", "t", 1),)),
    )  # fmt: skip
    yield "by host", ("one", "two", "unordered"), lambda m: (
        (), ((m.b(), ("wait_op", "b")), (("signal", "s", 1), ("wait", "t", 1))),
    )  # fmt: skip
    yield "host polls", ("one", "unordered"), lambda m: (
        (m.b(),), ((("signal", "s", 1), ("poll", "t", 1)), (("query", "t"), ("wait", "t", 1))),
    )  # fmt: skip
    yield "fail pending", ("one", "two", "unordered"), lambda m: (
        (), ((m.b(), ("wait_op", "b")), (("fail", "s", "E"), ("wait", "s", 1))),
    )  # fmt: skip
    yield "fail or signal", ("one", "unordered"), lambda m: (
        (m.b(),), ((("fail", "s", "E"),), (("signal", "s", 1), ("wait_op", "b"))),
    )  # fmt: skip
    yield "fail or produce", ("one", "two", "domains"), lambda m: (
        (m.b(),), ((m.a(), ("wait", "s", 1)), (("fail", "s", "E"), ("wait", "t", 1))),
    )  # fmt: skip
    yield "two failures", ("one",), lambda m: (
        (m.b(wait=(S1, T1), signal=(T2,)),),
        ((("fail", "s", "E"),), (("fail", "t", "F"), ("wait_op", "b"))),
    )  # fmt: skip
    yield "refused", most, lambda m: (
        (m.b(),), ((m.a(refused=True),), (m.d(wait=(), signal=()), ("wait_op", "d"))),
    )  # fmt: skip
    yield "close", ("one", "two", "unordered", "domains"), lambda m: (
        (m.b(),), ((("close", m.r),), (("signal", "s", 1), ("wait_op", "b"))),
    )  # fmt: skip
    yield "close producer", ("two", "domains"), lambda m: (
        (m.b(),), ((("close", m.q),), (m.a(),)),
    )  # fmt: skip
    yield "close twice", ("one",), lambda m: (
        (m.a(),), ((("close", m.q), ("query", "s")), (("close", m.q),)),
    )  # fmt: skip
    yield "close waited", ("two",), lambda m: (
        (m.a(),), ((("close", m.q),), (m.b(), ("wait_op", "b"))),
    )  # fmt: skip
    yield "poll", ("one", "unordered"), lambda m: (
        (), ((m.a(),), (("poll", "s", 1), ("query", "s"), ("poll", "s", 1))),
    )  # fmt: skip
    yield "two waiters", ("one", "two"), lambda m: (
        (m.a(), m.b(signal=(T1,))), ((("wait", "s", 1), ("query", "t")), (("wait", "t", 1),)),
    )  # fmt: skip
    yield "same value", ("one", "two", "domains"), lambda m: (
        (), ((m.a(), ("query", "s")), (m.b(wait=(), signal=(S1,)), ("query", "s"))),
    )  # fmt: skip
    yield "two values", ("one", "two", "domains"), lambda m: (
        (), ((m.a(),), (m.b(wait=(), signal=(S2,)), ("wait", "s", 2))),
    )  # fmt: skip
    yield "overtaken values", ("two", "devices", "domains"), lambda m: (
        (), ((m.a(), m.d(wait=(), signal=(S3,))), (m.b(wait=(), signal=(S2,)), ("wait", "s", 3))),
    )  # fmt: skip
    yield "overtaken producer", ("two", "domains"), lambda m: (
        (), ((m.a(signal=(S2,)),), (m.d(wait=(), queue=m.r, signal=(S1,)), m.b(wait=(S2,)))),
    )  # fmt: skip
    yield "op or host", ("one",), lambda m: (
        (), ((m.a(), ("query", "s")), (("signal", "s", 1), ("wait", "s", 1))),
    )  # fmt: skip
    yield "overshoot", ("one", "two"), lambda m: (
        (m.b(),), ((m.a(signal=(S3,)),), (("wait", "s", 2), ("wait", "t", 1))),
    )  # fmt: skip
    yield "callback", ("one", "two"), lambda m: (
        (), ((m.a(),), (("callback", "c", "s", 1), ("query", "s"))),
    )  # fmt: skip
    yield "cancel", ("one",), lambda m: (
        (), ((m.a(), ("wait", "s", 1)), (("callback", "c", "s", 1), ("cancel", "c"))),
    )  # fmt: skip
    yield "recall", ("one", "two", "unordered", "domains"), lambda m: (
        (m.b(),), ((("recall", "b"),), (("signal", "s", 1), ("wait_op", "b"))),
    )  # fmt: skip
    yield "recall or produce", ("one", "two", "domains"), lambda m: (
        (m.b(),), ((m.a(), ("wait", "t", 1)), (("recall", "b"), ("query", "t"))),
    )  # fmt: skip
    yield "recall or close", ("one", "unordered"), lambda m: (
        (m.b(),), ((("close", m.q),), (("recall", "b"), ("recall", "b"))),
    )  # fmt: skip
    yield "recall in front", ("one", "two", "tight"), lambda m: (
        (m.b(), m.d(wait=(), signal=(), queue=m.r)),
        ((("recall", "b"), ("wait_op", "d")), (("signal", "s", 1), ("query", "t"))),
    )  # fmt: skip
    yield "recall dependency", ("one", "two", "domains"), lambda m: (
        (m.a(wait=(T1,), signal=()), m.b(wait=("a",), signal=(T2,))),
        ((("recall", "a"),), (("signal", "t", 1), ("wait_op", "b"))),
    )  # fmt: skip
    yield "recall full", ("tight",), lambda m: (
        (m.a(), m.b(wait=(), signal=(T1,))),
        ((("recall", "b"), ("wait_op", "b")), (("wait", "s", 1), ("query", "t"))),
    )  # fmt: skip
    yield "callback fails", ("one",), lambda m: (
        (("callback", "c", "s", 1),), ((m.a(),), (("fail", "s", "E"),)),
    )  # fmt: skip
    yield "any", ("one", "two"), lambda m: (
        (), ((m.a(), ("signal", "t", 1)), (("any", (T1, S1)), ("query", "s"))),
    )  # fmt: skip
    yield "any fails", ("one",), lambda m: (
        (), ((m.a(), ("fail", "t", "E")), (("any", (S1, T1)),)),
    )  # fmt: skip
    yield "all fails", ("one",), lambda m: (
        (), ((("all", (S1, T1)),), (("fail", "t", "E"),)),
    )  # fmt: skip
    yield "all but one", ("one",), lambda m: (
        (), ((m.a(), ("all", (S1, T2))), (("signal", "t", 1), ("fail", "t", "E"))),
    )  # fmt: skip
    yield "all of a refused one", ("one",), lambda m: (
        (), ((m.a(refused=True),), (("all", (S1, T1)),)),
    )  # fmt: skip
    yield "all", ("one", "two"), lambda m: (
        (), ((m.a(),), (m.b(wait=()), ("all", (S1, T1)))),
    )  # fmt: skip
    yield "backlog", ("tight",), lambda m: (
        (m.a(), m.b(wait=(), signal=())), ((m.d(wait=(), signal=(T1,)),), (("wait", "t", 1),)),
    )  # fmt: skip
    yield "host call", ("one", "two", "unordered"), lambda m: (
        (), ((m.a(),), (_submit("h", m.r, (S1,), (T1,), host=True), ("wait", "t", 1))),
    )  # fmt: skip
    yield "behind host call", ("one", "unordered"), lambda m: (
        (), ((_submit("h", m.q, (), (S1,), host=True),), (m.b(), ("wait", "t", 1))),
    )  # fmt: skip
    yield "handle", ("one", "two", "domains", "unordered"), lambda m: (
        (m.a(signal=()),), ((m.b(wait=("a",), signal=()), ("wait_op", "b")), (("wait_op", "a"),)),
    )  # fmt: skip
    yield "handle pending", ("one", "two", "domains"), lambda m: (
        (m.a(wait=(T1,), signal=()),),
        ((m.b(wait=("a",), signal=()), ("wait_op", "b")), (("signal", "t", 1), ("done", "a"))),
    )  # fmt: skip
    yield "handle of a host call", ("two", "domains"), lambda m: (
        (_submit("h", m.q, (S1,), (), host=True),),
        ((m.b(wait=("h",), signal=()), ("wait_op", "b")), (("signal", "s", 1), ("done", "h"))),
    )  # fmt: skip
    yield "handle fails", ("one", "two"), lambda m: (
        (m.a(wait=(S1,), signal=()),),
        ((m.b(wait=("a",), signal=()), ("wait_op", "b")), (("fail", "s", "E"), ("done", "a"))),
    )  # fmt: skip
    yield "two signals", ("one", "two"), lambda m: (
        (), ((m.a(signal=(S1, T1)),), (m.b(wait=(S1, T1), signal=(T2,)), ("wait", "t", 2))),
    )  # fmt: skip
    yield "diamond", ("one", "two", "unordered"), lambda m: (
        (m.d(wait=(S1, T1)),), ((m.a(),), (m.b(), ("wait", "s", 2))),
    )  # fmt: skip
    yield "long chain", ("two", "domains"), lambda m: (
        (m.d(), m.b()), ((m.a(),), (("wait", "s", 2), ("query", "t"))),
    )  # fmt: skip
    yield "crossed", ("two", "devices"), lambda m: (
        (),
        ((m.a(wait=(T1,)), ("wait", "t", 2)), (m.b(signal=(T2,)), ("signal", "t", 1))),
    )  # fmt: skip
    yield "follower leaves", ("one",), lambda m: (
        (m.a(), m.d(wait=())),
        (
            (("wait", "s", 1),),
            (("any", (S2, T1)),),
            (("wait", "s", 2),),
            (("fail", "t", "E"),),
        ),
    )  # fmt: skip
    yield "three waiters", ("one",), lambda m: (
        (m.a(), m.d(wait=())),
        ((("wait", "s", 1),), (("wait", "s", 2),), (("wait", "s", 2),)),
    )  # fmt: skip
    yield "flush", ("one",), lambda m: (
        (m.b(),), ((("signal", "s", 1),), (("flush", "q"), ("wait", "t", 1))),
    )  # fmt: skip


def _deferred():
    """Yield scenarios of host calls that defer their end, as `_scenarios` does."""
    two = ("one", "two", "unordered")

    def host(m, *defer, queue=None, **more):
        return _submit("h", queue or m.q, signal=(S1,), host=True, defer=defer, **more)

    yield "deferred", two, lambda m: (
        (), ((host(m, T1),), (("signal", "t", 1), ("wait", "s", 1))),
    )  # fmt: skip
    yield "deferred to work", two, lambda m: (
        (), ((host(m, T1, queue=m.r),), (m.a(signal=(T1,)), ("wait", "s", 1))),
    )  # fmt: skip
    yield "deferred to handle", ("two", "domains"), lambda m: (
        (m.a(signal=()),), ((host(m, "a", queue=m.r),), (("wait_op", "a"), ("wait", "s", 1))),
    )  # fmt: skip
    yield "deferred fails", two, lambda m: (
        (), ((host(m, T1), ("wait_op", "h")), (("fail", "t", "E"), ("query", "s"))),
    )  # fmt: skip
    yield "deferred or fails", ("one",), lambda m: (
        (host(m, T1),), ((("fail", "t", "E"),), (("signal", "t", 1), ("wait_op", "h"))),
    )  # fmt: skip
    yield "behind deferred", ("one", "unordered"), lambda m: (
        (host(m, T1),), ((m.d(wait=(), signal=()), ("wait_op", "d")), (("signal", "t", 1),)),
    )  # fmt: skip
    yield "deferred twice", ("one", "two"), lambda m: (
        (host(m, T1, "d"), m.d(wait=(), signal=(), queue=m.r)),
        ((("wait", "s", 1),), (("signal", "t", 1), ("wait_op", "d"))),
    )  # fmt: skip
    yield "close deferred", ("one", "two"), lambda m: (
        (host(m, T1),), ((("close", m.q),), (("signal", "t", 1), ("wait_op", "h"))),
    )  # fmt: skip


def _recorded():
    """Yield scenarios of one recording executed with several tables, as `_scenarios` does."""
    both = ("one", "two", "unordered")

    def run(name, queue, target, wait=(), signal=(), **more):
        return _submit(name, queue, wait, signal, target=target, source="x", recorded=True, **more)

    def filled(m):
        return (m.a(signal=()), ("wait_op", "a"))

    yield "two tables", both, lambda m: (
        (*filled(m), run("e", m.q, "w"), ("wait_op", "e")),  # whose instance both can have
        ((run("b", m.q, "y", signal=(S1,)),), (run("c", m.r, "z", signal=(T1,)), ("wait", "t", 1))),
    )  # fmt: skip
    yield "one after another", ("one", "two"), lambda m: (
        filled(m),
        (
            (run("b", m.q, "y", signal=(S1,)), ("wait", "s", 1), run("e", m.q, "w")),
            (run("c", m.r, "z", signal=(T1,)),),
        ),
    )  # fmt: skip
    yield "tables pending", ("one",), lambda m: (
        (*filled(m), run("b", m.q, "y", (S1,), (T1,)), run("c", m.r, "z", (S1,), (S2,))),
        ((("signal", "s", 1), ("wait", "t", 1)), (("wait", "s", 2),)),
    )  # fmt: skip
    yield "close executing", ("one", "two"), lambda m: (
        (*filled(m), run("b", m.q, "y", signal=(S1,))),
        ((("close", m.q),), (run("c", m.r, "z", signal=(T1,)), ("wait_op", "c"))),
    )  # fmt: skip


def _tables():
    """Yield the scenarios of all programs, with what they change of a program."""
    for scenario in (*_scenarios(), *_deferred()):
        yield *scenario, {}
    for name, variants, build in _recorded():
        for lowering, features in (("graph", {"graphs"}), ("stream", ())):
            settings = {"lowering": lowering, "features": frozenset(features)}
            yield f"{name}, {lowering}", variants, build, settings


def programs():
    """Return every program by its name, ``"scenario/variant"``."""
    found = {}
    for name, variants, build, settings in _tables():
        for variant in variants:
            before, threads = build(Makes(variant))
            title = f"{name}/{variant}"
            used = {
                action[1].queue
                for actions in (before, *threads)
                for action in actions
                if action[0] == "submit"
            }
            queues = {q: spec for q, spec in VARIANTS[variant].items() if q in used or q == "q"}
            program = Program(
                title, threads, before, queues=queues, buffers=("w", "x", "y", "z"), **settings
            )
            # First-in first-out can make a program wait for itself: that is no case.
            if all(all(outcome[0]) for outcome in allowed_outcomes(program)):
                found[title] = program
    return found


def _embellished(seed, ops, top):
    """Turn some copies into executions and have some host calls defer their ends."""
    r = random.Random(f"more {seed}")
    settings = r.choice(({"lowering": "graph", "features": frozenset({"graphs"})}, {}))
    recorded = r.random()
    more = []
    for op in ops:
        if op.source is not None and r.random() < recorded:
            more.append(replace(op, recorded=True))
        elif op.host and r.random() < 0.5:
            s = r.choice(sorted(top))
            value = r.randrange(1, max(2, top[s] + 1))
            # It must not wait for itself.
            more.append(replace(op, defer=((s, value),)) if s not in dict(op.signal) else op)
        else:
            more.append(op)
    return more, settings


def random_program(seed):
    """Return a random program of 2 or 3 threads and up to 4 operations, or None if it is no case.

    None if it can wait for itself or for nobody, or if the model of it is large.
    """
    r = random.Random(f"program {seed}")
    layout = r.choice(("two", "three", "domains", "unordered", "mixed", "tight"))
    queues = {
        "two": {"q": QueueSpec(), "r": QueueSpec()},
        "three": {"q": QueueSpec(), "r": QueueSpec(), "u": QueueSpec(device=1)},
        "domains": {"q": QueueSpec(), "r": QueueSpec(domain=1)},
        "unordered": {"q": QueueSpec(ordered=False), "r": QueueSpec(ordered=False)},
        "mixed": {"q": QueueSpec(ordered=False), "r": QueueSpec(), "u": QueueSpec(domain=1)},
        "tight": {"q": QueueSpec(limit=1), "r": QueueSpec(limit=1)},
    }[layout]
    by_home = {}
    for name, spec in queues.items():
        by_home.setdefault((spec.domain, spec.device), []).append(name)
    homes = sorted(by_home)
    buffers = {home: [f"x{i}", f"y{i}"] for i, home in enumerate(homes)}
    semaphores = ("s", "t")
    top = dict.fromkeys(semaphores, 0)
    ops = []
    for name in "abcd"[: r.choice((2, 3, 3, 4))]:
        queue = r.choice(sorted(queues))
        home = (queues[queue].domain, queues[queue].device)
        x, y = buffers[home]
        signal, wait = [], []
        for s in semaphores:
            if r.random() < 0.5:
                top[s] += r.choice((1, 1, 2))
                signal.append((s, top[s]))
        for s in semaphores:
            least = dict(signal).get(s, top[s] + 1)
            if r.random() < 0.45 and least > 1:
                wait.append((s, r.randrange(1, least)))
        if ops and r.random() < 0.15:
            wait.append(r.choice(ops).name)
        kind = r.random()
        more = {}
        if kind < 0.12:
            more = {"host": True}
        elif kind < 0.6:
            more = {"target": x, "value": len(ops) + 1, "refused": r.random() < 0.1}
        else:
            more = {"target": y, "source": x}
        ops.append(Op(name, queue, tuple(wait), tuple(signal), **more))
    ops, settings = _embellished(seed, ops, top)
    threads = [[] for _ in range(r.choice((2, 3, 3)))]
    before = []
    # An operation whose handle others wait for is submitted before it is waited for.
    handles = {w for op in ops for w in op.wait if isinstance(w, str)}
    r.shuffle(ops)
    for op in sorted(ops, key=lambda op: (op.name not in handles, op.name in handles and op.name)):
        early = (
            op.name in handles
            or (any(isinstance(w, str) for w in op.wait) and r.random() < 0.5)
            or r.random() < 0.3
        )
        (before if early else r.choice(threads)).append(("submit", op))
    extra = r.choice((1, 2, 3))
    for number in range(extra):
        thread = r.choice(threads)
        s = r.choice(semaphores)
        value = r.randrange(1, max(2, top[s] + 1))
        what = r.random()
        if what < 0.3:
            top[s] += 1
            thread.append(("signal", s, r.choice((value, top[s]))))
        elif what < 0.4:
            thread.append(("fail", s, f"E{number}"))
        elif what < 0.55:
            thread.append(("poll", s, value))
        elif what < 0.65:
            thread.append(("query", s))
        elif what < 0.75:
            thread.append(("close", r.choice(sorted(queues))))
        elif what < 0.85:
            thread.append(("callback", f"k{number}", s, value))
        elif what < 0.92:
            thread.append(
                ("any", tuple((each, r.randrange(1, top[each] + 2)) for each in semaphores))
            )
        else:
            home = r.choice(homes)
            thread.append(("drop", buffers[home][0]))
    for thread in threads:
        for s in semaphores:
            if r.random() < 0.5 and top[s]:
                thread.append(("wait", s, r.randrange(1, top[s] + 1)))
    dropped = [a[1] for t in threads for a in t if a[0] == "drop"]
    used = {b for op in ops for b in (op.target, op.source)}
    if dropped and not (len(dropped) == 1 and dropped[0] in used):
        return None
    if dropped and any(a[0] == "submit" and dropped[0] in (a[1].target, a[1].source)
                       for t in threads for a in t):  # fmt: skip
        return None  # a submission might come after the drop
    program = Program(
        f"random/{seed}",
        tuple(tuple(thread) for thread in threads),
        tuple(before),
        queues=queues,
        semaphores=semaphores,
        buffers=tuple(b for pair in buffers.values() for b in pair),
        **settings,
    )
    try:
        outcomes = allowed_outcomes(program)
    except RuntimeError:
        return None
    endless = {(op.name, "issued") for op in ops if op.defer}
    if any(not all(ended) or endless.intersection(states) for ended, _, states, *_ in outcomes):
        return None
    return program
