"""Kernels of images that tell nothing of their parameters but the sizes (C5)."""

import struct

import numpy as np
import pytest
from core_harness import LIMIT

from hal import native
from hal.errors import InvalidArgumentError


def test_untyped_kernels_take_numpy_scalars_and_buffers_c5(device, bare_image):
    program = device.load(bare_image)
    assert list(program) == []
    assert "bare" in program
    assert "absent" not in program
    kernel = program["bare"]
    assert program["bare"] is kernel
    assert program.get("bare") is kernel
    assert str(kernel.signature) == "(any[8] arg0, any[4] arg1, any[12] arg2)"
    record = np.array([(3, (4, 5), 6)], dtype=[("i", "i4"), ("s", "i2", 2), ("j", "i4")])[0]
    y = device.upload(np.zeros(2, np.float32))
    for structure in (record, record.tobytes(), memoryview(record.tobytes())):
        device.queue.fill(y, 0)
        arguments = (y, np.float32(0.5), structure)
        device.queue.dispatch(kernel, grid=2, block=1, args=arguments).wait(LIMIT)
        assert y.numpy().tolist() == [1.5, 1.5]
    arguments = {"arg0": y, "arg2": record, "arg1": np.float32(2)}
    device.queue.dispatch(kernel, grid=1, block=1, args=arguments).wait(LIMIT)
    assert y.numpy().tolist() == [6, 1.5]
    with device.record() as commands:
        commands.dispatch(kernel, grid=2, block=1, args=(y, np.float32(-1), record))
    device.queue.execute(commands).wait(LIMIT)
    assert y.numpy().tolist() == [-3, -3]
    device.queue.dispatch(kernel, grid=0, block=1, args=(None, np.int32(0), record)).wait(LIMIT)


def test_untyped_kernels_of_unknown_sizes_need_a_signature_c5(open_probe, bare_image, monkeypatch):
    device, probe = open_probe()
    known = probe.function_info
    monkeypatch.setattr(
        probe,
        "function_info",
        lambda function: native.FunctionInfo(
            known(function).max_threads_per_block, 0, parameter_sizes=None
        ),
    )
    program = device.load(bare_image)
    with pytest.raises(InvalidArgumentError, match=r"'bare'.*driver cannot.*signatures=.*'bare'"):
        _ = program["bare"]
    kernel = program.kernel("bare", signature="(ptr y, f32 factor, bytes[12] r)")
    y = device.upload(np.zeros(1, "f4"))
    arguments = (y, 2, struct.pack("<ihhi", 3, 4, 5, 6))
    device.queue.dispatch(kernel, grid=1, block=1, args=arguments).wait(LIMIT)
    assert y.numpy().tolist() == [6]
    loaded = device.load(bare_image, signatures={"bare": "(ptr y, f32 factor, bytes[12] r)"})
    assert list(loaded) == ["bare"]
