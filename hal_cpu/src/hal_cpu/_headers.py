"""The dialect's own headers for the processor, and which of them a source needs."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from hal.dialect import texts

FOLDER: Final = "hal_cpu"
"""They are in a folder of their own, so that they hide no file of the user's."""

_WARP: Final = "warp.h"
_FUNCTIONS: Final = "functions.h"
_FEW: Final = ("hal_overloads.h", "intrinsics.h", "special.h", "hal_simd.h")
_SHARED: Final = frozenset({"hal_simd.h", "hal_overloads.h"})
_NAMES: Final = ("kernel.h", "regions.h", "launch.h", _FUNCTIONS, _WARP, "image.h", *_FEW)

WARPS: Final = frozenset(
    re.findall(
        r"\w+",
        """__shfl_sync __shfl_up_sync __shfl_down_sync __shfl_xor_sync __ballot_sync __any_sync
        __all_sync __syncwarp __activemask __match_any_sync __match_all_sync __reduce_add_sync
        __reduce_min_sync __reduce_max_sync __reduce_and_sync __reduce_or_sync __reduce_xor_sync""",
    )
)
"""The functions of warps."""

# A declaration in a header that few sources need, up to its name.
_DECLARATION: Final = re.compile(
    r'^(?:template <[^>]*> )?(?:static HAL_INLINE [\w ]+ |extern "C" [\w ]+ |typedef \w+ |'
    r"#define (?!HAL_)|(HAL_\w+)\()(\w+)|(?<=\) )(HAL_\w+)\((\w+)\)",
    re.MULTILINE,
)
_PARTS: Final = ("{}2", "{}4")
_DECLARED: Final = {
    "HAL_VECTORS": tuple(f"{make}{{}}{size}" for make in ("", "make_") for size in "1234"),
    "HAL_DIRECTED": ("{}_rd", "{}_ru", "{}_rz"),
    **dict.fromkeys(("HAL_FROM_DOUBLE", "HAL_UNARY", "HAL_BINARY"), ("{}", "{}f")),
    "HAL_SIGNED": _PARTS,
    "HAL_UNSIGNED": _PARTS,
}
"""What macros declare of a name, where that is not the name alone."""


@functools.cache
def all_texts() -> dict[str, str]:
    """Return the texts of all by name."""
    own = Path(__file__).parent
    return {
        name: texts()[name] if name in _SHARED else (own / name).read_text("utf-8")
        for name in _NAMES
    }


def write(directory: Path) -> None:
    """Write all into their folder below a directory."""
    folder = directory / FOLDER
    folder.mkdir()
    for name, text in all_texts().items():
        (folder / name).write_text(text, encoding="utf-8")


def includes(words: set[str], source: str, *, is_hidden: bool) -> Iterator[str]:
    """Yield the lines for those that a source with such words needs: reading the others takes time.

    All if names may be hidden: pasted together, or in an included file's macro.
    """
    needed = [name for name in (_WARP, *_FEW) if is_hidden or not words.isdisjoint(declared(name))]
    # The others use functions of it, and so do headers of the dialect that the source includes.
    if not {*_FEW}.isdisjoint(needed) or "include" in source or words & declared(_FUNCTIONS):
        needed.insert(0, _FUNCTIONS)
    for name in ("kernel.h", *needed):
        yield f'#include "{FOLDER}/{name}"\n'


@functools.cache
def step_of(function: str) -> str:
    """Return the name of the step that a function of warps may become."""
    return f"hal_step{function.removeprefix('_').removesuffix('_sync')}"


@functools.cache
def declared(name: str) -> frozenset[str]:
    """Return the names that a header declares which few sources need."""
    if name == _WARP:
        return WARPS | {"warpSize", *map(step_of, WARPS)}
    return frozenset(
        form.format(word or other)
        for macro, word, further, other in _DECLARATION.findall(all_texts()[name])
        for form in _DECLARED.get(macro or further, ("{}",))
    )
