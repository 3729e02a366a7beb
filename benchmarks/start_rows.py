"""Measure the start: importing hal, and opening the first CPU device, in new processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Final

from harness import Row, Sample

__all__ = ["rows"]

_PROGRAM: Final = """
import json, time
clock = time.perf_counter
start = clock()
import numpy
has_numpy = clock()
import hal
has_hal = clock()
hal.create_device("cpu")
done = clock()
times = {"import numpy": has_numpy - start, "import hal beyond it": has_hal - has_numpy,
         "first CPU device": done - has_hal}
print(json.dumps({name: 1e3 * value for name, value in times.items()}))
"""


def rows() -> list[Row]:
    """Return the row, in milliseconds: with the C extension, if it is built, and without."""
    sides = {"hal": _child({}), "hal, plain": _child({"HAL_SPEEDUPS": "0"})}
    return [Row("start", "ms", sides)]


def _child(variables: Mapping[str, str]) -> Sample:
    # As where users run it: from bytecode, which the sample that does not count has written.
    kept = {key: os.environ[key] for key in os.environ if key != "PYTHONDONTWRITEBYTECODE"}

    def sample() -> Mapping[str, float]:
        done = subprocess.run(  # noqa: S603 - Python itself
            [sys.executable, "-c", _PROGRAM],
            env=kept | dict(variables),
            stdout=subprocess.PIPE,
            check=True,
            text=True,
            timeout=300,
        )
        found: dict[str, float] = json.loads(done.stdout)
        return found

    return sample
