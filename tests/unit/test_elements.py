"""Which elements a pointer takes a buffer of (C5)."""

import numpy as np
import pytest

from hal._programs.elements import alignment_of, dtype_of, fits, is_element
from hal.arguments import same_elements

STRUCTURE = np.dtype([("a", "i4"), ("b", "f8")], align=True)

FITTING = {
    "f32": ["f4", "u1", "V4"],
    "f64": ["f8", "u1"],
    "f16": ["f2", "u1"],
    "i32": ["i4", "u4", "u1"],
    "u64": ["i8", "u8"],
    "i8": ["i1", "u1", "f8", "?", STRUCTURE, "c16"],
    "u8": ["i1", "u1", "f8", "?", STRUCTURE],
    "bool": ["?", "i1", "u1"],
    "bytes[16]": [STRUCTURE, "f4", "c16", "u1"],
    "bytes[4]": ["f2", [("bfloat16", "<u2")]],  # half2, __nv_bfloat162
}
REFUSED = {
    "f32": ["f8", "f2", "i4", ">f4", "c8", "?", "i1", STRUCTURE, "M8[s]"],
    "f64": ["f4", "i8", "c16"],
    "i32": ["i8", "f4", "i2", ">i4"],
    "u16": ["f2", "u4", "?"],
    "bool": ["f4", "i4"],
    "bytes[12]": [STRUCTURE],
    "bytes[16]": [np.dtype([("a", "i4"), ("b", "f8")])],
}


@pytest.mark.parametrize(
    ("element", "dtype"), [(key, np.dtype(each)) for key in FITTING for each in FITTING[key]]
)
def test_what_fits(element, dtype):
    assert fits(element, dtype)


@pytest.mark.parametrize(
    ("element", "dtype"), [(key, np.dtype(each)) for key in REFUSED for each in REFUSED[key]]
)
def test_what_does_not_fit(element, dtype):
    assert not fits(element, dtype)


def test_the_surest_type_is_the_elements_own():
    for element in ("f16", "f32", "f64", "i16", "u32", "i64", "bool"):
        dtype = dtype_of(element)
        assert fits(element, dtype)
        assert alignment_of(element) == dtype.itemsize
    for element in ("i8", "u8", "bytes[12]", ""):
        assert dtype_of(element) is None
        assert alignment_of(element) == 1


@pytest.mark.parametrize(
    "text", ["", "ptr", "f8", "bytes", "bytes[0]", "bytes[]", "any[4]", "f32*"]
)
def test_what_is_no_element(text):
    assert not is_element(text)


@pytest.mark.parametrize(
    ("buffer", "array", "same"),
    [
        ("f4", "f4", True),
        ("i4", "u4", True),
        ("u1", "f8", True),
        ("f8", "u1", True),
        ("?", "i1", True),
        ("f4", "i4", False),
        ("f4", ">f4", False),
        ("i4", "i8", False),
        (STRUCTURE, STRUCTURE, True),
        (STRUCTURE, "f4", False),
    ],
)
def test_what_host_arrays_share_with_a_buffer(buffer, array, same):
    assert same_elements(np.dtype(buffer), np.dtype(array)) is same
