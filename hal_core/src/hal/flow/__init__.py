"""Order work by the bytes that it uses: tracked buffers, transfers, virtual devices.

A layer over queues and semaphores, made only of hal's public classes.
Start with `Flow`; docs/flow.md describes all of it. Programs that use raw queues
never need it.
"""

from __future__ import annotations

from hal.flow.buffers import TrackedBuffer as TrackedBuffer
from hal.flow.contexts.context import Context as Context
from hal.flow.contexts.routine import Routine as Routine
from hal.flow.contexts.routine import Step as Step
from hal.flow.flow import Flow as Flow
from hal.flow.merging import Merge as Merge
from hal.flow.merging import MergeBuffer as MergeBuffer
from hal.flow.modes import MemoryMode as MemoryMode
from hal.flow.pipelines import Pipeline as Pipeline
from hal.flow.recordings import Recording as Recording
from hal.flow.shortcuts import install as _install_shortcuts
from hal.flow.transfers import Download as Download
from hal.flow.virtual import PhysicalDevice as PhysicalDevice
from hal.flow.virtual import VirtualDevice as VirtualDevice
from hal.flow.virtual import virtual_devices as virtual_devices

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
