"""Split a kernel with barriers into regions, each to be run as a loop over the block's threads.

A region is a row of statements without a barrier. What stands between regions runs once for the
block: barriers, shared memory, and control flow and variables that are the same for all threads.
A variable that more than one region uses is computed again in each, if it follows from the
thread's index alone, and else kept in an array with an element for each thread.

Only a kernel that is understood as a whole is split: for others `split` returns None, and the
threads run side by side, as they always can.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from hal.cpp_tokens import Token
from hal.handlers import own
from hal_cpu._region_names import Names
from hal_cpu._region_parts import Levels, Region, Rounds, Step, Takers, Turns, Variable
from hal_cpu._region_text import Writer
from hal_cpu._region_tokens import (
    ASSIGNMENTS,
    BARRIER,
    CONTROL,
    NOT_TAKEN,
    THREAD,
    UNSIGNED,
    WIDE,
    DiffersError,
    Edit,
    HiddenError,
    Outside,
    RefusedError,
    merge,
    simplified,
    without_comments,
)
from hal_cpu._strides import IN_TURN, in_step_pays, strides_of
from hal_cpu._warps import STEPS

_FEW: Final = 16  # threads: loops over fewer cost more than they bring
_MANY: Final = 64  # rounds: a loop of fewer is unrolled
_SHORT: Final = 80  # tokens: several rounds of a longer loop take more time to compile
# What ends by a word, itself or a round of it.
_LEFT: Final = {
    "break": frozenset({"for", "while", "do", "switch"}),
    "continue": frozenset({"for", "while", "do"}),
}
_CASTS: Final = frozenset({"reinterpret_cast", "static_cast", "const_cast"})
# Functions that processors have no instructions for.
_CALLED: Final = re.compile(
    r"_*(a?(cos|sin|tan)h?|atan2|cbrt|erfc?|exp(2|10|m1)?|hypot|log(2|10|1p)?|pow|[lt]gamma)f?"
)


def split(
    tokens: Sequence[Token],
    parameters: Sequence[tuple[str, str]],
    outside: Outside,
    source: str,
    threads: int,
) -> tuple[list[Edit], bool] | None:
    """Return the edits that make a kernel run its block by itself, or None.

    And whether its loops over threads count the index in the grid. None too for a kernel
    without barriers that would not be faster. Raises `HiddenError` if a macro or a line of the
    preprocessor stands in the way of one with barriers.

    Parameters
    ----------
    tokens
        Those of the body, braces included.
    parameters
        The types and names of the kernel's parameters.
    outside
        What the kernel finds outside of it.
    source
        The text that the tokens are of.
    threads
        How many threads a block has at most.
    """
    merged = merge(simplified(tokens))
    differing: set[str] = set()
    while True:
        try:
            walk = _Splitter(merged, parameters, outside, source, threads, differing)
            return walk.edits(), walk.counts_in_grid()
        except own(DiffersError) as error:
            differing.add(str(error))
        except own(RefusedError, LookupError) as error:
            if isinstance(error, HiddenError) and any(each.text == BARRIER[0] for each in merged):
                raise
            return None


class _Splitter(Names):
    """A walk over a kernel's statements that puts each into a region, or between two."""

    def __init__(
        self,
        tokens: list[Token],
        parameters: Sequence[tuple[str, str]],
        outside: Outside,
        source: str,
        threads: int,
        differing: set[str],
    ) -> None:
        super().__init__(tokens, parameters, outside, source)
        self._differing = differing
        self._regions: list[Region] = []
        self._open: Region | None = None
        self._takers = ""  # the condition of some threads around what is taken now
        self._steps = 0  # loops that threads run in step, a round of each after a round of each
        self._levels: list[Levels] = []
        self._shared_here: list[tuple[int, int]] = []
        self._strides = strides_of(self.texts, self.pair)
        self._may_step = threads >= _FEW
        self._check()

    # What is refused as a whole

    def _check(self) -> None:
        for index, token in enumerate(self.tokens):
            text = token.text
            before = self.texts[index - 1] if index else ""
            if self.is_hidden(index):
                raise HiddenError
            if text in NOT_TAKEN or (text == "[" and not self.is_operand(index - 1)):
                raise RefusedError
            is_reference = text in {"&", "&&"} and (
                before in {"const", *self.types}
                or self.texts[index + 2] in {"=", "{"}
                or before == ">"
            )
            # What it refers to must not be a variable that it then changes.
            if is_reference and (self.texts[index + 2] != "=" or self.texts[index + 4] != "["):
                raise RefusedError

    # Statements between regions

    def edits(self) -> list[Edit]:
        self._block(1, len(self.tokens) - 1)
        self._close(len(self.tokens) - 1)
        if "__syncthreads" not in self.texts and not self._steps:
            raise RefusedError
        writer = Writer(self, self._source, self._regions, self._levels, self._changed)
        return list(writer.edits(self._shared_here))

    def _close(self, index: int) -> None:
        if self._open is not None:
            self._open.last = index
            self._open.takers = self._takers
            self._regions.append(self._open)
            self._open = None

    def _block(self, first: int, last: int) -> None:
        """Take the statements of a block that runs once for the block of threads."""
        index = first
        while index < last:
            index = self._statement(index)
        self._close(last)

    def _statement(self, index: int) -> int:
        end = self.end(index)
        texts = self.texts[index:end]
        if texts[0] == BARRIER[0] and self.pair[index + 1] == end - 2:
            self._close(index)
            self._step(index, end)
        elif "__syncthreads" in texts:
            self._close(index)
            self._around(index, end)
        elif "__shared__" in texts:
            self._shared(index, end)
        elif self._leaves(index, end):
            self._close(index)
        elif texts[0] in self._moving:
            self._close(index)
            self._move(index, end - 1)
        elif texts[0] == "for" and self._may_step and self._in_step(index, end):
            pass
        elif texts[0] in self.types or (texts[0] == "const" and texts[1] in self.types):
            self._declaration(index, end)
        elif (
            not self._takers and (limit := self._limited(index, end)) and self._may_part(index, end)
        ):
            self._close(index)
            self._check_plain(index, end)
            self._open = Region(index, limit=limit)
            self._close(end)
        else:
            self._check_plain(index, end)
            self._open = self._open or Region(index)
        return end

    def _step(self, index: int, end: int) -> None:
        """Take a barrier, or a step that the threads of each warp do together (see `_warps`)."""
        words = []
        for first, last in self.parts(index + 2, end - 2)[1:]:
            name = self.texts[first]
            is_kept = name in self.given and name not in self._uniform
            is_operation = self.texts[first + 1] == "::"  # of a reduction
            if not is_kept and not is_operation and not self._is_common(first, last):
                raise RefusedError
            text = self._source[self.tokens[first].start : self.tokens[last - 1].end]
            words.append(f"hal_kept_{name}" if is_kept else without_comments(text))
        name = self.texts[index + 2]
        self.steps[index] = Step(name, STEPS.get(name, ""), words[:1], words[1:], self._takers)

    def _shared(self, index: int, end: int) -> None:
        if self.texts[index] not in {"__shared__", "extern", "volatile"} or self._takers:
            raise RefusedError
        self._close(index)
        self._names |= {token.text for token in self.tokens[index:end] if token.kind == "word"}
        self._shared_names |= {
            self.texts[place]
            for place in range(index, end - 1)
            if self.tokens[place].kind == "word" and self.texts[place + 1] in {"[", ",", ";"}
        }
        is_nested = any(
            self.texts[first] == "{" and 0 < first < index < last
            for first, last in self.pair.items()
        )
        # Shared memory of a loop must live on in its next round.
        if self.texts[index] != "extern" and not is_nested:
            self._shared_here.append((index, end))

    def _check_plain(self, first: int, last: int) -> None:
        """Refuse a statement that may be a declaration, or leaves a loop that is not in it."""
        head, after = self.tokens[first], self.texts[first + 1]
        if head.kind == "word" and head.text not in CONTROL:
            known = {"[", "(", ".", "->"} | ASSIGNMENTS
            if after not in known and head.text not in _CASTS:
                raise RefusedError
        if head.text == "else" or self._is_left(first, last):
            raise RefusedError
        for index in range(first, last):
            if self.texts[index] == "return" and self.texts[index + 1] != ";":
                raise RefusedError

    def _leaves(self, index: int, end: int) -> bool:
        """Return whether a statement ends a loop with barriers, or a round, for all threads."""
        if self.texts[index] == "if":
            close = self.pair[index + 1]
            if not self._is_common(index + 2, close):
                return False
            index = close + 1
        if self.texts[index] == "{":
            index, end = index + 1, end - 1
        return self.texts[index:end] in (["break", ";"], ["continue", ";"])

    def _around(self, index: int, end: int) -> None:
        """Take control flow with barriers in it: it must be the same for all threads."""
        if self.tokens[index].kind == "directive":
            index += 1
        text = self.texts[index]
        if text == "{":
            self._braces(index)
            return
        if text == "do":
            behind = self._braces(index + 1)
            if not self._is_common(behind + 2, end - 2):
                raise RefusedError
            return
        if text not in {"for", "if", "while"}:
            raise RefusedError
        close = self.pair[index + 1]
        counters: set[str] = set()
        if text == "for" and self.texts[index + 2] in {"const", *self.types}:
            counters = self._header(index + 2, close, end)
        elif text == "for":
            self._moving_header(index + 2, close)
        elif not self._is_common(index + 2, close):
            self._some(index, close, end)
            return
        number = len(self._regions)
        after = self._braces(close + 1)
        if text != "if":
            self._halved(index, close, number)
        self._names -= counters
        self._uniform -= counters
        if after < end:  # else
            self._braces(after + 1)

    def _some(self, index: int, close: int, end: int) -> None:
        """Take an `if` for some threads with steps of warps in it, as `_warps` writes it."""
        name, last = self.texts[index + 2], self.pair[close + 1]
        if self.texts[index] != "if" or close != index + 3 or name not in self.given:
            raise RefusedError
        if last + 1 != end or self._is_left(index, end):
            raise RefusedError
        saved = self._takers, self._names_of_all, self._may_step
        self.takers[index] = Takers(name, self._takers)
        self._takers, self._names_of_all, self._may_step = name, set(self._names), False
        self._block(close + 2, last)
        self._takers, self._names_of_all, self._may_step = saved

    def _is_left(self, index: int, end: int) -> bool:
        """Return whether a word in a statement ends a loop around it, or a round."""
        for place in range(index, end):
            left = _LEFT.get(self.texts[place], frozenset())
            around = (each for each in range(index, place) if self.texts[each] in left)
            if left and not any(place < self.end(each) for each in around):
                return True
        return False

    def _halved(self, index: int, close: int, number: int) -> None:
        """Note a loop with barriers that halves the number of its threads, if this is one."""
        last = self.pair[close + 1]
        first, end, after = index + 2, close, ""
        step = self.texts[last - 4 : last - 1]
        if self.texts[index] == "for":
            first = self.find(";", first, close) + 1
            end = self.find(";", first, close)
            step = self.texts[end + 1 : close]
            after = " ".join(step)
        name = self.texts[first]
        limits = [each.limit for each in self._regions[number:]]
        if (
            step in ([name, "/=", "2"], [name, ">>=", "1"])
            and all(limit and limit.bound == f"({name})" for limit in limits)
            and {"return", "break", "continue", "__shared__"}.isdisjoint(self.texts[close:last])
            and last - close <= _SHORT
        ):
            text = self._source[self.tokens[first].start : self.tokens[end].start]
            condition = without_comments(text)
            self._levels.append(Levels(name, condition, after, close + 1, last))

    def _braces(self, index: int) -> int:
        """Take a block that control flow must have; return the index behind it."""
        if self.texts[index] != "{":
            raise RefusedError
        self._block(index + 1, self.pair[index])
        return self.pair[index] + 1

    # Loops without barriers

    def _in_step(self, index: int, end: int) -> bool:
        """Take a loop that threads should run in step, if this is one."""
        saved = list(self._regions), self._open, set(self._names), set(self._uniform)
        steps, again = self._steps, dict(self._again)
        self._close(index)
        try:
            if not self._take_rounds(index, end):
                self._take_loop(index, end)
            self._steps += 1
        except own(RefusedError):
            self._regions, self._open, self._names, self._uniform = saved
            self._steps, self._again = steps, again
            return False
        return True

    def _take_loop(self, index: int, end: int) -> None:
        """Take a loop whose counters are the same for all threads."""
        close = self.pair[index + 1]
        one = self.find(";", index, close)
        bound = self.texts[one + 3 : self.find(";", one + 1, close)]
        known = [
            "".join(each.text for each in self._macros.get(text) or ()) or text for text in bound
        ]
        if all(re.match(r"[\d()+*-]", text) for text in known) and not (
            len(known) == 1 and known[0].isdecimal() and int(known[0]) >= _MANY
        ):
            raise RefusedError  # it is unrolled
        if not self._pays(close + 1, end):
            raise RefusedError
        before = len(self._regions)
        counters = self._header(index + 2, close, end)
        is_bare = self.texts[close + 1] != "{"
        if is_bare:
            self._check_plain(close + 1, end)
            self._open = Region(close + 1)
            self._close(end)
        else:
            self._block(close + 2, end - 1)
        places = [(each.first, each.last) for each in self._regions[before:]]
        whole = (close + 1, end) if is_bare else (close + 2, end - 1)
        is_short = whole[1] - whole[0] <= _SHORT and self.tokens[whole[0]].kind != "directive"
        if places == [whole] and is_short:
            self._regions[-1].turns = self._turns(index, close, is_bare=is_bare)
        self._names -= counters
        self._uniform -= counters

    def _turns(self, index: int, close: int, *, is_bare: bool) -> Turns | None:
        """Return the header of a loop whose only counter goes up by one to a bound, or None."""
        one = self.find(";", index, close)
        two = self.find(";", one + 1, close)
        variables = self._declarators(index + 2, one + 1)
        name = variables[0].name
        if (
            len(variables) > 1
            or variables[0].type not in WIDE
            or self.texts[one + 1 : one + 3] != [name, "<"]
            or not self._is_bound(one + 3, two)
            or name in self.texts[one + 3 : two]
            or self.texts[two + 1 : close] not in ([name, "++"], ["++", name])
        ):
            return None
        start, bound = (
            without_comments(self._source[self.tokens[a].start : self.tokens[b - 1].end])
            for a, b in (variables[0].init, (one + 3, two))
        )
        return Turns(variables[0], start, bound, index, is_bare)

    def _take_rounds(self, index: int, end: int) -> bool:
        """Take a loop whose counters begin at the thread's index and go the same way."""
        close = self.pair[index + 1]
        one = self.find(";", index, close)
        two = self.find(";", one + 1, close)
        variables = self._declarators(index + 2, one + 1)
        counter = variables[0]
        name, (begin, behind) = counter.name, counter.init
        known = self._uniform | self._again.keys() | THREAD
        step = self.texts[two + 1 : close]
        if (
            self._is_free(begin, behind, self._uniform)
            or len(variables) > 1
            or counter.dimensions
            or "*" in counter.type
            or counter.type == "auto"
            or name in self._names | self._users
            or begin == behind
            or not self._is_free(begin, behind, known)
            or self.texts[one + 1 : one + 3] != [name, "<"]
            or not self._is_bound(one + 3, two)
            or step[:2] != [name, "+="]
            or not self._is_free(two + 3, close, self._uniform)
            or self.is_changed(name, [(0, close), (end, len(self.texts))])
        ):
            return False
        if self._strides.get(name) != 1 or not self._pays(close + 1, end):
            raise RefusedError
        self._check_plain(close + 1, end)
        texts = tuple(
            self._source[self.tokens[a].start : self.tokens[b - 1].end]
            for a, b in ((begin, behind), (one + 3, two), (two + 3, close))
        )
        start = self._index(begin, behind)
        is_index = counter.type in WIDE and start is not None and not start.is_rank
        parts = self._parts(index, close + 1, end) if is_index else [(index, [])]
        body = set(self.texts[close:end])
        is_short = len(parts) == 1 and end - close <= _SHORT and body.isdisjoint(CONTROL)
        expressions = texts[0], texts[1], texts[2]
        # As an index alone, so that it may be wide: GCC makes no vectors of elements whose index,
        # for all that it knows, wraps round.
        is_subscript = all(
            self.texts[place - 1] == "[" and self.texts[place + 1] == "]"
            for place in range(close, end)
            if self.texts[place] == name
        )
        kind = "size_t" if is_subscript and counter.type in UNSIGNED else counter.type
        rounds = Rounds(counter, expressions, index, close + 1, end, is_index, is_short, kind)
        limit = rounds.limit() if is_index else None
        for place, declared in parts:
            self._close(place)
            self._open = Region(place, declared=declared, rounds=rounds, limit=limit)
        self._close(end)
        return True

    def _parts(self, index: int, body: int, end: int) -> list[tuple[int, list[Variable]]]:
        """Return where the parts of a round begin, and what each declares for a later one.

        A compiler makes vectors of a loop whole or not at all, and a call makes it none. So the
        statements with calls of mathematical functions are loops of their own.
        """
        whole: list[tuple[int, list[Variable]]] = [(index, [])]
        parts: list[tuple[int, list[Variable]]] = [(index, [])]
        texts = self.texts
        if texts[body] != "{" or not self._users.isdisjoint(texts[body:end]):
            return whole
        place, had_call = body + 1, None
        while place < end - 1:
            behind = self.end(place)
            has_call = any(map(_CALLED.fullmatch, texts[place:behind]))
            if has_call is not had_call and had_call is not None:
                parts.append((place, []))
            had_call = has_call
            if texts[place] in {"const", *self.types}:
                variables = self._declarators(place, behind)
                names = {each.name for each in variables}
                outside = {*texts[:index], *texts[end:], *self._names}
                if names & outside or any(
                    each.dimensions or "&" in each.type or "auto" in each.type for each in variables
                ):
                    return whole
                parts[-1][1].extend(variables)
            elif texts[place] in CONTROL or texts[place + 1] not in {"[", *ASSIGNMENTS}:
                return whole
            place = behind
        return parts if len(parts) > 1 else whole

    def _may_part(self, index: int, end: int) -> bool:
        """Return whether a statement may be a region of its own, without a barrier around it.

        Not if a thread could wait there for another, or if variables then had to be kept.
        """
        opened = self._open
        words = set(self.texts[opened.first if opened else index : end])
        return words.isdisjoint(IN_TURN | self._users) and not (opened and opened.declared)

    def _pays(self, first: int, last: int) -> bool:
        opened = [self._open] if self._open else []
        own = {
            each.name
            for region in [*self._regions, *opened]
            for each in region.declared
            if each.dimensions
        }
        return in_step_pays(self.texts, self.pair, self._strides, own, (first, last))

    # Declarations

    def _declaration(self, index: int, end: int) -> None:
        variables = self._declarators(index, end)
        names = {variable.name for variable in variables}
        if names & (self._names | self._users) or len(names) < len(variables):
            raise RefusedError
        if any(each.dimensions and "volatile" in each.type for each in variables):
            raise RefusedError  # its bytes are not to be copied
        self._names |= names
        inits = [each.init for each in variables]
        if "&" in self.texts[index : inits[0][0]]:
            self._reference(variables, index, end)
            return
        has_values = all(begin < last for begin, last in inits)
        plain = (has_values or names <= self._conditions()) and not any(
            variable.dimensions for variable in variables
        )
        fixed = plain and not any(self.is_changed(name, [(index, end)]) for name in names)
        if (
            plain
            and names.isdisjoint(self._differing | self._results)
            and all(
                self._is_free(
                    *each, self._uniform | names, self._shared_names if fixed else frozenset()
                )
                for each in inits
            )
        ):
            moving = set() if fixed else names
            if not any(
                self.is_changed(name, [(index, end), *self._changes(name)]) for name in moving
            ):
                self._close(index)
                self._uniform |= names
                self._moving |= moving
                return
        if all(map(self._is_table, variables)):
            self._close(index)
            return
        self._open = self._open or Region(index)
        known = (self._uniform - self._moving) | self._again.keys() | names | THREAD
        is_again = fixed and has_values and names.isdisjoint(self.given)
        if is_again and all(self._is_free(*each, known) for each in inits):
            self._again.update(dict.fromkeys(names, True))
            for variable in variables:
                if variable.type in WIDE and (start := self._index(*variable.init)):
                    self._indices[variable.name] = start._replace(type=variable.type)
            self._open.again.append((tuple(names), index, end))
            return
        self._open.declared += variables

    def _is_table(self, variable: Variable) -> bool:
        """Return whether a variable is an array of constants, which all threads read."""
        return (
            variable.is_const
            and bool(variable.dimensions)
            and variable.init[0] < variable.init[1]
            and all(
                self.texts[index] in {"{", "}"} or self._is_free(index, index + 1, self._uniform)
                for index in range(*variable.init)
            )
        )

    def _reference(self, variables: list[Variable], index: int, end: int) -> None:
        """Take the declaration of a reference to an element, which each region finds again."""
        self._open = self._open or Region(index)
        first, last = variables[0].init
        steady = self._uniform - self._moving
        known = steady | self._again.keys() | THREAD
        is_found = len(variables) == 1 and self.texts[first] in self._shared_names | steady
        place = first + 1
        while is_found and self.texts[place] == "[":
            is_found = self._is_free(place + 1, self.pair[place], known)
            place = self.pair[place] + 1
        if is_found and place == last:
            self._open.again.append(((variables[0].name,), index, end))
        else:
            self._open.declared += variables
