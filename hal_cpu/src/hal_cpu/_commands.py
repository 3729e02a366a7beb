"""Name the commands that may be a C++ compiler, and find their programs; start none.

Opening a device needs no compiler where the runtime is in the cache. Starting one to ask for its
version, and importing what starts it, would take longer than all the rest.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence

from hal.errors import BackendUnavailableError
from hal.handlers import own


def setting() -> tuple[str, str, str]:
    """Return ``HAL_CXX``, ``CXX`` and the path, from the environment."""
    environment = os.environ
    path = environment.get("PATH", os.defpath)
    return environment.get("HAL_CXX", ""), environment.get("CXX", ""), path


def candidates(hal_cxx: str, cxx: str) -> Iterator[tuple[str, ...]]:
    """Yield the commands to try, the best first; ``HAL_CXX`` leaves no choice.

    Raises `BackendUnavailableError` for a setting whose quotes do not match.
    """
    given = hal_cxx.strip() or cxx.strip()
    if given:
        import shlex  # noqa: PLC0415 - few need it

        try:
            command = shlex.split(given)
        except own(ValueError) as error:
            name = "HAL_CXX" if hal_cxx.strip() else "CXX"
            message = f"{name} is {given!r}, which is no command as a shell has it ({error})"
            raise BackendUnavailableError(message) from error
        yield tuple(command)
    if not hal_cxx.strip():
        yield ("g++",)
        yield ("clang++",)
        yield from _zig_commands()


def _zig_commands() -> Iterator[tuple[str, ...]]:
    """Yield the commands of the zig compiler in the ``ziglang`` package, if it is installed."""
    import importlib.util  # noqa: PLC0415 - few need it

    spec = importlib.util.find_spec("ziglang")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        # Its own launcher would start another Python first.
        program = os.path.join(folder, "zig")
        if os.path.isfile(program):
            yield (program, "c++")
    if spec:
        yield (sys.executable, "-m", "ziglang", "c++")


def find_program(name: str, path: str) -> str | None:
    """Return the file of a program that may be run, or None."""
    # Not `shutil.which`: what shutil imports takes 2 ms.
    folders = [""] if os.path.dirname(name) else path.split(os.pathsep)
    for folder in folders:
        file = os.path.join(folder, name)
        if os.access(file, os.X_OK) and os.path.isfile(file):
            return file
    return None


def identity(command: Sequence[str]) -> list[str]:
    """Return texts that identify a command and the present file of its program."""
    about = os.stat(command[0])
    return [*command, str(about.st_size), str(about.st_mtime_ns)]


def first_identity() -> list[str]:
    """Return the identity of the first candidate that is there; empty if none is."""
    hal_cxx, cxx, path = setting()
    for name, *arguments in candidates(hal_cxx, cxx):
        program = find_program(name, path)
        if program is not None:
            return identity([program, *arguments])
    return []
