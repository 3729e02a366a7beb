"""Measure copies between two devices; the part ``rates`` of `multi_gpu.py`.

A sample is some copies in a row, or one, from the first submission until the
host knows the end of the last. In each round every side takes one sample, and
the order changes from round to round.
"""

from __future__ import annotations

import importlib
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from multi_gpu_findings import LIMIT, Findings, Settings

import hal
from hal.flow import Flow

__all__ = ["rates"]

MIB = 1 << 20
SIZES = (1, 4, 16, 64, 256, 1024)
"""In MiB."""
QUICK_SIZES = (1, 4)
ROUNDS = 25
STAGED = 256
"""The largest that goes through the host, in MiB."""
AIM = 0.95
"""Of the raw call's rate, above 16 MiB."""
LEAST = 16

AT_ONCE = 128
"""Copies in a row, at most."""
IN_A_ROW = 8192
"""What copies in a row have together, in MiB: the end of the last, which a host that
sleeps hears of later than one that spins, is a small part of that."""
QUICK_IN_A_ROW = 64

Copy = Callable[[int], None]
"""Do a copy so many times in a row, and wait for the last."""


def rates(devices: Sequence[hal.Device], settings: Settings, found: Findings) -> None:
    """Copy from the first device to the second in every way, and from each to its next."""
    source, target = devices[:2]
    if source.can_access(target):
        # A driver stages copies through the host where this was not asked for.
        source.enable_access(target)
    sizes = QUICK_SIZES if settings.quick else SIZES
    for size in sizes:
        _measure("0 to 1", source, target, size, settings, found)
    for index, a in enumerate(devices[1:], 1):
        other = (index + 1) % len(devices)
        if a.can_access(devices[other]):
            a.enable_access(devices[other])
        _measure(f"{index} to {other}", a, devices[other], sizes[-2], settings, found)


def _measure(
    pair: str,
    source: hal.Device,
    target: hal.Device,
    size: int,
    settings: Settings,
    found: Findings,
) -> None:
    """Measure one size, in MiB."""
    length = size * MIB
    total = QUICK_IN_A_ROW if settings.quick else IN_A_ROW
    count = max(1, min(AT_ONCE, total // size))
    data = np.random.default_rng(size).integers(0, 1 << 32, length // 4, np.uint32)
    rounds = 3 if settings.quick else ROUNDS
    with Flow(source, target) as flow, Flow(source, target, peers=False) as staged:
        sent, got = source.upload(data), target.upload(np.zeros_like(data))
        sides: dict[str, Copy] = {}
        with _raw(settings, source, target) as raw:
            if raw is not None:
                sides["raw"] = lambda times: raw(sent.address, got.address, length, times)
            if "peer_access" in source.features:
                sides["hal"] = lambda times: _in_a_row(
                    times, lambda: source.queues.download.copy(sent, got)
                )
            tracked = [flow.from_host(data, source), flow.allocate(length, device=target)]
            sides["flow"] = lambda times: _in_a_row(times, lambda: flow.copy(*tracked))
            if size <= STAGED:
                relayed = [staged.from_host(data, source), staged.allocate(length, device=target)]
                sides["staged"] = lambda times: _in_a_row(times, lambda: staged.copy(*relayed))
            one = _alternate(sides, rounds, 1)
            sides.pop("staged", None)  # it would take a second
            many = _alternate(sides, rounds, count)
        if "hal" in sides:
            found.expect(np.array_equal(got.numpy(), data), f"{pair}: {size} MiB arrive changed")
        facts: dict[str, Any] = {"pair": pair, "MiB": size, "in a row": count}
        facts |= {f"{side} GB/s": count * length / 1e9 / many[side] for side in sides}
        if "staged" in one:
            facts["staged GB/s, one"] = length / 1e9 / one["staged"]
        if "raw" in sides:
            facts |= {f"{side} / raw": many["raw"] / many[side] for side in ("hal", "flow")}
            facts |= {f"{side} / raw, one": one["raw"] / one[side] for side in ("hal", "flow")}
            for side in ("hal", "flow") if size > LEAST and not settings.quick else ():
                ratio = facts[f"{side} / raw"]
                found.expect(ratio >= AIM, f"{pair}, {size} MiB: {side} has {ratio:.3f} of raw")
        facts |= {f"{side} us, one": 1e6 * each for side, each in one.items()}
        found.row(**facts)
        for each in (sent, got, *tracked, *(relayed if size <= STAGED else ())):
            each.close()


def _in_a_row(times: int, copy: Callable[[], hal.Submission]) -> None:
    for _ in range(times - 1):
        copy()
    copy().wait(LIMIT)


def _alternate(sides: dict[str, Copy], rounds: int, count: int) -> dict[str, float]:
    """Return the median of each side's seconds; the first round does not count."""
    times: dict[str, list[float]] = {side: [] for side in sides}
    order = list(sides)
    for number in range(-1, rounds):
        first = number % len(order)
        for side in order[first:] + order[:first]:
            copy = sides[side]
            start = time.perf_counter()
            copy(count)
            seconds = time.perf_counter() - start
            if number >= 0:
                times[side].append(seconds)
    return {side: statistics.median(each) for side, each in times.items()}


@contextmanager
def _raw(
    settings: Settings, source: hal.Device, target: hal.Device
) -> Iterator[Callable[[int, int, int, int], None] | None]:
    """Give the driver's own call, with nothing around it; None where there is none to compare."""
    if settings.backend != "cuda":
        yield None
        return
    cu = importlib.import_module("cuda.bindings.driver")

    def call(function: Any, *arguments: Any) -> Any:
        error, *results = function(*arguments)
        if error:
            message = f"{function.__name__}: {error}"
            raise RuntimeError(message)
        return results[0] if results else None

    ordinals = [source.info.index, target.info.index]
    contexts = [int(call(cu.cuDevicePrimaryCtxRetain, ordinal)) for ordinal in ordinals]
    call(cu.cuCtxSetCurrent, contexts[0])
    stream = call(cu.cuStreamCreate, cu.CUstream_flags.CU_STREAM_NON_BLOCKING)

    def copy(sent: int, got: int, length: int, times: int) -> None:
        cu.cuCtxSetCurrent(contexts[0])
        for _ in range(times):
            (error,) = cu.cuMemcpyPeerAsync(got, contexts[1], sent, contexts[0], length, stream)
        (ended,) = cu.cuStreamSynchronize(stream)
        if error or ended:
            message = f"cuMemcpyPeerAsync: {error}, {ended}"
            raise RuntimeError(message)

    try:
        yield copy
    finally:
        call(cu.cuCtxSetCurrent, contexts[0])
        call(cu.cuStreamDestroy, stream)
        for ordinal in ordinals:
            call(cu.cuDevicePrimaryCtxRelease, ordinal)
