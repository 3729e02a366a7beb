"""Make the calls of functions of warps steps of the whole block, between regions of a kernel.

Where all threads of a block come to a call, its operands become variables that each thread keeps,
and the call a barrier that turns them into results, warp by warp:
``v += __shfl_down_sync(~0u, v, by);`` becomes ``auto g = v; const unsigned g_by = by;
__syncthreads(hal_step_shfl_down, 32, g, g_by, warpSize); v += g;``. The first argument says which
lanes are named: those of a tile of so many, or those of a mask that each thread keeps. Nobody
overwrites what another thread still reads: a step is done before the next region begins. Whether
all threads come is for the division into regions to find out.

A barrier with a vote is such a step, too, but has one result for all threads.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from hal.cpp_tokens import Token
from hal_cpu._headers import step_of
from hal_cpu._inline import check_order, statement_of
from hal_cpu._region_tokens import (
    BARRIER,
    GIVEN,
    Edit,
    RefusedError,
    Words,
    last_number,
    without_comments,
)


class _Kind(NamedTuple):
    """A function of warps.

    In its texts `{0}` stands for the name of what a thread hands in and gets, `{1}` to `{3}` for
    the arguments behind the mask.
    """

    declarations: str
    step: str  # its arguments
    least: int  # how many arguments the function has
    most: int
    result: str = "{0}"


_VOTE: Final = _Kind("int {0} = hal_asked({1});", "{0}", 2, 2)
_REDUCTION: Final = _Kind("auto {0} = {1};", "{0}", 2, 2)
_BLOCK_VOTE: Final = _Kind("const bool {0} = ({1}) != 0; int {0}_all = 0;", "{0}", 1, 1, "{0}_all")
BLOCK_VOTES: Final = {
    "__syncthreads_count": _BLOCK_VOTE,
    "__syncthreads_or": _BLOCK_VOTE,
    "__syncthreads_and": _BLOCK_VOTE,
}
"""The barriers with votes."""
CALLS: Final = {
    **{
        f"__shfl{name}_sync": _Kind(
            f"auto {{0}} = {{1}}; const {kind} {{0}}_by = {{2}};", "{0}, {0}_by, {3}", 3, 4
        )
        for name, kind in (("", "int"), ("_xor", "int"), ("_up", "unsigned"), ("_down", "unsigned"))
    },
    "__ballot_sync": _VOTE._replace(declarations="auto {0} = hal_asked({1});"),
    "__any_sync": _VOTE,
    "__all_sync": _VOTE,
    "__match_any_sync": _Kind(
        "auto {0} = hal_asked(true); const auto {0}_by = {1};", "{0}, {0}_by", 2, 2
    ),
    "__activemask": _Kind("auto {0} = hal_asked(true);", "{0}", 0, 0),
    "__syncwarp": _Kind("", "", 0, 1),
    **{f"__reduce_{each}_sync": _REDUCTION for each in ("add", "min", "max", "and", "or", "xor")},
    # What `_reword` makes of a tile's reduction.
    "__tile_reduce": _Kind("auto {0} = {1};", "{0}, {2}, {3}", 4, 4),
    **BLOCK_VOTES,
}
"""The functions that become steps."""

STEPS: Final = {step_of(name): name.removeprefix("__tile_") for name in CALLS}
"""The functions by their steps, as messages name them."""

_BARRIERS: Final = {")", *map(step_of, BLOCK_VOTES)}  # what stands behind the name and "("
_TILE: Final = re.compile(r"hal_tile(\d+)")

_FULL: Final = re.compile(
    r"0x(f{8}|f{16}l{0,2})u?|0xf{16}ul{0,2}|~0u?l{0,2}|-1|\(unsigned(int)?\)-1"
)
_MASKS: Final = frozenset(["unsigned", "int", "uint", "uint32_t", "auto"])


def steps(
    kernel: Words, source: str, macros: Mapping[str, Sequence[Token] | None]
) -> Iterator[Edit]:
    """Yield edits that make calls steps, one in each statement.

    Parameters
    ----------
    kernel
        The kernel's body.
    source
        The text that its tokens are of.
    macros
        What each macro stands for.
    """
    number = last_number(GIVEN, kernel.texts)
    statements = set[int]()
    for index, text in enumerate(kernel.texts):
        if text not in CALLS or kernel.texts[index - 1] in {".", "->", "::"}:
            continue
        close = kernel.pair[index + 1]
        first = statement_of(kernel, index)
        # What stands in the arguments comes first.
        if first in statements or not CALLS.keys().isdisjoint(kernel.texts[index + 1 : close]):
            continue
        statements.add(first)
        check_order(kernel, first, index)
        number += 1
        name = f"hal_given{number}"
        parts = [part for part in kernel.parts(index + 2, close) if part[0] < part[1]]
        kind = CALLS[text]
        if not kind.least <= len(parts) <= kind.most:
            raise RefusedError
        words = [
            without_comments(source[kernel.tokens[a].start : kernel.tokens[b - 1].end])
            for a, b in parts
        ]
        declarations, mask = kind.declarations, "warpSize"
        if parts and text not in BLOCK_VOTES:
            mask, *words = words
            tile = _TILE.fullmatch(mask)
            if tile and tile[1] != "32":
                mask = tile[1]
            elif tile or _is_full(kernel, *parts[0], source, macros):
                mask = "warpSize"
            else:
                declarations += f" const auto {{0}}_mask = {mask};"
                mask = "{0}_mask"
        handed = ", ".join(filter(None, [step_of(text), mask, kind.step]))
        line = f"{declarations} {BARRIER[0]}({handed})".format(name, *words, "warpSize")
        if kind.declarations:
            place = kernel.tokens[first].start
            yield Edit(place, place, f"{line}; ")
            yield kernel.edit(source, index, close + 1, kind.result.format(name))
        elif (first, kernel.end(first)) == (index, close + 2):
            yield kernel.edit(source, index, close + 1, line)
        else:
            raise RefusedError


def conditions(kernel: Words, source: str) -> Iterator[Edit]:
    """Yield edits that make conditions of steps, but not of barriers, variables of each thread."""
    texts = kernel.texts
    number = last_number(GIVEN, texts)
    meetings = [
        (index, texts[index + 2], texts[index + 4])
        for index, text in enumerate(texts)
        if text == BARRIER[0]
    ]
    # Where masks differ, threads may pass a step that others wait before.
    is_first_alone = len({mask for _, name, mask in meetings if name != ")"}) == 1
    for index, text in enumerate(texts):
        if text != "if" or texts[index - 1] not in {"{", "}", ";"}:
            continue
        close = kernel.pair[index + 1]
        last, end = kernel.end(close + 1), kernel.end(index)
        meeting = {name for place, name, _ in meetings if close < place < last}
        behind = [name for place, name, _ in meetings if place >= end]
        if (
            meeting
            and _BARRIERS.isdisjoint(meeting)  # all threads must come to these
            # Else the other threads of a warp may meet these there.
            and meeting.isdisjoint(behind[:1] if is_first_alone else behind)
            and BARRIER[0] not in texts[last:end]
            and texts[close + 1] == "{"
            and texts[index + 2] not in kernel.types
            and not (close == index + 3 and texts[index + 2].endswith("_if"))
        ):
            number += 1
            yield from _condition(kernel, source, index, f"hal_given{number}_if")


def _condition(kernel: Words, source: str, index: int, name: str) -> Iterator[Edit]:
    """Yield edits that give the condition of an `if` a name."""
    close = kernel.pair[index + 1]
    last = kernel.end(close + 1)
    start = kernel.tokens[index].start
    first, behind = kernel.tokens[index + 2].start, kernel.tokens[close - 1].end
    condition = without_comments(source[first:behind])
    yield Edit(start, start, f"const bool {name} = ({condition}); ")
    yield kernel.edit(source, index + 2, close, name)
    if last < kernel.end(index):
        yield Edit(kernel.tokens[last].start, kernel.tokens[last].end, f"if (!{name})")


def _is_full(
    kernel: Words,
    first: int,
    last: int,
    source: str,
    macros: Mapping[str, Sequence[Token] | None],
) -> bool:
    """Return whether a mask names all lanes: a number, or an unchanged variable that is one."""
    texts = kernel.texts[first:last]
    if len(texts) == 1 and texts[0] in macros:
        texts = [each.text for each in macros[texts[0]] or ()]
    elif len(texts) == 1 and kernel.is_constant(texts[0]):
        texts = re.findall(rf"\b{texts[0]}\s*=\s*([^;]*?)\s*;", source)[:1]
    while texts[:1] == ["("] and texts[-1] == ")" and texts[1:2] != ["unsigned"]:
        texts = texts[1:-1]
    if _FULL.fullmatch("".join(texts).lower()):
        return True
    places = [
        index
        for index, text in enumerate(kernel.texts)
        if [text] == texts
        and kernel.texts[index + 1] == "="
        and kernel.texts[index - 1] in _MASKS
        and kernel.texts[index - 2] not in {"short", "long"}
    ]
    if len(places) != 1 or kernel.is_changed(texts[0], [(places[0], places[0] + 1)]):
        return False
    end = places[0] + 2
    while kernel.texts[end] not in {",", ";"}:
        end = kernel.pair.get(end, end) + 1
    return _is_full(kernel, places[0] + 2, end, source, macros)
