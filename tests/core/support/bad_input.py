"""What is called with bad input: the call, its error, and what the text holds."""

from __future__ import annotations

import numpy as np

import hal
from hal.errors import ArgumentTypeError, HalError, InvalidArgumentError

TOP = 2**63 - 1
SIZE = 64


# By name: what is called, its error, and what the text holds
FILLS = {
    "no buffer": (lambda w: w.queue.fill(None, 1), ArgumentTypeError, "NoneType"),
    "an array": (lambda w: w.queue.fill(np.zeros(4), 1), ArgumentTypeError, "ndarray"),
    "text": (lambda w: w.queue.fill(w.bytes, "a"), ArgumentTypeError, "str"),
    "None": (lambda w: w.queue.fill(w.bytes, None), ArgumentTypeError, "NoneType"),
    "complex": (lambda w: w.queue.fill(w.floats, 1j), ArgumentTypeError, "1j is no float32"),
    "array value": (lambda w: w.queue.fill(w.bytes, np.zeros(2, "u1")), HalError, "fill"),
    "no bytes": (lambda w: w.queue.fill(w.bytes, b""), InvalidArgumentError, "1, 2, 4, 8 or 16"),
    "three bytes": (
        lambda w: w.queue.fill(w.bytes, b"abc"),
        InvalidArgumentError,
        "1, 2, 4, 8 or 16",
    ),
    "nine bytes": (lambda w: w.queue.fill(w.bytes, b"abcdefghi"), InvalidArgumentError, "update"),
    "twelve bytes": (
        lambda w: w.queue.fill(w.bytes, np.void(bytes(range(12)))),
        InvalidArgumentError,
        "1, 2, 4, 8 or 16",
    ),
    "too large": (lambda w: w.queue.fill(w.bytes, 256), InvalidArgumentError, "256.*uint8"),
    "too small": (lambda w: w.queue.fill(w.bytes, -1), InvalidArgumentError, "-1.*uint8"),
    "huge": (lambda w: w.queue.fill(w.ints, 2**100), InvalidArgumentError, "int32"),
    "huge float": (lambda w: w.queue.fill(w.floats, 10**400), InvalidArgumentError, "float32"),
    "float overflow": (lambda w: w.queue.fill(w.floats, 1e300), InvalidArgumentError, "float32"),
    "half overflow": (lambda w: w.queue.fill(w.halves, 1e10), InvalidArgumentError, "float16"),
    "float for int": (lambda w: w.queue.fill(w.ints, 1.5), ArgumentTypeError, "1.5.*int32"),
    "negative offset": (lambda w: w.queue.fill(w.bytes, 1, offset=-1), InvalidArgumentError, "-1"),
    "float offset": (lambda w: w.queue.fill(w.bytes, 1, offset=1.0), ArgumentTypeError, "float"),
    "bool offset": (lambda w: w.queue.fill(w.bytes, 1, offset=True), ArgumentTypeError, "bool"),
    "array offset": (
        lambda w: w.queue.fill(w.bytes, 1, offset=np.array([1, 2])),
        ArgumentTypeError,
        "the offset is a number of bytes as an int, not ndarray",
    ),
    "masked size": (
        lambda w: w.queue.fill(w.bytes, 1, size=np.ma.masked),
        ArgumentTypeError,
        "MaskedConstant",
    ),
    "text offset": (lambda w: w.queue.fill(w.bytes, 1, offset="1"), ArgumentTypeError, "str"),
    "negative size": (lambda w: w.queue.fill(w.bytes, 1, size=-4), InvalidArgumentError, "-4"),
    "float size": (lambda w: w.queue.fill(w.bytes, 1, size=4.0), ArgumentTypeError, "float"),
    "outside": (lambda w: w.queue.fill(w.bytes, 1, size=65), InvalidArgumentError, "65.*64"),
    "begins outside": (lambda w: w.queue.fill(w.bytes, 1, offset=65), InvalidArgumentError, "64"),
    "ends outside": (
        lambda w: w.queue.fill(w.bytes, 1, offset=60, size=5),
        InvalidArgumentError,
        "60 to 65.*64",
    ),
    "huge size": (lambda w: w.queue.fill(w.bytes, 1, size=2**64), InvalidArgumentError, "64"),
    "huge offset": (lambda w: w.queue.fill(w.bytes, 1, offset=2**64), InvalidArgumentError, "64"),
    "wraps around": (
        lambda w: w.queue.fill(w.bytes, 1, offset=2**63, size=2**63),
        InvalidArgumentError,
        "64",
    ),
    "misaligned offset": (
        lambda w: w.queue.fill(w.bytes, b"abcd", offset=2, size=4),
        InvalidArgumentError,
        "multiples of 4",
    ),
    "misaligned size": (
        lambda w: w.queue.fill(w.bytes, b"ab", size=3),
        InvalidArgumentError,
        "multiples of 2",
    ),
    "misaligned part": (
        lambda w: w.queue.fill(w.bytes.subspan(1, 8), b"ab"),
        InvalidArgumentError,
        "align|multiple",
    ),
    "foreign": (lambda w: w.queue.fill(w.foreign, 1), InvalidArgumentError, "belongs to"),
}

TRANSFERS = {
    "update too long": (
        lambda w: w.queue.update(w.bytes, bytes(65)),
        InvalidArgumentError,
        "65.*64",
    ),
    "update outside": (
        lambda w: w.queue.update(w.bytes, b"12", offset=63),
        InvalidArgumentError,
        "63 to 65",
    ),
    "update text": (lambda w: w.queue.update(w.bytes, "text"), ArgumentTypeError, "str"),
    "update number": (lambda w: w.queue.update(w.bytes, 5), ArgumentTypeError, "int"),
    "update list": (lambda w: w.queue.update(w.bytes, [1, 2]), ArgumentTypeError, "list"),
    "update objects": (
        lambda w: w.queue.update(w.bytes, np.array([object()])),
        ArgumentTypeError,
        "objects",
    ),
    "update buffer": (lambda w: w.queue.update(w.bytes, w.target), ArgumentTypeError, "copy"),
    "update strided": (
        lambda w: w.queue.update(w.bytes, np.zeros(8, "u1")[::2]),
        InvalidArgumentError,
        "ascontiguousarray",
    ),
    "update strided view": (
        lambda w: w.queue.update(w.bytes, memoryview(b"12345678")[::2]),
        InvalidArgumentError,
        "contiguous",
    ),
    "update fortran": (
        lambda w: w.queue.update(w.bytes, np.zeros((2, 2), "u1", order="F")),
        InvalidArgumentError,
        "contiguous",
    ),
    "update foreign": (lambda w: w.queue.update(w.foreign, b"1"), InvalidArgumentError, "belongs"),
    "write too long": (lambda w: w.queue.write(w.bytes, bytes(65)), InvalidArgumentError, "65.*64"),
    "write text": (lambda w: w.queue.write(w.bytes, "text"), ArgumentTypeError, "str"),
    "write to array": (lambda w: w.queue.write(bytearray(4), b"1"), ArgumentTypeError, "bytearray"),
    "read too long": (
        lambda w: w.queue.read(w.bytes, bytearray(65)),
        InvalidArgumentError,
        "65.*64",
    ),
    "read into bytes": (
        lambda w: w.queue.read(w.bytes, b"1234"),
        InvalidArgumentError,
        "read-only",
    ),
    "read into constant": (
        lambda w: w.queue.read(w.bytes, np.frombuffer(b"1234", np.uint8)),
        InvalidArgumentError,
        "read-only",
    ),
    "read into list": (lambda w: w.queue.read(w.bytes, [0]), ArgumentTypeError, "list"),
    "read strided": (
        lambda w: w.queue.read(w.bytes, np.zeros(8, "u1")[::-1]),
        InvalidArgumentError,
        "contiguous",
    ),
    "read outside": (
        lambda w: w.queue.read(w.bytes, bytearray(2), offset=63),
        InvalidArgumentError,
        "63 to 65",
    ),
    "copy overlap": (
        lambda w: w.queue.copy(w.bytes, w.bytes, target_offset=1, size=2),
        InvalidArgumentError,
        "overlap",
    ),
    "copy too long": (
        lambda w: w.queue.copy(w.bytes, w.floats),
        InvalidArgumentError,
        "target.*16",
    ),
    "copy source outside": (
        lambda w: w.queue.copy(w.floats, w.bytes, size=17),
        InvalidArgumentError,
        "source.*16",
    ),
    "copy target outside": (
        lambda w: w.queue.copy(w.bytes, w.target, target_offset=1),
        InvalidArgumentError,
        "target.*1 to 65",
    ),
    "copy negative": (
        lambda w: w.queue.copy(w.bytes, w.target, source_offset=-1),
        InvalidArgumentError,
        "-1",
    ),
    "copy from array": (
        lambda w: w.queue.copy(np.zeros(4), w.target),
        ArgumentTypeError,
        "source.*ndarray",
    ),
    "copy to array": (
        lambda w: w.queue.copy(w.bytes, np.zeros(64)),
        ArgumentTypeError,
        "target.*ndarray",
    ),
    "copy past the end of foreign": (
        lambda w: w.queue.copy(w.foreign, w.target, size=SIZE + 1),
        InvalidArgumentError,
        "copy: the source",
    ),
    "copy past the end to foreign": (
        lambda w: w.queue.copy(w.bytes, w.foreign, target_offset=SIZE),
        InvalidArgumentError,
        "copy: the target",
    ),
    "subspan outside": (lambda w: w.bytes.subspan(60, 5), InvalidArgumentError, "60 to 65.*64"),
    "subspan negative": (lambda w: w.bytes.subspan(-1, 5), InvalidArgumentError, "-1"),
    "subspan dtype": (lambda w: w.floats.subspan(0, 6), InvalidArgumentError, "6 bytes.*float32"),
    "subspan bad dtype": (
        lambda w: w.floats.subspan(0, 4, dtype="nonsense"),
        ArgumentTypeError,
        "nonsense",
    ),
    "numpy bad dtype": (lambda w: w.floats.numpy("nonsense"), ArgumentTypeError, "nonsense"),
    "numpy objects": (lambda w: w.floats.numpy(object), ArgumentTypeError, "objects"),
    "upload objects": (lambda w: w.device.upload([object()]), ArgumentTypeError, "objects"),
    "allocate an array": (
        lambda w: w.device.allocate(np.array([1, 2])),
        ArgumentTypeError,
        "size.*ndarray",
    ),
    "allocate subarrays": (
        lambda w: w.device.allocate(64, dtype=("f4", (2, 2))),
        ArgumentTypeError,
        r"float32 with a shape of its own, \(2, 2\).*use the dtype float32",
    ),
    "view subarrays": (
        lambda w: w.floats.subspan(0, 16, dtype=np.dtype(("f4", 4))),
        ArgumentTypeError,
        "use the dtype float32",
    ),
    "numpy subarrays": (
        lambda w: w.floats.numpy(("f4", (2, 2))),
        ArgumentTypeError,
        "use the dtype float32",
    ),
    "upload ragged": (
        lambda w: w.device.upload([[1, 2], [3]]),
        ArgumentTypeError,
        "upload: numpy makes no array of this list: .*inhomogeneous",
    ),
    "output of a number": (lambda w: hal.Output(3), ArgumentTypeError, "a device, not of int"),
    **{
        f"surrogate in {place}": (
            lambda w, given=given: w.device.compile(
                **{"source": "__global__ void k(int n) {}", **given}
            ),
            InvalidArgumentError,
            f"compile: {place} has the lone surrogate .*udc80' in {where}, which",
        )
        for place, given, where in (
            (
                "kernel.cpp: the source",
                {"source": "__global__ void k(int n) {}\n// \udc80"},
                "line 2, column 4",
            ),
            ("a filename", {"filename": "\udc80.cpp"}, "line 1, column 1"),
            ("the name of a macro", {"defines": {"A\udc80": 1}}, "line 1, column 2"),
            (r"defines\['A'\]", {"defines": {"A": "\udc80"}}, "line 1, column 1"),
            ("an option", {"options": ["-DA=\udc80"]}, "line 1, column 5"),
            ("the condition of trace", {"trace": "\udc80"}, "line 1, column 1"),
        )
    },
    "negative slots": (
        lambda w: w.device.record(slots=-1),
        InvalidArgumentError,
        "record: the number of slots is 0 or more; -1 was given",
    ),
    "array of slots": (
        lambda w: w.device.record(slots=np.array([1, 2])),
        ArgumentTypeError,
        "slots are a number, or a list .*, not ndarray",
    ),
    "allocate a class": (lambda w: w.device.allocate(int), ArgumentTypeError, "size.*type"),
    "call of nothing": (lambda w: w.queue.call(None), ArgumentTypeError, "NoneType"),
    "call of a result": (lambda w: w.queue.call(len("")), ArgumentTypeError, "int"),
    "call of a coroutine": (lambda w: w.queue.call(5.0), ArgumentTypeError, "float"),
}


class Index:
    def __index__(self):
        return 4


LISTS = {
    "wait number": (lambda w: w.queue.barrier(wait=5), ArgumentTypeError, "wait list.*int"),
    "wait semaphore": (lambda w: w.queue.barrier(wait=w.zero), ArgumentTypeError, r"at\(value\)"),
    "wait semaphores": (
        lambda w: w.queue.barrier(wait=[w.zero]),
        ArgumentTypeError,
        r"at\(value\).*Semaphore",
    ),
    "wait pair": (lambda w: w.queue.barrier(wait=[(w.zero, 1)]), ArgumentTypeError, "tuple"),
    "wait text": (lambda w: w.queue.barrier(wait="ab"), ArgumentTypeError, "str"),
    "wait bad pair": (
        lambda w: w.queue.barrier(wait=[hal.Timepoint(None, 1)]),
        ArgumentTypeError,
        "",
    ),
    "wait bad value": (
        lambda w: w.queue.barrier(wait=[hal.Timepoint(w.zero, "1")]),
        ArgumentTypeError,
        "str",
    ),
    "wait low value": (
        lambda w: w.queue.barrier(wait=[hal.Timepoint(w.zero, -1)]),
        InvalidArgumentError,
        "-1",
    ),
    "wait high value": (
        lambda w: w.queue.barrier(wait=[hal.Timepoint(w.zero, 2**63)]),
        InvalidArgumentError,
        r"2\*\*63",
    ),
    "bare bad pair": (
        lambda w: w.queue.barrier(wait=hal.Timepoint(None, 1)),
        ArgumentTypeError,
        "",
    ),
    "bare bad value": (
        lambda w: w.queue.barrier(wait=hal.Timepoint(w.zero, "1")),
        ArgumentTypeError,
        "str",
    ),
    "bare low value": (
        lambda w: w.queue.barrier(wait=hal.Timepoint(w.zero, -1)),
        InvalidArgumentError,
        "-1",
    ),
    "bare bad signal": (
        lambda w: w.queue.barrier(signal=hal.Timepoint(None, 1)),
        ArgumentTypeError,
        "NoneType",
    ),
    "bare low signal": (
        lambda w: w.queue.barrier(signal=hal.Timepoint(w.zero, -1)),
        InvalidArgumentError,
        "-1",
    ),
    **{
        f"{side} {nothing!r}": (
            lambda w, side=side, nothing=nothing: w.queue.barrier(**{side: nothing}),
            ArgumentTypeError,
            f"{side} list.*not {type(nothing).__name__}",
        )
        for side in ("wait", "signal")
        for nothing in (0, False, 0.0, "", b"")
    },
    "wait array": (lambda w: w.queue.barrier(wait=np.zeros(2)), ArgumentTypeError, "ndarray"),
    "signal array": (lambda w: w.queue.barrier(signal=np.zeros(2)), ArgumentTypeError, "ndarray"),
    "one bad among good": (
        lambda w: w.queue.fill(w.target, 1, wait=[w.three.at(1), w.three.at(2), None]),
        ArgumentTypeError,
        "NoneType",
    ),
    "signal number": (lambda w: w.queue.barrier(signal=5), ArgumentTypeError, "signal list.*int"),
    "signal semaphore": (
        lambda w: w.queue.barrier(signal=w.zero),
        ArgumentTypeError,
        r"at\(value\).*Semaphore",
    ),
    "signal submission": (
        lambda w: w.queue.barrier(signal=[w.queue.barrier()]),
        ArgumentTypeError,
        "Submission",
    ),
    "signal zero": (
        lambda w: w.queue.fill(w.target, 1, signal=w.zero.at(0)),
        InvalidArgumentError,
        "signal 1 or more",
    ),
    "signal reached": (
        lambda w: w.queue.fill(w.target, 1, signal=[w.zero.at(1), w.three.at(3)]),
        InvalidArgumentError,
        "signal 4 or more",
    ),
    "signal twice": (
        lambda w: w.queue.fill(w.target, 1, signal=[w.zero.at(1), w.zero.at(2)]),
        InvalidArgumentError,
        "zero.*twice",
    ),
    "waits for itself": (
        lambda w: w.queue.fill(w.target, 1, wait=w.zero.at(1), signal=w.zero.at(1)),
        InvalidArgumentError,
        "zero@1.*signal more than 1",
    ),
    "waits for later": (
        lambda w: w.queue.fill(w.target, 1, wait=[w.zero.at(7)], signal=[w.zero.at(5)]),
        InvalidArgumentError,
        "zero@7.*zero@5",
    ),
}

SEMAPHORES = {
    "at negative": (lambda w: w.zero.at(-1), InvalidArgumentError, "-1"),
    "at 2**63": (lambda w: w.zero.at(2**63), InvalidArgumentError, r"2\*\*63 - 1"),
    "at float": (lambda w: w.zero.at(1.0), ArgumentTypeError, "float"),
    "at bool": (lambda w: w.zero.at(bool(1)), ArgumentTypeError, "bool"),
    "at array": (lambda w: w.zero.at(np.array([1, 2])), ArgumentTypeError, "ndarray"),
    "at class": (lambda w: w.zero.at(int), ArgumentTypeError, "int, not type"),
    "at None": (lambda w: w.zero.at(None), ArgumentTypeError, "NoneType"),
    "at nan": (lambda w: w.zero.at(float("nan")), ArgumentTypeError, "float"),
    "poll negative": (lambda w: w.zero.poll(-1), InvalidArgumentError, "-1"),
    "poll text": (lambda w: w.zero.poll("1"), ArgumentTypeError, "str"),
    "wait negative": (lambda w: w.zero.wait(-1), InvalidArgumentError, "-1"),
    "wait 2**63": (lambda w: w.zero.wait(2**63, 0), InvalidArgumentError, r"2\*\*63"),
    "wait text": (lambda w: w.zero.wait("1", 0), ArgumentTypeError, "str"),
    "signal 2**63": (lambda w: w.zero.signal(2**63), InvalidArgumentError, r"2\*\*63"),
    "signal negative": (lambda w: w.zero.signal(-1), InvalidArgumentError, "-1"),
    "signal float": (lambda w: w.zero.signal(1.0), ArgumentTypeError, "float"),
    "signal low": (lambda w: w.three.signal(3), InvalidArgumentError, "three.*signal 4 or more"),
    "fail with text": (lambda w: w.zero.fail("broken"), ArgumentTypeError, "str"),
    "fail with a class": (lambda w: w.zero.fail(ValueError), ArgumentTypeError, "type"),
    "fail with None": (lambda w: w.zero.fail(None), ArgumentTypeError, "NoneType"),
    "callback of nothing": (lambda w: w.zero.on_reached(1, None), ArgumentTypeError, "NoneType"),
    "callback at -1": (lambda w: w.zero.on_reached(-1, print), InvalidArgumentError, "-1"),
    "reached text": (lambda w: w.zero.reached("1"), ArgumentTypeError, "str"),
    "initial negative": (lambda w: hal.create_semaphore(-1), InvalidArgumentError, "-1"),
    "initial 2**63": (lambda w: hal.create_semaphore(2**63), InvalidArgumentError, r"2\*\*63"),
    "initial text": (lambda w: hal.create_semaphore("1"), ArgumentTypeError, "str"),
    "initial None": (lambda w: hal.create_semaphore(None), ArgumentTypeError, "NoneType"),
    "name number": (lambda w: hal.create_semaphore(name=5), ArgumentTypeError, "int"),
    "wait_all number": (lambda w: hal.wait_all(5), ArgumentTypeError, "int"),
    "wait_all semaphore": (lambda w: hal.wait_all(w.zero), ArgumentTypeError, "Semaphore"),
    "wait_all pair": (lambda w: hal.wait_all([(w.zero, 0)]), ArgumentTypeError, "tuple"),
    "wait_all bare": (lambda w: hal.wait_all(hal.Timepoint(None, 0)), ArgumentTypeError, ""),
    "wait_any number": (lambda w: hal.wait_any(5), ArgumentTypeError, "int"),
    "wait_any list": (lambda w: hal.wait_any([[5]]), ArgumentTypeError, "int"),
    "wait_any bad pair": (
        lambda w: hal.wait_any([hal.Timepoint(None, 0)]),
        ArgumentTypeError,
        "",
    ),
    "wait_any bad value": (
        lambda w: hal.wait_any([hal.Timepoint(w.zero, "0")], 0),
        ArgumentTypeError,
        "str",
    ),
    "fence of numbers": (lambda w: hal.Fence([5]), ArgumentTypeError, "int"),
    "fence of nothing": (lambda w: hal.Fence(None), ArgumentTypeError, "NoneType"),
    "fence of a bad pair": (
        lambda w: hal.Fence([hal.Timepoint(w.zero, -1)]),
        InvalidArgumentError,
        "-1",
    ),
    "queue name": (lambda w: w.device.create_queue(name=5), ArgumentTypeError, "int"),
    "execute nothing": (lambda w: w.queue.execute(None), ArgumentTypeError, "NoneType"),
}
