"""The cache on disk: used when it is ours, and never trusted when it may not be."""

import os
import re
import shutil
import signal
import stat
import subprocess
import sys

import pytest
from core_harness import handled_by

import hal
from hal import disk_cache
from hal.errors import BackendUnavailableError, CompilationError
from hal_cpu import _build, _toolchain

SOURCE = "__global__ void kernel(int *p) { p[0] = %d; }\n"


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("HAL_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache" / "cpu"


@pytest.fixture
def compiler(tmp_path, monkeypatch):
    """Count the runs of the compiler; gives a function that returns the count."""
    real = _toolchain.find_compiler()
    log = tmp_path / "log"
    script = tmp_path / f"counting-{real.family}"  # by its name zig is known
    script.write_text(f'#!/bin/sh\necho "$@" >> {log}\nexec {" ".join(real.cxx)} "$@"\n')
    script.chmod(0o755)
    monkeypatch.setenv("HAL_CXX", str(script))

    def count():
        lines = log.read_text().splitlines() if log.exists() else []
        return sum("--version" not in line for line in lines)

    return count


def test_compiled_once(lab, cache, compiler):
    first = lab.image(SOURCE % 1)
    assert compiler() == 1
    assert lab.image(SOURCE % 1) == first
    assert compiler() == 1
    assert stat.S_IMODE(cache.stat().st_mode) == 0o700
    assert [stat.S_IMODE(path.stat().st_mode) for path in cache.iterdir()] == [0o600]


@pytest.mark.parametrize(
    "request_",
    [
        {"defines": {"A": "1"}},
        {"options": ("-DA",)},
        {"include_directories": ("/usr/include",)},
        {"filename": "other.cpp"},
        {"table": True},
    ],
    ids=lambda request_: next(iter(request_)),
)
def test_another_request_is_another_entry(lab, cache, compiler, request_):
    lab.image(SOURCE % 2)
    lab.image(SOURCE % 2, **request_)
    assert compiler() == 2


def test_errors_are_not_kept(lab, cache, compiler):
    for _ in range(2):
        with pytest.raises(Exception, match="oops"):
            lab.image("__global__ void kernel() { oops; }")
    assert compiler() == 2
    assert list(cache.iterdir()) == []


def test_an_error_in_a_list_of_sources_loses_no_other(cache, compiler):
    right = [SOURCE % 71, SOURCE % 72]
    with pytest.raises(CompilationError):
        hal.compile_all([right[0], "__global__ void kernel() { oops; }", right[1]], target="cpu")
    runs = compiler()
    assert len(hal.compile_all(right, target="cpu")) == 2
    assert compiler() == runs


def test_a_cached_image_keeps_its_log(cache, compiler):
    source = '#pragma message "take care"\n' + SOURCE % 3
    logs = [hal.compile(source, target="cpu").images[0].log for _ in range(2)]
    assert "take care" in logs[0]
    assert logs[1] == logs[0]
    assert compiler() == 1


def test_a_damaged_entry_is_made_again(lab, cache, compiler):
    image = lab.image(SOURCE % 3)
    (entry,) = cache.iterdir()
    data = bytearray(entry.read_bytes())
    data[len(data) // 2] ^= 1
    for content in (bytes(data), b"", image[: len(image) // 2]):
        entry.write_bytes(content)
        assert lab.image(SOURCE % 3) == image
        assert entry.read_bytes().endswith(image)
    assert compiler() == 4


def test_an_entry_that_others_can_write_is_not_used(lab, cache, compiler):
    lab.image(SOURCE % 4)
    (entry,) = cache.iterdir()
    entry.chmod(0o666)
    lab.image(SOURCE % 4)
    assert compiler() == 2
    assert stat.S_IMODE(entry.stat().st_mode) == 0o600


def test_a_link_is_not_followed(lab, cache, compiler, tmp_path):
    lab.image(SOURCE % 5)
    (entry,) = cache.iterdir()
    entry.rename(tmp_path / "elsewhere")
    entry.symlink_to(tmp_path / "elsewhere")
    lab.image(SOURCE % 5)
    assert compiler() == 2


def test_a_directory_that_others_can_write_is_not_used(lab, cache, compiler):
    lab.image(SOURCE % 6)
    for mode in (0o770, 0o707):
        cache.chmod(mode)
        lab.image(SOURCE % 6)
    assert compiler() == 3
    cache.chmod(0o700)
    lab.image(SOURCE % 6)
    assert compiler() == 3


def test_another_users_files_are_not_used(lab, cache, compiler):
    if os.geteuid() != 0:
        pytest.skip("only root can give a file away")
    lab.image(SOURCE % 7)
    (entry,) = cache.iterdir()
    os.chown(entry, 12345, -1)
    lab.image(SOURCE % 7)
    assert compiler() == 2
    os.chown(cache, 12345, -1)
    lab.image(SOURCE % 7)
    assert compiler() == 3
    os.chown(cache, 0, -1)


@pytest.mark.parametrize("what", ["a folder", "a pipe", "a link", "a short file"])
def test_what_is_no_entry_is_passed_over(cache, tmp_path, what):
    key = _build.CACHE.key("a")
    _build.CACHE.store(key, b"content")
    entry = cache / key
    entry.rename(tmp_path / "kept")
    make = {
        "a folder": entry.mkdir,
        "a pipe": lambda: os.mkfifo(entry, 0o600),  # to read it would last for ever
        "a link": lambda: entry.symlink_to(tmp_path / "kept"),
        "a short file": lambda: entry.write_bytes(b"short"),
    }
    make[what]()
    assert _build.CACHE.load(key) is None
    _build.CACHE.store(key, b"content")
    assert _build.CACHE.load(key) == (None if what == "a folder" else b"content")


def test_what_killed_processes_left_is_cleared(cache):
    cache.mkdir(parents=True, mode=0o700)
    left, fresh = cache / ".new-left", cache / ".new-fresh"
    for path in (left, fresh):
        path.write_bytes(b"half an entry")
    os.utime(left, (1, 1))
    _build.CACHE.store("0" * 64, b"x")
    assert sorted(path.name for path in cache.iterdir()) == [".new-fresh", "0" * 64]


def test_without_a_place_for_it(lab, compiler, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("HAL_CACHE_DIR", str(tmp_path / "file"))
    assert _build.CACHE.directory() is None
    for _ in range(2):
        lab.image(SOURCE % 8)
    assert compiler() == 2


def test_where_it_is(monkeypatch, tmp_path):
    monkeypatch.delenv("HAL_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert _build.CACHE.directory() == str(tmp_path / "xdg" / "hal" / "cpu")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")  # which the specification says to ignore
    monkeypatch.setenv("HOME", str(tmp_path))
    assert _build.CACHE.directory() == str(tmp_path / ".cache" / "hal" / "cpu")
    assert not (tmp_path / "relative").exists()


def test_what_a_signal_handler_raises_as_it_is_looked_for_is_the_users_o3(cache, monkeypatch):
    def limit(*_):
        raise TimeoutError("time limit")

    monkeypatch.setattr(os, "makedirs", lambda *_, **__: signal.raise_signal(signal.SIGALRM))
    with handled_by(limit), pytest.raises(TimeoutError, match="time limit"):
        _build.CACHE.directory()


def test_it_does_not_grow_without_end(cache, monkeypatch):
    monkeypatch.setattr(disk_cache, "_ENTRIES_AT_MOST", 20)
    for number in range(50):
        _build.CACHE.store(f"{number:064x}", b"x")
        # Ages that are certain to differ.
        os.utime(cache / f"{number:064x}", (number, number))
    left = sorted(path.name for path in cache.iterdir())
    assert len(left) <= 21
    assert f"{49:064x}" in left
    assert f"{0:064x}" not in left


def test_processes_at_the_same_time(cache):
    program = """
from hal._programs.scanner import scan
from hal.native import CompileRequest
from hal_cpu.compiler import CpuCompiler
from hal_cpu.driver import CpuDriver
device = CpuDriver().open_device(0, {})
source = "__global__ void kernel(int *p) { p[0] = 99; }"
request = CompileRequest(source, "user.cpp", scan(source, filename="user.cpp"), "")
image = CpuCompiler().compile(request, "").image
device.get_function(device.load_module(image), "kernel")
"""
    processes = [subprocess.Popen([sys.executable, "-c", program]) for _ in range(4)]
    assert [process.wait(timeout=300) for process in processes] == [0] * 4
    assert len(list(cache.iterdir())) == 2  # the runtime and the kernel, nothing half-made


def test_what_the_cache_answers_loads_nothing_that_makes_images(python, cache):
    program = """
import sys, hal
hal.create_device("cpu").compile("__global__ void kernel(int *p) { __syncthreads(); p[0] = 1; }")
making = {"hal_cpu._making", "hal_cpu._dialect", "pathlib", "tempfile", "shutil"}
print(len(making & sys.modules.keys()))
"""
    assert [python(program).stdout for _ in range(2)] == ["5\n", "0\n"]


def test_a_device_starts_no_compiler_once_the_runtime_is_built(python, cache, tmp_path):
    log, compiler = tmp_path / "log", tmp_path / "compiler"
    real = " ".join(_toolchain.find_compiler().cxx)
    compiler.write_text(f'#!/bin/sh\necho run >> {log}\nexec {real} "$@"\n')
    compiler.chmod(0o755)
    program = """
import sys, hal
device = hal.create_device("cpu")
print(device.info.driver, "subprocess" in sys.modules, "shutil" in sys.modules)
"""
    first = python(program, HAL_CXX=str(compiler))
    assert log.read_text()
    log.unlink()
    second = python(program, HAL_CXX=str(compiler))
    assert (second.returncode, second.stderr) == (0, "")
    assert not log.exists()
    about = second.stdout.rpartition(" False False")[0]
    assert about
    assert first.stdout == f"{about} True True\n"
    # Another file may be another compiler.
    os.utime(compiler, (1, 1))
    assert python(program, HAL_CXX=str(compiler)).returncode == 0
    assert log.read_text()


def test_no_compiler_at_all(monkeypatch):
    monkeypatch.delenv("HAL_CXX", raising=False)
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    _toolchain._find_compiler.cache_clear()
    with pytest.raises(BackendUnavailableError, match=r"pip install ziglang"):
        _toolchain.find_compiler()
    _toolchain._find_compiler.cache_clear()


@pytest.mark.parametrize("command", ["no-such-compiler", "false", "echo", '"no'])
def test_a_wrong_setting_is_named(monkeypatch, command):
    monkeypatch.setenv("HAL_CXX", command)
    if command == "echo":
        # Says something, and makes nothing.
        assert _toolchain.find_compiler().cxx[0].endswith("echo")
        return
    with pytest.raises(BackendUnavailableError, match=re.escape(f"HAL_CXX is {command!r}")):
        _toolchain.find_compiler()


def test_a_compiler_that_makes_nothing(python):
    result = python("from hal_cpu.driver import CpuDriver; CpuDriver()", HAL_CXX="echo")
    assert "cannot build the cpu backend's runtime" in result.stderr


def test_options_in_the_environment(monkeypatch):
    program = shutil.which("g++")
    if program is None:
        pytest.skip("no g++ here")
    monkeypatch.delenv("HAL_CXX", raising=False)
    monkeypatch.setenv("CXX", "g++ -DX='a b'")
    assert _toolchain.find_compiler().cxx == (program, "-DX=a b")


def test_zig(python):
    """Everything works with the compiler from the package index alone."""
    zig = pytest.importorskip("ziglang", reason="the ziglang package is not installed")
    program = """
import ctypes
import numpy as np
from hal._programs.scanner import scan
from hal.native import CompileRequest
from hal_cpu import _toolchain
from hal_cpu.compiler import CpuCompiler
from hal_cpu.driver import CpuDriver
assert _toolchain.find_compiler().family == "zig"
source = '''
__device__ float total;
__global__ void kernel(float *x, int n) {
  __shared__ float part[128];
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  part[threadIdx.x] = i < n ? sinf(x[i]) : 0.0f;
  __syncthreads();
  if (threadIdx.x == 0) {
    float sum = 0;
    for (int k = 0; k < 128; k++) sum += part[k];
    atomicAdd(&total, sum);
    printf("block %d\\\\n", blockIdx.x);
  }
}
'''
device = CpuDriver().open_device(0, {})
request = CompileRequest(source, "user.cpp", scan(source, filename="user.cpp"), "")
module = device.load_module(CpuCompiler().compile(request, "").image)
stream = device.create_stream()
x = np.linspace(0, 1, 256, dtype="f4")
values = [ctypes.c_void_p(x.ctypes.data), ctypes.c_int(256)]
pointers = (ctypes.c_void_p * 2)(*map(ctypes.addressof, values))
function = device.get_function(module, "kernel")
device.launch(stream, function, (2, 1, 1), (128, 1, 1), 0, ctypes.addressof(pointers))
device.synchronize_stream(stream)
assert device.function_info(function).static_shared_memory == 512
address, size = device.get_global(module, "total")
assert abs(ctypes.c_float.from_address(address).value - np.sin(x).sum()) < 1e-3
try:
    source = "__global__ void kernel() { oops; }"
    request = CompileRequest(source, "user.cpp", scan(source, filename="user.cpp"), "")
    CpuCompiler().compile(request, "")
except Exception as error:
    print(error)
"""
    assert zig.__file__
    command = f"'{os.path.dirname(zig.__file__)}/zig' c++"
    result = python(program, HAL_CXX=command)
    assert (result.returncode, result.stderr) == (0, "")
    assert "user.cpp:1:28: error: " in result.stdout
    assert "block 0\nblock 1\n" in result.stdout or "block 1\nblock 0\n" in result.stdout


def test_a_cache_whose_folder_cannot_be_named_keeps_nothing(tmp_path, monkeypatch):
    """A relative path needs the working directory, which may be gone."""
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    monkeypatch.setenv("HAL_CACHE_DIR", "cache")
    cache = disk_cache.DiskCache("none")
    cache.store("key", b"content")
    assert cache.load("key") is None
