"""Judge whether neighbouring threads that run a loop in step touch neighbouring elements.

A judgement about speed alone, by the look of the text: where it is wrong the kernel is slower.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from hal_cpu._region_tokens import ASSIGNMENTS

_NONE: Final = 0
_ONE: Final = 1
_FAR: Final = 2
_SPREADING: Final = frozenset(["*", "/", "%", "<<", ">>"])
# Threads that wait for each other in a loop of their own, or whose order shows.
IN_TURN: Final = frozenset(
    [
        *("while", "do", "break", "continue", "return", "atomicCAS", "atomicExch", "printf"),
        *("assert", "__assert_fail"),  # what the preprocessor makes of it
    ]
)


def strides_of(texts: Sequence[str], pair: Mapping[int, int]) -> dict[str, int]:
    """Return how far neighbouring threads are apart in each variable: one, or farther."""
    strides: dict[str, int] = {}
    for index, text in enumerate(texts):
        if text == "=":
            name, end = texts[index - 1], index + 1
            while end < len(texts) and texts[end] not in {",", ";"}:
                end = pair.get(end, end) + 1
            # An element of memory may be anything.
            stride = _NONE if "[" in texts[index:end] else _stride(texts, pair, strides, index, end)
            if stride:
                strides[name] = max(stride, strides.get(name, _NONE))
    return strides


def _stride(
    texts: Sequence[str], pair: Mapping[int, int], strides: Mapping[str, int], first: int, last: int
) -> int:
    found = _NONE
    groups: list[tuple[int, int]] = []
    for index in range(first, last):
        text = texts[index]
        if text in {"(", "["}:
            groups.append((index, pair[index]))
        if texts[index - 1] == ".":
            continue
        is_index = text == "threadIdx" and texts[index + 2] == "x"
        stride = _ONE if is_index or text == "hal_rank" else strides.get(text, _NONE)
        if stride:
            ends = [(index, index + 2 if is_index else index)]
            ends += [each for each in groups if each[0] < index < each[1]]
            if any(texts[a - 1] == "*" or texts[b + 1] in _SPREADING for a, b in ends):
                stride = _FAR
            found = max(found, stride)
    return found


def in_step_pays(
    texts: Sequence[str],
    pair: Mapping[int, int],
    strides: Mapping[str, int],
    own: Collection[str],
    body: tuple[int, int],
) -> bool:
    """Return whether the threads of a block should run the body of a loop in step.

    Parameters
    ----------
    texts, pair
        The words of the kernel, and where each opening bracket's partner is.
    strides
        Those of its variables, as `strides_of` returns them.
    own
        The arrays that each thread has for itself.
    body
        The range of the body.
    """
    first, last = body
    if any(text in IN_TURN or text in own for text in texts[first:last]):
        return False
    found = _NONE
    for index in range(first, last):
        is_pointer = texts[index : index + 2] == ["*", "("] and (
            texts[index - 1] in {"(", ",", ";", "{", "}", "?", ":"} | ASSIGNMENTS
        )
        if texts[index] != "[" and not is_pointer:
            continue
        open_ = index + is_pointer
        stride = _stride(texts, pair, strides, open_ + 1, pair[open_])
        if texts[index] == "[":
            stride = max(stride, strides.get(texts[index - 1], _NONE))
            if stride and texts[pair[index] + 1] == "[":
                stride = _FAR
        if stride == _FAR:
            return False
        found = max(found, stride)
    return found == _ONE
