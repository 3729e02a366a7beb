"""Texts: an error of a wait that timed out says what is missing, and who has promised it (S9)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import hal
from hal.errors import DeadlineExceededError
from hal_conformance.suite.support import LIMIT, SHORT


def text_of(wait: Callable[..., Any], *arguments: Any) -> str:  # noqa: ANN401 - any wait
    """Return the text of the time-out that a wait ends with."""
    with pytest.raises(DeadlineExceededError) as caught:
        wait(*arguments)
    return str(caught.value)


def test_what_nobody_has_promised_s9(make_semaphore):
    """S9: the text names the semaphore, the value waited for, the value now, and "nobody"."""
    text = text_of(make_semaphore(3, name="frames").wait, 7, SHORT)
    for part in ("frames@7", "now 3", "nobody"):
        assert part in text


@pytest.mark.parametrize("kind", ["fill", "copy", "barrier", "call"])
def test_the_pending_operation_s9(device, queue, make_semaphore, kind):
    """S9: the text names the operation and the queue that have promised, and what they wait for."""
    late, frames = make_semaphore(name="late"), make_semaphore(name="frames")
    first, second = device.allocate(64), device.allocate(64)
    arguments = {"fill": (first, 1), "copy": (first, second), "barrier": (), "call": (list,)}
    getattr(queue, kind)(*arguments[kind], wait=late.at(4), signal=frames.at(1))
    text = text_of(frames.wait, 1, SHORT)
    for part in ("frames@1", kind, queue.name, "late@4", "now 0", "nobody"):
        assert part in text


def test_a_chain_of_promises_s9(queue, second_queue, make_semaphore):
    """S9: the text follows a chain of promises to its end, where nobody stands."""
    first, second, third = (make_semaphore(name=name) for name in ("first", "second", "third"))
    queue.barrier(wait=first.at(1), signal=second.at(1))
    second_queue.barrier(wait=second.at(1), signal=third.at(1))
    text = text_of(third.wait, 1, SHORT)
    places = [text.index(part) for part in ("third@1", "second@1", "first@1", "nobody")]
    assert places == sorted(places)
    assert queue.name in text
    assert second_queue.name in text


def test_a_running_call_s9(queue, make_semaphore, make_latch):
    """S9: an operation that runs is told as running, not as waiting."""
    frames = make_semaphore(name="frames")
    latch = make_latch(queue, signal=frames.at(1))
    latch.wait_running()
    text = text_of(frames.wait, 1, SHORT)
    assert "call" in text
    assert queue.name in text
    assert "running" in text
    assert "nobody" not in text


def test_what_stands_behind_others_s9(queue, make_semaphore, make_latch):
    """S9: an operation without a wait of its own is told as standing behind others."""
    frames = make_semaphore(name="frames")
    latch = make_latch(queue)
    latch.wait_running()
    queue.barrier(signal=frames.at(1))
    text = text_of(frames.wait, 1, SHORT)
    assert "barrier" in text
    assert "behind" in text


@pytest.mark.parametrize("way", ["wait_all", "wait_any", "fence"])
def test_only_what_is_unmet_s9(make_semaphore, way):
    """S9: every unmet wait of a list is told, and none that was met."""
    one, two, three = (make_semaphore(name=name) for name in ("one", "two", "three"))
    three.signal(1)
    entries = [one.at(1), two.at(2)] + ([three.at(1)] if way != "wait_any" else [])
    waits = {
        "wait_all": lambda: hal.wait_all(entries, SHORT),
        "wait_any": lambda: hal.wait_any(entries, SHORT),
        "fence": lambda: hal.Fence(entries).wait(SHORT),
    }
    text = text_of(waits[way])
    assert "one@1" in text
    assert "two@2" in text
    assert "three" not in text


def test_a_submission_s9(queue, make_semaphore):
    """S9: the time-out of a submission's wait names the operation and what it waits for."""
    late = make_semaphore(name="late")
    text = text_of(queue.barrier(wait=late.at(1)).wait, SHORT)
    for part in ("barrier", queue.name, "late@1", "nobody"):
        assert part in text


def test_a_circle_s9(unordered, make_semaphore):
    """S9: two operations that wait for each other are told, and the text has an end."""
    one, two = make_semaphore(name="one"), make_semaphore(name="two")
    unordered.barrier(wait=one.at(1), signal=two.at(1))
    unordered.barrier(wait=two.at(1), signal=one.at(1))
    text = text_of(one.wait, 1, SHORT)
    assert "one@1" in text
    assert "two@1" in text
    assert len(text) < 4000


def test_a_long_list_s9(make_semaphore):
    """S9: the text of a wait for a hundred names some and counts the rest."""
    entries = [make_semaphore(name=f"number{number}").at(1) for number in range(100)]
    text = text_of(hal.wait_all, entries, SHORT)
    assert "number0@1" in text
    assert "more" in text
    assert len(text) < 4000


def test_the_text_follows_the_state_s9(queue, make_semaphore):
    """S9: each time-out tells how things stand then: promised, then by nobody, then reached."""
    late, frames = make_semaphore(name="late"), make_semaphore(name="frames")
    assert "nobody" in text_of(frames.wait, 1, 0)
    queue.barrier(wait=late.at(1), signal=frames.at(1))
    assert "barrier" in text_of(frames.wait, 1, 0)
    late.signal(1)
    frames.wait(1, LIMIT)
    assert "frames@2 (now 1)" in text_of(frames.wait, 2, 0)
