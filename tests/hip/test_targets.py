"""The dialect is portable: a plain clang compiles our kernels for GPUs of each generation."""

import functools
import importlib.util
import shutil
import subprocess
from pathlib import Path

import pytest
import shipped_kernels

HERE = Path(__file__).parent
TARGETS = ("gfx90a", "gfx942", "gfx1100")
NEWEST = 30
OLDEST = 17
"""The versions of clang to look for; older ones do not know the newest target."""
LIMIT = 300.0


@functools.cache
def tools():
    """Return the commands of a clang and an lld for AMD GPUs, or None where there are none."""
    zig = importlib.util.find_spec("ziglang")
    if zig is not None and zig.origin is not None:
        program = str(Path(zig.origin).parent / "zig")
        return [program, "clang"], [program, "ld.lld"]
    for version in ("", *(f"-{number}" for number in range(NEWEST, OLDEST - 1, -1))):
        clang, linker = shutil.which(f"clang{version}"), shutil.which(f"ld.lld{version}")
        if clang and linker and TARGETS[-1] in output([clang, "-target", "amdgcn", "-mcpu=help"]):
            return [clang], [linker]
    return None


def output(command):
    """Return what a command says, on either stream."""
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=LIMIT,
        check=False,
        text=True,
    )
    return done.stdout


def compile_offline(text, target, folder):
    """Return the code object that clang and lld make of a program."""
    clang, linker = tools()
    source, ir, part, image = (folder / f"k.{end}" for end in ("hip", "ll", "o", "hsaco"))
    source.write_text(f"{(HERE / 'offline.h').read_text()}\n{text}")
    options = ["-std=c++17", "-O3", "-w", "-nogpuinc", "-nogpulib", "--cuda-device-only"]
    machine = ["-target", "amdgcn-amd-amdhsa", f"-mcpu={target}", "-nogpulib"]
    language = ["-x", "hip", f"--offload-arch={target}", "-fno-sanitize=undefined"]
    # zig's clang has no linker for these targets, and finds no assembler of its own.
    steps = (
        [*clang, *language, *options, "-S", "-emit-llvm", str(source), "-o", str(ir)],
        [*clang, *machine, "-c", str(ir), "-o", str(part)],
        [*linker, "-shared", str(part), "-o", str(image)],
    )
    for command in steps:
        said = output(command)
        assert Path(command[-1]).exists(), said
    return image.read_bytes()


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", shipped_kernels.PROGRAMS)
def test_clang_takes_our_kernels_for_every_generation_c5(tmp_path, name, target):
    from hal_hip._compile import program_text  # noqa: PLC0415 - imports the bindings

    if tools() is None:
        pytest.skip("no clang for AMD GPUs is here: 'pip install ziglang', or clang-19 and lld-19")
    image = compile_offline(program_text(shipped_kernels.request(name)), target, tmp_path)
    shipped_kernels.check(name, image, target)
