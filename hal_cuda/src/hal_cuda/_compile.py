"""Compile portable kernel source with NVRTC."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from hal import dialect
from hal.disk_cache import DiskCache
from hal.errors import CompilationError
from hal.handlers import own
from hal.native import CompileRequest
from hal_cuda import _dialect, _driver

_OPTIONS: Final = (
    # Kernels are found by their names in the source, even without a caller.
    "--std=c++17",
    # Nobody sees the warnings of a successful compilation.
    "--disable-warnings",
)
_STANDARD: Final = re.compile(r"--?std(?:=|$)")
_ARCHITECTURE: Final = re.compile(r"--?(?:gpu-architecture|arch)(?:=|$)")
_ERROR: Final = re.compile(r"^(?P<file>.*)\((?P<line>\d+)\): (?P<kind>(?:catastrophic )?error)\b")
_SHARED: Final = re.compile(
    r"Entry function '(?P<name>\w+)' uses too much shared data \((?P<size>\w+) bytes, (?P<most>\w+)"
)
_CARET: Final = re.compile(r"[ \t]*\^\s*$")

_cache: Final = DiskCache("cuda")


def compile_image(request: CompileRequest, target: str) -> tuple[bytes, str]:
    """Return a cubin for ``"sm_90"`` or PTX for ``"compute_90"``, and NVRTC's log.

    From the cache if present; a part is a cubin that has to be linked.
    Raises `CompilationError` with NVRTC's log, in which the user's source has
    the user's file name and lines; and `UnimplementedError` with the pip
    command if NVRTC is not installed.
    """
    version, _ = _driver.compiler()
    text = _dialect.rewrite(request)
    options = [*_OPTIONS, *request.options]
    if any(map(_STANDARD.match, request.options)):
        options.remove("--std=c++17")
    if not any(map(_ARCHITECTURE.match, request.options)):
        options.append(f"--gpu-architecture={target}")
    if request.part:
        options.append("--relocatable-device-code=true")
    folders = [*request.include_directories]
    headers: dict[str, str] = {}
    if "include" in request.source or request.has_includes:
        vendor = _driver.header_folder()
        if vendor is not None:
            folders.append(vendor)
            version += _stamp(vendor)
        headers = _headers(request.include_directories, vendor)
    options += [f"--include-path={folder}" for folder in folders]

    def make() -> tuple[bytes, str]:
        image, log = _driver.compile_source(
            text.encode(),
            request.filename.encode(),
            [option.encode() for option in options],
            headers,
        )
        if image is None:
            raise _refused(request, log)
        return image, log

    key = _cache.key("kernel", text, request.filename, version, *options, *headers.values())
    return _cache.image(None if request.has_includes else key, make)


def _stamp(folder: str) -> str:
    """Return a text that changes when other headers are installed in the vendor's folder."""
    try:
        about = (Path(folder) / "cuda_fp16.h").stat()
    except own(OSError):
        return ""
    return f" {about.st_size} {about.st_mtime_ns}"


def _headers(given: Sequence[str], vendor: str | None) -> dict[str, str]:
    """Return the dialect's headers but those that are in the given folders.

    The vendor's 16-bit floats are preferred to ours; its cooperative groups need further headers.
    """
    headers = dialect.not_in(given)
    if vendor is not None:
        for name in dialect.FLOAT16:
            headers.pop(name, None)
    return headers


def target_for(architecture: str) -> str:
    """Return the target to compile for to run on an architecture, out of those NVRTC knows.

    An unknown architecture is newer: PTX of the newest known one runs on it, since
    the driver compiles it.
    """
    _, known = _driver.compiler()
    number = int(architecture.removeprefix("sm_"))
    if not known or number in known:
        return architecture
    older = [each for each in known if each <= number]
    return f"compute_{max(older)}" if older else architecture


def _refused(request: CompileRequest, log: str) -> CompilationError:
    """Return the error for source that NVRTC refuses, with columns where it marks them."""
    lines = log.splitlines()
    errors: list[str] = []
    for number, line in enumerate(lines):
        match = _ERROR.match(line)
        if match:
            place = f"{match['file']}:{match['line']}:"
            column = _column(request, match, lines[number + 1 : number + 3])
            place += f"{column}:" if column else ""
            errors.append(f"{place} {match['kind']}{line[match.end() :]}")
    for entry in request.entries:
        match = next((each for each in _SHARED.finditer(log) if each["name"] == entry.name), None)
        if match:
            errors.append(
                f"{request.filename}:{entry.line}: error: kernel '{entry.name}': it declares "
                f"{int(match['size'], 0):,} bytes of __shared__ memory, and a block has "
                f"{int(match['most'], 0):,}"
            )
    return CompilationError.from_log(f"{request.filename} does not compile", errors, log)


def _column(request: CompileRequest, match: re.Match[str], shown: list[str]) -> int:
    """Return the column at which the caret below a quoted line points, from 1; 0 for none."""
    source = request.source.split("\n")
    number = int(match["line"])
    if match["file"] != request.filename or not 1 <= number <= len(source) or len(shown) < 2:  # noqa: PLR2004 - line and caret
        return 0
    quoted, caret = shown
    line = source[number - 1].rstrip()
    if not _CARET.match(caret) or not quoted.endswith(line.strip()):
        return 0
    # The quotation is indented, and the source's own indentation may be missing.
    return max(caret.index("^") - (len(quoted.rstrip()) - len(line)) + 1, 0)
