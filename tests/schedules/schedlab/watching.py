"""Compare the core with what the device has done, while a program runs."""

from schedlab import sync


class Watching:
    """Check a world after every hold of the timeline lock, and what is taken and returned.

    A part of `World`, and what it looks at.
    """

    def __init__(self, core, scheduler):
        self.core = core
        self.scheduler = scheduler
        self.program = None
        self.vendors = {}
        self.devices = {}
        self.queues = {}
        self.semaphores = {}
        self.submissions = {}
        self.addresses = {}
        self.owners = {}
        self.monitored = False
        self.submitted = set()  # also those whose submission has not returned
        self.verified = set()
        self.signalled = set()  # what the host has signalled, or is about to

    def watch(self):
        """Have the copy of the core tell what is taken and returned, until its next reset."""
        self.core.watch_baton(self._baton)
        self.core.returned_callback = self._check_returned

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

    def _check_returned(self, context, block):
        """Report a block that goes into the cache while native work may use it (I4)."""
        if self.scheduler.dead or sync.ACTIVE is not self.scheduler:
            return
        native = context.native
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
        done = self.core.operation.DONE
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
        return submission is None or submission._state == self.core.operation.DONE

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
