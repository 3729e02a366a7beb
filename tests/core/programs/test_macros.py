"""Macros that a caller defines, and kernels that macros would make (C5)."""

import numpy as np
import pytest
from core_harness import LIMIT

from hal.errors import ArgumentTypeError, InvalidArgumentError

FLAG = """
#if FLAG
#define BASE 10
#else
#define BASE 20
#endif
__global__ void flag(int *out) { *out = BASE + FLAG; }
"""


@pytest.mark.parametrize("flag", [True, False, np.True_])
def test_a_flag_is_one_or_zero_in_the_source_c5(device, flag):
    """C5: for the preprocessor, too, to which Python's True would be an unknown word, so 0."""
    program = device.compile(FLAG, defines={"FLAG": flag})
    out = device.upload(np.zeros(1, np.int32))
    device.queue.dispatch(program["flag"], grid=1, block=1, args=(out,)).wait(LIMIT)
    assert out.numpy() == [11 if flag else 20]
    with pytest.raises(ArgumentTypeError, match="not None"):
        device.compile(FLAG, defines={"FLAG": None})


def test_a_kernels_name_is_no_macro_c5(device):
    """C5: the image would have the kernel by another name than the one that is read here."""
    source = "__global__ void NAME(int *out) { *out = 1; }"
    for text, defines in ((source, {"NAME": "one"}), (f" # define NAME one\n{source}", {})):
        with pytest.raises(InvalidArgumentError, match="'NAME': its name is a macro"):
            device.compile(text, defines=defines)


def test_a_source_whose_kernels_are_made_by_a_macro_is_refused_with_the_reason_c5(device):
    with pytest.raises(InvalidArgumentError, match="one that a macro makes is not seen"):
        device.compile("#define MAKE(f) __global__ void f(int *p) { *p = 1; }\nMAKE(one)")


def test_a_kernels_name_with_a_dollar_is_no_macro_c5(device):
    """C5: compilers take such names, and a pattern would take the letter for the end of a line."""
    source = "#define a$b one\n__global__ void a$b(int *out) { *out = 1; }"
    with pytest.raises(InvalidArgumentError, match=r"'a\$b': its name is a macro"):
        device.compile(source)
