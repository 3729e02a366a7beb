"""Compile the suite's and the demo's kernels with real compilers for AMD GPUs, and read the result.

    python tests/hip/real_compilers.py zig            # with the ziglang package
    python tests/hip/real_compilers.py clang-19       # with a clang and an lld of that name
    python tests/hip/real_compilers.py rocm FOLDER    # with AMD's hiprtc: FOLDER/lib/libhiprtc.so

The first two for gfx90a, gfx942 and gfx1100. Needs no GPU. AMD's compiler ends its
process for an architecture that it does not know, so it runs in a child, for the
one that every version knows.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
TARGETS = ("gfx90a", "gfx942", "gfx1100")
CHILD_TARGET = "gfx90a"
DEMO_MACROS = {"RADIUS": "2", "WEIGHTS": "0.1f, 0.2f, 0.4f, 0.2f, 0.1f"}


def programs():
    """Return each program by name: its text for the compiler, and its kernels' parameter sizes."""
    from hal._kernel_source import read_source, type_table  # noqa: PLC0415
    from hal.demo import kernels as demo  # noqa: PLC0415
    from hal.native import CompileRequest  # noqa: PLC0415
    from hal_conformance import kernels as suite  # noqa: PLC0415
    from hal_hip._compile import program_text  # noqa: PLC0415

    for name, source, macros in (
        ("conformance.cpp", suite.SOURCE, {}),
        ("demo.cpp", demo.SOURCE, DEMO_MACROS),
    ):
        entries, plain = read_source(source, filename=name)
        asked = CompileRequest(plain, name, entries, type_table(entries), defines=macros)
        yield name, program_text(asked), {each.name: len(each.parameters) for each in entries}


def clang_commands(compiler):
    """Return the commands of clang and of lld."""
    if compiler == "zig":
        command = [sys.executable, "-m", "ziglang"]
        return [*command, "clang"], [*command, "ld.lld"]
    linker = compiler.replace("clang", "ld.lld")
    return [shutil.which(compiler) or compiler], [shutil.which(linker) or linker]


def compile_offline(compiler, text, target, folder):
    """Return the code object that clang and lld make of a program."""
    clang, linker = clang_commands(compiler)
    source, ir, part, image = (folder / f"k.{end}" for end in ("hip", "ll", "o", "hsaco"))
    source.write_text(f"{(HERE / 'offline.h').read_text()}\n{text}")
    options = ["-std=c++17", "-O3", "-w", "-nogpuinc", "-nogpulib", "--cuda-device-only"]
    machine = ["-target", "amdgcn-amd-amdhsa", f"-mcpu={target}", "-nogpulib"]
    language = ["-x", "hip", f"--offload-arch={target}", "-fno-sanitize=undefined"]
    steps = (
        [*clang, *language, *options, "-S", "-emit-llvm", str(source), "-o", str(ir)],
        [*clang, *machine, "-c", str(ir), "-o", str(part)],
        [*linker, "-shared", str(part), "-o", str(image)],
    )
    for command in steps:
        subprocess.run(command, check=True)
    return image.read_bytes()


def check(name, image, target, expected):
    """Raise unless our reader finds all kernels with all their parameters in an image."""
    from hal_hip import _image, _module  # noqa: PLC0415

    found = _image.read(image, target)
    kernels = {_module._plain(each): data for each, data in found.kernels.items()}
    counts = {each: len(data.parameter_sizes) for each, data in kernels.items()}
    assert counts == expected, (name, target, counts, expected)
    assert b"hal_kernels" in image
    assert b"hal_parameters" in image
    sys.stdout.write(f"{name}: {len(kernels)} kernels, {found.contents}, {len(image)} bytes\n")


def main(arguments):
    """Compile everything with what the arguments name."""
    if arguments[:1] == ["rocm"]:
        folder = str(Path(arguments[1]).resolve())
        environment = {**os.environ, "ROCM_PATH": folder}
        command = [sys.executable, __file__, "child"]
        return subprocess.run(command, env=environment, check=False).returncode
    if arguments == ["child"]:
        from hal_hip import _driver  # noqa: PLC0415

        for name, text, expected in programs():
            options = [f"--offload-arch={CHILD_TARGET}".encode(), b"-std=c++17", b"-O3"]
            image, log = _driver.compile_source(text.encode(), name.encode(), options)
            assert image, log
            check(name, image, CHILD_TARGET, expected)
        return 0
    if len(arguments) != 1:
        sys.stdout.write(__doc__)
        return 2
    for name, text, expected in programs():
        for target in TARGETS:
            with tempfile.TemporaryDirectory() as folder:
                image = compile_offline(arguments[0], text, target, Path(folder))
            check(name, image, target, expected)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
