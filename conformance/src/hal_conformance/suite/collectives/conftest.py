"""Groups of ranks in this process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import hal.collectives
from hal_conformance.bench import Bench
from hal_conformance.suite.collectives.members import Groups, MakeGroups
from hal_conformance.suite.support import LIMIT


@pytest.fixture
def make_groups(bench: Bench) -> Iterator[MakeGroups]:
    """Groups on devices that the tests share."""
    made: Groups = []

    def make(size: int, timeout: float = LIMIT) -> Groups:
        devices = [bench.device(number) for number in range(size)]
        made.extend(hal.collectives.join_all(devices, name="suite", timeout=timeout))
        return made[-size:]

    yield make
    for group in made:
        group.close(LIMIT)
