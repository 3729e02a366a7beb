"""bfloat16 outside of kernels: dtypes, fills, signatures, exchange (C1, C5, M2)."""

import sys
from types import ModuleType

import numpy as np
import pytest

import hal
from hal import bfloat16
from hal._programs.signature import Signature


@pytest.fixture
def without_ml_dtypes(monkeypatch):
    """Hide the package of the dtype, if it is installed."""
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    bfloat16.dtype.cache_clear()
    yield
    bfloat16.dtype.cache_clear()


@pytest.fixture(params=["ml_dtypes", "bits"])
def kind(request):
    """Return the dtype that there is with and without ``ml_dtypes``."""
    if request.param == "bits":
        request.getfixturevalue("without_ml_dtypes")
    else:
        pytest.importorskip("ml_dtypes")
        bfloat16.dtype.cache_clear()
    return bfloat16.dtype()


@pytest.fixture
def device():
    with hal.create_device("cpu") as device:
        yield device


def test_a_buffer_of_bfloat16_is_filled_read_and_viewed_c1(device, kind):
    buffer = device.allocate(8, dtype="bfloat16")
    assert (buffer.dtype, buffer.shape) == (kind, (4,))
    assert repr(buffer).startswith("<Buffer bfloat16[4] 8 bytes")
    device.queue.fill(buffer, 1.5).wait()
    assert buffer.numpy().dtype == kind
    assert buffer.numpy().view(np.uint16).tolist() == [0x3FC0] * 4
    device.queue.fill(buffer, 1 + 2.0**-8 + 2.0**-40).wait()  # twice rounded it is 1
    assert buffer.view(np.uint16).numpy().tolist() == [0x3F81] * 4
    with pytest.raises(hal.errors.InvalidArgumentError, match="does not fit into bfloat16"):
        device.queue.fill(buffer, 1e39)
    with pytest.raises(TypeError, match="is no bfloat16, the buffer's type"):
        device.queue.fill(buffer, 1j)


def test_uploads_and_host_copies_keep_the_type_m2(device, kind):
    array = np.array([0x3F80, 0xC040], np.uint16).view(kind)
    buffer = device.upload(array)
    assert buffer.dtype == kind
    target = np.zeros(2, np.uint16).view(kind)
    device.queue.read(buffer, target).wait()
    assert target.view(np.uint16).tolist() == [0x3F80, 0xC040]
    with pytest.raises(TypeError, match="float16"):
        device.queue.write(buffer, np.zeros(2, np.float16))


def test_pointers_take_their_own_16_bits_c5(device, kind):
    signature = Signature.parse("(bf16* x, const f16* y, bf16 s)")
    assert str(signature) == "(bf16* x, const f16* y, bf16 s)"
    signature._check_buffer("k", "x", kind)
    signature._check_buffer("k", "x", np.dtype(np.uint8))
    for name, wrong, said in (
        (
            "x",
            np.dtype(np.float16),
            r"takes a buffer of bfloat16, .* float16; .*view\('bfloat16'\)",
        ),
        ("x", np.dtype(np.uint16), "takes a buffer of bfloat16, and this one holds uint16"),
        ("y", kind, r"takes a buffer of float16, and this one holds bfloat16; .*np\.float16"),
    ):
        with pytest.raises(TypeError, match=said):
            signature._check_buffer("k", name, wrong)


def test_dlpack_carries_bfloat16_both_ways_m2(device, kind):
    buffer = device.upload(np.array([0x3F80, 0xC040], np.uint16).view(kind))
    again = device.from_dlpack(buffer)
    assert again.dtype == kind
    assert again.view(np.uint16).numpy().tolist() == [0x3F80, 0xC040]


def test_without_ml_dtypes_the_bits_are_a_field_m2(device, without_ml_dtypes):
    buffer = device.allocate(2, dtype="bfloat16")
    device.queue.fill(buffer, -3).wait()
    assert buffer.numpy()["bfloat16"].tolist() == [0xC040]
    stand_in = ModuleType("ml_dtypes")  # another package of that name
    assert not hasattr(stand_in, "bfloat16")


def test_scalars_of_ml_dtypes_are_numbers_c5(device):
    scalar = pytest.importorskip("ml_dtypes").bfloat16(1.5)
    signature = Signature.parse("(f32 a, bf16 b, f16 c)")
    block = signature.pack("k", (scalar, scalar, scalar), lambda _value, _name: None)
    assert block is not None
    buffer = device.allocate(4, dtype=np.float32)
    device.queue.fill(buffer, np.float32(scalar)).wait()
    assert buffer.numpy() == [1.5]


@pytest.mark.parametrize(
    ("value", "bits"),
    [
        (0.0, 0),
        (-0.0, 0x8000),
        (1, 0x3F80),
        (np.float16(-1.5), 0xBFC0),
        (np.longdouble(1) + np.longdouble(2) ** -8 + np.longdouble(2) ** -60, 0x3F81),
        (2**120 + 2**112 + 1, 0x7B81),
        (float("inf"), 0x7F80),
        (-float("inf"), 0xFF80),
        (float("nan"), 0x7FFF),
        (1e-40, 0x0001),
        (9.2e-41, 0x0001),
        (1e-45, 0),
        (3.3895313892515355e38, 0x7F7F),
    ],
)
def test_numbers_are_rounded_to_bfloat16_once_c5(value, bits):
    assert bfloat16.bits_of(value) == bits


@pytest.mark.parametrize("value", [3.4e38, 3.5e38, 1e300, -(10**400), 3.3961776e38])
def test_a_finite_number_beyond_bfloat16_is_refused_c5(value):
    with pytest.raises(OverflowError):
        bfloat16.bits_of(value)
