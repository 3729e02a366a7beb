"""The oracle against numbers worked out by hand."""

import numpy as np
import pytest
from scipy import ndimage

from hal.demo import reference
from hal.demo.kernels import gaussian


def test_a_flat_picture_has_no_edges():
    flat = np.full((20, 30, 3), 77, np.uint8)
    assert np.abs(reference.edges(flat, 2.0)).max() < 1e-10


def test_a_ramp_has_the_same_slope_everywhere_inside():
    ramp = np.repeat(np.repeat(np.arange(60, dtype=np.uint8)[None, :, None], 40, 0), 3, 2)
    inside = reference.edges(ramp, 1.0)[:, 10:-10]
    assert inside == pytest.approx(8.0)


@pytest.mark.parametrize("sigma", [0.3, 1.0, 2.0, 5.5])
def test_the_pipeline_takes_the_same_weights(sigma):

    row = ndimage.gaussian_filter1d(np.eye(1, 201, 100)[0], sigma)
    weights = gaussian(sigma)
    radius = len(weights) // 2
    np.testing.assert_allclose(weights, row[100 - radius : 101 + radius], rtol=1e-6)
    assert not row[: 100 - radius].any()


def test_the_tolerance_is_far_below_what_a_wrong_pixel_makes():
    # The most that one grey level at one pixel of the blurred picture can add.
    assert reference.tolerance(2.0) < 0.01
    assert reference.tolerance(32.0) < 0.2
