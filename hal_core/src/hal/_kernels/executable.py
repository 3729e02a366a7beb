"""Executables and kernels: loaded code with typed entry points (rule C5)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

import numpy as np

from hal._buffers.buffer import Buffer
from hal._kernels import launch_shape
from hal._kernels.packing import packer_of
from hal._memory.extent import shape_of
from hal._memory.storage import Handle
from hal._programs.images import check_signature, check_sizes
from hal._programs.signature import Signature
from hal._programs.type_table import KernelEntry, read_type_table
from hal.arguments import as_dtype, as_text, as_three, shown
from hal.errors import InvalidArgumentError, NotFoundError, UnimplementedError
from hal.handlers import dropped, own
from hal.native import MemoryType

if TYPE_CHECKING:
    from numpy.typing import DTypeLike

    from hal._devices.device import Device
    from hal._memory.core import DeviceCore


_LONGEST_NAME: Final = 8192


class Kernel:
    """An entry point of an executable; made by ``executable[name]``.

    Keeps the executable's code alive. Any thread may use it.

    A dispatch without ``block=`` has the threads of `block`, in x, y and z; None if it must give
    them. One without ``shared_memory=`` has `shared_memory` bytes of dynamic shared memory. A
    block of this kernel has `max_threads_per_block` threads at the most. The kernel itself
    declares `static_shared_memory` bytes.
    """

    __slots__ = (
        "_allowed",
        "_blocks",
        "_device",
        "_function",
        "_module",
        "_name",
        "_packer",
        "_signature",
        "block",
        "max_threads_per_block",
        "shared_memory",
        "static_shared_memory",
    )

    def __init__(
        self,
        device: DeviceCore,
        module: Handle,
        name: str,
        signature: Signature | None,
        block: tuple[int, int, int] | None = None,
        shared_memory: int = 0,
    ) -> None:
        """Find a kernel of a module; without a signature its parameters are of kind "any".

        Raises `NotFoundError`, and `InvalidArgumentError` for a signature
        that contradicts the image.
        """
        native = device._native
        native.bind()
        self._device = device
        self._module = module
        self._name = name
        self._function = native.get_function(module.handle, name)
        info = native.function_info(self._function)
        self.max_threads_per_block = info.max_threads_per_block
        self.static_shared_memory = info.static_shared_memory
        self.block = block
        self.shared_memory = shared_memory
        # Blocks as they were given, of plain ints or None, that are within the limits
        self._blocks: dict[object, tuple[int, int, int]] = {}
        # The most dynamic shared memory that was checked and allowed; -1: none was, not even 0
        self._allowed = -1
        if signature is None:
            signature = _sized_signature(name, info.parameter_sizes)
        elif info.parameter_sizes is not None:
            check_sizes(name, signature, info.parameter_sizes)
        self._signature = signature
        self._packer = packer_of(signature)

    @property
    def name(self) -> str:
        """The name in the source."""
        return self._name

    @property
    def device(self) -> Device:
        """The device that the kernel was loaded on."""
        return self._device  # type: ignore[return-value]  # `cast` is a call

    @property
    def signature(self) -> Signature:
        """The parameters' names, kinds and sizes."""
        return self._signature

    def occupancy(
        self, block: int | Sequence[int] | None = None, *, shared_memory: int | None = None
    ) -> int:
        """Return how many blocks one compute unit of the device holds at once; 0 if none fits.

        The blocks have `block` threads and `shared_memory` bytes of dynamic shared
        memory each, as in `Queue.dispatch`; the kernel's defaults unless given. Multiply
        by ``device.info.compute_units`` for the whole device. Raises
        `UnimplementedError` on a device without the feature ``"occupancy"``,
        and the errors of a dispatch with such a block.
        """
        device = self._device
        device._live()
        threads, shared = launch_shape.check_block(self, block, shared_memory, "occupancy")
        if "occupancy" not in device._native.features:
            raise UnimplementedError(
                f"{device._name} does not tell the occupancy of kernels (the feature 'occupancy'); "
                "choose a block by measuring"
            )
        device._native.bind()
        return device._native.occupancy(self._function, math.prod(threads), shared)

    def __repr__(self) -> str:
        return f"<Kernel {self._name}{self._signature}>"


class Executable(Mapping[str, Kernel]):
    """A loaded image: a mapping of names to kernels.

    Made by `Device.compile` and `Device.load`. An unknown name raises
    `NotFoundError`, which is a `LookupError`, with the known names. An
    image that does not list its kernels maps to no names, but finds the
    kernels that are asked for by name. Any thread may use it.
    """

    __slots__ = ("_device", "_found", "_image", "_kernels", "_lists_all", "_module")

    def __init__(
        self,
        device: DeviceCore,
        image: bytes,
        module: Handle,
        kernels: dict[str, Kernel],
        *,
        lists_all: bool,
    ) -> None:
        self._device = device
        self._image = image
        self._module = module
        self._kernels = kernels
        self._found: dict[str, Kernel] = {}  # asked for by name, not listed
        self._lists_all = lists_all

    @property
    def image(self) -> bytes:
        """The bytes that were loaded, which `Device.load` takes again."""
        return self._image

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        """The kernels that the image lists, in the order of the source."""
        return tuple(self._kernels.values())

    def kernel(
        self,
        name: str,
        *,
        signature: str | Signature | None = None,
        block: int | Sequence[int] | None = None,
        shared_memory: int | None = None,
    ) -> Kernel:
        """Return a kernel with your description instead of the image's.

        An argument that is None keeps the image's value. `signature` describes the
        parameters, as in ``"(f32 a, const f32* x)"``; `block` and `shared_memory` are the
        defaults of a dispatch. Raises `NotFoundError` for an
        unknown name, and `InvalidArgumentError` for a signature that
        contradicts the sizes in the image.
        """
        self._device._live()
        name = _check_symbol(name, "kernel")
        known = self._kernels.get(name)
        if known is None and self._lists_all:
            message = f"there is no kernel {shown(name)}; there are: {', '.join(self._kernels)}"
            raise NotFoundError(message)
        parameters = known.signature if known else None
        if signature is not None:
            parameters = check_signature(name, signature)
        threads = known.block if known else None
        if block is not None:
            threads = as_three(block, f"kernel {name!r}: the block", 1)
        shared = known.shared_memory if known else 0
        made = Kernel(self._device, self._module, name, parameters, threads, shared)
        made.shared_memory = launch_shape.check_shared_memory(made, shared_memory, "a launch")
        return made

    def global_variable(self, name: str, *, dtype: DTypeLike = np.uint8) -> Buffer:
        """Return the memory of a ``__device__`` or ``__constant__`` variable at global scope.

        Every call returns the same memory, which keeps the code loaded. Launches that are
        ordered behind a write to it see that write. `dtype` is
        as for `Device.allocate`. Raises `NotFoundError` for an unknown name.
        """
        self._device._live()
        name = _check_symbol(name, "variable")
        return _global_variable(self._device, self._module, name, dtype)

    def __getitem__(self, name: str) -> Kernel:
        name = _check_symbol(name, "kernel")
        kernel = self._kernels.get(name) or self._found.get(name)
        # Of two threads that ask for one, both get the same.
        return kernel or self._found.setdefault(name, self.kernel(name))

    def get(  # type: ignore[override] # the default is a kernel, too
        self, name: str, /, default: Kernel | None = None
    ) -> Kernel | None:
        """Return a kernel, or `default` if there is none of that name."""
        try:
            return self[name] if isinstance(name, str) else default
        except own(NotFoundError):
            return default

    def __iter__(self) -> Iterator[str]:
        return iter(self._kernels)

    def __len__(self) -> int:
        return len(self._kernels)

    def __contains__(self, name: object) -> bool:
        if not isinstance(name, str):
            return False
        return str.__str__(name) in self._kernels if self._lists_all else self.get(name) is not None

    def __repr__(self) -> str:
        return f"<Executable {', '.join(self._kernels)}>"


def load_executable(
    device: DeviceCore,
    image: bytes,
    signatures: Mapping[str, Signature] | None,
    known: Mapping[str, KernelEntry] | None = None,
) -> Executable:
    """Load an image; the signature given comes first, then the known one, then the image's."""
    module = device._heap.load(image)
    entries: Mapping[str, KernelEntry] = known or {}
    found = True
    try:
        if known is None:
            names = _global_variable(device, module, "hal_kernels", np.uint8).numpy(wait=())
            table = _global_variable(device, module, "hal_parameters", np.uint8).numpy(wait=())
            entries = read_type_table(names.tobytes(), table.tobytes())
    except own(NotFoundError):
        found = False
    except own(InvalidArgumentError):
        if signatures is None:  # else the user has said what the unreadable table would say
            raise
        found = False
    kernels: dict[str, Kernel] = {}
    for name, entry in entries.items():
        signature = (signatures or {}).get(name, entry.signature)
        # The table lists the kernels of the source, and an #if may have left one out of the image.
        with dropped(NotFoundError):
            kernels[name] = Kernel(
                device, module, name, signature, entry.block, entry.shared_memory
            )
    for name, signature in (signatures or {}).items():
        if name not in kernels:
            kernels[name] = Kernel(device, module, name, signature)
    return Executable(device, image, module, kernels, lists_all=found)


def _check_symbol(name: object, what: str) -> str:
    """Return a name; raise if no image can contain it."""
    text = as_text(name, f"a {what}'s name is a str")
    # Drivers take C strings, and report an empty one as invalid.
    if not text.isprintable() or not text or len(text) > _LONGEST_NAME:
        raise NotFoundError(
            f"there is no {what} {shown(text)}: a name has 1 to {_LONGEST_NAME} printable letters"
        )
    return text


def _global_variable(device: DeviceCore, module: Handle, name: str, dtype: DTypeLike) -> Buffer:
    device._native.bind()
    address, size = device._native.get_global(module.handle, name)
    element = as_dtype(dtype)
    shape = shape_of(size, element, f"variable {name!r}")
    host = address if "host_visible_device_memory" in device.features else None
    storage = device._heap.adopt(address, size, MemoryType.DEVICE, host, module)  # keeps it loaded
    return Buffer(device, storage, 0, size, element, shape)


def _sized_signature(name: str, sizes: tuple[int, ...] | None) -> Signature:
    """Return a kernel's signature when only its parameters' sizes are known."""
    if sizes is None:
        raise InvalidArgumentError(
            f"the image does not say what parameters kernel {name!r} has, and the driver cannot "
            f"tell their sizes; give it a signature, as in load(image, "
            f"signatures={{{name!r}: '(f32 a, ptr x)'}})"
        )
    return Signature.parse(",".join(f"any[{size}]" for size in sizes))
