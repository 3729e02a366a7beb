"""Which outcomes of a small program are allowed: the oracle, independent of the core.

The model is an abstract machine whose steps are atomic: one action of a thread, the
issue of an operation, the retirement of one. It walks every order of them and
collects every final outcome. What the core does in any schedule must be one.
"""

import functools

from schedlab.programs import SCRATCH


class State:
    """One state of the machine."""

    maps = (
        "values",
        "reserved",
        "failed",
        "status",
        "deps",
        "order",
        "promised",
        "buffers",
        "callbacks",
    )
    sets = ("closed", "must", "written")
    __slots__ = (*maps, *sets, "counters", "results")

    def copy(self):
        new = State()
        for name in (*self.maps, *self.sets):
            setattr(new, name, getattr(self, name).copy())
        new.counters = list(self.counters)
        new.results = [list(r) for r in self.results]
        return new

    def key(self):
        return (
            *[tuple(sorted(getattr(self, name).items())) for name in self.maps],
            *[frozenset(getattr(self, name)) for name in self.sets],
            tuple(self.counters),
            tuple(tuple(r) for r in self.results),
        )


class Model:
    """Walk every order of a program's atomic steps."""

    def __init__(self, program):
        self.program = program
        self.ops = program.operations()
        self.threads = (program.before, *program.threads)

    def outcomes(self, limit=400_000):
        """Return the set of allowed outcomes."""
        start = State()
        start.failed, start.deps, start.promised, start.callbacks = {}, {}, {}, {}
        start.closed, start.must, start.written = set(), set(), set()
        names = (*self.program.semaphores, *self.ops)
        start.values = dict.fromkeys(names, 0)
        start.reserved = dict.fromkeys(names, 0)
        start.status = dict.fromkeys(self.ops, "absent")
        start.order = dict.fromkeys(self.program.queues, ())
        start.buffers = dict.fromkeys(self.program.buffers, 0)
        start.counters = [0] * len(self.threads)
        start.results = [[] for _ in self.threads]
        seen = set()
        found = set()
        stack = [start]
        while stack:
            state = stack.pop()
            key = state.key()
            if key in seen:
                continue
            seen.add(key)
            if len(seen) > limit:
                message = f"the model of {self.program.name} has more than {limit} states"
                raise RuntimeError(message)
            following = list(self.successors(state))
            stack.extend(new for new, _ in following)
            if not any(how == "must" for _, how in following):
                found.add(self.outcome(state))
        self.states = len(seen)
        return found

    def outcome(self, state):
        """Return what can be seen at the end."""
        ended = tuple(state.counters[i] == len(actions) for i, actions in enumerate(self.threads))
        semaphores = tuple(
            (name, state.failed.get(name, state.values[name])) for name in self.program.semaphores
        )
        return (
            ended,
            tuple(tuple(r) for r in state.results),
            tuple(sorted(state.status.items())),
            semaphores,
            tuple(sorted(state.buffers.items())),
            tuple(sorted((name, what) for name, (_, _, what) in state.callbacks.items())),
        )

    # Steps

    def successors(self, state):
        before_done = state.counters[0] == len(self.threads[0])
        for index, actions in enumerate(self.threads):
            if index and not before_done:
                break
            if state.counters[index] < len(actions):
                new = self.act(state, index, actions[state.counters[index]])
                if new is not None:
                    yield new, "must"
        wanted = self.wanted(state)
        for name, status in state.status.items():
            if status == "pending":
                new, how = self.issue(state, name)
                if (
                    new is not None
                    and self.in_parts(self.ops[name])
                    and new.status[name] == "issued"
                ):
                    part = state.copy()  # its first launch: a close cancels the rest
                    part.buffers[self.ops[name].target] = SCRATCH
                    yield part, "may"
                for label in self.failures(state, self.ops[name])[1:]:
                    # Several waits have failed: which one it is told by is not said.
                    other = state.copy()
                    self.end(other, name, label)
                    yield other, how
            elif status == "issued":
                new = self.run(state, name)
                if new is not None:
                    yield new, "may"
                new = self.retire(state, name)
                how = "must" if wanted is None or name in wanted else "may"
            else:
                continue
            if new is not None:
                yield new, how

    def act(self, state, index, action):
        kind = action[0]
        new = state.copy()
        result = "ok"
        step = True
        if kind == "submit":
            result = self.submit(new, action[1])
        elif kind == "signal":
            _, s, v = action
            if s in new.failed:
                result = new.failed[s]
            elif v <= new.reserved[s]:
                result = "invalid"
            else:
                new.reserved[s] = v
                self.advance(new, s, v)
        elif kind == "fail":
            self.fail(new, action[1], action[2])
        elif kind in ("wait", "wait_op", "all", "any"):
            entries = {
                "wait": lambda: ((action[1], action[2]),),
                "wait_op": lambda: ((action[1], 1),),
            }.get(kind, lambda: action[1])()
            failures = [new.failed[s] for s, _ in entries if s in new.failed]
            reached = [i for i, (s, v) in enumerate(entries) if new.values[s] >= v]
            if failures:
                result = failures[0]
            elif kind == "any" and reached:
                result = reached[0]
            elif kind != "any" and len(reached) == len(entries):
                result = "ok"
            else:
                return None
        elif kind == "poll":
            _, s, v = action
            result = new.failed.get(s, new.values[s] >= v)
        elif kind == "query":
            result = new.failed.get(action[1], new.values[action[1]])
        elif kind == "done":
            result = new.status[action[1]] not in ("absent", "pending", "issued")
        elif kind == "close":
            # New operations are refused, what is pending is cancelled, and what is issued retires:
            # others may do something between these.
            queue = action[1]
            doing = new.results[index][-1] if new.results[index] else None
            if queue not in new.closed:
                new.closed.add(queue)
                new.results[index].append("refusing")
                return new
            if doing == "refusing":
                for name in new.order[queue]:
                    if new.status[name] == "pending":
                        self.end(new, name, "cancelled")
                new.results[index][-1] = "closing"
                return new
            if any(new.status[name] in ("pending", "issued") for name in new.order[queue]):
                return None
            if doing == "closing":
                new.results[index].pop()
        elif kind == "callback":
            _, name, s, v = action
            what = "waiting"
            if s in new.failed:
                what = new.failed[s]
            elif new.values[s] >= v:
                what = "ok"
            new.callbacks[name] = (s, v, what)
        elif kind == "cancel":
            s, v, what = new.callbacks[action[1]]
            result = what == "waiting"
            if result:
                new.callbacks[action[1]] = (s, v, "taken back")
        elif kind == "recall":
            if new.status[action[1]] == "pending":
                self.end(new, action[1], "cancelled")
            result = new.status[action[1]] == "cancelled"
        elif kind == "drop":
            new.buffers[action[1]] = "dropped"
        elif kind == "flush":
            pass
        else:
            raise ValueError(action)
        if step:
            new.counters[index] += 1
            new.results[index].append(result)
        return new

    def submit(self, state, op):
        if op.queue in state.closed:
            return "closed"
        for s, v in op.signal:
            if s not in state.failed and v <= state.reserved[s]:
                return "invalid"
        for s, _ in self.waits(op.wait):
            if s in state.failed:
                state.status[op.name] = "pending"
                self.end(state, op.name, state.failed[s])
                return "ok"
        state.status[op.name] = "pending"
        state.order[op.queue] = (*state.order[op.queue], op.name)
        return "ok"

    def failures(self, state, op):
        """Return the labels of the failed waits of an operation."""
        return sorted({state.failed[s] for s, _ in self.waits(op.wait) if s in state.failed})

    def waits(self, entries):
        return [(w, 1) if isinstance(w, str) else w for w in entries]

    def covering(self, state, op, s, v):
        """Return the operation that a stream wait for s@v goes to, or None."""
        domain = self.program.queues[op.queue].domain
        best = None
        for name, status in state.status.items():
            if status != "issued":
                continue
            other = self.ops[name]
            if other.host or other.refused or self.program.queues[other.queue].domain != domain:
                continue
            for t, value in (*other.signal, (name, 1)):
                if t == s and value >= v and (best is None or value < best[0]):
                    best = (value, name)
        return best and best[1]

    def issue(self, state, name):
        """Return the state after the issue of a pending operation and whether that must come.

        None if it has to wait. That it fails with a wait "may" come at once, and
        only must once nothing else keeps it from being issued (S5), or if that
        wait was unresolved when it failed.
        """
        op = self.ops[name]
        spec = self.program.queues[op.queue]
        order = state.order[op.queue]
        waits = self.waits(op.wait)
        failures = self.failures(state, op)
        stands = self.stands(state, op)
        if failures:
            new = state.copy()
            self.end(new, name, failures[0])
            open_ = [
                w for w in waits if w[0] not in state.failed and not self.resolved(state, op, *w)
            ]
            lazy = (open_ or stands) and name not in state.must
            return new, "may" if lazy else "must"
        if stands:
            return None, ""
        deps = []
        for s, v in waits:
            if state.values[s] >= v:
                continue
            dep = None if op.host else self.covering(state, op, s, v)
            if dep is None:
                return None, ""
            deps.append(dep)
        new = state.copy()
        for s, v in op.signal:
            if s not in state.failed and v <= state.reserved[s]:
                self.end(new, name, "invalid")
                return new, "must"
        for s, v in op.signal:
            if s not in state.failed:
                new.reserved[s] = v
        new.status[name] = "issued"
        new.deps[name] = tuple(deps)
        # What the stream holds before it; the order of issue is the stream's order.
        new.order[op.queue] = (
            (*(o for o in order if o != name), name) if not spec.ordered else order
        )
        new.promised[name] = tuple(
            o for o in order if o != name and state.status[o] == "issued" and not self.ops[o].host
        )
        return new, "must"

    def in_parts(self, op):
        """Return whether the two launches of a recording find no room at once."""
        limit = self.program.queues[op.queue].limit
        return op.recorded and self.program.lowering == "stream" and limit == 1

    def stands(self, state, op):
        """Return whether something on its queue keeps a pending operation from being issued."""
        spec = self.program.queues[op.queue]
        order = state.order[op.queue]
        if any(state.status[o] == "issued" and self.ops[o].refused for o in order):
            return True  # its native call is under way: it has reserved, and will fail
        if spec.ordered:
            for other in order[: order.index(op.name)]:
                status = state.status[other]
                if status == "pending":
                    return True
                if status == "issued" and (op.host or self.ops[other].host):
                    return True
        if not op.host:
            flying = sum(state.status[o] == "issued" and not self.ops[o].host for o in order)
            return flying >= spec.limit
        return False

    def wanted(self, state):
        """Return the issued operations that somebody retires for sure; None is all.

        Retirement is by demand. At the end the test asks for everything.
        """
        blocked = []
        for index, actions in enumerate(self.threads):
            if state.counters[index] < len(actions):
                blocked.append(actions[state.counters[index]])
        if not blocked:
            return None
        entries, roots = [], set()
        for action in blocked:
            kind = action[0]
            if kind == "wait":
                entries.append(action[1:])
            elif kind == "wait_op":
                entries.append((action[1], 1))
            elif kind in ("any", "all"):
                entries.extend(action[1])
            elif kind == "close":
                roots.update(state.order[action[1]])
            else:
                return None  # it goes on anyway
        entries.extend((s, v) for s, v, what in state.callbacks.values() if what == "waiting")
        for name, status in state.status.items():
            op = self.ops[name]
            if status == "issued" and (op.host or op.refused):
                roots.add(name)
                entries.extend(self.waits(op.defer))
            elif status == "pending":
                order = state.order[op.queue]
                if op.host or len(order) > self.program.queues[op.queue].limit:
                    roots.update(order)
                entries.extend(
                    wait for wait in self.waits(op.wait) if not self.resolved(state, op, *wait)
                )
        for s, v in entries:
            if state.values[s] < v:
                best = min(
                    (
                        (value, name)
                        for name, status in state.status.items()
                        if status == "issued"
                        for t, value in (*self.ops[name].signal, (name, 1))
                        if t == s and value >= v
                    ),
                    default=None,
                )
                if best is not None:
                    roots.add(best[1])
        stack = [name for name in roots if state.status[name] == "issued"]
        wanted = set(stack)
        while stack:
            name = stack.pop()
            for other in (*state.promised[name], *state.deps[name]):
                if state.status[other] == "issued" and other not in wanted:
                    wanted.add(other)
                    stack.append(other)
        return wanted

    def resolved(self, state, op, s, v):
        """Return whether a wait stops the issue of `op` no longer."""
        if state.values[s] >= v:
            return True
        return not op.host and self.covering(state, op, s, v) is not None

    def run(self, state, name):
        """Return the state after the device has run an operation, which may retire later."""
        op = self.ops[name]
        before = (*state.promised.get(name, ()), *state.deps[name])
        if op.host or op.refused or name in state.written:
            return None
        if any(state.status[each] == "issued" and each not in state.written for each in before):
            return None
        new = state.copy()
        self.write(new, op)
        new.written.add(name)
        return new

    def write(self, state, op):
        """Apply an operation's effect to the model's memory."""
        if state.buffers.get(op.target) == "dropped":
            pass  # nobody can see it
        elif op.source is not None:
            state.buffers[op.target] = state.buffers[op.source]
        elif op.target is not None:
            state.buffers[op.target] = op.value

    def retire(self, state, name):
        """Return the state after the retirement of an issued operation, or None if it must wait."""
        op = self.ops[name]
        if op.refused:
            new = state.copy()
            self.end(new, name, f"refused {name}")
            return new
        if not op.host:
            for other in state.promised[name]:
                if state.status[other] == "issued":
                    return None
        for dep in state.deps[name]:
            if state.status[dep] == "issued":
                return None
        for s, v in self.waits(op.defer):
            if s in state.failed:
                new = state.copy()
                self.end(new, name, state.failed[s])
                return new
            if state.values[s] < v:
                return None
        new = state.copy()
        if name not in new.written:
            self.write(new, op)
        new.written.discard(name)
        error = None
        for dep in state.deps[name]:
            if error is None and state.status[dep] != "done":
                error = state.status[dep]
        if error is not None:
            self.end(new, name, error)
            return new
        new.status[name] = "done"
        self.advance(new, name, 1)
        for s, v in op.signal:
            self.advance(new, s, v)
        return new

    def end(self, state, name, label):
        """Fail or cancel an operation and its signals."""
        state.status[name] = label
        self.fail(state, name, label)
        for s, _ in self.ops[name].signal:
            self.fail(state, s, label)

    def advance(self, state, s, v):
        if s in state.failed or v <= state.values[s]:
            return
        state.values[s] = v
        for name, (t, value, what) in list(state.callbacks.items()):
            if what == "waiting" and t == s and value <= v:
                state.callbacks[name] = (t, value, "ok")

    def fail(self, state, s, label):
        if s in state.failed:
            return
        for name, status in state.status.items():
            if status == "pending" and any(
                t == s and not self.resolved(state, self.ops[name], t, v)
                for t, v in self.waits(self.ops[name].wait)
            ):
                state.must.add(name)
        state.failed[s] = label
        for name, (t, value, what) in list(state.callbacks.items()):
            if what == "waiting" and t == s:
                state.callbacks[name] = (t, value, label)


@functools.lru_cache(maxsize=1024)
def allowed_outcomes(program):
    """Return the outcomes that the model allows, computed once."""
    return frozenset(Model(program).outcomes())
