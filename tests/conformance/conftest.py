"""Run the conformance suite in child processes, with profiles and backends made up for a test."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

pytest.importorskip("hal_conformance", reason="hal-conformance is not installed")

# The test run imports files one by one, not as a package.
HERE = str(Path(__file__).parent)
if HERE not in sys.path:
    sys.path.insert(0, HERE)

from conformance_harness import Installed  # noqa: E402


@pytest.fixture
def installed(tmp_path):
    return Installed(tmp_path)
