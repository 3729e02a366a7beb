"""Compile portable source without a device, for several targets, from one or several files."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeAlias, TypeVar

from hal._backends import registry
from hal._base import sync
from hal._base.failures import placed
from hal._base.process import refuse_after_fork
from hal._programs.compile_errors import explained
from hal._programs.image_tables import read_definitions, read_image_table
from hal._programs.program import Program, ProgramImage, Target, is_device, target_of
from hal._programs.requests import Includes, Options, Source, Trace, check_options, prepare, suffix
from hal.arguments import as_items, as_text
from hal.errors import (
    ArgumentTypeError,
    CompilationError,
    HalError,
    InvalidArgumentError,
    UnimplementedError,
)
from hal.native import CompiledImage, CompileRequest, NativeCompiler

__all__ = ["TargetLike", "compile_program", "describe", "explaining"]

_Result = TypeVar("_Result")

TargetLike: TypeAlias = str | Target


def compile_program(
    source: Source,
    *,
    target: TargetLike | Sequence[TargetLike],
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
        The text; or several texts, by the names that errors use for them.
        Several are compiled side by side and linked into one image per target,
        so each function and variable at global scope must be defined only once,
        unless it is ``static``.
    target
        A backend and its own name of an architecture: ``"cuda:sm_90"``,
        ``"hip:gfx942"``, ``"cpu"``; a device, for every device of its kind; or
        a list of those, which are compiled side by side.
    filename
        The name that errors use for a single source.
    defines
        Macros.
    options
        Passed to the backend's compiler unchanged; by backend, if there are
        several: ``{"cuda": ["--use_fast_math"]}``.
    include_directories
        Where ``#include`` looks, in order.
    trace
        Whether ``HAL_TRACE(value)`` logs, in a single source: True for all
        threads, or the condition for a thread, such as ``"threadIdx.x == 0"``.

    Raises
    ------
    CompilationError
        The compiler or the linker refuses the source; has the user's lines and the log.
    InvalidArgumentError
        A target does not exist or is given twice; the source has no kernel or
        breaks a rule of the dialect; or `trace` is given with several sources.
    BackendNotFoundError, BackendUnavailableError, PluginError
        The backend is not installed, its bindings are missing, or it is broken.
    UnimplementedError
        The backend cannot compile without a device, its compiler is missing,
        or it cannot link.
    """
    refuse_after_fork()
    wanted = _check_targets(target)
    compilers = [registry.compiler_of(name) for name, _ in wanted]
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
            suffixes = [suffix(index, len(batch)) for index in range(len(batch))]
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


def describe(
    backend: str, compiled: CompiledImage, suffixes: Sequence[str] = ("",)
) -> ProgramImage:
    """Return an image with what it tells about its kernels."""
    try:
        kernels = read_image_table(compiled.image, suffixes)
    except InvalidArgumentError:
        kernels = None  # loading reports the error
    return ProgramImage(
        backend,
        compiled.target,
        compiled.image,
        None if kernels is None else MappingProxyType(kernels),
        compiled.log,
        MappingProxyType(dict(compiled.properties)),
    )


def _check_targets(target: object) -> list[tuple[str, str]]:
    """Return the backend and the architecture of each target."""
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


def _task(
    compiler: NativeCompiler, request: CompileRequest, backend: str, architecture: str
) -> Callable[[], CompiledImage]:
    def task() -> CompiledImage:
        try:
            return explaining(request, lambda: compiler.compile(request, architecture))
        except HalError as error:
            raise placed(f"{backend}:{architecture}".rstrip(":"), error) from error

    return task


def explaining(request: CompileRequest, compile_it: Callable[[], _Result]) -> _Result:
    """Call a backend's compiler and explain its errors in the words of the dialect."""
    try:
        return compile_it()
    except CompilationError as error:
        told = explained(error, request)
        raise told from (None if told is not error else error.__cause__)


def _link(
    compiler: NativeCompiler, parts: list[CompiledImage], batch: list[CompileRequest], backend: str
) -> CompiledImage:
    """Link the parts for one target; the log covers all steps."""
    target = parts[0].target
    owners: dict[str, str] = {}
    for part, request in zip(parts, batch, strict=True):
        # Not every linker refuses a name that is defined twice.
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
    """Call all functions on as many threads as there are processors, and return the results.

    If some fail, raises the error of the first of them in the list, once all
    have ended.
    """
    if len(tasks) == 1:
        return [tasks[0]()]
    waiting = deque(enumerate(tasks))
    results: dict[int, _Result] = {}
    errors: dict[int, BaseException] = {}
    count = min(len(tasks), os.cpu_count() or 1)
    gates = [sync.Gate() for _ in range(count)]

    def work(gate: sync.Gate) -> None:
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
            sync.start_thread("hal compile", lambda gate=gate: work(gate))  # type: ignore[misc]
        for gate in gates:
            while not gate.wait(0.1):
                pass
    except BaseException:
        waiting.clear()  # nobody needs the rest
        raise
    for index in sorted(errors):
        raise errors[index]
    return [results[index] for index in range(len(tasks))]
