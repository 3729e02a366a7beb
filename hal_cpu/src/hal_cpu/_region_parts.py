"""The parts that a kernel is divided into."""

from __future__ import annotations

from dataclasses import dataclass, field

from hal_cpu._region_tokens import without_comments

__all__ = ["Region", "Rounds", "Step", "Variable"]


@dataclass(slots=True)
class Variable:
    name: str
    type: str  # with its stars
    dimensions: str
    is_const: bool


@dataclass(slots=True)
class Region:
    """A range of tokens that each thread runs, and what it declares for all of the range."""

    first: int
    last: int = 0  # behind the last token
    declared: list[Variable] = field(default_factory=list)
    again: list[tuple[tuple[str, ...], int, int]] = field(default_factory=list)  # names, tokens
    rounds: Rounds | None = None


@dataclass(slots=True)
class Rounds:
    """The header of a loop whose counters differ by thread, `for (T i = A; i < B; i += C)`."""

    counter: Variable
    texts: tuple[str, str, str]  # A, B, C
    body: int  # its first token

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
class Step:
    """A loop that the threads run in step, a round of each after a round of each."""

    first: int
    last: int
    number: int  # of its first region
    has_other_way: bool = True
