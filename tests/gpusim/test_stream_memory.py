"""Memory in the order of queues, on a device of 64 MiB: the driver's pool and the core's (M3)."""

import textwrap

import pytest
import suite_runs

SECONDS = 300

PRELUDE = """
import ctypes, os, threading
import hal, numpy as np
from hal.errors import OutOfMemoryError
MIB, LIMIT = 1 << 20, 30
sim = ctypes.CDLL(os.environ["GPUSIM_SHOWN"])
def open_device(**parameters):
    return hal.create_device("{backend}", async_allocations={pool!r}, **parameters)
open_device().close()
sim.gpusim_limit_memory(ctypes.c_size_t(64 * MIB))
def room():
    with hal.create_device("{backend}") as other:
        return other._native.memory_info()[0]
"""


@pytest.fixture(params=["free", "stepped"])
def schedule(request):
    return request.param


@pytest.fixture(params=["true", "false"], ids=["pool", "core"])
def pool(request):
    """What ``async_allocations`` is."""
    return request.param


@pytest.fixture
def run(backend, schedule, pool):
    """Return what runs a program on gpusim by one of the backends, in either way to allocate."""
    variables = suite_runs.environment(backend, mode=schedule, seed=3, devices=1)

    def function(program, **values):
        text = PRELUDE.format(backend=backend, pool=pool)
        program = textwrap.dedent(program)
        text += program.format(backend=backend, **values) if values else program
        suite_runs.run_program(text, variables, SECONDS)

    return function


def test_trim_gives_everything_back_to_the_device_m1(run):
    """M1: what pools and caches keep, too."""
    run("""
        before = room()
        device = open_device()
        queue = device.queue
        for _ in range(3):
            each = queue.alloca(16 * MIB)
            queue.fill(each, 1)
            queue.dealloca(each).wait(LIMIT)
        device.trim()
        del each
        device.trim()
        assert room() >= before - MIB, (room(), before)
        assert device.statistics().bytes_now == 0
        assert device.close(LIMIT) == ()
    """)


@pytest.mark.parametrize("number", [1, 2, 5])
def test_memory_that_runs_out_once_fails_at_the_most_one_alloca_m3(run, pool, number):
    """M3: the n-th native allocation finds none; what does not need it goes on."""
    names = ("cuMemAllocFromPoolAsync", "hipMallocFromPoolAsync")
    if pool == "false":
        names = ("cuMemAlloc", "hipMalloc")
    run(f"""
        device = open_device()
        queue = device.queue
        device.trim()
        for name in {names!r}:
            sim.gpusim_fail(name.encode(), {number}, 2)
        failed = 0
        for turn in range(8):
            each = queue.alloca((1 + turn) * MIB)
            used = queue.fill(each, turn)
            try:
                each.allocation.wait(LIMIT)
                assert each.numpy(wait=used, timeout=LIMIT)[:4].tolist() == [turn] * 4
            except OutOfMemoryError:
                failed += 1
            queue.dealloca(each)
        assert failed <= 1, failed
        queue.barrier().wait(LIMIT)
        del each, used
        assert device.close(LIMIT) == ()
    """)


GROWING = """
    from hal_conformance.kernels import SOURCE
    from hal_conformance.suite.memory.scarcity import until_issued
    from hal_conformance.suite.support import Hold
    LARGEST = 64 * MIB
    sim.gpusim_limit_memory(ctypes.c_size_t(512 * MIB))
    device = open_device(memory_limit="128M")
    queue, program = device.queue, device.compile(SOURCE)
    sizes = range(8 * MIB, LARGEST + 1, 8 * MIB)
    recordings = []
    for size in sizes if {recorded} else ():
        with device.record() as commands:
            commands.fill(commands.alloca(size), 7)
        recordings.append(commands)
    def steps():
        for number, size in enumerate(sizes):
            if {recorded}:
                yield size, queue.execute(recordings[number])
            else:
                buffer = queue.alloca(size)
                queue.fill(buffer, 7)
                yield size, queue.dealloca(buffer)
    def grow(after):
        with Hold(device, program, queue):
            for size, step in steps():
                until_issued(step)  # it has not run: a kernel is in front of it
                # AMD's pools make no larger block of smaller ones before they have been waited for
                held = device.statistics().bytes_held
                largest = max(size, after)
                assert "{backend}" == "hip" or held <= 1.1 * largest, (size, held)
        queue.barrier().wait(LIMIT)
    grow(0)
    grow(LARGEST)
    del recordings
    assert device.close(LIMIT) == ()
"""


@pytest.mark.parametrize("recorded", [False, True], ids=["submitted", "recorded"])
@pytest.mark.parametrize("pool", ["true"], indirect=True, ids=["pool"])
def test_temporaries_that_grow_take_the_place_of_smaller_ones_m3(run, recorded):
    """M3: a pyramid needs the memory of its largest, with no host in between; later nothing new."""
    run(GROWING, recorded=recorded)
