"""The checksum of the C extension's sources; `hatch_build.py` runs this file without hal."""

from __future__ import annotations

import os
import zlib


def digest(folder: str) -> int | None:
    """Return the checksum of a folder's C files; None if there is no such folder."""
    if not os.path.isdir(folder):
        return None
    names = sorted(name for name in os.listdir(folder) if name.endswith((".c", ".h")))
    checksum = 0
    for name in names:
        with open(os.path.join(folder, name), "rb") as file:
            checksum = zlib.crc32(file.read(), checksum)
    return checksum
