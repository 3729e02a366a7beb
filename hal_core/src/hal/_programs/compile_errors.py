"""Compiler errors in the words of the dialect, at the user's line.

Users do not know the text that we put around a source (a prelude, the type table). Errors in it
are dropped where there are others, and reworded where there are not. `CompilationError.from_log`
says how many are shown.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from hal.cpp_tokens import tokenize
from hal.errors import CompilationError
from hal.native import CompileRequest

_OURS: Final = r"(?:hal_cpu/|hal_prelude|hal_type_table|type_table|trace)\b"
# Only our own text mentions these names, whatever line the compiler gives.
_INSIDES: Final = r"\bhal_(?:kernel_of|shape|layout|thread\w*|detail|p\d+)\b"
_ERROR: Final = r"(?P<place>.+?(?::\d+)+): (?:fatal |catastrophic )?error\b:? ?(?P<text>.*)"
_ASSERTION: Final = r"kernel '(?P<name>\w+)': (?P<text>[^\"]*)"
# What `printf` and `HAL_TRACE` expand to.
_PRINT: Final = r"\bhal_(?:pf|take)\b"
_TRACE: Final = r"\bhal_(?:trace|log)\b"
_NESTED: Final = r"\bHAL_TRC_\d\b"
_PRINTED: Final = "printf takes a format, and numbers, pointers and texts; no structures"
_TRACED: Final = "HAL_TRACE takes a number, a pointer or a text; no structure"
_INCLUDE: Final = r"#\s*include\s*<([^>]*)>"
# C++ headers have no dot in their names; these are the C headers.
_STANDARD: Final = (
    r"[a-z_]+|(?:assert|complex|ctype|errno|fenv|float|inttypes|limits|locale|math|setjmp|signal|"
    r"stdalign|stdarg|stdatomic|stdbool|stddef|stdint|stdio|stdlib|string|tgmath|threads|time|uchar|"
    r"wchar|wctype)\.h"
)


def explained(error: CompilationError, request: CompileRequest) -> CompilationError:
    """Return the error to raise in place of one that a backend's compiler raised."""
    what, found = error.found
    if not found:
        return error
    lines = list(_headers(request, error.log))
    if not lines:
        for line in found:
            words = _in_words(line, request, error.log)
            is_ours = re.match(_OURS, line) or re.search(_INSIDES, line)
            if words != line or not is_ours:
                lines.append(words)
    log = re.sub(_NESTED, "HAL_TRACE", re.sub(_PRINT, "printf", error.log))
    return CompilationError.from_log(what, list(dict.fromkeys(lines or found)), log)


def _in_words(line: str, request: CompileRequest, log: str) -> str:
    """Return an error in the words of the dialect; most stay as they are."""
    match = re.match(_ERROR, line)
    if match is None:
        return line
    place, text = match["place"], match["text"]
    assertion = re.search(_ASSERTION, text)
    for entry in request.entries if assertion and text.startswith("static") else ():
        if assertion and entry.name == assertion["name"]:
            return f"{request.filename}:{entry.line}: error: {assertion[0].rstrip()}"
    if re.match(_OURS, line):
        place = _expanded(line, request, log)
    words = _TRACED if re.search(_TRACE, text) else _PRINTED if re.search(_PRINT, text) else ""
    return f"{place}: error: {words}" if place and words else line


def _expanded(line: str, request: CompileRequest, log: str) -> str:
    """Return the user's line that uses a macro of ours; empty if the log does not tell."""
    after = log.partition(line)[2]
    note = re.compile(rf"^({re.escape(request.filename)}:\d+:\d+): note: ", re.MULTILINE)
    match = note.search(after)
    return match[1] if match else ""


def _headers(request: CompileRequest, log: str) -> Iterator[str]:
    """Yield an error for each standard library header that the log blames."""
    for token in tokenize(request.source):
        match = re.match(_INCLUDE, token.text) if token.kind == "directive" else None
        if match is None:
            continue
        name = match[1].strip()
        if re.fullmatch(_STANDARD, name) and re.search(rf"[\"'</ ]{re.escape(name)}\b", log):
            line = request.source.count("\n", 0, token.start) + 1
            yield (
                f"{request.filename}:{line}:1: error: <{name}> is a header of the standard "
                "library, which kernels do not have; remove the line: what the dialect takes from "
                "there (sqrtf, fma, memcpy, printf, int32_t ...) needs none"
            )
