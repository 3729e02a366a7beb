"""Make an image of a request: rewrite its source, and run the compiler."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from hal import dialect
from hal.errors import CompilationError
from hal.handlers import own
from hal.native import CompileRequest
from hal_cpu import (
    _dialect,
    _headers,
    _image,
    _masked_loads,
    _options,
    _preprocess,
    _system,
    _toolchain,
)
from hal_cpu._preprocess import SOURCE

# Indented lines belong to the line before: g++ 15 lists its reasons that way.
_ERROR: Final = re.compile(r"(?!\s).*(?:error:|undefined (?:reference|symbol))")
_LINK_ERROR: Final = re.compile(
    r".*(?:multiple definition|undefined (?:reference|symbol)|duplicate symbol)"
)


class Making(NamedTuple):
    """How an image is made.

    Attributes
    ----------
    request
        The source to compile.
    compiler
        What compiles it.
    wanted
        Options without which the run is repeated if the compiler does not know them.
    options
        All others, but for the folders.
    folders
        Where ``#include`` looks.
    features
        The processor's features that the image will need.
    loops
        Whether kernels with barriers may become loops.
    debug_name
        A file to leave the source in, or "".
    """

    request: CompileRequest
    compiler: _toolchain.Compiler
    wanted: Sequence[str]
    options: Sequence[str]
    folders: Sequence[str]
    features: str
    loops: bool
    debug_name: str

    def included(self, macros: str) -> str:
        """Return the preprocessor's output for the source."""
        with _toolchain.work_directory() as directory:
            text = f'{macros}#line 1 "{SOURCE}"\n{self.request.source}\n'
            return _preprocess.run(text, self.compiler, self._flags(directory), directory)

    def image(self, foreign: str) -> tuple[bytes, str]:
        """Return the image and the compiler's log; `foreign` is what `included` returned, or ""."""
        request = self.request
        others = _preprocess.foreign_text(foreign)
        if "cooperative_groups" in request.source:
            others += dialect.texts()[dialect.GROUPS]
        with _toolchain.work_directory() as directory:
            # The user's text: messages quote its lines, and debuggers show them.
            source = Path(self.debug_name or directory / "kernel.cpp")
            source.write_text(request.source, encoding="utf-8")
            _headers.write(directory)
            flags = self._flags(directory)

            def expand(asked: CompileRequest, head: str) -> CompileRequest | None:
                return self._expanded(asked, head, [*self.wanted, *flags], directory)

            text = _dialect.rewrite(request, others, self.features, loops=self.loops, expand=expand)
            try:
                image, log = self._run(flags, directory, source, text)
            except own(CompilationError):
                # The error must be the user's, not one of what was made of a kernel with barriers.
                plain = _dialect.rewrite(request, others, self.features, loops=False)
                if text == plain:
                    raise
                image, log = self._run(flags, directory, source, plain)
        _check_shared_memory(request, image, log)
        return image, log

    def _flags(self, directory: Path) -> list[str]:
        """Return the options, after them those for folders, the dialect's own headers' first."""
        folders = [*self.folders]
        if "include" in self.request.source or self.request.has_includes:
            folders = [str(_write_headers(directory)), *folders]
        return [*self.options, *(option for folder in folders for option in ("-I", folder))]

    def _expanded(
        self, asked: CompileRequest, head: str, flags: list[str], directory: Path
    ) -> CompileRequest | None:
        """Return a request whose source has no macros and no includes, if that can be."""
        headers = "\n".join(_headers.all_texts().values())
        macros = _dialect.definitions(asked)
        text = _preprocess.question(asked, head, macros, headers)
        output = _preprocess.run(text, self.compiler, flags, directory) if text else ""
        return _preprocess.answer(asked, headers, output) if output else None

    def _run(
        self, options: list[str], directory: Path, source: Path, text: str
    ) -> tuple[bytes, str]:
        """Run the compiler on a text made of a request's; return its output and its log.

        Repeats the run without the `wanted` options if it does not know them.
        """
        target = directory / "image.so"
        text = text.replace(f'"{SOURCE}"', _dialect.quote(str(source)))
        (directory / "image.cpp").write_text(text, encoding="utf-8")
        log = ""
        request, compiler = self.request, self.compiler
        wanted = [*self.wanted, *_options.TUNING[compiler.family]]
        is_lean = compiler.family == "gcc" and not request.part
        while True:
            # Libraries count only after the files that need them.
            command = [*compiler.cxx, *wanted, str(directory / "image.cpp"), "-o", str(target)]
            given = [*_options.LEAN, *options, *_options.LEAN_LIBRARIES] if is_lean else options
            dump = directory / "loops"
            if compiler.family == "gcc" and _options.REMEDY not in wanted:
                command.append(f"{_masked_loads.DUMP}={dump}")
            status, log = _toolchain.run_compiler([*command, *given], directory)
            if status == 0 and target.is_file():
                loops = dump.read_text(errors="replace") if dump.exists() else ""
                if not _masked_loads.may_be_grouped(loops):
                    return target.read_bytes(), _named(log, request, directory, source)
                dump.unlink()
                wanted.append(_options.REMEDY)
                continue
            if is_lean and "collect2: error" in log:
                is_lean = False
                continue
            left = wanted
            if "march" in log or "native" in log:
                left = [option for option in left if option != _options.MARCH_NATIVE]
            if "--param" in log:
                left = [option for option in left if not option.startswith("--param")]
            if left == wanted:
                break
            wanted = left
        log = _named(log, request, directory, source)
        errors = [line for line in log.splitlines() if _ERROR.match(line)]
        raise CompilationError.from_log(f"{request.filename} does not compile", errors, log)


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


def _write_headers(directory: Path) -> Path:
    """Write the dialect's own headers below a directory; return their folder."""
    folder = directory / "hal_include"
    for name, text in dialect.texts().items():
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
    return folder


def _named(log: str, request: CompileRequest, directory: Path, source: Path) -> str:
    """Return a log with the user's file names."""
    return log.replace(str(source), request.filename).replace(f"{directory}/", "")


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
                *filter(_options.is_for_linker, _options.FAMILY[compiler.family]),
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
