"""Compile portable source: without a device, for several targets, of several files at once."""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

import numpy as np

from hal import _registry, _sync
from hal._arguments import as_items, as_mapping, as_path, as_text, ask, shown
from hal._failure import placed
from hal._image_tables import read_definitions, read_image_table
from hal._kernel_output import UNTRACED, may_print, with_output
from hal._kernel_source import read_source, scan, type_table
from hal._lifecycle import refuse_after_fork
from hal._programs import Program, ProgramImage, is_device, target_of
from hal.errors import (
    ArgumentTypeError,
    CompilationError,
    HalError,
    InvalidArgumentError,
    UnimplementedError,
)
from hal.native import CompiledImage, CompileRequest, NativeCompiler

if TYPE_CHECKING:
    from hal._device import Device

__all__ = [
    "Includes",
    "Options",
    "Source",
    "Target",
    "Trace",
    "check_options",
    "compile_program",
    "prepare",
]

_Result = TypeVar("_Result")

_LONGEST_PATH: Final = 4096
_PATH: Final = re.compile(r"[^\n{};]*(?:[/\\][^\n{};]+|\.\w{1,5})")
"""What a source's text looks like that is the name of a file."""

Source: TypeAlias = str | Mapping[str, str]
Target: TypeAlias = "str | Device"
Options: TypeAlias = Sequence[str] | Mapping[str, Sequence[str]]
Includes: TypeAlias = Sequence[str | os.PathLike[str]]
Trace: TypeAlias = bool | str


def compile_program(
    source: Source,
    *,
    target: Target | Sequence[Target],
    filename: str = "kernel.cpp",
    defines: Mapping[str, object] | None = None,
    options: Options = (),
    include_directories: Includes = (),
    trace: Trace = False,
) -> Program:
    """Compile portable kernel source (docs/kernels.md) for targets; blocks, and needs no device.

    Parameters
    ----------
    source
        A text; or several, by the names that errors call them. Those are
        compiled side by side and linked to one image for each target, so that
        each function and variable at global scope is defined once, unless it
        is ``static``.
    target
        A backend and its own name of what to compile for: ``"cuda:sm_90"``,
        ``"hip:gfx942"``, ``"cpu"``; a device, for all of its kind; or a list
        of those, which are compiled for side by side.
    filename
        What errors call a single source.
    defines
        Macros.
    options
        What the backend's compiler gets as it is; by backend, if there are
        several: ``{"cuda": ["--use_fast_math"]}``.
    include_directories
        Where ``#include`` looks, in order.
    trace
        Whether ``HAL_TRACE(value)`` logs, in a single source: True for all
        threads, or the condition for a thread, such as ``"threadIdx.x == 0"``.

    Raises
    ------
    CompilationError
        The compiler or the linker refuses it; with the user's lines and the log.
    InvalidArgumentError
        There is no such target, it is given twice, or the source has no
        kernel, or breaks a rule of the dialect; several are to trace.
    BackendNotFoundError, BackendUnavailableError, PluginError
        The backend is not installed, its bindings are not, or it is broken.
    UnimplementedError
        It compiles nothing without a device, its compiler is not here, or it
        links nothing.
    """
    refuse_after_fork()
    wanted = _check_targets(target)
    compilers = [_registry.compiler_of(name) for name, _ in wanted]
    by_backend = check_options(options, [name for name, _ in wanted])
    requests = [
        prepare(source, filename, defines, by_backend.get(name, ()), include_directories, trace)
        for name, _ in wanted
    ]
    tasks: list[Callable[[], CompiledImage]] = [
        _task(compiler, request, name, architecture)
        for compiler, (name, architecture), batch in zip(compilers, wanted, requests, strict=True)
        for request in batch
    ]
    parts = _run_all(tasks)
    images: list[ProgramImage] = []
    for compiler, (name, _), batch in zip(compilers, wanted, requests, strict=True):
        mine = [parts.pop(0) for _ in batch]
        if len(mine) == 1:
            images.append(describe(name, mine[0]))
        else:
            linked = _link(compiler, mine, batch, name)
            suffixes = [_suffix(index, len(batch)) for index in range(len(batch))]
            images.append(describe(name, linked, suffixes))
    names = [each.name for each in images]
    if len(set(names)) < len(names):
        message = f"two of the targets are the same: {', '.join(names)}; give each once"
        raise InvalidArgumentError(message)
    first = requests[0]
    metadata = {
        "filenames": "\n".join(each.filename for each in first),
        "defines": "\n".join(
            f"{key}={value}" for key, value in ({} if defines is None else defines).items()
        ),
        "options": "\n".join(
            f"{name}: {option}" for name, given in by_backend.items() for option in given
        ),
    }
    return Program(images, [each.name for one in first for each in one.entries], metadata)


def prepare(
    source: Source,
    filename: str,
    defines: Mapping[str, object] | None,
    options: Sequence[str],
    include_directories: Includes,
    trace: Trace,
) -> list[CompileRequest]:
    """Check what a user gives to a compiler, and return a request for each source."""
    condition = _check_trace(trace)
    if "\n" in condition or "\r" in condition:
        message = "compile: the condition of trace has a line break"
        raise InvalidArgumentError(message)
    if not isinstance(source, Mapping):
        source = {as_text(filename, "compile: a filename is text"): source}
    given_sources = as_mapping(source, "compile: sources by name are a mapping")
    sources = {
        as_text(name, "compile: a filename is text"): as_text(text, _source_rule(text))
        for name, text in given_sources.items()
    }
    options = check_texts("options", options)
    includes = tuple(
        [
            as_path(each, "compile: each of include_directories")
            for each in as_items(include_directories, "compile: include_directories is a list")
        ]
    )
    if not sources:
        message = "compile: there is no source"
        raise InvalidArgumentError(message)
    if condition and len(sources) > 1:
        message = (
            "compile: several sources are linked, and only one by itself can trace; compile them "
            "as one text, or without trace"
        )
        raise InvalidArgumentError(message)
    macros = {
        as_text(key, "compile: a macro's name is text"): ask(
            str, value, f"compile: defines[{key!r}]"
        )
        for key, value in as_mapping(
            {} if defines is None else defines, "compile: defines is a mapping"
        ).items()
    }
    _check_characters(
        [
            *(("a filename", name) for name in sources),
            *((f"{name}: the source", text) for name, text in sources.items()),
            *(("the name of a macro", key) for key in macros),
            *((f"defines[{key!r}]", value) for key, value in macros.items()),
            *(("an option", option) for option in options),
            ("the condition of trace", condition),
        ]
    )
    requests: list[CompileRequest] = []
    owners: dict[str, str] = {}
    for index, (name, text) in enumerate(sources.items()):
        prelude, printing, given = UNTRACED, text, macros
        # What a function of one source prints, a kernel of another one would have to know.
        if len(sources) == 1 and may_print(text, macros, condition):
            found = scan(text, filename=name)
            prelude, printing, given = with_output(text, found, macros, condition)
        entries, plain = read_source(printing, filename=name)
        if not entries and len(sources) == 1:
            message = f"{name} defines no kernel: no __global__ function with a body was found"
            if _looks_like_path(text):
                message = (
                    f"compile takes a source's text, and {shown(text)} is a path; read the file: "
                    f"compile(pathlib.Path({shown(text)}).read_text(), filename={shown(text)})"
                )
            raise InvalidArgumentError(message)
        for entry in entries:
            other = owners.setdefault(entry.name, name)
            if other != name:
                message = (
                    f"{name}:{entry.line}: kernel '{entry.name}': {other} defines it already; "
                    "rename one, or compile the sources apart"
                )
                raise InvalidArgumentError(message)
        requests.append(
            CompileRequest(
                source=plain,
                filename=name,
                entries=entries,
                type_table=type_table(entries, _suffix(index, len(sources))),
                defines=given,
                options=options,
                include_directories=includes,
                part=len(sources) > 1,
                prelude=prelude,
            )
        )
    if not owners:
        message = f"no kernel is defined in {', '.join(sources)}"
        raise InvalidArgumentError(message)
    return requests


def describe(
    backend: str, compiled: CompiledImage, suffixes: Sequence[str] = ("",)
) -> ProgramImage:
    """Return an image with what it tells of its kernels."""
    try:
        kernels = read_image_table(compiled.image, suffixes)
    except InvalidArgumentError:
        kernels = None  # whoever loads it is told
    return ProgramImage(
        backend,
        compiled.target,
        compiled.image,
        None if kernels is None else MappingProxyType(kernels),
        compiled.log,
        MappingProxyType(dict(compiled.properties)),
    )


def check_texts(what: str, values: object) -> tuple[str, ...]:
    """Return a list of texts; a single text is none."""
    items = as_items(values, f"compile: {what} is a sequence of texts", ordered=True)
    return tuple([as_text(each, f"compile: {what} is text") for each in items])


def _check_trace(trace: object) -> str:
    """Return the condition of the threads that trace; "" for none."""
    if isinstance(trace, (bool, np.bool_)):
        return "true" if trace else ""
    return as_text(trace, "compile: trace is True, False or a condition")


def _source_rule(source: object) -> str:
    """Return what a source is, and how the text of a file is had."""
    hint = ""
    if isinstance(source, os.PathLike):
        hint = ": pass path.read_text(), and the path as filename="
    return f"compile: a source is text{hint}"


def _looks_like_path(text: str) -> bool:
    """Return whether a text without a kernel is rather the name of a file."""
    return len(text) <= _LONGEST_PATH and _PATH.fullmatch(text) is not None


def _check_characters(texts: Iterable[tuple[str, str]]) -> None:
    """Raise unless files can hold these texts, each behind what it is: no lone surrogate."""
    for what, text in texts:
        try:
            text.encode()
        except UnicodeEncodeError as error:
            line = text.count("\n", 0, error.start) + 1
            column = error.start - text.rfind("\n", 0, error.start)
            message = (
                f"compile: {what} has the lone surrogate {text[error.start]!r} in line {line}, "
                f"column {column}, which no compiler reads; decode the text with its own encoding"
            )
            raise InvalidArgumentError(message) from None


def _suffix(index: int, count: int) -> str:
    """Return what tells a source's table from those of the others it is linked with."""
    return f"_{index}" if count > 1 else ""


def _check_targets(target: object) -> list[tuple[str, str]]:
    """Return backend and architecture of each target."""
    given: Sequence[Any] = [target]
    if isinstance(target, (list, tuple)):
        given = as_items(target, "compile: the targets are a list")
    if not given:
        message = "compile: there is no target; give one such as 'cpu' or 'cuda:sm_90'"
        raise InvalidArgumentError(message)
    wanted: list[tuple[str, str]] = []
    for each in given:
        text = each
        if isinstance(each, str):
            text = as_text(each, "a target is text")
        else:
            if not is_device(each):
                message = (
                    "compile: a target is a string such as 'cpu' or 'cuda:sm_90', or a device, "
                    f"not {type(each).__name__}"
                )
                raise ArgumentTypeError(message)
            text = target_of(each)
        name, _, architecture = text.partition(":")
        if (name, architecture) in wanted:
            message = f"compile: the target {text!r} is given twice"
            raise InvalidArgumentError(message)
        wanted.append((name, architecture))
    return wanted


def check_options(
    options: object, backends: Sequence[str], *, only: bool = True
) -> dict[str, Sequence[str]]:
    """Return the options of each backend; with `only` there may be none for others."""
    if not isinstance(options, Mapping):
        return dict.fromkeys(backends, check_texts("options", options))
    found: dict[str, Sequence[str]] = dict.fromkeys(backends, ())
    for key, given in as_mapping(options, "compile: options by backend are a mapping").items():
        name = as_text(key, "compile: options are by the name of a backend")
        if only and name not in backends:
            message = (
                f"compile: there are options for {shown(name)}, and none of the targets is of that "
                f"backend: {', '.join(backends)}"
            )
            raise InvalidArgumentError(message)
        found[name] = check_texts(f"options[{name!r}]", given)
    return found


def _task(
    compiler: NativeCompiler, request: CompileRequest, backend: str, architecture: str
) -> Callable[[], CompiledImage]:
    def task() -> CompiledImage:
        try:
            return compiler.compile(request, architecture)
        except HalError as error:
            raise placed(f"{backend}:{architecture}".rstrip(":"), error) from error

    return task


def _link(
    compiler: NativeCompiler, parts: list[CompiledImage], batch: list[CompileRequest], backend: str
) -> CompiledImage:
    """Link the parts for one target; the log is that of all steps."""
    target = parts[0].target
    owners: dict[str, str] = {}
    for part, request in zip(parts, batch, strict=True):
        # Not every linker refuses it.
        for name in sorted(read_definitions(part.image)):
            other = owners.setdefault(name, request.filename)
            if other != request.filename:
                message = (
                    f"{backend}:{target}: {request.filename} defines {name!r}, and {other} does "
                    "already; make it static or rename it"
                )
                raise CompilationError(message, log=message)
    try:
        linked = compiler.link(parts, target)
    except UnimplementedError as error:
        message = (
            f"{backend}:{target}: several sources cannot become one image there ({error}); compile "
            "each source by itself, or all of them as one text"
        )
        raise UnimplementedError(message) from error
    except HalError as error:
        raise placed(f"{backend}:{target}", error) from error
    log = "".join(each.log for each in (*parts, linked))
    return CompiledImage(linked.target, linked.image, log, linked.properties)


def _run_all(tasks: Sequence[Callable[[], _Result]]) -> list[_Result]:
    """Call all, side by side on as many threads as there are processors, and return the results.

    Raises what the first of them in the list that failed has raised, once all
    have ended.
    """
    if len(tasks) == 1:
        return [tasks[0]()]
    waiting = deque(enumerate(tasks))
    results: dict[int, _Result] = {}
    errors: dict[int, BaseException] = {}
    count = min(len(tasks), os.cpu_count() or 1)
    gates = [_sync.Gate() for _ in range(count)]

    def work(gate: _sync.Gate) -> None:
        try:
            while True:
                try:
                    index, task = waiting.popleft()
                except IndexError:
                    return
                try:
                    results[index] = task()
                except BaseException as error:  # noqa: BLE001 - it is raised where all are waited for
                    errors[index] = error
        finally:
            gate.open()

    try:
        for gate in gates:
            _sync.start_thread("hal compile", lambda gate=gate: work(gate))  # type: ignore[misc]
        for gate in gates:
            while not gate.wait(0.1):
                pass
    except BaseException:
        waiting.clear()  # nobody wants the rest any more
        raise
    for index in sorted(errors):
        raise errors[index]
    return [results[index] for index in range(len(tasks))]
