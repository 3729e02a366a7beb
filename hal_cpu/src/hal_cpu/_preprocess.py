"""Have the compiler's preprocessor read a source: what it includes, and what its macros stand for.

A kernel with barriers is divided by the words of its body, and neither a macro's parameters nor a
line like ``#if`` are words of it. The compiler's own preprocessor decides what they stand for: it
alone knows which macros it defines itself and what a header leaves defined, and to expand here by
other rules would be to compile another program. Its run takes some milliseconds, and is made only
if a kernel cannot be divided without it. The dialect's own macros stay words in its output.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from hal.cpp_tokens import edited
from hal.native import CompileRequest
from hal_cpu import _toolchain

if TYPE_CHECKING:
    from pathlib import Path

SOURCE: Final = "hal_user_source.cpp"
"""The name of the user's text in the rewritten source, until it has a path."""

MARKER: Final = re.compile(r'^# (\d+) "((?:[^"\\]|\\.)*)".*\n?', re.MULTILINE)
"""A line of the preprocessor's output that says where the next one is from: line and file."""

# A macro that is no number.
_DEFINE: Final = re.compile(r"^[ \t]*#[ \t]*define[ \t]+(\w+)(?![ \t]+\d+u?$)", re.MULTILINE)
# Options by which the compiler reads text that is in no place of the source.
_READS: Final = ("-i", "--i", "@")
_CUT: Final = "hal_cut_here"
_PLACES: Final = ("parameters_start", "parameters_end", "body_start", "body_end")
_MARK: Final = re.compile(rf" ?\bhal_place_(\d+)_({'|'.join(_PLACES)}|end)\b ?")


def run(text: str, compiler: _toolchain.Compiler, options: Sequence[str], directory: Path) -> str:
    """Return the preprocessor's output for a text, or "" if the compiler reports errors."""
    source, target = directory / "source.cpp", directory / "source.i"
    source.write_text(text, encoding="utf-8")
    status, _ = _toolchain.run_compiler(
        [*compiler.cxx, *options, "-E", str(source), "-o", str(target)], directory
    )
    return target.read_text(encoding="utf-8", errors="replace") if status == 0 else ""


def foreign_text(preprocessed: str) -> str:
    """Return the text in a preprocessor's output that is not from the user's source file."""
    lines: list[str] = []
    own = True
    for line in preprocessed.splitlines():
        marker = MARKER.match(line)
        if marker:
            own = marker[2] == SOURCE
        elif not own:
            lines.append(line)
    return "\n".join(lines)


def question(request: CompileRequest, head: str, macros: str, headers: str) -> str:
    """Return the text to preprocess for `answer`; "" if the source must keep its macros.

    Parameters
    ----------
    request
        The source, and the text that is put before it and after it.
    head
        The lines that include the dialect's headers.
    macros
        The request's macros, as preprocessor lines.
    headers
        The text of these headers.
    """
    if any(each.startswith(_READS) for each in request.options):
        return ""
    kept = _kept(headers)
    places = [
        (getattr(entry, name), getattr(entry, name), f" hal_place_{number}_{name} {more}")
        for number, entry in enumerate(request.entries)
        for name in _PLACES
        for more in [f"{entry.launch_bounds} hal_place_{number}_end " * (name == "body_end")]
    ]
    # The name stays defined, and stands for itself.
    own = "".join(f"#undef {name}\n#define {name} {name}\n" for name in kept)
    return (
        f'{head}{request.prelude}\n{own}{macros}\n{_CUT}\n#line 1 "{SOURCE}"\n'
        f"{edited(request.source, places)}\n{_CUT}\n{' '.join(kept)}\n{_CUT}\n{request.type_table}"
    )


def answer(request: CompileRequest, headers: str, output: str) -> CompileRequest | None:
    """Return a request whose source has no macros but the dialect's, from the output for it.

    Included files are part of the source then; markers tell them from the rest. None if the
    source gave a name of the dialect another meaning.
    """
    parts = re.split(rf"^{_CUT}\n", output, flags=re.MULTILINE)
    if len(parts) != len((".headers", ".source", ".kept", ".table")):
        return None
    if MARKER.sub("", parts[2]).split() != _kept(headers):
        return None
    text = "".join(_lines(parts[1]))
    found: dict[int, dict[str, int]] = {}
    bounds: dict[int, str] = {}
    pieces: list[str] = []
    position = length = 0
    for mark in _MARK.finditer(text):
        number, name = int(mark[1]), mark[2]
        between = text[position : mark.start()]
        position = mark.end()
        if name == "end":
            bounds[number] = between.strip()
            continue
        pieces.append(between)
        length += len(between)
        found.setdefault(number, {})[name] = length
    if any(each.keys() != {*_PLACES} for each in found.values()) or found.keys() != bounds.keys():
        return None
    entries = [
        request.entries[number]._replace(
            parameters_start=places["parameters_start"],
            parameters_end=places["parameters_end"],
            body_start=places["body_start"],
            body_end=places["body_end"],
            launch_bounds=bounds[number],
        )
        for number, places in sorted(found.items())
    ]
    return dataclasses.replace(
        request,
        source="".join([*pieces, text[position:]]),
        entries=tuple(entries),
        type_table=parts[3],
        defines={},
        options=(),
        include_directories=(),
    )


def _kept(headers: str) -> list[str]:
    """Return the dialect's macros, but for numbers, which a condition may compare, and `assert`.

    That one makes text of what the user wrote, as the macros of the prelude do.
    """
    return sorted(set(_DEFINE.findall(headers)) - {"assert"})


def _lines(output: str) -> Iterator[str]:
    """Yield the lines of the source, with markers only where no empty lines do as well.

    A marker would stand for a line of the preprocessor in the body of a kernel.
    """
    line, own = 1, False
    for text in output.splitlines(keepends=True):
        marker = MARKER.match(text)
        if marker is None:
            line += 1
            yield text
            continue
        number, was = int(marker[1]), own
        own = marker[2] == SOURCE
        yield "\n" * (number - line) if own and was and number >= line else text
        line = number
