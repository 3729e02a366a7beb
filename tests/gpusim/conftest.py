"""What the tests of the simulator leave behind is removed."""

import pytest
from engine_harness import forget_kernels


@pytest.fixture(scope="session", autouse=True)
def no_files_are_left():
    yield
    forget_kernels()
