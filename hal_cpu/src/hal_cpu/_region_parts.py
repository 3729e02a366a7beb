"""The parts that a kernel is divided into."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from hal_cpu._region_tokens import without_comments


@dataclass(slots=True)
class Variable:
    name: str
    type: str  # with its stars
    dimensions: str
    is_const: bool
    init: tuple[int, int] = (0, 0)  # the tokens of its initialiser, if it has one


@dataclass(slots=True)
class Region:
    """A range of tokens that each thread runs, and what it declares for all of the range."""

    first: int
    last: int = 0  # behind the last token
    declared: list[Variable] = field(default_factory=list)
    again: list[tuple[tuple[str, ...], int, int]] = field(default_factory=list)  # names, tokens
    rounds: Rounds | None = None
    limit: Limit | None = None
    turns: Turns | None = None
    takers: str = ""  # the condition of the threads that it is for, as a variable


_LEFT: Final = "hal_some_left ? hal_left : nullptr"


class Takers(NamedTuple):
    """An `if` with steps of warps below it, that some threads take."""

    name: str  # of the variable that says which
    around: str  # of that of the `if` around it, or ""

    def text(self) -> str:
        """Return what stands in place of the `if` and its parentheses."""
        around = f"&hal_{self.around}" if self.around else "nullptr"
        name = f"hal_{self.name}"
        kept = f"hal_kept_{self.name}"
        return (
            f"hal_takers {name}({kept}, {around}, hal_size_x, hal_threads, {_LEFT});"
            f" if ({name}.span.first < {name}.span.last)"
        )


class Step(NamedTuple):
    """What threads do together between regions: a step of warps or of the block, or a barrier."""

    name: str  # ")" of a barrier
    function: str  # in the source
    masks: list[str]  # how many lanes a tile has, or the variable with each thread's mask
    words: list[str]  # what it takes
    takers: str  # the condition of the threads that come, or ""

    def has_masks(self) -> bool:
        """Return whether each thread has a mask."""
        return self.masks[0].endswith("_mask") if self.masks else False

    def text(self, copies: Mapping[str, str], *, is_missed: bool) -> str:
        """Return it as C++.

        `copies` says of what some variables would be copies, `is_missed` whether the kernel has
        steps to which only some threads may come.
        """
        is_of_block = not self.masks or self.function.startswith("__syncthreads")
        warps = "hal_some_left ? hal_warps(hal_left, hal_threads).all() : nullptr"
        if self.takers:
            warps = f"hal_{self.takers}.all({_LEFT}, hal_threads)"
        text = ""
        if is_missed and self.name != "hal_step_activemask":
            meeting = "nullptr" if is_of_block else f'HAL_STEP_MEETING("{self.function}")'
            may_miss = "true" if self.takers or self.has_masks() else "hal_missed.any"
            come = warps if self.takers else "nullptr"
            masks = self.masks[0] if self.has_masks() else f"hal_tiles{{{[*self.masks, 32][0]}}}"
            what = f"{meeting}, {come}, {masks}, hal_threads, {_LEFT}"
            text = f"if ({may_miss} && hal_missed.meet({what})) return; "
        if self.words:
            result = self.words[0]
            if is_of_block:
                votes = result.removeprefix("hal_kept_")
                return f"{text}{votes}_all = {self.name}({result}, hal_threads, {_LEFT});"
            given = copies.get(result.removeprefix("hal_kept_"))
            words = [result, f"hal_kept_{given}" if given else result, *self.words[1:]]
            call = f"{self.name}({', '.join([*words, 'hal_threads'])}, "
            if self.has_masks():
                step = f"[&](const hal_mask *hal_named) {{ {call}hal_named); }}"
                text += f"hal_by_masks({self.masks[0]}, hal_threads, {warps}, {step})"
            else:
                text += f"{call}{warps})"
        return f"{text};"


@dataclass(slots=True)
class Limit:
    """The condition of a region that is one `if`, by which its threads are neighbours in a row.

    It compares a thread's index in x with a bound that is the same for all: `t < B` or `t == B`.
    """

    type: str  # of what is compared
    function: str  # hal_below or hal_at
    bound: str
    condition: tuple[int, int] | None = None  # its tokens, if it is all that the `if` asks
    is_rank: bool = False  # the index is that in the block: the same where that is one row

    def span(self) -> str:
        span = f"{self.function}<{self.type}>(hal_size_x, {self.bound})"
        return f"hal_rows > 1 ? hal_all(hal_size_x) : {span}" if self.is_rank else span

    def is_met(self) -> str:
        """Return a condition that is true where only threads of the span run."""
        is_whole = f"hal_is_whole<{self.type}>({self.bound})"
        return f"(hal_rows == 1 && {is_whole})" if self.is_rank else is_whole


@dataclass(slots=True)
class Rounds:
    """The header of a loop whose counters differ by thread, `for (T i = A; i < B; i += C)`."""

    counter: Variable
    texts: tuple[str, str, str]  # A, B, C
    first: int  # the header's first token
    body: int  # the body's
    last: int  # behind the loop
    is_index: bool  # A is the thread's index in x
    is_short: bool  # so that several rounds may be made at once
    type: str  # of the counter in the body; it holds all that the counter's own type does

    def limit(self) -> Limit:
        """Return which threads take part in a round, where the first index is theirs."""
        end = without_comments(self.texts[1])
        return Limit(self.counter.type, "hal_below", f"({end}) - hal_round")

    def around(self) -> tuple[str, str, str]:
        """Return what stands before a round, before its body and behind it, if `is_index`."""
        kind, name = self.counter.type, self.counter.name
        start, end, step = (f"({without_comments(each)})" for each in self.texts)
        # The last thread that takes part is not to go beyond what the counter's type holds.
        ends = f"if (!({step} > 0 && {end} - hal_round > {step})) break;"
        counter = f"const {self.type} {name} = ({self.type}){start} + hal_round;"
        condition = f"if (hal_is_whole<{kind}>({end}) || {name} < {end})"
        begin = f"for ({kind} hal_round = 0; hal_round < {end}; hal_round += {step}) {{"
        return begin, f"{counter} {condition}", f"{ends} }}"

    def turns(self, head: str, body: str, foot: str) -> str:
        """Return what makes several rounds of all threads at once, and begins what makes one.

        What a thread keeps is then loaded and stored once for all.
        """
        kind, name = self.counter.type, self.counter.name
        start, end, step = (f"({without_comments(each)})" for each in self.texts)
        return (
            f"if (hal_goes_on<{kind}>({end}, hal_round, {step}, hal_size_x)) {{ {head}"
            f" for (int hal_more = 0; hal_more < hal_rounds; hal_more++)"
            f" {{ const {self.type} {name} ="
            f" ({self.type}){start} + (hal_round + hal_more * ({kind}){step});"
            f" {{ {body} }} }} {foot} HAL_REGION_END"
            f" hal_round += (hal_rounds - 1) * {step}; }} else {{"
        )

    def text(self, head: str, body: str, foot: str) -> str:
        """Return what stands before the body of a thread that may have come to its end.

        `head` and `foot` are what stands around a region.
        """
        kind, name = self.counter.type, self.counter.name
        start, end, step = (f"({without_comments(each)})" for each in self.texts)
        is_on = f"hal_start < {end} && hal_round < {end} - hal_start"
        head = f"{head} const {kind} hal_start = {start};"
        counter = f"const {kind} {name} = hal_start + hal_round;"
        # Without a condition as long as all threads go on: the compiler then relies on the
        # counter not to wrap round. And nobody goes round once more than the last thread.
        return (
            f"for ({kind} hal_round = 0;; hal_round += {step}) {{ int hal_on = 0;"
            f" {head} hal_on += ({is_on}); }} HAL_REGION_END if (!hal_on) break;"
            f" if (hal_on == hal_threads) {{ {head} {counter} {body} {foot} HAL_REGION_END }} else"
            f" {{ {head} if ({is_on}) {{ {counter}"
        )


@dataclass(slots=True)
class Turns:
    """The header of a loop in step that is one region, `for (T k = A; k < B; k++)`.

    Several rounds of a thread at once: what it keeps is then loaded and stored once for all.
    """

    counter: Variable
    start: str  # A
    bound: str  # B
    first: int  # the header's first token
    is_bare: bool  # the body has no braces

    def header(self) -> str:
        kind = self.counter.type
        return f"for ({kind} hal_turn = {self.start}; hal_turn < ({self.bound});) {{"

    def text(self, head: str, body: str, foot: str) -> str:
        """Return what stands before the body of a single round."""
        kind, name = self.counter.type, self.counter.name
        return (
            f"if (hal_is_far<{kind}>(hal_turn, {self.bound})) {{ {head}"
            f" for (int hal_more = 0; hal_more < hal_turns; hal_more++)"
            f" {{ const {kind} {name} = hal_turn + hal_more; {body} }}"
            f" {foot} HAL_REGION_END hal_turn += hal_turns; }} else"
            f" {{ {head} const {kind} {name} = hal_turn;"
        )

    def behind(self) -> str:
        return "hal_turn++; }" + (" }" if self.is_bare else "")


@dataclass(slots=True)
class Levels:
    """A loop with barriers that halves its counter, and in which only threads below it work.

    From a certain counter on its rounds are written out, each with a constant for the counter.
    """

    counter: str
    condition: str
    step: str  # "" if the body has it
    first: int  # the body's opening brace
    last: int  # and its closing one

    def text(self, body: str) -> str:
        """Return what stands before the text of the body: a copy of it for each constant."""
        rounds = f"if ({self.condition}) {{ {body}\n{self.step}; }} " * 7
        start = f"{self.counter} == hal_levels && hal_size_x >= hal_levels"
        return f"if ({start}) {{ {self.counter} = hal_levels; {rounds} break; }}"
