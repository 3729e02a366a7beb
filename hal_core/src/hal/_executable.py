"""Define executables and kernels: loaded code with typed entry points (rule C5)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from hal._kernel_source import read_type_table
from hal._memory import Module
from hal._signature import Signature
from hal.errors import InvalidArgumentError, NotFoundError

if TYPE_CHECKING:
    from hal._device import Device

__all__ = ["Executable", "Kernel", "load_executable"]


class Kernel:
    """Be one entry point of an executable; made by ``executable[name]``.

    Keeps the executable's code alive. Any thread may use it.
    """

    __slots__ = (
        "_device",
        "_function",
        "_module",
        "_name",
        "_signature",
        "max_threads_per_block",
        "static_shared_memory",
    )

    def __init__(self, device: Device, module: Module, name: str, signature: Signature) -> None:
        native = device._native
        self._device = device
        self._module = module
        self._name = name
        self._signature = signature
        self._function = native.get_function(module.handle, name)
        info = native.function_info(self._function)
        self.max_threads_per_block = info.max_threads_per_block
        self.static_shared_memory = info.static_shared_memory
        declared = tuple(parameter.size for parameter in signature.parameters)
        if info.parameter_sizes is not None and info.parameter_sizes != declared:
            message = (
                f"kernel {name!r} has parameters of {info.parameter_sizes} bytes in the image, and "
                f"the signature {signature} says {declared}"
            )
            raise InvalidArgumentError(message)

    @property
    def name(self) -> str:
        """Return the name in the source."""
        return self._name

    @property
    def device(self) -> Device:
        """Return the device that the kernel was loaded on."""
        return self._device

    @property
    def signature(self) -> Signature:
        """Return the parameters' names, kinds and sizes."""
        return self._signature

    def __repr__(self) -> str:
        return f"<Kernel {self._name}{self._signature}>"


class Executable(Mapping[str, Kernel]):
    """Be a loaded image: a mapping of names to kernels.

    Made by `Device.compile` and `Device.load`. An unknown name raises
    `NotFoundError`, which is a `LookupError`, with the names there are.
    """

    __slots__ = ("_image", "_kernels")

    def __init__(self, image: bytes, kernels: dict[str, Kernel]) -> None:
        self._image = image
        self._kernels = kernels

    @property
    def image(self) -> bytes:
        """Return the bytes that were loaded, which `Device.load` takes again."""
        return self._image

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        """Return the kernels in the order of the source."""
        return tuple(self._kernels.values())

    def __getitem__(self, name: str) -> Kernel:
        kernel = self._kernels.get(name)
        if kernel is None:
            message = f"there is no kernel {name!r}; there are: {', '.join(self._kernels)}"
            raise NotFoundError(message)
        return kernel

    def get(  # type: ignore[override] # the default is a kernel, too
        self, name: str, /, default: Kernel | None = None
    ) -> Kernel | None:
        """Return a kernel, or `default` where there is none."""
        return self._kernels.get(name, default)

    def __iter__(self) -> Iterator[str]:
        return iter(self._kernels)

    def __len__(self) -> int:
        return len(self._kernels)

    def __contains__(self, name: object) -> bool:
        return name in self._kernels

    def __repr__(self) -> str:
        return f"<Executable {', '.join(self._kernels)}>"


def load_executable(
    device: Device, image: bytes, signatures: Mapping[str, Signature] | None
) -> Executable:
    """Load an image; the signatures are the given ones, else those in the image."""
    module = device._heap.load(image)
    kernels: dict[str, Kernel] = {}
    if signatures is not None:
        for name, signature in signatures.items():
            kernels[name] = Kernel(device, module, name, signature)
    else:
        try:
            names = _read_global(device, module, "hal_kernels").tobytes()
            parameters = _read_global(device, module, "hal_parameters").tobytes()
        except NotFoundError as error:
            message = (
                "the image does not say what parameters its kernels have; pass "
                "signatures={'name': '(f32 a, ptr x)'} to load()"
            )
            raise InvalidArgumentError(message) from error
        for name, signature in read_type_table(names, parameters).items():
            # The table lists kernels by the source; an #if may have left one out.
            with contextlib.suppress(NotFoundError):
                kernels[name] = Kernel(device, module, name, signature)
    return Executable(image, kernels)


def _read_global(device: Device, module: Module, name: str) -> NDArray[np.uint8]:
    """Copy a global of a module to the host; blocks."""
    native = device._native
    native.bind()
    address, size = native.get_global(module.handle, name)
    host = np.empty(size, np.uint8)
    payload = (native.copy_to_host, (host.ctypes.data, address, size), (module, host))
    device.queues.download._submit("read", payload, (), ()).wait()
    return host
