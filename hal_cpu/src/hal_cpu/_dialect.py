"""Rewrite portable kernel source into C++ for the processor.

What `kernel.h` cannot do with macros is done on the text, at places that the
core's scan and a small tokeniser of our own give:

- each kernel takes one more parameter, ``hal_thread``;
- after each kernel stands the macro that exports it;
- ``extern __shared__ T name[]`` becomes a pointer to the block's memory;
- a declaration of a kernel ahead of its definition is left out.

Lines and columns of what the user wrote stay what they were, so that the
compiler's messages need no translation but for the name of the file. Where a
kernel becomes loops lines alone do: messages are those of the text without.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final

from hal.cpp_tokens import edited
from hal.handlers import own
from hal.native import CompileRequest, EntryPoint
from hal_cpu import _headers, _options, _region_text, _regions, _reword, _warps
from hal_cpu._declarations import Body, Text, read, spread
from hal_cpu._groups import BLOCK
from hal_cpu._inline import Function, functions
from hal_cpu._outside import outside
from hal_cpu._preprocess import MARKER, SOURCE
from hal_cpu._region_tokens import Edit as _Edit
from hal_cpu._region_tokens import HiddenError, Outside, hides

_LOOPS: Final = "hal_by_itself"
_FIBERS: Final = "hal_side_by_side"
_WAYS: Final = re.compile(r"^HAL_KERNEL\(\w+, (\w+)", re.MULTILINE)
# Applies to the pointer itself, not to its target.
_RESTRICT: Final = re.compile(r"\*[\w\s]*\b__restrict(?:__)?\b[\w\s]*\Z")

_WORD: Final = re.compile(r"\w+")
_BARRIERS: Final = frozenset({"__syncthreads"}) | _warps.BLOCK_VOTES.keys() | _headers.WARPS
_UNDIVIDED: Final = _headers.WARPS - _warps.CALLS.keys()
_GROUPS: Final = frozenset({"thread_block", "thread_block_tile", BLOCK, "sync"})
_THREAD: Final = frozenset({"threadIdx", "blockIdx", "blockDim", "gridDim"}) | _BARRIERS
_VECTORS: Final = frozenset(
    _WORD.findall(
        """int2 int4 uint2 uint4 float2 float4 double2 double4 half2 __half2 nv_bfloat162
        __nv_bfloat162"""
    )
)


def quote(text: str) -> str:
    """Return a C string literal."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def definitions(request: CompileRequest) -> str:
    """Return the request's macros, those among its options too, as preprocessor lines."""
    return _options.split_options(request.options)[1] + request.macros


def rewrite(
    request: CompileRequest,
    foreign: str,
    features: str,
    *,
    loops: bool = True,
    expand: Callable[[CompileRequest, str], CompileRequest | None] | None = None,
    whole: frozenset[str] = frozenset(),
) -> str:
    """Return the C++ text of an image.

    Parameters
    ----------
    request
        The source to compile.
    foreign
        Further text that the source includes, to find users of barriers.
    features
        The processor's features that the image will need.
    loops
        Whether kernels with barriers may become loops over a block's threads.
    expand
        Returns the request without macros and includes, if it can, given the lines that include the
        dialect's headers. Called if they stand in the way of a kernel with barriers.
    whole
        The kernels that keep their calls of functions with barriers.
    """
    original = request
    macros = definitions(request)
    text, given = read(request.source, request.entries), read(macros, ())
    prelude = read(request.prelude, ())
    others = [*prelude.chunks, *read(foreign, ()).chunks, *given.chunks, *text.chunks]
    users = frozenset[str]().union(*(chunk.names for chunk in others))
    around = outside(f"{request.prelude}\n{foreign}\n{macros}\n{request.source}", users)
    with_barriers = spread(_BARRIERS, others)
    warps = spread(_UNDIVIDED, [each for each in others if each.names.isdisjoint(_GROUPS)])
    calling: set[str] = set()
    if loops:
        known = functions(text, with_barriers, warps, around)
        calling = {
            name
            for name, each in text.kernels.items()
            if each.words & (known.keys() | _warps.CALLS.keys() | {BLOCK})
        } - whole
        request, text = _reworded(request, text, given, around, known, whole)
    with_thread = spread(_THREAD | text.dynamic | {"__shared__"}, others)
    # A kernel has these itself.
    with_thread -= _THREAD | text.dynamic | {"__shared__"}
    words = set[str]().union(
        *(chunk.words for chunk in others), *(body.words for body in text.kernels.values())
    )
    flags = "0" if words.isdisjoint({"printf", "assert", "__assert_fail"}) else "HAL_KERNEL_PRINTS"

    # Each of the linked parts has it.
    export_of_all = "HAL_EXPORT __attribute__((weak))" if request.part else "HAL_EXPORT"
    edits = [*text.edits, *_pointers(text)]
    is_pasted = "##" in f"{request.source}{macros}"
    head = [
        f'#define HAL_COMPILED_FILE "{SOURCE}"\n',
        f"#define HAL_USER_FILE {quote(request.filename)}\n",
        *_headers.includes(words, request.source, is_hidden=request.has_includes or is_pasted),
    ]
    is_hidden = False
    ways: list[str] = []
    for entry in request.entries:
        body = text.kernels[entry.name].words
        edits.append(_thread_of(entry, tells=not body.isdisjoint(with_thread)))
        way = "hal_each" if body.isdisjoint(with_barriers) else _FIBERS
        if way == "hal_each" and body & {"for", "while"} and body & _VECTORS:
            way = "hal_each_with_vectors"
        axes = _region_text.axes_of(text.kernels[entry.name].tokens)
        regions = None
        if loops:
            regions, needs = _divided(
                entry, text.kernels[entry.name], with_barriers, around, request.source, foreign
            )
            is_hidden |= needs and body.isdisjoint(warps)
        if regions is not None:
            way = _LOOPS
            edits += regions[0]
            axes *= axes > 1 or regions[1]
        alone = sum(
            1 << number
            for number, (kind, _) in enumerate(entry.parameters[:64])
            if _RESTRICT.search(kind)
        )
        ways.append(way)
        shape = str(axes) if body.isdisjoint(_warps.STEPS) else f"{axes} | hal_in_steps"
        bounds = entry.launch_bounds or "hal_threads_at_most"
        export = f"HAL_KERNEL({entry.name}, {way}, {shape}, {alone:#x}ull, {flags}, ({bounds}))"
        edits.append(_Edit(entry.body_end, entry.body_end, f"{_assertions(entry)}\n{export}"))
    if is_hidden and expand and (expanded := expand(original, "".join(head))):
        further = rewrite(expanded, "", features, loops=True)
        if _gain(_WAYS.findall(further)) > _gain(ways):
            return further
    side_by_side = {
        each.name for each, way in zip(request.entries, ways, strict=True) if way == _FIBERS
    }
    if calling & side_by_side:
        # Its messages say where the functions' barriers are.
        return rewrite(original, foreign, features, whole=whole | side_by_side)
    return "".join(
        [
            *head,
            f'extern "C" {export_of_all} const char hal_image_features[] = "{features}";\n',
            '#line 1 "hal_prelude"\n',
            *_apply(request.prelude, prelude.edits),
            '\n#line 1 "defines"\n',
            macros,
            f'#line 1 "{SOURCE}"\n',
            *_apply(request.source, edits),
            '\n#line 1 "type_table"\n',
            request.type_table,
            "\n",
        ]
    )


def _gain(ways: Sequence[str]) -> tuple[int, int]:
    """Return how many kernels need no stacks of their own, and how many of them are loops."""
    return len(ways) - ways.count(_FIBERS), ways.count(_LOOPS)


def _divided(
    entry: EntryPoint,
    body: Body,
    meeting: set[str],
    around: Outside,
    source: str,
    foreign: str,
) -> tuple[tuple[list[_Edit], bool] | None, bool]:
    """Return what `_regions.split` returns of a kernel, and whether to preprocess it before."""
    meets = body.words & meeting
    if meets - {"__syncthreads"} or foreign:
        is_hidden = (
            foreign or "#if" in source or any(hides(around.macros, m) for m in around.macros)
        )
        return None, bool(meets and is_hidden)
    threads = int(entry.launch_bounds) if entry.launch_bounds.isdecimal() else 1024
    try:
        return _regions.split(body.tokens, entry.parameters, around, source, threads), False
    except own(HiddenError):
        return None, True


def _thread_of(entry: EntryPoint, *, tells: bool) -> _Edit:
    """Return the edit that gives a kernel one more parameter, its thread."""
    hidden = f"const {'hal_thread_t' if tells else 'hal_quiet_thread_t'} &hal_thread"
    if entry.parameters:
        return _Edit(entry.parameters_start, entry.parameters_start, f"{hidden},")
    # `(void)` must go.
    return _Edit(entry.parameters_start, entry.parameters_end, hidden)


def _reworded(
    request: CompileRequest,
    text: Text,
    macros: Text,
    around: Outside,
    known: Mapping[str, Function],
    whole: Collection[str],
) -> tuple[CompileRequest, Text]:
    """Return a request with its kernels reworded, as `_reword` does it, and the walk over it."""
    hidden = set[str]().union(*(each.words | each.names for each in [*text.macros, *macros.macros]))
    while True:
        edits = [
            edit
            for entry in request.entries
            for edit in _reword.reworded(
                text.kernels[entry.name].tokens,
                [name for _, name in entry.parameters],
                request.source,
                hidden,
                around,
                {} if entry.name in whole else known,
                steps=entry.name not in whole,
            )
        ]
        if not edits:
            return request, text

        def moved(place: int, edits: Sequence[_Edit] = edits) -> int:
            return place + sum(len(new) - end + start for start, end, new in edits if end <= place)

        entries = [
            entry._replace(
                parameters_start=moved(entry.parameters_start),
                parameters_end=moved(entry.parameters_end),
                body_start=moved(entry.body_start),
                body_end=moved(entry.body_end),
            )
            for entry in request.entries
        ]
        source = edited(request.source, edits)
        request = dataclasses.replace(request, source=source, entries=tuple(entries))
        text = read(source, entries)


def _assertions(entry: EntryPoint) -> str:
    """Return assertions about a kernel, for errors at the kernel's own place."""
    shape = f"hal_shape<decltype({entry.name})>"
    head = f"\"kernel '{entry.name}': "
    return (
        f'#line {entry.line} "{SOURCE}"\n'
        f"static_assert({shape}::hal_returns_void, {head}a kernel returns void; write results "
        f'through a pointer"); static_assert({shape}::hal_bytes <= HAL_MAX_ARGUMENT_BYTES, {head}'
        'its parameters take 32768 bytes at most");'
    )


def _apply(source: str, edits: Iterable[_Edit]) -> Iterator[str]:
    """Yield the pieces of the source with the edits made and all other text in its place."""
    position = 0
    # Edits at one place stay in their order.
    for edit in sorted(edits, key=lambda edit: edit[:2]):
        yield source[position : edit.start]
        # The following text must keep its line and its column.
        line = _line(source, edit.end)
        before = source[source.rfind("\n", 0, edit.end) + 1 : edit.end]
        indent = "".join("\t" if letter == "\t" else " " for letter in before)
        yield f'\n{edit.text}\n#line {line} "{SOURCE}"\n{indent}'
        position = edit.end
    yield source[position:]


def _line(source: str, place: int) -> int:
    """Return the number of a line of the user's, who may have had others included before."""
    first, start = 1, 0
    if f'"{SOURCE}"' in source:
        for marker in MARKER.finditer(source, 0, place):
            first, start = int(marker[1]), marker.end()
    return first + source.count("\n", start, place)


def _pointers(text: Text) -> Iterator[_Edit]:
    """Yield the edits that let functions use dynamic shared memory declared outside of them."""
    for name in sorted(text.dynamic):
        mentions = spread(frozenset({name}), text.macros)
        for body in [*text.kernels.values(), *text.functions]:
            if not body.words.isdisjoint(mentions):
                # In braces of its own, since the function may use the name for something else.
                yield _Edit(body.start, body.start, f"{{ HAL_DYNAMIC_POINTER({name});")
                yield _Edit(body.end, body.end, "}")
