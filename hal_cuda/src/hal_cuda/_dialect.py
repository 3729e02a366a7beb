"""Turn portable kernel source into a program for NVRTC.

NVRTC supports most of the dialect by itself. Lines in front of the source add
the rest. Each kernel, and each declaration of one, is put in braces of
``extern "C"``, so that it is found by its name. The user's text
keeps its lines and columns.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from hal import dialect
from hal.cpp_tokens import tokenize
from hal.native import CompileRequest

# Types that a header defines too are the same there: CUDA's own for NVRTC accepts these.
_PRELUDE: Final = """\
#define HAL_TABLE __device__
typedef signed char int8_t;
typedef short int16_t;
typedef int int32_t;
typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef unsigned int uint32_t;
#ifdef __INT64_TYPE__
typedef __INT64_TYPE__ int64_t;
typedef __UINT64_TYPE__ uint64_t;
typedef __INTPTR_TYPE__ intptr_t;
typedef __UINTPTR_TYPE__ uintptr_t;
#else
typedef long long int64_t;
typedef unsigned long long uint64_t;
typedef int64_t intptr_t;
typedef uint64_t uintptr_t;
#endif
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;
#define INFINITY (__int_as_float(0x7f800000))
#define NAN (__int_as_float(0x7fffffff))
static __device__ __forceinline__ double atomicExch(double *address, double value) {
  return __longlong_as_double(
      atomicExch((unsigned long long *)address, (unsigned long long)__double_as_longlong(value)));
}
"""


def rewrite(request: CompileRequest) -> str:
    """Return the text for NVRTC."""
    name = request.filename.replace("\\", "\\\\").replace('"', '\\"')
    return "".join(
        [
            '#line 1 "hal_prelude"\n',
            _PRELUDE,
            dialect.texts()["hal_overloads.h"],
            request.prelude,
            '#line 1 "defines"\n',
            request.macros,
            f'#line 1 "{name}"\n',
            *_with_linkage(request, name),
            '\n#line 1 "type_table"\n',
            request.type_table,
            "\n",
        ]
    )


def _with_linkage(request: CompileRequest, name: str) -> Iterator[str]:
    """Yield the pieces of the source, with each kernel in braces of ``extern "C"``."""
    source = request.source
    position = 0
    for start, end in _kernels(request):
        yield source[position:start]
        yield _insert(source, name, start, 'extern "C" {')
        yield source[start:end]
        yield _insert(source, name, end, "}")
        position = end
    yield source[position:]


def _insert(source: str, name: str, place: int, text: str) -> str:
    """Return text to insert at a place; the text after it keeps its line and its column."""
    line = source.count("\n", 0, place) + 1
    before = source[source.rfind("\n", 0, place) + 1 : place]
    indent = "".join("\t" if letter == "\t" else " " for letter in before)
    return f'\n{text}\n#line {line} "{name}"\n{indent}'


def _kernels(request: CompileRequest) -> Iterator[tuple[int, int]]:
    """Yield the start and the end of each kernel's definition or declaration."""
    names = {entry.name for entry in request.entries}
    bodies = {entry.body_start: entry.body_end for entry in request.entries}
    start = -1  # of the declaration that is being read
    words: set[str] = set()
    depth = 0  # of braces that are no namespace-scope ones
    end = 0
    for kind, text, place, after in tokenize(request.source):
        if place < end:
            continue  # inside a kernel's body
        if depth:
            depth += (text == "{") - (text == "}")
            if not depth:
                start, words = -1, set()
        elif text == "{" and place in bodies:
            end = bodies[place]
            yield start, end
            start, words = -1, set()
        elif text == "{":
            # A lone brace, below, closes a scope of declarations.
            if not words & {"namespace", "extern"} or words & {"(", "="}:
                depth = 1
            start, words = -1, set()
        elif text in {";", "}"}:
            # A template's declaration contains `template`; it is not a kernel of ours.
            if text == ";" and "__global__" in words and words & names and "template" not in words:
                yield start, after
            start, words = -1, set()
        elif kind == "directive":
            if start < 0:
                words = set()
        else:
            start = place if start < 0 else start
            words.add(text)
