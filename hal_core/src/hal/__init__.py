"""Drive compute accelerators through one thin, fast, backend-neutral runtime.

Start with `create_device`. See docs/architecture.md for the layers, and the
rules (S1, Q1, C1, M1, I1 ...) that docstrings name.
"""

from __future__ import annotations

import importlib as _importlib
from typing import TYPE_CHECKING as _TYPE_CHECKING

from hal import errors as errors
from hal import native as native
from hal import plugin as plugin
from hal._backends.registry import BackendStatus as BackendStatus
from hal._backends.registry import DeviceDescription as DeviceDescription
from hal._backends.registry import backends as backends
from hal._backends.registry import devices as devices
from hal._base.process import refuse_copies as _refuse_copies
from hal._base.regions import before_first as _before_first
from hal._buffers.buffer import Buffer as Buffer
from hal._commands.command_buffer import CommandBuffer as CommandBuffer
from hal._commands.events import CommandEvent as CommandEvent
from hal._commands.slots import Slot as Slot
from hal._devices.create import create_device as create_device
from hal._devices.device import Device as Device
from hal._devices.dump import dump as dump
from hal._devices.lifecycle import install as _install
from hal._devices.pickling import register as _register
from hal._devices.queue import Queue as Queue
from hal._devices.shortcuts import install as _install_shortcuts
from hal._engine.fence import Fence as Fence
from hal._engine.fence import wait_all as wait_all
from hal._engine.fence import wait_any as wait_any
from hal._engine.semaphore import Semaphore as Semaphore
from hal._engine.shared_semaphore import SharedSemaphore as _SharedSemaphore
from hal._engine.shared_semaphore import create_semaphore as create_semaphore
from hal._engine.submission import Submission as Submission
from hal._engine.timelines import Timepoint as Timepoint
from hal._engine.timestamps import Timestamp as Timestamp
from hal._kernels.executable import Executable as Executable
from hal._kernels.executable import Kernel as Kernel
from hal._kernels.output import Output as Output
from hal._kernels.output import Printed as Printed
from hal._kernels.output import PrintedLine as PrintedLine
from hal._memory.report import MemoryHeap as MemoryHeap
from hal._memory.report import MemoryQuery as MemoryQuery
from hal._memory.report import MemoryStatistics as MemoryStatistics
from hal._memory.report import MemoryUse as MemoryUse
from hal._memory.usage import BufferUsage as BufferUsage
from hal._programs.compile import compile_all
from hal._programs.compile import compile_program as compile  # noqa: A004 - hal.compile
from hal._programs.program import Program as Program
from hal._programs.program_image import ProgramImage as ProgramImage
from hal._programs.signature import Signature as Signature
from hal._transfers.files import File as File
from hal.errors import HalError as HalError
from hal.native import MemoryType as MemoryType

if _TYPE_CHECKING:
    from hal import protocols as protocols

__all__ = [
    "BackendStatus",
    "Buffer",
    "BufferUsage",
    "CommandBuffer",
    "CommandEvent",
    "Device",
    "DeviceDescription",
    "Executable",
    "Fence",
    "File",
    "HalError",
    "Kernel",
    "MemoryHeap",
    "MemoryQuery",
    "MemoryStatistics",
    "MemoryType",
    "MemoryUse",
    "Output",
    "Printed",
    "PrintedLine",
    "Program",
    "ProgramImage",
    "Queue",
    "Semaphore",
    "Signature",
    "Slot",
    "Submission",
    "Timepoint",
    "Timestamp",
    "backends",
    "compile",
    "compile_all",
    "create_device",
    "create_semaphore",
    "devices",
    "dump",
    "errors",
    "native",
    "plugin",
    "protocols",
    "wait_all",
    "wait_any",
]

__version__: str
"""The version of hal-core."""
if not _TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        """Load what most programs never ask for, and `import hal` should not wait for."""
        if name == "protocols":
            return _importlib.import_module("hal.protocols")
        if name == "__version__":
            metadata = _importlib.import_module("importlib.metadata")
            try:
                return metadata.version("hal-core")
            except metadata.PackageNotFoundError:  # run from a source tree that is not installed
                return "0"
        message = f"module 'hal' has no attribute {name!r}"
        raise AttributeError(message)


_kinds = (
    Buffer,
    CommandBuffer,
    Device,
    Executable,
    Kernel,
    Queue,
    Semaphore,
    Submission,
    Timestamp,
)
_install_shortcuts()
_install((*_kinds, Fence))
_refuse_copies(*_kinds, Output, _SharedSemaphore)
_before_first.append(_register)
