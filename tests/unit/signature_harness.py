"""Pack arguments, and read their bytes as a driver would."""

import ctypes

import numpy as np

from hal._programs.signature import Signature


class Buffer:
    """Stand in for a device buffer."""

    def __init__(self, address):
        self.address = address


def resolve(argument, name):
    assert isinstance(name, str)
    return argument.address if isinstance(argument, Buffer) else None


def pack(text, *arguments):
    return Signature.parse(text).pack("kernel", arguments, resolve)


def pointers(block, count):
    return list((ctypes.c_void_p * count).from_address(block.address))


def contents(block, *sizes):
    """Read each argument's bytes as a driver would: through its pointer."""
    return [
        ctypes.string_at(pointer, size)
        for pointer, size in zip(pointers(block, len(sizes)), sizes, strict=True)
    ]


def packed_bytes(parameter_type, argument):
    size = Signature.parse(parameter_type).parameters[0].size
    return contents(pack(parameter_type, argument), size)[0]


class Pair(ctypes.Structure):
    _fields_ = (("a", ctypes.c_int32), ("b", ctypes.c_float))


PAIR = np.dtype([("a", "<i4"), ("b", "<f4")])


# Values


INTEGERS = {f"{sign}{bits}": bits for sign in "iu" for bits in (8, 16, 32, 64)}


def limits(name):
    info = np.iinfo({"i": "int", "u": "uint"}[name[0]] + name[1:])
    return int(info.min), int(info.max)


# Types


BUFFER = Buffer(4096)
