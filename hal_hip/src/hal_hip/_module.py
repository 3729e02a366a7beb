"""Load images, and find kernels and variables in them."""

from __future__ import annotations

from typing import Any, Final

from hal import elf
from hal.errors import HalError, NotFoundError, OperationError, OutOfMemoryError
from hal.handlers import own
from hal.native import FunctionInfo
from hal_hip import _image
from hal_hip._driver import call, hip

_NOT_FOUND: Final = frozenset({13, 98, 500})
"""Runtimes' errors for an unknown name: InvalidSymbol, InvalidDeviceFunction, NotFound."""


class Kernel:
    """A kernel of a loaded image.

    Attributes
    ----------
    native
        HIP's handle.
    info
        What is known of it.
    """

    __slots__ = ("info", "native")

    def __init__(self, native: Any, data: _image.KernelData | None) -> None:  # noqa: ANN401 - the bindings'
        self.native = int(native)
        names = hip.hipFunction_attribute
        limit = names.HIP_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK
        shared = names.HIP_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES
        self.info = FunctionInfo(
            max_threads_per_block=int(call(hip.hipFuncGetAttribute, limit, native)),
            static_shared_memory=int(call(hip.hipFuncGetAttribute, shared, native)),
            parameter_sizes=None if data is None else data.parameter_sizes,
        )


class Module:
    """The owner of a loaded image.

    Attributes
    ----------
    native
        The bindings' object.
    """

    __slots__ = ("_image", "native")

    def __init__(self, image: bytes, target: str) -> None:
        """Load an image onto the current device; raises `OperationError` with its description."""
        # Kept, since not every runtime copies everything that it reads later.
        self._image = _image.read(image, target)
        try:
            self.native = call(hip.hipModuleLoadData, self._image.content)
        except OutOfMemoryError:
            raise
        except own(HalError) as problem:
            # Some runtimes report an unknown error for any image that they cannot read.
            message = (
                f"the image is {self._image.contents}, and the device is a {target}: {problem}; "
                "compile the source here"
            )
            raise OperationError(
                message, native_name=problem.native_name, native_code=problem.native_code
            ) from problem

    def unload(self) -> None:
        """Unload the image, which no work uses."""
        call(hip.hipModuleUnload, self.native)

    def function(self, name: str) -> Kernel:
        """Return a kernel by the name in its source; raises `NotFoundError` with the known names.

        A C++ kernel has a longer name in the image, which is accepted as well.
        """
        if known := self._find(name):
            return known
        names = self._image.kernels or self._image.functions
        matches = [each for each in names if elf.source_name(each) == name]
        if len(matches) == 1 and (known := self._find(matches[0])):
            return known
        if len(matches) > 1:
            several = ", ".join(matches)
            message = f"the image has {len(matches)} kernels {name!r}; name one: {several}"
            raise NotFoundError(message)
        listed = ", ".join(sorted(map(elf.source_name, names)))
        message = f"the image has no kernel {name!r}{f'; it has: {listed}' if listed else ''}"
        raise NotFoundError(message, native_name="hipErrorNotFound", native_code=500)

    def _find(self, name: str) -> Kernel | None:
        """Return the kernel that the image has under exactly that name, or None."""
        try:
            native = call(hip.hipModuleGetFunction, self.native, name.encode())
        except own(HalError) as error:
            if error.native_code not in _NOT_FOUND:
                raise
            return None
        return Kernel(native, self._image.kernels.get(name))

    def variable(self, name: str) -> tuple[int, int]:
        """Return the address and the bytes of a variable; raises `NotFoundError`."""
        try:
            address, size = call(hip.hipModuleGetGlobal, self.native, name.encode())
        except own(HalError) as error:
            if error.native_code not in _NOT_FOUND:
                raise
            message = f"the image has no variable {name!r}"
            raise NotFoundError(
                message, native_name=error.native_name, native_code=error.native_code
            ) from error
        return int(address), int(size)
