"""Put shortcuts of the C extension in front of the most frequent methods.

The one module of this layer that knows the core's insides: a shortcut does what the method does,
for memory that is used as a whole, and leaves everything else to it.
"""

from __future__ import annotations

from typing import Final

from hal._base import speedups
from hal.flow.buffers import TrackedBuffer
from hal.flow.contexts.routine import Routine
from hal.flow.flow import Flow
from hal.flow.host_arrays import ReadsInFlight
from hal.flow.pipelines import BufferSet, Pipeline
from hal.flow.recordings import Recording
from hal.flow.tracking import History, Lanes

_CLASSES: Final = (
    *(BufferSet, Flow, History, Lanes, Pipeline, ReadsInFlight, Recording, Routine, TrackedBuffer),
)

_METHODS: Final[tuple[tuple[type, str, str], ...]] = (
    (Flow, "dispatch", "flow_dispatch"),
    (Flow, "execute", "flow_execute"),
    (Flow, "fill", "flow_fill"),
    (Pipeline, "run", "pipeline_run"),
    (ReadsInFlight, "add", "reads_add"),
    (ReadsInFlight, "check", "reads_check"),
    (Routine, "__call__", "routine"),
)
"""A class, its method, and the name of the shortcut."""


def install() -> None:
    """Install the shortcuts, if the extension is there; `hal.flow` calls it once, when imported."""
    module = speedups.module
    if module is None:
        return
    module.install_flow({each.__name__: each for each in _CLASSES}, {})
    for owner, method, name in _METHODS:
        setattr(owner, method, module.Shortcut(name, getattr(owner, method)))
