"""List bugs in memory: finalisers, what is in the order of queues, staging."""

from __future__ import annotations

from schedlab.loader import Patch
from schedlab.planted.mutant import Mutant

MEMORY = (
    Mutant(
        "a finaliser that takes a lock",
        "finalised",
        (
            Patch(
                "_memory.reaper",
                "        self.doomed.append(what)\n",
                "        with self._books.lock:\n            self.doomed.append(what)\n",
            ),
        ),
    ),
    Mutant(
        "memory that does not wait for its dealloca",
        "dealloca waits",
        (
            Patch(
                "_buffers.alloca",
                "    payload = _payload(Give((storage,)), storage)\n",
                "    payload = _payload(Give((storage,)), storage)\n"
                "    storage.uses = []\n"
                "    storage.source and storage._heap.order.give(storage, storage.source)\n",
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
            Patch("_memory.segment_pool", "            if seen:\n", "            if key >= 0:\n"),
            Patch(
                "_memory.segment_pool",
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
                "    device._heap.order.provide(queue, (storage,))\n"
                "    device._heap.order.take(type('', (), {'_queue': queue})(), (storage,))\n",
            ),
            Patch(
                "_memory.stream_order",
                "        if storages[0].is_async:\n            return self._allocate",
                "        if storage._ticket is not None:\n"
                "            return True\n"
                "        if storages[0].is_async:\n            return self._allocate",
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
                "each._state <= STARVED",
                "each._state < STARVED",
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
                "        self._context.finish(busy[0].stream)\n        self._give(",
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
                "            self._context.finish(busy[0].stream)\n            drain(",
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
)
