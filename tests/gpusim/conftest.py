"""Each backend that runs on the simulator, and the removal of what its tests leave behind."""

import pytest
from engine_harness import forget_kernels

BINDINGS = {"cuda": "cuda.bindings", "hip": "rocm.bindings"}


@pytest.fixture(scope="session", autouse=True)
def no_files_are_left():
    yield
    forget_kernels()


@pytest.fixture(params=BINDINGS)
def backend(request):
    pytest.importorskip(BINDINGS[request.param])
    return request.param
