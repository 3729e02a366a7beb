"""What the tests of failing groups share."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import pytest

import hal
import hal.collectives
from hal.errors import CollectiveError
from hal_conformance.suite.support import LIMIT

Groups = list[hal.collectives.Group]


class MakeGroups(Protocol):
    """Makes the groups of some ranks in this process."""

    def __call__(self, size: int, timeout: float = LIMIT) -> Groups: ...


def buffer_of(group: hal.collectives.Group, count: int = 8, dtype: str = "float32") -> hal.Buffer:
    """Return a buffer of ones."""
    return group.device.upload(np.ones(count, dtype))


def reduce(group: hal.collectives.Group, **lists: Any) -> hal.Submission:  # noqa: ANN401
    """Submit an all-reduce of eight ones."""
    return group.device.queue.all_reduce(buffer_of(group), group=group, **lists)


def failure_of(submission: hal.Submission, kind: type[Exception] = CollectiveError) -> Any:  # noqa: ANN401
    """Return the error that a submission fails with."""
    with pytest.raises(kind) as caught:
        submission.wait(LIMIT)
    return caught.value
