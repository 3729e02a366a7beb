"""Compile the C++ loops with the machine's g++ and OpenMP, and call them."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

__all__ = ["FLAGS", "NativeLoops", "compiler_version", "find_compiler"]

FLAGS: Final = ("-O3", "-march=native", "-fopenmp", "-shared", "-fPIC")
_SOURCE: Final = Path(__file__).with_name("kernels.cpp")

Floats = npt.NDArray[np.float32]


def find_compiler() -> str | None:
    """Return the path of g++, or None."""
    return shutil.which("g++")


def compiler_version(compiler: str) -> str:
    """Return the first line of what the compiler says about itself."""
    result = subprocess.run(  # noqa: S603 - g++ of this machine
        [compiler, "--version"], capture_output=True, text=True, check=True, timeout=60
    )
    return result.stdout.splitlines()[0]


class NativeLoops:
    """Call the loops of kernels.cpp; each call returns when it is done, with the lock let go."""

    def __init__(
        self, compiler: str, folder: Path, *, defines: Mapping[str, str], threads: int
    ) -> None:
        """Compile into `folder` with these macros; set the number of threads."""
        library = folder / "kernels.so"
        macros = [f"-D{name}={value}" for name, value in defines.items()]
        subprocess.run(  # noqa: S603 - g++ of this machine
            [compiler, *FLAGS, *macros, str(_SOURCE), "-o", str(library)],
            check=True,
            timeout=300,
        )
        # Threads that spin after a loop would take the processors from the other side.
        os.environ.setdefault("OMP_WAIT_POLICY", "passive")
        self._library = ctypes.CDLL(str(library))
        self._library.saxpy.argtypes = (
            ctypes.c_float,
            ctypes.c_void_p,
            ctypes.c_void_p,
            ctypes.c_int64,
        )
        blur = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_int)
        self._library.blur_rows.argtypes = blur
        self._library.blur_columns.argtypes = blur
        for function in (self._library.saxpy, self._library.blur_rows, self._library.blur_columns):
            function.restype = None
        self._library.set_threads(threads)
        if self._library.thread_count() != threads:
            message = f"OpenMP takes {self._library.thread_count()} threads, not {threads}"
            raise RuntimeError(message)

    def call(self, name: str, *arguments: Floats | int) -> None:
        """Call a loop of block_rows.py with its arrays and its size."""
        getattr(self._library, name)(
            *(
                ctypes.c_int(each) if isinstance(each, int) else ctypes.c_void_p(each.ctypes.data)
                for each in arguments
            )
        )

    def saxpy(self, a: float, x: Floats, y: Floats) -> None:
        """Add `a` times `x` to `y`."""
        self._library.saxpy(a, x.ctypes.data, y.ctypes.data, x.size)

    def blur(self, source: Floats, scratch: Floats, target: Floats) -> None:
        """Blur the rows of `source` into `scratch`, then the columns of that into `target`."""
        height, width = target.shape
        self._library.blur_rows(source.ctypes.data, scratch.ctypes.data, width, source.shape[0])
        self._library.blur_columns(scratch.ctypes.data, target.ctypes.data, width, height)
