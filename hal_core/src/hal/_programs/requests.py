"""Checks of a user's input to a compiler, and the request made of each source."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, TypeAlias

import numpy as np

from hal._base.whole_files import MOST_BYTES
from hal._programs.printing import UNTRACED, Printing, may_print, may_trace, with_output
from hal._programs.scanner import read_source, scan
from hal._programs.type_table import type_table
from hal.arguments import as_choice, as_items, as_mapping, as_path, as_text, ask, shown, shown_path
from hal.cpp_tokens import tokenize
from hal.errors import ArgumentTypeError, InvalidArgumentError
from hal.handlers import own
from hal.native import CompileRequest

Source: TypeAlias = str | Mapping[str, str]
Options: TypeAlias = Sequence[str] | Mapping[str, Sequence[str]]
Includes: TypeAlias = Sequence[str | os.PathLike[str]]
TraceOption: TypeAlias = bool | str | None

_SWITCH: Final = "HAL_TRACE_KERNELS"
"""The variable of the environment for programs that do not say whether they trace."""

_DEFINE: Final = r"(?m)^[ \t]*#[ \t]*define[ \t]+([\w$]+)"
_INCLUDE: Final = r"#\s*include\s*[\"<]([^\">]+)[\">]"
_LONGEST_PATH: Final = 4096
_PATH: Final = r"(?!\s*//)[^\n{};]*(?:[/\\][^\n{};]+|\.\w{1,5})"
"""Matches a source's text that is probably the name of a file."""


def prepare(
    source: Source,
    filename: str,
    defines: Mapping[str, object] | None,
    include_directories: Includes,
    trace: TraceOption,
    omitted_output: str,
) -> list[CompileRequest]:
    """Check a user's input to a compiler, and return a request for each source, with no options."""
    if not isinstance(source, Mapping):
        source = {as_text(filename, "compile: a filename is text"): source}
    given_sources = as_mapping(source, "compile: sources by name are a mapping")
    sources = {
        as_text(name, "compile: a filename is text"): _source_text(text)
        for name, text in given_sources.items()
    }
    folders = as_items(include_directories, "compile: include_directories is a list", ordered=True)
    includes = tuple([as_path(each, "compile: each of include_directories") for each in folders])
    if not sources:
        raise InvalidArgumentError("compile: there is no source")
    macros = {} if defines is None else _macros(defines)
    how = _check_printing(sources, macros, trace, omitted_output)
    _check_characters(
        [
            *(("a filename", name) for name in sources),
            *((f"{name}: the source", text) for name, text in sources.items()),
            *(("the name of a macro", key) for key in macros),
            *((f"defines[{key!r}]", value) for key, value in macros.items()),
            ("the condition of trace", how.trace),
        ]
    )
    for name, text in sources.items():
        _check_included(name, text, includes)
    requests: list[CompileRequest] = []
    owners: dict[str, str] = {}
    for index, (name, text) in enumerate(sources.items()):
        prelude, printing, given = UNTRACED, text, macros
        # If a function of one source prints, a kernel of another one would have to know it.
        if len(sources) == 1 and may_print(text, macros, how.trace):
            found = scan(text, filename=name)
            prelude, printing, given = with_output(text, found, macros, how)
        entries, plain = read_source(printing, filename=name)
        if not entries and len(sources) == 1:
            message = (
                f"{name} defines no kernel: no __global__ function with a body was found; one that "
                "a macro makes is not seen: write it out"
            )
            if len(text) <= _LONGEST_PATH and re.fullmatch(_PATH, text) is not None:
                message = (
                    f"compile takes a source's text, and {shown(text)} is a path; read the file: "
                    f"compile(pathlib.Path({shown(text)}).read_text(), filename={shown(text)})"
                )
            raise InvalidArgumentError(message)
        are_macros = {*macros, *re.findall(_DEFINE, text)}
        for entry in entries:
            if entry.name in are_macros:
                raise InvalidArgumentError(
                    f"{name}:{entry.line}: kernel '{entry.name}': its name is a macro, so the "
                    "image has another; write its name out"
                )
            other = owners.setdefault(entry.name, name)
            if other != name:
                raise InvalidArgumentError(
                    f"{name}:{entry.line}: kernel '{entry.name}': {other} defines it already; "
                    "rename one, or compile the sources apart"
                )
        requests.append(
            CompileRequest(
                source=plain,
                filename=name,
                entries=entries,
                type_table=type_table(entries, suffix(index, len(sources))),
                defines=given,
                include_directories=includes,
                part=len(sources) > 1,
                prelude=prelude,
            )
        )
    if not owners:
        raise InvalidArgumentError(f"no kernel is defined in {', '.join(sources)}")
    return requests


def _macros(defines: object) -> dict[str, str]:
    """Return macros and their texts: True is 1, since in an ``#if`` each unknown word is 0."""
    macros: dict[str, str] = {}
    for key, value in as_mapping(defines, "compile: defines is a mapping").items():
        name = as_text(key, "compile: a macro's name is text")
        rule = f"compile: defines[{shown(key)}]"
        if value is None:
            raise ArgumentTypeError(f"{rule} is text or a number, not None; '' stands for nothing")
        is_flag = isinstance(value, (bool, np.bool_))
        macros[name] = ask(str, int(value) if is_flag else value, rule)
    return macros


def check_options(
    options: object, backends: Sequence[str], *, only: bool = True
) -> dict[str, tuple[str, ...]]:
    """Return the options of each backend; with `only`, raise if others have any."""
    if not isinstance(options, Mapping):
        return dict.fromkeys(backends, check_texts("options", options))
    found: dict[str, tuple[str, ...]] = dict.fromkeys(backends, ())
    for key, given in as_mapping(options, "compile: options by backend are a mapping").items():
        name = as_text(key, "compile: options are by the name of a backend")
        if only and name not in backends:
            raise InvalidArgumentError(
                f"compile: there are options for {shown(name)}, and none of the targets is of that "
                f"backend: {', '.join(backends)}"
            )
        found[name] = check_texts(f"options[{name!r}]", given)
    return found


def check_texts(what: str, values: object) -> tuple[str, ...]:
    """Return a list of texts; a single text is not a list."""
    items = as_items(values, f"compile: {what} is a sequence of texts", ordered=True)
    texts = tuple([as_text(each, f"compile: {what} is text") for each in items])
    _check_characters([("an option", each) for each in texts])
    return texts


def _check_printing(
    sources: Mapping[str, str], macros: Mapping[str, str], trace: object, omitted_output: object
) -> Printing:
    """Return what becomes of what kernels print."""
    choices = ("print", "discard")
    discards = as_choice(omitted_output, choices, "compile: omitted_output") == "discard"
    is_switched = trace is None
    if is_switched:
        given = os.environ.get(_SWITCH, "").strip()
        trace = {"": False, "0": False, "1": True}.get(given, given)
        may = trace and any(may_trace(each, macros) for each in sources.values())
        trace = trace if may and len(sources) == 1 else False
    if isinstance(trace, (bool, np.bool_)):
        condition = "true" if trace else ""
    else:
        condition = as_text(trace, "compile: trace is True, False, None or a condition")
    if "\n" in condition or "\r" in condition:
        raise InvalidArgumentError("compile: the condition of trace has a line break")
    if (condition or discards) and len(sources) > 1:
        raise InvalidArgumentError(
            "compile: several sources are linked, and only one by itself can trace, or discard "
            "what it prints; compile them as one text, or without trace and omitted_output"
        )
    # A user who switches traces on for a program need not know of its outputs.
    return Printing(condition, is_switched and bool(condition), discards)


def _source_text(source: object) -> str:
    """Return a source's text, or raise how to read it from a file."""
    if isinstance(source, os.PathLike):
        raise ArgumentTypeError(
            f"compile: a source is text, not {type(source).__name__}; pass path.read_text(), and "
            "filename=str(path)"
        )
    return as_text(source, "compile: a source is text")


def _check_included(name: str, source: str, folders: Sequence[str]) -> None:
    """Raise for an ``#include`` of a device or a pipe, which a compiler would read forever."""
    for token in tokenize(source) if "include" in source else ():
        match = re.match(_INCLUDE, token.text) if token.kind == "directive" else None
        for folder in ["", *folders] if match else ():
            path = os.path.join(folder, match[1]) if match else ""
            try:
                about = os.stat(path) if folder or os.path.isabs(path) else None
            except own(OSError, ValueError):
                continue  # the compiler reports it, if it matters
            if about is None or stat.S_ISDIR(about.st_mode):
                continue
            if not stat.S_ISREG(about.st_mode) or about.st_size > MOST_BYTES:
                line = source.count("\n", 0, token.start) + 1
                raise InvalidArgumentError(
                    f"{name}:{line}: {shown_path(path)} is no file to include: a device, a pipe, "
                    f"or more than {MOST_BYTES:,} bytes"
                )
            break


def _check_characters(texts: Iterable[tuple[str, str]]) -> None:
    """Raise unless files can hold these texts (no lone surrogates); each comes with its label."""
    for what, text in texts:
        try:
            text.encode()
        except own(UnicodeEncodeError) as error:
            line = text.count("\n", 0, error.start) + 1
            column = error.start - text.rfind("\n", 0, error.start)
            raise InvalidArgumentError(
                f"compile: {what} has the lone surrogate {text[error.start]!r} in line {line}, "
                f"column {column}, which no compiler reads; decode the text with its own encoding"
            ) from None


def suffix(index: int, count: int) -> str:
    """Return the suffix that distinguishes a source's table from those that it is linked with."""
    return f"_{index}" if count > 1 else ""
