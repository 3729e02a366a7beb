"""Read and make tensors as the DLPack standard lays them out, and wait for what was dropped."""

import ctypes
import gc
import threading

import numpy as np
from core_harness import LIMIT, wait_until

DTYPES = ["?", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8", "c8", "c16"]
NUMPY_HAS_VERSIONS = np.lib.NumpyVersion(np.__version__) >= "2.1.0"
PLAIN, VERSIONED = b"dltensor", b"dltensor_versioned"

# What the DLPack standard prints of its structures, written down again as plain offsets: of
# "dltensor" the tensor stands at 0 and the deleter behind it; of the other it stands at 32.
TENSOR = np.dtype(
    {
        "names": ["data", "type", "id", "ndim", "code", "bits", "lanes", "shape", "strides", "off"],
        "formats": ["u8", "i4", "i4", "i4", "u1", "u1", "u2", "u8", "u8", "u8"],
        "offsets": [0, 8, 12, 16, 20, 21, 22, 24, 32, 40],
        "itemsize": 48,
    }
)
PLAIN_DELETER, VERSIONED_DELETER, FLAGS, VERSIONED_TENSOR = 56, 16, 24, 32
READ_ONLY, IS_COPIED = 1, 2

python_api = {
    name: ctypes.PYFUNCTYPE(result, *arguments)((name, ctypes.pythonapi))
    for name, result, *arguments in (
        ("PyCapsule_GetName", ctypes.c_char_p, ctypes.py_object),
        ("PyCapsule_GetPointer", ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p),
        ("PyCapsule_New", ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p),
    )
}
deleter_type = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


def name_of(capsule):
    return python_api["PyCapsule_GetName"](capsule)


def memory_of(address, size):
    return np.frombuffer((ctypes.c_char * size).from_address(address), np.uint8)


def look_into(capsule):
    """Return a capsule's tensor as a record, its shape, strides and flags."""
    name = name_of(capsule)
    pointer = python_api["PyCapsule_GetPointer"](capsule, name)
    start = VERSIONED_TENSOR if name == VERSIONED else 0
    tensor = memory_of(pointer + start, 48).view(TENSOR)[0].copy()
    count = int(tensor["ndim"])
    shape = [memory_of(int(tensor["shape"]), 8 * count).view("i8").tolist() if count else []][0]
    strides = None
    if count and tensor["strides"]:
        strides = memory_of(int(tensor["strides"]), 8 * count).view("i8").tolist()
    flags = int(memory_of(pointer + FLAGS, 8).view("u8")[0]) if name == VERSIONED else None
    return tensor, shape, strides, flags


_kept = []


class Producer:
    """A tensor of another library: its structures are laid out here, its deleter counts."""

    def __init__(
        self,
        array,
        *,
        versioned=True,
        flags=0,
        code=None,
        bits=None,
        lanes=1,
        device=(1, 0),
        strides=True,
        major=1,
        offset=0,
    ):
        self.array = array
        self.name = VERSIONED if versioned else PLAIN
        self.device = device
        self.deleted = []
        self.asked = []
        self.accepts_versions = versioned
        self._block = np.zeros(96, np.uint8)
        self._shape = np.array(array.shape, np.int64)
        self._strides = np.array([s // array.itemsize for s in array.strides], np.int64)
        self._deleter = deleter_type(lambda _: self.deleted.append(threading.get_ident()))
        codes = {"i": 0, "u": 1, "f": 2, "c": 5, "b": 6}
        start = VERSIONED_TENSOR if versioned else 0
        tensor = self._block[start : start + 48].view(TENSOR)[0]
        tensor["data"] = array.ctypes.data - offset
        tensor["type"], tensor["id"] = device
        tensor["ndim"] = array.ndim
        tensor["code"] = codes[array.dtype.kind] if code is None else code
        tensor["bits"] = 8 * array.itemsize if bits is None else bits
        tensor["lanes"] = lanes
        tensor["shape"] = self._shape.ctypes.data
        tensor["strides"] = self._strides.ctypes.data if strides else 0
        tensor["off"] = offset
        if versioned:
            self._block[:4].view("u4")[0] = major
            self._block[FLAGS : FLAGS + 8].view("u8")[0] = flags
        at = VERSIONED_DELETER if versioned else PLAIN_DELETER
        address = ctypes.cast(self._deleter, ctypes.c_void_p).value
        self._block[at : at + 8].view("u8")[0] = address
        self._name = ctypes.c_char_p(self.name)
        _kept.append(self)  # hal may call the deleter after the test

    def __dlpack_device__(self):
        return self.device

    def __dlpack__(self, **asked):
        self.asked.append(asked)
        if asked and not self.accepts_versions:
            message = f"unexpected keyword arguments {sorted(asked)}"
            raise TypeError(message)
        return python_api["PyCapsule_New"](self._block.ctypes.data, self._name, None)


def settle(device):
    """Let everything that was dropped be given back."""
    gc.collect()
    device.wait_idle(LIMIT)
    device.trim(1 << 40)


def assert_soon(device, condition):
    """Give back what was dropped until `condition` holds: other threads of hal's help with it."""

    def holds():
        if not device.closed:
            settle(device)
        return condition()

    wait_until(holds)


def closed_buffer(device):
    buffer = device.allocate(16)
    buffer.close()
    return buffer
