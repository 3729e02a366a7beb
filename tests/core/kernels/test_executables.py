"""Executables: where signatures come from, defaults of a dispatch, variables, images (C5)."""

import gc
import struct

import numpy as np
import pytest
from core_harness import LIMIT
from interop_harness import assert_soon

import hal
from hal.errors import (
    ArgumentTypeError,
    ClosedError,
    InvalidArgumentError,
    NotFoundError,
    OperationError,
)

SOURCE = """
typedef const float *Input;

__device__ int counter = 5;

__global__ void HAL_BLOCK(4) scale(float factor, Input x, float *y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = factor * x[i];
}

__global__ void HAL_BLOCK(16) HAL_SHARED_MEMORY(16 * sizeof(int)) reverse(int *data) {
  extern __shared__ int memory[];
  memory[threadIdx.x] = data[threadIdx.x];
  __syncthreads();
  data[threadIdx.x] = memory[blockDim.x - 1 - threadIdx.x];
}

__global__ void count(int *out) { out[0] = counter; counter += 1; }
"""


@pytest.fixture(scope="module")
def compiled():
    with hal.create_device("cpu") as device:
        yield device, device.compile(SOURCE, filename="core.cpp")


# Where signatures come from


@pytest.mark.parametrize(
    ("signature", "match"),
    [
        ("(f32 a, ptr x)", r"'scale' has 4 parameters in the image, of 4, 8, 8, 4 bytes, and 2"),
        ("(f64 a, ptr x, ptr y, i32 n)", r"'scale': parameter 'a' has 4 bytes in the image, and 8"),
        ("()", r"'scale' has 4 parameters"),
        ("(nonsense a)", "nonsense"),
    ],
)
def test_signatures_that_contradict_the_image_c5(compiled, device, signature, match):
    _, program = compiled
    with pytest.raises(InvalidArgumentError, match=match):
        device.load(program.image, signatures={"scale": signature})
    with pytest.raises(InvalidArgumentError, match=match):
        compiled[1].kernel("scale", signature=signature)


@pytest.mark.parametrize("wrong", [5, None, b"(ptr x)", ["ptr x"]], ids=repr)
def test_signatures_of_the_wrong_type_c5(compiled, wrong):
    device, program = compiled
    with pytest.raises(ArgumentTypeError, match=r"scale.*text such as"):
        device.load(program.image, signatures={"scale": wrong})
    if wrong is not None:
        with pytest.raises(ArgumentTypeError, match=r"scale.*text such as"):
            program.kernel("scale", signature=wrong)
    with pytest.raises(ArgumentTypeError, match="mapping"):
        device.load(program.image, signatures=[("scale", "()")])


def test_a_table_of_another_version_is_refused_c5(compiled, device):
    """C5: an image of an older hal says so; given signatures are enough then."""
    _, program = compiled
    header = struct.pack("<2I", 0x6C6168, 3)
    assert program.image.count(header) == 1
    old = program.image.replace(header, struct.pack("<2I", 4, 4))
    new = program.image.replace(header, struct.pack("<2I", 0x6C6168, 4))
    for image, match in ((old, "older version or damaged"), (new, "version 4")):
        with pytest.raises(InvalidArgumentError, match=f"{match}.*compile.*signatures"):
            device.load(image)
        loaded = device.load(image, signatures={"count": "(ptr out)"})
        assert list(loaded) == ["count"]
        assert str(loaded["reverse"].signature) == "(any[8] arg0)"


# What a dispatch has that does not say


NO_BLOCK = "the block is one to three numbers of 1 or more, not "


@pytest.mark.parametrize(
    ("given", "error", "match"),
    [
        ({"block": 0}, InvalidArgumentError, NO_BLOCK + "0"),
        ({"block": (1, 1, 1, 1)}, InvalidArgumentError, NO_BLOCK),
        ({"block": ()}, InvalidArgumentError, NO_BLOCK),
        ({"block": -1}, InvalidArgumentError, NO_BLOCK + "-1"),
        ({"block": 1.5}, ArgumentTypeError, "the block is one to three ints, not float"),
        ({"block": "4"}, ArgumentTypeError, "the block is one to three ints, not str"),
        ({"shared_memory": -1}, InvalidArgumentError, "0 or more bytes; -1"),
        ({"shared_memory": "4"}, ArgumentTypeError, "a number of bytes as an int, not str"),
    ],
    ids=repr,
)
def test_wrong_descriptions_of_a_kernel_c5(compiled, given, error, match):
    _, program = compiled
    with pytest.raises(error, match=f"'scale'.*{match}"):
        program.kernel("scale", **given)


def test_marks_hide_nothing_from_the_compiler(compiled):
    """Lines and columns behind a mark stay what they were."""
    device, _ = compiled
    source = "__global__ void HAL_BLOCK(4,\n 4) wrong(int *p) { p[0] = missing; }"
    column = source.split("\n")[1].index("missing") + 1
    with pytest.raises(hal.errors.CompilationError, match=rf"m\.cpp:2:{column}: error"):
        device.compile(source, filename="m.cpp")


# Variables


def test_a_variable_keeps_its_program_m2(open_probe):
    """M2: the module is unloaded after the last buffer over its variable, and not before."""
    device, probe = open_probe()
    variable = device.compile(SOURCE).global_variable("counter")
    gc.collect()
    device.trim(1 << 40)
    assert probe.live()["module"] == 1
    assert variable.numpy(np.int32).tolist() == [5]
    part = variable.subspan(0, 2)
    variable.close()
    with pytest.raises(ClosedError):
        variable.numpy()
    gc.collect()
    device.trim(1 << 40)
    assert probe.live()["module"] == 1
    del part
    assert_soon(device, lambda: "module" not in probe.live())


def test_a_view_of_a_variable_outlives_its_device_m2(open_probe):
    """M2: the code stays loaded until the view is gone; the fixture sees that it goes then."""
    device, probe = open_probe()
    view = device.compile(SOURCE).global_variable("counter").map()
    assert len(device.close(LIMIT)) == 1
    assert probe.live() == {"module": 1}
    assert not probe.closed
    assert view.tobytes() == struct.pack("<i", 5)
    view[:] = 1
    del view
    gc.collect()


# Images


def test_images_that_are_none_c5(compiled, device, tmp_path):
    _, program = compiled
    with pytest.raises(OperationError):
        device.load(b"this is no image")
    missing = tmp_path / "missing.bin"
    with pytest.raises(FileNotFoundError, match=r"missing\.bin"):
        device.load(missing)
    with pytest.raises(FileNotFoundError, match=r"missing\.bin"):
        device.load(str(missing))
    with pytest.raises(IsADirectoryError, match=tmp_path.name):
        device.load(tmp_path)
    empty = tmp_path / "empty.bin"
    empty.touch()
    with pytest.raises(InvalidArgumentError, match=r"empty\.bin.*is empty"):
        device.load(empty)
    with pytest.raises(InvalidArgumentError, match="the image is empty"):
        device.load(b"")
    with pytest.raises(InvalidArgumentError, match="no path"):
        device.load("a\0b")
    with pytest.raises(NotFoundError, match="absent"):
        device.load(program.image, signatures={"absent": "(ptr x)"})
    for wrong in (5, None, ["image"]):
        with pytest.raises(ArgumentTypeError, match="bytes or a path"):
            device.load(wrong)


def test_an_image_of_another_architecture_c5(compiled, device):
    """C5: the error says what the image is for."""
    _, program = compiled
    image = bytearray(program.image)
    assert image[:4] == b"\x7fELF"
    image[18:20] = struct.pack("<H", 190)
    with pytest.raises(OperationError, match="NVIDIA"):
        device.load(bytes(image))
    with pytest.raises(OperationError):
        device.load(program.image[: len(program.image) // 2])


def test_names_of_kernels_that_are_none_c5(compiled, device, bare_image):
    _, program = compiled
    bare = device.load(bare_image)
    for executable, match in ((program, "there are: scale, reverse"), (bare, "bare")):
        with pytest.raises(NotFoundError, match=f"'absent'.*{match}"):
            _ = executable["absent"]
        with pytest.raises(NotFoundError, match=f"'absent'.*{match}"):
            executable.kernel("absent")
        assert executable.get("absent") is None
        assert executable.get(5) is None
        assert 5 not in executable
        with pytest.raises(ArgumentTypeError, match="str"):
            executable.kernel(5)
