"""What a program runs on: a private copy of the core over fake devices, and its actions."""

from schedlab.fake import classes
from schedlab.programs import SCRATCH
from schedlab.vendor import Vendor
from schedlab.watching import Watching

NET_SECONDS = 0.01

CLOSING_SECONDS = 0.01
"""What the close of a device may take on which all has ended."""


class _Quiet:
    """Open once every other thread is blocked and the device has nothing to do."""

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


class World(Watching):
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
        super().__init__(core, scheduler)
        core.reset()
        scheduler.timeline_lock = core.timelines.lock
        scheduler.names[id(core.timelines.lock)] = "the timeline lock"
        scheduler.names[id(core.progress._progress._starting)] = "the progress thread's lock"
        scheduler.quiet = True
        if scheduler.reduction is not None:
            scheduler.reduction.recording = False
        core.tracking = bool(core.tracked)
        self.buffers = {}
        self.recordings = {}
        self.callbacks = {}
        self.called = {}
        self.abandoned = set()  # devices whose close gave up
        self.labels = {}  # pattern -> (what goes wrong, name of the operation)
        scheduler.is_broken = self.is_broken
        self.watch()

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
            settings = self.core.settings.MemorySettings(**dict(self.program.settings))
            device = self.core.device.Device(f"acme{domain}", native, None, settings)
            self.devices[key] = device
        return device

    def build(self, program):
        """Make a program's queues, semaphores and buffers; the progress thread is parked."""
        self.program = program
        for module, name, value in program.constants:
            copy = self.core.modules[f"{self.core.package}.{module}"]
            setattr(copy, name, value)  # until the next reset
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

    # Actions

    def act(self, action):
        """Do one action of a program; return its result as the model writes it."""
        result = self._act(action)
        self.scheduler.note_end(f"{action[0]} of {self.scheduler.current.name}")
        return result

    def _act(self, action):
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
            elif kind == "recall":
                return self.submissions[action[1]].cancel()
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

    def is_broken(self):
        """Return whether a device is lost, or work on it hangs."""
        return any(
            stream.device.lost or any(item.hangs for item in stream.items[stream.head :])
            for vendor in self.vendors.values()
            for stream in vendor.streams.values()
        ) or any(device.lost for device in self.devices.values())

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
            if queue._leader is not None:
                s.fail("leak", f"{queue.name} keeps a leader")
            if queue._issuing not in (None, False):
                s.fail("leak", f"the baton of {queue.name} was never let go")
        for step in self.core.steps.all_steps():
            if step.is_open() or step.later or step.mark.locked():
                s.fail("O3", "a thread has left a step with something to do")

    def check_events(self):
        """Fail if an event of an idle device is not back in its pool."""
        for device in self.devices.values():
            context = device._context
            if context.lost is None and not any(queue._ring for queue in context.queues):
                held = context.events.size - len(context.events._free)
                if held:
                    text = f"{held} events of {device.name} never came back to the pool"
                    self.scheduler.fail("leak", text)

    def may_wait(self, operation):
        """Return whether an operation may be registered for a wait."""
        states = self.core.operation
        return operation._state in {states.PENDING, states.DEFERRED}

    def all_queues(self):
        for device in self.devices.values():
            yield from device._context.queues

    def close_device(self, device, timeout=5.0):
        """Close a device; return what it says that it had to abandon."""
        self.scheduler.limits.append(self.scheduler.seconds + timeout)
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
            # What waits natively for abandoned work of another device does not end either.
            lost = device._context.lost is not None or device._native.vendor.hangs(device._native)
            begun = s.seconds
            left = self.close_device(device)
            if not lost and s.seconds - begun > CLOSING_SECONDS:
                s.fail("Q6", f"the close of {device.name} waited for something, and all has ended")
            if left and not lost:
                s.fail("Q6", f"close had to abandon {left}")
        self.settle()
        for device in self.devices.values():
            self.check_left(device, device._native)
        for vendor in self.vendors.values():
            vendor.end_hangs()
        for name, submission in self.submissions.items():
            if submission._state < self.core.operation.DONE:
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
