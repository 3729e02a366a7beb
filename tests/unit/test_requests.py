"""What the core makes of a request to compile, for every backend."""

import pytest

from hal.errors import CompilationError, InvalidArgumentError
from hal.native import CompileRequest


def request(source="", **more):
    return CompileRequest(source, "kernel.cpp", (), "", **more)


def test_macros_are_preprocessor_lines():
    defines = {"N": "3", "TWICE(x)": "((x) * 2)", "EMPTY": ""}
    assert request(defines=defines).macros == (
        "#define N 3\n#define TWICE(x) ((x) * 2)\n#define EMPTY \n"
    )


@pytest.mark.parametrize("name", ["1X", "A B", "", "A\nB", "A=1", "-X", "A)", "A(", "é"])
def test_a_name_that_is_none_is_refused(name):
    with pytest.raises(InvalidArgumentError, match="is no name of a macro"):
        request(defines={"N": "1", name: "1"})


@pytest.mark.parametrize("value", ["1\n#include </etc/passwd>", "1\r2"])
def test_a_macro_brings_no_lines(value):
    with pytest.raises(InvalidArgumentError, match="'A' has a line break"):
        request(defines={"A": value})


@pytest.mark.parametrize(
    "made",
    [
        request('#include "a.h"'),
        request("int a;\n  # include <a.h>"),
        request("%:include <a.h>"),
        request("#if __has_include(<a.h>)"),
        request("#embed <a>"),
        request("MORE", defines={"MORE": "__has_include(<a.h>)"}),
        request(options=("-include", "a.h")),
        request(options=("-includea.h",)),
        request(options=("--pre-include=a.h",)),
        request(options=("-isystem/a",)),
        request(options=("@options",)),
    ],
)
def test_what_may_read_files_says_so(made):
    assert made.has_includes


@pytest.mark.parametrize(
    "made",
    [
        request("__global__ void include() {} // no #include"),
        request(options=("-O1", "-DX=1", "-ffast-math"), include_directories=("/a",)),
    ],
)
def test_what_reads_no_files_says_so(made):
    assert not made.has_includes


@pytest.mark.parametrize(
    ("errors", "log", "message"),
    [
        (["a:1: error"], "a:1: error\nmore\n", "it fails:\na:1: error"),
        ([], "1\n2\n3\n4\n5\n6\n\n", "it fails:\n2\n3\n4\n5\n6"),
        (list("1234567"), "all", "it fails:\n1\n2\n3\n4\n5\n... and 2 more"),
        ([], "", "it fails:"),
    ],
)
def test_an_error_shows_the_first_lines_that_say_why(errors, log, message):
    found = CompilationError.from_log("it fails", errors, log)
    assert (str(found), found.log) == (message, log)
