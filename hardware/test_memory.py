"""Memory that ends, on a real GPU beside PyTorch (M1, M3): by `memory_limit`, and by itself."""

import importlib

import numpy as np
import pytest

import hal

MIB = 1 << 20
LIMIT = 120


@pytest.fixture
def torch():
    return importlib.import_module("torch")


def temporaries(device, size, count):
    """Take, fill, sample and give back `count` temporaries on each of three queues.

    All of it is submitted while the first operation of each queue waits for the host. Returns
    whether every sample has the value that its own queue filled in.
    """
    go = hal.create_semaphore()
    queues = [device.queue, device.create_queue(), device.create_queue(ordered=True)]
    samples = [device.allocate(count * 8, dtype=np.uint8) for _ in queues]
    ends = []
    for number, queue in enumerate(queues):
        wait = [go.at(1)]
        for turn in range(count):
            buffer = queue.alloca(size, wait=wait)
            wait = ()
            queue.fill(buffer, 1 + (turn + 85 * number) % 255)
            queue.copy(buffer[size - 8 :], samples[number][8 * turn : 8 * turn + 8])
            ends.append(queue.dealloca(buffer))
    go.signal(1)
    hal.wait_all(ends, LIMIT)
    expected = [
        np.repeat((np.arange(count) + 85 * number) % 255 + 1, 8) for number in range(len(queues))
    ]
    return all(
        (each.numpy() == values).all() for each, values in zip(samples, expected, strict=True)
    )


def works(torch):
    """Return whether PyTorch computes and allocates beside hal."""
    ones = torch.ones(2048, 2048, device="cuda")
    return bool((ones @ ones == 2048).all())


def test_a_limit_beside_pytorch_m1(torch):
    with hal.create_device("cuda", memory_limit="64M") as device:
        for _ in range(3):
            assert works(torch)
            assert temporaries(device, 8 * MIB, 200)
            assert temporaries(device, 40 * MIB, 50)  # two at once are too many
        assert device.statistics().bytes_peak <= 64 * MIB
        with pytest.raises(hal.errors.OutOfMemoryError, match="memory_limit"):
            device.allocate(65 * MIB)
        assert temporaries(device, MIB, 50)
    assert works(torch)


def test_the_end_of_memory_beside_pytorch_m3(torch):
    """PyTorch leaves 3 GiB: three queues take turns with 1 GiB temporaries, and nothing fails."""
    with hal.create_device("cuda") as device:
        free, _ = torch.cuda.mem_get_info()
        kept = [
            torch.full((1 << 30,), 7, dtype=torch.uint8, device="cuda")
            for _ in range((free >> 30) - 3)
        ]
        assert temporaries(device, 1 << 30, 20)
        with pytest.raises(hal.errors.OutOfMemoryError) as refused:
            device.allocate(16 << 30)
        print(refused.value)  # noqa: T201 - read by those who run it
        pending = device.queue.alloca(16 << 30)  # less than the device has: its queue tells
        with pytest.raises(hal.errors.OutOfMemoryError):
            pending.allocation.wait(LIMIT)
        assert temporaries(device, 1 << 28, 20)
        assert all(bool((each[:: 1 << 16] == 7).all()) for each in kept)
        device.trim()
        kept.append(torch.full((2 << 30,), 7, dtype=torch.uint8, device="cuda"))
        kept.clear()
        torch.cuda.empty_cache()
        assert temporaries(device, 16 << 30, 4)
    assert works(torch)
