"""Graphs: structures as hip-python has them."""

import ctypes

import pytest

from hal.native import FillNode, LaunchNode


@pytest.fixture
def graphs(vendor):
    from hal_hip import _graph  # noqa: PLC0415 - imports the bindings

    return _graph


def test_structures_are_those_of_the_bindings(graphs, native):
    hip = native.hip
    node = LaunchNode(0x1111, (1, 2, 3), (4, 5, 6), 7, 0x2222)
    theirs = hip.hipKernelNodeParams()
    theirs.func, theirs.kernelParams, theirs.sharedMemBytes = node.function, node.parameters, 7
    for extent, values in ((theirs.gridDim, node.grid), (theirs.blockDim, node.block)):
        extent.x, extent.y, extent.z = values
    assert graphs._launch(node) == (ctypes.string_at(int(theirs), theirs.c_sizeof()),)

    theirs = hip.hipMemsetParams()
    theirs.dst, theirs.value, theirs.elementSize = 0x1000, 0xABCD, 2
    theirs.width, theirs.height, theirs.pitch = 33, 1, 66
    assert graphs._fill(FillNode(0x1000, 0x1ABCD, 2, 33)) == (
        ctypes.string_at(int(theirs), theirs.c_sizeof()),
    )
