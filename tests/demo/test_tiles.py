"""Cutting pictures into tiles."""

import numpy as np
import pytest

from hal.demo.tiles import choose_size, cut, extend


@pytest.mark.parametrize(
    ("width", "height", "size"),
    [(1, 1, 16), (100, 70, 32), (64, 64, 64), (65, 63, 16), (7, 300, 64)],
)
def test_every_pixel_is_in_one_tile(width, height, size):
    covered = np.zeros((height, width), np.int32)
    tiles = cut(width, height, size)
    for tile in tiles:
        covered[tile.region()] += 1
        assert 0 < tile.width <= tiles[0].width <= size
        assert 0 < tile.height <= tiles[0].height <= size
    assert (covered == 1).all()


@pytest.mark.parametrize("halo", [1, 9, 40])
def test_a_region_is_the_tile_with_what_lies_around(halo):
    height, width = 50, 70
    picture = np.random.default_rng(1).integers(0, 256, (height, width, 3)).astype(np.uint8)
    extended = extend(picture, halo)
    for tile in cut(width, height, 16):
        region = extended[tile.region(halo)]
        assert region.shape == (tile.height + 2 * halo, tile.width + 2 * halo, 3)
        rows = np.clip(np.arange(-halo, tile.height + halo) + tile.top, 0, height - 1)
        columns = np.clip(np.arange(-halo, tile.width + halo) + tile.left, 0, width - 1)
        np.testing.assert_array_equal(region, picture[np.ix_(rows, columns)])


@pytest.mark.parametrize(
    ("width", "height", "size"),
    [(1, 1, 64), (512, 512, 128), (1411, 1411, 256), (8000, 8000, 2048)],
)
def test_chosen_size_is_the_smallest_that_makes_36_tiles_at_most(width, height, size):
    assert choose_size(width, height) == size
    assert len(cut(width, height, size)) <= 36
