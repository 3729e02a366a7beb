"""Check a kernel's launch and pack its arguments (rule C5)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, SupportsIndex, TypeAlias

from hal._buffers.buffer import Buffer
from hal._engine.payload import NOTHING, Checked, Payload
from hal._kernels.executable import Kernel
from hal._kernels.indirect import COUNTS_ALIGNMENT, COUNTS_SIZE, run_on_host
from hal._kernels.launch_shape import check_block, check_grid
from hal._memory import peers
from hal._memory.access import check_buffer, late_address
from hal._memory.core import DeviceCore
from hal._memory.extent import Extent
from hal._memory.storage import Storage
from hal._memory.usage import DISPATCH, INDIRECT, READ, WRITE
from hal._programs.parameters import ParameterBlock, Resolver
from hal.arguments import as_instance
from hal.errors import InvalidArgumentError
from hal.native import IndirectLaunchNode

Grid: TypeAlias = "int | Sequence[int] | Buffer"
"""One to three numbers, or memory that holds three of 32 bits when the kernel is launched."""

_LateArguments: TypeAlias = list[tuple[int, Storage, int]]
"""Parameters whose memory has no address yet (M3), by index, -1 for the grid; with an offset."""


class _Buffers:
    """The buffers among a launch's arguments, resolved, and the resources that they use."""

    __slots__ = ("_device", "_kernel", "late", "used")

    def __init__(self, device: DeviceCore, kernel: Kernel) -> None:
        self._device = device
        self._kernel = kernel
        self.used: list[object] = []
        self.late: _LateArguments = []

    def resolve(self, argument: object, parameter: str) -> int | None:
        """Return a buffer's address, 0 if it has none yet; None for anything but a buffer."""
        if not isinstance(argument, Extent):
            return None
        device, signature = self._device, self._kernel._signature
        need = DISPATCH | (READ if parameter in signature.constants else WRITE)
        storage, denied = argument._storage, argument._denied & need
        if storage is None or argument._device is not device or device._closed or denied:
            # The words are made only here: most launches need none.
            what = f"{self._kernel.name}: argument {parameter!r}"
            storage = check_buffer(device, argument, what, need)
        self.used.append(storage)
        base = storage.address
        address = argument._offset if base is None else base + argument._offset
        known = signature._elements.get(parameter)
        if known is not None and (
            address & known[1] or (known[0] is not None and argument._dtype not in known[0])
        ):
            signature._check_buffer(self._kernel._name, parameter, argument._dtype, address)
        if base is None:
            names = list(signature._names)
            self.late.append((names.index(parameter), storage, argument._offset))
            return 0
        return address


def check_dispatch(
    device: DeviceCore,
    kernel: Kernel,
    grid: Grid,
    block: SupportsIndex | Sequence[SupportsIndex] | None,
    args: Sequence[object] | Mapping[str, object],
    shared_memory: SupportsIndex | None,
) -> Checked:
    """Check a launch; see `Queue.dispatch`."""
    buffers = _Buffers(device, kernel)
    blocks, threads, shared, parameters = check_launch(
        device, kernel, grid, block, args, shared_memory, buffers.resolve
    )
    used, late = buffers.used, buffers.late
    used += (kernel._module, parameters)
    function: Callable[..., object] = device._launch
    is_host = False
    where: object = blocks
    if blocks is None:
        what = f"dispatch of {kernel.name!r}: the grid"
        storage = check_buffer(device, grid, what, INDIRECT)
        assert isinstance(grid, Extent)  # noqa: S101 - for the type checker
        base = storage.address
        where = grid._offset if base is None else base + grid._offset
        check_counts(kernel, grid._size, where)
        used.append(storage)
        if base is None:
            late.append((-1, storage, grid._offset))
        function = device._launch_indirect
        is_host = "indirect_dispatch" not in device._native.features
    elif not all(blocks):
        return NOTHING, False
    arguments = (kernel._function, where, threads, shared, parameters.address)
    payload: Payload = (function, arguments, used)
    if is_host:
        payload = (_launch_on_host, (device, late, parameters, arguments), used)
    elif late:
        payload = (_launch_late, (function, late, parameters, arguments), used)
    if device._access:
        payload = peers.guard(device, payload)
    return payload, is_host


def check_launch(
    device: DeviceCore,
    kernel: Kernel,
    grid: object,
    block: SupportsIndex | Sequence[SupportsIndex] | None,
    args: Sequence[object] | Mapping[str, object],
    shared_memory: SupportsIndex | None,
    resolve: Resolver,
    where: str = "queue",
) -> tuple[tuple[int, int, int] | None, tuple[int, int, int], int, ParameterBlock]:
    """Return the grid (None if it is in memory), the block, the shared memory and the arguments."""
    if type(kernel) is not Kernel:
        check_kernel(kernel)
    if kernel._device is not device:
        kernel._device._live()  # a later device may have its name
        raise InvalidArgumentError(
            f"dispatch: kernel {kernel.name!r} was loaded on {kernel.device._name}, and this "
            f"{where} belongs to {device._name}; load the program there"
        )
    blocks = None
    # An object with a device address is memory: a buffer, or a slot that stands for one.
    if type(grid) is int or not hasattr(grid, "subspan"):
        blocks = check_grid(kernel, grid, ", or a buffer that has it")
    threads, shared = check_block(kernel, block, shared_memory, "dispatch")
    return blocks, threads, shared, kernel._signature.pack(kernel._name, args, resolve)


def check_kernel(kernel: object) -> None:
    """Raise unless an object is a kernel."""
    as_instance(kernel, Kernel, "dispatch takes a kernel (program['name'])")


def check_counts(kernel: Kernel, size: int, start: int) -> None:
    """Raise unless a grid can be in so many bytes, from an address or an offset on."""
    if size < COUNTS_SIZE or start % COUNTS_ALIGNMENT:
        raise InvalidArgumentError(
            f"dispatch of {kernel.name!r}: a grid in memory is three 32-bit numbers, {COUNTS_SIZE} "
            f"bytes at a multiple of {COUNTS_ALIGNMENT}; {size} bytes at {start:#x} were given"
        )


def _resolve(
    late: _LateArguments, parameters: ParameterBlock, arguments: tuple[Any, ...]
) -> tuple[Any, ...]:
    """Fill in addresses that memory has got meanwhile; return the launch's arguments."""
    for index, storage, offset in late:
        address = late_address(storage) + offset
        if index < 0:
            function, _, *rest = arguments
            arguments = (function, address, *rest)
        else:
            parameters.set_address(index, address)
    return arguments


def _launch_late(
    stream: int,
    function: Callable[..., object],
    late: _LateArguments,
    parameters: ParameterBlock,
    arguments: tuple[Any, ...],
) -> None:
    function(stream, *_resolve(late, parameters, arguments))


def _launch_on_host(
    device: DeviceCore, late: _LateArguments, parameters: ParameterBlock, arguments: tuple[Any, ...]
) -> None:
    """Launch over a grid in memory, which the host reads."""
    node = IndirectLaunchNode(*_resolve(late, parameters, arguments))
    run_on_host(device, [(device._launch_indirect, node)])
