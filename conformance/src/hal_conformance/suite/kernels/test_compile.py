"""Compiling: portable source becomes typed kernels, or an error with the user's lines (C5)."""

from __future__ import annotations

import numpy as np
import pytest

import hal
from hal.errors import (
    ArgumentTypeError,
    CompilationError,
    InvalidArgumentError,
    NotFoundError,
)
from hal_conformance.suite.support import LIMIT

pytestmark = pytest.mark.feature("compile")

TWO = """
__global__ void first(float a, const float *x, unsigned long long n) {}
__device__ int helper(int x) { return x + OFFSET; }
__global__ void second(int *out) { out[0] = helper(1); }
"""


@pytest.fixture
def two(device: hal.Device) -> hal.Executable:
    """A program of two kernels."""
    return device.compile(TWO, filename="two.cpp", defines={"OFFSET": 41})


def test_a_program_is_a_mapping_of_its_kernels_c5(device, two):
    """C5: names in the order of the source, kernels by name, and nothing else."""
    assert list(two) == ["first", "second"]
    assert len(two) == 2
    assert [kernel.name for kernel in two.kernels] == ["first", "second"]
    assert "first" in two
    assert "helper" not in two
    assert two["second"].name == "second"
    assert two["second"].device is device
    assert two.get("missing") is None


def test_an_unknown_kernel_is_not_found_c5(two):
    """C5: the error is a `LookupError` and names the kernels that there are."""
    with pytest.raises(NotFoundError, match=r"first.*second") as caught:
        two["third"]
    assert isinstance(caught.value, LookupError)


def test_kernels_are_typed_c5(two):
    """C5: the signature tells the names and the sizes of the parameters."""
    parameters = two["first"].signature.parameters
    assert [each.name for each in parameters] == ["a", "x", "n"]
    assert [each.size for each in parameters] == [4, 8, 8]
    assert two["first"].max_threads_per_block >= 1
    assert two["first"].static_shared_memory >= 0


@pytest.mark.parametrize("value", [0, 41, -1])
def test_defines_reach_the_source_c5(device, queue, value):
    """C5: a define is a macro in the source."""
    program = device.compile(TWO, defines={"OFFSET": value})
    out = device.upload(np.zeros(1, np.int32))
    queue.dispatch(program["second"], grid=1, block=1, args=(out,)).wait(LIMIT)
    assert out.numpy(timeout=LIMIT)[0] == value + 1


def test_an_error_has_the_users_file_and_line_c5(device):
    """C5: `CompilationError` names file and line, and has the compiler's log."""
    source = "__global__ void broken(int *p) {\n  p[0] = missing;\n}\n"
    with pytest.raises(CompilationError, match=r"broken\.cpp[:(]2") as caught:
        device.compile(source, filename="broken.cpp")
    assert "missing" in caught.value.log


@pytest.mark.parametrize("source", ["", "int x;", "__device__ int f() { return 1; }"])
def test_source_without_a_kernel_is_refused_c5(device, source):
    """C5: source that defines no kernel is refused before any compiler is asked."""
    with pytest.raises(InvalidArgumentError):
        device.compile(source)


@pytest.mark.parametrize(
    ("arguments", "options"),
    [
        ((7,), {}),
        ((b"__global__ void f() {}",), {}),
        (("__global__ void f() {}",), {"filename": 3}),
        (("__global__ void f() {}",), {"defines": ["A"]}),
        (("__global__ void f() {}",), {"options": "-O2"}),
    ],
    ids=["number", "bytes", "filename", "defines", "options"],
)
def test_bad_arguments_of_compile_are_refused_c5(device, arguments, options):
    """C5: a source, name, list or mapping of the wrong type raises `ArgumentTypeError`."""
    with pytest.raises(ArgumentTypeError):
        device.compile(*arguments, **options)


NUMBERED = [f"__global__ void number(int *out) {{ *out = {value}; }}" for value in range(5)]


def test_sources_of_a_list_become_a_program_each_c5(device, queue):
    """C5: in the same order, several with one kernel's name, a named source among them."""
    sources: list[str | dict[str, str]] = [*NUMBERED, {"named.cpp": NUMBERED[2]}]
    out = device.upload(np.zeros(1, np.int32))
    found = []
    for program in hal.compile_all(sources, target=device):
        kernel = device.load(program)["number"]
        queue.dispatch(kernel, grid=1, block=1, args=(out,)).wait(LIMIT)
        found.append(out.numpy(timeout=LIMIT)[0])
    assert found == [0, 1, 2, 3, 4, 2]
    assert hal.compile_all([], target=device) == []


def test_errors_of_a_list_of_sources_are_all_told_c5(device):
    """C5: the first in the list is raised, with a note for each other, of whatever kind."""
    wrong = "__global__ void wrong(int *out) { *out = nobody; }"
    sources: list[str | dict[str, str]] = [NUMBERED[0], wrong, "int none;", {"last.cpp": wrong}]
    with pytest.raises(CompilationError, match="source 1: ") as caught:
        hal.compile_all(sources, target=device)
    notes = [note for note in caught.value.__notes__ if "another" in note]
    assert len(notes) == 2
    assert "source 2: " in notes[0]
    assert "source 3: " in notes[1]
    assert "last.cpp" in notes[1]
    with pytest.raises(ArgumentTypeError):
        hal.compile_all(NUMBERED[0], target=device)


def test_an_image_loads_again_c5(device, second_device, make_queue):
    """C5: an executable's image loads on another device of the backend, types and all."""
    program = device.compile(TWO, defines={"OFFSET": 5})
    loaded = second_device.load(program.image)
    assert list(loaded) == list(program)
    assert str(loaded["first"].signature) == str(program["first"].signature)
    out = second_device.upload(np.zeros(1, np.int32))
    queue = make_queue(device=second_device)
    queue.dispatch(loaded["second"], grid=1, block=1, args=(out,)).wait(LIMIT)
    assert out.numpy(timeout=LIMIT)[0] == 6


def test_programs_have_variables_of_their_own_c5(device, queue):
    """C5: two loads of one image share no device variables."""
    source = """
    __device__ int total;
    __global__ void add(int n, int *out) { total += n; out[0] = total; }
    """
    first = device.compile(source)
    second = device.load(first.image)
    out = device.upload(np.zeros(1, np.int32))
    for program, n, expected in ((first, 5, 5), (second, 7, 7), (first, 1, 6)):
        queue.dispatch(program["add"], grid=1, block=1, args=(n, out)).wait(LIMIT)
        assert out.numpy(timeout=LIMIT)[0] == expected
