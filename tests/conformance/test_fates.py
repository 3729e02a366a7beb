"""What the model of the random programs claims of operations, and what it leaves open."""

from hal_conformance.suite.model.fates import Fates
from hal_conformance.suite.model.things import (
    DONE,
    DOOMED,
    STUCK,
    UNSURE,
    Line,
    Point,
    Step,
    Timeline,
)


def step_on(line, *waits):
    made = Step(0, line, "call")
    made.waits += waits
    line.last = made
    return made


def test_what_waits_for_an_unsure_step_is_unsure():
    """It fails with that one, if that has begun, whatever else it waits for."""
    first, second, third = (Line(number, 0, ordered=True) for number in range(3))
    never, broken, signalled = (Timeline(number, safe=False) for number in range(3))
    broken.fail(frozenset({"failure"}))
    stuck = step_on(first, Point(never, 1))
    doomed = step_on(first, Point(broken, 1))  # nobody knows whether before `stuck` ends
    behind = step_on(second, doomed)
    unsure = step_on(second)
    unsure.mistake = "step"
    signalled.promises.append((1, unsure))
    fates = Fates()
    assert [fates.of(each) for each in (stuck, doomed, behind, unsure)] == [
        STUCK,
        DOOMED,
        DOOMED,
        UNSURE,
    ]
    assert fates.of(step_on(third, unsure, Point(never, 1))) == UNSURE
    for value in (0, 1, 2):  # of a semaphore that fails with it
        assert fates.of_wait(Point(signalled, value)) == UNSURE
    assert fates.of_timeline(never) == DONE
