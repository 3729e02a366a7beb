"""Build an image that tells nothing of its kernels, as another compiler would."""

import subprocess
from importlib import resources

from hal_cpu import _toolchain

BARE = """
#include "image.h"
static void run(const struct hal_launch *launch, struct hal_worker *worker,
                unsigned long long first, unsigned long long last) {
  const struct { float *y; float factor; struct { int i; short s[2]; int j; } r; } *a
      = launch->arguments;
  for (unsigned long long block = first; block < last; block++) {
    a->y[block] = a->factor * a->r.i;
    if (a->y == 0) return;
  }
}
static const unsigned sizes[] = {8, 4, 12}, offsets[] = {0, 8, 12};
const struct hal_kernel hal_kernel_bare = {
  HAL_IMAGE_ABI, 0, "bare", run, 1024, 0, 24, 3, sizes, offsets,
};
"""
"""An image with kernels of which it tells no more than their parameters' sizes."""


def build_bare(folder):
    """Return an image of `BARE`, without a table."""
    (folder / "bare.c").write_text(BARE)
    command = _toolchain.find_compiler().cc  # whatever it is called
    command += ("-shared", "-fPIC", f"-I{resources.files('hal_cpu')}", "bare.c", "-o", "bare.so")
    subprocess.run(command, cwd=folder, check=True, timeout=300)
    return (folder / "bare.so").read_bytes()
