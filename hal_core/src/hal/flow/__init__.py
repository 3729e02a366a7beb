"""Order work by the bytes that it uses: tracked buffers, transfers, virtual devices.

A layer over queues and semaphores, made only of hal's public classes.
Start with `Flow`; docs/flow.md describes all of it. Programs that use raw queues
never need it.
"""

from __future__ import annotations

from hal.flow.buffers import TrackedBuffer
from hal.flow.contexts.context import Context
from hal.flow.contexts.routine import Routine, Step
from hal.flow.flow import Flow
from hal.flow.merging import Merge, MergeBuffer
from hal.flow.modes import MemoryMode
from hal.flow.pipelines import Pipeline
from hal.flow.recordings import Recording
from hal.flow.shortcuts import install as _install_shortcuts
from hal.flow.transfers import Download
from hal.flow.virtual import PhysicalDevice, VirtualDevice, virtual_devices

__all__ = [
    "Context",
    "Download",
    "Flow",
    "MemoryMode",
    "Merge",
    "MergeBuffer",
    "PhysicalDevice",
    "Pipeline",
    "Recording",
    "Routine",
    "Step",
    "TrackedBuffer",
    "VirtualDevice",
    "virtual_devices",
]

_install_shortcuts()
