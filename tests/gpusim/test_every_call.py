"""Whatever native call fails: an error of ours comes out, in bounded time, and nothing is left."""

import json
from pathlib import Path

import pytest
import suite_runs

HERE = Path(__file__).resolve().parent

SEQUENCES = ["submit", "chain", "execute", "allocate", "pool", "close", "reopen"]
SECONDS = 300.0
"""How long a sequence may take, over and over; on two idle processors it takes five seconds."""


@pytest.mark.parametrize("sequence", SEQUENCES)
@pytest.mark.parametrize("semaphores", ["events", "memory"])
def test_every_call_that_fails_is_an_error_of_ours_q5(backend, semaphores, sequence):
    arguments = ["-W", "error", str(HERE / "every_call.py"), backend, sequence, semaphores]
    done = suite_runs.run_python(arguments, suite_runs.environment(backend), SECONDS)
    tail = "\n".join(done.stdout.splitlines()[-60:])
    assert done.returncode == 0, tail
    # Each of the four codes has struck many calls, and most that lose a device have lost it. How
    # many calls there are depends on how often a waiter asks.
    seen = json.loads(tail.rpartition("seen ")[2])
    assert min(seen[f"calls {code}"] for code in (304, 2, 719, -1)) >= 8, seen
    assert seen["lost"] >= 0.75 * seen["calls 719"], seen
