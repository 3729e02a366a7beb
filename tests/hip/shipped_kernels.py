"""The kernels that real compilers for AMD GPUs take, and what our loader must find in them."""

from hal import elf
from hal._programs.image_tables import read_image_table
from hal._programs.scanner import read_source
from hal._programs.signature import Signature
from hal._programs.type_table import type_table
from hal.demo import kernels as demo
from hal.native import CompileRequest
from hal_conformance import kernels as suite

PROGRAMS = {
    suite.FILENAME: (suite.SOURCE, {}),
    "demo.cpp": (demo.SOURCE, {"RADIUS": "2", "WEIGHTS": "0.1f, 0.2f, 0.4f, 0.2f, 0.1f"}),
}
"""By file name: a source, and its macros."""


def request(name):
    """Return a program as the backend is asked to compile it."""
    source, defines = PROGRAMS[name]
    entries, plain = read_source(source, filename=name)
    return CompileRequest(plain, name, entries, type_table(entries), defines=defines)


def check(name, image, target):
    """Raise unless our loader finds a program's kernels and their parameters in a code object.

    Their sizes are compared with the compiler's own ``sizeof``, which stands in the image as
    well, and those of the suite's kernels with what is written down.
    """
    from hal_hip import _image  # noqa: PLC0415 - imports the bindings

    found = _image.read(image, target)
    assert found.contents == f"a code object for {target}"
    sizes = {elf.source_name(each): data.parameter_sizes for each, data in found.kernels.items()}
    table = {
        kernel: tuple(each.size for each in entry.signature.parameters)
        for kernel, entry in read_image_table(image).items()
    }
    assert sizes == table
    assert set(sizes) == {each.name for each in request(name).entries}
    if name == suite.FILENAME:
        for kernel, text in suite.SIGNATURES.items():
            written = tuple(each.size for each in Signature.parse(text).parameters)
            assert sizes[kernel] == written, kernel
    assert all(data.max_threads >= 256 for data in found.kernels.values())
