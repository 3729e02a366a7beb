"""Graphs: how a fill is told to the driver, and when a recording becomes one."""

import pytest

from hal.native import FillNode


@pytest.mark.parametrize(("width", "value"), [(1, 0x11), (2, 0xDD11), (4, 0xBBCCDD11)])
def test_a_fill_has_no_more_of_the_pattern_than_its_width_c1(driver, width, value):
    from hal_cuda import _graph  # noqa: PLC0415

    parameters, _ = _graph._fill(FillNode(256, 0xAABBCCDD11, width, 8), 0)
    assert (parameters.value, parameters.elementSize, parameters.width) == (value, width, 8)


def test_recordings_of_a_launch_or_two_commands_that_run_again_are_graphs_c4(lab):
    """C4: as measured on an H200 with benchmarks/lowering.py."""
    assert (lab.device.graph_commands, lab.device.graph_launches) == (2, 1)
