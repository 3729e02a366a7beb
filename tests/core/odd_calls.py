"""Every call of the public interface, found by looking at it, with one argument that is odd.

A new method is covered by itself. A parameter whose name is not in `GOOD` has
to be put there, unless it can be left out.
"""

from __future__ import annotations

import contextlib
import enum
import faulthandler
import functools
import gc
import inspect
import json
import os
import random
import sys
import threading
import warnings

import numpy as np
from odd_values import ODD, Odd, OddError

import hal
from hal import flow
from hal._slots import Slots

__all__ = ["batches", "main", "parameters_of", "targets_of"]

LIMIT = 20.0
CASES = 900
"""Calls of one method at the most; of more, some are drawn."""

SOURCE = """
__global__ void HAL_BLOCK(1) odd(unsigned char *x, int n) { x[0] += n; }
__device__ int spare[4];
"""

# What stands for what is internal, though its name is public, has no place in a signature
INTERNAL = {
    "Flow": {"run", "renew", "check", "check_open", "refuse", "lanes_of", "queue_of", "write_raw"},
    "Context": {"find", "for_work", "line", "check_use", "allocate_all"},
    "Signature": {"pack", "check_buffer"},
    "Slots": {"need"},
}
RECORDS = (
    *(hal.BackendStatus, hal.DeviceDescription, hal.MemoryHeap, hal.MemoryQuery),
    *(hal.MemoryStatistics, hal.Printed, hal.PrintedLine, hal.ProgramImage),
)
MADE = {hal.Timepoint, hal.Fence, hal.File, hal.Output, flow.Flow, flow.Context, flow.Memory}
MADE |= {flow.Step}
"""Classes that users call themselves; the others are made by methods."""
SPECIAL = ("__getitem__", "__contains__", "__or__", "__array__", "__dlpack__", "__call__")
PASSED_ON = {"Flow.submit"}
"""What calls a user's function at once, whose errors are passed on."""
KEYWORDS = {
    "create_device": ("max_in_flight", "memory_limit", "staging", "command_buffer", "nonsense"),
    "virtual_devices": ("max_in_flight",),
    "Routine.__call__": ("n",),
}


class World:
    """Have one of everything, made when it is asked for."""

    def __init__(self, spec):
        self.spec = spec
        self.kept = {}

    def __getattr__(self, name):
        made = self.kept.get(name)
        if made is None:
            made = self.kept[name] = getattr(self, f"_{name}")()
        return made

    def fresh(self, name):
        """Return another one of something."""
        return getattr(self, f"_{name}")()

    def _device(self):
        return hal.create_device(self.spec, memory_limit="256M")

    _foreign_device = _device

    def _closed_device(self):
        made = self._device()
        made.close(LIMIT)
        return made

    def _queues(self):
        return self.device.queues

    def _queue(self):
        return self.device.create_queue()

    def _closed_queue(self):
        made = self._queue()
        made.close(LIMIT)
        return made

    def _buffer(self):
        return self.device.upload(np.zeros(64, np.uint8))

    def _target(self):
        return self.device.upload(np.zeros(64, np.uint8))

    def _closed_buffer(self):
        made = self._buffer()
        made.close()
        return made

    def _foreign_buffer(self):
        return self.foreign_device.upload(np.zeros(64, np.uint8))

    def _alloca(self):
        return self.device.queue.alloca(64)

    def _executable(self):
        return self.device.compile(SOURCE)

    def _kernel(self):
        return self.executable["odd"]

    def _foreign_kernel(self):
        return self.foreign_device.compile(SOURCE)["odd"]

    def _program(self):
        return hal.compile(SOURCE, target=self.device)

    def _image(self):
        return self.program.image_for(self.device)

    def _semaphore(self):
        return hal.create_semaphore(5)

    def _timepoint(self):
        return hal.create_semaphore(5).at(3)

    def _unreached(self):
        return hal.create_semaphore().at(1)

    def _failed_timepoint(self):
        semaphore = hal.create_semaphore()
        semaphore.fail(OddError("failed"))
        return semaphore.at(1)

    def _fence(self):
        return hal.Fence([self.timepoint])

    def _submission(self):
        made = self.device.queue.barrier()
        made.wait(LIMIT)
        return made

    def _failed_submission(self):
        made = self.queue.call(lambda: 1 / 0)
        with contextlib.suppress(hal.HalError):
            made.wait(LIMIT)
        return made

    def _timestamp(self):
        made = self.device.queue.timestamp()
        made.wait(LIMIT)
        return made

    def _callback(self):
        return self.semaphore.on_reached(100, print)

    def _recording(self):
        return self.device.record(slots=[("u1", 64)])

    def _ended(self):
        with self.device.record(slots=[("u1", 64)]) as made:
            made.fill(made.slots[0], 1)
        return made

    def _slots(self):
        return self.recording.slots

    def _slot(self):
        return self.slots[0]

    def _event(self):
        return self.recording.create_event()

    def _output(self):
        return hal.Output(self.device)

    def _file(self):
        return hal.File("odd.bin")

    def _signature(self):
        return hal.Signature.parse("(ptr x, i32 n)")

    def _flow(self):
        return flow.Flow(self.device)

    def _tracked(self):
        return self.flow.from_host(np.zeros(64, np.uint8))

    def _tracked_target(self):
        return self._tracked()

    def _closed_tracked(self):
        made = self._tracked()
        made.close()
        return made

    def _foreign_tracked(self):
        return flow.Flow(self.foreign_device).allocate(64)

    def _flow_recording(self):
        return self.flow.record(slots=[("u1", 64)])

    def _flow_ended(self):
        with self.flow.record(slots=[("u1", 64)]) as made:
            made.fill(made.slots[0], 1)
        return made

    def _pipeline(self):
        return self.flow.pipeline(self.flow_ended)

    def _context(self):
        made = flow.Context(self.flow, name="odd")
        made.allocate("x", 64, mode="hosted")
        made.allocate("z", 64, mode="hosted")
        return made

    def _routine(self):
        return self.context.link(self.program, "odd", grid=1)

    def _merge(self):
        made = self.flow.merge_buffer()
        made.load(self.tracked)
        return made

    def _download(self):
        return self.flow.to_host(self.tracked)

    def _virtual(self):
        return flow.virtual_devices(self.spec, 1)[0]

    def check(self):
        """Fail unless the device does its work."""
        assert not self.device.lost
        buffer = self._buffer()
        done = hal.create_semaphore()
        self.device.queue.fill(buffer, 7, signal=done.at(1))
        self.device.queue.dispatch(self.kernel, grid=1, args=(buffer, 1)).wait(LIMIT)
        done.wait(1, LIMIT)
        assert buffer.numpy().tolist() == [8] + [7] * 63
        self.device.wait_idle(LIMIT)

    def close(self):
        """Close what can be closed; fail if something goes on."""
        for name in ("routine", "pipeline", "context", "merge", "flow"):
            if name in self.kept:
                getattr(self.kept[name], "close", lambda: None)()
        for name in ("device", "foreign_device", "virtual"):
            if name in self.kept:
                assert self.kept[name].close(LIMIT) == ()


# Whose methods are called, by class: what of the world it is, and another one to consume
SUBJECTS = {
    hal.Buffer: "buffer",
    hal.CommandBuffer: "recording",
    hal.CommandEvent: "event",
    hal.Device: "device",
    hal.Executable: "executable",
    hal.Fence: "fence",
    hal.File: "file",
    hal.Kernel: "kernel",
    hal.Output: "output",
    hal.Program: "program",
    hal.Queue: "queue",
    hal.Semaphore: "semaphore",
    hal.Signature: "signature",
    hal.Slot: "slot",
    Slots: "slots",
    hal.Submission: "submission",
    hal.Timepoint: "timepoint",
    hal.Timestamp: "timestamp",
    flow.Context: "context",
    flow.Download: "download",
    flow.Flow: "flow",
    flow.MergeBuffer: "merge",
    flow.Pipeline: "pipeline",
    flow.Recording: "flow_recording",
    flow.Routine: "routine",
    flow.TrackedBuffer: "tracked",
    flow.VirtualDevice: "virtual",
}

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
    "grid": (lambda w: 1, {*THREE, "buffer"}),
    "hazards": (lambda w: "auto", TEXT),
    "hold": (lambda w: None, {"flag", "none"}),
    "image": (lambda w: w.image.image, {"bytes", "text", "path", "code"}),
    "include_directories": (lambda w: (), {"list", "texts"}),
    "initial": (lambda w: 1, INTS),
    "inputs": (lambda w: {}, {"mapping"}),
    "keep": (lambda w: 0, INTS),
    "kernel": (lambda w: w.kernel, {"kernel"}),
    "max_version": (lambda w: None, {"numbers", "none"}),
    "memory": (lambda w: "device", TEXT),
    "memory_limit": (lambda w: None, {"int", "text", "list", "none", "numbers"}),
    "mode": (lambda w: "copy", TEXT),
    "name": (lambda w: "odd", NAME),
    "names": (lambda w: (), None),
    "offset": (lambda w: 0, INTS),
    "one_shot": (lambda w: False, FLAG),
    "options": (lambda w: (), {"list", "mapping", "texts"}),
    "ordered": (lambda w: True, FLAG),
    "other": (lambda w: w.foreign_device, {"device"}),
    "outputs": (lambda w: {}, {"mapping"}),
    "path": (lambda w: "odd.bin", PATH),
    "peers": (lambda w: True, FLAG),
    "raw": (lambda w: w.fresh("buffer"), {"buffer"}),
    "readers": (lambda w: True, FLAG),
    "reads": (lambda w: (), NAMES),
    "recording": (lambda w: w.fresh("flow_ended"), {"commands"}),
    "release": (lambda w: None, {"callable", "none"}),
    "reset_peak": (lambda w: False, FLAG),
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
    "timepoints": (lambda w: [w.timepoint], {"list", "waits"}),
    "to": (lambda w: None, {"none", "context"}),
    "trace": (lambda w: None, {"none", "callable"}),
    "usage": (lambda w: hal.BufferUsage.ALL, {"usage", "int"}),
    "value": (lambda w: 1, {"int"}),
    "wait": (lambda w: (), {"list", "none", "waits"}),
    "writes": (lambda w: (), NAMES),
    # Of one method
    "CommandBuffer.dispatch.args": (lambda w: (w.buffer, 1), {"list", "mapping"}),
    "CommandBuffer.fill.value": (lambda w: 1, None),
    "Context.adopt.buffer": (lambda w: w.tracked, {"buffer"}),
    "Context.adopt.mode": (lambda w: "hosted", TEXT),
    "Context.allocate.mode": (lambda w: "hosted", TEXT),
    "Context.copy.source": (lambda w: "x", TEXT),
    "Context.copy.target": (lambda w: "z", TEXT),
    "Context.fill.value": (lambda w: 1, None),
    "Context.from_host.mode": (lambda w: "hosted", TEXT),
    "Device.compile.source": (lambda w: SOURCE, {"text", "mapping"}),
    "Device.compile.trace": (lambda w: False, {"flag", "text"}),
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
    "Memory.mode": (lambda w: "device", TEXT),
    "MergeBuffer.expect.source": (lambda w: w.tracked, {"buffer"}),
    "MergeBuffer.load.source": (lambda w: w.tracked, {"buffer"}),
    "Queue.wait_external.event": (lambda w: None, None),
    "Queue.notify_external.event": (lambda w: None, None),
    "Queue.call.arguments": (lambda w: 1, None),
    "Flow.call.arguments": (lambda w: 1, None),
    "Queue.dealloca.buffer": (lambda w: w.fresh("alloca"), {"buffer"}),
    "Queue.fill.value": (lambda w: 1, None),
    "Recording.copy.source": (lambda w: w.tracked, {"buffer"}),
    "Recording.copy.target": (lambda w: w.tracked_target, {"buffer"}),
    "Recording.dispatch.args": (lambda w: (w.tracked, 1), {"list", "mapping"}),
    "Recording.fill.value": (lambda w: 1, None),
    "Routine.run.queue": (lambda w: None, {"queue", "text", "none"}),
    "Routine.__call__.n": (lambda w: 1, INTS),
    "Routine.run.scalars": (lambda w: {"n": 1}, {"mapping"}),
    "Step.kernel": (lambda w: "odd", {"text", "kernel"}),
    "Timepoint.semaphore": (lambda w: w.semaphore, {"semaphore"}),
    "compile.source": (lambda w: SOURCE, {"text", "mapping"}),
    "compile.target": (lambda w: w.spec, {"text", "list", "device"}),
    "compile.trace": (lambda w: False, {"flag", "text"}),
    "create_device.parameters": (lambda w: 1, None),
    "virtual_devices.parameters": (lambda w: 1, None),
    "MergeBuffer.recover": (lambda w: None, None),
}
for _method in ("fill", "write", "update", "read", "to_host", "recover", "release", "fence"):
    GOOD[f"Flow.{_method}.buffer"] = (lambda w: w.fresh("tracked"), {"buffer"})
for _method in ("fill", "update"):
    GOOD[f"Recording.{_method}.buffer"] = (lambda w: w.tracked, {"buffer"})
for _kind, _method in (("Context", "read"), ("Context", "write"), ("Context", "fill")):
    GOOD[f"{_kind}.{_method}.name"] = (lambda w: "x", TEXT)
GOOD["Context.numpy.name"] = (lambda w: "x", TEXT)
for _method in ("signal_event", "reset_event", "wait_events"):
    GOOD[f"Recording.{_method}.event"] = (
        lambda w: w.flow_recording.create_event(),
        {"event"},
    )

ALWAYS = {"timeout", "args"}
"""What is given though it could be left out: a wait has an end, a kernel arguments."""

OBJECTS = {
    "closed device": ("closed_device", {"device"}),
    "another device": ("foreign_device", {"device"}),
    "the device": ("device", {"device", "code"}),
    "virtual device": ("virtual", {"device"}),
    "closed queue": ("closed_queue", {"queue"}),
    "queue": ("queue", {"queue"}),
    "buffer": ("buffer", {"buffer"}),
    "closed buffer": ("closed_buffer", {"buffer"}),
    "foreign buffer": ("foreign_buffer", {"buffer"}),
    "alloca": ("alloca", {"buffer"}),
    "tracked": ("tracked", {"buffer"}),
    "closed tracked": ("closed_tracked", {"buffer"}),
    "foreign tracked": ("foreign_tracked", {"buffer"}),
    "kernel": ("kernel", {"kernel", "code"}),
    "foreign kernel": ("foreign_kernel", {"kernel", "code"}),
    "executable": ("executable", {"code", "mapping"}),
    "program": ("program", {"code"}),
    "image of a program": ("image", {"list"}),
    "semaphore": ("semaphore", {"semaphore"}),
    "timepoint": ("timepoint", {"waits"}),
    "failed timepoint": ("failed_timepoint", {"waits"}),
    "fence": ("fence", {"waits"}),
    "submission": ("submission", {"waits"}),
    "failed submission": ("failed_submission", {"waits"}),
    "recording": ("recording", {"commands"}),
    "ended": ("ended", {"commands"}),
    "slot": ("slot", {"buffer"}),
    "event": ("event", {"event"}),
    "output": ("output", {"buffer"}),
    "file": ("file", set()),
    "signature": ("signature", {"signature"}),
    "flow": ("flow", {"flow"}),
    "flow recording": ("flow_recording", {"commands", "code"}),
    "flow ended": ("flow_ended", {"commands", "code"}),
    "context": ("context", {"context"}),
    "routine": ("routine", {"callable"}),
    "usage": (None, {"usage", "int", "real"}),
}


def targets_of(owner):
    """Yield the public methods of a class, or functions of a module, with their names."""
    if inspect.ismodule(owner):
        for name in owner.__all__:
            found = getattr(owner, name)
            if inspect.isfunction(found) or (
                callable(found) and not inspect.isclass(found) and not inspect.ismodule(found)
            ):
                yield name, found
        return
    if owner in MADE:
        yield owner.__name__, owner
    for name in sorted(dir(owner)):
        found = inspect.getattr_static(owner, name)
        if isinstance(found, property) or name in INTERNAL.get(owner.__name__, ()):
            continue
        if name.startswith("_") and name not in SPECIAL:
            continue
        function = getattr(owner, name)
        if callable(function) and (function.__module__ or "").startswith("hal"):
            yield f"{owner.__name__}.{name}", function


def batches():
    """Return what is tried together: modules, and classes, by name."""
    found = {"hal": hal, "hal.flow": flow, "Slots": Slots}
    for module in (hal, flow):
        for name in module.__all__:
            kind = getattr(module, name)
            if not inspect.isclass(kind) or issubclass(kind, (BaseException, enum.Enum)):
                continue
            if kind not in RECORDS:
                found[f"{module.__name__}.{name}"] = kind
    return found


def parameters_of(function):
    """Return the parameters that a user gives."""
    return [
        each
        for each in inspect.signature(function).parameters.values()
        if each.name not in {"self", "_"}
    ]


def good_of(title, name):
    """Return how a good value of a parameter is had, and the kinds of value that it takes."""
    owner = title.partition(".")[0]
    for key in (f"{title}.{name}", f"{owner}.{name}", name):
        if key in GOOD:
            return GOOD[key]
    return None


def main(batch, spec="cpu", seed=0):
    """Make the calls of a batch, and print what none of them may do."""
    warnings.simplefilter("error")
    world = World(spec)
    world.check()
    for name in vars(World):
        with contextlib.suppress(hal.errors.UnimplementedError):
            if name.startswith("_") and not name.startswith("__"):
                getattr(world, name[1:])
    before = _resources(world)
    count = 0
    for title, function in targets_of(batches()[batch]):
        faulthandler.dump_traceback_later(4 * LIMIT, exit=True)
        count += _try_method(world, title, function, random.Random(f"{seed} {title}"))
    faulthandler.dump_traceback_later(4 * LIMIT, exit=True)
    world.check()
    after = _resources(world)
    if any(after[name] > before[name] for name in before):
        _complain(batch, f"before {before}, after {after}")
    world.close()
    sys.stdout.write(json.dumps({"calls": count}) + "\n")


def _resources(world):
    """Return what may not grow."""
    for _ in range(3):
        gc.collect()
        world.device.wait_idle(LIMIT)
        world.device.trim()
    return {
        "bytes": world.device.statistics().bytes_now,
        "files": len(os.listdir("/proc/self/fd")),
        "threads": threading.active_count() > 64,
    }


def _complain(call, what):
    sys.stdout.write(json.dumps({"call": call, "what": what}) + "\n")


def _try_method(world, title, function, draw):
    """Call a method with each odd value in the place of each argument."""
    parameters = parameters_of(function)
    places = [(each, None) for each in parameters if each.kind is not each.VAR_KEYWORD]
    for each in parameters:
        if each.kind is each.VAR_KEYWORD:
            places += [(each, keyword) for keyword in KEYWORDS[title]]
    cases = [(place, name) for place in places for name in (*ODD, *OBJECTS)]
    if len(cases) > CASES:
        cases = draw.sample(cases, CASES)
    for (parameter, keyword), name in cases:
        _try(world, title, function, parameters, parameter, keyword, name)
    return len(cases)


def _try(world, title, function, parameters, odd, keyword, name):
    """Make one call, and say what is wrong with how it ended."""
    given = ODD.get(name) or Odd(
        functools.partial(_of_world, world, OBJECTS[name][0]), frozenset(OBJECTS[name][1])
    )
    what = f"{title}({keyword or odd.name}={name})"
    try:
        value = given.make()
    except hal.errors.UnimplementedError:
        return
    found = good_of(title, keyword or odd.name) or good_of(title, odd.name)
    takes = None if found is None else found[1]
    if takes is not None and odd.default is None:
        takes = takes | {"none"}
    before = set(threading.enumerate())
    try:
        positional, named = [], {}
        starred = any(each.kind is each.VAR_POSITIONAL for each in parameters)
        for each in parameters:
            if each is odd:
                argument = value
            elif each.name in ALWAYS or (
                each.default is each.empty
                and each.kind not in {each.VAR_KEYWORD, each.VAR_POSITIONAL}
            ):
                good = good_of(title, each.name)
                assert good is not None, f"{title}: put {each.name!r} into GOOD"
                argument = good[0](world)
            else:
                continue
            if each.kind is each.VAR_KEYWORD:
                named[keyword] = argument
            elif each.kind is each.KEYWORD_ONLY:
                named[each.name] = argument
            elif each.kind in {each.POSITIONAL_ONLY, each.VAR_POSITIONAL} or starred:
                positional.append(argument)
            else:
                named[each.name] = argument
        call = _bound(world, title, function)
    except hal.errors.UnimplementedError:
        return
    try:
        result = call(*positional, **named)
        _finish(result)
    except hal.HalError as error:
        try:
            text = str(error)
        except Exception as broken:  # noqa: BLE001
            _complain(what, f"a text that fails: {type(broken).__name__}")
            return
        if len(text) > 2000:
            _complain(what, f"a text of {len(text)} characters: {text[:100]}")
        if "object at 0x" in text:
            _complain(what, f"an address in {text[:200]}")
        return
    except BaseException as error:  # noqa: BLE001 - that is what is looked for
        if title in PASSED_ON and callable(value):
            return
        _complain(what, f"raw {type(error).__name__}: {_text(error)}{_where(error)}")
        return
    if takes is not None and not takes & given.kinds and result is not NotImplemented:
        _complain(what, f"taken, and returned {type(result).__name__}")
    del before


def _bound(world, title, function):
    """Return a method of an object that may be used up."""
    owner, _, method = title.rpartition(".")
    if not owner or inspect.isclass(function):
        return function
    kind = next(each for each in SUBJECTS if each.__name__ == owner)
    name = SUBJECTS[kind]
    if inspect.ismethod(function):
        return function
    is_costly = name in {
        "device",
        "queue",
        "executable",
        "kernel",
        "program",
        "virtual",
        "flow",
        "context",
    }
    subject = getattr(world, name) if is_costly and method != "close" else world.fresh(name)
    return getattr(subject, method)


def _of_world(world, name):
    return hal.BufferUsage.TRANSFER_SOURCE if name is None else getattr(world, name)


def _finish(result):
    """End what a call has begun."""
    if isinstance(result, hal.Submission):
        result.wait(LIMIT)
    elif isinstance(result, hal.Buffer) and result.allocation is not None:
        result.allocation.wait(LIMIT)
    elif isinstance(result, (hal.Device, hal.Queue)):
        result.close(LIMIT)
    elif isinstance(result, (flow.Context, flow.Flow, flow.Pipeline)):
        result.close()
    elif isinstance(result, tuple) and result and isinstance(result[0], flow.VirtualDevice):
        for each in result:
            each.close()
    elif isinstance(result, flow.Routine):
        result.context.close()


def _text(error):
    try:
        return str(error)[:200]
    except BaseException:  # noqa: BLE001
        return "(no text)"


def _where(error):
    trace = error.__traceback__
    places = []
    while trace is not None:
        code = trace.tb_frame.f_code
        places.append(f"{os.path.basename(code.co_filename)}:{trace.tb_lineno}")
        trace = trace.tb_next
    return " at " + " > ".join(places[-4:])


if __name__ == "__main__":
    main(*sys.argv[1:])
