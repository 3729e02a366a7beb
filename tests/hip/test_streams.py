"""Streams: fills, copies, launches, notifications, and waiting that holds nobody up."""

import ctypes
import threading
from unittest import mock

import pytest
from compile_requests import compiled, request
from hip_harness import LIMIT, Arguments, words

from hal.errors import InvalidArgumentError, NotFoundError, OutOfMemoryError

C = ctypes.CDLL(None, use_errno=True)


@pytest.mark.parametrize("pattern", [0, 1, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 0x123456789A])
@pytest.mark.parametrize("width", [1, 2, 4])
def test_fills_take_the_low_bytes(device, stream, shared, pattern, width):
    device.fill(stream, shared, pattern, width, 64 // width)
    device.synchronize_stream(stream)
    expected = (pattern & ((1 << 8 * width) - 1)).to_bytes(width, "little") * (64 // width)
    assert ctypes.string_at(shared, 64) == expected


def test_variables_and_the_width_of_a_wave(device, stream, shared, image):
    modules = [device.load_module(image) for _ in range(2)]
    for round_, module in enumerate((*modules, modules[0])):
        function = device.get_function(module, "count")
        arguments = Arguments(shared)
        device.launch(stream, function, (1, 1, 1), (1, 1, 1), 0, arguments.address)
        device.synchronize_stream(stream)
        assert words(shared, 2) == [7 if round_ == 2 else 6, 64]
    address, size = device.get_global(modules[1], "total")
    assert size == 4
    device.copy(stream, shared, address, 4)
    device.synchronize_stream(stream)
    assert words(shared, 1) == [6]
    for module in modules:
        with pytest.raises(NotFoundError, match="missing"):
            device.get_global(module, "missing")
        with pytest.raises(NotFoundError, match="has no kernel 'missing'"):
            device.get_function(module, "missing")
        device.unload_module(module)


def test_waiting_makes_no_blocking_call(device, stream, simulator, shared):
    """The runtime may hold a lock of its own while it blocks."""
    gate, opened = threading.Event(), []
    hold = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: opened.append(gate.wait(LIMIT)))
    device.notify(stream, ctypes.cast(hold, ctypes.c_void_p).value, 0)
    waiter = threading.Thread(target=device.synchronize_stream, args=(stream,))
    waiter.start()
    other = device.create_stream()  # nobody is held up
    device.fill(other, shared, 1, 4, 4)
    device.synchronize_stream(other)
    device.destroy_stream(other)
    assert waiter.is_alive()
    gate.set()
    waiter.join(LIMIT)
    assert opened == [True]
    for name in ("hipStreamSynchronize", "hipEventSynchronize", "hipDeviceSynchronize"):
        assert not simulator.calls(name)


def test_a_pool_holds_nothing_of_its_trial_m1(open_device):
    assert open_device().pool_statistics() == (0, 0)


def test_a_pool_gives_up_blocks_of_other_sizes_for_one_that_it_has_not_m3(device, simulator):
    """HIP splits none: what is free and complete goes back to the device first."""
    stream = device.create_stream()
    device.trim_pool(0)
    free, total = device.memory_info()
    simulator.limit_memory(total - free + (8 << 20))
    device.configure_pool(1 << 40, "any")
    trims = simulator.calls("hipMemPoolTrimTo")
    for size in (6, 1):
        device.free_async(stream, device.allocate_async(stream, size << 20))
        device.synchronize_stream(stream)
    assert device.pool_statistics() == (7 << 20, 0)
    address = device.allocate_async(stream, 7 << 20)
    assert device.pool_statistics() == (7 << 20, 7 << 20)
    with pytest.raises(OutOfMemoryError):
        device.allocate_async(stream, 2 << 20)
    assert simulator.calls("hipMemPoolTrimTo") == trims + 1
    device.free_async(stream, address)
    device.synchronize_stream(stream)
    device.destroy_stream(stream)


def test_macros_and_options_reach_the_compiler_c5(device, tmp_path):
    (tmp_path / "value.h").write_text("#define VALUE 1\n")
    source = '#include "value.h"\n__global__ void k(int *p) { static_assert(VALUE + A + B == 6); }'
    asked = request(
        source, defines={"A": "2"}, options=("-DB=3", "-O1"), include_directories=(str(tmp_path),)
    )
    image = compiled(device, asked)
    assert image.startswith(b"\x7fELF")
    for name, value in {"A B": "1", "A": "1\n2", "": "1"}.items():
        with pytest.raises(InvalidArgumentError, match="defines"):
            compiled(device, request(source, defines={name: value}))


def test_what_was_compiled_is_kept_on_disk(native, device, tmp_path, monkeypatch, simulator):
    monkeypatch.setenv("HAL_CACHE_DIR", str(tmp_path))
    compile_source = mock.Mock(wraps=native.compile_source)
    monkeypatch.setattr(native, "compile_source", compile_source)
    asked = request("__global__ void kept(int *p) { p[0] = 1; }")
    assert compiled(device, asked) == compiled(device, asked)
    assert compile_source.call_count == 1
    compiled(device, request("__global__ void kept(int *p) { p[0] = 2; }"))
    assert compile_source.call_count == 2
