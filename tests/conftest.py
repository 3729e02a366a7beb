"""Share the tests among processes: ``pytest -n 2``, with pytest-xdist."""

from __future__ import annotations

import pytest

APART = {
    "tests/conformance/test_core_mutants.py",
    "tests/conformance/test_mutants.py",
    "tests/gpusim/test_conformance.py",
    "tests/gpusim/test_every_call.py",
    "tests/gpusim/test_mixed.py",
    "tests/gpusim/test_odd_input.py",
    "tests/schedules/test_cases.py",
    "tests/schedules/test_mutants.py",
}
"""Files whose tests are long and share nothing: each may run in another process. The tests of any
other file run in one, so that what they share is made once."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Hand out whole files, the tests of `APART` one by one, in the order of the collection."""
    from xdist.scheduler import LoadScopeScheduling  # noqa: PLC0415 - only where it is installed

    class Files(LoadScopeScheduling):
        def _split_scope(self, nodeid):
            file = nodeid.partition("::")[0]
            return nodeid if file in APART else file

    config.option.loadscopereorder = False
    return Files(config, log)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What can be shared out more finely comes last, so that no process is left without work."""
    items.sort(key=lambda item: item.nodeid.partition("::")[0] in APART)
