"""Reword cooperative groups that are a kernel's block, or tiles of it: no group is left then.

The ``sync`` of a block is the barrier, and what a tile's threads do together is a function of warps
whose mask is ``hal_tile8``, say: the lanes of the thread's tile, of 8. A rank is ``hal_rank``,
divided by the size. Words that are not understood leave their group, and those it is part of, as
they are.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from hal_cpu._region_tokens import Edit, Words

BLOCK: Final = "this_thread_block"
_NAMESPACE: Final = "hal_groups"  # of the dialect's own header
_ALIAS: Final = re.compile(rf"\bnamespace\s+(\w+)\s*=\s*(?:::\s*)?{_NAMESPACE}\s*;")
_UNNAMED: Final = frozenset([BLOCK, "tiled_partition", "thread_block", "thread_block_tile"])
_KINDS: Final = frozenset(["auto", "const", "::", "<", ">", ",", "thread_block"])
_TILE: Final = "thread_block_tile"
_WIDTH: Final = 32
_THREADS: Final = "(blockDim.x * blockDim.y * blockDim.z)"
_OF_BLOCK: Final = {
    "sync": "__syncthreads()",
    "thread_rank": "hal_rank",
    "size": _THREADS,
    "num_threads": _THREADS,
    "group_index": "blockIdx",
    "thread_index": "threadIdx",
    "group_dim": "blockDim",
    "dim_threads": "blockDim",
}
_INDICES: Final = frozenset({"blockIdx", "threadIdx", "blockDim"})  # of which a member is asked
_OF_TILE: Final = {
    "sync": "__syncwarp(hal_tile{0})",
    "thread_rank": "(hal_rank % {0}u)",
    "size": "{0}u",
    "num_threads": "{0}u",
    "meta_group_rank": "(hal_rank / {0}u)",
    "meta_group_size": f"(({_THREADS} + {{0}}u - 1) / {{0}}u)",
}
_VOTES: Final = "hal_of_tile(__ballot_sync(hal_tile{0}, ", "), hal_rank, {0})"
# What stands before and behind the arguments.
_CALLS: Final = {
    **{
        f"shfl{kind}": (f"__shfl{kind}_sync(hal_tile{{0}}, ", ", {0})")
        for kind in ("", "_up", "_down", "_xor")
    },
    "ballot": (f"{_VOTES[0]}(int)(", f"){_VOTES[1]}"),
    "any": (f"(int)({_VOTES[0]}(int)(", f"){_VOTES[1]} != 0)"),
    "all": (f"(int)({_VOTES[0]}!(int)(", f"){_VOTES[1]} == 0)"),
    "match_any": (_VOTES[0].replace("ballot", "match_any"), _VOTES[1]),
}
_OPERATIONS: Final = frozenset(["plus", "less", "greater", "bit_and", "bit_or", "bit_xor"])


class _Group(NamedTuple):
    last: int  # behind it
    size: int  # of a tile, or 0 for the block
    name: str  # of the variable that it is or is part of, or ""


class Groups:
    """The groups of a kernel's body."""

    def __init__(self, body: Words, source: str) -> None:
        self._body = body
        self._texts = body.texts
        self._source = source
        self._names = {_NAMESPACE, *_ALIAS.findall(source)}
        self._sizes: dict[str, int] = {}
        self._edit = functools.partial(body.edit, source)

    def edits(self) -> Iterator[Edit]:
        """Yield the edits for groups of which all words are understood."""
        using = re.search(rf"\busing\s+namespace\s+({'|'.join(self._names)})\s*;", self._source)
        unnamed = [
            Edit(token.start, token.start, f"{_NAMESPACE}::")
            for token, before in zip(self._body.tokens[1:], self._texts, strict=False)
            if using and token.text in _UNNAMED and before not in {"::", ".", "->"}
        ]
        if unnamed:
            yield from unnamed
            return
        edits: dict[str, list[Edit]] = {}
        parents: list[tuple[str, str]] = []
        unknown = set[str]()
        index = 1
        while index < len(self._texts):
            name = self._declared(index)
            if name and (group := self._group(name + 2)):
                words = self._texts[name]
                if self._sizes.setdefault(words, group.size) != group.size:
                    unknown.add(words)
                parents.append((words, group.name))
                edits.setdefault(words, []).append(self._edit(index, group.last + 1, ""))
                index = group.last
                continue
            is_free = self._is_named(index, {"sync", "reduce"}) and self._texts[index + 3] == "("
            if group := self._group(index + 4 * is_free):
                asked = self._asked_freely if is_free else self._asked
                found = list(asked(index, group))
                if not found:
                    unknown.add(group.name)
                edits.setdefault(group.name, []).extend(found)
                index = group.last - 1
            index += 1
        for name_, parent in reversed(parents):
            if name_ in unknown:
                unknown.add(parent)
        for name_, found in edits.items():
            if name_ == "" or name_ not in unknown:
                yield from found

    def _is_named(self, index: int, names: set[str]) -> bool:
        """Return whether one of these names of the groups' stands here."""
        texts = self._texts[index : index + 3]
        return texts[0] in self._names and texts[1:2] == ["::"] and texts[2] in names

    def _declared(self, index: int) -> int:
        """Return where the name of a variable stands that may be a group, or 0."""
        name, texts = index, self._texts
        if texts[index - 1] in {"{", "}", ";"}:
            while (
                texts[name] in _KINDS
                or texts[name] in {_TILE, *self._names}
                or self._body.tokens[name].kind == "number"
            ):
                name += 1
        is_value = name > index and texts[name + 1] == "="
        group = self._group(name + 2) if is_value else None
        return name if group and texts[group.last] == ";" else 0

    def _group(self, index: int) -> _Group | None:
        """Return the group that stands here, if one does."""
        texts = self._texts
        if texts[index] in self._sizes and texts[index - 1] not in {".", "->", "::"}:
            return _Group(index + 1, self._sizes[texts[index]], texts[index])
        if self._is_named(index, {BLOCK}) and texts[index + 3 : index + 5] == ["(", ")"]:
            return _Group(index + 5, 0, "")
        if self._is_named(index, {"tiled_partition"}) and texts[index + 5 : index + 7] == [
            ">",
            "(",
        ]:
            size = re.fullmatch(r"(\d+)u?", texts[index + 4])
            whole = self._group(index + 7)
            if size and whole and texts[whole.last] == ")" and 0 < int(size[1]) <= _WIDTH:
                return _Group(whole.last + 1, int(size[1]), whole.name)
        return None

    def _asked(self, first: int, group: _Group) -> Iterator[Edit]:
        """Yield the edits for a method of a group."""
        texts, open_ = self._texts, group.last + 2
        if texts[group.last] != "." or texts[open_] != "(":
            return
        method, close = texts[group.last + 1], self._body.pair[open_]
        text = (_OF_TILE if group.size else _OF_BLOCK).get(method)
        if text and close == open_ + 1:
            if text not in _INDICES or texts[close + 1] == ".":
                yield self._edit(first, close + 1, text.format(group.size))
        elif group.size and method in _CALLS:
            before, behind = _CALLS[method]
            yield self._edit(first, open_ + 1, before.format(group.size))
            yield self._edit(close, close + 1, behind.format(group.size))

    def _asked_freely(self, first: int, group: _Group) -> Iterator[Edit]:
        """Yield the edits for a function of the groups' with a group."""
        texts, close = self._texts, self._body.pair[first + 3]
        if texts[first + 2] == "sync" and group.last == close:
            text = (_OF_TILE if group.size else _OF_BLOCK)["sync"]
            yield self._edit(first, close + 1, text.format(group.size))
        elif texts[first + 2] == "reduce" and group.size:
            operation = [place for place, _ in self._body.parts(first + 4, close)][2:]
            is_known = len(operation) == 1 and self._is_named(operation[0], {*_OPERATIONS})
            if is_known and texts[close - 2 : close] in (["(", ")"], ["{", "}"]):
                yield self._edit(first, group.last, f"__tile_reduce(hal_tile{group.size}")
                yield self._edit(close, close + 1, f", {group.size})")
