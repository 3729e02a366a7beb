"""Arrays: buffers made with a shape and a value, and their parts along the first axis (M1, M2)."""

import numpy as np
import pytest

from hal.errors import ArgumentTypeError, InvalidArgumentError
from hal_conformance.suite.support import LIMIT

SHAPES = [(), 0, 7, (3, 4), (2, 0, 5), (1 << 11, 5)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(
    ("dtype", "value"), [("<f4", 1.5), ("u1", 7), ("<c16", 2 - 1j), ("<i8", -3)]
)
def test_arrays_of_a_value_m1(device, shape, dtype, value):
    """M1: `full` and `zeros` are ready when they return; `empty` has the shape and type."""
    expected = np.full(shape, value, dtype)
    for made, content in (
        (device.full(shape, value, dtype), expected),
        (device.zeros(shape, dtype), np.zeros(shape, dtype)),
        (device.empty(shape, dtype), None),
    ):
        assert (made.shape, made.dtype, made.size) == (
            expected.shape,
            expected.dtype,
            expected.nbytes,
        )
        if content is not None:
            np.testing.assert_array_equal(made.numpy(timeout=LIMIT), content)
        made.close()


@pytest.mark.parametrize("shape", [-1, (2, -1), 1.5, "12", None, (1, None)], ids=str)
def test_odd_shapes_are_refused_m1(device, shape):
    """M1: a shape is an int or some, none of them negative."""
    for make in (device.empty, device.zeros):
        with pytest.raises((ArgumentTypeError, InvalidArgumentError)):
            make(shape, np.float32)


@pytest.mark.parametrize(
    "rows", [(None, None), (1, 3), (-2, None), (3, 1), (-99, 99), (4, None)], ids=str
)
@pytest.mark.parametrize("shape", [(5,), (5, 3), (5, 0), (0, 3)], ids=str)
def test_rows_of_an_array_m2(device, queue, shape, rows):
    """M2: ``buffer[a:b]`` is what numpy's is, and the same memory."""
    host = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    buffer = device.upload(host)
    part = buffer[slice(*rows)]
    expected = host[slice(*rows)]
    assert part.shape == expected.shape
    assert part.dtype == expected.dtype
    np.testing.assert_array_equal(part.numpy(timeout=LIMIT), expected)
    if part.size:
        queue.fill(part, 9.0).wait(LIMIT)
        expected[:] = 9
        np.testing.assert_array_equal(buffer.numpy(timeout=LIMIT), host)
        np.testing.assert_array_equal(part[:1].numpy(timeout=LIMIT), expected[:1])


def test_other_subscripts_are_refused_m2(device):
    """M2: no steps, no elements, no second axis, no iteration."""
    buffer = device.empty((4, 4), np.int32)
    for subscript in (0, (slice(1), slice(1)), ..., None, slice("a"), slice(1.0)):
        with pytest.raises(ArgumentTypeError):
            buffer[subscript]
    with pytest.raises(InvalidArgumentError, match="no step"):
        buffer[::2]
    with pytest.raises(InvalidArgumentError, match="single element"):
        device.empty((), np.int32)[:]
    with pytest.raises(TypeError):
        iter(buffer)
