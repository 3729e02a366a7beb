"""Model what training over many ranks costs: all-reduces, steps, checkpoints and time-outs.

README.md says what is modelled, where each constant is from, and what is left out. Times are in
seconds, sizes in bytes, bandwidths in bytes a second.
"""

from __future__ import annotations

import heapq
import math
from functools import cache
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Times = NDArray[np.float64]


class Constants(NamedTuple):
    """A cluster and a training run; the table in README.md has the source of each number."""

    ranks_per_host: int = 8
    call: float = 37.2e-6
    overhead: float = 1.0e-6
    latency_inside: float = 2.4e-6
    latency_between: float = 8.6e-6
    bandwidth_inside: float = 298e9
    bandwidth_between: float = 340e9
    hop_jitter: float = 0.5e-6
    compute: float = 1.7
    gradient: float = 14e9
    spread: float = 0.01
    stalls: float = 0.002 / 3600
    stall_least: float = 1.0
    stall_shape: float = 1.5
    failures: float = 419 / (54 * 86400 * 16384)
    silent: float = 0.5
    save: float = 60.0
    restart: float = 300.0


class Outcome(NamedTuple):
    """What became of the time of a run: shares of it, and breaks by ranks that were only slow."""

    useful: float
    saving: float
    waiting: float
    restarting: float
    again: float
    false_breaks: int
    failures: int
    seconds: float


DEFAULT = Constants()
LONG = 10.0
"""Shorter stalls lengthen a step; longer ones are events of a run, and no time-out is below."""


def ring(
    ranks: int, size: float, constants: Constants = DEFAULT, rng: np.random.Generator | None = None
) -> float:
    """Return the seconds of a ring all-reduce of `size` bytes: 2 (ranks - 1) messages each.

    A rank sends a message when the one before has left its port and its part has arrived. With
    `rng` each hop takes longer at random, and every rank is simulated. Without, all hosts do the
    same, and one stands for all; its steps are a matrix of the (max, +) algebra, to a power.
    """
    steps = 2 * (ranks - 1)
    members = ranks if rng is not None else min(ranks, constants.ranks_per_host)
    last = constants.ranks_per_host - 1  # of a host; it sends to the next host
    between = (np.arange(members) % (last + 1) == last) & (ranks > last + 1)
    bandwidth = np.where(between, constants.bandwidth_between, constants.bandwidth_inside)
    busy = constants.overhead + size / ranks / bandwidth
    hop = busy + np.where(between, constants.latency_between, constants.latency_inside)
    if rng is not None:
        free = np.zeros(members)
        for _ in range(steps):
            arrived = free + hop + rng.exponential(constants.hop_jitter, members)
            free = np.maximum(free + busy, np.roll(arrived, 1))
        return constants.call + float(free.max())
    power = np.full((members, members), -np.inf)
    power[np.arange(members), np.arange(members)] = busy
    following = (np.arange(members) + 1) % members
    power[following, np.arange(members)] = np.maximum(power[following, np.arange(members)], hop)
    free = np.zeros(members)
    while steps:
        if steps & 1:
            free = (power + free).max(axis=1)
        power = (power[:, :, None] + power[None]).max(axis=1)
        steps >>= 1
    return constants.call + float(free.max())


def tree(
    ranks: int,
    size: float,
    chunks: int,
    constants: Constants = DEFAULT,
    rng: np.random.Generator | None = None,
) -> float:
    """Return the seconds of an all-reduce up and down a double binary tree, in `chunks` pieces.

    The pieces follow each other. Two trees share the ports, so that a piece keeps one for twice its
    own time. Without `rng` all nodes of a level do the same, and one stands for all.
    """
    levels = math.ceil(math.log2(ranks))
    inside = math.log2(constants.ranks_per_host)
    piece = size / chunks
    begun: list[Times | None] = [None] * (2 * levels)
    ready = np.zeros(1)
    for _ in range(chunks):
        ready = np.zeros(2**levels if rng is not None else 1)
        ready[ranks:] = -np.inf  # leaves without a rank
        for hop in range(2 * levels):
            up = hop < levels
            near = min(hop, 2 * levels - 1 - hop) < inside
            sent = piece / (constants.bandwidth_inside if near else constants.bandwidth_between)
            latency = constants.latency_inside if near else constants.latency_between
            if rng is not None and not up:
                ready = ready.repeat(2)
            before = begun[hop]
            if before is not None:
                ready = np.maximum(ready, before + constants.overhead + 2 * sent)
            begun[hop] = ready
            ready = ready + constants.overhead + sent + latency
            if rng is not None:
                ready += rng.exponential(constants.hop_jitter, len(ready))
                ready = ready.reshape(-1, 2).max(axis=1) if up else ready
    return constants.call + float(ready.max())


@cache
def all_reduce(ranks: int, size: float, algorithm: str, constants: Constants = DEFAULT) -> float:
    """Return the seconds of an all-reduce by `"ring"`, `"tree"`, or the `"best"` of the two."""
    if algorithm == "ring":
        return ring(ranks, size, constants)
    if algorithm == "tree":
        return min(tree(ranks, size, 2**power, constants) for power in range(11))
    return min(all_reduce(ranks, size, each, constants) for each in ("ring", "tree"))


def training_steps(
    ranks: int,
    bucket: float,
    algorithm: str,
    rng: np.random.Generator,
    count: int = 1000,
    constants: Constants = DEFAULT,
) -> Times:
    """Return the seconds of `count` steps of data-parallel training.

    A third of the compute is the forward pass; then the gradients come bucket by bucket. A bucket
    is reduced when all ranks have it and the one before has been reduced: the maximum over the
    ranks, and then over the buckets, is what a queue of events would give.
    """
    buckets = max(1, math.ceil(constants.gradient / bucket))
    one = all_reduce(ranks, constants.gradient / buckets, algorithm, constants)
    at = constants.compute * (1 + 2 * np.arange(1, buckets + 1) / buckets) / 3
    after = one * np.arange(buckets, 0, -1)
    taken = np.empty(count)
    for index in range(count):
        # The greatest of as many normal numbers as ranks, from one uniform number.
        slowest = NormalDist(1, constants.spread).inv_cdf(rng.random() ** (1 / ranks))
        stalled = rng.binomial(ranks, constants.stalls * constants.compute)
        when = constants.compute * rng.random(stalled)[:, None]
        late = constants.stall_least * (1 + rng.pareto(constants.stall_shape, stalled)[:, None])
        each = at + np.minimum(late, LONG) * (when < at)
        taken[index] = (np.maximum(slowest * at, each.max(axis=0, initial=0)) + after).max()
    return taken


def time_between_failures(ranks: int, constants: Constants = DEFAULT) -> float:
    """Return the mean seconds from one failure of any rank to the next."""
    return 1 / (ranks * constants.failures)


def young(save: float, between: float) -> float:
    """Return Young's interval between checkpoints that take `save` each."""
    return math.sqrt(2 * save * between)


def daly(save: float, between: float) -> float:
    """Return Daly's interval, which is right for more frequent failures than Young's."""
    part = save / (2 * between)
    if part >= 1:
        return between
    return young(save, between) * (1 + math.sqrt(part) / 3 + part / 9) - save


def run(
    ranks: int,
    interval: float,
    timeout: float,
    seed: int,
    failures: int = 200,
    constants: Constants = DEFAULT,
) -> Outcome:
    """Return what becomes of a run with failures, stalls, checkpoints and a time-out.

    A queue of events. A failure that nobody reports, and a stall longer than the time-out, cost
    the time-out; every break costs a restart and the work since the last checkpoint.
    """
    failing, stalling = np.random.default_rng(seed).spawn(2)
    shape, mean = constants.stall_shape, time_between_failures(ranks, constants)
    # The mean seconds between stalls of more than LONG; no stalls, no such event.
    pause = constants.stalls and 1 / (
        ranks * constants.stalls * (constants.stall_least / LONG) ** shape
    )
    events = [(failing.exponential(mean), "failure", 0), (interval, "due", 0)]
    if pause:
        events.append((stalling.exponential(pause), "stall", 0))
    heapq.heapify(events)
    phase, due, current = "working", interval, 0  # a "due" of another number is stale
    saves = broken = false_breaks = 0
    waited = restarted = now = 0.0
    while broken < failures:
        now, kind, number = heapq.heappop(events)
        before, wait = due, -1.0
        if kind == "failure":
            broken += 1
            heapq.heappush(events, (now + failing.exponential(mean), "failure", 0))
            silent = failing.random() < constants.silent
            if phase == "down":  # the restart begins anew
                due = max(due, now + constants.restart)
                restarted += due - before
            else:
                wait = timeout if silent else 0.0
        elif kind == "stall":
            heapq.heappush(events, (now + stalling.exponential(pause), "stall", 0))
            late = LONG * (1 + stalling.pareto(shape))
            if phase != "down" and late > timeout:
                false_breaks += 1
                wait = timeout
            elif phase != "down":
                due += late
                waited += late
        elif number == current and phase == "working":
            phase, due = "saving", now + constants.save
        elif number == current:  # saved, or up again
            saves += phase == "saving"
            phase, due = "working", now + interval
        if wait >= 0:
            phase, due = "down", now + wait + constants.restart
            waited += wait
            restarted += constants.restart
        if due != before:
            current += 1
            heapq.heappush(events, (due, "due", current))
    now = max(now, due) if phase == "down" else now
    useful, saving = saves * interval / now, saves * constants.save / now
    waiting, restarting = waited / now, restarted / now
    again = 1 - useful - saving - waiting - restarting
    return Outcome(useful, saving, waiting, restarting, again, false_breaks, broken, now)
