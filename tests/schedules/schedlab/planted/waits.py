"""List bugs in waits of the host: polling, sleeping, callbacks."""

from __future__ import annotations

from schedlab.loader import Patch
from schedlab.planted.mutant import Mutant

WAITS = (
    Mutant(
        "a waiter that trusts the event alone",
        "lost device",
        (
            Patch(
                "_engine.waiting",
                "                may_poll = _ask_until(self._points, step, seconds, self)\n",
                "                may_poll = _ask_until(self._points, step, seconds, self)\n"
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
                "            waiting.spin_for(self, value, timeout)\n",
                "            waiting.spin_for(self, value, timeout)\n            return\n",
            ),
        ),
    ),
    Mutant(
        "an event that is asked and may be destroyed meanwhile",
        "close while asked",
        (
            Patch(
                "_engine.retiring",
                "        step.contexts = operation._queue._contexts\n",
                "",
            ),
            Patch(
                "_engine.waiting",
                "        step.contexts = queue._contexts\n",
                "",
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
)
