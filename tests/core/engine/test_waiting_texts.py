"""What a time-out tells of that which it waited for (S9)."""

import pytest
from core_harness import LIMIT, count_holds

import hal
from hal._engine import explain, timelines
from hal.errors import DeadlineExceededError


def timeout_text(wait):
    with pytest.raises(DeadlineExceededError) as caught:
        wait()
    return str(caught.value)


@pytest.mark.parametrize("shape", ["fan", "chain", "tree", "semaphores"])
def test_a_text_is_bounded_however_much_is_pending_s9(device, monkeypatch, shape):
    """S9: it looks at a few of ten thousand pending operations, and locks once for each."""
    gate = hal.create_semaphore(name="gate")
    queue = device.create_queue(ordered=False)
    pending = [queue.barrier(wait=gate.at(1))]
    for index in range(1, 3000):
        if shape == "fan":
            pending.append(queue.barrier(wait=gate.at(1)))
        elif shape == "chain":
            pending.append(queue.barrier(wait=pending[-1]))
        elif shape == "tree":
            parents = {index // 2, index // 3, index - 1}
            pending.append(queue.barrier(wait=[pending[each] for each in parents]))
        else:
            semaphore = hal.create_semaphore()
            queue.barrier(wait=gate.at(1), signal=semaphore.at(1))
            pending.append(semaphore.at(1))
    last = [pending[-1]] if shape in {"chain", "tree"} else pending
    groups = [[each if shape == "semaphores" and each is not pending[0] else each._as_timepoint()
               for each in last]]  # fmt: skip
    with monkeypatch.context() as patch:
        held = count_holds(patch, (timelines.Timeline, "_covering"))
        text = explain.describe_wait(groups)
        assert len(held) < 200
        assert max(held) <= 1
    assert len(text) < 4000
    assert "barrier" in text
    gate.signal(1)
    hal.wait_all([queue.barrier(), *pending], LIMIT)


def test_a_text_says_where_it_stopped_looking_s9(device, monkeypatch):
    """S9: the promise may be beyond what was searched, so the text does not say "nobody"."""
    monkeypatch.setattr(explain, "_LOOKED", 10)
    gate, last = hal.create_semaphore(), hal.create_semaphore()
    for _ in range(20):
        device.queue.barrier(wait=gate.at(1))
    device.queue.barrier(signal=last.at(1))
    text = timeout_text(lambda: last.wait(1, 0))
    assert "nobody of the first 10 operations" in text
    gate.signal(1)
    last.wait(1, LIMIT)
