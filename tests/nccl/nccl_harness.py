"""Build the fake library, and run programs on it over the software drivers."""

import subprocess
import sys
from pathlib import Path

import gpusim

HERE = Path(__file__).resolve().parent
FACES = {
    "nccl": ("libcuda.so.1", "cuLaunchHostFunc", "HAL_NCCL_LIBRARY", "-DALL_TO_ALL"),
    "rccl": ("libamdhip64.so", "hipLaunchHostFunc", "HAL_RCCL_LIBRARY", "-UALL_TO_ALL"),
}
LIMIT = 120


def build(folder, provider):
    """Return the library with the interface of NCCL, over one of the two drivers."""
    driver, function, _, variant = FACES[provider]
    made = folder / f"lib{provider}.so"
    if not made.exists():
        command = [
            *gpusim.build.find_compiler(),
            "-std=gnu11",
            "-O1",
            "-Wall",
            "-Wextra",
            "-Werror",
        ]
        command += ["-fPIC", "-shared", "-pthread", "-fvisibility=hidden"]
        command += [f'-DDRIVER="{driver}"', f'-DFUNCTION="{function}"', variant]
        command += [str(HERE / "fake_nccl.c"), "-o", str(made), "-ldl"]
        subprocess.run(command, check=True, capture_output=True, text=True)
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
    done = subprocess.run(
        [sys.executable, *map(str, command)],
        capture_output=True,
        text=True,
        timeout=LIMIT,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout
