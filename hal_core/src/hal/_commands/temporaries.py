"""The temporaries of a recording: memory that lives within it (rules C1 and M3).

All temporaries of a recording are parts of its *blocks*, which each execution reserves when it is
issued, all of them or none, and gives back after its last command. A temporary lives from its first
command up to its end. While the recording goes on each has bytes of its own in a *plan* without
bounds. When it ends all lives are known, and each gets its place in a block: two share bytes if the
commands of the one are ordered before those of the other, by a barrier or an event between them, or
by their bytes (``hazards="auto"``).

All blocks but the last are of one size, which hardly depends on the recording: what one recording
has given back the next one takes, also where that one needs more. With one block of just the size,
recordings that need a little more in turn held up to three times what the largest needs.

Placing the largest first usually wastes least; where sizes vary little, placing those that live
longest does. No order is always the best, so a few are tried, and the one that takes the least is
chosen. Two alternatives were rejected. Choosing places while the commands are recorded took up to
1.7 times the bytes that live at once. Allocation nodes of native graphs let an instance run only
once at a time, no statistics count their pool, and streams have no such thing.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np

from hal._commands.hazards import END
from hal._memory.blocks import ALIGNMENT, aligned
from hal.arguments import shown
from hal.errors import OutOfMemoryError

if TYPE_CHECKING:
    from numpy.typing import NDArray


_Numbers: TypeAlias = "NDArray[np.int64]"


class Life:
    """The life of one temporary, which has `size` bytes from `start` of the plan on."""

    __slots__ = ("after", "is_over", "last", "size", "start")

    def __init__(self, start: int, size: int) -> None:
        self.start = start
        self.size = size
        # Commands before this one have ended before its first command; None before it has any.
        self.after: int | None = None
        self.last = END  # the last command that was recorded before its end
        self.is_over = False  # whether it was given back


class Arena:
    """The temporaries of a recording and their blocks; one thread uses it."""

    __slots__ = ("_lives", "_starts", "_top", "blocks")

    def __init__(self) -> None:
        self._lives: list[Life] = []
        self._starts: list[int] = []  # of the lives
        self._top = 0
        self.blocks: tuple[int, ...] = ()  # the bytes of each, once they are known

    def take(self, size: int) -> Life:
        """Begin a temporary of `size` > 0 bytes."""
        life = Life(self._top, size)
        top = self._top + aligned(size) + ALIGNMENT  # its end is no other's beginning
        if top > END:
            raise OutOfMemoryError(
                f"alloca: with {shown(size)} bytes more the temporaries of the recording exceed "
                "any memory; ask for less"
            )
        self._top = top
        self._lives.append(life)
        self._starts.append(life.start)
        return life

    def use(self, start: int, after: int) -> None:
        """Note a command that uses a byte, and comes after those before `after`."""
        life = self._lives[bisect_right(self._starts, start) - 1]
        if life.after is None:
            life.after = after

    def settle(self) -> Callable[[int], tuple[int, int]]:
        """Choose all places; return what gives the block and the place there of a planned byte."""
        used = [life for life in self._lives if life.after is not None]
        starts = [life.start for life in used]
        sizes = np.array([aligned(life.size) for life in used], np.int64)
        first = np.array([life.after for life in used], np.int64)
        last = np.array([life.last for life in used], np.int64)
        least = _most_alive(sizes, first, last)
        unit = _block_size(int(sizes.max(initial=0)), least)
        places, size = _arrange(sizes, first, last, least, unit)
        whole, rest = divmod(size, unit)
        self.blocks = (unit,) * whole + (rest,) * bool(rest)
        begins: list[int] = places.tolist()

        def place(byte: int) -> tuple[int, int]:
            index = bisect_right(starts, byte) - 1
            # Of its beginning: a life that fills its block ends in it, and not in the next one.
            block, begin = divmod(begins[index], unit)
            return block, begin + byte - starts[index]

        return place


_BLOCK: Final = 128 << 20
"""Bytes of a block, unless there are larger temporaries, or very many.

Half of it saves little more, and takes and gives twice as often.
"""
_MOST_BLOCKS: Final = 32
"""About how many blocks a recording has at the most: each execution takes and gives all of them."""

_NEAR: Final = 64
"""An order will do if its places exceed what lives at once by no more than this part of it."""


def _block_size(largest: int, least: int) -> int:
    """Return the bytes of all blocks but the last; one for many recordings, so a power of two."""
    return 1 << (max(_BLOCK, largest, least // _MOST_BLOCKS) - 1).bit_length()


def _arrange(
    sizes: _Numbers, first: _Numbers, last: _Numbers, least: int, unit: int
) -> tuple[_Numbers, int]:
    """Return places for all lives, and where they end; no life crosses a multiple of `unit`."""
    spans = np.minimum(last, first.max(initial=0)) - first + 1.0
    best = None
    for order in (sizes, sizes * spans, -first):
        places = _place(np.argsort(-order, kind="stable"), sizes, first, last, unit)
        size = int((places + sizes).max(initial=0))
        if best is None or size < best[1]:
            best = places, size
        if best[1] - least <= least // _NEAR:
            break
    assert best is not None  # noqa: S101 - there are some orders
    return best


def _most_alive(sizes: _Numbers, first: _Numbers, last: _Numbers) -> int:
    """Return the most bytes that live at once."""
    when = np.concatenate([first, last])
    change = np.concatenate([sizes, -sizes])
    # At one command, count those that begin before those that end: both have bytes then.
    order = np.lexsort([-change, when])
    return int(np.cumsum(change[order]).max(initial=0))


def _place(
    order: _Numbers, sizes: _Numbers, first: _Numbers, last: _Numbers, unit: int
) -> _Numbers:
    """Place one after the other, each in the lowest gap that no other life has at its time."""
    places = np.zeros_like(sizes)
    is_placed = np.zeros(len(sizes), np.bool_)
    for each in order:
        others = np.flatnonzero(is_placed & (first <= last[each]) & (last >= first[each]))
        others = others[np.argsort(places[others])]
        gaps = np.maximum.accumulate(np.append(0, places[others] + sizes[others]))
        left = -gaps % unit  # in the block that a gap begins in
        gaps += np.where(left < sizes[each], left, 0)
        fits = np.flatnonzero(places[others] - gaps[:-1] >= sizes[each])
        places[each] = gaps[fits[0] if fits.size else -1]
        is_placed[each] = True
    return places
