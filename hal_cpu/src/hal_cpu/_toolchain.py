"""Find a C++ compiler, run it, and keep what it built in a cache on disk."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.util
import os
import shlex
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from hal.errors import BackendUnavailableError

__all__ = [
    "Compiler",
    "cache_directory",
    "cache_key",
    "find_compiler",
    "load_entry",
    "processor_features",
    "run_compiler",
    "store_entry",
    "work_directory",
]

_TIME_LIMIT: Final = 600.0
_ENTRIES_AT_MOST: Final = 2000
_DIGEST: Final = hashlib.sha256().digest_size


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


# The cache


def cache_directory() -> Path | None:
    """Return the directory of the cache, made if need be, or None where there can be none.

    ``HAL_CACHE_DIR`` names it (``cpu`` is added), else it is ``hal/cpu`` in
    ``XDG_CACHE_HOME`` or ``~/.cache``. One that belongs to another user, or
    that others may write to, is not used: what it holds is run as code.
    """
    chosen = os.environ.get("HAL_CACHE_DIR", "")
    if chosen:
        root = Path(chosen)
    else:
        base = os.environ.get("XDG_CACHE_HOME", "")
        # The specification says to ignore relative paths.
        if os.path.isabs(base):
            root = Path(base) / "hal"
        else:
            try:
                root = Path.home() / ".cache" / "hal"
            except RuntimeError:
                return None
    directory = root.absolute() / "cpu"
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        about = directory.lstat()
    except OSError:
        return None
    return directory if stat.S_ISDIR(about.st_mode) and _is_private(about) else None


def _is_private(about: os.stat_result) -> bool:
    """Return whether only this user can write to a file or directory."""
    return about.st_uid == os.geteuid() and not about.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def cache_key(*parts: str | bytes) -> str:
    """Return the name of the entry that is made from these parts, in this order."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        # The length keeps ("ab", "c") and ("a", "bc") apart.
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.hexdigest()


def load_entry(key: str) -> bytes | None:
    """Return an entry's content; None if it is absent, damaged or not only ours to write."""
    directory = cache_directory()
    if directory is None:
        return None
    try:
        handle = os.open(directory / key, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    with open(handle, "rb") as file:
        about = os.fstat(file.fileno())
        if not stat.S_ISREG(about.st_mode) or not _is_private(about):
            return None
        data = file.read()
    digest, content = data[:_DIGEST], data[_DIGEST:]
    return content if hashlib.sha256(content).digest() == digest else None


def store_entry(key: str, content: bytes) -> None:
    """Put an entry into the cache, whole or not at all; without a cache do nothing."""
    directory = cache_directory()
    if directory is None:
        return
    # A process that looks at the same time sees the old entry or the new one.
    with contextlib.suppress(OSError):
        handle, name = tempfile.mkstemp(prefix=".new-", dir=directory)
        try:
            with open(handle, "wb") as file:
                file.write(hashlib.sha256(content).digest() + content)
            os.replace(name, directory / key)
        except BaseException:
            os.unlink(name)
            raise
        _prune(directory)


def _prune(directory: Path) -> None:
    """Remove the oldest entries when there are too many."""
    entries = list(directory.iterdir())
    if len(entries) <= _ENTRIES_AT_MOST:
        return
    ages: list[tuple[float, Path]] = []
    for entry in entries:
        with contextlib.suppress(OSError):
            ages.append((entry.lstat().st_mtime, entry))
    for _, entry in sorted(ages)[: len(ages) // 4]:
        with contextlib.suppress(OSError):
            entry.unlink()
