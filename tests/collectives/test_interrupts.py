"""A Ctrl-C at every place of a group's code: its work ends, and a `close` completes it (G3, O3).

And a signal handler at every place, which uses another group.
"""

import pytest
from child_processes import assert_quiet, run_python

TRIALS = """
    import contextlib, sys, time
    import numpy as np
    import hal, hal.collectives
    from hal.collectives.group import Group
    from hal.collectives.group_watch import watched
    from hal.errors import CollectiveError, HalError, ReentrantCallError
    from hal.native_collectives import NativeGroup
    from interrupts import Interrupts, try_places

    KIND, LIMIT, SOON = sys.argv[1], 20.0, 0.05

    class Probe(NativeGroup):
        # Rank 0 of 2, whose other rank comes at once, or never.
        rank, size = 0, 2

        def __init__(self):
            self.comes, self.said, self.aborts, self.closes = KIND != "late", None, 0, 0

        def begin(self, work, finish):
            if self.comes:
                finish(None)

        def failure(self):
            return self.said

        def report(self):
            return (1,), {}

        def abort(self, error):
            self.aborts += 1

        def close(self, timeout):
            self.closes += 1

        split = rebuild = None

    device = hal.create_device("cpu")
    buffer = device.upload(np.ones(4))

    def trial(place):
        probe, taken, wrong = Probe(), [], []
        group = Group(probe, device, "probe", "tested", SOON)

        def submit(queue=device.queue):
            taken.append(queue.group_barrier(group=group))

        def wait_until(what, is_so):
            end = time.monotonic() + LIMIT
            while not is_so():
                if time.monotonic() > end:
                    wrong.append(what)
                    break
                time.sleep(0.001)

        if KIND == "broken":
            probe.comes = False
            submit()
            probe.said = CollectiveError("broken on purpose", ranks=(1,))
        if KIND == "close":
            probe.comes = False
            submit()
        if KIND == "handled":
            other = Group(Probe(), device, "probe", "other", LIMIT)
            Interrupts.interrupt = lambda _: taken.append(device.queue.group_barrier(group=other))
        if KIND == "same":
            def nest(_):
                with contextlib.suppress(ReentrantCallError):
                    submit()

            Interrupts.interrupt = nest
        if KIND == "recorded":
            with device.record() as commands:
                commands.group_barrier(group=group)
                commands.fill(buffer, 1.0)
                commands.group_barrier(group=group)
        interrupts = Interrupts(place)
        with interrupts, contextlib.suppress(HalError):
            if KIND in ("submit", "late", "handled", "same"):
                submit()
                submit(device.queues.upload)
            elif KIND == "batch":
                with group.batch():
                    submit()
                    submit()
            elif KIND == "recorded":
                taken.append(device.queue.execute(commands))
            elif KIND == "broken":
                group.error
            else:
                group.close(SOON)
        # Whatever is in flight is watched, and ends without anybody's help.
        for each in taken:
            with contextlib.suppress(HalError):
                each.wait(LIMIT)
        wait_until("in flight", lambda: not group._flights or KIND == "close")
        if KIND in ("handled", "same") and (group.error or any(each.error for each in taken)):
            wrong.append("failed")
        wait_until("watched", lambda: group not in watched or KIND == "close")
        if KIND == "broken" and not probe.aborts:
            wrong.append("not aborted")
        if KIND == "batch":
            with contextlib.suppress(CollectiveError), group.batch():
                submit()
        group.close(SOON)
        if not probe.closes or group._flights:
            wrong.append("not closed")
        if group._broken is not None and not probe.aborts:
            wrong.append("not told")
        return interrupts.places, wrong

    try_places(trial, KIND)
"""


@pytest.mark.parametrize(
    "kind", ["submit", "late", "batch", "recorded", "broken", "close", "handled", "same"]
)
def test_ctrl_c_or_a_handler_at_every_call_of_a_group_g3(tmp_path, kind):
    """Its work ends, it is told and aborted if it broke, and it is closed in the end."""
    assert_quiet(run_python(tmp_path, TRIALS, arguments=(kind,)))


EMBEDDED = """
    import sys
    from hal.collectives.embedded import EmbeddedGroup, World
    from hal.errors import CollectiveError, CollectiveMismatchError
    from hal.native_collectives import Collective, CollectiveStep
    from interrupts import Interrupts, try_places

    KIND = sys.argv[1]

    def work_of(kind):
        return [Collective(CollectiveStep(kind, number), None, None, None) for number in (1, 2)]

    def trial(place):
        world = World("tested", 2)
        groups = [EmbeddedGroup(world, rank) for rank in range(2)]
        ends = [[], []]

        def begin(rank, kind="barrier"):
            groups[rank].begin(work_of(kind), ends[rank].append)

        def come():
            begin(1, "broadcast" if KIND == "differs" else "barrier")

        def fail(rank):
            groups[rank].abort(CollectiveError("broken on purpose", ranks=(rank,)))

        # What the thread does, and what its signal handler does in the middle of that.
        calls = {
            "come": (lambda: begin(0), come),
            "differs": (lambda: begin(0), come),
            "fail": (lambda: fail(1), lambda: fail(0)),
            "close": (lambda: groups[1].close(0), lambda: groups[0].close(0)),
            "report": (lambda: groups[0].report(), come),
        }
        outer, inner = calls[KIND]
        if KIND not in ("come", "differs"):
            begin(0)

        def handle(_):
            inner()
            groups[0].report()
            groups[1].failure()

        Interrupts.interrupt = handle
        interrupts = Interrupts(place)
        with interrupts:
            outer()
        wrong = []
        if interrupts.places:
            kinds = {type(error).__name__ for each in ends for error in each}
            expected = {
                "come": {"NoneType"}, "report": {"NoneType"}, "differs": {"CollectiveMismatchError"}
            }.get(KIND, {"CollectiveError"})
            if kinds != expected or not ends[0] or world._meetings:
                wrong.append(f"{ends} {world._meetings}")
            if KIND in ("come", "differs", "report") and not ends[1]:
                wrong.append("rank 1 has not ended")
        return interrupts.places, wrong

    try_places(trial, KIND)
"""


@pytest.mark.parametrize("kind", ["come", "differs", "fail", "close", "report"])
def test_a_handler_at_every_call_of_the_embedded_provider_uses_the_same_group_g3(tmp_path, kind):
    """It waits for no lock of its own thread, and finds nothing half done."""
    assert_quiet(run_python(tmp_path, EMBEDDED, arguments=(kind,), timeout=60.0))
