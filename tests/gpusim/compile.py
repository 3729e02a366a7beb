"""Compile what a program hands to a run-time compiler into an image for the processor.

    python compile.py FOLDER

Reads FOLDER/request as rtc.c writes it, and leaves FOLDER/log and, with exit
status 0, FOLDER/image. Status 5: an unknown option. Status 6: the source is
wrong, and the log says where, in the form of NVRTC's own messages.

The text is CUDA C++ as NVRTC takes it: kernels are found by the core's scanner
and made ready for the processor by the cpu backend's rewriter.
"""

from __future__ import annotations

import re
import struct
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from hal import dialect
from hal._programs.scanner import scan
from hal.errors import InvalidArgumentError
from hal.native import CompileRequest, EntryPoint
from hal_cpu import _dialect, _headers, _toolchain

_SUCCESS, _INVALID_OPTION, _COMPILATION = 0, 5, 6
_LENGTH: Final = struct.Struct("<Q")
_ARCHITECTURES: Final = frozenset({75, 80, 86, 87, 88, 89, 90, 100, 103, 110, 120, 121})
_ARCHITECTURE: Final = re.compile(r"(?:sm|compute|lto)_(\d+)[af]?\Z|gfx\w+(?::.*)?\Z")
_FLAGS: Final = {"w", "disable-warnings", "lineinfo", "use_fast_math"}
"""Options that mean nothing to a processor, or nothing that a result shows."""
_VALUED: Final = {"fmad", "maxrregcount", "relocatable-device-code", "std"}
"""The same, with a value; the standard counts."""
_TAKEN: Final = {
    "D": "define",
    "define-macro": "define",
    "I": "include",
    "include-path": "include",
    "arch": "architecture",
    "gpu-architecture": "architecture",
    "offload-arch": "architecture",
}
_COMPILER_OPTIONS: Final = (
    *("-O2", "-shared", "-fPIC", "-w", "-fno-exceptions", "-fno-rtti", "-fno-math-errno"),
    *("-ffp-contract=fast", "-fstack-clash-protection", "-Wl,-Bsymbolic"),
)
_FAMILY: Final = {
    "gcc": ("-fno-gnu-unique", "-fno-semantic-interposition", "-Wl,--as-needed", "-lm"),
    "clang": ("-Wl,--as-needed", "-lm"),
    "zig": ("-nostdlib", "-fno-sanitize=undefined", "-UNDEBUG", "-g0"),
}
_CLANG: Final = re.compile(r"-(?:O[0-3sz]?|[fWm][-\w]+(?:=.*)?|g)\Z")
"""The same, of hiprtc's own."""
_HIP_MACROS: Final = """\
#define __HIP__ 1
#define __HIPCC__ 1
#define __HIP_PLATFORM_AMD__ 1
#define __HIP_DEVICE_COMPILE__ 1
"""
_CUDA_MACROS: Final = """\
#define __CUDACC__ 1
#define __CUDACC_RTC__ 1
#define __CUDA_ARCH__ {architecture}0
#define __CUDACC_VER_MAJOR__ 13
#define __CUDACC_VER_MINOR__ 0
"""
_MACROS: Final = """\
#undef __HAL_CPU__
#undef HAL_TABLE
#undef assert
extern "C" {
HAL_EXPORT void (*gpusim_assert)(const char *, const char *, unsigned int, const char *) = nullptr;
}
#ifdef NDEBUG
#define assert(condition) ((void)0)
#else
#define assert(condition) \\
  ((condition) ? (void)0 : gpusim_assert(#condition, __FILE__, __LINE__, __func__))
#endif
"""
_LINE: Final = re.compile(
    r'^[ \t]*#[ \t]*line[ \t]+(\d+)(?:[ \t]+"((?:[^"\\]|\\.)*)")?', re.MULTILINE
)
_OURS: Final = re.compile(rf'^#line (\d+) "{re.escape(_dialect.SOURCE)}"$', re.MULTILINE)
_BOUNDS: Final = re.compile(r"__launch_bounds__\s*\(")
_MESSAGE: Final = re.compile(
    r"^(?P<file>.+?):(?P<line>\d+):(?:(?P<column>\d+):)? (?P<kind>(?:fatal )?error): (?P<text>.*)$"
)
_LINKER: Final = re.compile(r"undefined (?:reference|symbol)")


class _InvalidOptionError(Exception):
    """Which option no compiler of this kind has."""


@dataclass(slots=True)
class _Request:
    """Hold what a program is compiled from."""

    text: str
    name: str
    headers: dict[str, str]
    options: list[str]


@dataclass(slots=True)
class _Options:
    """Hold what the options mean."""

    macros: list[str] = field(default_factory=list)  # preprocessor lines
    includes: list[str] = field(default_factory=list)
    architecture: int = 75
    is_virtual: bool = True  # no machine code for it, as by default
    standard: str = "c++17"
    is_hip: bool = False


def _read_request(data: bytes) -> _Request:
    """Take apart what rtc.c wrote."""
    position = 0

    def number() -> int:
        nonlocal position
        (value,) = _LENGTH.unpack_from(data, position)
        position += _LENGTH.size
        return int(value)

    def text() -> str:
        nonlocal position
        size = number()
        position += size
        return data[position - size : position].decode(errors="replace")

    text()  # the stamp, which only the cache's key needs
    source, name = text(), text()
    headers = {text(): text() for _ in range(number())}
    return _Request(source, name, headers, [text() for _ in range(number())])


def _read_options(options: Sequence[str]) -> _Options:
    """Understand, ignore or refuse each option."""
    found = _Options()
    found.is_hip = any(option.startswith("--offload-arch=gfx") for option in options)
    waiting = iter(options)
    for option in waiting:
        if found.is_hip and _CLANG.match(option):
            continue
        name, equals, value = option.lstrip("-").partition("=")
        if not option.startswith("-"):
            raise _InvalidOptionError(option)
        if option[:2] in {"-D", "-I"} and option[:3] != option[:2]:
            name, equals, value = option[1], "=", option[2:]
        if name in _FLAGS:
            continue
        meaning = _TAKEN.get(name, "")
        if not meaning and name not in _VALUED:
            raise _InvalidOptionError(option)
        value = value if equals else next(waiting, "")
        if name == "std":
            found.standard = value
        elif meaning == "define":
            macro, equals, content = value.partition("=")
            found.macros.append(f"#define {macro} {content if equals else 1}\n")
        elif meaning == "include":
            found.includes.append(value)
        elif meaning == "architecture":
            found.architecture = _architecture(option, value)
            found.is_virtual = not value.startswith("sm_")
    return found


def _architecture(option: str, value: str) -> int:
    """Return the number of an architecture that this compiler knows."""
    match = _ARCHITECTURE.match(value)
    if not match or (match[1] and int(match[1]) not in _ARCHITECTURES):
        raise _InvalidOptionError(option)
    return int(match[1] or 0)


class _Places:
    """Tell where in the program's own files each line of the text stands."""

    def __init__(self, text: str, name: str) -> None:
        self._text = text
        self._starts: list[tuple[int, str, int]] = [(1, name, 1)]  # line, file, its line there
        for match in _LINE.finditer(text):
            line = text.count("\n", 0, match.start()) + 1
            file = match[2] if match[2] is not None else self._starts[-1][1]
            self._starts.append((line + 1, file, int(match[1])))

    def of(self, line: int) -> tuple[str, int]:
        """Return the file and the line that a line of the text counts as."""
        start, file, number = max(
            (each for each in self._starts if each[0] <= line), key=lambda each: each[0]
        )
        return file, number + line - start

    def source(self, file: str, line: int) -> str | None:
        """Return the text of a line of a file, as last seen."""
        lines = self._text.split("\n")
        for index in range(len(lines), 0, -1):
            if self.of(index) == (file, line) and not lines[index - 1].lstrip().startswith("#line"):
                return lines[index - 1]
        return None


def _target(options: _Options) -> str:
    """Return a definition that tells the driver which CUDA devices the image is for."""
    if options.is_hip:
        return ""
    number = -options.architecture if options.is_virtual else options.architecture
    return f'extern "C" HAL_EXPORT const int gpusim_architecture = {number};\n'


def _bounds(text: str, entries: Sequence[EntryPoint]) -> Iterator[str]:
    """Yield definitions that tell how many threads a block of each kernel has at most."""
    for entry in entries:
        head = text[: entry.parameters_start]
        begin = max(head.rfind("__global__"), 0)
        begin = max(head.rfind(";", 0, begin), head.rfind("}", 0, begin), -1) + 1
        match = _BOUNDS.search(head, begin)
        if match is None:
            continue
        depth, end = 1, match.end()
        while end < len(head) and depth and not (depth == 1 and head[end] == ","):
            depth += (head[end] in "([") - (head[end] in ")]")
            end += 1
        expression = head[match.end() : end].rstrip("),") if depth == 0 else head[match.end() : end]
        yield (
            f'extern "C" HAL_EXPORT const unsigned int gpusim_bound_{entry.name} = '
            f"(unsigned int)({expression});\n"
        )


def _text(request: _Request, options: _Options, foreign: str, entries: Sequence[EntryPoint]) -> str:
    """Return the C++ text of the image."""
    places = _Places(request.text, request.name)
    asked = CompileRequest(
        source=request.text,
        filename=request.name,
        entries=tuple(entries),
        type_table=_target(options) + "".join(_bounds(request.text, entries)),
        options=(),
    )
    text = _dialect.rewrite(asked, foreign, "", loops=False)
    macros = _MACROS + _CUDA_MACROS.format(architecture=options.architecture)
    if options.is_hip:
        macros = _MACROS + _HIP_MACROS
    own = f'#line 1 "{_dialect.SOURCE}"\n'
    # NDEBUG among the options decides what assert is.
    head, _, rest = text.partition(own)
    text = f"{head}{''.join(options.macros)}{macros}{own}{rest}"

    def place(match: re.Match[str]) -> str:
        file, line = places.of(int(match[1]))
        return f'#line {line} "{file}"'

    return _OURS.sub(place, text)


def _log(output: str, folder: Path, places: _Places, name: str) -> str:
    """Turn a compiler's messages into NVRTC's form."""
    lines: list[str] = []
    count = 0
    for line in output.replace(f"{folder}/headers/", "").replace(f"{folder}/", "").splitlines():
        match = _MESSAGE.match(line)
        if match:
            count += 1
            kind = "catastrophic error" if match["kind"].startswith("fatal") else "error"
            number = int(match["line"])
            lines.append(f"{match['file']}({number}): {kind}: {match['text']}")
            source = places.source(match["file"], number)
            if source is not None and match["column"]:
                column = int(match["column"])
                indent = "".join("\t" if c == "\t" else " " for c in source[: column - 1])
                lines += [f"  {source}", f"  {indent}^", ""]
        elif _LINKER.search(line):
            count += 1
            lines.append(f"{name}(1): error: {line}")
    if not count:
        return output
    plural = "" if count == 1 else "s"
    return "\n".join(
        [*lines, f'{count} error{plural} detected in the compilation of "{name}".', ""]
    )


def _compile(request: _Request, folder: Path) -> tuple[int, str]:
    """Compile a request to ``image``; return the status and the log."""
    options = _read_options(request.options)
    places = _Places(request.text, request.name)
    try:
        entries = scan(request.text, filename=request.name)
    except InvalidArgumentError as error:
        return _COMPILATION, _refused(str(error), places, request.name)
    headers = folder / "headers"
    headers.mkdir()
    # As a real compiler's own headers, the dialect's come before those of a toolkit.
    for name, content in {**request.headers, **dialect.texts()}.items():
        target = (headers / name).resolve()
        if target.is_relative_to(headers.resolve()):
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(content, encoding="utf-8")
    compiler = _toolchain.find_compiler()
    _headers.write(folder)
    command = [*compiler.cxx, f"-std={options.standard}", *_COMPILER_OPTIONS]
    command.append(f"-DHAL_WARP_SIZE={64 if options.is_hip else 32}")
    for each in [str(headers), *options.includes]:
        command += ["-I", each]
    source, target = folder / "image.cpp", folder / "image"
    foreign = ""
    if "include" in request.text:
        foreign = _included(request, options, command, folder)
    source.write_text(_text(request, options, foreign, entries), encoding="utf-8")
    family = _FAMILY[compiler.family]
    status, output = _toolchain.run_compiler([*command, str(source), "-o", str(target), *family])
    if status == 0 and target.is_file():
        return _SUCCESS, ""
    if options.is_hip:  # clang's form, which is also that of what compiles here
        return _COMPILATION, output.replace(f"{folder}/headers/", "").replace(f"{folder}/", "")
    return _COMPILATION, _log(output, folder, places, request.name)


def _included(request: _Request, options: _Options, command: Sequence[str], folder: Path) -> str:
    """Return the text of the headers, to find what uses barriers."""
    source, target = folder / "included.cpp", folder / "included.i"
    text = "".join(options.macros) + "".join(
        line
        for line in request.text.replace("\\\n", " ").splitlines(keepends=True)
        if line.lstrip().startswith("#")
    )
    source.write_text(text, encoding="utf-8")
    status, _ = _toolchain.run_compiler([*command, "-E", "-P", str(source), "-o", str(target)])
    return target.read_text(encoding="utf-8", errors="replace") if status == 0 else ""


def _refused(message: str, places: _Places, name: str) -> str:
    """Turn what the scanner says into NVRTC's form."""
    match = re.match(rf"{re.escape(name)}:(\d+)", message)
    file, line = places.of(int(match[1])) if match else (name, 1)
    text = message[match.end() :].lstrip(":0123456789 ") if match else message
    return f'{file}({line}): error: {text}\n\n1 error detected in the compilation of "{name}".\n'


def main(folder: Path) -> int:
    """Compile the request in a folder."""
    request = _read_request((folder / "request").read_bytes())
    try:
        status, log = _compile(request, folder)
    except _InvalidOptionError as error:
        shown = (
            f"invalid value for {error}"
            if "=" in str(error)
            else f"unrecognized option {error} found"
        )
        status, log = _INVALID_OPTION, f"nvrtc: error: {shown}\n"
    (folder / "log").write_text(log, encoding="utf-8")
    return status


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
