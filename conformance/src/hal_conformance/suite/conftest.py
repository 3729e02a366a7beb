"""Fixtures: devices, queues, semaphores and latches, cleaned up after each test."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import hal
from hal_conformance.bench import Bench
from hal_conformance.session import BENCH, FAILED
from hal_conformance.suite.command_buffers.recording import OPERANDS, Direct, Recorder
from hal_conformance.suite.support import (
    LIMIT,
    OPERATIONS,
    PRODUCERS,
    Latch,
    MakeLatch,
    MakeQueue,
    MakeSemaphore,
    OpenDevice,
    Operations,
    Producers,
    broken,
)


def pytest_collection_modifyitems(config: pytest.Config) -> None:
    """Require a backend."""
    if BENCH not in config.stash and not config.option.collectonly:
        message = "name the backend to prove: --hal-backend NAME (hal devices lists them)"
        raise pytest.UsageError(message)


@pytest.fixture
def bench(request: pytest.FixtureRequest) -> Bench:
    """The run's devices."""
    return request.config.stash[BENCH]


@pytest.fixture(scope="module", autouse=True)
def _queues(request: pytest.FixtureRequest) -> Iterator[None]:
    """Check that the tests of a module leave no queue of a shared device open."""
    yield
    if not request.session.testsfailed:
        left = request.config.stash[BENCH].open_queues()
        assert not left, f"tests left queues open: {', '.join(left)}"


@pytest.fixture(autouse=True)
def _clean(request: pytest.FixtureRequest, bench: Bench) -> Iterator[None]:
    """Check that the test leaves the shared devices as they were; set up first, so it ends last."""
    before = bench.allocations()
    yield
    stuck = bench.repair()
    if request.node.stash.get(FAILED, False):
        return  # known: it was left behind before
    assert not stuck, f"the test left a device unfit: {stuck}"
    leaks = bench.leaks(before)
    assert not leaks, f"the test left behind {leaks}"


@pytest.fixture
def device(bench: Bench) -> hal.Device:
    """The device that all tests share."""
    return bench.device()


@pytest.fixture
def second_device(bench: Bench) -> hal.Device:
    """Another device: the next of the backend, or the same one once more where it has no other."""
    return bench.device(1)


@pytest.fixture
def open_device(bench: Bench) -> Iterator[OpenDevice]:
    """Devices of the test's own."""
    opened: list[hal.Device] = []

    def open_one(**parameters: object) -> hal.Device:
        opened.append(bench.open(**parameters))
        return opened[-1]

    yield open_one
    left = [device.close(LIMIT) for device in opened]
    assert not any(left)


@pytest.fixture
def make_queue(device: hal.Device) -> Iterator[MakeQueue]:
    """Queues of the test's own."""
    made: list[hal.Queue] = []
    shared = device

    def make(*, ordered: bool = True, device: hal.Device | None = None) -> hal.Queue:
        made.append((device or shared).create_queue(ordered=ordered))
        return made[-1]

    yield make
    left = [queue.close(LIMIT) for queue in made]
    assert not any(left)


@pytest.fixture
def queue(make_queue: MakeQueue) -> hal.Queue:
    """An ordered queue."""
    return make_queue()


@pytest.fixture(params=["stream", pytest.param("graph", marks=pytest.mark.feature("graphs"))])
def lowering(request: pytest.FixtureRequest) -> str:
    """A way to run recordings, out of those that the device has."""
    name: str = request.param
    return name


@pytest.fixture(
    params=[
        pytest.param(None, id="queued"),
        *(pytest.param((each, "stream"), id=f"{each}-stream") for each in OPERANDS),
        *(
            pytest.param((each, "graph"), id=f"{each}-graph", marks=pytest.mark.feature("graphs"))
            for each in OPERANDS
        ),
    ]
)
def way(request: pytest.FixtureRequest, queue: hal.Queue) -> Direct | Recorder:
    """A way to have commands run: in a queue, or in a recording of each kind and lowering."""
    return Recorder(queue, *request.param) if request.param else Direct(queue)


@pytest.fixture
def second_queue(make_queue: MakeQueue) -> hal.Queue:
    """Another ordered queue of the same device."""
    return make_queue()


@pytest.fixture
def unordered(make_queue: MakeQueue) -> hal.Queue:
    """An unordered queue."""
    return make_queue(ordered=False)


@pytest.fixture
def make_semaphore() -> Iterator[MakeSemaphore]:
    """Semaphores that fail at the end of the test, so that nothing keeps waiting for them."""
    made: list[hal.Semaphore] = []

    def make(initial: int = 0, *, name: str | None = None) -> hal.Semaphore:
        made.append(hal.create_semaphore(initial, name=name))
        return made[-1]

    yield make
    for semaphore in made:
        semaphore.fail(broken("the test is over"))


@pytest.fixture
def semaphore(make_semaphore: MakeSemaphore) -> hal.Semaphore:
    """A semaphore at 0."""
    return make_semaphore(name="semaphore")


@pytest.fixture
def gate(make_semaphore: MakeSemaphore) -> hal.Semaphore:
    """A semaphore at 0 that the host opens with ``signal(1)``."""
    return make_semaphore(name="gate")


@pytest.fixture(params=OPERATIONS)
def kind(request: pytest.FixtureRequest) -> str:
    """A kind of operation, for `operations`."""
    name: str = request.param
    return name


@pytest.fixture(params=PRODUCERS)
def producer(request: pytest.FixtureRequest) -> str:
    """The kind of what signals, for `producers`."""
    name: str = request.param
    return name


@pytest.fixture
def make_latch(make_queue: MakeQueue) -> Iterator[MakeLatch]:  # noqa: ARG001 - opened before queues are closed
    """Latches."""
    made: list[Latch] = []

    def make(queue: hal.Queue, **lists: Any) -> Latch:  # noqa: ANN401 - as the queue's
        made.append(Latch(queue, **lists))
        return made[-1]

    yield make
    for latch in made:
        latch.open()


@pytest.fixture
def producers(
    device: hal.Device, second_device: hal.Device, make_queue: MakeQueue
) -> Iterator[Producers]:
    """All producers of signals."""
    assert device is not second_device
    made = Producers(make_queue(), make_queue(), make_queue(device=second_device))
    yield made
    made.close()


@pytest.fixture
def operations(device: hal.Device) -> Iterator[Operations]:
    """Every kind of operation."""
    made = Operations(device)
    yield made
    # Only named ones: fixtures outlive the check for leftovers.
    made.buffer.close()
    made.source.close()
    del made.commands


@pytest.fixture
def program(bench: Bench, device: hal.Device) -> hal.Executable:
    """The suite's kernels; for tests with the feature ``kernels``."""
    return bench.program(device)
