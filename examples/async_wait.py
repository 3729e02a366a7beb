"""Await device work in asyncio: submissions and semaphore values, many at once."""

# ruff: noqa: S101, T201 - an example shows and checks what it found

import asyncio
import sys

import numpy as np

import hal

STEPS = 8


async def fill_in_steps(device: hal.Device, name: str, element: int) -> int:
    """Submit steps that wait for one another; await each value as it comes."""
    buffer = device.allocate(1 << 20, dtype=np.uint8)
    progress = hal.create_semaphore(name=name)
    for step in range(STEPS):
        device.queue.fill(
            buffer, element + step, wait=[progress.at(step)], signal=[progress.at(step + 1)]
        )
    for step in range(STEPS):
        await progress.reached(step + 1)
    return int(buffer.numpy()[-1])


async def main() -> None:
    """Run on the device named on the command line, by default the processor."""
    with hal.create_device(sys.argv[1] if len(sys.argv) > 1 else "cpu") as device:
        async with asyncio.timeout(60):
            # A submission can be awaited as it is.
            source = device.upload(np.arange(16, dtype=np.int32))
            target = device.allocate(source.size, dtype=np.int32)
            await device.queue.copy(source, target)
            print(target.numpy())

            found = await asyncio.gather(
                *(fill_in_steps(device, f"job {job}", 10 * job) for job in range(4))
            )
            print(found)
            assert found == [10 * job + STEPS - 1 for job in range(4)]

            # A failure reaches whoever awaits, however far down the line.
            first, second = hal.create_semaphore(), hal.create_semaphore()
            submission = device.queue.fill(target, 0, wait=[first.at(1)], signal=[second.at(1)])
            waiting = asyncio.ensure_future(second.reached(1))
            first.fail(RuntimeError("the sensor was unplugged"))
            try:
                await waiting
            except hal.errors.SemaphoreFailedError as error:
                print(f"failed as it should: {error.__cause__} ({submission.state})")


if __name__ == "__main__":
    asyncio.run(main())
