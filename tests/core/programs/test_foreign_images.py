"""Images that other compilers made become programs: what they say, and what the user adds (C5)."""

import contextlib
import os
import pickle

import numpy as np
import pytest
from core_harness import LIMIT
from damage import damaged

import hal
from hal.errors import (
    ArgumentTypeError,
    BackendNotFoundError,
    FileError,
    HalError,
    InvalidArgumentError,
    NotFoundError,
)

SIGNATURE = "(f32* y, f32 factor, bytes[12] r)"
DESCRIBED = {"bare": {"signature": SIGNATURE, "block": 2, "shared_memory": 64}}
ANY = {"x86_64": "cpu:x86-64", "aarch64": "cpu:armv8-a"}[os.uname().machine]
"""The target of an image that says no more than its machine."""


def run(device, kernel):
    """Return what the kernel writes for a factor of 2 and a record that begins with 3."""
    y = device.upload(np.zeros(1, np.float32))
    record = np.array([3, 0, 0], np.int32)
    device.queue.dispatch(kernel, grid=1, args=(y, 2.0, record)).wait(LIMIT)
    return y.numpy().tolist()


def test_an_image_need_not_be_described_c5(device, bare_image):
    program = hal.Program.from_images(bare_image)
    assert program.targets == (ANY,)
    assert program.entry_points == ("bare",)
    assert program.signatures == {}  # loading tells
    loaded = device.load(program)
    assert list(loaded) == ["bare"]
    assert str(loaded["bare"].signature) == "(any[8] arg0, any[4] arg1, any[12] arg2)"


def test_a_description_adds_what_the_image_does_not_say_c5(device, bare_image):
    program = hal.Program.from_images({"cpu": bare_image}, kernels=DESCRIBED)
    assert str(program.signatures["bare"]) == SIGNATURE
    kernel = device.load(program)["bare"]
    assert (kernel.block, kernel.shared_memory) == ((2, 1, 1), 64)
    assert str(kernel.signature) == SIGNATURE
    assert run(device, kernel) == [6]
    assert device.load(program)["bare"] is kernel  # loaded once, as every program


def test_it_is_saved_and_sent_as_programs_are_c5(device, bare_image, tmp_path):
    (tmp_path / "bare.so").write_bytes(bare_image)
    program = hal.Program.from_images(tmp_path / "bare.so", kernels=DESCRIBED)
    program.save(tmp_path / "bare.hal")
    opened = hal.Program.open(tmp_path / "bare.hal")
    for same in (opened, pickle.loads(pickle.dumps(program))):
        assert same.to_bytes() == program.to_bytes()
        assert run(device, device.load(same)["bare"]) == [6]
    assert run(device, device.load(tmp_path / "bare.hal")["bare"]) == [6]
    plain = hal.Program.from_bytes(hal.Program.from_images(bare_image).to_bytes())
    assert plain.images[0].kernels["bare"].signature is None
    assert len(device.load(plain)["bare"].signature.parameters) == 3


def test_programs_are_joined_with_images_c5(device, bare_image, tmp_path):
    source = "__global__ void HAL_BLOCK(8) mine(int *x) { x[0] = 1; }"
    mine = hal.compile(source, target="cpu")
    mine.save(tmp_path / "mine.hal")
    for each in (mine, tmp_path / "mine.hal", mine.to_bytes(), mine.images[0]):
        joined = hal.Program.from_images([bare_image, each])
        assert joined.targets == (ANY, "cpu:native")
        assert joined.entry_points == ("bare", "mine")
        assert each is mine.images[0] or joined.metadata["filenames"] == "kernel.cpp"
        assert joined.image_for(device) == mine.images[0]  # uses most of the processor


def test_hals_own_images_say_all_c5(device):
    source = "__global__ void HAL_BLOCK(8) mine(const int *x, int n) {}"
    (image,) = hal.compile(source, target="cpu").images
    (again,) = hal.Program.from_images(image.image).images
    assert (again.target, again.kernels) == ("native", image.kernels)
    assert again.properties["features"] == image.properties["features"]
    with pytest.raises(InvalidArgumentError, match="'n' has 4 bytes in the image"):
        hal.Program.from_images(
            image.image, kernels={"mine": {"signature": "(const i32* x, i64 n)"}}
        )
    with pytest.raises(InvalidArgumentError, match="'x' is a pointer in the image, and u64"):
        hal.Program.from_images(image.image, kernels={"mine": {"signature": "(u64 x, i32 n)"}})


@pytest.mark.parametrize(
    ("given", "kind", "told"),
    [
        (7, ArgumentTypeError, "bytes or a path, not int"),
        ([], InvalidArgumentError, "there is no image"),
        (b"", InvalidArgumentError, "the image is empty"),
        ("missing.so", FileError, r"missing\.so"),
        (b"nonsense", InvalidArgumentError, r"(?s)no installed backend .*cpu: .*b'nonsense'"),
        ({"cpu": b"nonsense"}, InvalidArgumentError, "is not for 'cpu': .*b'nonsense'"),
        ({7: b"nonsense"}, ArgumentTypeError, "a target is text"),
        ({"vulkan:x": b"nonsense"}, BackendNotFoundError, "'vulkan'"),
    ],
    ids=str,
)
def test_what_is_no_image_is_refused_c5(given, kind, told):
    with pytest.raises(kind, match=told):
        hal.Program.from_images(given)


@pytest.mark.parametrize(
    ("kernels", "kind", "told"),
    [
        ({"other": {}}, NotFoundError, "no kernel 'other'; there are: bare"),
        ({"bare": {"signature": "(ptr"}}, InvalidArgumentError, "is no parameter"),
        ({"bare": {"signature": 7}}, ArgumentTypeError, "signature of kernel 'bare' is text"),
        ({"bare": {"block": 0}}, InvalidArgumentError, "'bare': the block is one to three"),
        ({"bare": {"shared_memory": -1}}, InvalidArgumentError, "the shared memory is 0 to"),
        ({"bare": {"blocks": 1}}, ArgumentTypeError, "has signature, block, shared_memory, not"),
        ({"bare": SIGNATURE}, ArgumentTypeError, r"a mapping such as \{'block': 128\}, not str"),
        ({7: {}}, ArgumentTypeError, "the name of a kernel is a str"),
        ([SIGNATURE], ArgumentTypeError, "kernels is a mapping"),
    ],
    ids=str,
)
def test_descriptions_are_checked_c5(bare_image, kernels, kind, told):
    with pytest.raises(kind, match=told):
        hal.Program.from_images(bare_image, kernels=kernels)


def test_a_signature_of_other_sizes_is_refused_when_it_is_loaded_c5(device, bare_image):
    """A shared object's sizes are found out by loading it."""
    kernels = {"bare": {"signature": "(ptr y, f64 factor, bytes[12] r)"}}
    program = hal.Program.from_images(bare_image, kernels=kernels)
    with pytest.raises(InvalidArgumentError, match="'factor' has 4 bytes in the image, and 8"):
        device.load(program)


def test_targets_are_checked_against_the_image_c5(bare_image):
    native = hal.compile("__global__ void k(int *x) {}", target="cpu").images[0]
    for target in ("cpu:sm_90", "cpu:armv9000"):
        with pytest.raises(InvalidArgumentError, match="is no target of a shared object for"):
            hal.Program.from_images({target: bare_image})
    if native.properties["features"]:
        with pytest.raises(InvalidArgumentError, match=r"it needs .*, which .* does not promise"):
            hal.Program.from_images({ANY: native.image})
    with pytest.raises(InvalidArgumentError, match="two of the targets are the same"):
        hal.Program.from_images([bare_image, bare_image])
    with pytest.raises(InvalidArgumentError, match="has targets of its own; put it into a list"):
        hal.Program.from_images({"cpu": hal.Program.from_images(bare_image)})


def test_a_program_for_another_machine_is_refused_where_it_does_not_run_c5(device, bare_image):
    other = bytearray(bare_image)
    other[18] = {"x86_64": 183, "aarch64": 62}[os.uname().machine]
    program = hal.Program.from_images([bytes(other)], kernels=DESCRIBED)
    both = hal.Program.from_images([program, bare_image])
    assert both.image_for(device).image == bare_image
    with pytest.raises(hal.errors.OperationError, match="none of them runs on cpu"):
        device.load(program)


def test_damaged_images_are_read_or_refused_c5():
    source = "__global__ void mine(const int *x, int n) {}"
    image = hal.compile(source, target="cpu").images[0].image
    features = hal.compile(source, target="cpu").images[0].properties["features"].encode()
    no_text = image.replace(features, b"\xff" * len(features)) if features else image
    assert hal.Program.from_images(no_text).entry_points == ("mine",)
    for seed in range(300):
        with contextlib.suppress(HalError):
            hal.Program.from_images(damaged(image, seed))
