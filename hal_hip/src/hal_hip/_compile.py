"""Compile portable kernel source with hiprtc.

hiprtc speaks most of the dialect by itself; ``prelude.h`` brings the rest. The
user's text stays as it is: a kernel has its C++ name in the image, and is found
there by its plain one.
"""

from __future__ import annotations

import re
from importlib import resources
from typing import Final

from hal.disk_cache import DiskCache
from hal.errors import CompilationError, InvalidArgumentError
from hal.native import CompileRequest
from hal_hip import _driver

__all__ = ["compile_image", "compile_with_log", "program_text"]

_OPTIONS: Final = (
    "-std=c++17",
    "-O3",
    # The integer types of <cstdint> are the prelude's, the same for every version of hiprtc.
    "-D__HIP_NO_STD_DEFS__=1",
)
_STANDARD: Final = re.compile(r"--?std(?:=|$)")
_INCLUDE: Final = re.compile(r"^[ \t]*(?:#|%:)[ \t]*(?:include|embed)|__has_include", re.MULTILINE)
_NAME: Final = re.compile(r"[A-Za-z_]\w*(?:\([^()\n]*\))?", re.ASCII)
_ERROR: Final = re.compile(r"(?:fatal |catastrophic )?error:|\): error")
_ERRORS_SHOWN: Final = 5

_cache: Final = DiskCache("hip")


def compile_image(request: CompileRequest, target: str) -> bytes:
    """Return the code object of a request; raises as `compile_with_log`."""
    return compile_with_log(request, target)[0]


def compile_with_log(request: CompileRequest, target: str) -> tuple[bytes, str]:
    """Return the code object of a request for devices of that ``gcnArchName``, and the log.

    From the cache if it holds it. Raises `CompilationError` with the
    compiler's log, in which the user's source has the user's file name and
    lines; `InvalidArgumentError` for macros that are none; and
    `UnimplementedError` without hiprtc.
    """
    text = program_text(request)
    options = [f"--offload-arch={target}", *_OPTIONS]
    if any(map(_STANDARD.match, request.options)):
        options.remove(_OPTIONS[0])
    options += [f"-I{folder}" for folder in request.include_directories]
    options += request.options
    # What an include reads may change, so that is compiled each time.
    cached = not _INCLUDE.search(request.source) and "-include" not in request.options
    version = f"{_driver.compiler_version()} {_driver.runtime_version()}"
    key = _cache.key("kernel", text, request.filename, version, *options)
    image = _cache.load(key) if cached else None
    if image is not None:
        return image, (_cache.load(_cache.key("log", key)) or b"").decode()
    image, log = _driver.compile_source(
        text.encode(), request.filename.encode(), [option.encode() for option in options]
    )
    if image is None:
        raise _refused(request, target, log)
    if cached:
        _cache.store(key, image)
        if log:
            _cache.store(_cache.key("log", key), log.encode())
    return image, log


def _refused(request: CompileRequest, target: str, log: str) -> CompilationError:
    """Return the error for source that hiprtc refuses, with the first lines that say why."""
    lines = log.splitlines()
    errors = [line for line in lines if _ERROR.search(line)]
    shown = errors[:_ERRORS_SHOWN] or lines[-_ERRORS_SHOWN:]
    if len(errors) > _ERRORS_SHOWN:
        shown.append(f"... and {len(errors) - _ERRORS_SHOWN} more")
    message = "\n".join([f"{request.filename} does not compile for {target}:", *shown])
    return CompilationError(message, log=log)


def program_text(request: CompileRequest) -> str:
    """Return what the compiler reads: preludes, macros, the user's text, the type table.

    Raises `InvalidArgumentError` for a macro that is none.
    """
    prelude = (resources.files("hal_hip") / "prelude.h").read_text(encoding="utf-8")
    parts = ['#line 1 "hal_prelude"', prelude, request.prelude, '#line 1 "defines"']
    for name, value in request.defines.items():
        if not _NAME.fullmatch(name):
            message = f"defines: {name!r} is no name of a macro"
            raise InvalidArgumentError(message)
        if "\n" in value or "\r" in value:
            message = f"defines: the value of {name!r} has a line break"
            raise InvalidArgumentError(message)
        parts.append(f"#define {name} {value}")
    name = request.filename.replace("\\", "\\\\").replace('"', '\\"')
    return "\n".join([*parts, f'#line 1 "{name}"', request.source, request.type_table])
