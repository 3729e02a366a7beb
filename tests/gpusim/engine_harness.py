# ruff: noqa: E501 - the kernels in a string
"""Run small programs on gpusim, each in a process of its own: a driver is loaded once a process."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import build
import gpusim

HERE = Path(__file__).resolve().parent

PRELUDE = """
import ctypes, os, sys, threading, time
from ctypes import byref, c_float, c_int, c_size_t, c_uint, c_uint32, c_uint64, c_void_p
from gpusim_driver import *
def image():
    return open({image!r}, "rb").read()
def expect(code, name, *arguments):
    got = cu.code(name, *arguments)
    assert got == code, f"{{name}} returned {{got}}, not {{code}}"
"""

KERNELS = """
#include "image.h"
typedef unsigned long long u64;
struct fill { unsigned *target; unsigned value, count; };
static void fill(const struct hal_launch *l, struct hal_worker *w, u64 first, u64 last) {
  const struct fill *a = l->arguments;
  (void)w;
  for (u64 i = first * l->block[0]; i < last * l->block[0]; i++) if (i < a->count) a->target[i] = a->value;
}
struct hold { volatile unsigned *flag; };
static void hold(const struct hal_launch *l, struct hal_worker *w, u64 first, u64 last) {
  (void)w, (void)first, (void)last;
  while (!*((const struct hold *)l->arguments)->flag) __builtin_ia32_pause();
}
static const unsigned sizes[] = {8, 4, 4}, offsets[] = {0, 8, 12};
static const unsigned one[] = {8}, at[] = {0};
#define EXPORT __attribute__((visibility("default")))
EXPORT const struct hal_kernel hal_kernel_fill = {HAL_IMAGE_ABI, 0, "fill", fill, 1024, 0, 16, 3, sizes, offsets};
EXPORT const struct hal_kernel hal_kernel_hold = {HAL_IMAGE_ABI, 0, "hold", hold, 1024, 0, 8, 1, one, at};
"""


@functools.cache
def library() -> Path:
    """Return the built libcuda.so.1, or the one that GPUSIM_LIBRARY names."""
    named = os.environ.get("GPUSIM_LIBRARY")
    return Path(named) if named else gpusim.built() / gpusim.DRIVER


@functools.cache
def kernels() -> Path:
    """Return a kernel image with fill and hold."""
    folder = Path(tempfile.mkdtemp(dir=library().parent.parent))
    source = folder / "kernels.c"
    source.write_text(KERNELS)
    target = folder / "kernels.so"
    command = [*build.find_compiler(), "-O1", "-shared", "-fPIC", f"-I{build.IMAGE}"]
    subprocess.run([*command, "-o", str(target), str(source)], check=True)
    return target


def forget_kernels() -> None:
    """Remove what `kernels` wrote."""
    if kernels.cache_info().currsize:
        shutil.rmtree(kernels().parent)
        kernels.cache_clear()


def start(program: str, *, images: bool = False, **environment: object) -> subprocess.Popen[str]:
    """Start a Python program that has `Driver` and ctypes at hand."""
    prelude = PRELUDE.format(image=str(kernels()) if images else "")
    preload = os.environ.get("GPUSIM_PRELOAD", "")  # a sanitizer's library, for such a build
    settings = {f"GPUSIM_{name.upper()}": str(value) for name, value in environment.items()}
    return subprocess.Popen(
        [sys.executable, "-c", prelude + textwrap.dedent(program)],
        env={
            **os.environ,
            "PYTHONPATH": str(HERE),
            "GPUSIM_LIBRARY": str(library()),
            **({"LD_PRELOAD": preload} if preload else {}),
            **settings,
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(program: str, *, images: bool = False, **environment: object) -> str:
    """Run a program to its end, and return what it printed; fail when it does."""
    process = start(program, images=images, **environment)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, f"status {process.returncode}\n{out}\n{err}"
    return out


def abort(program: str, *, images: bool = False, **environment: object) -> str:
    """Run a program that gpusim has to abort, and return what it said."""
    process = start(program, images=images, **environment)
    out, err = process.communicate(timeout=300)
    assert process.returncode == -6, f"status {process.returncode}\n{out}\n{err}"
    assert "gpusim: ABORT:" in err, err
    assert "seed " in err, err
    return err
