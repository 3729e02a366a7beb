"""Loaded images, and the kernels and variables in them."""

from __future__ import annotations

from typing import Final

from hal.errors import NotFoundError, OperationError
from hal.native import FunctionInfo
from hal_cpu import _driver, _image, _system

_ABI: Final = 2
"""``HAL_IMAGE_ABI`` of image.h."""
_ARGUMENT_BYTES_AT_MOST: Final = 32768

_shared_memory: Final[dict[int, int]] = {}
"""The shared memory that a kernel declares itself, by the address of its record."""


class Module:
    """One loaded image.

    Raises `OperationError` if it is not for this processor, this runtime or
    this system.
    """

    __slots__ = ("_functions", "_library", "_symbols")

    def __init__(self, image: bytes) -> None:
        """Check and load an image."""
        self._symbols = _image.read_symbols(image)
        sanitizer = _image.missing_sanitizer(image)
        if sanitizer and not _driver.has_sanitizer(sanitizer):
            message = (
                f"the image was compiled with -fsanitize={sanitizer}, whose library ends a process "
                "that was started without it: set LD_PRELOAD to the library (what 'gcc "
                "-print-file-name=libasan.so' prints, for 'address'), or compile without it"
            )
            raise OperationError(message)
        self._functions: list[int] = []
        self._library = _driver.load_library(image)
        try:
            self._check_features()
        except BaseException:
            self.close()
            raise

    def _check_features(self) -> None:
        """Raise `OperationError` if the image needs features that the processor lacks."""
        if self._exports("hal_image_features"):
            wanted = _driver.read_text(self._library.address("hal_image_features"))
            missing = _system.missing_features(wanted)
            if missing:
                message = (
                    f"the image was compiled for a processor with {', '.join(missing)}, which "
                    "this one lacks: compile the source here"
                )
                raise OperationError(message)

    def _exports(self, name: str) -> bool:
        """Return whether the image itself defines a name that the loader finds."""
        symbol = self._symbols.get(name)
        return symbol is not None and _image.is_exported(symbol)

    def close(self) -> None:
        """Unload the image."""
        for address in self._functions:
            _shared_memory.pop(address, None)
        self._library.unload()

    def function(self, name: str) -> int:
        """Return the address of a kernel's record.

        Raises `NotFoundError` if there is no kernel of that name, and
        `OperationError` if its record is of another version.
        """
        symbol = _image.KERNEL_PREFIX + name
        if not self._exports(symbol):
            kernels = ", ".join(sorted(self._kernels())) or "none"
            message = f"the image has no kernel {name!r}; it has: {kernels}"
            raise NotFoundError(message)
        address = self._library.address(symbol)
        record = _driver.KernelRecord.from_address(address)
        if record.abi != _ABI:
            message = (
                f"kernel {name!r} was built for version {record.abi} of image.h, and this "
                f"backend speaks version {_ABI}: compile it again"
            )
            raise OperationError(message)
        if record.argument_bytes > _ARGUMENT_BYTES_AT_MOST:
            message = (
                f"kernel {name!r} takes {record.argument_bytes} bytes of arguments; "
                f"{_ARGUMENT_BYTES_AT_MOST} is the most"
            )
            raise OperationError(message)
        shared = _image.shared_memory(self._symbols, name)
        self._functions.append(address)
        _shared_memory[address] = record.static_shared_memory or shared
        return address

    def _kernels(self) -> list[str]:
        """Return the names of all kernels."""
        return [
            name[len(_image.KERNEL_PREFIX) :]
            for name in self._symbols
            if name.startswith(_image.KERNEL_PREFIX)
        ]

    def variable(self, name: str) -> tuple[int, int]:
        """Return the address and the bytes of a variable; raises `NotFoundError`."""
        symbol = self._symbols.get(name)
        if symbol is None or not _image.is_variable(symbol):
            variables = ", ".join(sorted(self._variables())) or "none"
            message = f"the image has no variable {name!r}; it has: {variables}"
            raise NotFoundError(message)
        return self._library.address(name), symbol.size

    def _variables(self) -> list[str]:
        """Return the names of the variables that a source may have declared."""
        return [
            name
            for name, symbol in self._symbols.items()
            if _image.is_variable(symbol) and not name.startswith("hal_")
        ]


def describe(function: int) -> FunctionInfo:
    """Describe the kernel whose record is at an address."""
    record = _driver.KernelRecord.from_address(function)
    return FunctionInfo(
        max_threads_per_block=record.max_threads,
        static_shared_memory=_shared_memory[function],
        parameter_sizes=tuple(record.sizes[: record.parameter_count]),
    )
