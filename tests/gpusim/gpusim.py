"""Put the software GPU driver under this process or under a child, and steer it.

In this process, before the first call of cuda-python:

    sim = gpusim.load()            # builds what is not built, loads it, sets the environment
    sim.fail("cuMemAlloc", 3, 2)   # the third allocation from now on runs out of memory

For a child: ``subprocess.run(..., env=gpusim.environment(devices=1, mode="stepped", seed=7))``.
From a shell: ``python tests/gpusim/gpusim.py COMMAND...`` runs a command on it.

Nothing of the product knows of it: cuda-python finds the libraries by their
names, as it finds a driver's.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import build

__all__ = ["Simulator", "build_folder", "built", "environment", "load", "rocm_folder", "variables"]

HERE: Final = Path(__file__).resolve().parent
ROOT: Final = HERE.parents[1]
COMPILER: Final = HERE / "compile.py"
DRIVER: Final = "libcuda.so.1"
SETTINGS: Final = {
    "devices": "GPUSIM_DEVICES",
    "mode": "GPUSIM_MODE",
    "seed": "GPUSIM_SEED",
    "strict": "GPUSIM_STRICT",
    "launch_limit": "GPUSIM_LAUNCH_LIMIT",
    "memory": "GPUSIM_MEMORY",
    "jitter_us": "GPUSIM_JITTER_US",
    "pause_us": "GPUSIM_PAUSE_US",
    "tick_ms": "GPUSIM_TICK_MS",
    "stuck_s": "GPUSIM_STUCK_S",
    "no_peers": "GPUSIM_NO_PEERS",
    "fail": "GPUSIM_FAIL",
    "lose_at": "GPUSIM_LOSE_AT",
    "abort_on_leaks": "GPUSIM_ABORT_ON_LEAKS",
    "abort_on_blocked": "GPUSIM_ABORT_ON_BLOCKED",
    "quiet": "GPUSIM_QUIET",
    "recovers": "GPUSIM_RECOVERS",
}
"""Keyword arguments of `load` and `environment`, and the variables that they set."""


def build_folder() -> Path:
    """Return where all is kept that is built: ``GPUSIM_BUILD``, or in the user's cache."""
    chosen = os.environ.get("GPUSIM_BUILD")
    if chosen:
        return Path(chosen).absolute()
    base = os.environ.get("XDG_CACHE_HOME", "")
    try:
        return (Path(base) if os.path.isabs(base) else Path.home() / ".cache") / "hal" / "gpusim"
    except RuntimeError:
        return Path(tempfile.gettempdir()) / f"gpusim-{os.getuid()}"


@functools.cache
def built(flags: tuple[str, ...] = ()) -> Path:
    """Return the folder of the libraries, built if need be, in about a second.

    `flags` are more options for the C compiler, such as ``-fsanitize=thread``.
    Raises `RuntimeError` if there is no compiler or it refuses.
    """
    return build.build(build_folder(), flags) / "lib"


@functools.cache
def _stamp() -> str:
    """Return what changes whenever the same source may compile to something else."""
    digest = hashlib.sha256()
    files = [
        COMPILER,
        *sorted((ROOT / "hal_cpu" / "src" / "hal_cpu").glob("*")),
        *(
            ROOT / "hal_core" / "src" / "hal" / name
            for name in ("_programs/scanner.py", "cpp_tokens.py")
        ),
        *sorted((ROOT / "hal_core" / "src" / "hal" / "dialect").rglob("*")),
    ]
    for path in files:
        if path.suffix in {"", ".py", ".h"} and path.is_file():
            digest.update(path.name.encode() + path.read_bytes())
    digest.update(os.environ.get("HAL_CXX", "").encode())
    return digest.hexdigest()


@functools.cache
def rocm_folder() -> Path:
    """Build the face of HIP; return what ROCM_PATH is to be."""
    return build.build(build_folder(), libraries=build.HIP)


def variables(**settings: object) -> dict[str, str]:
    """Return the variables for some settings, and those of the compiler."""
    unknown = settings.keys() - SETTINGS.keys()
    if unknown:
        message = f"gpusim has no settings {sorted(unknown)}; it has {sorted(SETTINGS)}"
        raise TypeError(message)
    cache = build_folder() / "kernels"
    cache.mkdir(mode=0o700, parents=True, exist_ok=True)
    values = {SETTINGS[name]: value for name, value in settings.items()}
    return {
        "GPUSIM_PYTHON": sys.executable,
        "GPUSIM_COMPILER": str(COMPILER),
        "GPUSIM_RTC_CACHE": str(cache),
        "GPUSIM_RTC_STAMP": _stamp(),
        **{
            name: str(int(value)) if isinstance(value, bool) else str(value)
            for name, value in values.items()
        },
    }


def environment(*, flags: tuple[str, ...] = (), **settings: object) -> dict[str, str]:
    """Return an environment in which cuda-python runs on gpusim.

    It is this process's own, and the settings by the names in `SETTINGS`. This folder's
    modules can be imported in it.
    """
    folder = built(flags)
    # An installed NVRTC is found before the path of libraries is looked at, but not before
    # one that the process has.
    wanted = [str(folder / name) for name in (DRIVER, "libnvrtc.so.13")]
    preload = [p for p in os.environ.get("LD_PRELOAD", "").split(":") if p and p not in wanted]
    paths = [p for p in os.environ.get("LD_LIBRARY_PATH", "").split(":") if p and p != str(folder)]
    return {
        **os.environ,
        **variables(**settings),
        "LD_PRELOAD": ":".join([*wanted, *preload]),
        "LD_LIBRARY_PATH": ":".join([str(folder), *paths]),
        "PYTHONPATH": os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])]),
    }


_FUNCTIONS: Final[dict[str, tuple[Any, tuple[Any, ...]]]] = {
    "gpusim_fail": (None, (ctypes.c_char_p, ctypes.c_ulong, ctypes.c_int)),
    "gpusim_fail_none": (ctypes.c_int, ()),
    "gpusim_lose_device_at": (None, (ctypes.c_ulong, ctypes.c_int)),
    "gpusim_lose_device": (None, (ctypes.c_int, ctypes.c_int)),
    "gpusim_calls": (ctypes.c_ulong, (ctypes.c_char_p,)),
    "gpusim_limit_memory": (None, (ctypes.c_size_t,)),
    "gpusim_reset": (None, ()),
    "gpusim_history": (ctypes.c_size_t, (ctypes.c_char_p, ctypes.c_size_t)),
    "gpusim_clear_history": (None, ()),
    "gpusim_leaks": (ctypes.c_int, (ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t)),
    "gpusim_strict": (None, (ctypes.c_int,)),
    "gpusim_launch_limit": (None, (ctypes.c_uint,)),
    "gpusim_blocked": (ctypes.c_ulong, ()),
}


class Simulator:
    """Steer the driver that this process has loaded."""

    def __init__(self, library: ctypes.CDLL) -> None:
        for name, (result, arguments) in _FUNCTIONS.items():
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
        self._library = library

    def fail(self, name: str, n: int, code: int) -> None:
        """Let the n-th call of a function from now on (``"*"``: of any) only return a code."""
        self._library.gpusim_fail(name.encode(), n, code)

    def fail_none(self) -> int:
        """Drop what `fail` asked for and has not happened yet; return how many."""
        return int(self._library.gpusim_fail_none())

    def lose_device_at(self, call: int, code: int = 0) -> None:
        """Lose the calling context's device at the given number of all calls."""
        self._library.gpusim_lose_device_at(call, code)

    def lose_device(self, device: int = 0, code: int = 0) -> None:
        """Let a device fail for good, with 719 or the given code."""
        self._library.gpusim_lose_device(device, code)

    def calls(self, name: str | None = None) -> int:
        """Return the number of calls so far, of one function or of all."""
        return int(self._library.gpusim_calls(name.encode() if name else None))

    def limit_memory(self, size: int) -> None:
        """Give every device so many bytes; 0: as many as at first."""
        self._library.gpusim_limit_memory(size)

    def reset(self) -> None:
        """End faults on request, limits and sticky errors; objects stay."""
        self._library.gpusim_reset()

    def history(self) -> str:
        """Return what happened last, a line each."""
        return self._text(self._library.gpusim_history)

    def clear_history(self) -> None:
        """Forget what happened."""
        self._library.gpusim_clear_history()

    def leaks(self, device: int = -1) -> str:
        """Return in words what is still alive of a device (-1: of all); empty for nothing."""
        text = ctypes.create_string_buffer(4096)
        count = self._library.gpusim_leaks(device, text, len(text))
        return text.value.decode(errors="replace") if count else ""

    def strict(self, strict: bool) -> None:  # noqa: FBT001 - the one thing it says
        """Abort where a rule for programs is broken, or answer with the driver's code."""
        self._library.gpusim_strict(int(strict))

    def launch_limit(self, operations: int) -> None:
        """Let a stream take so many operations before a launch blocks."""
        self._library.gpusim_launch_limit(operations)

    def blocked(self) -> int:
        """Return how many launches had to wait because their stream was full."""
        return int(self._library.gpusim_blocked())

    def _text(self, function: Callable[..., int]) -> str:
        """Return what a function writes, however long it is."""
        size = 4096
        while True:
            text = ctypes.create_string_buffer(size)
            needed = int(function(text, size))
            if needed <= size:
                return text.value.decode(errors="replace")
            size = needed + 4096


@functools.cache
def _loaded() -> Simulator:
    folder = built()
    # The name in the library is what tells cuda-python that it is there already.
    library = ctypes.CDLL(str(folder / DRIVER), ctypes.RTLD_GLOBAL)
    ctypes.CDLL(str(folder / "libnvrtc.so.13"), ctypes.RTLD_GLOBAL)
    return Simulator(library)


def load(**settings: object) -> Simulator:
    """Load gpusim into this process and return its controls.

    To be called before the first call of cuda-python, which would load the
    machine's own driver. Settings (by the names in `SETTINGS`) count from the
    first ``cuInit`` on. A second call returns the same.
    """
    os.environ.update(variables(**settings))
    return _loaded()


def main(command: list[str]) -> int:
    """Run a command on gpusim."""
    if not command:
        sys.stderr.write(__doc__ or "")
        return 2
    os.execvpe(command[0], command, environment())
    return 1  # never reached


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
