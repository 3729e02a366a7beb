"""Compile portable kernel source to a shared object, or take it from the cache.

Most compilations are answered by the cache, the first of many a process too: what makes an image is
imported by the first that makes one.
"""

from __future__ import annotations

import functools
import os
import re
import zlib
from itertools import filterfalse
from typing import TYPE_CHECKING, Final

from hal import cpp_tokens, dialect
from hal.errors import InvalidArgumentError
from hal.native import CompileRequest
from hal_cpu import _build, _options, _system

if TYPE_CHECKING:
    from hal_cpu import _toolchain

LOOPS = True
"""Whether kernels with barriers may become loops; tests compare them with threads side by side."""
_FEATURES: Final = re.compile(
    r"sse|ssse|avx|fma|bmi|abm|popcnt|f16c|movbe|aes|vaes|pclmul|vpclmul|gfni|sha|adx|lzcnt|rdrnd|"
    r"fp|asimd|sve|sme|atomics|crc32|lrcpc|dcp|i8mm|bf16|flagm"
)
_NOT_TAKEN: Final = re.compile(r"-o.*|--output.*|-[cSE]|-MM?|-fsyntax-only|-###|--help|--version")


@functools.cache
def native_features() -> str:
    """Return the features of this processor that an image for it may use."""
    return " ".join(sorted(filter(_FEATURES.match, _system.processor_features())))


def compile_image(
    request: CompileRequest, march: str, features: str, compiler: _toolchain.Compiler
) -> tuple[bytes, str]:
    """Return the image of a request, from the cache if present, and the compiler's log.

    `march` is the part of a processor that the compiler may use, and `features` are
    those that the image requires of a processor. A part is an object file. Raises
    `CompilationError` with the compiler's log, in which the user's source has
    the user's file name, lines and columns, `InvalidArgumentError` for options
    that choose the output or its place, and `OperationError` if the system is
    out of space or files.
    """
    with _system.refusals(f"{request.filename} cannot be compiled"):
        return _compile(request, march, features, compiler)


def _compile(
    request: CompileRequest, march: str, features: str, compiler: _toolchain.Compiler
) -> tuple[bytes, str]:
    given, macros = _options.split_options(request.options)
    macros += request.macros
    for option in filter(_NOT_TAKEN.fullmatch, given):
        message = f"compile: the option {option!r} says what is made, or where, which hal does"
        raise InvalidArgumentError(message)
    options = [*_options.OPTIONS, *_options.FAMILY[compiler.family], *given]
    if march != _options.NATIVE:
        options.append(f"-march={march}")
    if request.part:
        options = [*filterfalse(_options.is_for_linker, options), "-c"]
    if compiler.family == "zig" and not any(option.startswith("-g") for option in given):
        # Otherwise it writes the work directory's name into the image.
        options.append("-g0")
    folders = [os.path.join(os.getcwd(), folder) for folder in request.include_directories]
    foreign = ""
    if request.has_includes:
        from hal_cpu import _making  # noqa: PLC0415 - see above

        making = _making.Making(request, compiler, [], options, folders, features, LOOPS, "")
        foreign = making.included(macros)
    debug = os.environ.get("HAL_CPU_DEBUG_DIR", "")
    # Made from the request, not from the rewritten text: a cached image then costs no rewriting.
    key = _build.CACHE.key(
        "kernel",
        request.source,
        request.prelude,
        request.type_table,
        macros,
        repr((request.entries, request.part, LOOPS)),
        foreign,
        request.filename,
        features,
        _own_texts(),
        compiler.identity,
        "\0".join([*_options.TUNING[compiler.family], *options, *folders]),
        debug,
    )

    def make() -> tuple[bytes, str]:
        from hal_cpu import _making  # noqa: PLC0415 - see above

        name = os.path.join(os.getcwd(), debug, f"{key[:16]}.cpp") if debug else ""
        wanted = [_options.MARCH_NATIVE] if march == _options.NATIVE else []
        making = _making.Making(request, compiler, wanted, options, folders, features, LOOPS, name)
        return making.image(foreign)

    # A debugger wants the source beside the image: make both.
    return _build.CACHE.image(None if debug else key, make)


@functools.cache
def _own_texts() -> str:
    """Return a key of everything that goes into an image besides the request.

    It has the checksums of all files that may have a part in it, as `_build` has of the runtime's.
    """
    paths = [cpp_tokens.__file__]
    headers = os.path.dirname(dialect.__file__)
    for folder in (os.path.dirname(__file__), headers, os.path.join(headers, "headers")):
        with os.scandir(folder) as entries:
            paths += sorted(entry.path for entry in entries if entry.is_file())
    return _build.CACHE.key(*map(_checksum, paths))


def _checksum(path: str) -> str:
    with open(path, "rb", 0) as file:
        text = file.read()
    return f"{os.path.basename(path)} {len(text)} {zlib.crc32(text)}"
