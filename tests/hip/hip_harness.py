"""Put gpusim's HIP face under this process, and hold native devices on it."""

import ctypes
import functools
import hashlib
import os
import runpy
import struct
from pathlib import Path

import gpusim

LIMIT = 300.0
KERNELS = """
__global__ void add(unsigned *data, unsigned value, unsigned n) {
  unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) data[i] += value;
}
__device__ unsigned total = 5;
__global__ void count(unsigned *out) { total += 1; out[0] = total; out[1] = warpSize; }
"""


@functools.cache
def translation_folder():
    """Build the translation of HIP to CUDA; return what ROCM_PATH is to be."""
    sources = Path(__file__).parents[1] / "hip_on_cuda"
    digest = hashlib.sha256()
    shared = [Path(gpusim.__file__).with_name(name) for name in ("both_errors.h", "hip_types.h")]
    for path in [*sorted(sources.glob("*.[ch]")), *shared]:
        digest.update(path.read_bytes())
    folder = gpusim.build_folder() / f"hip_on_cuda-{digest.hexdigest()[:16]}"
    if not (folder / "lib" / "libhiprtc.so").exists():
        runpy.run_path(str(sources / "build.py"))["build"](folder)
    return folder


@functools.cache
def load():
    """Load gpusim's HIP face into this process; return its controls."""
    folder = gpusim.rocm_folder()
    os.environ.update(gpusim.variables(devices=2))
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
