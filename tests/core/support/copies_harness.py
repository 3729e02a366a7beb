"""Sizes and contents for tests of copies from and to host memory."""

import numpy as np

from hal._transfers.transfers import SMALL

SLOT = 4096
"""A page."""

LARGE = SMALL + 1
MANY = 50 * SLOT + 123


def some(size, seed=0):
    return np.random.default_rng(seed).integers(0, 256, size, np.uint8)
