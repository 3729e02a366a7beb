"""Memory: allocated, uploaded, mapped, run out of, and counted (M1, M2)."""

import numpy as np
import pytest
from core_harness import LIMIT

from hal._memory import views
from hal._memory.storage import lend
from hal.errors import ArgumentTypeError, ClosedError, OutOfMemoryError, UnimplementedError
from hal.native import MemoryType


def test_two_threads_that_map_at_once_get_views_of_one_owner_m2(device, monkeypatch):
    """M2: a second owner would take the place of the first, whose views would dangle then."""
    buffer, owned = device.allocate(4, memory="host"), []
    books = device._heap.books

    class Watched(views.HostView):
        def __init__(self, *arguments, **options):
            owned.append(books.lock._is_owned())
            super().__init__(*arguments, **options)

    monkeypatch.setattr(views, "HostView", Watched)
    first, second = buffer.map(), buffer.map()
    first[:] = 7
    assert second.tolist() == [7] * 4
    assert owned == [True]


def test_a_view_that_comes_after_the_close_has_looked_for_views_is_refused_m2(open_probe):
    """M2: its memory may have been given back."""
    device, _ = open_probe()
    storage = device.allocate(4, memory="host")._live()
    device.close()
    with pytest.raises(ClosedError):
        views.view_of(storage)


def test_memory_that_was_given_back_is_lent_to_nobody_m3(device):
    """M3: another device's thread may have taken the storage before the dealloca."""
    buffer = device.queue.alloca(64)
    storage = buffer._live()
    device.queue.dealloca(buffer).wait(LIMIT)
    with pytest.raises(ClosedError, match="given back"):
        lend((storage,))


def test_map_is_refused_where_the_host_cannot_see_m2(open_probe, monkeypatch):
    """M2: a clear error which says what to do instead."""
    device, probe = open_probe()
    monkeypatch.setattr(
        type(probe),
        "host_pointer",
        lambda self, address, memory: None if memory is MemoryType.DEVICE else address,
    )
    hidden, seen = device.allocate(4), device.allocate(4, memory="host")
    with pytest.raises(UnimplementedError, match=r"numpy\(\).*memory='host'"):
        hidden.map()
    assert seen.map().shape == (4,)
    assert hidden.numpy(wait=device.queue.fill(hidden, 1)).tolist() == [1] * 4


# Running out of memory, statistics, and many threads


def test_out_of_memory_says_what_was_asked_and_what_is_there_m1(device):
    """M1: size, kind, what is free, what hal holds, and the way out; it is a MemoryError."""
    kept = device.allocate(12345)
    huge = 1 << 60
    for memory in ("device", "host", "managed"):
        with pytest.raises(OutOfMemoryError) as caught:
            device.allocate(huge, memory=memory)
        text = str(caught.value)
        assert f"{huge:,} bytes of {memory} memory" in text
        assert "12,345 bytes in 1 allocation" in text
        assert "free" in text
        assert "close buffers" in text
        assert isinstance(caught.value, MemoryError)
        assert caught.value.native_name == "ENOMEM"
    assert device.statistics().bytes_now == 12345
    assert device.allocate(16).numpy().size == 16
    assert kept.size == 12345


@pytest.mark.parametrize(
    "size", [2**63, 2**64, 2**70, 10**5000], ids=lambda size: size.bit_length()
)
def test_no_native_call_is_asked_for_more_bytes_than_it_has_a_number_for_m1(open_probe, size):
    device, probe = open_probe()
    calls = probe.calls["allocate"]
    for memory in ("device", "host", "managed"):
        with pytest.raises(OutOfMemoryError, match=f"of {memory} memory were asked for"):
            device.allocate(size, memory=memory)
    with pytest.raises(OutOfMemoryError, match="of device memory were asked for"):
        device.queue.alloca(size).allocation.wait(LIMIT)
    assert size < 2**64 or probe.calls["allocate"] == calls
    device.queue.fill(device.allocate(16), 1).wait(LIMIT)


def test_out_of_memory_twice_raises_m1(open_probe):
    device, probe = open_probe()
    for _ in range(2):
        for number in (1, 2):
            probe.fail_call(
                number, OutOfMemoryError("native", native_name="E", native_code=2), ("allocate",)
            )
        with pytest.raises(OutOfMemoryError, match="native") as caught:
            device.allocate(64)
        assert (caught.value.native_name, caught.value.native_code) == ("E", 2)
    assert "allocation" not in probe.live()
    device.allocate(64)


def test_bytes_are_uploaded_as_bytes(device):
    """They are taken like a bytearray; numpy by itself takes them for a text of one element."""
    for data in (b"abc", bytearray(b"abc"), memoryview(b"abc")):
        buffer = device.upload(data)
        assert (buffer.dtype, buffer.shape) == (np.dtype(np.uint8), (3,))
        assert buffer.numpy().tobytes() == b"abc"
    with pytest.raises(ArgumentTypeError, match="not str; a text has no bytes yet"):
        device.upload("abc")
    buffer = device.upload(np.array(b"abc"))  # it has: numpy's arrays are what they are
    assert (buffer.dtype, buffer.shape, buffer.numpy().tobytes()) == (np.dtype("S3"), (), b"abc")


def test_a_wrong_shape_is_not_called_a_number_of_bytes(device):
    for wrong in ((2, -1), (1.5,), -1):
        with pytest.raises(ValueError if wrong != (1.5,) else TypeError, match="a shape is an int"):
            device.empty(wrong, np.float32)


@pytest.mark.parametrize(
    "dtype",
    ["bool", "bfloat16", "S5", "U3", "V3", "M8[s]", "G", [("a", "<i4"), ("b", "<f8")]],
    ids=str,
)
def test_zeros_of_any_type_m1(device, dtype):
    """M1: every bit is zero, of elements of any size that a fill takes or not."""
    made = device.zeros((2, 3), dtype)
    assert made.shape == (2, 3)
    assert made.numpy(np.uint8, timeout=LIMIT).tobytes() == bytes(6 * made.dtype.itemsize)
