"""Write the regions of a kernel as C++."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from hal.cpp_tokens import Token
from hal_cpu._region_names import Names
from hal_cpu._region_parts import Levels, Region, Variable
from hal_cpu._region_tokens import PLAIN, Edit, RefusedError, without_comments

_WORD: Final = re.compile(r"\w+")
_OWN: Final = frozenset({"auto", "volatile"})  # of types that nothing else is given


def axes_of(tokens: Sequence[Token]) -> int:
    """Return how many of x, y and z a body that was split asks for a thread's index in."""
    texts = [token.text for token in tokens]
    asked = {
        "".join(texts[index + 1 : index + 3])
        for index, text in enumerate(texts)
        if text == "threadIdx"
    }
    if "hal_rank" in texts:
        return 3
    return 1 if asked <= {".x"} else 2 if asked <= {".x", ".y"} else 3


def _storage(variable: Variable) -> str:
    """Return the array of a kept variable."""
    return f" {variable.type} hal_kept_{variable.name}[hal_threads_at_most]{variable.dimensions};"


class Writer:
    """The edits that make loops over the threads of a body that was divided into regions."""

    def __init__(
        self,
        names: Names,
        source: str,
        regions: Sequence[Region],
        levels: Sequence[Levels],
        changed: set[str],
    ) -> None:
        self._tokens = names.tokens
        self._pair, self._given = names.pair, names.given
        self._steps, self._takers = names.steps, names.takers
        self._copies: dict[str, str] = {}  # by what steps take, where that is a copy alone
        self._texts = names.texts
        self._counts_in_grid = names.counts_in_grid()
        self._declared = names.declared
        self._is_changed = names.is_changed
        self._is_operand = names.is_operand
        self._source = source
        self._regions = regions
        self._levels = levels
        self._changed = changed  # the parameters that each thread has for itself

    def edits(self, shared: Sequence[tuple[int, int]]) -> Iterator[Edit]:
        """Yield them, `shared` being the shared memory that may be on the stack."""
        edits = list(self._once(shared))
        for level in self._levels:
            first, last = self._tokens[level.first], self._tokens[level.last]
            text = level.text(self._edited(first.end, last.start, edits))
            yield Edit(first.end, first.end, text)
        yield from edits

    def _edited(self, first: int, last: int, edits: Sequence[Edit]) -> str:
        """Return a part of the source with the edits in it."""
        text = ""
        for start, end, new in sorted(edits, key=lambda edit: edit[:2]):
            if first <= start < last:
                text += f"{self._source[first:start]}\n{new}\n"
                first = end
        return text + self._source[first:last]

    def _once(self, shared: Sequence[tuple[int, int]]) -> Iterator[Edit]:
        """Yield those of a body in which no round is written out."""
        regions = self._regions
        used = [{self._texts[i] for i in range(each.first, each.last)} for each in regions]
        kept = self._kept(used)
        start = self._tokens[0].end
        self._name_types(kept)
        storage = "".join(_storage(each) for each in kept.values() if not self._is_late(each))
        returns = any("return" in words for words in used)
        copies = " ".join(f"hal_kept_{name}[hal_i] = {name};" for name in sorted(self._changed))
        copies = copies and f"for (int hal_i = 0; hal_i < hal_threads; hal_i++) {{ {copies} }}"
        about = f"{int(returns)}, {int(axes_of(self._tokens) == 1)}, {int(self._counts_in_grid)}"
        is_missed = bool(self._takers) or any(each.has_masks() for each in self._steps.values())
        missed = " hal_absentees hal_missed(hal_outer);" if is_missed else ""
        yield Edit(start, start, f"HAL_BLOCK_BEGIN({about});{missed}{storage} {copies}")
        before: list[tuple[tuple[str, ...], int, int]] = []
        declared = set(self._changed)
        for number, region in enumerate(regions):
            for variable in region.declared:
                if variable.name in kept and self._is_late(variable):
                    place, text = self._tokens[region.first].start, _storage(variable)
                    if "auto" in variable.type:
                        text = self._storage_of_auto(region, variable, kept, before)
                    yield Edit(place, place, text)
            end = self._tokens[region.last - 1].end
            if (copied := self._copied(region, kept)) in declared:
                self._copies[self._texts[region.first + 1]] = copied
                declared.add(self._texts[region.first + 1])
                yield Edit(self._tokens[region.first].start, end, "")
                continue
            head, foot = self._ends(region, kept, declared, before, returns=returns)
            declared |= {variable.name for variable in region.declared}
            before += region.again
            edits, foot, behind = self._opening(region, head, foot)
            yield from edits
            for index in range(region.first, region.last):
                if self._texts[index] == "return":
                    token, semicolon = self._tokens[index], self._tokens[index + 1]
                    yield Edit(token.start, semicolon.end, f"HAL_REGION_RETURN(hal_end_{number})")
            label = f"hal_end_{number}:;" if "return" in used[number] else ""
            returned = "HAL_REGION_RETURNED" if label else ""
            yield Edit(end, end, f"{foot} {label} HAL_REGION_END {returned} {behind}")
        for first, last in shared:
            # On the stack: nobody else sees it, and it needs no look-up of the system's thread.
            # A twin that is never used tells how much memory the kernel declares.
            word = next(each for each in self._tokens[first:] if each.text == "__shared__")
            start = self._tokens[first].start
            text = self._source[start : self._tokens[last - 1].end]
            ahead = self._source[start : word.start]
            yield Edit(start, word.end, f"{{ __attribute__((used)) {text} }} {ahead}")
        for index, step in self._steps.items():
            semicolon = self._tokens[self._pair[index + 1] + 1]
            text = step.text(self._copies, is_missed=is_missed)
            yield Edit(self._tokens[index].start, semicolon.end, text)
        for index, takers in self._takers.items():
            close = self._tokens[self._pair[index + 1]]
            yield Edit(self._tokens[index].start, close.end, takers.text())

    def _copied(self, region: Region, kept: Mapping[str, Variable]) -> str:
        """Return the variable of which a region is a copy for a step, which takes it itself."""
        texts = self._texts[region.first : region.last]
        is_copy = texts[::2] == ["auto", "=", ";"] and texts[1] in self._given
        variable = kept.get(texts[3]) if is_copy else None
        is_plain = variable and not variable.dimensions and _OWN.isdisjoint(variable.type.split())
        return texts[3] if is_plain else ""

    def _name_types(self, kept: Mapping[str, Variable]) -> None:
        """Give what is copied for steps the types of what it is copied from."""
        for region in self._regions:
            if copied := self._copied(region, kept):
                region.declared[0].type = kept[copied].type

    def _kept(self, used: Sequence[set[str]]) -> dict[str, Variable]:
        """Return the variables that each thread has and more than one region uses."""
        kept = {
            name: Variable(name, f"hal_plain<__typeof__({name})>::type", "", is_const=False)
            for name in sorted(self._changed)
        }
        for number, region in enumerate(self._regions):
            for variable in region.declared:
                later = [self._given, *used[number + 1 :]]
                if any(variable.name in words for words in later):
                    if "&" in variable.type:
                        raise RefusedError
                    kept[variable.name] = variable
        holders = {
            name
            for name, each in kept.items()
            if "*" in each.type or not PLAIN.issuperset(each.type.split())
        }
        for index, text in enumerate(self._texts):
            if text in holders and self._may_point(index):
                raise RefusedError
        return kept

    def _may_point(self, index: int) -> bool:
        """Return whether a variable is set here to the place of one of the thread's own.

        A thread's variables stand at another place in each region.
        """
        own = {each.name: each for region in self._regions for each in region.declared}
        texts = self._texts
        end = index + 1
        while texts[end] in {".", "["}:
            end = end + 2 if texts[end] == "." else texts.index("]", end) + 1
        if texts[end] != "=":
            return False
        depth = 0
        while depth or texts[end] not in {";", ","}:
            end += 1
            depth += (texts[end] in {"(", "{"}) - (texts[end] in {")", "}"})
            name, after = texts[end], texts[end + 1]
            if name in own and own[name].dimensions and after != "[":
                return True
            is_address = texts[end - 1] == "&" and (
                not self._is_operand(end - 2) or texts[end - 3 : end - 1] == ["*", ")"]
            )
            is_array = name in own and bool(own[name].dimensions)
            is_own = name in own or name in self._changed
            if is_address and is_own and (after not in {"[", "->"} or is_array):
                return True
        return False

    def _opening(self, region: Region, head: str, foot: str) -> tuple[list[Edit], str, str]:
        """Return the edits where a region begins, and what stands at its end and behind it."""
        tokens = self._tokens
        begin, end = tokens[region.first].start, tokens[region.last - 1].end
        if region.turns:
            start = tokens[region.turns.first].start
            text = region.turns.text(head, self._source[begin:end], foot)
            edits = [Edit(start, begin, f"{region.turns.header()} {text}")]
            return edits, foot, region.turns.behind()
        edits, behind = [Edit(begin, begin, head)], ""
        if region.rounds:
            header = tokens[region.rounds.body - 1].end
            if region.rounds.is_index:
                before, inside, behind = region.rounds.around()
                if region.limit and region.rounds.is_short and foot != " }":  # something is kept
                    wide = head.replace(region.limit.span(), "hal_sixteens(hal_size_x)")
                    before += region.rounds.turns(wide, self._source[header:end], foot)
                    behind = f"}} {behind}"
                edits = [Edit(begin, header, f"{before} {head} {inside}")]
                if region.first > region.rounds.first:  # a later part of a round
                    edits = [Edit(begin, begin, f"{head} {inside} {{")]
                if region.last < region.rounds.last:
                    foot, behind = f"{foot} }}", ""
            else:
                text = region.rounds.text(head, self._source[header:end], foot)
                foot, behind = f"}} {foot}", "} }"
                edits = [Edit(begin, header, text)]
        if region.limit and region.limit.condition:
            first, last = (tokens[each].start for each in region.limit.condition)
            edits.append(Edit(first, first, f"{region.limit.is_met()} || ("))
            edits.append(Edit(last, last, ")"))
        return edits, foot, behind

    def _is_late(self, variable: Variable) -> bool:
        """Return whether the array of a kept variable needs what stands before its region."""
        sizes = _WORD.findall(variable.dimensions)
        return "auto" in variable.type or not self._declared.isdisjoint(sizes)

    def _storage_of_auto(
        self,
        region: Region,
        variable: Variable,
        kept: Mapping[str, Variable],
        before: Sequence[tuple[tuple[str, ...], int, int]],
    ) -> str:
        """Return the array of a kept variable whose type is that of its initialiser.

        It stands before the region, where what all threads have in common is known. What a thread
        has for itself is declared in the expression, for its type alone.
        """
        first, last = variable.init
        again, words = self._again(set(self._texts[first:last]), [*before, *region.again])
        own = ""
        for name, each in {**kept, **{each.name: each for each in region.declared}}.items():
            if name in words and each is not variable:
                kind = f"hal_type_{name}" if "auto" in each.type else each.type
                own += f"{kind} {name}{each.dimensions}; "
        text = without_comments(
            self._source[self._tokens[first].start : self._tokens[last - 1].end]
        )
        name = variable.name
        return (
            f"typedef __typeof__(({{ {again} {own} {text}; }})) hal_value_{name};"
            f" typedef hal_plain<hal_value_{name}>::type hal_type_{name};"
            f" hal_type_{name} hal_kept_{name}[hal_threads_at_most];"
        )

    def _again(
        self, words: set[str], before: Sequence[tuple[tuple[str, ...], int, int]]
    ) -> tuple[str, set[str]]:
        """Return what computes some words again, and the words that this needs, too."""
        again = []
        for names, first, last in reversed(before):
            if not words.isdisjoint(names):
                words |= set(self._texts[first:last])
                again.append(self._source[self._tokens[first].start : self._tokens[last - 1].end])
        # A comment in a macro's line would take the rest of it away.
        return " ".join(without_comments(each) for each in reversed(again)), words

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
        if region.rounds:
            words |= set(self._texts[region.rounds.first : region.rounds.body])
        text, words = self._again(words, before)
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
        span = region.limit.span() if region.limit else "hal_all(hal_size_x)"
        if region.takers:
            span = f"hal_{region.takers}.span"
            text = f"HAL_REGION_TAKEN(hal_{region.takers}) {text}"
        begin = f"HAL_REGION_BEGIN({int(returns)}, {span}) {text} {' '.join(loads)} {{"
        return begin, f"{' '.join(stores)} }}"
