"""Executables: signatures, marks of kernels, variables, and images from files (C5)."""

from __future__ import annotations

import gc

import numpy as np
import pytest

import hal
from hal.errors import ArgumentTypeError, ClosedError, HalError, InvalidArgumentError, NotFoundError
from hal_conformance.suite.support import LIMIT

pytestmark = pytest.mark.feature("compile")

SOURCE = """
typedef float real;
struct Point { int x, y; };
__device__ int counter = 5;
__constant__ int table[4] = {10, 20, 30, 40};

__global__ void HAL_BLOCK(WIDTH) HAL_SHARED_MEMORY(WIDTH * sizeof(int)) reverse(int *data) {
  extern __shared__ int memory[];
  memory[threadIdx.x] = data[threadIdx.x];
  __syncthreads();
  data[threadIdx.x] = memory[blockDim.x - 1 - threadIdx.x];
}

__global__ void typed(real a, const int *x, int *y, Point p, bool b, unsigned long long n) {
  y[0] = (int)a;
  y[1] = x[0];
  y[2] = p.x;
  y[3] = p.y;
  y[4] = b;
  y[5] = (int)(n >> 32);
}

__global__ void advance(int *out) {
  counter += 1;
  out[0] = counter;
  for (int i = 0; i < 4; i++) out[1 + i] = table[i];
}
"""


@pytest.fixture
def executable(device: hal.Device) -> hal.Executable:
    """A program with marks, types and variables."""
    return device.compile(SOURCE, filename="marks.cpp", defines={"WIDTH": 64})


def test_marks_are_the_defaults_of_a_dispatch_c5(device, queue, executable):
    """C5: HAL_BLOCK and HAL_SHARED_MEMORY, computed from a define, launch without more."""
    kernel = executable["reverse"]
    assert (kernel.block, kernel.shared_memory) == ((64, 1, 1), 256)
    data = device.upload(np.arange(64, dtype=np.int32))
    queue.dispatch(kernel, grid=1, args=(data,)).wait(LIMIT)
    assert data.numpy(timeout=LIMIT).tolist() == list(range(63, -1, -1))
    with device.record() as recording:
        recording.dispatch(kernel, grid=1, args=(data,))
    queue.execute(recording).wait(LIMIT)
    assert data.numpy(timeout=LIMIT).tolist() == list(range(64))


def test_a_dispatch_overrides_the_marks_c5(device, queue, executable):
    """C5: what a dispatch gives is taken, and so is a description of one's own."""
    data = device.upload(np.arange(64, dtype=np.int32))
    queue.dispatch(executable["reverse"], grid=1, block=32, shared_memory=128, args=(data,)).wait(
        LIMIT
    )
    assert data.numpy(timeout=LIMIT)[:33].tolist() == [*range(31, -1, -1), 32]
    smaller = executable.kernel("reverse", block=16, shared_memory=64)
    assert (smaller.block, smaller.shared_memory) == ((16, 1, 1), 64)
    queue.dispatch(smaller, grid=1, args=(data,)).wait(LIMIT)
    assert data.numpy(timeout=LIMIT)[:17].tolist() == [*range(16, 32), 15]
    assert executable["reverse"].block == (64, 1, 1)


def test_a_kernel_without_marks_needs_a_block_c5(device, queue, executable):
    """C5: without a mark and without ``block=`` a dispatch raises, and says both."""
    kernel = executable["advance"]
    assert (kernel.block, kernel.shared_memory) == (None, 0)
    with pytest.raises(ArgumentTypeError, match="HAL_BLOCK"):
        queue.dispatch(kernel, grid=1, args=(device.allocate(20),))


def test_signatures_are_what_the_compiler_sees_c5(executable):
    """C5: names of types are seen through, and pointers to const are known."""
    signature = executable["typed"].signature
    assert str(signature) == "(f32 a, const i32* x, i32* y, bytes[8] p, bool b, u64 n)"
    assert [each.name for each in signature.parameters] == list("axypbn")


def test_arguments_of_every_kind_c5(device, queue, executable):
    """C5: floats, pointers, a structure, a bool and 64-bit numbers arrive whole."""
    x, y = device.upload(np.array([7], np.int32)), device.upload(np.zeros(6, np.int32))
    point = np.array([(3, 4)], dtype=[("x", "<i4"), ("y", "<i4")])[0]
    arguments = (2.5, x, y, point, True, 9 << 32)
    queue.dispatch(executable["typed"], grid=1, block=1, args=arguments).wait(LIMIT)
    assert y.numpy(timeout=LIMIT).tolist() == [2, 7, 3, 4, 1, 9]
    as_bytes = {**dict(zip("axybn", (2.5, x, y, False, 0), strict=True)), "p": point.tobytes()}
    queue.dispatch(executable["typed"], grid=1, block=1, args=as_bytes).wait(LIMIT)
    assert y.numpy(timeout=LIMIT).tolist() == [2, 7, 3, 4, 0, 0]


@pytest.mark.parametrize(
    ("name", "wrong", "kind"),
    [
        ("a", "2.5", ArgumentTypeError),
        ("x", 4096, ArgumentTypeError),
        ("x", np.zeros(4, np.int32), ArgumentTypeError),
        ("p", b"1234", HalError),
        ("b", 1.5, ArgumentTypeError),
        ("n", 1.0, ArgumentTypeError),
        ("n", -1, HalError),
        ("n", 1 << 64, HalError),
    ],
    ids=str,
)
def test_bad_arguments_name_their_parameter_c5(device, queue, executable, name, wrong, kind):
    """C5: an argument of the wrong type or size raises, with kernel and parameter."""
    x, y = device.upload(np.zeros(1, np.int32)), device.upload(np.zeros(6, np.int32))
    arguments = {"a": 1.0, "x": x, "y": y, "p": bytes(8), "b": True, "n": 1, name: wrong}
    with pytest.raises(kind, match=f"typed.*{name}"):
        queue.dispatch(executable["typed"], grid=1, block=1, args=arguments)
    assert not y.numpy(timeout=LIMIT).any()


def test_variables_are_buffers_c5(device, queue, executable):
    """C5: a variable at global scope is read and written by transfers and by kernels."""
    counter = executable.global_variable("counter", dtype=np.int32)
    table = executable.global_variable("table", dtype=np.int32)
    assert (counter.size, table.shape) == (4, (4,))
    assert counter.numpy(timeout=LIMIT).tolist() == [5]
    out = device.upload(np.zeros(5, np.int32))
    queue.fill(counter, 41)
    queue.update(table, np.array([1, 2, 3, 4], np.int32))
    queue.dispatch(executable["advance"], grid=1, block=1, args=(out,)).wait(LIMIT)
    assert out.numpy(timeout=LIMIT).tolist() == [42, 1, 2, 3, 4]
    assert counter.numpy(timeout=LIMIT).tolist() == [42]
    again = executable.global_variable("counter")
    assert again.address == counter.address
    assert executable.global_variable("counter", dtype="<u2").shape == (2,)


def test_loads_have_variables_of_their_own_c5(device, queue, executable):
    """C5: two loads of one image share no variable."""
    other = device.load(executable.image)
    mine, theirs = (each.global_variable("counter", dtype="<i4") for each in (executable, other))
    assert mine.address != theirs.address
    queue.fill(mine, 100).wait(LIMIT)
    assert theirs.numpy(timeout=LIMIT).tolist() == [5]


def test_a_variable_keeps_the_code_loaded_c5(device, queue):
    """C5: a variable's memory lives as long as its buffer."""
    counter = device.compile(SOURCE, defines={"WIDTH": 32}).global_variable("counter")
    gc.collect()
    queue.fill(counter, 7).wait(LIMIT)
    assert counter.numpy(timeout=LIMIT).tolist() == [7] * 4


def test_an_unknown_variable_is_not_found_c5(executable):
    """C5: a name that is no variable raises `NotFoundError`; a kernel is none."""
    for name in ("missing", "", "advance ", "counter\0", "\0"):
        with pytest.raises(NotFoundError):
            executable.global_variable(name)
    with pytest.raises(ArgumentTypeError):
        executable.global_variable(7)
    with pytest.raises(InvalidArgumentError):
        executable.global_variable("counter", dtype=np.float64)


def test_signatures_of_ones_own_c5(device, queue, executable):
    """C5: `load` and `kernel` take signatures, with the image's sizes."""
    text = "(ptr data)"
    loaded = device.load(executable.image, signatures={"reverse": text})
    assert str(loaded["reverse"].signature) == text
    assert str(loaded["typed"].signature) == str(executable["typed"].signature)
    renamed = executable.kernel("advance", signature="(ptr result)")
    out = device.upload(np.zeros(5, np.int32))
    queue.dispatch(renamed, grid=1, block=1, args={"result": out}).wait(LIMIT)
    assert out.numpy(timeout=LIMIT)[0] == 6
    for wrong, kind in (("(ptr", InvalidArgumentError), (7, ArgumentTypeError)):
        with pytest.raises(kind):
            executable.kernel("advance", signature=wrong)
    with pytest.raises(NotFoundError):
        executable.kernel("missing")
    with pytest.raises(NotFoundError):
        device.load(executable.image, signatures={"missing": text})


def test_an_image_in_a_file_c5(device, queue, executable, tmp_path):
    """C5: an image is loaded from a path, marks, types and variables and all."""
    path = tmp_path / "image"
    path.write_bytes(executable.image)
    for given in (path, str(path)):
        loaded = device.load(given)
        assert list(loaded) == list(executable)
        assert loaded["reverse"].block == (64, 1, 1)
        assert str(loaded["typed"].signature) == str(executable["typed"].signature)
        assert loaded.global_variable("counter", dtype="<i4").numpy(timeout=LIMIT) == [5]
    data = device.upload(np.arange(64, dtype=np.int32))
    queue.dispatch(loaded["reverse"], grid=1, args=(data,)).wait(LIMIT)
    assert data.numpy(timeout=LIMIT)[0] == 63
    with pytest.raises(OSError, match="missing"):
        device.load(tmp_path / "missing")
    (tmp_path / "empty").write_bytes(b"")
    with pytest.raises(InvalidArgumentError):
        device.load(tmp_path / "empty")


def test_an_image_becomes_a_program_c5(device, queue, executable, tmp_path):
    """C5: an image as another tool made it, with a description, is a program like ours."""
    (compiled,) = hal.compile(SOURCE, target=device, defines={"WIDTH": 64}).images
    described = {"reverse": {"signature": "(ptr mine)", "block": 16, "shared_memory": 64}}
    program = hal.Program.from_images({compiled.name: compiled.image}, kernels=described)
    assert program.targets == (compiled.name,)
    assert program.entry_points == tuple(executable)
    assert str(program.signatures["typed"]) == str(executable["typed"].signature)
    program.save(tmp_path / "image.hal")
    for loaded in (device.load(program), device.load(tmp_path / "image.hal")):
        assert str(loaded["reverse"].signature) == "(ptr mine)"
        data = device.upload(np.arange(64, dtype=np.int32))
        queue.dispatch(loaded["reverse"], grid=1, args={"mine": data}).wait(LIMIT)
        assert data.numpy(timeout=LIMIT)[:17].tolist() == [*range(15, -1, -1), 16]
    wrong = {"reverse": {"signature": "(ptr mine, i32 n)"}}
    with pytest.raises(InvalidArgumentError):
        hal.Program.from_images({compiled.name: compiled.image}, kernels=wrong)
    with pytest.raises(NotFoundError):
        hal.Program.from_images({compiled.name: compiled.image}, kernels={"missing": {}})


def test_headers_are_found_c5(device, queue, tmp_path):
    """C5: ``#include`` looks into the directories that were given."""
    (tmp_path / "answer.h").write_text("#define ANSWER 42\n", encoding="utf-8")
    source = '#include "answer.h"\n__global__ void HAL_BLOCK(1) f(int *out) { out[0] = ANSWER; }'
    kernel = device.compile(source, include_directories=[tmp_path])["f"]
    out = device.upload(np.zeros(1, np.int32))
    queue.dispatch(kernel, grid=1, args=(out,)).wait(LIMIT)
    assert out.numpy(timeout=LIMIT)[0] == 42


def test_a_closed_device_compiles_nothing_c5(open_device, executable):
    """C5, Q6: compile, load and a closed device's executable raise `ClosedError`."""
    device = open_device()
    mine = device.load(executable.image)
    device.close(LIMIT)
    uses = [
        lambda: device.compile(SOURCE),
        lambda: device.load(executable.image),
        lambda: mine.kernel("reverse"),
        lambda: mine.global_variable("counter"),
    ]
    for use in uses:
        with pytest.raises(ClosedError):
            use()
