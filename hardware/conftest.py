"""Open the device that is asked for."""

import pytest

import hal


def pytest_addoption(parser):
    parser.addoption("--device", default="cuda", help="as for hal.create_device")


@pytest.fixture
def device(request):
    with hal.create_device(request.config.getoption("--device")) as opened:
        yield opened
