"""List bugs in the order of work: waits of streams, points, reservations, the baton."""

from __future__ import annotations

from schedlab.loader import Patch
from schedlab.planted.mutant import Mutant

SEEN = "        if other is not queue and queue._seen.get(other._id, 0) < point._sequence:"
"""Where the core decides that a stream must wait for a point."""

ORDER = (
    Mutant(
        "a release without a stream wait on the releasing point",
        "late/two",
        (
            Patch(
                "_engine.backlog",
                SEEN,
                "        if False:",
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
                "_engine.backlog",
                "        operation._unresolved &= ~bit\n",
                "        left = operation._unresolved\n"
                "        left &= ~bit\n"
                "        operation._unresolved = left\n",
            ),
        ),
        lines=True,
    ),
    Mutant(
        "an event that goes back to the pool while it is held",
        "close producer/two",
        (
            Patch(
                "_engine.backlog",
                "            point._event.count += 1\n    elif",
                "    elif",
            ),
        ),
    ),
    Mutant(
        "a submission that has failed counts as done",
        "handle fails/two",
        (Patch("_engine.backlog", "elif wait._state == DONE:", "elif wait._state >= DONE:"),),
    ),
    Mutant(
        "a submission counts as issued before its event is recorded",
        "handle pending/two",
        (
            Patch(
                "_engine.backlog",
                "elif wait._state != ISSUED or",
                "elif wait._state < 1 or",
            ),
        ),
    ),
    Mutant(
        "a stream waits for another driver's submission",
        "handle/domains",
        (
            Patch(
                "_engine.backlog",
                "point = wait if wait._queue._domain is queue._domain else None",
                "point = wait",
            ),
        ),
    ),
    Mutant(
        "retirement that is not causal",
        "chain/two",
        (
            Patch(
                "_engine.retiring",
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
                "_engine.issuing",
                "            queue._record(event.handle, stream)\n"
                "    except Exception as error:  # noqa: BLE001 - raised again",
                "            with timelines.lock:\n"
                "                operation._event = event\n"
                "                operation._sequence = queue._sequence + 1\n"
                "                for s, v in operation._signals:\n"
                "                    s._publish(v, operation, step.work)\n"
                "            queue._record(event.handle, stream)\n"
                "    except Exception as error:  # noqa: BLE001 - raised again",
            ),
        ),
    ),
    Mutant(
        "a value reserved at retirement",
        "same value/one",
        (
            Patch(
                "_engine.backlog",
                "        if semaphore._failure is None and semaphore._reserved < value:\n"
                "            semaphore._reserved = value\n",
                "        pass\n",
            ),
        ),
    ),
    Mutant(
        "two batons at once",
        "chain/two",
        (
            Patch(
                "_engine.backlog",
                "    queue._issuing = None\n    return None\n\n\ndef go_on",
                "    return None\n\n\ndef go_on",
            ),
            Patch(
                "_engine.issuing",
                "    step.queue = None\n    return count",
                "    from hal._engine import progress\n"
                "    progress.drain(step)\n"
                "    with timelines.lock:\n"
                "        first._queue._issuing = None\n"
                "    step.queue = None\n"
                "    return count",
            ),
        ),
    ),
    Mutant(
        "a call that leaves its step open",
        "chain/two",
        (
            Patch(
                "_engine.issuing",
                "    step.queue = None\n    return count",
                "    return count",
            ),
        ),
    ),
    Mutant(
        "a released wait that only counts down",
        "late/domains",
        (
            Patch(
                "_engine.backlog",
                "    elif _resolve(operation, index, timeline, value, work):\n"
                "        if operation._unresolved == bit:",
                "    elif True:\n        if operation._unresolved == bit:",
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
                "_engine.backlog",
                "    if queue._backlog:\n        if more:",
                "    if False:\n        if more:",
            ),
        ),
    ),
    Mutant(
        "an elided wait for a later point than was waited for",
        "second wait",
        (
            Patch(
                "_engine.backlog",
                SEEN,
                "        if other is not queue and other._id not in queue._seen:",
            ),
        ),
    ),
    Mutant(
        "a deferred call that ends at the first of its waits",
        "deferred twice/two",
        (
            Patch(
                "_engine.backlog",
                "        if operation._unresolved == bit:\n            if operation._state",
                "        if operation._state == DEFERRED or operation._unresolved == bit:\n"
                "            if operation._state",
            ),
        ),
    ),
    Mutant(
        "a deferred call that nobody ends",
        "deferred/one",
        (
            Patch(
                "_engine.backlog",
                "if operation._state not in {PENDING, DEFERRED} or",
                "if operation._state != PENDING or",
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
                "_engine.issuing",
                "                _let_wait(queue, point)\n"
                "                queue._seen[point._queue._id] = point._sequence\n",
                "                queue._seen[point._queue._id] = point._sequence\n"
                "                _let_wait(queue, point)\n",
            ),
        ),
    ),
    Mutant(
        "an elided wait that is no dependency",
        "lost dependency",
        (
            Patch(
                "_engine.backlog",
                "        if dependencies is None:\n"
                "            dependencies = [point]\n"
                "        else:\n"
                "            dependencies.append(point)\n"
                "        other = point._queue\n" + SEEN + "\n",
                "        other = point._queue\n"
                + SEEN
                + "\n            dependencies = [*(dependencies or ()), point]\n",
            ),
        ),
    ),
)
