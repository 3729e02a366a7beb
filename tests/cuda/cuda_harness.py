"""Images by hand, for the tests of the CUDA backend."""

import struct


def fatbin(*parts):
    """Return a fat binary of parts, each a kind and an architecture's number."""
    body = b"".join(
        struct.pack("<HHIQ", kind, 0x101, 64, 16)
        + bytes(12)
        + struct.pack("<I", number)
        + bytes(48)
        for kind, number in parts
    )
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body
