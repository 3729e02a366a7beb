"""List bugs in failing and closing: what fails with what, and what outlives it."""

from __future__ import annotations

from schedlab.loader import Patch
from schedlab.planted.mutant import Mutant

FAILURES = (
    Mutant(
        "a cancellation that recalls what was issued",
        "recall/one",
        (
            Patch(
                "_engine.ending",
                "    elif state in {PENDING, PARTLY, STARVED, SENT}:\n",
                "    elif state < DONE:\n",
            ),
        ),
    ),
    Mutant(
        "a cancellation that decides before it has the lock",
        "recall/one",
        (
            Patch(
                "_engine.submission",
                "        with timelines.lock:\n"
                "            # Noted first: an interrupted call is repeated.\n",
                "        if self._state > STARVED:\n"
                "            return\n        with timelines.lock:\n",
            ),
            Patch(
                "_engine.submission",
                "from hal._engine.operation import CANCELLED,",
                "from hal._engine.operation import STARVED, CANCELLED,",
            ),
            Patch(
                "_engine.ending",
                "    elif state in {PENDING, PARTLY, STARVED, SENT}:\n",
                "    elif state < DONE:\n",
            ),
        ),
    ),
    Mutant(
        "a cancelled operation that holds up its queue",
        "recall in front/one",
        (
            Patch(
                "_engine.ending",
                "        end(operation, CANCELLED, error, work)\n        queue._cancelled += 1\n",
                "        finish(operation, CANCELLED, error, work)\n"
                "        queue._cancelled += 1\n",
            ),
        ),
    ),
    Mutant(
        "a failure that stops at the first signal",
        "two signals refused",
        (
            Patch(
                "_engine.ending",
                "        for timepoint in operation._signals:\n"
                "            semaphore = timepoint._semaphore\n"
                "            semaphore._fail(error, work)",
                "        for timepoint in operation._signals[:1]:\n"
                "            semaphore = timepoint._semaphore\n"
                "            semaphore._fail(error, work)",
            ),
        ),
    ),
    Mutant(
        "an abandoned operation whose resources are dropped",
        "abandoned read",
        (
            Patch(
                "_engine.ending",
                "            left_behind.append(operation._resources)\n",
                "            pass\n",
            ),
        ),
    ),
    Mutant(
        "a context that is released under abandoned work",
        "close abandons",
        (Patch("_devices.lifecycle", "release_context=not abandoned", "release_context=True"),),
    ),
    Mutant(
        "a failure that is not passed on at retirement",
        "lost dependency",
        (
            Patch(
                "_engine.retiring",
                "if other._state != DONE and head._state == ISSUED:",
                "if False:",
            ),
        ),
    ),
    Mutant(
        "a lost device that another one's event hides",
        "lost dependency",
        (
            Patch(
                "_engine.retiring",
                "        elif waited._queue._context is not context:",
                "        elif False:",
            ),
        ),
    ),
    Mutant(
        "a broken-off issue whose resources are dropped at once",
        "fault/2",
        (
            Patch(
                "_engine.issuing",
                "        if event is not None:\n            enter(operation, event)\n",
                "        if False:\n            enter(operation, event)\n",
            ),
        ),
    ),
    Mutant(
        "a refused operation that keeps what it depends on",
        "refused wait_event",
        (
            Patch(
                "_engine.issuing",
                "        work.append((DROP, operation._dependencies))\n"
                "        operation._dependencies = None\n",
                "",
            ),
        ),
    ),
    Mutant(
        "a refused operation that keeps the events of its waits",
        "refused wait_event",
        (
            Patch(
                "_engine.issuing",
                "        _release_waits(operation)\n        _release_shared(operation)\n",
                "        _release_shared(operation)\n",
            ),
        ),
    ),
)
