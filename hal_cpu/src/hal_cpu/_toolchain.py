"""Find a C++ compiler and run it."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from hal.disk_cache import DiskCache
from hal.errors import BackendUnavailableError

__all__ = [
    "CACHE",
    "Compiler",
    "find_compiler",
    "processor_features",
    "run_compiler",
    "work_directory",
]

_TIME_LIMIT: Final = 600.0

CACHE: Final = DiskCache("cpu")
"""What was built, on disk."""


@dataclass(frozen=True, slots=True)
class Compiler:
    """Describe a compiler that was found.

    Attributes
    ----------
    cxx, cc
        The commands for C++ and for C, without options.
    family
        ``"gcc"``, ``"clang"`` or ``"zig"``.
    version
        The first line of what it says about itself.
    identity
        Whatever tells it from another compiler or another version.
    """

    cxx: tuple[str, ...]
    cc: tuple[str, ...]
    family: str
    version: str
    identity: str


def find_compiler() -> Compiler:
    """Return the compiler to use; looked for once for each setting of the environment.

    In this order: the command in ``HAL_CXX``, that in ``CXX``, ``g++`` and
    ``clang++`` on the path, the ``ziglang`` package. Raises
    `BackendUnavailableError` if there is none, or if ``HAL_CXX`` names
    something that does not run.
    """
    return _find_compiler(
        os.environ.get("HAL_CXX", ""), os.environ.get("CXX", ""), os.environ.get("PATH", "")
    )


@functools.lru_cache(maxsize=16)
def _find_compiler(hal_cxx: str, cxx: str, path: str) -> Compiler:
    """Find a compiler for one setting of the environment."""
    if hal_cxx.strip():
        found = _examine(tuple(shlex.split(hal_cxx)), path)
        if found is None:
            message = f"HAL_CXX is {hal_cxx!r}, which does not run as a C++ compiler"
            raise BackendUnavailableError(message)
        return found
    commands: list[tuple[str, ...]] = [("g++",), ("clang++",), *_zig_commands()]
    if cxx.strip():
        commands.insert(0, tuple(shlex.split(cxx)))
    for command in commands:
        found = _examine(command, path)
        if found is not None:
            return found
    message = (
        "the cpu backend needs a C++ compiler and found none (looked for HAL_CXX, CXX, g++, "
        "clang++ and the ziglang package): install one with 'pip install ziglang', or your "
        "system's g++ or clang package"
    )
    raise BackendUnavailableError(message)


def _zig_commands() -> Iterator[tuple[str, ...]]:
    """Yield the commands of the zig compiler in the ``ziglang`` package, if it is installed."""
    spec = importlib.util.find_spec("ziglang")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        # Its own launcher would start another Python first.
        program = Path(folder) / "zig"
        if program.is_file():
            yield (str(program), "c++")
    if spec:
        yield (sys.executable, "-m", "ziglang", "c++")


def _examine(command: tuple[str, ...], path: str) -> Compiler | None:
    """Return what is known of a compiler, or None if the command does not run."""
    program = shutil.which(command[0], path=path) if command else None
    if program is None:
        return None
    command = (program, *command[1:])
    try:
        result = subprocess.run(  # noqa: S603 - the command is the user's own setting
            [*command, "--version"],
            capture_output=True,
            stdin=subprocess.DEVNULL,
            env=_environment(),
            timeout=_TIME_LIMIT,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    text = result.stdout.decode(errors="replace")
    if result.returncode != 0 or not text.strip():
        return None
    cc = (*command, "-x", "c")
    if "zig" in Path(program).name or "ziglang" in command:
        family = "zig"
        cc = (*command[:-1], "cc") if command[-1] == "c++" else cc
    elif "clang" in text.lower():
        family = "clang"
    else:
        family = "gcc"
    about = Path(program).resolve().stat()
    identity = "\n".join([*command, text, str(about.st_size), str(about.st_mtime_ns)])
    return Compiler(
        cxx=command,
        cc=cc,
        family=family,
        version=text.strip().splitlines()[0],
        identity=identity,
    )


def _environment() -> dict[str, str]:
    """Return the environment for a compiler: ours, with messages in English."""
    environment = dict(os.environ)
    environment["LC_ALL"] = "C"
    return environment


def run_compiler(command: Sequence[str]) -> tuple[int, str]:
    """Run a command; return its exit status and what it wrote."""
    try:
        result = subprocess.run(  # noqa: S603 - a list, no shell; user text only in files
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=_environment(),
            timeout=_TIME_LIMIT,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return 1, f"the compiler did not finish in {_TIME_LIMIT:.0f} seconds"
    except OSError as error:
        return 1, f"the compiler {command[0]!r} does not start: {error}"
    return result.returncode, result.stdout.decode(errors="replace")


@contextlib.contextmanager
def work_directory() -> Iterator[Path]:
    """Give a new directory that only this user can enter; it is removed at the end."""
    with tempfile.TemporaryDirectory(prefix="hal-cpu-") as name:
        yield Path(name)


@functools.cache
def processor_features() -> frozenset[str]:
    """Return the instruction set extensions of this processor, as the system names them."""
    with contextlib.suppress(OSError), Path("/proc/cpuinfo").open(encoding="utf-8") as lines:
        for line in lines:
            name, _, value = line.partition(":")
            if name.strip() in {"flags", "Features"}:
                return frozenset(value.split())
    return frozenset()
