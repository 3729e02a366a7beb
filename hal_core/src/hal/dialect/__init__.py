"""The headers that a source in the portable dialect may include on every backend.

A run-time compiler has no standard library, and none or only some of its vendor's headers. What
these names stand for in kernels is in the dialect already, in the vendor's own headers, or in the
texts here, which any backend may use: they need C++17, and functions of the dialect.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Iterable, Iterator
from typing import Final

__all__ = ["FLOAT16", "GROUPS", "NAMES", "STANDARD", "included", "needs_files", "not_in", "texts"]

FLOAT16: Final = frozenset({"cuda_fp16.h", "cuda_bf16.h"})
"""The headers of the 16-bit floating-point types, by CUDA's names."""
GROUPS: Final = "cooperative_groups.h"
"""The header of cooperative groups, by CUDA's name; those with other names include it."""

_C: Final = (
    "assert",
    "float",
    "limits",
    "math",
    "stddef",
    "stdint",
    "stdio",
    "stdlib",
    "string",
    "time",
)
STANDARD: Final = frozenset({*(f"{name}.h" for name in _C), *(f"c{name}" for name in _C)})
"""Headers of the standard library whose functions and types kernels have anyway."""

_BFLOAT16: Final = """\
#pragma once
#include "cuda_bf16.h"
#define __hip_bfloat16 __nv_bfloat16
#define __hip_bfloat162 __nv_bfloat162
#define hip_bfloat16 __nv_bfloat16
"""
_OTHERS: Final = {
    "cuda_runtime.h": "",
    "device_launch_parameters.h": "",
    "hip/hip_runtime.h": "",
    "hip/hip_fp16.h": '#include "cuda_fp16.h"\n',
    "hip/hip_bf16.h": _BFLOAT16,
    "hip/hip_bfloat16.h": _BFLOAT16,
    "hip/hip_cooperative_groups.h": f'#include "{GROUPS}"\n',
    "cooperative_groups/reduce.h": f'#include "{GROUPS}"\n',
    "cooperative_groups/scan.h": f'#include "{GROUPS}"\n',
}
_FILES: Final = {
    *FLOAT16,
    GROUPS,
    "hal_float16.h",
    "hal_float16_type.h",
    "hal_overloads.h",
    "hal_simd.h",
    "cmath",
    "cfloat",
    "climits",
    "cstdint",
}
_SAME: Final = {
    "math.h": "cmath",
    "float.h": "cfloat",
    "limits.h": "climits",
    "stdint.h": "cstdint",
    "stddef.h": "cstdint",
    "cstddef": "cstdint",
}

NAMES: Final = FLOAT16 | {GROUPS} | STANDARD | _OTHERS.keys()
"""All names that a source may include on every backend."""
_INCLUDE: Final = (
    r"^[ \t]*(?:#|%:)[ \t]*(?:include(?:_next)?[ \t]*(?:[<\"]([^>\"\n]*)[>\"])?|embed)"
    r"|__has_include"
)


def included(source: str) -> Iterator[str]:
    """Yield what each ``#include`` names, and "" for one that cannot be read from the text."""
    if "include" in source or "embed" in source:  # most have neither, and the pattern is slow
        for match in re.finditer(_INCLUDE, source, re.MULTILINE):
            yield match[1] or ""


def needs_files(source: str) -> bool:
    """Return whether a compiler may read files for a source that are none of these headers."""
    return not NAMES.issuperset(included(source))


def _text_of(name: str) -> str:
    if name in _OTHERS:
        return _OTHERS[name]
    name = _SAME.get(name, name)
    if name not in _FILES:
        return ""
    with open(os.path.join(os.path.dirname(__file__), "headers", name), encoding="utf-8") as file:
        return file.read()


def not_in(folders: Iterable[str]) -> dict[str, str]:
    """Return the headers to give a compiler that finds others in these folders."""
    paths = tuple(folders)
    return {
        name: text
        for name, text in texts().items()
        if not any(os.path.isfile(os.path.join(path, name)) for path in paths)
    }


@functools.cache
def texts() -> dict[str, str]:
    """Return all headers by name, and those that they include."""
    return {name: _text_of(name) or "\n" for name in sorted(NAMES | _FILES)}
