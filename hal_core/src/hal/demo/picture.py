"""Read and write the demo's pictures; every mistake is a `HalError` of one line."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps, UnidentifiedImageError

from hal.errors import InvalidArgumentError, NotFoundError

_BYTE: Final = 255


def load(path: Path) -> npt.NDArray[np.uint8]:
    """Return a picture as red, green and blue bytes of shape (height, width, 3).

    Whatever Pillow can open: turned upright, transparency dropped, the first
    frame of an animation, 16-bit and floating-point grey scaled to 8 bits. Raises `NotFoundError`,
    and `InvalidArgumentError` for what cannot be read, is no picture, or is one of absurd size.
    """
    try:
        with Image.open(path) as image:
            upright = ImageOps.exif_transpose(image)
            return _to_rgb(upright)
    except FileNotFoundError:
        raise NotFoundError(f"there is no file {str(path)!r}") from None
    except UnidentifiedImageError:
        raise InvalidArgumentError(f"{str(path)!r} is not a picture that Pillow can read") from None
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        # Pillow raises SyntaxError and ValueError too for damaged files.
        reason = (isinstance(error, OSError) and error.strerror) or str(error)
        raise InvalidArgumentError(f"cannot read {str(path)!r} as a picture: {reason}") from error


def _to_rgb(image: Image.Image) -> npt.NDArray[np.uint8]:
    if image.mode.startswith("I") or image.mode == "F":
        # Pillow clips these to 0..255 where it converts them; scale instead.
        grey = np.asarray(image, dtype=np.float64)
        if image.mode.startswith("I;16") or (image.mode == "I" and grey.max(initial=0) > _BYTE):
            grey = grey / 257.0
        elif image.mode == "F":
            low, high = float(grey.min(initial=0)), float(grey.max(initial=0))
            grey = (grey - low) * (255.0 / (high - low or 1.0))
        bytes_ = np.clip(np.rint(grey), 0, 255).astype(np.uint8)
        return np.ascontiguousarray(np.repeat(bytes_[:, :, None], 3, axis=2))
    return np.array(image.convert("RGB"), dtype=np.uint8)


def load_shipped() -> tuple[str, npt.NDArray[np.uint8]]:
    """Return the name and the pixels of a photograph that scikit-image ships.

    It is the retina, 1411 by 1411 pixels, in the public domain, inside the wheel: nothing is
    downloaded.
    """
    # Imported here, because skimage takes long to import and a user's own picture does not need it.
    from skimage import data  # noqa: PLC0415

    retina: Callable[[], npt.ArrayLike] = data.retina
    return "retina", np.array(retina(), dtype=np.uint8)


def check_output(path: Path) -> None:
    """Raise `InvalidArgumentError` unless a picture can be written to `path`.

    A check ahead of the work; writing may still fail later.
    """
    suffix = path.suffix.lower()
    if Image.registered_extensions().get(suffix) not in Image.SAVE:
        message = f"cannot write {str(path)!r}: Pillow writes no {suffix!r} pictures; use .png"
        raise InvalidArgumentError(message)
    folder = path.parent
    if not folder.is_dir():
        message = f"cannot write {str(path)!r}: there is no folder {str(folder)!r}"
        raise InvalidArgumentError(message)
    if path.is_dir():
        raise InvalidArgumentError(f"cannot write {str(path)!r}: it is a folder")
    if not os.access(path if path.exists() else folder, os.W_OK):
        raise InvalidArgumentError(f"cannot write {str(path)!r}: permission denied")


def save_edges(edges: npt.NDArray[np.float32], path: Path) -> None:
    """Write an edge magnitude as a grey picture.

    The square root of the magnitude, so that faint edges show, from black at
    0 (and where there is no number) to white at its 99.9th percentile. Raises
    as `save_image`.
    """
    root = np.sqrt(np.nan_to_num(edges))
    white = float(np.quantile(root, 0.999)) or 1.0
    pixels = np.clip(root * (255.0 / white), 0.0, 255.0).astype(np.uint8)
    save_image(Image.fromarray(pixels), path)


def save_image(image: Image.Image, path: Path) -> None:
    """Write a picture in the format of the file's suffix.

    Raises `InvalidArgumentError` if that fails.
    """
    try:
        image.save(path)
    except (OSError, ValueError, KeyError) as error:
        reason = (isinstance(error, OSError) and error.strerror) or str(error)
        raise InvalidArgumentError(f"cannot write {str(path)!r}: {reason}") from error
