"""Fixtures of the command buffer tests: every way to record."""

from __future__ import annotations

import pytest

import hal
from hal_conformance.suite.command_buffers.recording import OPERANDS, Recorder


@pytest.fixture(params=OPERANDS)
def recorder(request: pytest.FixtureRequest, queue: hal.Queue, lowering: str) -> Recorder:
    """A recorder, of each kind and in each lowering."""
    return Recorder(queue, request.param, lowering)
