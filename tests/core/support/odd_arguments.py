"""What each parameter of the public interface rightly takes, by its name."""

import numpy as np
from odd_values import OddError
from odd_world import SOURCE

import hal
from hal import flow

__all__ = ["ALWAYS", "GOOD", "good_of"]

INTS = {"int"}
THREE = {"int", "numbers"}
TEXT = {"text"}
NAME = {"text", "none"}
FLAG = {"flag"}
SECONDS = {"real", "none"}
NAMES = {"list", "texts"}
PATH = {"text", "path", "bytes"}

# By parameter: how a good value is had of a world, and what kinds of value may be taken, if that
# is known. Of a method, where others mean something else by the name.
GOOD = {
    "access": (lambda w: "all", TEXT),
    "after": (lambda w: (), {"list", "none", "waits"}),
    "allocate": (lambda w: {}, {"mapping", "none"}),
    "args": (lambda w: (w.buffer, 1), {"list", "mapping"}),
    "array": (lambda w: np.zeros(64, np.uint8), None),
    "bindings": (lambda w: [w.buffer], {"list", "mapping", "none"}),
    "block": (lambda w: 1, {*THREE, "none"}),
    "buffer": (lambda w: w.fresh("buffer"), {"buffer"}),
    "buffers": (lambda w: {}, {"list", "mapping"}),
    "categories": (lambda w: "all", TEXT),
    "chunk": (lambda w: 64, INTS),
    "code": (lambda w: w.program, {"code"}),
    "command_buffer": (lambda w: "auto", NAME),
    "commands": (lambda w: w.ended, {"commands"}),
    "content": (lambda w: w.program.to_bytes(), {"bytes"}),
    "copy": (lambda w: None, {"flag", "none"}),
    "count": (lambda w: 1, INTS),
    "data": (lambda w: b"x", None),
    "default": (lambda w: None, None),
    "defines": (lambda w: {}, {"mapping", "none"}),
    "depth": (lambda w: 1, INTS),
    "device": (lambda w: w.device, {"device", "none"}),
    "devices": (lambda w: w.device, {"device"}),
    "dl_device": (lambda w: None, {"numbers", "none"}),
    "dtype": (lambda w: "u1", None),
    "earlier": (lambda w: w.timestamp, {"timestamp"}),
    "entry": (lambda w: "odd", {"text", "list", "none"}),
    "error": (lambda w: OddError("x"), {"error"}),
    "event": (lambda w: w.fresh("event"), {"event"}),
    "events": (lambda w: w.event, {"event"}),
    "filename": (lambda w: "k.cpp", TEXT),
    "flow": (lambda w: w.flow, {"flow"}),
    "function": (lambda w: lambda *_: None, {"callable"}),
    "group": (lambda w: w.fresh("group"), {"group"}),
    "grid": (lambda w: 1, {*THREE, "buffer"}),
    "hazards": (lambda w: "auto", TEXT),
    "hold": (lambda w: None, {"flag", "none"}),
    "image": (lambda w: w.image.image, {"bytes", "text", "path", "code"}),
    "images": (lambda w: w.program, {"code", "list", "mapping", "bytes", "text", "path"}),
    "include_directories": (lambda w: (), {"list", "texts"}),
    "initial": (lambda w: 1, INTS),
    "inputs": (lambda w: {}, {"mapping"}),
    "keep": (lambda w: 0, INTS),
    "kernel": (lambda w: w.kernel, {"kernel"}),
    "kernels": (lambda w: {}, {"mapping", "none"}),
    "max_version": (lambda w: None, {"numbers", "none"}),
    "shape": (lambda w: (4, 4), None),
    "shareable": (lambda w: False, FLAG),
    "rows": (lambda w: slice(1), None),
    "memory": (lambda w: "device", TEXT),
    "memory_limit": (lambda w: None, {"int", "text", "list", "none", "numbers"}),
    "mode": (lambda w: "copy", TEXT),
    "name": (lambda w: "odd", NAME),
    "names": (lambda w: (), None),
    "offset": (lambda w: 0, INTS),
    "one_shot": (lambda w: False, FLAG),
    "op": (lambda w: "sum", TEXT),
    "options": (lambda w: (), {"list", "mapping", "texts"}),
    "ordered": (lambda w: True, FLAG),
    "other": (lambda w: w.foreign_device, {"device"}),
    "outputs": (lambda w: {}, {"mapping"}),
    "color": (lambda w: 0, {"int", "none"}),
    "environment": (lambda w: {}, {"mapping", "none", "context"}),
    "key": (lambda w: 0, INTS),
    "path": (lambda w: "odd.bin", PATH),
    "peer": (lambda w: 0, INTS),
    "peers": (lambda w: True, FLAG),
    "provider": (lambda w: None, NAME),
    "rank": (lambda w: None, {"int", "none"}),
    "ranks": (lambda w: [0], {"list"}),
    "raw": (lambda w: w.fresh("buffer"), {"buffer"}),
    "readers": (lambda w: True, FLAG),
    "reads": (lambda w: (), NAMES),
    "recording": (lambda w: w.fresh("flow_ended"), {"commands"}),
    "release": (lambda w: None, {"callable", "none"}),
    "rendezvous": (lambda w: None, {"text", "none", "callable"}),
    "reset_peak": (lambda w: False, FLAG),
    "root": (lambda w: 0, INTS),
    "scalars": (lambda w: {}, {"mapping", "none"}),
    "shared_memory": (lambda w: 0, {"int", "none"}),
    "signal": (lambda w: (), {"list", "none", "waits"}),
    "signature": (lambda w: "(ptr x, i32 n)", {"text", "none", "signature"}),
    "signatures": (lambda w: None, {"mapping", "none"}),
    "size": (lambda w: 16, {"int", "none"}),
    "slots": (lambda w: 0, {"int", "list", "texts"}),
    "snapshot": (lambda w: 64, INTS),
    "source": (lambda w: w.buffer, {"buffer"}),
    "source_offset": (lambda w: 0, INTS),
    "spec": (lambda w: w.spec, TEXT),
    "stream": (lambda w: None, None),
    "target": (lambda w: w.target, {"buffer"}),
    "target_offset": (lambda w: 0, INTS),
    "tensor": (lambda w: np.zeros(8, np.uint8), None),
    "text": (lambda w: "(ptr x)", TEXT),
    "timeout": (lambda w: 0, SECONDS),
    "ticket": (lambda w: w.ticket, {"ticket"}),
    "timepoints": (lambda w: [w.timepoint], {"list", "waits"}),
    "to": (lambda w: None, {"none", "context"}),
    "trace": (lambda w: None, {"none", "callable"}),
    "usage": (lambda w: hal.BufferUsage.ALL, {"usage", "int"}),
    "value": (lambda w: 1, {"int"}),
    "wait": (lambda w: (), {"list", "none", "waits"}),
    "writes": (lambda w: (), NAMES),
    # Of one method
    "CommandBuffer.on.where": (lambda w: "upload", {"text", "queue", "device"}),
    "CommandBuffer.dealloca.temporary": (lambda w: w.recording.alloca(64), None),
    "CommandBuffer.dispatch.args": (lambda w: (w.buffer, 1), {"list", "mapping"}),
    "CommandBuffer.fill.value": (lambda w: 1, None),
    "Context.adopt.buffer": (lambda w: w.tracked, {"buffer"}),
    "Context.adopt.mode": (lambda w: "hosted", TEXT),
    "Context.allocate.mode": (lambda w: "hosted", TEXT),
    "Context.link.steps": (lambda w: flow.Step("odd", grid=1), {"step"}),
    "Context.__getitem__.name": (lambda w: "x", TEXT),
    "Context.get.name": (lambda w: "x", TEXT),
    "Context.__contains__.name": (lambda w: "x", None),
    "TrackedBuffer.fill.value": (lambda w: 1, None),
    "Context.from_host.mode": (lambda w: "hosted", TEXT),
    "Device.compile.source": (lambda w: SOURCE, {"text", "mapping"}),
    "Device.compile.trace": (lambda w: False, {"flag", "none", "text"}),
    "Executable.__contains__.name": (lambda w: "odd", None),
    "Executable.get.name": (lambda w: "odd", None),
    "Fence.__or__.other": (lambda w: w.fence, {"waits"}),
    "Flow.copy.source": (lambda w: w.tracked, {"buffer"}),
    "Flow.copy.target": (lambda w: w.tracked_target, {"buffer"}),
    "Flow.device_to_device.source": (lambda w: w.tracked, {"buffer"}),
    "Flow.device_to_device.target": (lambda w: w.tracked_target, {"buffer", "device"}),
    "Flow.dispatch.args": (lambda w: (w.tracked, 1), {"list", "mapping"}),
    "Flow.execute.bindings": (lambda w: [w.tracked], {"list", "mapping"}),
    "Flow.execute.commands": (lambda w: w.flow_ended, {"commands"}),
    "Flow.fill.value": (lambda w: 1, None),
    "Flow.from_host.target": (lambda w: None, {"buffer", "device", "none"}),
    "Flow.queue": (lambda w: None, {"queue", "text", "none"}),
    "Slots.__contains__.value": (lambda w: w.slot, None),
    "Slots.__getitem__.index": (lambda w: 0, INTS),
    "Flow.reaches.other": (lambda w: w.device, {"device", "none"}),
    "Flow.submit.function": (lambda w: lambda q, waits: q.barrier(wait=waits), {"callable"}),
    "MergeBuffer.expect.source": (lambda w: w.tracked, {"buffer", "text"}),
    "MergeBuffer.load.source": (lambda w: w.tracked, {"buffer"}),
    "Queue.wait_external.event": (lambda w: None, None),
    "Queue.notify_external.event": (lambda w: None, None),
    "Queue.call.arguments": (lambda w: 1, None),
    "Flow.call.arguments": (lambda w: 1, None),
    "Queue.dealloca.buffer": (lambda w: w.fresh("alloca"), {"buffer"}),
    "Device.full.value": (lambda w: 1, None),
    "Queue.fill.value": (lambda w: 1, None),
    "Recording.on.where": (lambda w: "upload", {"text", "device", "none"}),
    "Recording.copy.source": (lambda w: w.tracked, {"buffer"}),
    "Recording.copy.target": (lambda w: w.tracked_target, {"buffer"}),
    "Recording.dispatch.args": (lambda w: (w.tracked, 1), {"list", "mapping"}),
    "Recording.fill.value": (lambda w: 1, None),
    "Recording.dealloca.temporary": (lambda w: w.flow_recording.alloca(64), None),
    "Routine.run.queue": (lambda w: None, {"queue", "text", "none"}),
    "Routine.__call__.n": (lambda w: 1, INTS),
    "Routine.__call__.arguments": (lambda w: 1, None),
    "Routine.run.arguments": (lambda w: {"n": 1}, {"mapping"}),
    "join.size": (lambda w: None, {"int", "none"}),
    "join_all.devices": (lambda w: [w.device], {"list"}),
    "Timepoint.semaphore": (lambda w: w.semaphore, {"semaphore"}),
    "compile.source": (lambda w: SOURCE, {"text", "mapping"}),
    "compile.target": (lambda w: w.spec, {"text", "list", "device"}),
    "compile_all.sources": (lambda w: [SOURCE], {"list"}),
    "compile_all.target": (lambda w: w.spec, {"text", "list", "device"}),
    "compile.trace": (lambda w: False, {"flag", "text"}),
    "create_device.parameters": (lambda w: 1, None),
    "virtual_devices.parameters": (lambda w: 1, None),
    "MergeBuffer.recover": (lambda w: None, None),
}
for _method in ("fill", "write", "update", "read", "to_host", "recover", "release", "fence"):
    GOOD[f"Flow.{_method}.buffer"] = (lambda w: w.fresh("tracked"), {"buffer"})
for _method in ("fill", "update"):
    GOOD[f"Recording.{_method}.buffer"] = (lambda w: w.tracked, {"buffer"})
for _method in ("signal_event", "reset_event", "wait_events"):
    GOOD[f"Recording.{_method}.event"] = (lambda w: w.flow_recording.create_event(), {"event"})

ALWAYS = {"timeout", "args"}
"""What is given though it could be left out: a wait has an end, a kernel arguments."""


def good_of(title, name):
    """Return how a good value of a parameter is had, and the kinds of value that it takes."""
    owner = title.partition(".")[0]
    for key in (f"{title}.{name}", f"{owner}.{name}", name):
        if key in GOOD:
            return GOOD[key]
    return None
