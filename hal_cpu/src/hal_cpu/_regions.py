"""Split a kernel with barriers into regions, each to be run as a loop over the block's threads.

A region is a row of statements without a barrier. What stands between regions runs once for the
block: barriers, shared memory, and control flow and variables that are the same for all threads.
A variable that more than one region uses is computed again in each, if it follows from the
thread's index alone, and else kept in an array with an element for each thread.

Only what is understood as a whole is split: for anything else `split` returns None, and the
threads run side by side, as they always can.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from hal.cpp_tokens import Token
from hal_cpu._region_parts import Region, Rounds, Step, Variable
from hal_cpu._region_tokens import (
    ASSIGNMENTS,
    BARRIER,
    BUILT_IN,
    CONTROL,
    NOT_TAKEN,
    TYPES,
    Edit,
    RefusedError,
    Words,
    merge,
    without_comments,
)
from hal_cpu._strides import in_step_pays, strides_of

__all__ = ["Edit", "split"]

_FEW: Final = 16  # threads in a row: below, loops over them cost more than they bring
_MANY: Final = 64  # rounds: a loop of fewer is unrolled


def split(
    tokens: Sequence[Token],
    parameters: Sequence[str],
    macros: Mapping[str, Sequence[Token] | None],
    users: frozenset[str],
    source: str,
    threads: int,
) -> list[Edit] | None:
    """Return the edits that make a kernel run its block by itself, or None.

    None too for a kernel without barriers that is not to be faster for it.

    Parameters
    ----------
    tokens
        Those of the body, braces included.
    parameters
        The names of the kernel's parameters.
    macros
        What each macro stands for; None for one with parameters.
    users
        The names that the source defines.
    source
        The text that the tokens are of.
    threads
        How many threads a block has at most.
    """
    try:
        return _Splitter(merge(tokens), parameters, macros, users, source, threads).edits()
    except (RefusedError, IndexError):
        return None


class _Splitter(Words):
    def __init__(
        self,
        tokens: list[Token],
        parameters: Sequence[str],
        macros: Mapping[str, Sequence[Token] | None],
        users: frozenset[str],
        source: str,
        threads: int,
    ) -> None:
        super().__init__(tokens, macros, users)
        self._source = source
        self._regions: list[Region] = []
        self._open: Region | None = None
        self._names: set[str] = set(parameters)  # all that were declared between regions
        self._again: dict[str, bool] = {}
        self._steps: list[Step] = []
        self._shared_here: list[tuple[int, int]] = []
        self._strides = strides_of(self._texts, self._pair)
        self._may_step = threads >= _FEW
        self._check()
        self._uniform = {name for name in parameters if not self._is_changed(name)}
        # Each thread has its own from the beginning.
        self._changed = {name for name in self._names - self._uniform if self._is_written(name)}

    # What is refused as a whole, and what changes

    def _check(self) -> None:
        for index, token in enumerate(self._tokens):
            text = token.text
            before = self._texts[index - 1] if index else ""
            if token.kind == "directive":
                if not re.match(r"#\s*pragma\s+(GCC\s+)?unroll\b", text):
                    raise RefusedError
            elif text in NOT_TAKEN or (text == "[" and not self._is_operand(index - 1)):
                raise RefusedError
            elif text == "&" and (
                before in TYPES or self._texts[index + 2] in {"=", "{"} or before == ">"
            ):
                raise RefusedError  # a reference
            elif text in self._macros:
                replaced = self._macros[text]
                if replaced is None or not all(
                    each.kind == "number" or each.text in BUILT_IN or each.text in "+-*/%()<>"
                    for each in replaced
                ):
                    raise RefusedError

    # Statements between regions

    def edits(self) -> list[Edit]:
        self._block(1, len(self._tokens) - 1)
        self._close(len(self._tokens) - 1)
        if "__syncthreads" not in self._texts and not self._steps:
            raise RefusedError
        return list(self._emit())

    def _close(self, index: int) -> None:
        if self._open is not None:
            self._open.last = index
            self._regions.append(self._open)
            self._open = None

    def _block(self, first: int, last: int) -> None:
        """Take the statements of a block that runs once for the block of threads."""
        index = first
        while index < last:
            index = self._statement(index)
        self._close(last)

    def _end(self, index: int) -> int:
        """Return the index behind the statement at `index`."""
        text = self._texts[index]
        if self._tokens[index].kind == "directive":
            return self._end(index + 1)
        if text == "{":
            return self._pair[index] + 1
        if text in {"for", "while", "if"}:
            end = self._end(self._pair[index + 1] + 1)
            if text == "if" and self._texts[end] == "else":
                return self._end(end + 1)
            return end
        if text == "do":
            end = self._end(index + 1)
            return self._pair[end + 1] + 2
        while self._texts[index] != ";":
            index = self._pair.get(index, index) + 1
        return index + 1

    def _statement(self, index: int) -> int:
        end = self._end(index)
        texts = self._texts[index:end]
        if tuple(texts) == BARRIER:
            self._close(index)
        elif "__shared__" in texts:
            self._shared(index, end)
        elif "__syncthreads" in texts:
            self._close(index)
            self._around(index, end)
        elif texts[0] == "for" and self._may_step and self._in_step(index, end):
            pass
        elif texts[0] in TYPES or (texts[0] == "const" and texts[1] in TYPES):
            self._declaration(index, end)
        else:
            self._check_plain(index, end)
            self._open = self._open or Region(index)
        return end

    def _shared(self, index: int, end: int) -> None:
        if self._texts[index] not in {"__shared__", "extern"}:
            raise RefusedError
        self._close(index)
        self._names |= {token.text for token in self._tokens[index:end] if token.kind == "word"}
        is_nested = any(
            self._texts[first] == "{" and 0 < first < index < last
            for first, last in self._pair.items()
        )
        # What is declared in a loop must live on in its next round.
        if self._texts[index] == "__shared__" and not is_nested:
            self._shared_here.append((index, end))

    def _check_plain(self, first: int, last: int) -> None:
        """Refuse a statement that may be a declaration, or leaves a loop that is not in it."""
        head, after = self._tokens[first], self._texts[first + 1]
        if head.kind == "word" and head.text not in CONTROL:
            known = {"[", "(", ".", "->"} | ASSIGNMENTS
            if after not in known:
                raise RefusedError
        if head.text in {"break", "continue", "else"}:
            raise RefusedError
        if not any(text in {"for", "while", "do"} for text in self._texts[first:last]) and any(
            text in {"break", "continue"} for text in self._texts[first:last]
        ):
            raise RefusedError
        if head.text in {"if", "{"} and {"break", "continue"} & set(self._texts[first:last]):
            raise RefusedError
        for index in range(first, last):
            if self._texts[index] == "return" and self._texts[index + 1] != ";":
                raise RefusedError

    def _around(self, index: int, end: int) -> None:
        """Take control flow with barriers in it: it must be the same for all threads."""
        if self._tokens[index].kind == "directive":
            index += 1
        text = self._texts[index]
        if text == "{":
            self._block(index + 1, end - 1)
            return
        if text not in {"for", "if"}:
            raise RefusedError
        close = self._pair[index + 1]
        counters: set[str] = set()
        if text == "for":
            counters = self._header(index + 2, close, end)
        elif not self._is_free(index + 2, close, self._uniform):
            raise RefusedError
        body = close + 1
        if self._texts[body] != "{":
            raise RefusedError
        self._block(body + 1, self._pair[body])
        self._names -= counters
        self._uniform -= counters
        after = self._pair[body] + 1
        if after < end:  # else
            if self._texts[after] != "else" or self._texts[after + 1] not in {"{", "if"}:
                raise RefusedError
            if self._texts[after + 1] == "{":
                self._block(after + 2, end - 1)
            else:
                self._around(after + 1, end)

    def _header(self, first: int, last: int, end: int) -> set[str]:
        """Take a for statement's parentheses: counters that nothing else changes in it.

        Return the counters that are new.
        """
        one = self._find(";", first, last)
        two = self._find(";", one + 1, last)
        variables, inits = self._declarators(first, one + 1)
        names = {variable.name for variable in variables}
        if names & ((self._names - self._uniform) | self._users) or any(
            variable.dimensions
            or self._is_changed(variable.name, [(0, last), (end, len(self._texts))])
            for variable in variables
        ):
            raise RefusedError
        for begin, behind in inits:
            if begin == behind or not self._is_free(begin, behind, self._uniform):
                raise RefusedError
        new = names - self._names
        self._names |= names
        self._uniform |= names
        # It ends also if all threads have returned.
        if not self._is_free(one + 1, two, self._uniform) or names.isdisjoint(
            self._texts[one + 1 : two]
        ):
            raise RefusedError
        step = [text for text in self._texts[two + 1 : last] if text not in ASSIGNMENTS]
        if len(step) == last - two - 1 or not all(
            text in self._uniform or text in self._macros or not re.match(r"[A-Za-z_\[{&]", text)
            for text in step
        ):
            raise RefusedError
        return new

    # Loops without barriers

    def _in_step(self, index: int, end: int) -> bool:
        """Take a loop that threads should run in step, if this is one."""
        saved = list(self._regions), self._open, set(self._names), set(self._uniform)
        steps, again = list(self._steps), dict(self._again)
        self._close(index)
        step = Step(index, end, len(self._regions))
        try:
            if self._take_rounds(index, end):
                step.has_other_way = False
            else:
                self._take_loop(index, end)
            self._steps.append(step)
        except RefusedError:
            self._regions, self._open, self._names, self._uniform = saved
            self._steps, self._again = steps, again
            return False
        return True

    def _take_loop(self, index: int, end: int) -> None:
        """Take a loop whose counters are the same for all threads."""
        close = self._pair[index + 1]
        one = self._find(";", index, close)
        bound = self._texts[one + 3 : self._find(";", one + 1, close)]
        known = [
            "".join(each.text for each in self._macros.get(text) or ()) or text for text in bound
        ]
        if all(re.match(r"[\d()+*-]", text) for text in known) and not (
            len(known) == 1 and known[0].isdecimal() and int(known[0]) >= _MANY
        ):
            raise RefusedError  # it is unrolled
        if not self._pays(close + 1, end):
            raise RefusedError
        counters = self._header(index + 2, close, end)
        if self._texts[close + 1] == "{":
            self._block(close + 2, end - 1)
        else:
            self._check_plain(close + 1, end)
            self._open = Region(close + 1)
            self._close(end)
        self._names -= counters
        self._uniform -= counters

    def _take_rounds(self, index: int, end: int) -> bool:
        """Take a loop whose counters begin at the thread's index and go the same way."""
        close = self._pair[index + 1]
        one = self._find(";", index, close)
        two = self._find(";", one + 1, close)
        variables, inits = self._declarators(index + 2, one + 1)
        counter, (begin, behind) = variables[0], inits[0]
        name = counter.name
        known = self._uniform | self._again.keys() | {"threadIdx"}
        step = self._texts[two + 1 : close]
        if (
            self._is_free(begin, behind, self._uniform)
            or len(variables) > 1
            or counter.dimensions
            or "*" in counter.type
            or name in self._names | self._users
            or begin == behind
            or not self._is_free(begin, behind, known)
            or self._texts[one + 1 : one + 3] != [name, "<"]
            or not self._is_free(one + 3, two, self._uniform)
            or step[:2] != [name, "+="]
            or not self._is_free(two + 3, close, self._uniform)
            or self._is_changed(name, [(0, close), (end, len(self._texts))])
        ):
            return False
        if self._strides.get(name) != 1 or not self._pays(close + 1, end):
            raise RefusedError
        self._check_plain(close + 1, end)
        texts = tuple(
            self._source[self._tokens[a].start : self._tokens[b - 1].end]
            for a, b in ((begin, behind), (one + 3, two), (two + 3, close))
        )
        region = Region(index)
        region.rounds = Rounds(counter, (texts[0], texts[1], texts[2]), close + 1)
        self._open = region
        self._close(end)
        return True

    def _pays(self, first: int, last: int) -> bool:
        opened = [self._open] if self._open else []
        own = {
            each.name
            for region in [*self._regions, *opened]
            for each in region.declared
            if each.dimensions
        }
        return in_step_pays(self._texts, self._pair, self._strides, own, (first, last))

    def _find(self, text: str, first: int, last: int) -> int:
        for index in range(first, last):
            if self._texts[index] == text:
                return index
        raise RefusedError

    # Declarations

    def _declarators(self, first: int, end: int) -> tuple[list[Variable], list[tuple[int, int]]]:
        """Return a declaration's variables, and where their initialisers begin and end."""
        index = first
        words = []
        while self._texts[index] in TYPES or self._texts[index] == "const":
            words.append(self._texts[index])
            index += 1
        kind = " ".join(word for word in words if word != "const")
        if not kind:
            raise RefusedError
        variables, inits = [], []
        while True:
            stars = ""
            while self._texts[index] in {"*", "const", "__restrict__", "__restrict"}:
                stars += f" {self._texts[index]}"
                index += 1
            name = self._tokens[index]
            if name.kind != "word" or name.text in TYPES or name.text in self._macros:
                raise RefusedError
            index += 1
            dimensions = ""
            while self._texts[index] == "[":
                close = self._pair[index]
                dimensions += "".join(f"{text} " for text in self._texts[index : close + 1])
                index = close + 1
            begin = index
            if self._texts[index] == "=":
                begin = index = index + 1
                while self._texts[index] not in {",", ";"}:
                    index = self._pair.get(index, index) + 1
            pointer = "const " if "*" in stars and "const" in words else ""
            last_star = stars.rpartition("*")[2]
            is_const = "const" in (last_star if "*" in stars else words)
            plain = f"{pointer}{kind}{stars[: len(stars) - len(last_star)]}"
            variables.append(Variable(name.text, plain, dimensions, is_const))
            inits.append((begin, index))
            if self._texts[index] == ";" and index == end - 1:
                return variables, inits
            if self._texts[index] != ",":
                raise RefusedError
            index += 1

    def _declaration(self, index: int, end: int) -> None:
        variables, inits = self._declarators(index, end)
        names = {variable.name for variable in variables}
        if names & (self._names | self._users) or len(names) < len(variables):
            raise RefusedError
        self._names |= names
        fixed = all(
            begin < last
            and not variable.dimensions
            and not self._is_changed(variable.name, [(index, end)])
            for variable, (begin, last) in zip(variables, inits, strict=True)
        )
        if fixed and all(self._is_free(*each, self._uniform | names) for each in inits):
            self._close(index)
            self._uniform |= names
            return
        self._open = self._open or Region(index)
        known = self._uniform | self._again.keys() | names | {"threadIdx"}
        if fixed and all(self._is_free(*each, known) for each in inits):
            self._again.update(dict.fromkeys(names, True))
            self._open.again.append((tuple(names), index, end))
            return
        self._open.declared += variables

    # The result

    def _emit(self) -> Iterator[Edit]:  # noqa: PLR0912 - a region is one piece
        regions = self._regions
        used = [{self._texts[i] for i in range(each.first, each.last)} for each in regions]
        kept = {
            name: Variable(name, f"__typeof__({name})", dimensions="", is_const=False)
            for name in sorted(self._changed)
        }
        for number, region in enumerate(regions):
            for variable in region.declared:
                if any(variable.name in words for words in used[number + 1 :]):
                    kept[variable.name] = variable
        start = self._tokens[0].end
        storage = "".join(
            f" {each.type} hal_kept_{name}[hal_threads_at_most]{each.dimensions};"
            for name, each in kept.items()
        )
        returns = any("return" in words for words in used)
        copies = " ".join(f"hal_kept_{name}[hal_i] = {name};" for name in sorted(self._changed))
        copies = copies and f"for (int hal_i = 0; hal_i < hal_threads; hal_i++) {{ {copies} }}"
        yield Edit(start, start, f"HAL_BLOCK_BEGIN({int(returns)});{storage} {copies}")
        before: list[tuple[tuple[str, ...], int, int]] = []
        declared = set(self._changed)
        steps = {each.number: each for each in self._outer_steps()}
        for number, region in enumerate(regions):
            if step := steps.get(number):
                whole = Region(step.first, step.last)
                head, foot = self._ends(whole, kept, declared, before, returns=returns)
                first, last = self._tokens[step.first].start, self._tokens[step.last - 1].end
                text = f"{head} {self._source[first:last]} {foot} HAL_REGION_END"
                yield Edit(first, first, f"if (hal_size_x < {_FEW}) {{ {text} }} else {{")
            head, foot = self._ends(region, kept, declared, before, returns=returns)
            declared |= {variable.name for variable in region.declared}
            before += region.again
            begin, end = self._tokens[region.first].start, self._tokens[region.last - 1].end
            if region.rounds:
                header = self._tokens[region.rounds.body - 1].end
                yield Edit(begin, header, region.rounds.text(head, self._source[header:end], foot))
                foot = f"}} {foot}"
            else:
                yield Edit(begin, begin, head)
            for index in range(region.first, region.last):
                if self._texts[index] == "return":
                    token, semicolon = self._tokens[index], self._tokens[index + 1]
                    yield Edit(token.start, semicolon.end, f"HAL_REGION_RETURN(hal_end_{number})")
            label = f"hal_end_{number}:;" if "return" in used[number] else ""
            yield Edit(end, end, f"{foot} {label} HAL_REGION_END")
            if region.rounds:
                yield Edit(end, end, "} }")
        for first, last in self._shared_here:
            # On the stack: nobody else sees it, and it needs no look-up of the system's thread.
            # A twin that is never used tells how much memory the kernel declares.
            word = self._tokens[first]
            text = self._source[word.end : self._tokens[last - 1].end]
            yield Edit(word.start, word.end, f"{{ __attribute__((used)) __shared__ {text} }}")
        for step in steps.values():
            end = self._tokens[step.last - 1].end
            yield Edit(end, end, "}")
        for index, text in enumerate(self._texts):
            if text == "__syncthreads":
                yield Edit(self._tokens[index].start, self._tokens[index + 3].end, ";")

    def _outer_steps(self) -> Iterator[Step]:
        """Yield the loops in step, in no other, that small blocks run another way."""
        end = 0
        for step in sorted(self._steps, key=lambda each: each.first):
            if step.first >= end and step.has_other_way:
                end = step.last
                yield step

    def _ends(
        self,
        region: Region,
        kept: Mapping[str, Variable],
        declared: set[str],
        before: Sequence[tuple[tuple[str, ...], int, int]],
        *,
        returns: bool,
    ) -> tuple[str, str]:
        """Return what stands before and behind a region's text."""
        words = set(self._texts[region.first : region.last])
        again = []
        for names, first, last in reversed(before):
            if not words.isdisjoint(names):
                words |= set(self._texts[first:last])
                again.append(self._source[self._tokens[first].start : self._tokens[last - 1].end])
        loads, stores = [], []
        for name, each in kept.items():
            own = any(variable is each for variable in region.declared)
            if name not in words or not (own or name in declared):
                continue
            place = f"hal_kept_{name}[hal_i]"
            if each.dimensions:
                if own:
                    stores.append(f"__builtin_memcpy({place}, {name}, sizeof {name});")
                else:
                    loads.append(f"auto &{name} = {place};")
                continue
            if not own:
                loads.append(f"{each.type} {'const ' if each.is_const else ''}{name} = {place};")
            others = [(0, region.first), (region.last, len(self._texts))]
            if own or self._is_changed(name, others):
                stores.append(f"{place} = {name};")
        # A comment in a macro's line would take the rest of it away.
        text = " ".join(without_comments(each) for each in reversed(again))
        begin = f"HAL_REGION_BEGIN({int(returns)}) {text} {' '.join(loads)} {{"
        return begin, f"{' '.join(stores)} }}"
