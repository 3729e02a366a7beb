"""Build the C runtime with the machine's compiler, or take it from the cache."""

from __future__ import annotations

import os
import zlib
from typing import Final

from hal.disk_cache import DiskCache
from hal.errors import BackendUnavailableError
from hal_cpu import _commands, _system

CACHE: Final = DiskCache("cpu")
"""The build results, on disk."""

_HEADERS: Final = (
    "enqueue.h",
    "faults.h",
    "stream.h",
    "graph.h",
    "work.h",
    "pool.h",
    "fibers.h",
    "lanes.h",
    "image.h",
)
_OPTIONS: Final = (
    "-std=gnu11",
    "-O3",
    "-march=native",
    "-shared",
    "-fPIC",
    "-fvisibility=hidden",
    "-pthread",
    "-w",
)


def runtime() -> bytes:
    """Return the runtime's shared object."""
    sources = _sources()
    key = _key(sources)
    content = CACHE.load(key)
    if content is None:
        content = _build(sources)
        CACHE.store(key, content)
    return content


def _sources() -> dict[str, bytes]:
    """Return the texts of the files."""
    sources: dict[str, bytes] = {}
    for name in ("runtime.c", *_HEADERS):
        with open(os.path.join(os.path.dirname(__file__), name), "rb", 0) as file:
            sources[name] = file.read()
    return sources


def _key(sources: dict[str, bytes]) -> str:
    """Return the key of the runtime.

    It names the file of the compiler that is to be tried first, not its version, which takes a
    start of it: a wrapper may hide another version, and what any version has built is right.
    Of the sources it has checksums, as the core's C extension: a digest of them takes four times
    as long, of what every process does when it opens its first device.
    """
    return CACHE.key(
        "runtime",
        *(f"{len(text)} {zlib.crc32(text)}" for text in sources.values()),
        *_commands.first_identity(),
        " ".join(_OPTIONS),
        " ".join(sorted(_system.processor_features())),
    )


def _build(sources: dict[str, bytes]) -> bytes:
    """Compile the runtime."""
    from hal_cpu import _toolchain  # noqa: PLC0415 - what starts a compiler takes long to load

    compiler = _toolchain.find_compiler()
    options = [*_OPTIONS]
    if compiler.family == "zig":
        options.append("-fno-sanitize=undefined")
    with _toolchain.work_directory() as directory:
        for name, text in sources.items():
            (directory / name).write_bytes(text)
        target = directory / "runtime.so"
        for flags in (options, [option for option in options if option != "-march=native"]):
            status, log = _toolchain.run_compiler(
                [*compiler.cc, *flags, str(directory / "runtime.c"), "-o", str(target)], directory
            )
            if status == 0 and target.is_file():
                return target.read_bytes()
    message = f"{' '.join(compiler.cc)} cannot build the cpu backend's runtime:\n{log}"
    raise BackendUnavailableError(message)
