"""Run a program on a private copy of the core over fake devices, and check everything.

Checked in every run: the outcome is one that the model allows; after every
hold of the timeline lock nothing is ahead of what the device has done (I3, S7);
nobody holds two batons; nothing that could go on was forgotten once everything
is quiet; no wake-up came only from a safety net; nothing is left registered;
after a close no native handle is alive (I7). The fake device checks its own rules.
"""

from __future__ import annotations

import functools

from schedlab import sync
from schedlab.fake import classes
from schedlab.loader import load_core
from schedlab.model import Model, State, allowed_outcomes
from schedlab.vendor import Vendor

NET_SECONDS = 0.01

SCRATCH = 0x55
"""What a recording writes first; no operation of a program writes that."""


class _Quiet:
    """Be open once every other thread is blocked and the device has nothing to do."""

    def __init__(self, scheduler, me):
        self.scheduler = scheduler
        self.me = me

    @property
    def free(self):
        for thread in self.scheduler.threads:
            if (
                thread is not self.me
                and thread.where != "end"
                and (thread.waits is None or thread.waits.free)
            ):
                return False
        return not self.scheduler._steps()


class World:
    """Hold what one run of a case has: the copy of the core, devices, queues, semaphores.

    Parameters
    ----------
    core
        From `load_core`; it is reset.
    scheduler
        The run's scheduler; the caller is its first logical thread.
    """

    order_locks = False

    def __init__(self, core, scheduler):
        self.core = core
        self.scheduler = scheduler
        core.reset()
        scheduler.timeline_lock = core._timeline.lock
        scheduler.names[id(core._timeline.lock)] = "the timeline lock"
        scheduler.names[id(core._progress._progress._lock)] = "the progress thread's lock"
        scheduler.quiet = True
        if scheduler.reduction is not None:
            scheduler.reduction.recording = False
        core.tracking = bool(core.tracked)
        self.vendors = {}
        self.devices = {}
        self.queues = {}
        self.semaphores = {}
        self.buffers = {}
        self.recordings = {}
        self.addresses = {}
        self.submissions = {}
        self.callbacks = {}
        self.called = {}
        self.owners = {}
        self.monitored = False
        self.program = None
        self.submitted = set()  # also those whose submission has not returned
        self.verified = set()
        self.signalled = set()  # what the host has signalled, or is about to
        self.abandoned = set()  # devices whose close gave up
        self.labels = {}  # pattern -> (what goes wrong, name of the operation)
        core.watch_baton(self._baton)
        core.returned_callback = self._check_returned

    # Building

    def vendor(self, domain=0):
        vendor = self.vendors.get(domain)
        if vendor is None:
            vendor = self.vendors[domain] = Vendor(
                self.core, self.scheduler, domain=f"acme{domain}"
            )
            vendor.pool_of = self._is_pooled
            vendor.special = self.labels
        return vendor

    def device(self, domain=0, index=0, limit=512):
        key = (domain, index)
        device = self.devices.get(key)
        if device is None:
            native = classes(self.core).device(
                self.vendor(domain), index, max_in_flight=limit, features=self.program.features
            )
            settings = self.core._settings.MemorySettings(**dict(self.program.settings))
            device = self.core._device.Device(f"acme{domain}", native, None, settings)
            self.devices[key] = device
        return device

    def build(self, program):
        """Make a program's queues, semaphores and buffers; the progress thread is parked."""
        self.program = program
        for module, name, value in program.constants:
            setattr(getattr(self.core, module), name, value)  # until the next reset
        limits = {}
        for spec in program.queues.values():
            key = (spec.domain, spec.device)
            limits[key] = min(limits.get(key, 512), spec.limit)
        for op in program.operations().values():
            if op.refused:
                self.labels[op.value] = ("refused", op.name)
        for name, spec in program.queues.items():
            device = self.device(spec.domain, spec.device, limits[spec.domain, spec.device])
            self.queues[name] = device.create_queue(name=name, ordered=spec.ordered)
        for op in program.operations().values():
            if op.recorded:
                spec = program.queues[op.queue]
                self.record(spec.domain, spec.device)
        for name in program.semaphores:
            self.semaphores[name] = self.core.hal.create_semaphore(name=name)
        homes = {}
        for op in program.operations().values():
            spec = program.queues[op.queue]
            for buffer in (op.target, op.source):
                if buffer is not None:
                    homes[buffer] = (spec.domain, spec.device)
        for name in program.buffers:
            if name in homes:
                buffer = self.devices[homes[name]].allocate(8)
                self.buffers[name] = buffer
                self.addresses[name] = buffer.address
                vendor = self.vendors[homes[name][0]]
                memory, offset = vendor.locate(buffer.address, 8, "setup")
                memory[offset : offset + 8] = bytes(8)
        self.settle()

    def record(self, domain, index):
        """Make a device's recording, which copies slot 0 to slot 1 after a fill of that."""
        if (domain, index) not in self.recordings:
            commands = self.devices[domain, index].record(
                slots=[("u1", 8), ("u1", 8)], command_buffer=self.program.lowering
            )
            with commands:
                commands.fill(commands.slots[1], SCRATCH)
                commands.barrier()
                commands.copy(*commands.slots)
            self.recordings[domain, index] = commands

    def start(self):
        """Begin to explore: choices are made and everything is watched from here on."""
        if self.scheduler.reduction is not None:
            self.scheduler.reduction.recording = True
        self.scheduler.order_locks = self.order_locks or not self.core.tracked
        self.monitored = True
        self.scheduler.on_released = self.check_invariants
        self.scheduler.quiet = False

    def stop(self):
        """End exploring: what follows is decided, and as fast as can be."""
        if self.scheduler.reduction is not None:
            self.scheduler.reduction.end()
            self.scheduler.reduction = None
        self.scheduler.quiet = True
        self.core.tracking = False

    # Watching

    def _baton(self, queue, value):
        s = self.scheduler
        if s.dead or sync.ACTIVE is not s:
            return
        me = s.current
        if value is None or value is False:
            self.owners.pop(id(queue), None)
            return
        _, owner = self.owners.get(id(queue), (None, None))
        if owner is not None and owner is not me:
            s.report("I5", f"{me.name} takes the baton of {queue.name}, which {owner.name} holds")
        for other, thread in self.owners.values():
            if thread is me and other is not queue:
                s.report("I5", f"{me.name} holds the batons of {other.name} and of {queue.name}")
        self.owners[id(queue)] = (queue, me)

    def _check_returned(self, allocator, block):
        """Report a block that goes into the cache while native work may use it (I4)."""
        if self.scheduler.dead or sync.ACTIVE is not self.scheduler:
            return
        native = allocator._context.native
        if not native.lost:
            native.vendor.check_idle(block.address, block.size, "memory goes into the cache")

    def _is_pooled(self, handle):
        # Noted like any access: the order of this and of a return to the pool matters.
        s = self.scheduler
        s.no_points = True
        try:
            return any(
                event.handle == handle
                for device in self.devices.values()
                for event in device._context.events._free
            )
        finally:
            s.no_points = False

    def check_invariants(self):
        """Compare the core's state with what the device has done; after each hold of the lock."""
        if not self.monitored:
            return
        s = self.scheduler
        ops = self.program.operations() if self.program else {}
        done = self.core._operation.DONE
        was_tracking, self.core.tracking = self.core.tracking, False
        try:
            for name, submission in self.submissions.items():
                if submission._state != done or name in self.verified:
                    continue
                self.verified.add(name)
                op = ops[name]
                # Whether the work has run depends on what the device has done up to here.
                native = self.queues[op.queue]._native
                for stream in native.vendor.streams.values():
                    if stream.device is native:
                        s.note_read(stream.done)
                if op.target is not None and not self.has_run(op):
                    s.report("I3", f"operation {name} is done and its work has not run")
                for wait in (*op.wait, *op.defer):
                    if isinstance(wait, str):
                        if not self.may_be_done(wait):
                            s.report("I3", f"{name} is done and {wait}, which it waits for, is not")
                    elif not any(value >= wait[1] for value in self.brought(ops, wait[0])):
                        s.report(
                            "I3",
                            f"{name} is done and waits for {wait}, which nothing has brought about",
                        )
            for name, semaphore in self.semaphores.items():
                value = semaphore._value
                if value and value not in self.brought(ops, name) and semaphore._failure is None:
                    s.report("I3", f"{name} is {value}, which nothing that is done has signalled")
        finally:
            self.core.tracking = was_tracking

    def may_be_done(self, name):
        """Return whether an operation is done, or is while its submission has not returned."""
        submission = self.submissions.get(name)
        return submission is None or submission._state == self.core._operation.DONE

    def brought(self, ops, name):
        """Return the values of a semaphore that what is done, or the host, has signalled."""
        values = {value for s, value in self.signalled if s == name}
        for o in self.submitted:
            if self.may_be_done(o):
                values.update(value for s, value in ops[o].signal if s == name)
        return values

    def has_run(self, op):
        vendor = self.vendors[self.program.queues[op.queue].domain]
        if op.source is None:
            return op.value in vendor.ran
        return (self.addresses[op.target], self.addresses[op.source]) in vendor.ran

    # Actions

    def act(self, action):
        """Do one action of a program; return its result as the model writes it."""
        core = self.core
        errors = core.errors
        kind = action[0]
        try:
            if kind == "submit":
                self.submit(action[1])
            elif kind == "signal":
                # From here on the value may be seen, so it is noted before.
                self.signalled.add((action[1], action[2]))
                self.semaphores[action[1]].signal(action[2])
            elif kind == "fail":
                self.semaphores[action[1]].fail(errors.OperationError(action[2]))
            elif kind == "wait":
                self.semaphores[action[1]].wait(action[2])
            elif kind == "wait_op":
                self.submissions[action[1]].wait()
            elif kind == "any":
                return core.hal.wait_any(self.points(action[1]))
            elif kind == "all":
                core.hal.wait_all(self.points(action[1]))
            elif kind == "poll":
                return self.semaphores[action[1]].poll(action[2])
            elif kind == "query":
                return self.semaphores[action[1]].query()
            elif kind == "done":
                return self.submissions[action[1]].done
            elif kind == "flush":
                self.queues[action[1]].flush()
            elif kind == "close":
                left = self.queues[action[1]].close()
                if left:
                    return f"left {left}"
            elif kind == "callback":
                _, name, s, v = action
                self.called[name] = []
                self.callbacks[name] = self.semaphores[s].on_reached(
                    v, lambda error: self.called[name].append(self.label(error))
                )
            elif kind == "drop":
                # No frame may hold it: the last reference goes here.
                del self.buffers[action[1]]
            elif kind == "cancel":
                return self.callbacks[action[1]].cancel()
            else:
                raise ValueError(action)
        except errors.HalError as error:
            return self.label(error)
        return "ok"

    def points(self, entries):
        return [
            self.submissions[e] if isinstance(e, str) else self.semaphores[e[0]].at(e[1])
            for e in entries
        ]

    def submit(self, op):
        self.submitted.add(op.name)
        queue = self.queues[op.queue]
        wait = self.points(op.wait)
        signal = [self.semaphores[s].at(v) for s, v in op.signal]
        if op.host:
            submission = queue.call(self.points, op.defer, wait=wait, signal=signal)
        elif op.recorded:
            device = self.program.queues[op.queue]
            submission = queue.execute(
                self.recordings[device.domain, device.device],
                bindings=[self.buffers[op.source], self.buffers[op.target]],
                wait=wait,
                signal=signal,
            )
        elif op.source is not None:
            submission = queue.copy(
                self.buffers[op.source], self.buffers[op.target], wait=wait, signal=signal
            )
        elif op.target is not None:
            submission = queue.fill(self.buffers[op.target], op.value, wait=wait, signal=signal)
        else:
            submission = queue.barrier(wait=wait, signal=signal)
        self.submissions[op.name] = submission

    def label(self, error):
        """Return how the model calls an error."""
        errors = self.core.errors
        if error is None:
            return "ok"
        if isinstance(error, errors.CancelledError):
            return "cancelled"
        if isinstance(error, errors.ClosedError):
            return "closed"
        if isinstance(error, errors.InvalidArgumentError):
            return "invalid"
        if isinstance(error, errors.DeviceLostError):
            return "lost"
        return str(error)

    # The end

    def settle(self):
        """Let everything else run until it is blocked; touch nothing of the core."""
        s = self.scheduler
        me = s.current
        gate = _Quiet(s, me)
        for _ in range(200):
            me.where = "settle"
            me.waits = gate
            s.switch()
            me.waits = None
            short = [
                thread
                for thread in s.threads
                if thread.where != "end"
                and thread.deadline is not None
                and thread.deadline - s.seconds <= NET_SECONDS
            ]
            if not short:
                return
            s._expire()

    def status(self, submission):
        state = submission.state
        if state in ("failed", "cancelled"):
            label = self.label(submission.error)
            if state == "cancelled" and label != "cancelled":
                label = f"{state}: {label}"
            return label
        return state

    def check_nothing_forgotten(self):
        """Fail if an operation, a callback or a waiter could go on and nobody will see to it."""
        program = self.program
        model = Model(program)
        state = State()
        names = {0: "pending", 1: "pending", 2: "issued"}
        raw = {name: sub._state for name, sub in self.submissions.items()}
        state.status = {
            name: names.get(raw[name], "ended") if name in raw else "absent"
            for name in program.operations()
        }
        done = self.core._operation.DONE
        for name, number in raw.items():
            if number == done:
                state.status[name] = "done"
        state.values = {name: s._value for name, s in self.semaphores.items()}
        state.values.update({name: int(number == done) for name, number in raw.items()})
        state.failed = {
            name: self.label(s._failure)
            for name, s in self.semaphores.items()
            if s._failure is not None
        }
        for name, number in raw.items():
            if number > done:
                state.failed[name] = self.label(self.submissions[name]._error)
        state.order = {}
        for queue_name, queue in self.queues.items():
            mine = [n for n in raw if program.operations()[n].queue == queue_name]
            waiting = [
                next(n for n in mine if self.submissions[n] is operation)
                for operation in queue._backlog
                if operation._state < 2
            ]
            rest = [n for n in mine if n not in waiting]
            state.order[queue_name] = (*rest, *waiting)
        state.reserved = dict.fromkeys(state.values, 0)
        state.closed, state.must, state.promised = set(), set(), {}
        state.deps = dict.fromkeys(state.status, ())
        state.buffers, state.callbacks, state.counters, state.results = {}, {}, [], []
        for name, status in state.status.items():
            if status == "pending" and model.issue(state, name)[1] == "must":
                self.scheduler.fail("forgotten", f"operation {name} can be issued and nobody does")
        for name, op in program.operations().items():
            if state.status[name] == "issued" and op.defer and model.retire(state, name):
                self.scheduler.fail("forgotten", f"what {name} deferred its end to has come")
        for name, semaphore in self.semaphores.items():
            waiters = semaphore._reached
            if waiters is None or semaphore._failure is not None:
                continue
            points = semaphore._points
            if points and waiters.any_up_to(points[-1][0]):
                self.scheduler.fail(
                    "forgotten",
                    f"somebody waits for {name} to be reached and nobody retires for it",
                )

    def outcome(self, ended, results):
        """Return what can be seen at the end, as the model writes it."""
        ops = self.program.operations()
        # Whoever asks retires; twice, as one queue's end can release another's beginning.
        for _ in range(len(ops) + 1):
            for submission in self.submissions.values():
                submission.state  # noqa: B018 - it asks the device
            self.settle()
        statuses = tuple(
            sorted(
                (
                    name,
                    self.status(self.submissions[name]) if name in self.submissions else "absent",
                )
                for name in ops
            )
        )
        semaphores = []
        for name, semaphore in self.semaphores.items():
            try:
                semaphores.append((name, semaphore.query()))
            except self.core.errors.HalError as error:
                semaphores.append((name, self.label(error)))
        buffers = []
        for name in self.program.buffers:
            value = 0
            if name in self.addresses and name not in self.buffers:
                value = "dropped"
            elif name in self.buffers:
                buffer = self.buffers[name]
                vendor = buffer.device._native.vendor
                data = vendor.peek(buffer._address, 8)
                value = data[0] if len(set(data)) == 1 else data.hex()
            buffers.append((name, value))
        calls = []
        for name, what in self.called.items():
            if name not in self.callbacks:
                continue
            cancelled = self.callbacks[name]
            if len(what) > 1:
                self.scheduler.fail("S8", f"callback {name} was called {len(what)} times: {what}")
            calls.append((name, what[0] if what else cancelled))
        return (
            ended,
            tuple(tuple(r) for r in results),
            statuses,
            tuple(semaphores),
            tuple(sorted(buffers)),
            calls,
        )

    def check_clean(self):
        """Fail if anything is still registered although everything has ended."""
        s = self.scheduler
        for name, semaphore in self.semaphores.items():
            for waiters in (semaphore._recorded, semaphore._reached):
                if waiters is None or not len(waiters):
                    continue
                left = [w for bucket in waiters._buckets.values() for w in bucket]
                # Pending operations and callbacks may wait for ever; threads have all left.
                kinds = {type(w).__name__ for w in left}
                stale = [
                    w
                    for w in left
                    if "Waiter" in type(w).__name__
                    or (hasattr(w, "_state") and not self.may_wait(w))
                ]
                if stale:
                    s.fail("leak", f"{name} keeps {kinds} registered")
        for queue in self.all_queues():
            if queue._leader is not None or queue._followers:
                s.fail("leak", f"{queue.name} keeps a leader or followers")
            if queue._issuing not in (None, False):
                s.fail("leak", f"the baton of {queue.name} was never let go")

    def may_wait(self, operation):
        """Return whether an operation may be registered for a wait."""
        if operation._state == self.core._operation.PENDING:
            return True
        hosts = self.core._host_operations
        return operation._queue._hosts.get(operation) == hosts.DEFERRED

    def all_queues(self):
        for device in self.devices.values():
            yield from device._context.queues

    def close_device(self, device, timeout=5.0):
        """Close a device; return what it says that it had to abandon."""
        left = device.close(timeout)
        if left:
            self.abandoned.add(device)
        return left

    def close(self):
        """Close every device; fail if something native is left that need not be (I7)."""
        s = self.scheduler
        self.buffers.clear()
        self.recordings.clear()
        for device in self.devices.values():
            lost = device._context.lost is not None
            left = self.close_device(device)
            if left and not lost:
                s.fail("Q6", f"close had to abandon {left}")
        self.settle()
        for device in self.devices.values():
            self.check_left(device, device._native)
        for vendor in self.vendors.values():
            vendor.end_hangs()
        for name, submission in self.submissions.items():
            if submission._state < self.core._operation.DONE:
                s.fail("I2", f"operation {name} never ended, though its device is closed")

    def check_left(self, device, native):
        """Check what the close of a device has left of it."""
        s = self.scheduler
        if device in self.abandoned:
            # Its work goes on some time, and needs all that it uses (Q6).
            if native.closed:
                s.fail("Q6", f"the context of {device.name} was released under abandoned work")
            return
        if not native.closed:
            s.fail("I7", f"the context of {device.name} was never released")
        # A lost context takes along what was made in it.
        live = native.vendor.live(native)
        if live and device._context.lost is None:
            s.fail("I7", f"after close these are alive: {live}")


class ProgramCase:
    """Be the case of a program, run on a copy of the core with `patches`."""

    def __init__(self, program, *, patches=(), track=True, lines=False, races=None, nets=False):
        self.program = program
        self.name = program.name
        self.patches = tuple(patches)
        self.track = track
        self.lines = lines
        self.races = races
        self.nets = nets  # whether a safety net may expire

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
        if not self.nets and scheduler.net_expiries:
            scheduler.fail("lost wake-up", "progress came only from a safety net")
        world.settle()
        world.check_nothing_forgotten()
        observed = world.outcome(tuple(ended), results)
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
