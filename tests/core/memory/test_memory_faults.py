"""Random programs of temporaries whose native allocations fail (M3, M1)."""

import gc
import random

import pytest
from core_harness import LIMIT

from hal._memory.settings import MemorySettings
from hal.errors import OperationError, OutOfMemoryError

short = pytest.importorskip("hal_conformance.suite.model.short_programs")

CALLS = ("allocate", "allocate_async")
POOLS = pytest.mark.parametrize("native", [False, True], ids=["own", "native"])


def open_short(open_probe, native, **settings):
    """Open a device; return it, its probe, three queues, and what programs write to."""
    device, probe = open_probe(settings=MemorySettings(async_allocations=native, **settings))
    queues = [device.queue, device.create_queue(), device.create_queue(ordered=False)]
    out = device.allocate(short.OUT)
    return device, probe, queues, out


def run(device, queues, out, seed, **options):
    """Run the program of a seed, have it judged, and return how many operations failed."""
    choices = random.Random(seed)
    device.queue.fill(out, 0).wait(LIMIT)
    script = short.Script(queues, out, choices.randrange(256))
    try:
        for _ in range(choices.randrange(4, short.LENGTH)):
            script.submit(choices.randbytes(5))
        script.finish(**options)
    except AssertionError as error:
        text = "\n".join(script.text)
        message = f"{error}; after this program:\n{text}"
        raise AssertionError(message) from error
    finally:
        script.close()
    return script.failed()


@POOLS
@pytest.mark.parametrize("seed", range(4))
def test_each_native_allocation_finds_no_memory_once_m3(open_probe, native, seed):
    """M3: only the alloca and its users fail; the bytes are right, and nothing is left."""
    number = 0
    while True:
        number += 1
        device, probe, queues, out = open_short(open_probe, native)
        probe.fail_call(number, OutOfMemoryError("injected", native_code=2), CALLS)
        run(device, queues, out, seed, is_fair=False)
        is_over = probe.pending_fault  # the program makes fewer such calls
        probe.heal()
        assert not run(device, queues, out, seed + 100, is_fair=False)
        assert probe.violations == []
        del queues
        out.close()
        gc.collect()
        assert device.close(LIMIT) == ()
        assert probe.live() == {}
        if is_over:
            break
    assert number > 1


@POOLS
@pytest.mark.parametrize("seed", range(3))
def test_native_allocations_that_break_m3(open_probe, native, seed):
    """M3: an error other than a lack of memory fails the alloca; the next one succeeds."""
    device, probe, queues, out = open_short(open_probe, native)
    probe.fail_call(1, OperationError("injected"), CALLS)
    first = device.queue.alloca(4096)
    with pytest.raises(OperationError, match="injected"):
        first.allocation.wait(LIMIT)
    run(device, queues, out, seed, is_fair=False)
    assert probe.violations == []


@POOLS
def test_programs_on_a_device_that_has_no_more_m3(open_probe, native):
    """M3: without a limit of hal's it is the device that has no memory, and the same holds."""
    device, probe, queues, out = open_short(open_probe, native)
    probe.room = short.TOTAL
    for seed in range(40):
        run(device, queues, out, seed)
        short.settle(device, 1)
    assert probe.violations == []
