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
    from hal.errors import CollectiveError, HalError
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
        if KIND == "recorded":
            with device.record() as commands:
                commands.group_barrier(group=group)
                commands.fill(buffer, 1.0)
                commands.group_barrier(group=group)
        interrupts = Interrupts(place)
        with interrupts, contextlib.suppress(HalError):
            if KIND in ("submit", "late", "handled"):
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
        if KIND == "handled" and any(each.error for each in taken):
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
    "kind", ["submit", "late", "batch", "recorded", "broken", "close", "handled"]
)
def test_ctrl_c_or_a_handler_at_every_call_of_a_group_g3(tmp_path, kind):
    """Its work ends, it is told and aborted if it broke, and it is closed in the end."""
    assert_quiet(run_python(tmp_path, TRIALS, arguments=(kind,)))
