"""Failed semaphores, from the host (S4)."""

from __future__ import annotations

import dataclasses
import gc
import itertools
import threading
import traceback
import tracemalloc
import weakref

import pytest
from core_harness import LIMIT, collect_in_threads

import hal
from hal.errors import CompilationError, HalError, OperationError


def test_failure_keeps_the_class_and_its_attributes_s4():
    """S4: an error class with a constructor of its own is made afresh with what it carries."""

    class OddError(HalError):
        status = "ODD"

        def __init__(self, left, right):
            super().__init__(f"{left} and {right}")
            self.left = left

    for error in (CompilationError("no", log="line 3"), OddError("a", "b")):
        semaphore = hal.create_semaphore()
        semaphore.fail(error)
        with pytest.raises(type(error)) as caught:
            semaphore.wait(1, LIMIT)
        raised = caught.value
        assert str(raised) == str(error)
        assert vars(raised) == vars(error)
        assert raised.__cause__ is error


def test_failures_are_fresh_and_memory_stays_flat_s4():
    """S4: 4000 raises from 4 threads are 4000 exceptions, and the kept one does not grow."""
    semaphore = hal.create_semaphore()
    original = OperationError("broken")
    semaphore.fail(original)

    def raise_often():
        mine = []
        for _ in range(1000):
            with pytest.raises(OperationError) as caught:
                semaphore.wait(1, LIMIT)
            mine.append(caught.value)
        return mine

    kept = list(itertools.chain.from_iterable(collect_in_threads([raise_often] * 4)))
    assert len({id(error) for error in kept}) == 4000
    assert all(error.__cause__ is original for error in kept)
    assert all(error.__context__ in {None, original} for error in kept)
    assert original.__traceback__ is None
    assert original.__cause__ is None
    assert original.__context__ is None
    del kept
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(1000):
            with pytest.raises(OperationError):
                semaphore.query()
        gc.collect()
        growth = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert growth < 50_000


@dataclasses.dataclass(frozen=True)
class Frozen(Exception):  # noqa: N818 - of a test
    """An error whose attributes cannot be set."""

    code: int = 3


class Silent(Exception):  # noqa: N818 - it says nothing
    """An error that cannot be shown."""

    def __repr__(self):
        raise RuntimeError("no repr")


@pytest.mark.parametrize("kind", [Frozen, Silent])
def test_errors_of_any_kind_are_kept_s4(device, kind):
    """S4: errors of a host call and of `fail`; waits, callbacks and texts hear of them."""
    semaphore, heard = hal.create_semaphore(), threading.Event()

    def fail():
        raise kind

    semaphore.on_reached(1, lambda error: heard.set() if error else None)
    failed = device.queue.call(fail, signal=semaphore.at(1))
    for wait in (lambda: failed.wait(LIMIT), lambda: semaphore.wait(1, LIMIT)):
        with pytest.raises(HalError, match=kind.__name__) as caught:
            wait()
        assert type(caught.value.__cause__) is kind
    assert heard.wait(LIMIT)
    assert kind.__name__ in repr(semaphore)
    other = hal.create_semaphore()
    other.fail(kind())
    with pytest.raises(HalError, match=kind.__name__):
        other.query()


def test_no_frame_is_kept_whatever_an_error_links_to_s4():
    """S4: causes, contexts of what has a cause, and the members of a group."""
    semaphore, gone = hal.create_semaphore(), []

    class Local:
        pass

    def caught(error):
        local = Local()
        gone.append(weakref.ref(local))
        try:
            raise error  # noqa: TRY301 - to be caught
        except BaseException as raised:  # noqa: BLE001
            return raised

    def chained():
        context = caught(ValueError("context"))
        try:
            raise context
        except ValueError:
            return caught(KeyError("top"))

    top = chained()
    top.__cause__ = caught(ExceptionGroup("group", [caught(TypeError("member"))]))
    semaphore.fail(top)
    del top
    gc.collect()
    assert len(gone) == 4
    assert [each() for each in gone] == [None] * 4
    with pytest.raises(HalError) as told:
        semaphore.query()
    text = "".join(traceback.format_exception(told.value))
    assert all(word in text for word in ("top", "group", "member")), "the causes are still told"
