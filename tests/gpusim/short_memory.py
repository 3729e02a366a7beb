"""Run random programs on a simulated GPU that has no more memory than they may use.

python tests/gpusim/gpusim.py python tests/gpusim/short_memory.py BACKEND POOL PROGRAMS
"""

# ruff: noqa: T201 - the script prints

from __future__ import annotations

import random
import sys

import hal
from hal_conformance.suite.model.short_programs import LENGTH, OUT, Script, settle
from hal_conformance.suite.support import LIMIT


def main(backend: str, pool: str, programs: int) -> None:
    """Run so many, and see that nothing is left."""
    with hal.create_device(backend, async_allocations=pool) as device:
        queues = [device.queue, device.create_queue(), device.create_queue(ordered=False)]
        out = device.allocate(OUT)
        base = device.statistics().allocations
        for seed in range(programs):
            choices = random.Random(seed)
            device.queue.fill(out, 0).wait(LIMIT)
            settle(device, base)
            script = Script(queues, out, choices.randrange(256))
            try:
                for _ in range(choices.randrange(4, LENGTH)):
                    script.submit(choices.randbytes(5))
                script.finish()
            except AssertionError:
                print(f"seed {seed}:", *script.text, sep="\n")
                raise
            script.close()
            del script
        settle(device, base)
        device.wait_idle(LIMIT)
    print("done")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
