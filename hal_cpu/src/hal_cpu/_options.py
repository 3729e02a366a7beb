"""What a compiler of kernels is told: a part of the key of a cached image, so it imports little."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

OPTIONS: Final = (
    "-std=c++17",
    "-O3",
    "-shared",
    "-fPIC",
    "-w",
    "-fno-exceptions",
    "-fno-rtti",
    # Kernels do not observe the floating-point environment or errno;
    # neither option changes a result. -ffast-math would.
    "-fno-math-errno",
    "-fno-trapping-math",
    # A thread whose stack is full hits its guard page, and not the memory behind it.
    "-fstack-clash-protection",
    # As GPU compilers do by default.
    "-ffp-contract=fast",
    # An image uses its own definitions, even if the process has others of the same names.
    "-Wl,-Bsymbolic",
)
FAMILY: Final = {
    # Unique symbols would be shared by all images, and keep them from being unloaded.
    "gcc": (
        "-fno-gnu-unique",
        "-fno-semantic-interposition",
        "-Wl,--as-needed",
        "-lm",
    ),
    "clang": ("-Wl,--as-needed", "-lm"),
    # Its C++ runtime would be built first, for a minute; kernels need nothing of it. And it
    # defines NDEBUG by itself, which is the user's decision.
    "zig": ("-nostdlib", "-fno-sanitize=undefined", "-UNDEBUG"),
}
NATIVE: Final = "native"
"""The processor that this runs on, as ``-march`` names it."""
MARCH_NATIVE: Final = f"-march={NATIVE}"
TUNING: Final = {
    # Limits of the optimiser, which change no result; a compiler that lacks one of them
    # gets none of them. They are for loops over a block's threads that become vectors.
    "gcc": tuple(
        f"--param={name}={value}"
        for name, value in {
            # `if (x >= width || y >= height) return;` stays two branches: the loop over x is
            # split at the first, and the second leaves it.
            "logical-op-non-short-circuit": 0,
            "max-unswitch-insns": 500,
            # One for each pair of a pointer read and a pointer written.
            "vect-max-version-for-alias-checks": 64,
            # A loop inside of a thread must be unrolled, or the loop over threads stays scalar.
            # GCC ignores `#pragma unroll`, and its own pragma takes no template's parameter, and
            # unrolls without end a loop of no constant count.
            "max-completely-peel-times": 128,
            "max-completely-peeled-insns": 1000,
        }.items()
    ),
    "clang": (),
    "zig": (),
}
# A link with no more than a kernel may need: the C++ library and the start files take 13 of 34 ms
# to read. What needs more (a virtual function, a global object, -fopenmp) is made again without.
# And fewer pages: an image is read, written and mapped each time that it is loaded.
LEAN: Final = ("-nostdlib", "-Wl,-z,defs", "-Wl,-z,noseparate-code", "-Wl,-z,norelro")
LEAN_LIBRARIES: Final = ("-lgcc", "-lc")
REMEDY: Final = "-fno-tree-loop-if-convert"
"""The option without which there are no masked loads (`_masked_loads`)."""


def split_options(options: Sequence[str]) -> tuple[list[str], str]:
    """Return the options without those that define macros, and these as preprocessor lines.

    On the command line the macros would reach `kernel.h` too.
    """
    others: list[str] = []
    lines: list[str] = []
    waiting = iter(options)
    for option in waiting:
        if option[:2] in {"-D", "-U"}:
            name, equals, value = (option[2:] or next(waiting, "")).partition("=")
            if option[:2] == "-U":
                lines.append(f"#undef {name}\n")
            else:
                lines.append(f"#define {name} {value if equals else 1}\n")
        else:
            others.append(option)
    return others, "".join(lines)


def is_for_linker(option: str) -> bool:
    """Return whether an option is for the linker alone."""
    return option in {"-shared", "-nostdlib"} or option.startswith(("-Wl,", "-l"))
