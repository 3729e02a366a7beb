"""List the cases: small programs, made of the table of scenarios over the kinds of queues.

A scenario is of two queues; a variant says what these are: one and the same, two of a device, of
two devices of one domain, of two domains (whose devices cannot wait for each other's events),
unordered, or of a device that takes one operation at a time.
"""

import random
import re
from dataclasses import replace
from pathlib import Path

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

_SCENARIOS = Path(__file__).with_name("scenarios.txt")
_OPERATION = re.compile(r"(\w)(?:=(\w))?(?:\[(.*)>(.*)\])?(!)?(?:~(.+?))?(?:@(\w))?")

S1, S2, S3, T1, T2 = ("s", 1), ("s", 2), ("s", 3), ("t", 1), ("t", 2)


class Makes:
    """Make operations for a variant: a consumer copies where the buffers are of one device."""

    def __init__(self, variant):
        queues = VARIANTS[variant]
        self.q, self.r = "q", "r" if "r" in queues else "q"
        self.copies = variant not in ("devices", "domains")

    def a(self, signal=(S1,), **more):
        """Return the submission of the producer, which writes x."""
        more.setdefault("wait", ())
        return ("submit", Op("a", self.q, signal=signal, target="x", value=1, **more))

    def b(self, wait=(S1,), signal=(T1,), **more):
        """Return the submission of the consumer, which copies x to y."""
        if self.copies:
            return ("submit", Op("b", self.r, wait, signal, target="y", source="x", **more))
        return ("submit", Op("b", self.r, wait, signal, target="y", value=2, **more))

    def d(self, wait=(T1,), signal=(S2,), queue=None, **more):
        """Return the submission of a third operation, which writes z."""
        return ("submit", Op("d", queue or self.q, wait, signal, target="z", value=3, **more))

    def action(self, text):
        """Return an action of the table of scenarios."""
        if match := _OPERATION.fullmatch(text):
            return self._operation(*match.groups())
        word, *rest = text.split()
        if word in {"any", "all"}:
            return word, tuple(map(_point, rest))
        if word == "close":
            return word, getattr(self, *rest)
        return (word, *[int(each) if each.isdigit() else each for each in rest])

    def _operation(self, name, target, wait, signal, refused, defer, where):
        more = {}
        if wait is not None:
            more = {"wait": _points(wait), "signal": _points(signal)}
        if refused:
            more["refused"] = True
        queue = getattr(self, where or "q")
        if name == "h":
            more["defer"] = _points(defer or "")
            return ("submit", Op(name, queue, host=True, **more))
        if target:
            return ("submit", Op(name, queue, target=target, source="x", recorded=True, **more))
        return self.d(queue=queue, **more) if name == "d" else getattr(self, name)(**more)


def _point(word):
    """Return a value of a semaphore, or else the name of an operation."""
    return (word[0], int(word[1:])) if word[1:].isdigit() else word


def _points(text):
    return tuple(map(_point, text.replace(",", " ").split()))


def _tables():
    """Yield the name, variants, actions of all threads, and settings of each scenario."""
    kinds = {"all": VARIANTS, "most": ("one", "two", "domains", "unordered")}
    for line in _SCENARIOS.read_text("utf-8").splitlines():
        if not line or line[0] == "#":
            continue
        name, variants, *threads = line.split(" | ")
        actions = [each.split("; ") if each != "-" else [] for each in threads]
        found = kinds.get(variants, variants.split())
        if "=" not in line:
            yield name, found, actions, {}
            continue
        for lowering, features in (("graph", {"graphs"}), ("stream", ())):
            settings = {"lowering": lowering, "features": frozenset(features)}
            yield f"{name}, {lowering}", found, actions, settings


def programs():
    """Return every program by its name, ``"scenario/variant"``."""
    found = {}
    for name, variants, texts, settings in _tables():
        for variant in variants:
            makes = Makes(variant)
            before, *threads = (tuple(map(makes.action, each)) for each in texts)
            title = f"{name}/{variant}"
            used = {
                action[1].queue
                for actions in (before, *threads)
                for action in actions
                if action[0] == "submit"
            }
            queues = {q: spec for q, spec in VARIANTS[variant].items() if q in used or q == "q"}
            settings |= {"queues": queues, "buffers": ("w", "x", "y", "z")}
            program = Program(title, tuple(threads), before, **settings)
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
