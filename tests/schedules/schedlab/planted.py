"""List bugs to plant in copies of the core, each with the case that must find it.

A mutant is a few textual patches. A patch that no longer applies is an error,
so that a mutant cannot rot into a copy of the true core.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from schedlab.loader import Patch

SEEN = "            if queue is not self and self._seen.get(queue._id, 0) < point._sequence:"
"""Where the core decides that a stream must wait for a point."""


@dataclass(frozen=True)
class Mutant:
    """Which bug is planted, and which case must find it."""

    name: str
    case: str
    patches: tuple
    lines: bool = field(default=False)  # whether threads may switch at any line of the core


MUTANTS = (
    Mutant(
        "a release without a stream wait on the releasing point",
        "late/two",
        (
            Patch(
                "_engine.stream",
                SEEN,
                "            if False:",
            ),
        ),
    ),
    Mutant(
        "a countdown that is not atomic",
        "two releases",
        (
            Patch(
                "_engine.progress",
                "    with timelines.lock:\n        batch.take(budget)\n",
                "    if True:\n        batch.take(budget)\n",
            ),
            Patch(
                "_engine.stream",
                "            operation._unresolved &= ~bit\n",
                "            left = operation._unresolved\n"
                "            left &= ~bit\n"
                "            operation._unresolved = left\n",
            ),
        ),
        lines=True,
    ),
    Mutant(
        "a waiter that trusts the event alone",
        "lost device",
        (
            Patch(
                "_engine.waiting",
                "                may_poll = self._poll(self._points, step)\n",
                "                may_poll = self._poll(self._points, step)\n"
                "                if may_poll:\n"
                "                    self._failure, self._index = None, 0\n"
                "                    break\n",
            ),
        ),
    ),
    Mutant(
        "a wait that ends with the first event that it has asked",
        "lost device",
        (
            Patch(
                "_engine.semaphore",
                "            spin_for(self, value, timeout)\n",
                "            spin_for(self, value, timeout)\n            return\n",
            ),
        ),
    ),
    Mutant(
        "an event that is asked and may be destroyed meanwhile",
        "close while asked",
        (
            Patch(
                "_engine.ring",
                "            step.contexts = self._contexts\n            return True",
                "            return True",
            ),
            Patch(
                "_engine.spin",
                "        step.contexts = queue._contexts\n",
                "",
            ),
        ),
    ),
    Mutant(
        "an event that goes back to the pool while it is held",
        "close producer/two",
        (
            Patch(
                "_engine.stream",
                "            for point in stream_waits:\n                point._event.count += 1\n",
                "            pass\n",
            ),
        ),
    ),
    Mutant(
        "a submission that has failed counts as done",
        "handle fails/two",
        (Patch("_engine.stream", "elif wait._state == DONE:", "elif wait._state >= DONE:"),),
    ),
    Mutant(
        "a submission counts as issued before its event is recorded",
        "handle pending/two",
        (
            Patch(
                "_engine.stream", "if submission._state != ISSUED or", "if submission._state < 1 or"
            ),
        ),
    ),
    Mutant(
        "a stream waits for another driver's submission",
        "handle/domains",
        (
            Patch(
                "_engine.stream",
                "return submission if submission._queue._domain is self._domain else None",
                "return submission",
            ),
        ),
    ),
    Mutant(
        "retirement that is not causal",
        "chain/two",
        (
            Patch(
                "_engine.ring",
                "for other in head._dependencies or ():",
                "for other in ():",
            ),
        ),
    ),
    Mutant(
        "a publish before its record",
        "chain/unordered",
        (
            Patch(
                "_engine.stream",
                "                native.record_event(event.handle, stream)\n"
                "        except Exception as error:  # noqa: BLE001 - raised again",
                "                with timelines.lock:\n"
                "                    operation._event = event\n"
                "                    operation._sequence = self._sequence + 1\n"
                "                    for s, v in operation._signals:\n"
                "                        s._publish(v, operation, step.work)\n"
                "                native.record_event(event.handle, stream)\n"
                "        except Exception as error:  # noqa: BLE001 - raised again",
            ),
        ),
    ),
    Mutant(
        "a value reserved at retirement",
        "same value/one",
        (
            Patch(
                "_engine.stream",
                "        if semaphore._failure is None and semaphore._reserved < value:\n"
                "            semaphore._reserved = value\n",
                "        pass\n",
            ),
        ),
    ),
    Mutant(
        "nobody retires for a poller",
        "polled",
        (
            Patch(
                "_engine.semaphore",
                "        if is_open and not steps.is_inside():\n"
                "            progress.act(_harvest, self, None)\n",
                "",
            ),
        ),
    ),
    Mutant(
        "two batons at once",
        "chain/two",
        (
            Patch(
                "_engine.stream",
                "        self._issuing = None\n        return None\n\n    def _break_off",
                "        return None\n\n    def _break_off",
            ),
            Patch(
                "_engine.stream",
                "        step.queue = None\n        return count",
                "        progress.drain(step)\n"
                "        with timelines.lock:\n"
                "            self._issuing = None\n"
                "        step.queue = None\n"
                "        return count",
            ),
        ),
    ),
    Mutant(
        "a call that leaves its step open",
        "chain/two",
        (
            Patch(
                "_engine.stream",
                "        step.queue = None\n        return count",
                "        return count",
            ),
        ),
    ),
    Mutant(
        "a finaliser that takes a lock",
        "finalised",
        (
            Patch(
                "_memory.heap",
                "        self._doomed.append(what)\n",
                "        with self._lock:\n            self._doomed.append(what)\n",
            ),
        ),
    ),
    Mutant(
        "a sleeper that relies on who polls",
        "follower leaves/one",
        (
            Patch(
                "_engine.waiting",
                "timeline._until_reached(value, work).watch(value, self, position)",
                "timeline._until_reached(timelines.MAX_VALUE, work).watch(value, self, position)",
            ),
        ),
    ),
    Mutant(
        "a leader that never steps down",
        "hang and time out",
        (
            Patch(
                "_engine.waiting",
                "self._registered:\n                    self._stop_leading()",
                "self._registered:\n                    self._leads.clear()",
            ),
        ),
    ),
    Mutant(
        "a waiter that registers for what is reached by then",
        "held in pieces",
        (
            Patch(
                "_engine.waiting",
                "            if known is None:\n                self._wake(work)\n",
                "",
            ),
        ),
    ),
    Mutant(
        "a released wait that only counts down",
        "late/domains",
        (
            Patch(
                "_engine.stream",
                "        elif self._resolve(operation, index, timeline, value, work):\n"
                "            if operation._unresolved == bit:",
                "        elif True:\n            if operation._unresolved == bit:",
            ),
        ),
    ),
    Mutant(
        "a failure that stops at the first signal",
        "two signals refused",
        (
            Patch(
                "_engine.ring",
                "            for timepoint in operation._signals:\n"
                "                semaphore = timepoint._semaphore\n"
                "                semaphore._fail(error, work)",
                "            for timepoint in operation._signals[:1]:\n"
                "                semaphore = timepoint._semaphore\n"
                "                semaphore._fail(error, work)",
            ),
        ),
    ),
    Mutant(
        "a cancel that leaves the callback",
        "cancel/one",
        (
            Patch(
                "_engine.semaphore",
                "            found = self._semaphore._forget(self._value, self)",
                "            found = True",
            ),
        ),
    ),
    Mutant(
        "a publication that releases nobody",
        "chain/two",
        (
            Patch(
                "_engine.timelines",
                "        if self._recorded:\n"
                "            self._recorded.take(value, work)\n"
                "        if self._reached and self._reached.any_up_to(value):",
                "        if self._reached and self._reached.any_up_to(value):",
            ),
        ),
    ),
    Mutant(
        "a baton let go without looking again",
        "refused/two",
        (
            Patch(
                "_engine.stream",
                "        if self._backlog:\n            if more:",
                "        if False:\n            if more:",
            ),
        ),
    ),
    Mutant(
        "an elided wait for a later point than was waited for",
        "second wait",
        (
            Patch(
                "_engine.stream",
                SEEN,
                "            if queue is not self and queue._id not in self._seen:",
            ),
        ),
    ),
    Mutant(
        "an abandoned operation whose resources are dropped",
        "abandoned read",
        (Patch("_engine.context", "_left_behind.extend(queue._in_use())", "pass"),),
    ),
    Mutant(
        "a context that is released under abandoned work",
        "close abandons",
        (Patch("_devices.device", "release_context=not abandoned", "release_context=True"),),
    ),
    Mutant(
        "a failure that is not passed on at retirement",
        "lost dependency",
        (Patch("_engine.ring", "if other._state != DONE and head._state == ISSUED:", "if False:"),),
    ),
    Mutant(
        "a lost device that another one's event hides",
        "lost dependency",
        (
            Patch(
                "_engine.ring",
                "            elif waited._queue._context is not self._context:",
                "            elif False:",
            ),
        ),
    ),
    Mutant(
        "a broken-off issue whose resources are dropped at once",
        "fault/2",
        (
            Patch(
                "_engine.stream",
                "            if event is not None:\n"
                "                self._enter_ring(operation, event)\n"
                "            else:\n"
                "                operation._retired = True",
                "            if False:\n"
                "                self._enter_ring(operation, event)\n"
                "            else:\n"
                "                operation._retired = True",
            ),
        ),
    ),
    Mutant(
        "a graph instance that two streams launch",
        "two tables, graph/two",
        (
            Patch(
                "_commands.instances",
                "not self.broken and (self.stream == stream or self.lease() is None)",
                "not self.broken",
            ),
        ),
    ),
    Mutant(
        "a graph instance chosen outside of the pool's lock",
        "two tables, graph/two",
        (
            Patch(
                "_commands.instances",
                "        with self._lock:\n            instance = self._choose(stream, table)\n",
                "        instance = self._choose(stream, table)\n        with self._lock:\n",
            ),
        ),
    ),
    Mutant(
        "a graph instance that keeps its old table",
        "one after another, graph/one",
        (Patch("_commands.playback", "elif instance.replica.table != addresses:", "elif False:"),),
    ),
    Mutant(
        "a replica that two executions bind",
        "two tables, stream/two",
        (
            Patch(
                "_commands.playback", "replica = self._spares.pop()", "replica = self._spares[-1]"
            ),
        ),
    ),
    Mutant(
        "a deferred call that ends at the first of its waits",
        "deferred twice/two",
        (
            Patch(
                "_engine.host_calls",
                "                if operation._unresolved:\n                    return\n",
                "",
            ),
        ),
    ),
    Mutant(
        "a deferred call that nobody ends",
        "deferred/one",
        (
            Patch(
                "_engine.stream",
                "            if operation._state == DEFERRED:\n                self._resume",
                "            if False:\n                self._resume",
            ),
        ),
    ),
    Mutant(
        "memory that does not wait for its dealloca",
        "dealloca waits",
        (
            Patch(
                "_buffers.alloca",
                "    payload = _payload(_Give(storage), storage)\n",
                "    payload = _payload(_Give(storage), storage)\n"
                "    storage.uses = []\n"
                "    storage.source and storage._heap.give(storage, storage.source)\n",
            ),
        ),
    ),
    Mutant(
        "memory that comes back beside another queue's use",
        "use beside dealloca",
        (
            Patch(
                "_memory.storage",
                "            if use is not operation and not is_behind(use, queue):\n"
                "                return False\n",
                "            pass\n",
            ),
        ),
    ),
    Mutant(
        "a block for a queue that has not waited",
        "one block, two queues",
        (
            Patch("_memory.stream_memory", "            if seen:\n", "            if key >= 0:\n"),
            Patch(
                "_memory.stream_memory",
                "                    if is_behind(piece.points[0], queue):\n",
                "                    if True:\n",
            ),
        ),
    ),
    Mutant(
        "memory that is reserved when an alloca is submitted",
        "reserved at issue",
        (
            Patch(
                "_buffers.alloca",
                "    buffer = Buffer(device, storage, 0, length, element, shape)\n",
                "    buffer = Buffer(device, storage, 0, length, element, shape)\n"
                "    device._heap.provide(queue, storage)\n"
                "    device._heap.take(queue, storage)\n",
            ),
            Patch(
                "_memory.heap",
                "        if storage.is_async:\n            return self._take",
                "        if storage._ticket is not None:\n"
                "            return True\n"
                "        if storage.is_async:\n            return self._take",
            ),
        ),
    ),
    Mutant(
        "an alloca that does not wait for what runs",
        "resumed by dealloca",
        (Patch("_buffers.alloca", "        is_any = False\n", "        return False\n"),),
    ),
    Mutant(
        "an alloca that waits where nothing runs",
        "nothing comes back",
        (Patch("_buffers.alloca", "        is_any = False\n", "        return True\n"),),
    ),
    Mutant(
        "a starved alloca that a close forgets",
        "starved and closed",
        (
            Patch(
                "_engine.stream",
                "each._state in {PENDING, PARTLY, STARVED}",
                "each._state in {PENDING, PARTLY}",
            ),
        ),
    ),
    Mutant(
        "a copy that does not keep its source",
        "dealloca under work",
        (
            Patch(
                "_transfers.transfers",
                "resources = (target_storage, source_storage, host)",
                "resources = (target_storage, host)",
            ),
        ),
    ),
    Mutant(
        "a staging slot given back before its copy has ended",
        "staged writes",
        (
            Patch(
                "_memory.staging",
                "        self._wait(busy[0])\n        self._give(",
                "        self._give(",
            ),
        ),
    ),
    Mutant(
        "a staging slot that is read before its copy has ended",
        "staged read",
        (
            Patch(
                "_memory.staging",
                "            self._wait(busy[0])\n            drain(",
                "            drain(",
            ),
        ),
    ),
    Mutant(
        "a staging slot that two operations get",
        "staged writes",
        (
            Patch(
                "_memory.staging",
                "                self._free.append(slot)\n"
                "            else:\n"
                "                waiter.slot = slot",
                "                pass\n"
                "            self._free.append(slot)\n"
                "            if waiter is not None:\n"
                "                waiter.slot = slot",
            ),
        ),
    ),
    Mutant(
        "points in the order of their publication",
        "overtaken point",
        (
            Patch(
                "_engine.timelines",
                "            insort(points, (value, operation))",
                "            points.append((value, operation))",
            ),
        ),
    ),
    Mutant(
        "a point that is overtaken is left out",
        "overtaken point",
        (
            Patch(
                "_engine.timelines",
                "            insort(points, (value, operation))",
                "            return",
            ),
        ),
    ),
    Mutant(
        "a point that is overtaken comes first of all",
        "overtaken point",
        (
            Patch(
                "_engine.timelines",
                "            insort(points, (value, operation))",
                "            points.insert(0, (value, operation))",
            ),
        ),
    ),
    Mutant(
        "a stream wait noted before the driver has taken it",
        "refused wait_event",
        (
            Patch(
                "_engine.stream",
                "                    native.wait_event(stream, point._event.handle)\n"
                "                    self._seen[point._queue._id] = point._sequence\n",
                "                    self._seen[point._queue._id] = point._sequence\n"
                "                    native.wait_event(stream, point._event.handle)\n",
            ),
        ),
    ),
    Mutant(
        "a refused operation that keeps what it depends on",
        "refused wait_event",
        (
            Patch(
                "_engine.stream",
                "            work.append((DROP, operation._dependencies))\n"
                "            operation._dependencies = None\n",
                "",
            ),
        ),
    ),
    Mutant(
        "a refused operation that keeps the events of its waits",
        "refused wait_event",
        (
            Patch(
                "_engine.stream",
                "            self._release_waits(operation)\n            shared, operation._shared",
                "            shared, operation._shared",
            ),
        ),
    ),
    Mutant(
        "a failure that does not wake who counts",
        "all fails/one",
        (
            Patch(
                "_engine.waiting",
                "if self._missing <= 0 or self._registered[index]._semaphore._failure is not None:",
                "if self._missing <= 0:",
            ),
        ),
    ),
    Mutant(
        "an elided wait that is no dependency",
        "lost dependency",
        (
            Patch(
                "_engine.stream",
                "            if dependencies is None:\n"
                "                dependencies = [point]\n"
                "            else:\n"
                "                dependencies.append(point)\n"
                "            queue = point._queue\n" + SEEN + "\n",
                "            queue = point._queue\n"
                + SEEN
                + "\n                dependencies = [*(dependencies or ()), point]\n",
            ),
        ),
    ),
    Mutant(
        "a graph instance whose update was refused is used again",
        "refused update_graph",
        (
            Patch(
                "_commands.playback",
                "        instance.broken = True  # unless all goes well\n",
                "",
            ),
        ),
    ),
)
