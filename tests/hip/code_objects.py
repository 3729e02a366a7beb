"""Make code objects and bundles of them by hand, as AMD's tools lay them out."""

import struct


def pack(value):
    """Return a value in MessagePack, in the longest form that it has."""
    if value is None or isinstance(value, bool):
        return {None: b"\xc0", False: b"\xc2", True: b"\xc3"}[value]
    if isinstance(value, int):
        return struct.pack(">Bq", 0xD3, value) if value < 0 else struct.pack(">BQ", 0xCF, value)
    if isinstance(value, float):
        return struct.pack(">Bd", 0xCB, value)
    if isinstance(value, bytes):
        return struct.pack(">BI", 0xC6, len(value)) + value
    if isinstance(value, str):
        return struct.pack(">BI", 0xDB, len(value.encode())) + value.encode()
    if isinstance(value, list):
        return struct.pack(">BI", 0xDD, len(value)) + b"".join(map(pack, value))
    pairs = b"".join(pack(key) + pack(each) for key, each in value.items())
    return struct.pack(">BI", 0xDF, len(value)) + pairs


def pack_short(value):
    """Return a value in MessagePack, in the shortest form, as compilers write it."""
    if isinstance(value, int) and not isinstance(value, bool) and -32 <= value < 128:
        return struct.pack(">b", value)
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 65536:
        return struct.pack(">BH", 0xCD, value)
    if isinstance(value, str) and len(value) < 32:
        return bytes([0xA0 | len(value)]) + value.encode()
    if isinstance(value, str):
        return bytes([0xD9, len(value)]) + value.encode()
    if isinstance(value, list) and len(value) < 16:
        return bytes([0x90 | len(value)]) + b"".join(map(pack_short, value))
    if isinstance(value, dict) and len(value) < 16:
        pairs = b"".join(pack_short(k) + pack_short(v) for k, v in value.items())
        return bytes([0x80 | len(value)]) + pairs
    return pack(value)


def argument(size, kind="by_value"):
    return {".offset": 0, ".size": size, ".value_kind": kind}


def kernel(name, *sizes, **more):
    """Return a kernel's metadata; each size is a parameter's in the source."""
    hidden = [argument(8, f"hidden_global_offset_{axis}") for axis in "xyz"]
    return {
        ".name": name,
        ".symbol": f"{name}.kd",
        ".args": [*(argument(size) for size in sizes), *hidden],
        ".max_flat_workgroup_size": 256,
        ".group_segment_fixed_size": 1024,
        ".wavefront_size": 64,
        **more,
    }


def note(name, kind, content):
    """Return one note of an ELF file."""

    def padded(data):
        return data + bytes(-len(data) % 4)

    return struct.pack("<III", len(name), len(content), kind) + padded(name) + padded(content)


def code_object(*kernels, target="gfx90a", packer=pack_short, machine=224, extra=b""):
    """Return an ELF file with one segment of notes, in which the metadata are."""
    metadata = {
        "amdhsa.version": [1, 2],
        "amdhsa.target": f"amdgcn-amd-amdhsa--{target}",
        "amdhsa.kernels": list(kernels),
    }
    notes = extra + note(b"AMDGPU\0", 32, packer(metadata))
    start = 64 + 56
    header = struct.pack(
        "<16sHHIQQQIHHHHHH",
        b"\x7fELF\x02\x01\x01\x40\x03" + bytes(7),
        *(3, machine, 1, 0, 64, 0, 0x53F, 64, 56, 1, 64, 0, 0),
    )
    segment = struct.pack("<IIQQQQQQ", 4, 4, start, start, start, len(notes), len(notes), 4)
    return header + segment + notes


def bundle_of(parts):
    """Return a bundle of clang's, of a mapping of triples to contents."""
    heads, contents = b"", b""
    position = 32 + sum(24 + len(triple) for triple in parts)
    for triple, content in parts.items():
        heads += struct.pack("<QQQ", position + len(contents), len(content), len(triple))
        heads += triple.encode()
        contents += content
    return b"__CLANG_OFFLOAD_BUNDLE__" + struct.pack("<Q", len(parts)) + heads + contents
