"""Put gpusim's HIP face under this process, and hold native devices on it."""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import os
import struct
import subprocess
import sys
import textwrap
from pathlib import Path

TESTS = Path(__file__).parents[1]
LIMIT = 300.0
KERNELS = """
__global__ void add(unsigned *data, unsigned value, unsigned n) {
  unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) data[i] += value;
}
__device__ unsigned total = 5;
__global__ void count(unsigned *out) { total += 1; out[0] = total; out[1] = warpSize; }
"""


def _module(folder, name):
    """Import a file of another folder of tests."""
    full = f"hip_tests_{folder}_{name}"
    if full not in sys.modules:
        spec = importlib.util.spec_from_file_location(full, TESTS / folder / f"{name}.py")
        sys.modules[full] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[full])
    return sys.modules[full]


gpusim = _module("gpusim", "gpusim")


@functools.cache
def rocm_folder():
    """Build gpusim's HIP face; return what ROCM_PATH is to be."""
    build = _module("gpusim", "build")
    folder = build.build(gpusim.build_folder(), (), ("libamdhip64.so",))
    compiler = (gpusim.built() / "libhiprtc.so").resolve()
    link = folder / "lib" / "libhiprtc.so"
    if not link.is_symlink() or link.resolve() != compiler:
        unfinished = link.with_name(f"{link.name}.{os.getpid()}")
        unfinished.symlink_to(compiler)
        unfinished.replace(link)
    return folder


@functools.cache
def translation_folder():
    """Build the translation of HIP to CUDA; return what ROCM_PATH is to be."""
    digest = _module("gpusim", "build").hashlib.sha256()
    for path in sorted((TESTS / "hip_on_cuda").glob("*.[ch]")):
        digest.update(path.read_bytes())
    folder = gpusim.build_folder() / f"hip_on_cuda-{digest.hexdigest()[:16]}"
    if not (folder / "lib" / "libhiprtc.so").exists():
        _module("hip_on_cuda", "build").build(folder)
    return folder


def variables(**settings):
    """Return the variables that gpusim and its compilers look at."""
    return gpusim._variables(settings)


@functools.cache
def load():
    """Load gpusim's HIP face into this process; return its controls."""
    folder = rocm_folder()
    os.environ.update(variables(devices=2))
    os.environ["ROCM_PATH"] = str(folder)
    # hip-python keeps the path that it found at its first call, which may have been before: the
    # name in the library is what the system's loader then knows it by.
    library = ctypes.CDLL(str(folder / "lib" / "libamdhip64.so"), ctypes.RTLD_GLOBAL)
    ctypes.CDLL(str(folder / "lib" / "libhiprtc.so"), ctypes.RTLD_GLOBAL)
    return gpusim.Simulator(library)


class Arguments:
    """Hold a kernel's arguments; `address` is what `NativeDevice.launch` takes."""

    def __init__(self, *values):
        self.values = [ctypes.c_uint64(v) if isinstance(v, int) else v for v in values]
        self._pointers = (ctypes.c_void_p * len(values))(*map(ctypes.addressof, self.values))
        self.address = ctypes.addressof(self._pointers)


def words(address, count):
    """Return the 32-bit numbers at an address that the host sees."""
    return list(struct.unpack(f"<{count}I", ctypes.string_at(address, 4 * count)))


def request(source, filename="kernel.cpp", **more):
    """Return a request to compile, as the core makes it."""
    from hal._programs.scanner import read_source, type_table  # noqa: PLC0415
    from hal.native import CompileRequest  # noqa: PLC0415

    entries, plain = read_source(source, filename=filename)
    return CompileRequest(plain, filename, entries, type_table(entries), **more)


def run_python(folder, source, **environment):
    """Run a program in a child process with these variables and no HIP of its own."""
    path = folder / "program.py"
    path.write_text(textwrap.dedent(source), encoding="utf-8")
    return subprocess.run(
        [sys.executable, str(path)],
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
        env={"PATH": "/usr/bin:/bin", "HOME": str(folder), **environment},
    )
