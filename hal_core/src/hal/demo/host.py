"""The host's side: tiles that go to the device, and edges that come back."""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt

import hal
from hal.demo.kernels import halo_of
from hal.demo.tiles import cut, extend
from hal.errors import OperationError, OutOfMemoryError, UnimplementedError

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float32]


class HostTiles:
    """A picture in tiles: the bytes to upload for each, and the memory for its edges.

    Everything lies in two arrays, which are pinned if the device can do
    that, so that it copies from and to them itself. Close it, or use it in a
    with-statement, after everything that uses it and before the device.

    `tiles` are the places in the picture; the first one is as large as any. `regions` have the
    kernels' input for each: its width and height, and its colours with their halo. These bytes are
    immutable, so an upload need not copy them first. `edges` are arrays for the edge magnitude.
    """

    def __init__(self, device: hal.Device, picture: Bytes, *, sigma: float, tile_size: int) -> None:
        """Cut up a picture of shape (height, width, 3), for a blur of `sigma` pixels."""
        height, width, _ = picture.shape
        self._shape = height, width
        self.tiles: Final = cut(width, height, tile_size)
        halo = halo_of(sigma)
        extended = extend(picture, halo)
        sizes = np.array([(tile.width, tile.height) for tile in self.tiles], np.int32)
        parts = [
            size.tobytes() + extended[tile.region(halo)].tobytes()
            for size, tile in zip(sizes, self.tiles, strict=True)
        ]
        # Drivers pin whole pages, and each only once, so each array has pages of its own.
        page = bytes(mmap.PAGESIZE)
        regions = np.frombuffer(b"".join((page, *parts, page)), np.uint8)[len(page) : -len(page)]
        edge = len(page) // 4
        edges = np.empty(width * height + 2 * edge, np.float32)[edge:-edge]
        self.regions: Final = _split(regions, [len(part) for part in parts])
        self.edges: Final = [
            part.reshape(tile.height, tile.width)
            for tile, part in zip(self.tiles, _split(edges, sizes.prod(1)), strict=True)
        ]
        self._pins = [_pin(device, array) for array in (regions, edges)]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Unpin the arrays, once nothing uses them any more; they stay as they are."""
        for pin in self._pins:
            if pin is not None:
                pin.close()

    def forget(self) -> None:
        """Overwrite the edges, so that a missing tile is noticed."""
        for edges in self.edges:
            edges.fill(np.nan)

    def picture(self) -> Floats:
        """Return the edge magnitude of the whole picture, assembled."""
        whole = np.full(self._shape, np.nan, np.float32)
        for tile, edges in zip(self.tiles, self.edges, strict=True):
            whole[tile.region()] = edges
        return whole


def _split(array: npt.NDArray[Any], sizes: Sequence[int] | Ints) -> list[npt.NDArray[Any]]:
    return np.split(array, np.cumsum(sizes)[:-1])


def _pin(device: hal.Device, array: npt.NDArray[Any]) -> hal.Buffer | None:
    """Import an array into a device; without that the device copies it through its own memory."""
    try:
        return device.import_array(array)
    except (UnimplementedError, OperationError, OutOfMemoryError):
        return None
