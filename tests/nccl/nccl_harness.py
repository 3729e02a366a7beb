"""Build the fake library, and run programs on it over the software drivers."""

import sys
from pathlib import Path

import gpusim
from child_processes import output_of

HERE = Path(__file__).resolve().parent
FACES = {
    "nccl": ("libcuda.so.1", "cuLaunchHostFunc", "HAL_NCCL_LIBRARY", "-DALL_TO_ALL"),
    "rccl": ("libamdhip64.so", "hipLaunchHostFunc", "HAL_RCCL_LIBRARY", "-UALL_TO_ALL"),
}


def build(folder, provider):
    """Return the library with the interface of NCCL, over one of the two drivers."""
    driver, function, _, variant = FACES[provider]
    made = folder / f"lib{provider}.so"
    if not made.exists():
        command = [*gpusim.build.find_compiler(), "-std=gnu11", "-O1"]
        command += ["-Wall", "-Wextra", "-Werror", "-fPIC", "-shared", "-pthread"]
        command += [f'-DDRIVER="{driver}"', f'-DFUNCTION="{function}"', variant]
        command += ["-fvisibility=hidden", HERE / "fake_nccl.c", "-o", made, "-ldl"]
        output_of(command)
    return made


def run(folder, provider, *arguments, speedups="0"):
    """Run the ranks' script over a driver; return what it has printed."""
    script = HERE / "ranks_in_threads.py"
    return run_script(folder, provider, script, provider, *arguments, speedups=speedups)


def run_script(folder, provider, *command, speedups="0"):
    """Run a script over a driver; return what it has printed."""
    library = build(folder, provider)
    environment = gpusim.environment(devices=4)
    if provider == "rccl":
        environment["ROCM_PATH"] = str(gpusim.rocm_folder())
    environment[FACES[provider][2]] = str(library)
    environment |= {"PYTHONFAULTHANDLER": "1", "HAL_SPEEDUPS": speedups}
    return output_of([sys.executable, *command], env=environment, timeout=120)
