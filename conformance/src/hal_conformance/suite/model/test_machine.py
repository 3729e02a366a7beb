"""Random programs over the whole public interface, against a model (S1 to S8, Q, C, M)."""

from __future__ import annotations

import functools
import math
import os
from typing import Final

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from hal_conformance.session import TIME_LIMIT
from hal_conformance.suite.model.machine import Machine
from hal_conformance.suite.model.stage import Record, Stage

PROGRAMS: Final = int(os.environ.get("HAL_CONFORMANCE_PROGRAMS", "0"))
"""How many programs are run; 0 is as many as the suite has time for."""

SEED: Final = int(os.environ.get("HAL_CONFORMANCE_SEED", "0"))

DEFAULT: Final = 100
STEPS: Final = 40
BUDGET: Final = 0.15 * TIME_LIMIT
"""Seconds after which no more programs are begun, on a slow device, if nobody asked for more."""

SHRINKING: Final = 0.03 * TIME_LIMIT
"""Seconds to look for a shorter program that fails as well."""


class TimeIsUp(BaseException):
    """End a run at once: hypothesis catches only exceptions."""


@pytest.mark.timeout(0 if PROGRAMS else TIME_LIMIT)
def test_random_programs_against_a_model_s5(bench, open_device):
    """S5, with S1 to S8, Q1 to Q6, C1 to C5 and M1 to M3: random programs end as a model says.

    A program creates, signals and fails semaphores, waits for them and is called
    back, submits every operation to several queues, records and executes command
    buffers, allocates, maps and closes, and makes mistakes. In the end every
    byte, value, failure and state is the model's.
    """

    def find_kernel(device):
        return bench.program(device)["mix"] if "kernels" in bench.features() else None

    for options in ({}, {"max_in_flight": 2}):  # the second half stands in backlogs
        run(Stage(functools.partial(open_device, **options), find_kernel))


def run(stage: Stage) -> None:
    """Run half of the programs on a stage; raise for the shortest that fails."""
    record = Record(math.inf if PROGRAMS else BUDGET / 2, SHRINKING)

    class Timed(Machine):
        def __init__(self) -> None:
            if not record.has_time():
                raise TimeIsUp
            super().__init__()

    Timed.stage, Timed.text = stage, record
    try:
        run_state_machine_as_test(
            seed(SEED)(Timed),
            settings=settings(
                max_examples=max(1, (PROGRAMS or DEFAULT) // 2),
                stateful_step_count=STEPS,
                deadline=None,
                database=None,
                phases=[Phase.generate, Phase.shrink],
                suppress_health_check=list(HealthCheck),
                print_blob=False,
            ),
        )
    except (Exception, TimeIsUp):
        # What hypothesis says after a program that was not begun is about that.
        if record.failure is None and not record.is_over:
            raise
    if record.failure is not None:
        lines, failure = record.failure
        message = f"{failure}; after this program:\n" + "\n".join(lines)
        raise AssertionError(message) from failure
    assert not stage.leaks()
