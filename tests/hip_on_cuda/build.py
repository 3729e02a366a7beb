"""Build the translation: ``python build.py FOLDER`` makes both libraries in FOLDER/lib."""

from __future__ import annotations

import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

SOURCES = Path(__file__).resolve().parent
LIBRARIES = {
    "libamdhip64.so": ["driver.c", "device.c", "memory.c", "stream.c", "module.c", "graph.c"],
    "libhiprtc.so": ["rtc.c"],
}
OPTIONS = ["-std=gnu11", "-O2", "-g", "-shared", "-fPIC", "-fvisibility=hidden", "-pthread"]
WARNINGS = ["-Wall", "-Wextra", "-Werror"]


def find_compiler() -> list[str]:
    """Return the command of a C compiler: $CC, gcc, clang, cc or the ziglang package's."""
    if os.environ.get("CC"):
        return shlex.split(os.environ["CC"])
    for name in ("gcc", "clang", "cc"):
        if path := shutil.which(name):
            return [path]
    if importlib.util.find_spec("ziglang"):
        return [sys.executable, "-m", "ziglang", "cc"]
    message = "no C compiler: install gcc or clang, or the ziglang package"
    raise RuntimeError(message)


def build(folder: Path) -> Path:
    """Build both libraries below `folder` and return it: what ROCM_PATH is to be."""
    target = folder / "lib"
    target.mkdir(parents=True, exist_ok=True)
    for name, sources in LIBRARIES.items():
        # Renamed when it is whole: others may be building or loading the same.
        unfinished = target / f"{name}.{os.getpid()}"
        command = [*find_compiler(), *OPTIONS, *WARNINGS, f"-Wl,-soname,{name}", "-o"]
        command += [str(unfinished), *(str(SOURCES / source) for source in sources), "-ldl"]
        subprocess.run(command, check=True)
        unfinished.replace(target / name)
    return folder


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python build.py FOLDER")
    sys.stdout.write(f"ROCM_PATH={build(Path(sys.argv[1]).resolve())}\n")
