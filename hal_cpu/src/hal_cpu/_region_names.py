"""What the names of a kernel's body stand for, as its division into regions learns them.

A name is the same for all threads, follows from a thread's index, or is a thread's own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from hal.cpp_tokens import Token
from hal_cpu._region_parts import Limit, Step, Takers, Variable
from hal_cpu._region_tokens import (
    ASSIGNMENTS,
    BARRIER,
    GIVEN,
    LOOSE,
    DiffersError,
    Outside,
    RefusedError,
    Words,
    without_comments,
)

# Applies to what is declared itself, not to what it points to.
_CONST = re.compile(r"(?:\A|\*)[^*\[(]*\bconst\b[^*\[(]*\Z")


class _Index(NamedTuple):
    """A thread's index in x, or its rank in the block."""

    type: str
    is_rank: bool


class Names(Words):
    """A kernel's body, and what is known of its names so far."""

    def __init__(
        self,
        tokens: list[Token],
        parameters: Sequence[tuple[str, str]],
        outside: Outside,
        source: str,
    ) -> None:
        super().__init__(tokens, outside, {name for _, name in parameters})
        self._source = source
        # What steps of warps take from each thread, and of it what they give back.
        self.given = {text for text in self.texts if GIVEN.fullmatch(text)}
        self._results = {name for name in self.given if name.count("_") == 1}
        self.steps: dict[int, Step] = {}  # by where they stand
        self.takers: dict[int, Takers] = {}
        self._names = {name for _, name in parameters}  # all that were declared between regions
        self._uniform = {
            name for kind, name in parameters if _CONST.search(kind) or not self.is_changed(name)
        }
        self._moving: set[str] = set()  # what changes for all threads at once
        self._names_of_all: set[str] = set()  # where only some threads come: those from before
        self._asked: set[str] | None = None
        self._again: dict[str, bool] = {}  # what each region computes from the thread's index
        self._indices: dict[str, _Index] = {}  # variables for the thread's index
        self._shared_names: frozenset[str] = frozenset()
        # Each thread has its own from the beginning.
        self._changed = {name for name in self._names - self._uniform if self._is_written(name)}

    def _is_common(self, first: int, last: int) -> bool:
        """Return whether an expression that is evaluated here is the same for all threads.

        It may read shared memory: all threads read the same place, and without a barrier no other
        thread may write to what a thread reads.
        """
        return self._is_free(first, last, self._uniform, self._shared_names)

    def _index(self, first: int, last: int) -> _Index | None:
        """Return what index of the thread's an expression is, if it is one or a variable for it."""
        text = "".join(self.texts[first:last])
        is_rank = text == "hal_rank"
        if is_rank or text == "threadIdx.x":
            return _Index("unsigned int", is_rank)
        return self._indices.get(text)

    def counts_in_grid(self) -> bool:
        """Return whether a thread may be asked for its index in x in the grid.

        The kernel names the product, or has variables that follow from a thread's index.
        """
        products = r"blockIdx \. x \* blockDim \. x|blockDim \. x \* blockIdx \. x"
        return bool(
            self._again.keys() - self._indices.keys() or re.search(products, " ".join(self.texts))
        )

    def _is_bound(self, first: int, last: int) -> bool:
        """Return whether an expression, the same for all threads, may stand behind `<`."""
        return (
            first < last
            and self._is_free(first, last, self._uniform)
            and LOOSE.isdisjoint(self.texts[first:last])
        )

    def _limited(self, index: int, end: int) -> Limit | None:
        """Return the limit of a statement `if (t < B)` or `if (t == B)`, if this is one."""
        if self.texts[index] != "if" or self.end(self.pair[index + 1] + 1) != end:
            return None
        first, close = index + 2, self.pair[index + 1]
        middle = first + (3 if self.texts[first] == "threadIdx" else 1)
        function = {"<": "hal_below", "==": "hal_at"}.get(self.texts[middle])
        last = middle
        while last < close and self.texts[last] != "&&":
            last = self.pair.get(last, last) + 1
        if (
            function is None
            or not (index_ := self._index(first, middle))
            or not self._is_bound(middle + 1, last)
            or "||" in self.texts[first:close]
            or "?" in self.texts[first:close]
        ):
            return None
        a, b = self.tokens[middle + 1].start, self.tokens[last - 1].end
        bound = f"({without_comments(self._source[a:b])})"
        condition = (first, close) if last == close else None
        return Limit(index_.type, function, bound, condition, index_.is_rank)

    # Declarations

    def _declarators(self, first: int, end: int) -> list[Variable]:
        """Return a declaration's variables."""
        index = first
        words = []
        while self.texts[index] in self.types or self.texts[index] == "const":
            words.append(self.texts[index])
            index += 1
        kind = " ".join(word for word in words if word != "const")
        if not kind:
            raise RefusedError
        variables = []
        while True:
            stars = ""
            while self.texts[index] in {"*", "&", "const", "__restrict__", "__restrict"}:
                stars += f" {self.texts[index]}"
                index += 1
            name = self.tokens[index]
            if name.kind != "word" or name.text in self.types or name.text in self._macros:
                raise RefusedError
            index += 1
            dimensions = ""
            while self.texts[index] == "[":
                close = self.pair[index]
                dimensions += "".join(f"{text} " for text in self.texts[index : close + 1])
                index = close + 1
            begin = index
            if self.texts[index] == "=":
                begin = index = index + 1
                while self.texts[index] not in {",", ";"}:
                    index = self.pair.get(index, index) + 1
            pointer = "const " if "*" in stars and "const" in words else ""
            last_star = "" if "&" in stars else stars.rpartition("*")[2]
            is_const = "const" in (last_star if "*" in stars else words)
            plain = f"{pointer}{kind}{stars[: len(stars) - len(last_star)]}"
            variables.append(Variable(name.text, plain, dimensions, is_const, (begin, index)))
            if self.texts[index] == ";" and index == end - 1:
                return variables
            if self.texts[index] != ",":
                raise RefusedError
            index += 1

    def _header(self, first: int, last: int, end: int) -> set[str]:
        """Take a for statement's parentheses: counters that nothing else changes in it.

        Return the counters that are new.
        """
        one = self.find(";", first, last)
        two = self.find(";", one + 1, last)
        variables = self._declarators(first, one + 1)
        names = {variable.name for variable in variables}
        if names & ((self._names - self._uniform) | self._users) or any(
            variable.dimensions
            or self.is_changed(variable.name, [(0, last), (end, len(self.texts))])
            for variable in variables
        ):
            raise RefusedError
        for begin, behind in (each.init for each in variables):
            if begin == behind or not self._is_free(begin, behind, self._uniform):
                raise RefusedError
        new = names - self._names
        self._names |= names
        self._uniform |= names
        if not self._is_common(one + 1, two) or not self._are_steps(two + 1, last, names):
            raise RefusedError
        return new

    def _are_steps(self, first: int, last: int, names: set[str]) -> bool:
        """Return whether these are changes of counters, which are the same for all threads."""
        while first < last:
            end = first
            while end < last and self.texts[end] != ",":
                end = self.pair.get(end, end) + 1
            name, sign = self.texts[first : first + 2]
            if name in {"++", "--"}:
                name, sign = sign, name
            if (
                name not in names
                or sign not in ASSIGNMENTS
                or not self._is_free(first + 2, end, self._uniform)
            ):
                return False
            first = end + 1
        return True

    # What changes for all threads at once

    def _changes(self, name: str) -> Iterator[tuple[int, int]]:
        """Yield where all threads of the block change a variable together.

        That is so in statements that only control flow with barriers in it surrounds.
        """
        for index, text in enumerate(self.texts):
            if text != name or self.texts[index + 1] not in ASSIGNMENTS:
                continue
            around = [each for each in self.pair.items() if each[0] < index < each[1]]
            innermost = max(around)
            end = index
            while self.texts[end] != ";" and end < innermost[1]:
                end = self.pair.get(end, end) + 1
            if self.texts[innermost[0] - 1] == "for":
                around.remove(innermost)
                around.append((innermost[0], self.end(innermost[0] - 1)))
            is_statement = self.texts[index - 1] in {";", "{", "}", "("}
            if is_statement and all("__syncthreads" in self.texts[a:b] for a, b in around):
                yield index, end

    def _conditions(self) -> set[str]:
        """Return all words of the parentheses of control flow with barriers in it."""
        if self._asked is None:
            self._asked = {
                each
                for index, text in enumerate(self.texts)
                if text in {"for", "while", "if"}
                and BARRIER[0] in self.texts[index : self.end(index)]
                for each in self.texts[index + 2 : self.pair[index + 1]]
            }
        return self._asked

    def _move(self, first: int, last: int) -> None:
        """Take a change of a variable that is the same for all threads."""
        name, sign = self.texts[first : first + 2]
        if name not in self._moving:
            raise RefusedError
        is_common = name not in self._names_of_all and sign in ASSIGNMENTS
        if not is_common or not self._is_free(first + 2, last, self._uniform):
            raise DiffersError(name)

    def _moving_header(self, first: int, last: int) -> None:
        """Take the parentheses of a for statement that declares no counter."""
        one = self.find(";", first, last)
        two = self.find(";", one + 1, last)
        for begin, end in ((first, one), (two + 1, last)):
            if begin < end:
                self._move(begin, end)
        if not self._is_common(one + 1, two):
            raise RefusedError
