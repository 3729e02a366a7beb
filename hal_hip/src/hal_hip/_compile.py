"""Compile portable kernel source with hiprtc.

hiprtc supports most of the dialect by itself; ``prelude.h`` adds the rest. The
user's text stays as it is: a kernel has its C++ name in the image, and is found
there by its plain one.
"""

from __future__ import annotations

import re
from importlib import resources
from typing import Final

from hal import dialect
from hal.disk_cache import DiskCache
from hal.errors import CompilationError
from hal.native import CompileRequest
from hal_hip import _driver

_OPTIONS: Final = (
    "-std=c++17",
    "-O3",
    # The prelude defines the integer types of <cstdint>, the same for every version of hiprtc.
    "-D__HIP_NO_STD_DEFS__=1",
)
_STANDARD: Final = re.compile(r"--?std(?:=|$)")
_ERROR: Final = re.compile(r"(?:fatal |catastrophic )?error:|\): error")

_cache: Final = DiskCache("hip")


def compile_image(request: CompileRequest, target: str) -> tuple[bytes, str]:
    """Return the code object of a request for devices of that ``gcnArchName``, and the log.

    From the cache if present. Raises `CompilationError` with the
    compiler's log, in which the user's source has the user's file name and
    lines; and `UnimplementedError` without hiprtc.
    """
    text = program_text(request)
    options = [f"--offload-arch={target}", *_OPTIONS]
    if any(map(_STANDARD.match, request.options)):
        options.remove(_OPTIONS[0])
    options += [f"-I{folder}" for folder in request.include_directories]
    options += request.options
    version = f"{_driver.compiler_version()} {_driver.runtime_version()}"

    def make() -> tuple[bytes, str]:
        image, log = _driver.compile_source(
            text.encode(),
            request.filename.encode(),
            [option.encode() for option in options],
            headers,
        )
        if image is None:
            raise _refused(request, target, log)
        return image, log

    headers: dict[str, str] = {}
    if "include" in request.source or request.has_includes:
        headers = dialect.not_in(request.include_directories)
    key = _cache.key("kernel", text, request.filename, version, *options, *headers.values())
    return _cache.image(None if request.has_includes else key, make)


def _refused(request: CompileRequest, target: str, log: str) -> CompilationError:
    """Return the error for source that hiprtc refuses, with the first lines that say why."""
    errors = [line for line in log.splitlines() if _ERROR.search(line)]
    return CompilationError.from_log(
        f"{request.filename} does not compile for {target}", errors, log
    )


def program_text(request: CompileRequest) -> str:
    """Return the compiler's input: preludes, macros, the user's text, the type table."""
    own = resources.files("hal_hip")
    texts = [(own / name).read_text(encoding="utf-8") for name in ("prelude.h", "warps.h")]
    prelude = "\n".join([*texts, dialect.texts()["hal_simd.h"]])
    name = request.filename.replace("\\", "\\\\").replace('"', '\\"')
    return "\n".join(
        [
            *('#line 1 "hal_prelude"', prelude, request.prelude),
            *('#line 1 "defines"', request.macros),
            *(f'#line 1 "{name}"', request.source, request.type_table),
        ]
    )
