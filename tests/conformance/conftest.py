"""Run the conformance suite in child processes, with profiles and backends made up for a test."""

import pytest
from conformance_harness import Installed


@pytest.fixture
def installed(tmp_path):
    return Installed(tmp_path)
