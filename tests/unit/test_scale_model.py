"""benchmarks/scale/model.py agrees with closed forms, queues of events, and what was measured."""

import heapq
import math
import runpy
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

MODEL = Path(__file__).resolve().parents[2] / "benchmarks" / "scale" / "model.py"
model = SimpleNamespace(**runpy.run_path(str(MODEL)))
EVEN = model.DEFAULT._replace(bandwidth_between=298e9, latency_between=2.4e-6)
QUIET = model.DEFAULT._replace(stalls=0.0, spread=1e-12)
MIB = 1 << 20


def hop(constants):
    return constants.overhead + constants.latency_inside


@pytest.mark.parametrize("ranks", [2, 3, 8, 64, 1000])
@pytest.mark.parametrize("size", [4096, 256 * MIB])
def test_a_ring_takes_what_the_closed_form_says(ranks, size):
    steps = 2 * (ranks - 1)
    expected = EVEN.call + steps * (hop(EVEN) + size / ranks / EVEN.bandwidth_inside)
    assert model.ring(ranks, size, EVEN) == pytest.approx(expected)


@pytest.mark.parametrize("ranks", [2, 8, 64, 1000])
@pytest.mark.parametrize("chunks", [1, 16])
def test_a_tree_takes_what_the_closed_form_says(ranks, chunks):
    piece = 64 * MIB / chunks / EVEN.bandwidth_inside
    expected = EVEN.call + 2 * math.ceil(math.log2(ranks)) * (hop(EVEN) + piece)
    expected += (chunks - 1) * (EVEN.overhead + 2 * piece)
    assert model.tree(ranks, 64 * MIB, chunks, EVEN) == pytest.approx(expected)


def ring_by_events(ranks, size, constants):
    """Return the seconds of a ring all-reduce by a queue of events, one for each arrival."""
    between = [r % 8 == 7 and ranks > 8 for r in range(ranks)]
    wide = (constants.bandwidth_inside, constants.bandwidth_between)
    far = (constants.latency_inside, constants.latency_between)
    busy = [constants.overhead + size / ranks / wide[b] for b in between]
    free, sent, came = [0.0] * ranks, [0] * ranks, [0] * ranks
    events = []

    def send(rank, now):
        start = max(now, free[rank])
        free[rank] = start + busy[rank]
        sent[rank] += 1
        heapq.heappush(events, (free[rank] + far[between[rank]], (rank + 1) % ranks))

    for rank in range(ranks):
        send(rank, 0.0)
    now = 0.0
    while events:
        now, rank = heapq.heappop(events)
        came[rank] += 1
        if came[rank] < 2 * (ranks - 1):
            send(rank, now)
    assert set(sent) == {2 * (ranks - 1)}
    return constants.call + max(now, *free)


@pytest.mark.parametrize("size", [4096, 64 * MIB])
@pytest.mark.parametrize("ranks", [8, 16, 64])
def test_one_host_stands_for_all_and_the_recurrence_for_events(ranks, size):
    slow = model.DEFAULT._replace(bandwidth_between=20e9, hop_jitter=0.0)
    by_events = ring_by_events(ranks, size, slow)
    assert model.ring(ranks, size, slow) == pytest.approx(by_events)
    assert model.ring(ranks, size, slow, np.random.default_rng(1)) == pytest.approx(by_events)
    plain = model.tree(ranks, size, 8, slow)
    assert model.tree(ranks, size, 8, slow, np.random.default_rng(1)) == pytest.approx(plain)


@pytest.mark.parametrize("ranks", [8, 100])
def test_jitter_only_makes_it_longer(ranks):
    rng = np.random.default_rng(1)
    assert model.ring(ranks, MIB, rng=rng) > model.ring(ranks - ranks % 8, MIB)
    assert model.tree(ranks, MIB, 4, rng=rng) > model.tree(ranks, MIB, 4)


def test_every_constant_has_its_source():
    page = (MODEL.parent / "README.md").read_text()
    rows = "".join(
        line for line in page.splitlines() if "| measured |" in line or "| assumed |" in line
    )
    assert [name for name in model.DEFAULT._fields if f"`{name}`" not in rows] == []


def test_two_gpus_are_as_measured():
    bus = 256 * MIB / model.all_reduce(2, 256 * MIB, "best")  # 2 (N - 1) / N is 1
    assert bus == pytest.approx(298e9, rel=0.1)
    assert model.all_reduce(2, 4, "best") == pytest.approx(44e-6, rel=0.1)


def test_a_step_is_compute_and_the_last_bucket_or_all_of_them():
    def taken(bucket, constants):
        rng = np.random.default_rng(1)
        return model.training_steps(64, bucket, "tree", rng, 3, constants).mean()

    one = model.all_reduce(64, QUIET.gradient / 14, "tree", QUIET)
    assert taken(1e9, QUIET) == pytest.approx(QUIET.compute + one)
    short = QUIET._replace(compute=1e-3)
    one = model.all_reduce(64, QUIET.gradient / 14, "tree", short)
    assert taken(1e9, short) == pytest.approx(short.compute * (1 + 2 / 14) / 3 + 14 * one)


def test_stalls_cost_what_their_number_says():
    some = QUIET._replace(stalls=3e-4, gradient=0.0, stall_least=5.0, stall_shape=100.0)
    rng = np.random.default_rng(1)
    more = model.training_steps(100, 1, "tree", rng, 3000, some).mean() - some.compute
    assert more == pytest.approx(100 * 3e-4 * some.compute * 5.05, rel=0.15)


def test_a_run_without_stalls_is_as_the_theory_says():
    ranks, between = 1024, model.time_between_failures(1024)
    sure = QUIET._replace(silent=1.0)
    interval = model.daly(sure.save, between)
    found = model.run(ranks, interval, 100.0, 1, 2000, sure)
    cycle = between * (math.exp((interval + sure.save) / between) - 1)  # until one is saved
    lost = cycle / between * (100 + sure.restart)
    assert found.useful == pytest.approx(interval / (cycle + lost), rel=0.01)
    assert found.failures == 2000
    assert not found.false_breaks
    shares = (found.useful, found.saving, found.waiting, found.restarting, found.again)
    assert min(shares) > 0
    assert sum(shares) == pytest.approx(1)


@pytest.mark.parametrize("save", [5.0, 60.0])
def test_dalys_interval_is_about_the_best(save):
    constants = QUIET._replace(save=save)
    interval = model.daly(save, model.time_between_failures(16384))
    useful = {
        f: model.run(16384, interval * f, 120, 1, 1000, constants).useful for f in (0.4, 1, 2.5)
    }
    assert useful[1] > max(useful[0.4], useful[2.5])


def test_false_breaks_come_as_often_as_long_stalls():
    ranks, timeout = 1024, 20.0
    found = model.run(ranks, 4600, timeout, 1, 1000)
    up = found.useful + found.saving + found.again
    expected = model.DEFAULT.stalls * (model.DEFAULT.stall_least / timeout) ** 1.5 * ranks
    assert found.false_breaks == pytest.approx(expected * up * found.seconds, rel=0.15)
    assert model.run(ranks, 4600, 1800.0, 1, 1000).false_breaks < found.false_breaks / 100
