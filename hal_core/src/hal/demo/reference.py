"""Compute the demo's expected result, with scipy, in double precision.

This is the oracle: it shares no code, no tiles and no formulas with the
pipeline, only the definition. Luminance of ITU-R BT.601, Gaussian blur, the
length of Sobel's gradient, of a picture that continues beyond its edges with its
nearest pixel.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
import numpy.typing as npt
from scipy import ndimage

_TRUNCATE: Final = 4.0  # standard deviations at which the Gaussian ends; scipy's default

_UNIT_ROUNDOFF: Final = 2.0**-24  # half a unit in the last place of single precision, relative


def edges(rgb: npt.NDArray[np.uint8], sigma: float) -> npt.NDArray[np.float64]:
    """Return the edge magnitude of a picture of shape (height, width, 3).

    `sigma` is the blur's standard deviation in pixels.
    """
    # Extended first, by everything that contributes, so that scipy's own border mode affects
    # nothing that is kept: it would extend the blurred picture once more for Sobel.
    margin = _radius(sigma) + 1
    grey = rgb.astype(np.float64) @ np.array([0.299, 0.587, 0.114])
    extended = np.pad(grey, margin, mode="edge")
    smooth = ndimage.gaussian_filter(extended, sigma, truncate=_TRUNCATE)
    magnitude = np.hypot(ndimage.sobel(smooth, axis=1), ndimage.sobel(smooth, axis=0))
    return np.asarray(magnitude[margin:-margin, margin:-margin], dtype=np.float64)


def tolerance(sigma: float) -> float:
    """Return how far single precision may be off, in units of the magnitude.

    A bound, not a guess. A sum of n products of positive numbers below 255,
    in any order, is off by at most 255 (n + 1) u, where u is the unit
    roundoff; the rounded weights add one u. Luminance has 3 products and each
    blur has n = 2 radius + 1. Sobel takes 8 such values and rounds its own
    sums of at most 4 x 255 six times; the length of the two components
    multiplies by at most the root of 2 and rounds three times more.

    The bound is about a hundredth for a sigma of 2; the magnitude goes up to
    1442. Wrong borders, misplaced and missing tiles are off by far more where
    the picture has any contrast.
    """
    taps = 2 * _radius(sigma) + 1
    smooth = 255.0 * _UNIT_ROUNDOFF * (5 + 2 * (taps + 2))
    component = 8.0 * smooth + 6.0 * 4.0 * 255.0 * _UNIT_ROUNDOFF
    longest = math.sqrt(2.0) * 4.0 * 255.0
    return math.sqrt(2.0) * component + 3.0 * longest * _UNIT_ROUNDOFF


def _radius(sigma: float) -> int:
    """Return how many pixels on each side scipy's Gaussian looks at."""
    return int(_TRUNCATE * sigma + 0.5)
