"""Fences: immutable sets of timepoints, waited for together (S6)."""

import pytest

import hal
from hal.errors import ArgumentTypeError, DeadlineExceededError, OperationError
from hal_conformance.suite.support import LIMIT, SHORT, broken


def test_an_empty_fence_is_reached_s6(queue):
    """S6: an empty fence has no timepoints, is reached, and holds up nothing."""
    fence = hal.Fence()
    assert len(fence) == 0
    assert fence.poll()
    fence.wait(0)
    queue.barrier(wait=fence).wait(LIMIT)


@pytest.mark.parametrize("values", [(1, 5), (5, 1), (5, 5), (2, 5, 3)], ids=str)
def test_the_highest_value_of_a_semaphore_counts_s6(make_semaphore, values):
    """S6: a fence keeps one value per semaphore, the highest that was put in."""
    semaphore = make_semaphore(4)
    fence = hal.Fence([semaphore.at(value) for value in values])
    assert list(fence) == [semaphore.at(5)]
    assert not fence.poll()
    semaphore.signal(5)
    assert fence.poll()


def test_a_fence_of_many_semaphores_s6(make_semaphore):
    """S6: a fence has no limit to its timepoints, and is reached with its last one."""
    semaphores = [make_semaphore() for _ in range(100)]
    fence = hal.Fence([each.at(1) for each in semaphores])
    assert len(fence) == 100
    for each in semaphores:
        assert not fence.poll()
        with pytest.raises(DeadlineExceededError):
            fence.wait(0)
        each.signal(1)
    assert fence.poll()


def test_fences_join_s6(make_semaphore):
    """S6: ``|`` makes the fence of both sets, and a fence may be made of fences."""
    first, second = make_semaphore(), make_semaphore()
    one, two = hal.Fence(first.at(1)), hal.Fence([first.at(3), second.at(2)])
    for joined in (one | two, hal.Fence([one, two])):
        assert sorted(value for _, value in joined) == [2, 3]
        assert {semaphore for semaphore, _ in joined} == {first, second}
    assert (len(one), len(two)) == (1, 2)
    with pytest.raises(TypeError):
        one | first.at(2)


def test_a_fence_takes_submissions_s6(queue, semaphore, gate):
    """S6: a submission stands in a fence for its end."""
    submission = queue.barrier(wait=gate.at(1))
    fence = hal.Fence([submission, semaphore.at(1)])
    semaphore.signal(1)
    with pytest.raises(DeadlineExceededError):
        fence.wait(SHORT)
    gate.signal(1)
    fence.wait(LIMIT)


@pytest.mark.parametrize("reached", [0, 1])
def test_a_fence_counts_as_a_whole_in_wait_any_s6(make_semaphore, reached):
    """S6: `wait_any` is met by a fence only when all of its timepoints are."""
    first, second, third = make_semaphore(), make_semaphore(), make_semaphore()
    entries = [hal.Fence([first.at(1), second.at(1)]), third.at(1)]
    first.signal(1)
    with pytest.raises(DeadlineExceededError):
        hal.wait_any(entries, 0)
    (second, third)[reached].signal(1)
    assert hal.wait_any(entries, LIMIT) == reached


def test_failing_a_fence_fails_its_semaphores_s6(queue, make_semaphore):
    """S6: `Fence.fail` fails every semaphore of the set, and who waits for any of them."""
    semaphores = [make_semaphore() for _ in range(3)]
    waiting = queue.barrier(wait=semaphores[2].at(1))
    hal.Fence([each.at(1) for each in semaphores]).fail(broken())
    waitables = [each.at(0) for each in semaphores]
    for waitable in (*waitables, waiting):
        with pytest.raises(OperationError, match="broken"):
            hal.wait_all([waitable], LIMIT)


def test_a_fence_cannot_be_changed_s6(make_semaphore):
    """S6: what a fence was made of may change without it; it takes timepoints only."""
    semaphore, other = make_semaphore(), make_semaphore()
    entries = [semaphore.at(1)]
    fence = hal.Fence(entries)
    entries.append(other.at(1))
    semaphore.signal(1)
    assert fence.poll()
    with pytest.raises(ArgumentTypeError):
        hal.Fence([semaphore])
