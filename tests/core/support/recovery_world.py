"""The beginning of programs in which calls of ours are broken off: one device, and its checks."""

__all__ = ["WORLD"]

WORLD = """
    import contextlib, itertools, signal, sys, threading
    import hal
    from core_harness import LIMIT, Latch, open_native, wait_until
    from hal._engine.operation import DEFERRED
    from hal.errors import (
        ClosedError, DeadlineExceededError, HalError, InvalidArgumentError, ReentrantCallError
    )
    from native_probe import Probe
    from interrupts import Interrupts, try_pairs

    KIND, OURS = sys.argv[1], hal.__path__[0]
    driver = open_native()

    class World:
        def __init__(self):
            self.probe = Probe(driver.open_device(0, {}))
            self.device = hal.Device("cpu", self.probe, 2 if KIND == "backlog" else None)
            self.buffer = self.device.allocate(64)
            self.gate, self.out = hal.create_semaphore(), hal.create_semaphore()
            self.queue, self.other = self.device.queue, self.device.queues.upload
            self.taken = []
            if KIND == "parts":
                with self.device.record() as self.commands:
                    for queue in (self.queue, self.other, self.queue):
                        with self.commands.on(queue):
                            self.commands.fill(self.buffer, 1)
                        self.commands.barrier()
            if KIND in ("signal", "fail", "cancel"):
                self.fill(self.queue, wait=self.gate.at(1), signal=self.out.at(1))
                self.fill(self.other, wait=self.out.at(1))
            if KIND in ("deferred", "deferred fail"):
                for queue in (self.queue, self.other):
                    signal = self.out.at(1) if queue is self.queue else ()
                    self.taken.append(queue.call(lambda: [self.gate.at(1)], signal=signal))
                wait_until(lambda: {each._state for each in self.taken} == {DEFERRED})
                self.fill(self.queue)
                self.fill(self.other, wait=self.taken[0])

        def fill(self, queue, **order):
            self.taken.append(queue.fill(self.buffer, 1, **order))

        def act(self):
            if KIND == "submit":
                self.fill(self.queue, signal=self.out.at(1))
                self.fill(self.other, wait=self.out.at(1))
            elif KIND == "parts":
                done = self.queue.execute(self.commands, signal=self.out.at(1))
                self.taken.append(done)
                self.fill(self.other, wait=self.out.at(1))
            elif KIND == "pending":
                self.fill(self.queue, wait=self.gate.at(1), signal=self.out.at(1))
                self.gate.signal(1)
            elif KIND in ("signal", "deferred"):
                self.gate.signal(1)
            elif KIND == "wait":
                self.fill(self.queue)
                self.taken[-1].wait(LIMIT)
            elif KIND == "idle":
                self.fill(self.queue)
                self.device.wait_idle(LIMIT)
            elif KIND == "asleep":
                # The work runs until the wait has had the driver ring for it.
                latch, notify = Latch(), self.probe.notify
                self.probe.hold(latch)
                self.probe.notify = lambda *call: (notify(*call), latch.open())
                self.fill(self.queue)
                self.taken[-1].wait(LIMIT)
            elif KIND == "backlog":
                for _ in range(5):
                    self.fill(self.queue)
                self.taken[-1].wait(LIMIT)
            elif KIND == "call":
                self.taken.append(self.queue.call(int))
                self.fill(self.queue)
                self.taken[-1].wait(LIMIT)
            elif KIND == "close":
                self.device.close(LIMIT)
            elif KIND in ("fail", "deferred fail"):
                self.gate.fail(ValueError("x"))
            elif KIND == "cancel":
                self.taken[0].cancel()
            elif KIND == "allocate":
                for size in (64, 100_000, 64):
                    self.device.allocate(size)
                self.device.trim()

        def check(self):
            # Every promise is kept or broken, every queue takes work, nothing is left.
            wrong = []

            def attempt(what, function):
                try:
                    function()
                except DeadlineExceededError as error:
                    wrong.append(f"{what}: {error}")
                except HalError:
                    pass

            def reach(semaphore):
                # A promise is kept, broken or was never made: else its waiters would hang.
                try:
                    semaphore.signal(1)
                except InvalidArgumentError:
                    semaphore.wait(1, LIMIT)

            attempt("gate", lambda: reach(self.gate))
            for each in self.taken:
                attempt("never ends", lambda: each.wait(LIMIT))
            attempt("out", lambda: reach(self.out))
            if KIND.startswith("deferred") and self.taken[0].state != self.taken[1].state:
                wrong.append(f"the calls ended as {self.taken[:2]}")
            if KIND != "close":
                for queue in (self.queue, self.other):
                    attempt("stuck", lambda: queue.fill(self.buffer, 9).wait(LIMIT))
                if self.device.lost:
                    wrong.append("lost")
            wrong += self.device.close(LIMIT)
            return wrong + self.probe.violations
"""
