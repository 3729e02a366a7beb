"""List bugs in the execution of recordings: graph instances and replicas."""

from __future__ import annotations

from schedlab.loader import Patch
from schedlab.planted.mutant import Mutant

RECORDINGS = (
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
    Mutant(
        "a part that waits for no other",
        "parts in order",
        (
            Patch(
                "_commands.executions",
                "tuple([parts[each] for each in after]) or (first,)",
                "(first,)",
            ),
        ),
    ),
    Mutant(
        "parts that are submitted one by one",
        "parts of two",
        (
            Patch(
                "_commands.executions",
                "                submit_together(operations, tuple(lists))\n            else:",
                "                for one, its in zip(operations, lists, strict=True):\n"
                "                    submit_together((one,), (its,))\n            else:",
            ),
        ),
    ),
)
