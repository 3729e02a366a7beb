"""Executables on every device: with the feature ``compile`` or without (C5)."""

import pytest

import hal
from hal.errors import ArgumentTypeError, HalError, UnimplementedError
from hal_conformance.suite.support import LIMIT


def test_compile_is_there_or_refused_c5(device):
    """C5: a device that compiles nothing raises `UnimplementedError`, and names `load`."""
    source = "__global__ void nothing(int n) {}"
    if "compile" in device.features:
        compiled = device.compile(source)
        assert list(compiled) == ["nothing"]
        (image,) = hal.compile(source, target=device).images
        assert compiled.image == image.image
        return
    with pytest.raises(UnimplementedError, match="load"):
        device.compile(source)


@pytest.mark.parametrize("image", [None, 7, ["image"]], ids=str)
def test_what_load_does_not_take_c5(device, image):
    """C5: an image is bytes or a path."""
    with pytest.raises(ArgumentTypeError):
        device.load(image)


@pytest.mark.parametrize("image", [b"", b"nonsense", bytes(4096)], ids=["empty", "text", "zeros"])
def test_what_is_no_image_c5(device, image):
    """C5: bytes that are no image raise a `HalError`, with signatures or without."""
    with pytest.raises(HalError):
        device.load(image)
    with pytest.raises(HalError):
        device.load(image, signatures={"f": "(ptr x)"})
    device.queue.barrier().wait(LIMIT)
    assert not device.lost
