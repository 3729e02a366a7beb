"""Read what an ELF image says about itself, before it is loaded."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from typing import Final

from hal import elf
from hal.errors import OperationError
from hal.handlers import own

KERNEL_PREFIX: Final = "hal_kernel_"
MAX_SHARED_MEMORY: Final = 256 * 1024
"""The most shared memory of a block, including what its kernel declares."""

SANITIZERS: Final = {
    "address": "__asan_init",
    "hwaddress": "__hwasan_init",
    "memory": "__msan_init",
    "thread": "__tsan_init",
}
"""The symbol that an image needs from the library of each ``-fsanitize=``."""
_SHARED_OBJECT: Final = 3
_THREAD_LOCAL: Final = 6
# The variables that the loader finds, and the shared memory of kernels, which it may not.
_KINDS: Final = {
    elf.DYNAMIC: {*elf.ANY_KIND} - {elf.FUNCTION},
    elf.STATIC: {_THREAD_LOCAL},
}


def read_symbols(image: bytes, machine: str = "") -> dict[str, elf.Symbol]:
    """Return the variables that a shared object defines: the exported ones, and shared memory.

    It must be for the named machine, by default for this one.
    Raises `OperationError` with what the image is, if it is anything else.
    """
    _check(image, machine or platform.machine())
    try:
        return _read_symbols(image)
    except own(ValueError) as error:
        message = f"the image is a damaged ELF file: {error}"
        raise OperationError(message) from error


def is_exported(symbol: elf.Symbol) -> bool:
    """Return whether the loader finds a symbol."""
    return symbol.table == elf.DYNAMIC


def is_variable(symbol: elf.Symbol) -> bool:
    """Return whether a symbol is a variable that all threads share, and the loader finds it."""
    return is_exported(symbol) and symbol.kind != _THREAD_LOCAL


def missing_sanitizer(image: bytes) -> str:
    """Return the ``-fsanitize=`` whose library an image needs but does not bring; "" for none."""
    # Most images have none of the names: one search says so.
    if b"san_init" in image:
        wanted = {each.name for each in elf.symbols(image) if not each.section}
        for option, name in SANITIZERS.items():
            if name in wanted:
                return option
    return ""


def shared_memory(symbols: Mapping[str, elf.Symbol], kernel: str) -> int:
    """Return the bytes of shared memory that a kernel declares itself."""
    # A name declared inside a function contains the function's name.
    mark = f"_ZZ{len(kernel)}{kernel}"
    return sum(
        each.size
        for name, each in symbols.items()
        if each.kind == _THREAD_LOCAL and name.startswith(mark)
    )


def _check(image: bytes, machine: str) -> None:
    """Raise `OperationError` unless the image is a shared object for a machine."""
    wanted = f"the cpu backend loads shared objects for {machine}"
    if image[:4] != b"\x7fELF":
        message = f"{wanted}, and this image is {elf.guess(image)}"
        raise OperationError(message)
    if not elf.is_readable(image):
        message = f"{wanted}, and this image is a 32-bit, big-endian or damaged ELF file"
        raise OperationError(message)
    target = elf.machine_name(elf.machine(image))
    if target != machine:
        message = f"{wanted}, and this image is for {target}: compile it with the cpu backend"
        raise OperationError(message)
    kind = int.from_bytes(image[16:18], "little")
    if kind != _SHARED_OBJECT:
        message = f"{wanted}, and this ELF file is of type {kind}: link it with -shared"
        raise OperationError(message)


def _read_symbols(image: bytes) -> dict[str, elf.Symbol]:
    """Read the symbol tables of a checked image."""
    symbols: dict[str, elf.Symbol] = {}
    for each in elf.symbols(image, kinds=_KINDS):
        known = symbols.get(each.name)
        is_better = known is None or (is_exported(each) and not is_exported(known))
        if each.section and each.name and is_better:
            symbols[each.name] = each
    return symbols
