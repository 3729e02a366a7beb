"""Compile portable kernel source to a shared object."""

from __future__ import annotations

import functools
import os
import re
import sys
from collections.abc import Callable, Sequence
from itertools import filterfalse
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

from hal import dialect
from hal.errors import CompilationError, InvalidArgumentError
from hal.handlers import own
from hal.native import CompileRequest
from hal_cpu import (
    _build,
    _dialect,
    _headers,
    _image,
    _masked_loads,
    _preprocess,
    _system,
    _toolchain,
)
from hal_cpu._preprocess import SOURCE

if TYPE_CHECKING:
    from importlib.abc import InspectLoader

_OPTIONS: Final = (
    "-std=c++17",
    "-O3",
    "-shared",
    "-fPIC",
    "-w",
    "-fno-exceptions",
    "-fno-rtti",
    # Kernels do not observe the floating-point environment or errno;
    # neither option changes a result. -ffast-math would.
    "-fno-math-errno",
    "-fno-trapping-math",
    # A thread whose stack is full hits its guard page, and not the memory behind it.
    "-fstack-clash-protection",
    # As GPU compilers do by default.
    "-ffp-contract=fast",
    # An image uses its own definitions, even if the process has others of the same names.
    "-Wl,-Bsymbolic",
)
_FAMILY: Final = {
    # Unique symbols would be shared by all images, and keep them from being unloaded.
    "gcc": (
        "-fno-gnu-unique",
        "-fno-semantic-interposition",
        "-Wl,--as-needed",
        "-lm",
    ),
    "clang": ("-Wl,--as-needed", "-lm"),
    # Its C++ runtime would be built first, for a minute; kernels need nothing of it. And it
    # defines NDEBUG by itself, which is the user's decision.
    "zig": ("-nostdlib", "-fno-sanitize=undefined", "-UNDEBUG"),
}
LOOPS = True
"""Whether kernels with barriers may become loops; tests compare them with threads side by side."""
NATIVE: Final = "native"
"""The processor that this runs on, as ``-march`` names it."""
_NATIVE: Final = "-march=native"
_TUNING: Final = {
    # Limits of the optimiser, which change no result; a compiler that lacks one of them
    # gets none of them. They are for loops over a block's threads that become vectors.
    "gcc": tuple(
        f"--param={name}={value}"
        for name, value in {
            # `if (x >= width || y >= height) return;` stays two branches: the loop over x is
            # split at the first, and the second leaves it.
            "logical-op-non-short-circuit": 0,
            "max-unswitch-insns": 500,
            # One for each pair of a pointer read and a pointer written.
            "vect-max-version-for-alias-checks": 64,
            # A loop inside of a thread must be unrolled, or the loop over threads stays scalar.
            # GCC ignores `#pragma unroll`, and its own pragma takes no template's parameter, and
            # unrolls without end a loop of no constant count.
            "max-completely-peel-times": 128,
            "max-completely-peeled-insns": 1000,
        }.items()
    ),
    "clang": (),
    "zig": (),
}
# A link with no more than a kernel may need: the C++ library and the start files take 13 of 34 ms
# to read. What needs more (a virtual function, a global object, -fopenmp) is made again without.
# And fewer pages: an image is read, written and mapped each time that it is loaded.
_LEAN: Final = ("-nostdlib", "-Wl,-z,defs", "-Wl,-z,noseparate-code", "-Wl,-z,norelro")
_LEAN_LIBRARIES: Final = ("-lgcc", "-lc")
_FEATURES: Final = re.compile(
    r"sse|ssse|avx|fma|bmi|abm|popcnt|f16c|movbe|aes|vaes|pclmul|vpclmul|gfni|sha|adx|lzcnt|rdrnd|"
    r"fp|asimd|sve|sme|atomics|crc32|lrcpc|dcp|i8mm|bf16|flagm"
)
_NOT_TAKEN: Final = re.compile(r"-o.*|--output.*|-[cSE]|-MM?|-fsyntax-only|-###|--help|--version")
# Indented lines belong to the line before: g++ 15 lists its reasons that way.
_ERROR: Final = re.compile(r"(?!\s).*(?:error:|undefined (?:reference|symbol))")
_LINK_ERROR: Final = re.compile(
    r".*(?:multiple definition|undefined (?:reference|symbol)|duplicate symbol)"
)


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
    given, macros = _dialect.split_options(request.options)
    macros += request.macros
    for option in filter(_NOT_TAKEN.fullmatch, given):
        message = f"compile: the option {option!r} says what is made, or where, which hal does"
        raise InvalidArgumentError(message)
    options = [*_OPTIONS, *_FAMILY[compiler.family], *given]
    if march != NATIVE:
        options.append(f"-march={march}")
    if request.part:
        options = [*filterfalse(_is_for_linker, options), "-c"]
    if compiler.family == "zig" and not any(option.startswith("-g") for option in given):
        # Otherwise it writes the work directory's name into the image.
        options.append("-g0")
    folders = [str(Path(folder).absolute()) for folder in request.include_directories]
    wanted = [_NATIVE] if march == NATIVE else []
    foreign = ""
    if request.has_includes:
        with _toolchain.work_directory() as directory:
            given = [*options, *_include_options(request, directory, folders)]
            text = f'{macros}#line 1 "{SOURCE}"\n{request.source}\n'
            foreign = _preprocess.run(text, compiler, given, directory)
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
        "\0".join(
            [_masked_loads.REMEDY, *_TUNING[compiler.family], *_LEAN, *options, *folders],
        ),
        debug,
    )

    def make() -> tuple[bytes, str]:
        others = _preprocess.foreign_text(foreign)
        if "cooperative_groups" in request.source:
            others += dialect.texts()[dialect.GROUPS]
        with _toolchain.work_directory() as directory:
            # The user's text: messages quote its lines, and debuggers show them.
            source = (Path(debug).absolute() if debug else directory) / f"{key[:16]}.cpp"
            source.write_text(request.source, encoding="utf-8")
            _headers.write(directory)
            flags = [*options, *_include_options(request, directory, folders)]
            preprocess = functools.partial(
                _preprocess.run, compiler=compiler, options=[*wanted, *flags], directory=directory
            )
            expand = functools.partial(_expanded, preprocess=preprocess)
            text = _dialect.rewrite(request, others, features, loops=LOOPS, expand=expand)
            try:
                image, log = _run(request, compiler, wanted, flags, directory, source, text)
            except own(CompilationError):
                # The error must be the user's, not one of what was made of a kernel with barriers.
                plain = _dialect.rewrite(request, others, features, loops=False)
                if text == plain:
                    raise
                image, log = _run(request, compiler, wanted, flags, directory, source, plain)
        _check_shared_memory(request, image, log)
        return image, log

    # A debugger wants the source beside the image: make both.
    return _build.CACHE.image(None if debug else key, make)


def _expanded(
    request: CompileRequest, head: str, preprocess: Callable[[str], str]
) -> CompileRequest | None:
    """Return a request whose source has no macros and no includes, if that can be."""
    headers = "\n".join(_headers.all_texts().values())
    macros = _dialect.definitions(request)
    text = _preprocess.question(request, head, macros, headers)
    output = preprocess(text) if text else ""
    return _preprocess.answer(request, headers, output) if output else None


@functools.cache
def _own_texts() -> str:
    """Return a key of everything that goes into an image besides the request."""
    code = [cast("InspectLoader", sys.modules[name].__loader__) for name in _dialect.MODULES]
    sources = [
        loader.get_source(name) or "" for loader, name in zip(code, _dialect.MODULES, strict=True)
    ]
    return _build.CACHE.key(*sources, *_headers.all_texts().values(), *dialect.texts().values())


def _check_shared_memory(request: CompileRequest, image: bytes, log: str) -> None:
    """Raise `CompilationError` if a kernel declares more shared memory than a block has."""
    if request.part or "__shared__" not in request.source:
        return
    symbols = _image.read_symbols(image)
    errors = []
    for entry in request.entries:
        size = _image.shared_memory(symbols, entry.name)
        if size > _image.MAX_SHARED_MEMORY:
            errors.append(
                f"{request.filename}:{entry.line}: error: kernel '{entry.name}': it declares "
                f"{size:,} bytes of __shared__ memory, and a block has {_image.MAX_SHARED_MEMORY:,}"
            )
    if errors:
        raise CompilationError.from_log(f"{request.filename} does not compile", errors, log)


def link_images(parts: Sequence[tuple[str, bytes]]) -> tuple[bytes, str]:
    """Return one image of object files and the names of their sources, and the linker's log.

    Raises `CompilationError` with that log.
    """
    compiler = _toolchain.find_compiler()
    with (
        _system.refusals("the compiled sources cannot be linked"),
        _toolchain.work_directory() as directory,
    ):
        target = directory / "image.so"
        names = [directory / f"part{index}.o" for index in range(len(parts))]
        for name, (_, part) in zip(names, parts, strict=True):
            name.write_bytes(part)
        status, log = _toolchain.run_compiler(
            [
                *compiler.cxx,
                "-shared",
                "-fPIC",
                *map(str, names),
                "-o",
                str(target),
                "-Wl,-Bsymbolic",
                # Found now, and not at loading. zig's linker has no C library to look in.
                *(() if compiler.family == "zig" else ("-Wl,--no-undefined",)),
                *filter(_is_for_linker, _FAMILY[compiler.family]),
            ],
            directory,
        )
        for name, (source, _) in zip(names, parts, strict=True):
            log = log.replace(str(name), source)
        log = log.replace(f"{directory}/", "")
        if status == 0 and target.is_file():
            return target.read_bytes(), log
    errors = [line for line in log.splitlines() if _LINK_ERROR.match(line)]
    raise CompilationError.from_log("the compiled sources cannot be linked", errors, log)


def _is_for_linker(option: str) -> bool:
    return option in {"-shared", "-nostdlib"} or option.startswith(("-Wl,", "-l"))


def _include_options(request: CompileRequest, directory: Path, folders: list[str]) -> list[str]:
    """Return the options for `folders`, after one with the dialect's own headers if need be."""
    if "include" in request.source or request.has_includes:
        folders = [str(write_headers(directory)), *folders]
    return [option for folder in folders for option in ("-I", folder)]


def write_headers(directory: Path) -> Path:
    """Write the dialect's own headers below a directory; return their folder."""
    folder = directory / "hal_include"
    for name, text in dialect.texts().items():
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
    return folder


def _run(
    request: CompileRequest,
    compiler: _toolchain.Compiler,
    wanted: list[str],
    options: list[str],
    directory: Path,
    source: Path,
    text: str,
) -> tuple[bytes, str]:
    """Run the compiler on a text made of a request's; return its output and its log.

    Repeats the run without the `wanted` options if it does not know them.
    """
    target = directory / "image.so"
    text = text.replace(f'"{SOURCE}"', _dialect.quote(str(source)))
    (directory / "image.cpp").write_text(text, encoding="utf-8")
    log = ""
    wanted = [*wanted, *_TUNING[compiler.family]]
    is_lean = compiler.family == "gcc" and not request.part
    while True:
        # Libraries count only after the files that need them.
        command = [*compiler.cxx, *wanted, str(directory / "image.cpp"), "-o", str(target)]
        given = [*_LEAN, *options, *_LEAN_LIBRARIES] if is_lean else options
        dump = directory / "loops"
        if compiler.family == "gcc" and _masked_loads.REMEDY not in wanted:
            command.append(f"{_masked_loads.DUMP}={dump}")
        status, log = _toolchain.run_compiler([*command, *given], directory)
        if status == 0 and target.is_file():
            loops = dump.read_text(errors="replace") if dump.exists() else ""
            if not _masked_loads.may_be_grouped(loops):
                return target.read_bytes(), _named(log, request, directory, source)
            dump.unlink()
            wanted.append(_masked_loads.REMEDY)
            continue
        if is_lean and "collect2: error" in log:
            is_lean = False
            continue
        left = wanted
        if "march" in log or "native" in log:
            left = [option for option in left if option != _NATIVE]
        if "--param" in log:
            left = [option for option in left if not option.startswith("--param")]
        if left == wanted:
            break
        wanted = left
    log = _named(log, request, directory, source)
    errors = [line for line in log.splitlines() if _ERROR.match(line)]
    raise CompilationError.from_log(f"{request.filename} does not compile", errors, log)


def _named(log: str, request: CompileRequest, directory: Path, source: Path) -> str:
    """Return a log with the user's file names."""
    return log.replace(str(source), request.filename).replace(f"{directory}/", "")
