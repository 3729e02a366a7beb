"""Compile portable source for devices or for targets, from one or several files."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias, TypeVar

from hal._backends import registry
from hal._base import sync
from hal._base.failures import placed
from hal._base.process import refuse_after_fork
from hal._programs.compile_errors import explained
from hal._programs.image_tables import read_definitions, read_image_table
from hal._programs.images import check_distinct
from hal._programs.program import OpenDevice, Program, is_device, target_of
from hal._programs.program_image import ProgramImage
from hal._programs.requests import (
    Includes,
    Options,
    Source,
    TraceOption,
    check_options,
    prepare,
    suffix,
)
from hal.arguments import as_items, as_text
from hal.errors import (
    ArgumentTypeError,
    CompilationError,
    HalError,
    InvalidArgumentError,
    UnimplementedError,
)
from hal.handlers import own
from hal.native import CompiledImage, CompileRequest, NativeCompiler

_Result = TypeVar("_Result")

TargetLike: TypeAlias = str | OpenDevice


def compile_program(
    source: Source,
    *,
    target: TargetLike | Sequence[TargetLike],
    filename: str = "kernel.cpp",
    defines: Mapping[str, object] | None = None,
    options: Options = (),
    include_directories: Includes = (),
    trace: TraceOption = None,
    omitted_output: str = "print",
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
        Macros, with text or numbers; True and False are 1 and 0.
    options
        Passed to the backend's compiler unchanged; by backend, if there are
        several: ``{"cuda": ["--use_fast_math"]}``.
    include_directories
        Where ``#include`` looks, in order.
    trace
        Whether ``HAL_TRACE(value)`` logs, in a single source: True for all
        threads, or the condition for a thread, such as ``"threadIdx.x == 0"``. With None the
        variable ``HAL_TRACE_KERNELS`` of the environment says so: ``1`` for all, ``0`` or
        empty for no threads, or the condition; the driver prints then what no `Output` takes.
    omitted_output
        What becomes of the output of a run without an `Output`: ``"print"``, the driver's
        own printf prints it, or ``"discard"``.

    Raises
    ------
    CompilationError
        The compiler or the linker refuses the source; has the user's lines and the log.
    InvalidArgumentError
        A target does not exist or is given twice; the source has no kernel or
        breaks a rule of the dialect; or several sources are to trace or to discard output.
    BackendNotFoundError, BackendUnavailableError, PluginError
        The backend is not installed, its bindings are missing, or it is broken.
    UnimplementedError
        The backend has no compiler, that is missing here, or it cannot link.
    """
    refuse_after_fork()
    wanted = _check_targets(target)
    compilers = [registry.compiler_of(name) for name, _ in wanted]
    by_backend = check_options(options, [name for name, _ in wanted])
    requests = prepare(source, filename, defines, include_directories, trace, omitted_output)
    builds = []
    for compiler, (name, architecture) in zip(compilers, wanted, strict=True):
        given = [replace(each, options=by_backend[name]) for each in requests]
        place = f"{name}:{architecture}".rstrip(":")
        builds.append(_Build(name, compiler, architecture, given, place))
    images = _build_all(builds)
    check_distinct(images)
    macros = {} if defines is None else defines
    told = [f"{name}: {option}" for name, options in by_backend.items() for option in options]
    metadata = {
        "filenames": "\n".join(each.filename for each in requests),
        "defines": "\n".join(f"{key}={value}" for key, value in macros.items()),
        "options": "\n".join(told),
    }
    return Program(images, [each.name for one in requests for each in one.entries], metadata)


def compile_for(
    device: OpenDevice, requests: Sequence[CompileRequest], options: tuple[str, ...]
) -> ProgramImage:
    """Compile requests to one image for a device; raises as `Device.compile`."""
    try:
        compiler = registry.compiler_of(device.backend)
        target = compiler.target_of(device.info)
        if "compile" not in device.features:
            compiler.compile(CompileRequest("", "", (), ""), target)  # it says what is missing
            message = "it does not declare the feature 'compile'"
            raise UnimplementedError(message)
    except own(CompilationError, InvalidArgumentError, UnimplementedError) as error:
        raise UnimplementedError(
            f"{device._name} compiles no kernel source ({error}); load an image with device.load()"
        ) from error
    given = [replace(each, options=options) for each in requests] if options else requests
    (image,) = _build_all([_Build(device.backend, compiler, target, given, "")])
    return image


def compile_all(
    sources: Iterable[Source],
    *,
    target: TargetLike | Sequence[TargetLike],
    defines: Mapping[str, object] | None = None,
    options: Options = (),
    include_directories: Includes = (),
) -> list[Program]:
    """Compile sources that have nothing to do with each other, as `compile` does each; blocks.

    As many are in work at once as there are processors. Returns a program for each, in the same
    order. If some fail, all others are compiled nonetheless, and are in the backend's cache when
    they are asked for again. Then raises the error of the first, which says which source of
    the list it is (``source 0``), with a note for each of the others.
    """

    def one(index: int, source: Source) -> Program:
        with _placing(f"source {index}"):
            return compile_program(
                source,
                target=target,
                defines=defines,
                options=options,
                include_directories=include_directories,
            )

    given = as_items(sources, "compile_all: sources are a list", ordered=True)
    return _run_all([partial(one, index, each) for index, each in enumerate(given)])


class _Build(NamedTuple):
    backend: str
    compiler: NativeCompiler
    target: str
    requests: Sequence[CompileRequest]
    place: str  # what its errors begin with; empty where the user named no target


def _build_all(builds: Sequence[_Build]) -> list[ProgramImage]:
    """Return an image for each target; all sources are compiled side by side."""
    tasks = [partial(_compile, build, each) for build in builds for each in build.requests]
    parts = iter(_run_all(tasks))
    return [_join(build, [next(parts) for _ in build.requests]) for build in builds]


def _compile(build: _Build, request: CompileRequest) -> CompiledImage:
    """Compile one source, and explain the compiler's errors in the words of the dialect."""
    with _placing(build.place):
        try:
            return build.compiler.compile(request, build.target)
        except own(CompilationError) as error:
            told = explained(error, request)
            raise told from (None if told is not error else error.__cause__)


@contextmanager
def _placing(place: str) -> Iterator[None]:
    """Have errors begin with the target that they are of."""
    try:
        yield
    except own(HalError) as error:
        if not place:
            raise
        raise placed(place, error) from error


def _join(build: _Build, parts: list[CompiledImage]) -> ProgramImage:
    """Return the image of a target's compiled parts, with what it tells about its kernels."""
    compiled, suffixes = parts[0], [suffix(index, len(parts)) for index in range(len(parts))]
    if len(parts) > 1:
        with _placing(build.place and f"{build.backend}:{compiled.target}"):
            compiled = _link(build, parts)
    try:
        kernels = read_image_table(compiled.image, suffixes)
    except own(InvalidArgumentError):
        kernels = None  # loading reports the error
    return ProgramImage(
        build.backend,
        compiled.target,
        compiled.image,
        None if kernels is None else MappingProxyType(kernels),
        compiled.log,
        MappingProxyType(dict(compiled.properties)),
    )


def _check_targets(target: object) -> list[tuple[str, str]]:
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
                raise ArgumentTypeError(
                    "compile: a target is a string such as 'cpu' or 'cuda:sm_90', or a device, "
                    f"not {type(each).__name__}"
                )
            text = target_of(each)
        name, _, architecture = text.partition(":")
        if (name, architecture) in wanted:
            raise InvalidArgumentError(f"compile: the target {text!r} is given twice")
        wanted.append((name, architecture))
    return wanted


def _link(build: _Build, parts: list[CompiledImage]) -> CompiledImage:
    """Link the parts for one target; the log covers all steps."""
    owners: dict[str, str] = {}
    for part, request in zip(parts, build.requests, strict=True):
        # Not every linker refuses a name that is defined twice.
        for name in sorted(read_definitions(part.image)):
            other = owners.setdefault(name, request.filename)
            if other != request.filename:
                message = (
                    f"{request.filename} defines {name!r}, and {other} does already; make it "
                    "static or rename it"
                )
                raise CompilationError(message, log=message)
    try:
        linked = build.compiler.link(parts, parts[0].target)
    except own(UnimplementedError) as error:
        raise UnimplementedError(
            f"several sources cannot become one image there ({error}); compile each source by "
            "itself, or all of them as one text"
        ) from error
    log = "".join(each.log for each in (*parts, linked))
    return CompiledImage(linked.target, linked.image, log, linked.properties)


def _run_all(tasks: Sequence[Callable[[], _Result]]) -> list[_Result]:
    """Call all functions on as many threads as there are processors, and return the results.

    If some fail, raises the error of the first of them in the list, once all
    have ended, with a note for each of the others. After an interrupt no further one begins.
    """
    if len(tasks) == 1:
        return [tasks[0]()]
    waiting = deque(enumerate(tasks))
    results: dict[int, _Result] = {}
    errors: dict[int, BaseException] = {}
    count = min(len(tasks), os.cpu_count() or 1)
    ended = [sync.Lock() for _ in range(count)]  # each free once its thread has ended

    def work(end: Callable[[], None]) -> None:
        try:
            while True:
                try:
                    index, task = waiting.popleft()
                except own(IndexError):
                    return
                try:
                    results[index] = task()
                except BaseException as error:  # noqa: BLE001 - it is raised where all are waited for
                    errors[index] = error
        finally:
            end()

    try:
        for each in ended:
            each.acquire()
            sync.start_thread("hal compile", partial(work, each.release))
        for each in ended:
            while not each.acquire(timeout=0.1):
                pass
    except BaseException:
        waiting.clear()  # nobody needs the rest
        raise
    failed = [errors[index] for index in sorted(errors)]
    for other in failed[1:]:
        failed[0].add_note(f"and another: {other}")
    for first in failed:
        raise first
    return [results[index] for index in range(len(tasks))]
