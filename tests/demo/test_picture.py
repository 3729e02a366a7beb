"""Reading and writing pictures."""

import numpy as np
import pytest
from PIL import Image

import hal
from hal.demo import picture


def test_the_shipped_photograph_is_there_without_a_network():
    name, pixels = picture.load_shipped()
    assert name == "retina"
    assert pixels.shape == (1411, 1411, 3)
    assert pixels.dtype == np.uint8
    assert pixels.std() > 10


def test_colour_is_read_as_it_is(crop, crop_file):
    np.testing.assert_array_equal(picture.load(crop_file), crop)


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGBA", "CMYK", "YCbCr", "HSV"])
def test_every_mode_becomes_red_green_blue(crop, tmp_path, mode):
    path = tmp_path / ("picture.tif" if mode in {"CMYK", "YCbCr"} else "picture.png")
    image = Image.fromarray(crop).convert(mode)
    if mode == "HSV":
        image = image.convert("RGB")
    image.save(path)
    pixels = picture.load(path)
    assert pixels.shape == crop.shape
    assert pixels.dtype == np.uint8
    assert pixels.std() > 10


def test_sixteen_bits_are_scaled_not_clipped(tmp_path):
    path = tmp_path / "deep.png"
    deep = np.linspace(0, 65535, 64, dtype=np.uint16).reshape(8, 8)
    Image.fromarray(deep).save(path)
    pixels = picture.load(path)
    np.testing.assert_array_equal(pixels[..., 0], np.rint(deep / 257.0).astype(np.uint8))


def test_a_photograph_on_its_side_is_turned(tmp_path):
    path = tmp_path / "turned.jpg"
    exif = Image.Exif()
    exif[0x0112] = 6  # orientation: a quarter to the right
    Image.new("RGB", (40, 20)).save(path, exif=exif)
    assert picture.load(path).shape == (40, 20, 3)


def test_a_missing_file(tmp_path):
    with pytest.raises(hal.errors.NotFoundError, match="there is no file"):
        picture.load(tmp_path / "nowhere.png")


def test_a_text(tmp_path):
    path = tmp_path / "text.png"
    path.write_text("no picture")
    with pytest.raises(hal.errors.InvalidArgumentError, match="not a picture"):
        picture.load(path)


def test_half_a_picture(crop_file):
    data = crop_file.read_bytes()
    crop_file.write_bytes(data[: len(data) // 2])
    with pytest.raises(hal.errors.InvalidArgumentError, match="cannot read"):
        picture.load(crop_file)


def test_a_folder(tmp_path):
    with pytest.raises(hal.errors.InvalidArgumentError, match="cannot read"):
        picture.load(tmp_path)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("nowhere/edges.png", "there is no folder"),
        ("edges.docx", "Pillow writes no"),
        ("edges", "Pillow writes no"),
        ("folder.png", "it is a folder"),
    ],
)
def test_outputs_that_cannot_be_written(tmp_path, name, reason):
    (tmp_path / "folder.png").mkdir()
    with pytest.raises(hal.errors.InvalidArgumentError, match=reason):
        picture.check_output(tmp_path / name)


def test_edges_become_grey_levels(tmp_path):
    path = tmp_path / "edges.png"
    picture.save_edges(np.array([[0.0, 1.0], [4.0, 4.0]], np.float32), path)
    with Image.open(path) as image:
        assert image.mode == "L"
        np.testing.assert_array_equal(np.asarray(image), [[0, 127], [255, 255]])


def test_no_edges_at_all_are_black(tmp_path):
    path = tmp_path / "edges.png"
    picture.save_edges(np.zeros((3, 3), np.float32), path)
    with Image.open(path) as image:
        assert not np.asarray(image).any()
