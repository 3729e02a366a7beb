"""What a group keeps of submissions in flight, refused ones and interrupted ones (G1, G3)."""

import sys

import numpy as np
import pytest

import hal
import hal.collectives
from hal._transfers import collectives
from hal.collectives.embedded import EmbeddedGroup
from hal.errors import CollectiveError, CollectiveTimeoutError, InvalidArgumentError
from hal.native_collectives import CollectiveStep

LIMIT = 20.0


@pytest.fixture
def groups():
    devices = [hal.create_device("cpu") for _ in range(2)]
    made = hal.collectives.join_all(devices, timeout=LIMIT)
    yield made
    for each in (*made, *devices):
        each.close()


def reduce(group, **lists):
    device = group.device
    return device.queue.all_reduce(device.upload(np.ones(4)), group=group, **lists)


def test_a_look_asks_the_device_about_the_oldest_alone_g3(groups):
    """So the thread that watches over groups keeps no submitting thread from the interpreter."""
    gate = hal.create_semaphore()
    works = [reduce(each, wait=gate.at(1)) for _ in range(20) for each in groups]
    asked = []

    def count(frame, event, _):
        if event == "call" and frame.f_code.co_name == "_look":
            asked.append(frame)

    sys.setprofile(count)
    try:
        assert groups[0].look()
    finally:
        sys.setprofile(None)
    assert len(asked) == 1
    gate.signal(1)
    hal.wait_all(works, LIMIT)


def test_a_failure_is_told_while_others_submit_g3(groups, monkeypatch):
    """Else the thread that watches over all groups would end."""
    group, once, made = groups[0], [reduce], []
    words = CollectiveStep.__str__

    def submit_and_tell(step):
        if once:  # what is submitted is told of, too, and on other threads
            made.append(once.pop()(group))
        return words(step)

    first = [reduce(each) for each in groups]
    monkeypatch.setattr(CollectiveStep, "__str__", submit_and_tell)
    (told,) = group._told().values()
    monkeypatch.undo()
    assert told == ("all_reduce #1 of 4 float64, sum",)
    hal.wait_all([*first, *made, reduce(groups[1])], LIMIT)


@pytest.mark.parametrize("call", ["report", "stop", "abort"])
def test_a_provider_that_fails_as_a_group_breaks_ends_no_watch_g3(monkeypatch, call):
    """G3: the group's work fails in time all the same, and so does that of later groups."""

    def fail(*_):
        message = "the library failed on purpose"
        raise OSError(message)

    devices = [hal.create_device("cpu") for _ in range(2)]
    monkeypatch.setattr(EmbeddedGroup, call, fail)
    for _ in range(2):
        made = hal.collectives.join_all(devices, timeout=0.05)
        with pytest.raises(CollectiveTimeoutError):
            reduce(made[0]).wait(LIMIT)
        assert call != "stop" or "on purpose" in str(made[0].error.__notes__)
    monkeypatch.undo()
    for each in (*made, *devices):
        each.close()


def test_a_refused_submission_leaves_the_group_as_it_was_g1(groups):
    """Also where the memory of allocas has noted its use, and the handle of a batch says so."""
    queue, used = groups[0].device.queue, hal.create_semaphore()
    memory = queue.alloca(32, dtype=np.float64)
    memory.allocation.wait(LIMIT)
    used.signal(5)
    with pytest.raises(InvalidArgumentError):
        queue.all_reduce(memory, group=groups[0], signal=used.at(5))
    handles = []
    with pytest.raises(InvalidArgumentError), groups[0].batch():
        handles.append(queue.all_reduce(memory, group=groups[0], signal=used.at(5)))
    assert "refused" in str(handles[0].error)
    hal.wait_all([reduce(each) for each in groups], LIMIT)


def test_a_queue_of_another_device_is_told_which_is_whose_g1(groups):
    first, second = groups
    buffer = first.device.zeros(4, np.float32)
    here, there = (repr(each.device).split(" '")[0].removeprefix("<Device ") for each in groups)
    assert here != there
    with pytest.raises(InvalidArgumentError) as refused:
        first.device.queue.all_reduce(buffer, group=second)
    assert f"rank 1 on {there}, and this queue is of {here};" in str(refused.value)


def test_an_interrupted_submission_breaks_the_group_g3(groups, monkeypatch):
    """Nobody knows how far the submission came, so no rank waits for it."""

    def interrupt(*_):
        raise KeyboardInterrupt

    waits = reduce(groups[1])
    with monkeypatch.context() as patch:
        patch.setattr(collectives, "start", interrupt)
        with pytest.raises(KeyboardInterrupt):
            reduce(groups[0])
    with pytest.raises(CollectiveError, match="KeyboardInterrupt") as caught:
        waits.wait(LIMIT)
    assert caught.value.ranks == (0,)
