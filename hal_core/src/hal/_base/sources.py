"""The checksum of the C extension's sources; `hatch_build.py` runs this file as well."""

from __future__ import annotations

import os
import zlib

from hal.handlers import own


def digest(folder: str) -> int | None:
    """Return the checksum of a folder's C files; None if there is no such folder."""
    try:
        names = sorted(name for name in os.listdir(folder) if name.endswith((".c", ".h")))
    except own(OSError):
        return None
    checksum = 0
    for name in names:
        with open(os.path.join(folder, name), "rb") as file:
            checksum = zlib.crc32(file.read(), checksum)
    return checksum
