"""Random programs on a device that is short of memory (M3, M1)."""

from __future__ import annotations

import os
import time
from typing import Final

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from hal_conformance.session import TIME_LIMIT
from hal_conformance.suite.memory.scarcity import POOLS
from hal_conformance.suite.model.short_programs import LENGTH, OUT, TOTAL, Script, settle
from hal_conformance.suite.support import LIMIT

PROGRAMS: Final = int(os.environ.get("HAL_CONFORMANCE_PROGRAMS", "0"))
SEED: Final = int(os.environ.get("HAL_CONFORMANCE_SEED", "0"))
DEFAULT: Final = 60
BUDGET: Final = 0.09 * TIME_LIMIT
"""Seconds after which no more programs are begun, if nobody asked for more."""


@pytest.mark.timeout(0 if PROGRAMS else TIME_LIMIT)
@pytest.mark.parametrize("pool", POOLS)
def test_random_programs_short_of_memory_m3(open_device, pool):
    """M3, M1: allocas, uses, deallocas and recorded temporaries on three queues.

    One finds no memory only where that may be, by what holds it and what could give
    some back; what uses its buffer fails with it, and nothing else; every byte is right,
    the limit holds, and in the end nothing is left.
    """
    device = open_device(memory_limit=TOTAL, **POOLS[pool])
    queues = [device.queue, device.create_queue(), device.create_queue(ordered=False)]
    out = device.allocate(OUT)
    until = time.monotonic() + BUDGET
    base = device.statistics().allocations

    @seed(SEED)
    @settings(
        max_examples=PROGRAMS or DEFAULT,
        deadline=None,
        database=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
        print_blob=False,
    )
    @given(
        how=st.integers(0, 255),
        drawn=st.lists(st.binary(min_size=5, max_size=5), min_size=1, max_size=LENGTH),
    )
    def run(how, drawn):
        if not PROGRAMS and time.monotonic() > until:
            return
        device.queue.fill(out, 0).wait(LIMIT)
        settle(device, base)
        script = Script(queues, out, how)
        try:
            for each in drawn:
                script.submit(each)
            script.finish()
        except Exception as error:
            text = "\n".join(script.text)
            message = f"{error!r}; after this program:\n{text}"
            raise AssertionError(message) from error
        finally:
            script.close()
        assert pool != "own" or device.statistics().bytes_held <= TOTAL

    run()
    settle(device, base)
