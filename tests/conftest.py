"""Share the tests among processes: ``pytest -n 16 --dist loadgroup``, with pytest-xdist."""

from __future__ import annotations

from pathlib import Path

import pytest

HERE = Path(__file__).parent
APART = {
    "conformance/test_core_mutants.py",
    "conformance/test_mutants.py",
    "gpusim/test_conformance.py",
    "gpusim/test_mixed.py",
    "gpusim/test_odd_input.py",
    "schedules/test_cases.py",
    "schedules/test_mutants.py",
}
"""Files whose tests are long and share nothing: each may run in another process. The tests of any
other file run in one, so that what they share is made once."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark which tests stay together; what can be shared out more finely comes last."""
    if not hasattr(config, "workerinput"):  # this is not a process of pytest-xdist
        return
    for item in items:
        name = item.path.relative_to(HERE).as_posix()
        if name not in APART:
            item.add_marker(pytest.mark.xdist_group(name))
    items.sort(key=lambda item: item.path.relative_to(HERE).as_posix() in APART)
