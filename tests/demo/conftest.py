"""Pictures for the demo's tests."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("PIL", reason="the demo extra is not installed")
pytest.importorskip("scipy", reason="the demo extra is not installed")
pytest.importorskip("skimage", reason="the demo extra is not installed")

from PIL import Image

from hal.demo import picture


@pytest.fixture(scope="session")
def crop() -> np.ndarray:
    """A part of the shipped photograph with vessels in it, 150 rows of 201 pixels."""
    _, pixels = picture.load_shipped()
    return np.ascontiguousarray(pixels[560:710, 120:321])


@pytest.fixture
def crop_file(crop, tmp_path) -> Path:
    path = tmp_path / "crop.png"
    Image.fromarray(crop).save(path)
    return path
