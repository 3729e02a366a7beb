"""Reword a kernel's body by what means the same in any C++, before it is divided into regions.

- A counter that every ``for`` statement with it sets is declared by each of them: ``int i; for (i =
  0; ...)`` becomes ``for (int i = 0; ...)``. No thread then keeps it from one loop to the next, and
  it is the same for all threads in one loop though not in another.
- ``T x(value);`` becomes ``T x = (T)(value);``.
- Cooperative groups are no longer there, as `_groups` says.
- Of several variables of one name, each in a block of its own with barriers, all but the first get
  names of their own, and so does one that is named like what stands outside of the kernel.
- ``int a = 1, b = f(x);`` with a function that meets becomes two declarations.
- ``while (f(x)) ...`` with a vote becomes ``while (true) { if (!(f(x))) break; ... }``.
- Where control flow has no braces around a barrier, it gets them.
- A function with barriers stands in place of its calls, as `_inline` says.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Final

from hal.cpp_tokens import Token
from hal.handlers import dropped, own
from hal_cpu import _warps
from hal_cpu._groups import BLOCK, Groups
from hal_cpu._inline import Function, inlined
from hal_cpu._region_tokens import (
    BARRIER,
    NOT_TAKEN,
    TYPES,
    VECTORS,
    Edit,
    Outside,
    RefusedError,
    Words,
    merge,
    simplified,
    without_comments,
)

_HEADS: Final = frozenset({"const"}) | TYPES | VECTORS
_CONDITION: Final = re.compile(r"#\s*(?:if|el|include)")


def reworded(
    tokens: Sequence[Token],
    parameters: Collection[str],
    source: str,
    hidden: Collection[str],
    outside: Outside,
    functions: Mapping[str, Function],
    *,
    steps: bool,
) -> list[Edit]:
    """Return edits for the body of a kernel, to be asked for again until there are none.

    Lines stay lines.

    Parameters
    ----------
    tokens
        Those of the body, braces included.
    parameters
        The names of the kernel's parameters.
    source
        The text that the tokens are of.
    hidden
        The words of all macros: nobody sees where they are used.
    outside
        What the kernel finds outside of it.
    functions
        Those that may stand in place of their calls.
    steps
        Whether groups may become functions of warps, and calls of these steps.
    """
    tokens = simplified(tokens)
    texts = {token.text for token in tokens}
    if not NOT_TAKEN.isdisjoint(texts) or any(map(_CONDITION.match, texts)):
        return []
    try:
        body = _Body(merge(tokens), source, hidden, outside)
    except own(RefusedError, LookupError):
        return []
    ways: list[Callable[[], Iterator[Edit]]] = [body.values, body.counters]
    if steps and BLOCK in texts:
        ways.append(Groups(body, source).edits)
    ways.append(lambda: body.names(outside.users))
    meeting = {BARRIER[0], *functions, *_warps.CALLS}
    if not meeting.isdisjoint(texts) and not any(map(body.is_hidden, range(len(body.texts)))):
        if not texts.isdisjoint(_warps.BLOCK_VOTES):
            ways.append(body.loops)
        ways.append(lambda: body.several(meeting))
        ways.append(lambda: body.braces(meeting))
        ways.append(lambda: inlined(body, source, parameters, functions))
        if steps and not texts.isdisjoint(_warps.CALLS):
            ways.append(lambda: _warps.steps(body, source, outside.macros))
        if steps and not texts.isdisjoint(_warps.STEPS):
            ways.append(lambda: _warps.conditions(body, source))
    for way in ways:
        with dropped(RefusedError, LookupError):
            if edits := list(way()):
                return edits
    return []


class _Body(Words):
    def __init__(
        self, tokens: list[Token], source: str, hidden: Collection[str], outside: Outside
    ) -> None:
        super().__init__(tokens, outside)
        self._source = source
        self._hidden = hidden

    def _begins(self, index: int) -> bool:
        """Return whether a statement begins here, of a block."""
        return self.texts[index - 1] in {"{", "}", ";"}

    # Loops

    def loops(self) -> Iterator[Edit]:
        """Yield the edits for loops until a barrier's vote, which they leave from within."""
        ends = {self.end(i + 1): i for i, text in enumerate(self.texts) if text == "do"}
        for index, text in enumerate(self.texts):
            close = self.pair.get(index + 1, 0)
            if text != "while" or _warps.BLOCK_VOTES.keys().isdisjoint(self.texts[index:close]):
                continue
            start, end = self.tokens[index + 2].start, self.tokens[close - 1].end
            leave = f"if (!({without_comments(self._source[start:end])})) break;"
            if index not in ends:
                yield self.edit(self._source, index + 2, close, "true")
                has_braces = self.texts[close + 1] == "{"
                place = self.tokens[close + has_braces].end
                behind = self.tokens[self.end(index) - 1].end
                yield Edit(place, place, f" {leave}" if has_braces else f" {{ {leave}")
                yield Edit(behind, behind, "" if has_braces else " }")
            elif "continue" not in self.texts[ends[index] : index]:
                yield self.edit(self._source, ends[index], ends[index] + 1, "while (true) {")
                yield self.edit(self._source, index, close + 2, f"{leave} }}")

    # Braces

    def braces(self, meeting: Collection[str]) -> Iterator[Edit]:
        """Yield the edits for statements of control flow that meets and has no braces."""
        texts = self.texts
        for index, text in enumerate(texts):
            if text not in {"for", "while", "if", "do"}:
                continue
            first = index + 1 if text == "do" else self.pair[index + 1] + 1
            last = self.end(first)
            parts = [(first, last)]
            if text == "if" and texts[last] == "else":
                parts.append((last + 1, self.end(last + 1)))
            if not {*meeting}.isdisjoint(texts[first : parts[-1][1]]):
                for first, last in parts:
                    if texts[first] != "{":
                        before, behind = self.tokens[first - 1].end, self.tokens[last - 1].end
                        yield Edit(before, before, " {")
                        yield Edit(behind, behind, " }")

    # Values

    def values(self) -> Iterator[Edit]:
        """Yield the edits for variables whose values stand in parentheses."""
        for index, text in enumerate(self.texts):
            if text not in _HEADS or not (
                self._begins(index) or self.texts[index - 2 : index] == ["for", "("]
            ):
                continue
            name = index
            while self.texts[name] in _HEADS:
                name += 1
            kind = " ".join(each for each in self.texts[index:name] if each != "const")
            for first, last in self.parts(name, self.end(index) - 1):
                open_ = first + 1
                if (
                    self.tokens[first].kind == "word"
                    and self.texts[open_] == "("
                    and self.pair[open_] == last - 1 > open_ + 1
                    and self.texts[open_ + 1] not in {*_HEADS, "*", "&", ")"}
                ):
                    several = len(self.parts(open_ + 1, last - 1)) > 1
                    value = "" if kind == "auto" else kind if several else f"({kind})"
                    place = self.tokens[open_].start
                    yield Edit(place, place, f" = {value}")

    def several(self, meeting: Collection[str]) -> Iterator[Edit]:
        """Yield the edits for variables behind others in a declaration whose values meet."""
        for index, name, parts in self._declarations(_HEADS):
            kind = " ".join(self.texts[index:name])
            meets = not {*meeting}.isdisjoint(self.texts[parts[0][1] : parts[-1][1]])
            if meets and all(map(self._name_of, parts)):  # else a comma is one of a template
                for first, _ in parts[1:]:
                    yield self.edit(self._source, first - 1, first, f"; {kind} ")

    # Counters

    def counters(self) -> Iterator[Edit]:
        """Yield the edits for counters that are declared without a value."""
        for index, name, parts in self._declarations(TYPES - {"auto"}):
            end = parts[-1][1]
            scope = self.pair[self.around(index, "{")]
            loops = {part: self._loops(part, end, scope) for part in parts}
            left = [part for part in parts if loops[part] is None]
            if len(left) == len(parts):
                continue
            kind = " ".join(self.texts[index:name])
            for places in loops.values():
                for place in places or ():
                    start = self.tokens[place].start
                    yield Edit(start, start, f"{kind} ")
            kept = [self._source[self.tokens[a].start : self.tokens[b - 1].end] for a, b in left]
            text = f"{kind} {', '.join(kept)};" if kept else ""
            yield self.edit(self._source, index, end + 1, text)

    def _declarations(
        self, types: Collection[str]
    ) -> Iterator[tuple[int, int, list[tuple[int, int]]]]:
        """Yield where a declaration begins, where its type ends, and its declarators' tokens."""
        for index in range(1, len(self.texts)):
            if self.texts[index] in types and self.texts[index - 1] in {"{", "}", ";"}:
                name = index
                while self.texts[name] in types:
                    name += 1
                yield index, name, self.parts(name, self.end(index) - 1)

    def _loops(self, part: tuple[int, int], first: int, last: int) -> list[int] | None:
        """Return where the loops set a counter that no other statement uses, or None."""
        name = self.tokens[part[0]]
        if part[1] > part[0] + 1 or name.kind != "word" or name.text in self._hidden:
            return None
        places = []
        behind = first
        for index in range(first, last):
            if self.texts[index : index + 4] == ["for", "(", name.text, "="] and index >= behind:
                head = self.texts[index + 4 : self.find(";", index, last)]
                if name.text in head or "," in head:
                    return None
                places.append(index + 2)
                behind = self.end(index)
            elif (
                self._is_variable(index, name.text)
                and places[-1:] != [index]
                and (index >= behind or self.texts[index - 2 : index] == ["for", "("])
            ):
                return None
        return places

    # Names

    def names(self, users: Collection[str]) -> Iterator[Edit]:
        """Yield the edits for names in blocks with barriers that others have as well."""
        found = [
            (self.texts[place], place, last)
            for index, _, parts in self._declarations(_HEADS)
            for first in [self.around(index, "{")]
            for last in [self.pair[first]]
            if BARRIER[0] in self.texts[first:last]
            for place in map(self._name_of, parts)
            if place and self.texts[place] not in self._hidden
        ]
        taken: set[int] = set()
        for number in reversed(range(len(found))):  # a block in another's before that
            name, first, last = found[number]
            if name not in users and all(name != other for other, _, _ in found[:number]):
                continue
            for index in range(first, last):
                if index not in taken and self._is_variable(index, name):
                    token = self.tokens[index]
                    yield Edit(token.start, token.end, f"hal_{number}_{name}")
                    taken.add(index)

    def _name_of(self, part: tuple[int, int]) -> int:
        """Return where a declarator's name stands, or 0 if that is not plain."""
        place, end = part
        while self.texts[place] in {"*", "const", "__restrict__", "__restrict"}:
            place += 1
        is_name = place < end and self.tokens[place].kind == "word"
        return place * (is_name and self.texts[place + 1] in {"=", "[", ",", ";"})

    def _is_variable(self, index: int, name: str) -> bool:
        return self.texts[index] == name and self.texts[index - 1] not in {".", "->", "::"}
