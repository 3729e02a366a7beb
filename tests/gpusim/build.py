"""Build gpusim's libraries with whatever C compiler is here, once for each state of the sources."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

__all__ = ["build", "find_compiler"]

HERE: Final = Path(__file__).resolve().parent
IMAGE: Final = HERE.parents[1] / "hal_cpu" / "src" / "hal_cpu"
"""Where the headers of the kernel images lie."""
WARNINGS: Final = ("-Wall", "-Wextra", "-Werror", "-Wno-misleading-indentation")
FLAGS: Final = (
    *("-std=c11", "-O1", "-g", "-fPIC", "-fvisibility=hidden", "-pthread", "-fno-strict-aliasing"),
    *("-U_FORTIFY_SOURCE", "-D_GNU_SOURCE="),
)
LIBRARIES: Final[dict[str, tuple[str, tuple[str, ...]]]] = {
    "libcuda.so.1": ("cuda", ()),
    "libnvrtc.so.13": ("rtc", ()),
    "libamdhip64.so": ("hip", ()),
    "libhiprtc.so": ("rtc", ("-DGPUSIM_HIPRTC",)),
}
"""Each library's soname: the prefix of its own sources, and more options for the compiler."""
CUDA: Final = ("libcuda.so.1", "libnvrtc.so.13")
"""What `build` makes unless it is told."""
HIP: Final = ("libamdhip64.so", "libhiprtc.so")
FACES: Final = ("cuda", "hip", "rtc")
"""Prefixes of sources that belong to a face; the others are the engine's."""


def find_compiler() -> list[str]:
    """Return the command of a C compiler: ``GPUSIM_CC``, gcc, clang, cc, or zig from PyPI."""
    named = os.environ.get("GPUSIM_CC")
    if named:
        return named.split()
    for name in ("gcc", "clang", "cc"):
        if found := shutil.which(name):
            return [found]
    zig = importlib.util.find_spec("ziglang")
    if zig is None or zig.origin is None:
        message = "gpusim needs a C compiler: install gcc or clang, or 'pip install ziglang'"
        raise RuntimeError(message)
    return [str(Path(zig.origin).parent / "zig"), "cc"]


def _sources(face: str) -> list[Path]:
    """Return the C files of one face, and the engine's, which a compiler needs not."""
    files = sorted(HERE.glob("*.c"))
    engine = [p for p in files if not p.name.startswith(FACES)] if face != "rtc" else []
    return [p for p in files if p.name.startswith(face)] + engine


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        message = f"{' '.join(command)}\n{done.stdout}{done.stderr}"
        raise RuntimeError(message)


def _link(name: str, folder: Path, compiler: list[str], flags: tuple[str, ...]) -> None:
    face, defines = LIBRARIES[name]
    sources = _sources(face)
    objects = [folder / f"{face}-{p.stem}.o" for p in sources]
    commands = [
        [*compiler, *FLAGS, *WARNINGS, *defines, *flags, f"-I{IMAGE}", "-c", str(p), "-o", str(o)]
        for p, o in zip(sources, objects, strict=True)
    ]
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(_run, commands))
    names = [str(o) for o in objects]
    target = str(folder / "lib" / name)
    ends = ["-pthread", "-ldl", "-lm"]
    _run([*compiler, *flags, "-shared", f"-Wl,-soname,{name}", "-o", target, *names, *ends])
    for path in objects:
        path.unlink()


def _digest(command: list[str], flags: tuple[str, ...], libraries: tuple[str, ...]) -> str:
    """Return what changes whenever the result may."""
    digest = hashlib.sha256(repr((command, FLAGS, WARNINGS, flags, libraries)).encode())
    faces = tuple(LIBRARIES[name][0] for name in libraries)
    for path in [*sorted(HERE.glob("*.[ch]")), HERE / "build.py", *sorted(IMAGE.glob("*.h"))]:
        if path.name.startswith(faces) or not path.name.startswith(FACES):
            digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def build(
    folder: str | Path, flags: tuple[str, ...] = (), libraries: tuple[str, ...] = CUDA
) -> Path:
    """Build `libraries` into a folder below `folder`, and return that folder.

    The result lies in its ``lib``. Its name is a hash of the sources, of the
    compiler's command and of `flags` (more options for the compiler, such as
    ``-fsanitize=thread``), so that a second call finds it done. Several
    processes may build at once. Raises `RuntimeError` with the compiler's
    words, or when there is none.
    """
    compiler = find_compiler()
    target = Path(folder) / f"gpusim-{_digest(compiler, flags, libraries)}"
    if target.exists():
        return target
    Path(folder).mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as work:
        made = Path(work) / "made"
        (made / "lib").mkdir(parents=True)
        for name in libraries:
            _link(name, made, compiler, flags)
        try:
            made.rename(target)
        except OSError:  # another process was faster
            if not target.exists():
                raise
    return target


if __name__ == "__main__":
    made_in = build(sys.argv[1] if len(sys.argv) > 1 else "build", tuple(sys.argv[2:]))
    sys.stdout.write(f"{made_in}\n")
