"""benchmarks/peak_memory.py runs and writes what it found; its sequences are ordered (M1, M3)."""

import json
import runpy
import sys
from pathlib import Path

import pytest
from child_processes import output_of

for module in ("rich", "click", "hal_cpu"):
    pytest.importorskip(module)

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"
SEQUENCES = ("transformer", "pyramid", "random")


@pytest.fixture(scope="module")
def temporaries():
    return runpy.run_path(str(FOLDER / "temporaries.py"))


def test_it_measures_a_device_m3(tmp_path):
    path = tmp_path / "found.json"
    few = ("--scale", "1024", "--steps", "2", "--rounds", "1", "--seconds", "0.2")
    command = [sys.executable, FOLDER / "peak_memory.py", "cpu", *few, "--json", path]
    told = output_of(command)
    record = json.loads(path.read_text())
    words = record["command"].split()
    assert words[:3] == ["python", "benchmarks/peak_memory.py", "cpu"]
    pairs = zip(words[3::2], map(float, words[4::2]), strict=True)
    assert dict(pairs) == dict(zip(few[::2], map(float, few[1::2]), strict=True))
    cases = {(case["sequence"], case["queues"]): case for case in record["cases"]}
    assert [*cases] == [(name, queues) for name in SEQUENCES for queues in (1, 3)]
    for case in cases.values():
        assert not case["failures"]
        assert 0 < case["live_peak"]["hal"] <= case["peak"]["hal"]
        assert case["pair"]["medians"]["hal"] > 0
        assert ("hal, recorded" in case["whole"]["medians"]) == (case["queues"] == 1)
        assert set(case["peak"]) == set(case["whole"]["medians"])
    assert set(record["random"]) == {"1", "3"}
    for tenths in record["random"].values():
        assert len(tenths) == 10
        for tenth in tenths:
            assert 0 <= tenth["fragmentation"]["hal"] < 1
    assert "transformer, 3 queues" in told


@pytest.mark.parametrize("queues", [1, 3])
@pytest.mark.parametrize("name", SEQUENCES)
def test_a_sequence_orders_all_that_crosses_a_queue_m3(temporaries, name, queues):
    for number in range(3):
        steps = temporaries["SEQUENCES"][name](number, queues, 1)
        crossings = sum(step.act == "after" for step in steps)
        assert check_order(steps, queues) == set()
        assert (crossings > 0) == (queues > 1)


def test_random_steps_go_on_where_they_were_m3(temporaries):
    parts = temporaries["random_steps"](3, 1)
    steps = [step for _ in range(6) for step in next(parts)]
    assert 0 < len(check_order(steps, 3)) <= 64
    sizes = [step.size for step in steps if step.act == "allocate"]
    assert len(sizes) == 3000
    assert 256 <= min(sizes) < 1024 < 2**25 < max(sizes) <= 2**26


def test_live_bytes_are_those_of_the_program(temporaries):
    step, living = temporaries["Step"], {9: 7}
    steps = [step("allocate", 0, 1, 100), step("touch", 0, 1, 100), step("free", 0, 9)]
    assert temporaries["live_bytes"](steps, living) == [107, 107, 100]
    assert temporaries["live_bytes"]([step("free", 0, 1)], living) == [0]
    assert living == {}


@pytest.mark.parametrize(
    ("name", "most"), [("transformer", 1.02), ("pyramid", 1.1), ("random", 1.2)]
)
def test_a_recording_takes_little_more_than_lives_at_once_m3(temporaries, monkeypatch, name, most):
    """Its temporaries are placed when all their lives are known."""
    monkeypatch.syspath_prepend(str(FOLDER))
    from allocator_sides import RecordedSide  # noqa: PLC0415 - found from here on

    side = RecordedSide("cpu")
    for number in range(3):
        steps = temporaries["SEQUENCES"][name](number, 1, 1)
        commands = side.record(steps, 256)
        taken = sum(commands._playback.temporaries())
        assert taken <= most * max(temporaries["live_bytes"](steps))
    side.close()


@pytest.mark.parametrize(("name", "most"), [("pyramid", 1.7), ("random", 1.1)])
def test_recordings_take_what_others_gave_back_m3(temporaries, monkeypatch, name, most):
    """Ten passes of several needs hold little more than the one that needs most.

    The raw pool holds 1.72 and 1.34 times as much. A pyramid is mostly one temporary.
    """
    monkeypatch.syspath_prepend(str(FOLDER))
    from allocator_sides import RecordedSide  # noqa: PLC0415 - found from here on

    side, live, held = RecordedSide("cpu"), 0, 0
    for number in range(10):
        steps = temporaries["SEQUENCES"][name](number, 1, 1)
        live = max(live, *temporaries["live_bytes"](steps))
        side.execute(side.record(steps, 256))
        side.finish()
        held = max(held, side.held())
    side.close()
    assert live < held <= most * live


def check_order(steps, queues):
    """Look at each step with the clocks of the queues; return what is alive at the end."""
    clocks = [[0] * queues for _ in range(queues)]
    written, used = {}, {}
    for act, queue, tensor, size, source in steps:
        clock = clocks[queue]
        if act == "after":
            clocks[queue] = [*map(max, clock, clocks[tensor])]
            continue
        clock[queue] += 1
        now = (queue, clock[queue])
        if act == "allocate":
            assert tensor not in used
            assert size >= 256
            written[tensor], used[tensor] = now, [now]
        elif act == "free":
            assert all(clock[other] >= place for other, place in used.pop(tensor))
        else:
            assert all(clock[other] >= place for other, place in used[tensor])
            written[tensor] = now
            used[tensor].append(now)
            if source is not None:
                other, place = written[source]
                assert clock[other] >= place
                used[source].append(now)
    return set(used)
