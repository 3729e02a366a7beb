"""Drive compute accelerators through one thin, fast, backend-neutral runtime.

Start with `create_device`. See docs/architecture.md for the layers, and the
rules (S1, Q1, C1, M1, I1 ...) that docstrings name.
"""

from __future__ import annotations

import importlib as _importlib
from typing import TYPE_CHECKING as _TYPE_CHECKING

from hal import errors, native, plugin
from hal._backends.plugins import BackendStatus, DeviceDescription
from hal._backends.registry import backends, devices
from hal._base.process import refuse_copies as _refuse_copies
from hal._base.regions import before_first as _before_first
from hal._buffers.buffer import Buffer
from hal._commands.command_buffer import CommandBuffer
from hal._commands.recorder import CommandEvent
from hal._commands.slots import Slot
from hal._devices.create import create_device
from hal._devices.device import Device
from hal._devices.dump import dump
from hal._devices.lifecycle import install as _install
from hal._devices.pickling import register as _register
from hal._devices.queue import Queue
from hal._devices.shortcuts import install as _install_shortcuts
from hal._engine.fence import Fence, wait_all, wait_any
from hal._engine.semaphore import Semaphore
from hal._engine.shared_semaphore import SharedSemaphore as _SharedSemaphore
from hal._engine.shared_semaphore import create_semaphore
from hal._engine.submission import Submission
from hal._engine.timelines import Timepoint
from hal._engine.timestamps import Timestamp
from hal._kernels.executable import Executable, Kernel
from hal._kernels.output import Output, Printed, PrintedLine
from hal._memory.books import MemoryUse
from hal._memory.report import MemoryHeap, MemoryQuery, MemoryStatistics
from hal._memory.usage import BufferUsage
from hal._programs.compile import compile_all
from hal._programs.compile import compile_program as compile  # noqa: A004 - hal.compile
from hal._programs.program import Program
from hal._programs.program_image import ProgramImage
from hal._programs.signature import Signature
from hal._transfers.files import File
from hal.errors import HalError
from hal.handlers import own as _own
from hal.native import MemoryType

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
            except _own(metadata.PackageNotFoundError):
                return "0"  # run from a source tree that is not installed
        raise AttributeError(f"module 'hal' has no attribute {name!r}")


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
