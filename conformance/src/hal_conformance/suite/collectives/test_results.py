"""Collectives over one to four ranks give what numpy gives (G1, G2).

The ranks are threads of this process, with a device each.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest

import hal
import hal.collectives
from hal_conformance.bench import Bench
from hal_conformance.ranks import PROGRAMS, Rank
from hal_conformance.suite.support import LIMIT, in_threads


@pytest.fixture(params=[1, 2, 3, 4])
def ranks(request: pytest.FixtureRequest, bench: Bench) -> Iterator[list[Rank]]:
    """Ranks of one group, on devices that the tests share.

    By the embedded provider: the devices may be one, which NCCL refuses as two ranks'.
    """
    devices = [bench.device(number) for number in range(request.param)]

    def join(number: int) -> hal.collectives.Group:
        return hal.collectives.join(
            devices[number],
            rank=number,
            size=len(devices),
            rendezvous="suite",
            provider="embedded",
            timeout=LIMIT,
        )

    groups = in_threads([partial(join, number) for number in range(len(devices))])
    yield [Rank(group, device.queue) for group, device in zip(groups, devices, strict=True)]
    for group in groups:
        group.close(LIMIT)


def run(program: str, ranks: list[Rank]) -> None:
    """Run a program on each rank, on a thread of its own."""
    in_threads([partial(PROGRAMS[program], rank) for rank in ranks])


def test_reductions_g2(ranks):
    """G2: with every op, of every dtype, in place and not, to all and to each root."""
    run("reductions", ranks)


def test_rounding_g2(ranks):
    """G2: numbers of 16 bits lose at most one rounding for each rank."""
    run("rounding", ranks)


def test_moves_g2(ranks):
    """G2: broadcast, all_gather, reduce_scatter and all_to_all, in place and not."""
    run("moves", ranks)


def test_messages_g2(ranks):
    """G2: a ring in a batch, and several messages between two, in their order."""
    run("messages", ranks)


def test_a_batch_is_one_launch_g1(ranks):
    """G1: one handle, which waits for all waits, and makes all signals."""
    run("batches", ranks)


def test_collectives_are_ordered_with_other_work_g1(ranks):
    """G1, S2: on several queues, ordered or not, behind waits of before the signal."""
    run("order", ranks)


def test_recordings_hold_collectives_g1(ranks):
    """G1, C1: of slots and temporaries, in batches, between other commands and operations."""
    run("recordings", ranks)


def test_no_elements_order_and_signal_g1(ranks):
    """G1, C4: operations on no elements are none, and end in their order."""
    run("nothing", ranks)


def test_many_elements_g2(ranks):
    """G2: more than a message of any transport has."""
    run("large", ranks)


def test_groups_are_split_g4(ranks):
    """G4: by color and key; a rank without a color is in none."""
    run("parts", ranks)
