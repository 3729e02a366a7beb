"""Cut a picture into tiles with halos."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

_SIZES: Final = (64, 128, 256, 512, 1024, 2048)
_MOST_TILES: Final = 36


@dataclass(frozen=True, slots=True)
class Tile:
    """A tile: the place of its results in the picture, in pixels."""

    left: int
    top: int
    width: int
    height: int

    def region(self, halo: int = 0) -> tuple[slice, slice]:
        """Return the rows and columns of the tile with a halo, in a picture extended by that."""
        return (
            slice(self.top, self.top + self.height + 2 * halo),
            slice(self.left, self.left + self.width + 2 * halo),
        )


def choose_size(width: int, height: int) -> int:
    """Return the smallest tile size, a power of two, that makes at most 36 tiles."""
    for size in _SIZES:
        if -(-width // size) * -(-height // size) <= _MOST_TILES:
            return size
    return _SIZES[-1]


def cut(width: int, height: int, size: int) -> tuple[Tile, ...]:
    """Return the tiles of a picture, row by row.

    Each is `size` pixels wide and high, less at the right and lower edges.
    """
    return tuple(
        Tile(left, top, min(size, width - left), min(size, height - top))
        for top in range(0, height, size)
        for left in range(0, width, size)
    )


def extend(picture: npt.NDArray[np.uint8], halo: int) -> npt.NDArray[np.uint8]:
    """Return the picture with `halo` more pixels on each side, each like the nearest in it."""
    return np.pad(picture, ((halo, halo), (halo, halo), (0, 0)), mode="edge")
