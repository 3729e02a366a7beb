"""Build the C extension `hal._speedups`: a hook of hatchling, and a command for developers.

The extension is optional. Where it cannot be built, the wheel is the pure one, whose engine is
Python alone, and one line says why. ``HAL_SPEEDUPS`` in the environment: ``require`` makes that
an error, ``0`` builds the pure wheel. ``CC`` names the compiler, ``CFLAGS`` adds options.

``python hatch_build.py`` builds the extension beside the modules, for an editable installation.
"""

from __future__ import annotations

import importlib.util
import os
import runpy
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any, Final

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ROOT: Final = Path(__file__).resolve().parent
SOURCES: Final = ROOT / "speedups"
BESIDE: Final = ROOT / "src" / "hal"
NAME: Final = f"_speedups{sysconfig.get_config_var('EXT_SUFFIX')}"
OPTIONS: Final = ("-O3", "-std=gnu11", "-fPIC", "-shared", "-fvisibility=hidden", "-pthread")
WHOLE: Final = ("-flto=auto", "-fno-plt")
"""All files as one, where the compiler and its linker can: a tenth fewer instructions."""


class NotBuiltError(Exception):
    """The extension cannot be built; the message says why."""


class CustomBuildHook(BuildHookInterface[Any]):
    """Put the extension into a wheel, or beside the modules of an editable installation."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build it before hatchling collects the files."""
        self._folder = tempfile.TemporaryDirectory(prefix="hal-speedups-")
        is_editable = version == "editable"
        try:
            built = build(BESIDE if is_editable else Path(self._folder.name))
        except NotBuiltError as error:
            if wanted() == "require":
                raise
            say(f"the plain engine is installed, without its C extension: {error}")
            return
        if not is_editable:
            build_data["force_include"][str(built)] = f"hal/{NAME}"
            build_data["infer_tag"] = True
            build_data["pure_python"] = False

    def finalize(self, *_: object) -> None:
        """Remove what is in the wheel by now."""
        self._folder.cleanup()


def build(folder: Path) -> Path:
    """Compile all sources into one extension for this interpreter; return its path."""
    if wanted() == "0":
        raise NotBuiltError("HAL_SPEEDUPS=0 in the environment")
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        raise NotBuiltError("this Python is free-threaded, for which there is none")
    headers = {sysconfig.get_path("include"), sysconfig.get_path("platinclude")}
    if not any(Path(each, "Python.h").is_file() for each in headers):
        raise NotBuiltError(f"Python's headers (Python.h) are not in {', '.join(sorted(headers))}")
    compiler = find_compiler()
    target = folder / NAME
    fresh = folder / f".{NAME}.{os.getpid()}"  # the old one may be in use
    digest = runpy.run_path(str(BESIDE / "_base" / "sources.py"))["digest"]
    rest = [f"-DHAL_SOURCES={digest(SOURCES)}L", *[f"-I{each}" for each in sorted(headers)]]
    rest += shlex.split(os.environ.get("CFLAGS", ""))
    rest += [*map(str, sorted(SOURCES.glob("*.c"))), "-o", str(fresh)]
    try:
        for extra in (WHOLE, ()):
            command = [*compiler, *OPTIONS, *extra, *rest]
            done = run(command)
            if done.returncode == 0:
                break
        else:
            say(f"{shlex.join(command)}\n{done.stdout}")
            message = f"{compiler[0]} did not compile it (exit status {done.returncode}, see above)"
            raise NotBuiltError(message)
        if done.stdout:
            say(done.stdout)
        fresh.replace(target)
    finally:
        fresh.unlink(missing_ok=True)
    return target


def find_compiler() -> list[str]:
    """Return the command of the C compiler: the one that ``CC`` names, or the first that runs."""
    named = os.environ.get("CC", "")
    candidates = [shlex.split(named)]
    if not named:
        others = (sysconfig.get_config_var("CC") or "cc", "gcc", "clang", "cc")
        candidates = [shlex.split(each) for each in others]
        if importlib.util.find_spec("ziglang"):
            candidates.append([sys.executable, "-m", "ziglang", "cc"])
    for command in candidates:
        if command and shutil.which(command[0]) and run([*command, "--version"]).returncode == 0:
            return command
    if named:
        raise NotBuiltError(f"CC is {named!r}, which does not run as a C compiler")
    raise NotBuiltError("no C compiler was found (looked for gcc, clang, cc and ziglang)")


def run(command: list[str]) -> subprocess.CompletedProcess[str]:
    """Run a command; its messages, in English, are its output."""
    return subprocess.run(  # noqa: S603 - the compiler of who builds this
        command,
        env={**os.environ, "LC_ALL": "C"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
    )


def wanted() -> str:
    """Return what the environment asks for."""
    return os.environ.get("HAL_SPEEDUPS", "")


def say(text: str) -> None:
    """Print a message where pip shows it with ``--verbose``, and on failures."""
    sys.stderr.write(f"hal-core: {text}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    try:
        say(f"built {build(BESIDE).relative_to(ROOT)}")
    except NotBuiltError as error:
        sys.exit(f"hal-core: not built: {error}")
